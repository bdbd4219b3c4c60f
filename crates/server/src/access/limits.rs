//! Rate limits of a key: buckets of requests and tokens that refill by the minute, and tokens per day.
//!
//! Time is an argument. Tokens are reserved before an answer starts (`limits/reserve.rs`) and charged when it has
//! ended. Usage beyond the reservation takes the bucket of a minute below zero; the next request then waits until it is
//! positive.

mod reserve;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) use self::reserve::{Demand, Reserved};
use super::date::{DAY_S, Timestamp};
use crate::error::{ApiError, ErrorKind};

/// Limits of a key; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u32>,
    /// A day starts at midnight UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
}

/// A point in time on both clocks: buckets must not jump when the clock is set, and days are those of the calendar.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub steady: Instant,
    pub calendar: Timestamp,
}

impl Moment {
    pub fn now() -> Self {
        Self { steady: Instant::now(), calendar: Timestamp::now() }
    }

    #[cfg(test)]
    pub(super) fn after(self, time: Duration) -> Self {
        Self { steady: self.steady + time, calendar: self.calendar.after(time) }
    }
}

/// Usage of a key.
#[derive(Debug, Default)]
pub struct Account {
    used: Mutex<KeyUsage>,
}

#[derive(Debug, Default)]
struct KeyUsage {
    requests: Bucket,
    tokens: Bucket,
    today: Today,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Today {
    pub(super) day: u64,
    pub(super) tokens: u64,
}

/// What is missing from full, so that a bucket need not know its size, which may change with the key file.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    missing: f64,
    since: Option<Instant>,
}

impl Bucket {
    fn refill(&mut self, per_minute: u32, now: Instant) {
        let passed = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.since = Some(self.since.map_or(now, |since| since.max(now)));
        self.missing = (self.missing - passed.as_secs_f64() * rate(per_minute)).max(0.0);
    }

    /// Returns the time until the bucket holds `amount`, which is no more than its size.
    fn wait_for(&self, amount: f64, per_minute: u32) -> Duration {
        let short = self.missing + amount - f64::from(per_minute);
        Duration::try_from_secs_f64(short.max(0.0) / rate(per_minute)).unwrap_or(Duration::MAX)
    }

    fn level(&self, per_minute: u32) -> BucketLevel {
        let remaining = (f64::from(per_minute) - self.missing).max(0.0) as u32;
        let reset = Duration::try_from_secs_f64(self.missing / rate(per_minute)).unwrap_or(Duration::MAX);
        BucketLevel { limit: per_minute, remaining, reset }
    }
}

/// Rate per second. A limit of zero gives a time in the far future, not a division by zero.
fn rate(per_minute: u32) -> f64 {
    f64::from(per_minute.max(1)) / 60.0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketLevel {
    pub limit: u32,
    pub remaining: u32,
    /// Time until the bucket is full.
    pub reset: Duration,
}

/// Remaining amounts, for response headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyStatus {
    pub requests: Option<BucketLevel>,
    pub tokens: Option<BucketLevel>,
}

/// Why a request has to wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("this key is limited to {limit} requests per minute")]
    Requests { limit: u32, wait: Duration },
    #[error("this key is limited to {limit} tokens per minute")]
    Tokens { limit: u32, wait: Duration },
    #[error("this requests {answers} answers and the key is limited to {limit} per minute; request fewer at a time")]
    ManyAnswers { limit: u32, answers: u64 },
    #[error(
        "this needs at least {tokens} tokens and the key is limited to {limit} per minute; shorten the prompt or \
         request fewer answers"
    )]
    ManyTokens { limit: u32, tokens: u64 },
    #[error("this key has used its {limit} tokens for today; the day ends at midnight UTC")]
    Day { limit: u64, wait: Duration },
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (kind, wait) = match refusal {
            Refusal::Requests { wait, .. } => (ErrorKind::RequestRate, wait),
            Refusal::Tokens { wait, .. } => (ErrorKind::TokenRate, wait),
            Refusal::Day { wait, .. } => (ErrorKind::Quota, wait),
            // Waiting would not help, so no time is given.
            Refusal::ManyAnswers { .. } => return Self::too_much(ErrorKind::RequestRate, refusal.to_string()),
            Refusal::ManyTokens { .. } => return Self::too_much(ErrorKind::TokenRate, refusal.to_string()),
        };
        ApiError::rate_limited(kind, refusal.to_string(), wait)
    }
}

impl Account {
    /// Takes one request, or nothing if any limit forbids it.
    pub fn admit(&self, limits: &Limits, now: Moment) -> Result<(), Refusal> {
        let mut used = self.used(now);
        if let Some(limit) = limits.tokens_per_day
            && used.today.tokens >= limit
        {
            let wait = Duration::from_secs(DAY_S - now.calendar.0 % DAY_S);
            return Err(Refusal::Day { limit, wait });
        }
        if let Some(limit) = limits.tokens_per_minute {
            used.tokens.refill(limit, now.steady);
            let wait = used.tokens.wait_for(1.0, limit);
            if wait > Duration::ZERO {
                return Err(Refusal::Tokens { limit, wait });
            }
        }
        if let Some(limit) = limits.requests_per_minute {
            used.requests.refill(limit, now.steady);
            let wait = used.requests.wait_for(1.0, limit);
            if wait > Duration::ZERO {
                return Err(Refusal::Requests { limit, wait });
            }
            used.requests.missing += 1.0;
        }
        Ok(())
    }

    /// Charges used tokens.
    pub fn charge(&self, limits: &Limits, tokens: u64, now: Moment) {
        let mut used = self.used(now);
        used.today.tokens = used.today.tokens.saturating_add(tokens);
        if let Some(limit) = limits.tokens_per_minute {
            used.tokens.refill(limit, now.steady);
            used.tokens.missing += tokens as f64;
        }
    }

    pub fn status(&self, limits: &Limits, now: Moment) -> KeyStatus {
        let mut used = self.used(now);
        let level = |bucket: &mut Bucket, limit| {
            bucket.refill(limit, now.steady);
            bucket.level(limit)
        };
        KeyStatus {
            requests: limits.requests_per_minute.map(|limit| level(&mut used.requests, limit)),
            tokens: limits.tokens_per_minute.map(|limit| level(&mut used.tokens, limit)),
        }
    }

    pub(super) fn today(&self) -> Today {
        self.lock().today
    }

    pub(super) fn set_today(&self, today: Today) {
        self.lock().today = today;
    }

    fn used(&self, now: Moment) -> MutexGuard<'_, KeyUsage> {
        let mut used = self.lock();
        let day = now.calendar.0 / DAY_S;
        // A clock that is set back starts no new day: that would give tokens away.
        if day > used.today.day {
            used.today = Today { day, tokens: 0 };
        }
        used
    }

    fn lock(&self) -> MutexGuard<'_, KeyUsage> {
        // The numbers are consistent whenever the lock is free.
        self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn start() -> Moment {
        // One hour before midnight.
        Moment { steady: Instant::now(), calendar: Timestamp(20_000 * DAY_S + 23 * 3600) }
    }

    #[test]
    fn requests_come_back_evenly_over_a_minute() {
        let limits = Limits { requests_per_minute: Some(6), ..Limits::default() };
        let (account, start) = (Account::default(), start());
        for _ in 0..6 {
            assert_eq!(account.admit(&limits, start), Ok(()));
        }
        let refusal = account.admit(&limits, start).unwrap_err();
        assert_eq!(refusal, Refusal::Requests { limit: 6, wait: Duration::from_secs(10) });
        assert_eq!(account.admit(&limits, start.after(Duration::from_secs(10))), Ok(()));
        assert!(account.admit(&limits, start.after(Duration::from_secs(10))).is_err());
        let status = account.status(&limits, start.after(10 * MINUTE)).requests.unwrap();
        assert_eq!((status.remaining, status.reset), (6, Duration::ZERO), "it holds no more than a minute's worth");
    }

    #[test]
    fn tokens_are_charged_afterwards_and_a_debt_is_waited_for() {
        let limits = Limits { tokens_per_minute: Some(600), ..Limits::default() };
        let (account, start) = (Account::default(), start());
        assert_eq!(account.admit(&limits, start), Ok(()));
        account.charge(&limits, 1200, start);
        let Err(Refusal::Tokens { wait, .. }) = account.admit(&limits, start) else { panic!("it is in debt") };
        assert!(wait > MINUTE && wait < MINUTE + Duration::from_secs(1), "{wait:?}");
        assert_eq!(account.status(&limits, start).tokens.unwrap().remaining, 0);
        assert_eq!(account.admit(&limits, start.after(wait)), Ok(()));
    }

    #[test]
    fn the_tokens_of_a_day_last_until_midnight() {
        let limits = Limits { tokens_per_day: Some(100), ..Limits::default() };
        let (account, start) = (Account::default(), start());
        account.charge(&limits, 100, start);
        assert_eq!(account.admit(&limits, start), Err(Refusal::Day { limit: 100, wait: 60 * MINUTE }));
        assert_eq!(account.admit(&limits, start.after(60 * MINUTE)), Ok(()));
    }

    #[test]
    fn a_clock_that_is_set_back_gives_nothing_for_free() {
        let limits = Limits { tokens_per_day: Some(100), requests_per_minute: Some(1), ..Limits::default() };
        let (account, start) = (Account::default(), start());
        assert_eq!(account.admit(&limits, start), Ok(()));
        account.charge(&limits, 100, start);
        let set_back = Moment { calendar: Timestamp(start.calendar.0 - 10 * DAY_S), ..start.after(MINUTE) };
        assert!(matches!(account.admit(&limits, set_back), Err(Refusal::Day { .. })));
    }

    #[test]
    fn a_limit_of_nothing_refuses_everything() {
        let limits = Limits { requests_per_minute: Some(0), ..Limits::default() };
        assert!(Account::default().admit(&limits, start()).is_err());
    }

    #[test]
    fn without_limits_everything_goes() {
        let account = Account::default();
        for _ in 0..1000 {
            assert_eq!(account.admit(&Limits::default(), start()), Ok(()));
        }
        assert_eq!(account.status(&Limits::default(), start()), KeyStatus::default());
    }
}
