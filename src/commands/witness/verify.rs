//! `ruvllm witness verify`

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::output;

/// Verify that the witness log was not changed
///
/// Every page of the file is authenticated, and every batch of entries is linked to the one before by a hash; both are
/// recomputed. The hash of the last batch is printed: with a note of it, a later check also detects entries that were
/// removed from the end.
#[derive(Debug, Args)]
pub struct Verify {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Verify {
    pub fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        memory.check()?;
        let bar = crate::output::progress::counter("batches verified");
        let verified = memory.witness().verify(&mut |batches| bar.set_position(batches))?;
        bar.finish_and_clear();
        if self.json {
            let problems: Vec<String> = verified.problems.iter().map(ToString::to_string).collect();
            output::json(&json!({
                "sound": verified.is_sound(), "batches": verified.batches, "entries": verified.entries,
                "vectors": verified.vectors, "vectors_gone": verified.vectors_gone, "forgotten": verified.forgotten,
                "batches_not_recomputed": verified.batches_not_recomputed, "hash": verified.hash,
                "problems": problems,
            }))?;
        } else {
            for problem in &verified.problems {
                output::line(&problem.to_string())?;
            }
            if verified.is_sound() {
                output::line(&format!(
                    "verified: {} entries in {} batches, {} embeddings; last hash {}",
                    verified.entries, verified.batches, verified.vectors, verified.hash
                ))?;
            }
            if verified.forgotten > 0 {
                output::remark(&format!("{} entries were forgotten; their digests are there", verified.forgotten));
            }
            if verified.batches_not_recomputed > 0 {
                output::remark(&format!(
                    "{} batches were written before entries could be forgotten, and cannot be recomputed without those \
                     that were",
                    verified.batches_not_recomputed
                ));
            }
        }
        if !verified.is_sound() {
            bail!("the witness log was changed");
        }
        Ok(())
    }
}
