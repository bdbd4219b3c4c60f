//! What a request takes of its key's limits while it is answered.

use std::sync::atomic::{AtomicU64, Ordering};

use super::caller::Caller;
use super::limits::{Demand, Moment, Reserved};
use crate::error::ApiError;

/// Reserved tokens. When dropped, what was charged counts and the rest is returned.
#[derive(Debug)]
pub(crate) struct Reservation {
    caller: Caller,
    reserved: Reserved,
    used: AtomicU64,
}

impl Reservation {
    pub(crate) fn new(caller: &Caller, demand: &Demand) -> Result<Self, ApiError> {
        let (limits, now) = (&caller.limits, Moment::now());
        caller.account.admit_more(limits, demand.answers.saturating_sub(1), now)?;
        let reserved = caller.account.reserve(limits, demand, now)?;
        Ok(Self { caller: caller.clone(), reserved, used: AtomicU64::new(0) })
    }

    /// Limit of each answer, if it is below what was requested.
    pub(crate) fn answer_tokens_max(&self) -> Option<u64> {
        self.reserved.answer_tokens_max
    }

    /// Reserves more for a prompt that is longer than estimated.
    pub(crate) fn extend(&mut self, more: u64) -> Result<(), ApiError> {
        let Caller { account, limits, .. } = &self.caller;
        Ok(account.extend(limits, &mut self.reserved, more, Moment::now())?)
    }

    /// Charges computed tokens, of prompt or answer.
    pub(crate) fn charge(&self, tokens: u64) {
        self.caller.notes.add_tokens(tokens);
        self.used.fetch_add(tokens, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Caller { account, limits, .. } = &self.caller;
        account.settle(limits, &self.reserved, self.used.load(Ordering::Relaxed), Moment::now());
    }
}
