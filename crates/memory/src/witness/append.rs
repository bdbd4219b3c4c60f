//! Appends entries to the log, a batch at a time.

use std::collections::BTreeMap;

use serde::Serialize;

use super::annotation::Annotation;
use super::chain::{self, ChainHash, Rule};
use super::entry::WitnessEntry;
use crate::database::{StoredVector, Writing};
use crate::error::{MemoryError, Result};
use crate::facets::{Kind, Metadata, Part, vector_id};
use crate::graph::{self, Edge, EdgeKind};
use crate::learning::{self, Trajectory};
use crate::names::Names;
use crate::policies;
use crate::schema::take_numbers;
use crate::sessions;
use crate::vector::VectorCode;

/// An entry ready to be stored.
#[derive(Debug)]
pub(crate) enum Prepared {
    Request(Box<PreparedRequest>),
    Annotation(Box<Annotation>),
}

#[derive(Debug)]
pub(crate) struct PreparedRequest {
    pub entry: WitnessEntry,
    pub prompt: Option<VectorCode>,
    pub answer: Option<VectorCode>,
    /// Similar earlier requests, with their similarity.
    pub similar: Vec<(i64, f32)>,
    /// What is kept to learn from, where that is wanted.
    pub trajectory: Option<Trajectory>,
}

/// Where a batch is being stored.
struct Place<'a> {
    database: &'a mut dyn Writing,
    names: &'a Names,
    batch: i64,
    /// Policies that decided about requests of the batch, by tenant, and when.
    used: BTreeMap<(u32, String), i64>,
}

/// Stores a batch and links it to the hash chain. Returns the ids of its entries.
pub(crate) fn append(database: &mut dyn Writing, names: &Names, batch: &[Prepared], at_ms: i64) -> Result<Vec<i64>> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let first = take_numbers(database, "entry", batch.len())?;
    let (number, before) = chain::end(database.as_reading())?;
    let number = number + 1;
    let mut hash = ChainHash::new(&before, number);
    let (mut ids, mut bytes) = (Vec::with_capacity(batch.len()), 0);
    let mut place = Place { database, names, batch: number, used: BTreeMap::new() };
    for (id, prepared) in (first..).zip(batch) {
        let body = match prepared {
            Prepared::Request(request) => place.request(id, request)?,
            Prepared::Annotation(annotation) => place.annotation(id, annotation)?,
        };
        hash.add(id, &chain::body_digest(&body));
        bytes += body.len();
        let sql = "INSERT INTO witness_bodies (id, body) VALUES ($1, $2)";
        place.database.execute(sql, &[id.into(), body.into()])?;
        ids.push(id);
    }
    let Place { used, .. } = place;
    for ((tenant, policy), at_ms) in used {
        policies::touch(database, tenant, &policy, at_ms)?;
    }
    let sql = "INSERT INTO batches (id, first, last, at_ms, bytes, hash, rule) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let last = first + batch.len() as i64 - 1;
    let hash = hash.finish().to_vec();
    let values = [
        number.into(),
        first.into(),
        last.into(),
        at_ms.into(),
        (bytes as i64).into(),
        hash.into(),
        Rule::DIGESTS.into(),
    ];
    database.execute(sql, &values)?;
    Ok(ids)
}

impl Place<'_> {
    /// Stores all of a request but its body, which is returned.
    fn request(&mut self, id: i64, prepared: &PreparedRequest) -> Result<String> {
        let mut entry = prepared.entry.clone();
        entry.prompt_vector = prepared.prompt.as_ref().map(chain::digest);
        entry.answer_vector = prepared.answer.as_ref().map(chain::digest);
        let row = Row { id, batch: self.batch, entry: &entry };
        let metadata = row.store(self.database, self.names)?;
        put_vectors(self.database, id, metadata, prepared)?;
        for (earlier, similarity) in &prepared.similar {
            let edge = Edge { source: id, kind: EdgeKind::Similar, target: *earlier, weight: f64::from(*similarity) };
            graph::connect(self.database, edge, entry.at_ms)?;
        }
        if let Some(trajectory) = &prepared.trajectory {
            learning::put(self.database, (id, metadata.tenant), trajectory)?;
        }
        let body = to_body(&entry)?;
        if let Some(policy) = entry.routing.policy {
            self.used.insert((metadata.tenant, policy), entry.at_ms);
        }
        Ok(body)
    }

    /// Stores all of an annotation but its body, which is returned. Feedback also becomes that of the trajectory it is about.
    fn annotation(&mut self, id: i64, annotation: &Annotation) -> Result<String> {
        let tenant = self.names.find_or_add(self.database, &annotation.tenant)?;
        let model = self.names.find_or_add(self.database, &annotation.model)?;
        let sql = "INSERT INTO witness (id, batch, request, tenant, model, at_ms, total_ms, prompt_tokens, \
                   cached_tokens, answer_tokens, kind, about, end_user) \
                   VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, $7, $8, $9)";
        let values = [
            id.into(),
            self.batch.into(),
            annotation.request.as_str().into(),
            i64::from(tenant).into(),
            i64::from(model).into(),
            annotation.at_ms.into(),
            annotation.kind().into(),
            annotation.about.as_deref().into(),
            annotation.user.as_deref().into(),
        ];
        self.database.execute(sql, &values)?;
        if let (Some(feedback), Some(about)) = (annotation.feedback(), &annotation.about) {
            learning::rate(self.database, (i64::from(tenant), about), feedback)?;
        }
        to_body(annotation)
    }
}

fn to_body(entry: &impl Serialize) -> Result<String> {
    serde_json::to_string(entry).map_err(|error| MemoryError::invalid("entry", error.to_string()))
}

struct Row<'a> {
    id: i64,
    batch: i64,
    entry: &'a WitnessEntry,
}

impl Row<'_> {
    /// Stores the columns that entries are searched by.
    fn store(&self, database: &mut dyn Writing, names: &Names) -> Result<Metadata> {
        let entry = self.entry;
        let tenant = names.find_or_add(database, &entry.tenant)?;
        let model = names.find_or_add(database, &entry.model)?;
        let session = match &entry.session {
            Some(name) => sessions::find(database.as_reading(), names, &entry.tenant, name)?,
            None => None,
        };
        let quality = entry.quality.as_ref().map(|quality| quality.score);
        let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let sql = "INSERT INTO witness (id, batch, request, tenant, model, session, at_ms, total_ms, quality, error, \
                   prompt_tokens, cached_tokens, answer_tokens, about, response, end_user, choice) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";
        database.execute(
            sql,
            &[
                self.id.into(),
                self.batch.into(),
                entry.request.as_str().into(),
                i64::from(tenant).into(),
                i64::from(model).into(),
                session.into(),
                entry.at_ms.into(),
                entry.latency.total_ms.into(),
                quality.into(),
                entry.error.as_ref().map(|error| error.kind.as_str()).into(),
                count(entry.tokens.prompt).into(),
                count(entry.cache.cached_tokens).into(),
                count(entry.tokens.answer).into(),
                entry.regenerates.as_deref().into(),
                entry.response.as_deref().into(),
                entry.user.as_deref().into(),
                entry.routing.choice.as_ref().map(|_| 1).into(),
            ],
        )?;
        if let Some(session) = session {
            let edge = Edge { source: session, kind: EdgeKind::Contains, target: self.id, weight: 1.0 };
            graph::connect(database, edge, entry.at_ms)?;
        }
        Ok(Metadata {
            kind: Kind::Request,
            tenant,
            model,
            at_ms: entry.at_ms,
            quality,
            total_ms: entry.latency.total_ms,
            is_failed: entry.error.is_some(),
        })
    }
}

fn put_vectors(database: &mut dyn Writing, id: i64, metadata: Metadata, prepared: &PreparedRequest) -> Result<()> {
    let parts = [(Kind::Request, Part::Whole, &prepared.prompt), (Kind::Answer, Part::Answer, &prepared.answer)];
    for (kind, part, code) in parts {
        if let Some(code) = code {
            let facets = Metadata { kind, ..metadata }.facets();
            database.put_vector(StoredVector { id: vector_id(id, part), code: code.clone(), facets })?;
        }
    }
    Ok(())
}
