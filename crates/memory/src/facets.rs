//! What the facets of a vector mean: by them a search is narrowed while it runs.

use crate::vector::{FACETS, Facets, Filter};

/// Vectors of one entry: a request has two, of what was asked and of what was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole = 0,
    Answer = 1,
}

const PARTS: i64 = 4;

/// The id of a vector: its entry's and the part.
pub(crate) fn vector_id(entry: i64, part: Part) -> i64 {
    entry * PARTS + part as i64
}

pub(crate) fn entry_of(vector: i64) -> (i64, Part) {
    (vector / PARTS, if vector % PARTS == Part::Answer as i64 { Part::Answer } else { Part::Whole })
}

/// What an entry is.
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

/// Of a vector whose entry has no quality (yet): beyond all that have one.
const UNKNOWN: u32 = u32::MAX;

/// What a vector is found by besides its meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    pub kind: Kind,
    pub tenant: u32,
    pub model: u32,
    pub at_ms: i64,
    pub quality: Option<f64>,
    pub total_ms: f64,
    pub is_failed: bool,
}

impl Described {
    /// An entry that is no request.
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

/// Limits of a search. A half-open range of times, inclusive ones of the rest; `None` is no limit.
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
    /// Never excludes what belongs to the limits; whoever needs them to the millisecond looks again at the entries.
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
