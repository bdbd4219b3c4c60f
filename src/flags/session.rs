//! The session that a command line continues.

use clap::Args;

use super::memory::MemoryLocationFlags;

#[derive(Debug, Args)]
pub struct SessionFlags {
    /// Continue the conversation of this name, or start it; `ruvllm sessions` lists them
    #[arg(long, value_name = "NAME", conflicts_with = "raw")]
    pub session: Option<String>,
    /// Keep prompts and answers in the memory, to learn from what you say of them with /good, /bad and /fix. The next
    /// answers are drawn with what you found right, and with what was learned (`ruvllm learn now`) unless --adapter names
    /// something else
    #[arg(long, conflicts_with = "raw")]
    pub learn: bool,
    /// Draw answers from the model alone, whatever was corrected
    #[arg(long, requires = "learn")]
    pub no_recall: bool,
    #[command(flatten)]
    pub memory: MemoryLocationFlags,
}
