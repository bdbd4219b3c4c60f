//! What the recorder is handed.

use crate::learning::{KnownRequest, Trajectory};
use crate::sessions::Turn;
use crate::witness::{Annotation, WitnessEntry, WitnessRecord};

/// What is stored of a request.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub witness: WitnessRecord,
    /// Prompt and answer for an embedding model; not stored.
    pub to_embed: Option<[String; 2]>,
    /// The turn of its session, if it has one.
    pub turn: Option<Turn>,
    /// What is kept to learn from, if its tenant opted in.
    pub trajectory: Option<Trajectory>,
    /// Hash of what was asked, by which a request for another answer is recognised; `None` if there was no answer.
    pub prompt: Option<u64>,
}

impl Trace {
    pub(super) fn known(&self) -> KnownRequest {
        let WitnessEntry { request, response, tenant, user, model, texts, .. } = &self.witness.entry;
        KnownRequest {
            request: request.clone(),
            response: response.clone(),
            tenant: tenant.clone(),
            user: user.clone(),
            model: model.clone(),
            keeps_text: texts.is_some() || self.trajectory.is_some(),
        }
    }
}

/// What waits to be stored: an entry of the log, and what belongs to it.
#[derive(Clone, Debug)]
pub(crate) enum Queued {
    Trace(Box<Trace>),
    Annotation(Box<Annotation>),
}

impl Queued {
    pub(super) fn trace(&self) -> Option<&Trace> {
        match self {
            Self::Trace(trace) => Some(trace),
            Self::Annotation(_) => None,
        }
    }

    pub(super) fn trace_mut(&mut self) -> Option<&mut Trace> {
        match self {
            Self::Trace(trace) => Some(trace),
            Self::Annotation(_) => None,
        }
    }

    pub(super) fn request(&self) -> &str {
        match self {
            Self::Trace(trace) => &trace.witness.entry.request,
            Self::Annotation(annotation) => &annotation.request,
        }
    }
}
