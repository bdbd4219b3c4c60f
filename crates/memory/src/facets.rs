//! The meaning of a vector's facets, by which a search is filtered while it runs.

use crate::vector::{FACETS, Facets, Filter};

/// Which vector of an entry: a request has one for its prompt and one for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole = 0,
    Answer = 1,
}

const PARTS: i64 = 4;

/// Returns the id of a vector: its entry's id and the part.
pub(crate) fn vector_id(entry: i64, part: Part) -> i64 {
    entry * PARTS + part as i64
}

pub(crate) fn entry_of(vector: i64) -> (i64, Part) {
    (vector / PARTS, if vector % PARTS == Part::Answer as i64 { Part::Answer } else { Part::Whole })
}

/// What a vector belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Request = 1,
    Answer = 2,
    Session = 3,
    Policy = 4,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Request, Self::Answer, Self::Session, Self::Policy];

    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Answer => "answer",
            Self::Session => "session",
            Self::Policy => "policy",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

const KIND: usize = 0;
const TENANT: usize = 1;
const MODEL: usize = 2;
const TIME: usize = 3;
const QUALITY: usize = 4;
const LATENCY: usize = 5;
const FAILED: usize = 6;

/// Facet of an entry without a quality, above all others.
const UNKNOWN: u32 = u32::MAX;

/// What a vector can be filtered by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata {
    pub kind: Kind,
    pub tenant: u32,
    pub model: u32,
    pub at_ms: i64,
    pub quality: Option<f64>,
    pub total_ms: f64,
    pub is_failed: bool,
}

impl Metadata {
    /// Metadata of an entry that is not a request.
    pub fn plain(kind: Kind, tenant: u32, at_ms: i64) -> Self {
        Self { kind, tenant, model: 0, at_ms, quality: None, total_ms: 0.0, is_failed: false }
    }

    pub fn facets(self) -> Facets {
        let mut facets = [0; FACETS];
        facets[KIND] = self.kind as u32;
        facets[TENANT] = self.tenant;
        facets[MODEL] = self.model;
        facets[TIME] = seconds(self.at_ms);
        facets[QUALITY] = self.quality.map_or(UNKNOWN, per_mille);
        facets[LATENCY] = self.total_ms.clamp(0.0, f64::from(UNKNOWN - 1)) as u32;
        facets[FAILED] = u32::from(self.is_failed);
        Facets(facets)
    }
}

/// Limits of a search: a half-open range of times, closed ranges otherwise. `None` for no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    pub kinds: Vec<Kind>,
    pub tenant: Option<u32>,
    pub model: Option<u32>,
    pub since_ms: Option<i64>,
    pub until_ms: Option<i64>,
    pub quality: Option<(f64, f64)>,
    pub total_ms: Option<(f64, f64)>,
    pub is_failed: Option<bool>,
}

impl Limits {
    /// Never excludes what is within the limits, but rounds them. Callers that need them exact check the entries, too.
    pub fn filter(&self) -> Filter {
        let mut filter = Filter::default();
        let kinds: Vec<u32> = self.kinds.iter().map(|kind| *kind as u32).collect();
        if !kinds.is_empty() {
            filter = filter.with_one_of(KIND, &kinds);
        }
        if let Some(tenant) = self.tenant {
            filter = filter.with_value(TENANT, tenant);
        }
        if let Some(model) = self.model {
            filter = filter.with_value(MODEL, model);
        }
        if self.since_ms.is_some() || self.until_ms.is_some() {
            filter = filter.with_range(TIME, self.since_ms.map_or(0, seconds)..=self.until_ms.map_or(UNKNOWN, seconds));
        }
        if let Some((min, max)) = self.quality {
            filter = filter.with_range(QUALITY, per_mille(min)..=per_mille(max));
        }
        if let Some((min, max)) = self.total_ms {
            filter = filter.with_range(LATENCY, min.max(0.0) as u32..=max.ceil().min(f64::from(UNKNOWN)) as u32);
        }
        if let Some(is_failed) = self.is_failed {
            filter = filter.with_value(FAILED, u32::from(is_failed));
        }
        filter
    }
}

fn seconds(at_ms: i64) -> u32 {
    u32::try_from(at_ms.max(0) / 1000).unwrap_or(u32::MAX)
}

fn per_mille(quality: f64) -> u32 {
    (quality.clamp(0.0, 1.0) * 1000.0).round() as u32
}
