//! Whoever sends a request.

use std::sync::Arc;

use super::limits::{Account, Demand, Limits, Moment, Refusal, Standing};
use super::reservation::Reservation;
use super::scope::{Scope, Scopes};
use crate::body_budget::HeldPlace;
use crate::error::ApiError;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// The tenant of all strangers. No key can have it: names of tenants have no such character.
const STRANGERS: &str = "@strangers";

const HOW_TO_PROVE: &str = "send 'Authorization: Bearer TOKEN' with the token that `ruvllm keys token` prints on the server's \
                            machine, or a key that `ruvllm keys add NAME --scope admin` makes";

/// What is known of whoever sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Has a key, or the token of this machine's operator.
    Proven,
    /// Sends neither, where no keys are needed, and is a program on this machine.
    Local,
    /// The same from elsewhere, or from a web page.
    Stranger,
}

/// In the extensions of every request that passed the guard: take it as `Extension<Caller>`.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Of the key; `anonymous` where there are no keys.
    pub name: Arc<str>,
    /// On whose behalf: a path, empty for the default tenant.
    pub tenant: Arc<str>,
    pub scopes: Scopes,
    pub identity: Identity,
    /// What the request is called.
    pub request: RequestId,
    pub(super) limits: Limits,
    pub(super) account: Arc<Account>,
    pub(super) notes: Arc<Notes>,
    pub(super) body: HeldPlace,
}

impl Caller {
    /// Counts tokens that took little; what takes more is set aside before it begins (`reserve`).
    pub fn charge(&self, tokens: u64) {
        self.notes.add_tokens(tokens);
        self.account.charge(&self.limits, tokens, Moment::now());
    }

    /// Takes what a request will need from the limits of its key, or refuses it.
    pub(crate) fn reserve(&self, demand: &Demand) -> Result<Reservation, ApiError> {
        Reservation::new(self, demand)
    }

    /// Says that the request has become tokens: its body no longer counts as being in flight.
    pub(crate) fn prepared(&self) {
        self.body.release();
    }

    /// Names the model that answers, for the log and the metrics; only models that exist.
    pub fn note_model(&self, model: &str) {
        self.notes.set_model(model);
    }

    /// Names whom the caller asks for, for the log.
    pub fn note_user(&self, user: Option<&str>) {
        if let Some(user) = user {
            self.notes.set_user(user);
        }
    }

    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes.allow(scope) {
            return Ok(());
        }
        if self.identity != Identity::Proven {
            return Err(ApiError::forbidden(format!("this is for administrators only: {HOW_TO_PROVE}")));
        }
        let scopes = &self.scopes;
        Err(ApiError::forbidden(format!("this needs a key with the scope {scope}; '{}' has {scopes}", self.name)))
    }

    /// Takes from whoever came without a key what only people of this machine may do without one.
    pub(super) fn estrange(&mut self) {
        self.identity = Identity::Stranger;
        // What is cached for one tenant is served to it faster, so they must not share that of local users.
        self.tenant = STRANGERS.into();
    }

    /// For reading and changing what is remembered: every user of this machine comes from a loopback address.
    pub fn require_known(&self) -> Result<(), ApiError> {
        if self.identity == Identity::Proven {
            return Ok(());
        }
        Err(ApiError::forbidden(format!("what is remembered is not shown to everybody: {HOW_TO_PROVE}")))
    }

    /// For going on with a session by its name.
    pub fn require_session(&self) -> Result<(), ApiError> {
        if self.identity != Identity::Stranger {
            return Ok(());
        }
        let how =
            "add a key with `ruvllm keys add NAME` and send it, or ask from the same machine by a loopback address";
        Err(ApiError::forbidden(format!("strangers have no sessions: {how}")).with_param("session"))
    }

    pub(super) fn admit(&self, now: Moment) -> Result<(), Refusal> {
        self.account.admit(&self.limits, now)
    }

    pub(super) fn standing(&self, now: Moment) -> Standing {
        self.account.standing(&self.limits, now)
    }
}
