//! The sender of a request.

use std::sync::Arc;

use ruvllm_memory::check_user;

use super::limits::{Account, Demand, KeyStatus, Limits, Moment, Refusal};
use super::reservation::Reservation;
use super::scope::{Scope, Scopes};
use crate::body_budget::HeldPermit;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;
use crate::models::Asker;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// Tenant of all unknown senders. No key can have it: names of tenants cannot contain this character.
const UNKNOWN_SENDERS: &str = "@strangers";

const HOW_TO_PROVE: &str = "send 'Authorization: Bearer TOKEN' with the token that `ruvllm keys token` prints on the \
                            server's machine, or a key from `ruvllm keys add NAME --scope admin`";

/// How much is known about the sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Has a key, or the token of this machine's operator.
    Proven,
    /// Has neither, where no keys are required, and is a program on this machine.
    Local,
    /// The same, but from another machine or from a web page.
    Stranger,
}

/// In the extensions of every request that passed the guard: extract it as `Extension<Caller>`.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name of the key; `anonymous` without keys.
    pub name: Arc<str>,
    /// Tenant: a path, empty for the default tenant.
    pub tenant: Arc<str>,
    /// The tenant that what it loads belongs to: that of a key which has been given one. Otherwise it is for all.
    pub owner: Option<Arc<str>>,
    pub scopes: Scopes,
    pub identity: Identity,
    /// Whether its requests and answers are kept to learn from.
    pub learns: bool,
    /// The end user that a program in between names in a header.
    pub(super) forwarded_user: Option<Arc<str>>,
    /// Id of the request.
    pub request: RequestId,
    pub(super) limits: Limits,
    pub(super) account: Arc<Account>,
    pub(super) notes: Arc<Notes>,
    pub(super) body: HeldPermit,
}

impl Caller {
    /// Charges tokens of cheap work; expensive work is reserved before it starts (`reserve`).
    pub fn charge(&self, tokens: u64) {
        self.notes.add_tokens(tokens);
        self.account.charge(&self.limits, tokens, Moment::now());
    }

    /// Takes what a request will need from the limits of its key, or refuses it.
    pub(crate) fn reserve(&self, demand: &Demand) -> Result<Reservation, ApiError> {
        Reservation::new(self, demand)
    }

    /// Reports that the prompt is encoded: the body no longer counts as in flight.
    pub(crate) fn prepared(&self) {
        self.body.release();
    }

    /// Records the model for the log and the metrics; only models that exist.
    pub fn note_model(&self, model: &str) {
        self.notes.set_model(model);
    }

    /// Returns what the log line and the headers of the response say.
    pub(crate) fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    /// Returns where parameters without effect are noted.
    pub(crate) fn ignored(&self) -> &IgnoredParams {
        &self.notes.ignored
    }

    /// Records the end user that a field names, for the log and the memory.
    pub fn note_user(&self, field: &'static str, user: Option<&str>) -> Result<(), ApiError> {
        // Some clients send an empty name for none.
        let Some(user) = user.filter(|user| !user.is_empty()) else { return Ok(()) };
        check_user(user).map_err(|error| ApiError::invalid_param(field, error.to_string()))?;
        self.notes.set_user(user);
        Ok(())
    }

    /// Returns the end user, if one is named.
    pub fn user(&self) -> Option<&str> {
        self.notes.user().or(self.forwarded_user.as_deref())
    }

    /// Returns what decides about adapters.
    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker { tenant: &self.tenant, user: self.user(), learns: self.learns }
    }

    /// Records the id that the body of the response has.
    pub(crate) fn note_response(&self, id: &str) {
        self.notes.set_response(id);
    }

    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes.allow(scope) {
            return Ok(());
        }
        if self.identity != Identity::Proven {
            return Err(ApiError::forbidden(format!("this needs the scope admin: {HOW_TO_PROVE}")));
        }
        let scopes = &self.scopes;
        Err(ApiError::forbidden(format!("this needs a key with the scope {scope}; '{}' has {scopes}", self.name)))
    }

    /// Required to change the store. Programs on this machine may without a key, if the operator `allows_local` ones.
    pub(crate) fn require_store_changes(&self, allows_local: bool) -> Result<(), ApiError> {
        if self.scopes.allow(Scope::Admin) || (allows_local && self.identity == Identity::Local) {
            return Ok(());
        }
        let local = "start the server with --ollama to allow it to programs on its own machine while there are no keys";
        Err(ApiError::forbidden(format!("changing the models needs the scope admin: {HOW_TO_PROVE}; or {local}")))
    }

    /// Removes what only local programs may do without a key.
    pub(super) fn drop_local_rights(&mut self) {
        self.identity = Identity::Stranger;
        self.learns = false;
        // Cached prompts of a tenant are served faster, so unknown senders must not share those of local users.
        self.tenant = UNKNOWN_SENDERS.into();
    }

    /// Required to read and change the memory: every user of this machine can use a loopback address.
    pub fn require_known(&self) -> Result<(), ApiError> {
        if self.identity == Identity::Proven {
            return Ok(());
        }
        Err(ApiError::forbidden(format!("the memory needs authentication: {HOW_TO_PROVE}")))
    }

    /// Required to continue a session by its name.
    pub fn require_session(&self) -> Result<(), ApiError> {
        self.require_local("sessions", "session")
    }

    /// Required where a name stands for what somebody else may have said: `what` names it, and `param` the field.
    pub(crate) fn require_local(&self, what: &str, param: &str) -> Result<(), ApiError> {
        if self.identity != Identity::Stranger {
            return Ok(());
        }
        let how = "add a key with `ruvllm keys add NAME` and send it, or send the request from the same machine to a \
             loopback address";
        Err(ApiError::forbidden(format!("{what} need authentication: {how}")).with_param(param))
    }

    pub(super) fn admit(&self, now: Moment) -> Result<(), Refusal> {
        self.account.admit(&self.limits, now)
    }

    pub(super) fn status(&self, now: Moment) -> KeyStatus {
        self.account.status(&self.limits, now)
    }
}
