//! Whoever sends a request.

use std::sync::Arc;

use super::limits::{Account, Limits, Moment, Refusal, Standing};
use super::scope::{Scope, Scopes};
use crate::error::ApiError;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// In the extensions of every request that passed the guard: take it as `Extension<Caller>`.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Of the key; `anonymous` where there are no keys.
    pub name: Arc<str>,
    /// On whose behalf: a path, empty for the default tenant.
    pub tenant: Arc<str>,
    pub scopes: Scopes,
    /// Nobody knows who: without a key, and not from this machine.
    pub is_stranger: bool,
    /// What the request is called.
    pub request: RequestId,
    pub(super) limits: Limits,
    pub(super) account: Arc<Account>,
    pub(super) notes: Arc<Notes>,
}

impl Caller {
    /// Counts tokens that an answer took, of prompt and answer together. To be called when it has ended, and also when
    /// it was broken off: what was computed counts.
    pub fn charge(&self, tokens: u64) {
        self.notes.add_tokens(tokens);
        self.account.charge(&self.limits, tokens, Moment::now());
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
        let scopes = &self.scopes;
        Err(ApiError::forbidden(format!("this needs a key with the scope {scope}; '{}' has {scopes}", self.name)))
    }

    /// Takes from whoever came without a key what only people of this machine may do without one.
    pub(super) fn estrange(&mut self) {
        self.scopes = Scopes::new([Scope::Inference, Scope::Metrics]);
        self.is_stranger = true;
    }

    /// Strangers have nothing of their own that they could be told apart by.
    pub fn require_known(&self) -> Result<(), ApiError> {
        if !self.is_stranger {
            return Ok(());
        }
        let how =
            "add a key with `ruvllm keys add NAME` and send it, or ask from the same machine by a loopback address";
        Err(ApiError::forbidden(format!("what is remembered is not shown to strangers: {how}")))
    }

    pub(super) fn admit(&self, now: Moment) -> Result<(), Refusal> {
        self.account.admit(&self.limits, now)
    }

    pub(super) fn standing(&self, now: Moment) -> Standing {
        self.account.standing(&self.limits, now)
    }
}
