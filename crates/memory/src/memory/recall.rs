//! Search by meaning across requests, answers, sessions and policies.

use super::Memory;
use crate::database::Reading;
use crate::error::Result;
use crate::facets::{Kind, Limits, Part, entry_of};
use crate::policies::{self, Policy};
use crate::sessions::{self, Session};
use crate::witness::{self, WitnessEntry};

/// A search result.
#[derive(Clone, Debug)]
pub struct Recalled {
    pub id: i64,
    pub kind: Kind,
    pub similarity: f32,
    pub item: Item,
}

#[derive(Clone, Debug)]
pub enum Item {
    Request(Box<WitnessEntry>),
    Session(Box<Session>),
    Policy(Box<Policy>),
}

impl Memory {
    /// Returns what is most similar to an embedding, the most similar first. An empty `kinds` means all of them, `None` all
    /// tenants.
    pub fn recall(
        &self,
        vector: &[f32],
        kinds: &[Kind],
        tenant: Option<&str>,
        count_max: usize,
    ) -> Result<Vec<Recalled>> {
        let tenant = match tenant {
            Some(name) => match self.read(|reading| self.names.find(reading, name))? {
                Some(number) => Some(number),
                None => return Ok(Vec::new()),
            },
            None => None,
        };
        let limits = Limits { kinds: kinds.to_vec(), tenant, ..Limits::default() };
        let neighbors = self.database.nearest(vector, count_max, &limits.filter())?;
        self.read(|reading| {
            let mut recalled = Vec::with_capacity(neighbors.len());
            for neighbor in &neighbors {
                let (id, part) = entry_of(neighbor.id);
                // Something removed in the meantime is left out.
                if let Some((kind, item)) = item(reading, id, part)? {
                    recalled.push(Recalled { id, kind, similarity: neighbor.similarity, item });
                }
            }
            Ok(recalled)
        })
    }
}

fn item(reading: &mut dyn Reading, id: i64, part: Part) -> Result<Option<(Kind, Item)>> {
    if let Some(entry) = witness::by_id(reading, id)? {
        let kind = if part == Part::Answer { Kind::Answer } else { Kind::Request };
        return Ok(Some((kind, Item::Request(Box::new(entry)))));
    }
    if let Some(session) = sessions::by_id(reading, id)? {
        return Ok(Some((Kind::Session, Item::Session(Box::new(session)))));
    }
    Ok(policies::by_id(reading, id)?.map(|policy| (Kind::Policy, Item::Policy(Box::new(policy)))))
}
