//! Which embeddings a memory stores. All of one memory are of one kind, so that they can be compared.

use serde::{Deserialize, Serialize};

use crate::Memory;
use crate::error::{MemoryError, Result};
use crate::schema::{meta, set_meta};

/// Per-dimension mean and standard deviation, used to standardise embeddings before they are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DimensionStats {
    pub centre: Vec<f32>,
    pub spread: Vec<f32>,
}

/// The kind of a memory's embeddings, from [`Memory::embeddings`].
#[derive(Clone, Copy, Debug)]
pub struct Embeddings<'a>(pub(crate) &'a Memory);

impl Embeddings<'_> {
    /// Returns the name of the stored embeddings, or `None` before the first is stored.
    pub fn name(&self) -> Result<Option<String>> {
        self.0.read(|reading| meta(reading, "embedding"))
    }

    /// Returns the statistics that stored embeddings were standardised with, if there are any.
    pub fn dimension_stats(&self) -> Result<Option<DimensionStats>> {
        let stored = self.0.read(|reading| meta(reading, "standard"))?;
        let parse = |text: String| {
            serde_json::from_str(&text)
                .map_err(|_| MemoryError::damaged("the statistics of its embeddings cannot be read"))
        };
        stored.map(parse).transpose()
    }

    /// Declares that embeddings of this name are stored from now on. The statistics are kept only with the first declaration.
    /// Fails if the memory holds embeddings of another name.
    pub fn declare(&self, name: &str, stats: Option<&DimensionStats>) -> Result<()> {
        let stored = self.0.write(|writing| {
            let stored = meta(writing, "embedding")?;
            if stored.is_none() {
                set_meta(writing, "embedding", name)?;
                if let Some(stats) = stats {
                    set_meta(writing, "standard", &serde_json::json!(stats).to_string())?;
                }
            }
            Ok(stored)
        })?;
        match stored {
            Some(stored) if stored != name => Err(MemoryError::OtherEmbedding { stored, given: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Removes all embeddings, so that others can be stored. Entries stay, and with them the hash chain of the log.
    pub fn clear(&self) -> Result<()> {
        self.0.write(|writing| {
            writing.remove_all_vectors()?;
            writing.execute("DELETE FROM meta WHERE name IN ('embedding', 'standard')", &[]).map(drop)
        })
    }
}
