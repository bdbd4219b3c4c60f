//! The first step of a recorded request: its session is restored, and policies fill in the parameters it left unset.
//!
//! Knows the memory, and no model.

mod policy;
mod session;

use std::time::{Duration, Instant};

use ruvllm_memory::{Recorder, Routing};

pub use policy::check_policy;

use crate::{Request, RequestError};

/// Requests as they will be answered.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub requests: Vec<Routed>,
    /// Messages at the start of the prompt that the session holds already.
    pub known_messages: usize,
    /// Time spent on reading the session and the policies.
    pub retrieval: Duration,
}

/// A request whose unset parameters were decided.
#[derive(Debug)]
pub(crate) struct Routed {
    pub request: Request,
    pub routing: Routing,
    pub took: Duration,
}

impl Prepared {
    pub(crate) fn new(recorder: &Recorder, model: &str, mut requests: Vec<Request>) -> Result<Self, RequestError> {
        let started = Instant::now();
        let session = session::restore(recorder, model, &mut requests)?;
        let tenant = requests.first().map_or("", |request| request.tenant.name());
        let policies = recorder.memory().policies().known(tenant);
        let retrieval = started.elapsed();
        let route = |mut request: Request| {
            let started = Instant::now();
            let routing = policy::route(&policies, model, &mut request);
            Routed { request, routing, took: started.elapsed() }
        };
        let known_messages = session.map_or(0, |session| session.messages.len());
        Ok(Self { requests: requests.into_iter().map(route).collect(), known_messages, retrieval })
    }
}
