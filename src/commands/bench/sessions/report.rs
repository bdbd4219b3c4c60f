//! Report of the measurement of sessions.

use ruvllm_engine::CacheStats;
use ruvllm_runner::PAGE_TOKENS;
use serde_json::{Value, json};

use super::{SESSION_TOKENS, Sessions};
use crate::commands::bench::Spread;
use crate::commands::bench::answered::Answered;
use crate::output;

/// Where the tokens of resumed sessions were, and the number of sessions by that.
#[derive(Default)]
struct Origins {
    tokens_in_memory: usize,
    tokens_from_disk: usize,
    tokens_computed: usize,
    sessions_in_memory: usize,
    sessions_from_disk: usize,
    /// Sessions with more tokens to compute than the last page.
    sessions_computed: usize,
}

impl Origins {
    fn of(resumed: &[Answered]) -> Self {
        let mut origins = Self::default();
        for session in resumed {
            origins.tokens_in_memory += session.cached_tokens - session.loaded_tokens;
            origins.tokens_from_disk += session.loaded_tokens;
            origins.tokens_computed += session.computed_tokens();
            *if session.computed_tokens() > PAGE_TOKENS {
                &mut origins.sessions_computed
            } else if session.loaded_tokens > 0 {
                &mut origins.sessions_from_disk
            } else {
                &mut origins.sessions_in_memory
            } += 1;
        }
        origins
    }
}

impl Sessions {
    fn first_token_ms(&self) -> Spread {
        Spread::of(self.resumed.iter().map(|session| session.first_token_ms).collect())
    }

    pub fn to_json(&self) -> Value {
        let origins = Origins::of(&self.resumed);
        let state = |stats: &CacheStats| {
            json!({
                "memory_bytes": stats.used_bytes,
                "memory_pages": stats.cached_pages,
                "disk_bytes": stats.disk.map(|disk| disk.bytes),
                "disk_pages": stats.disk.map(|disk| disk.pages),
            })
        };
        json!({
            "sessions": self.resumed.len(),
            "session_tokens": SESSION_TOKENS,
            "budget_bytes": self.end.budget_bytes,
            "used_bytes_max": self.used_bytes_max,
            "process_growth_bytes_max": self.growth_bytes_max,
            "open_s": self.open_s,
            "found_from_earlier_run_tokens": self.found_tokens,
            "resume_s": self.resume_s,
            "resume_first_token_ms": self.first_token_ms().to_json(),
            "unchanged_answers": self.unchanged,
            "resumed_sessions": { "in_memory": origins.sessions_in_memory, "from_disk": origins.sessions_from_disk,
                                  "computed_again": origins.sessions_computed },
            "resumed_tokens": { "in_memory": origins.tokens_in_memory, "from_disk": origins.tokens_from_disk,
                                "computed": origins.tokens_computed },
            "after_opening": state(&self.after_opening),
            "end": state(&self.end),
        })
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let count = self.resumed.len();
        let origins = Origins::of(&self.resumed);
        let first_token = self.first_token_ms();
        let bytes = |count: usize| output::bytes(count as u64);
        let state = |stats: &CacheStats| {
            let disk = stats.disk.map_or("no disk".to_owned(), |disk| {
                format!("{} on disk ({} pages)", output::bytes(disk.bytes), disk.pages)
            });
            format!("{} in memory ({} pages), {disk}", bytes(stats.used_bytes), stats.cached_pages)
        };
        let budget = bytes(self.end.budget_bytes);
        let growth = self
            .growth_bytes_max
            .map_or(String::new(), |growth| format!("; the process grew by {}, mapped files aside", bytes(growth)));
        let rate = (count * SESSION_TOKENS - self.found_tokens) as f64 / self.open_s;
        let rows = [
            (
                format!("{count} sessions of {SESSION_TOKENS} tokens"),
                format!("opened in {:.1} s, {rate:.0} tokens/s", self.open_s),
            ),
            ("cached then".to_owned(), state(&self.after_opening)),
            (
                "resumed".to_owned(),
                format!("in {:.1} s; the next token is unchanged in {} of {count}", self.resume_s, self.unchanged),
            ),
            (
                "first token".to_owned(),
                format!("{:.1} ms (median), {:.1} ms (maximum)", first_token.median, first_token.most),
            ),
            (
                "sessions".to_owned(),
                format!(
                    "{} from memory alone, {} with pages from disk, {} computed again",
                    origins.sessions_in_memory, origins.sessions_from_disk, origins.sessions_computed
                ),
            ),
            (
                "their tokens".to_owned(),
                format!(
                    "{} in memory, {} from disk, {} computed",
                    origins.tokens_in_memory, origins.tokens_from_disk, origins.tokens_computed
                ),
            ),
            (
                "maximum memory".to_owned(),
                format!("{} of pages within a budget of {budget}{growth}", bytes(self.used_bytes_max)),
            ),
            ("at the end".to_owned(), state(&self.end)),
        ];
        rows.map(|(name, text)| vec![name, text]).to_vec()
    }

    /// Returns remarks on what would improve the results, and on what flatters them.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.found_tokens > 0 {
            remarks.push(format!(
                "{} tokens of an earlier run were found on disk and not computed: give --kv-disk an empty folder to \
                 measure opening",
                self.found_tokens
            ));
        }
        let computed = Origins::of(&self.resumed).sessions_computed;
        let remedy = match self.end.disk {
            Some(disk) if disk.removed > 0 => "the disk was full: raise --kv-disk-size",
            Some(_) => "their pages could not be read back from --kv-disk",
            None => "evicted pages are not stored: give a folder with --kv-disk, or raise --kv-memory",
        };
        if computed > 0 {
            remarks.push(format!("{computed} sessions were computed again, because {remedy}"));
        }
        remarks
    }
}
