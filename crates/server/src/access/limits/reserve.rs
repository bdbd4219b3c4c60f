//! Reserves tokens before an answer starts, so that no request uses more than its key has left.
//!
//! From the daily limit, everything that a request can use is reserved: it is never exceeded, however many requests
//! run. From the limit per minute, what the request announces or a usual amount; what it uses beyond that delays the
//! next request. An answer is shortened to what is left rather than refused: it ends as if `max_tokens` had said so.

use super::{Account, DAY_S, Limits, Moment, Refusal};
use std::time::Duration;

/// Tokens of an answer that are reserved from a minute if the request does not say.
const USUAL_TOKENS: u64 = 512;

/// What a request will need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Tokens of all prompts, estimated.
    pub(crate) prompt_tokens: u64,
    pub(crate) answers: u64,
    /// Maximum tokens of each answer.
    pub(crate) answer_tokens: u64,
    /// Whether that is just what the context has room for.
    pub(crate) is_open: bool,
}

/// What was reserved for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    minute: u64,
    day: u64,
    /// Day of the reservation: yesterday's tokens are not returned today.
    date: u64,
    /// Limit of each answer, if it is below what was requested.
    pub(crate) answer_tokens_max: Option<u64>,
}

impl Account {
    /// Takes further requests besides the admitted one.
    pub(crate) fn admit_more(&self, limits: &Limits, count: u64, now: Moment) -> Result<(), Refusal> {
        let Some(limit) = limits.requests_per_minute.filter(|_| count > 0) else { return Ok(()) };
        if count >= u64::from(limit) {
            return Err(Refusal::ManyAnswers { limit, answers: count + 1 });
        }
        let mut used = self.used(now);
        used.requests.refill(limit, now.steady);
        let wait = used.requests.wait_for(count as f64, limit);
        if wait > Duration::ZERO {
            return Err(Refusal::Requests { limit, wait });
        }
        used.requests.missing += count as f64;
        Ok(())
    }

    /// Reserves tokens, or nothing if there are not enough for the prompt and the start of each answer.
    pub(crate) fn reserve(&self, limits: &Limits, demand: &Demand, now: Moment) -> Result<Reserved, Refusal> {
        let mut used = self.used(now);
        let Demand { prompt_tokens, answers, answer_tokens, is_open } = *demand;
        let least = prompt_tokens.saturating_add(answers);
        let day_left = limits.tokens_per_day.map(|limit| (limit, limit.saturating_sub(used.today.tokens)));
        if let Some((limit, left)) = day_left
            && left < least
        {
            return Err(Refusal::Day { limit, wait: until_midnight(now) });
        }
        if let Some(limit) = limits.tokens_per_minute
            && u64::from(limit) < least
        {
            return Err(Refusal::ManyTokens { limit, tokens: least });
        }
        let most = day_left.map(|(_, left)| left).into_iter().chain(limits.tokens_per_minute.map(u64::from)).min();
        let share = most.map(|most| (most - prompt_tokens) / answers.max(1));
        let answer = share.map_or(answer_tokens, |share| share.min(answer_tokens));
        let together = |answer: u64| prompt_tokens.saturating_add(answers.saturating_mul(answer));
        let mut reserved = Reserved { date: used.today.day, ..Reserved::default() };
        if let Some(limit) = limits.tokens_per_minute {
            reserved.minute = together(if is_open { answer.min(USUAL_TOKENS) } else { answer });
            used.tokens.refill(limit, now.steady);
            let wait = used.tokens.wait_for(reserved.minute as f64, limit);
            if wait > Duration::ZERO {
                return Err(Refusal::Tokens { limit, wait });
            }
            used.tokens.missing += reserved.minute as f64;
        }
        if limits.tokens_per_day.is_some() {
            reserved.day = together(answer);
            used.today.tokens = used.today.tokens.saturating_add(reserved.day);
        }
        reserved.answer_tokens_max = (answer < answer_tokens).then_some(answer);
        Ok(reserved)
    }

    /// Reserves more for a prompt that is longer than estimated.
    pub(crate) fn extend(
        &self,
        limits: &Limits,
        reserved: &mut Reserved,
        more: u64,
        now: Moment,
    ) -> Result<(), Refusal> {
        let mut used = self.used(now);
        if let Some(limit) = limits.tokens_per_day {
            if limit.saturating_sub(used.today.tokens) < more {
                return Err(Refusal::Day { limit, wait: until_midnight(now) });
            }
            used.today.tokens += more;
            reserved.day += more;
        }
        if let Some(limit) = limits.tokens_per_minute {
            used.tokens.refill(limit, now.steady);
            used.tokens.missing += more as f64;
            reserved.minute += more;
        }
        Ok(())
    }

    /// Replaces the reservation with what was used.
    pub(crate) fn settle(&self, limits: &Limits, reserved: &Reserved, tokens: u64, now: Moment) {
        let mut used = self.used(now);
        let given_back = if reserved.date == used.today.day { reserved.day } else { 0 };
        used.today.tokens = used.today.tokens.saturating_sub(given_back).saturating_add(tokens);
        if let Some(limit) = limits.tokens_per_minute {
            used.tokens.refill(limit, now.steady);
            used.tokens.missing = (used.tokens.missing + tokens as f64 - reserved.minute as f64).max(0.0);
        }
    }
}

fn until_midnight(now: Moment) -> Duration {
    Duration::from_secs(DAY_S - now.calendar.0 % DAY_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(prompt_tokens: u64, answers: u64, answer_tokens: u64) -> Demand {
        Demand { prompt_tokens, answers, answer_tokens, is_open: false }
    }

    #[test]
    fn a_day_is_not_overdrawn_however_many_requests_run() {
        let limits = Limits { tokens_per_day: Some(1000), ..Limits::default() };
        let (account, now) = (Account::default(), Moment::now());
        let first = account.reserve(&limits, &demand(100, 2, 200), now).unwrap();
        assert_eq!(first.answer_tokens_max, None);
        let second = account.reserve(&limits, &demand(100, 4, 8000), now).unwrap();
        assert_eq!(second.answer_tokens_max, Some(100), "what is left is shared by its answers");
        assert_eq!(account.today().tokens, 1000);
        assert!(matches!(account.reserve(&limits, &demand(1, 1, 1), now), Err(Refusal::Day { limit: 1000, .. })));
        let mut longer = first;
        assert!(
            account.extend(&limits, &mut longer, 1, now).is_err(),
            "nor by a prompt that was longer than it looked"
        );
        account.settle(&limits, &first, 150, now);
        account.settle(&limits, &second, 0, now);
        assert_eq!(account.today().tokens, 150, "what was not used is given back");
    }

    #[test]
    fn one_request_uses_the_tokens_of_a_minute_at_most() {
        let limits = Limits { tokens_per_minute: Some(1000), ..Limits::default() };
        let (account, now) = (Account::default(), Moment::now());
        let greedy = account.reserve(&limits, &demand(200, 100, 1000), now).unwrap();
        assert_eq!(greedy.answer_tokens_max, Some(8));
        assert!(matches!(account.reserve(&limits, &demand(1, 1, 1), now), Err(Refusal::Tokens { limit: 1000, .. })));
        account.settle(&limits, &greedy, 400, now);
        assert_eq!(account.status(&limits, now).tokens.unwrap().remaining, 600);
        let refused = account.reserve(&limits, &demand(990, 11, 1), now);
        assert_eq!(refused, Err(Refusal::ManyTokens { limit: 1000, tokens: 1001 }), "waiting would not help");
        assert_eq!(account.status(&limits, now).tokens.unwrap().remaining, 600, "a refusal takes nothing");
    }

    #[test]
    fn requests_that_do_not_say_how_much_they_need_run_beside_each_other() {
        let limits = Limits { tokens_per_minute: Some(2000), ..Limits::default() };
        let (account, now) = (Account::default(), Moment::now());
        let open = Demand { is_open: true, ..demand(100, 1, 8192) };
        for _ in 0..3 {
            assert_eq!(account.reserve(&limits, &open, now).unwrap().answer_tokens_max, Some(1900));
        }
        assert!(account.reserve(&limits, &open, now).is_err());
    }

    #[test]
    fn every_answer_counts_as_a_request() {
        let limits = Limits { requests_per_minute: Some(10), ..Limits::default() };
        let (account, now) = (Account::default(), Moment::now());
        account.admit(&limits, now).unwrap();
        account.admit_more(&limits, 7, now).unwrap();
        assert_eq!(account.status(&limits, now).requests.unwrap().remaining, 2);
        account.admit(&limits, now).unwrap();
        assert!(matches!(account.admit_more(&limits, 2, now), Err(Refusal::Requests { .. })));
        let never = account.admit_more(&limits, 127, now);
        assert_eq!(never, Err(Refusal::ManyAnswers { limit: 10, answers: 128 }));
    }
}
