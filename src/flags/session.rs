//! The session that a command line continues.

use clap::Args;

use super::memory::MemoryLocationFlags;

#[derive(Debug, Args)]
pub struct SessionFlags {
    /// Continue the conversation of this name, or start it; `ruvllm sessions` lists them
    #[arg(long, value_name = "NAME", conflicts_with = "raw")]
    pub session: Option<String>,
    #[command(flatten)]
    pub memory: MemoryLocationFlags,
}
