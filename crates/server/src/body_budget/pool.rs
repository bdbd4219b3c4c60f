//! A pool of bytes with permits in order of arrival and a maximum share per holder.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Maximum number of waiting requests per holder; more are refused at once.
const WAITING_MAX: usize = 256;

/// Who holds a permit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    Tenant(Arc<str>),
    /// A sender without a key.
    Address(IpAddr),
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) bytes_max: usize,
    /// Maximum bytes of one holder.
    share_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    by_holder: HashMap<Holder, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    holder: Holder,
    bytes: usize,
    grant: oneshot::Sender<PoolPermit>,
}

/// Bytes of a pool, released on drop.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    pool: Arc<Pool>,
    holder: Holder,
    bytes: usize,
}

impl Pool {
    /// Returns a pool of which each holder may have half, so that there is always room for another.
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, share_max: bytes_max / 2, state: Mutex::default() })
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.lock().used
    }

    /// Waits for a permit until `deadline`; `None` if there was none. A request for more than a share gets a whole
    /// share.
    pub(super) async fn enter(
        self: &Arc<Self>,
        holder: &Holder,
        bytes: usize,
        deadline: Instant,
    ) -> Option<PoolPermit> {
        let (grant, permit) = oneshot::channel();
        {
            let mut state = self.lock();
            state.waiting.retain(|waiting| !waiting.grant.is_closed());
            if state.waiting.iter().filter(|waiting| waiting.holder == *holder).count() >= WAITING_MAX {
                return None;
            }
            state.waiting.push_back(Waiting { holder: holder.clone(), bytes: bytes.min(self.share_max), grant });
        }
        self.admit();
        timeout_at(deadline, permit).await.ok()?.ok()
    }

    /// Grants permits in order. Holders over their share are skipped; another one that needs more than is free blocks
    /// those behind it, or it would wait forever.
    fn admit(self: &Arc<Self>) {
        // Dropped after the lock is released: dropping takes it.
        let mut gone = Vec::new();
        let mut state = self.lock();
        let mut at = 0;
        while let Some(Waiting { holder, bytes, .. }) = state.waiting.get(at) {
            let held = state.by_holder.get(holder).copied().unwrap_or(0);
            if held + bytes > self.share_max {
                at += 1;
                continue;
            }
            if state.used + bytes > self.bytes_max {
                break;
            }
            let Some(Waiting { holder, bytes, grant }) = state.waiting.remove(at) else { break };
            state.used += bytes;
            *state.by_holder.entry(holder.clone()).or_default() += bytes;
            gone.extend(grant.send(PoolPermit { pool: Arc::clone(self), holder, bytes }).err());
        }
        drop(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The sums are consistent whenever the lock is free.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.used -= self.bytes;
        if let Some(held) = state.by_holder.get_mut(&self.holder) {
            *held -= self.bytes;
            if *held == 0 {
                state.by_holder.remove(&self.holder);
            }
        }
        drop(state);
        self.pool.admit();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn holder(name: &str) -> Holder {
        Holder::Tenant(name.into())
    }

    /// Long enough for what never gets a permit.
    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    /// Long enough for what gets one.
    fn late() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[tokio::test]
    async fn nobody_holds_more_than_a_share_and_others_go_past_them() {
        let pool = Pool::new(100);
        let greedy = pool.enter(&holder("a"), 1000, late()).await.expect("a share");
        assert_eq!(pool.used_bytes(), 50);
        assert!(pool.enter(&holder("a"), 1, soon()).await.is_none(), "it waits until its time is over");
        let other = pool.enter(&holder("b"), 50, late()).await.expect("there is room for others");
        assert!(pool.enter(&holder("c"), 1, soon()).await.is_none(), "now it is full");
        drop((greedy, other));
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.lock().by_holder.is_empty(), "nothing is kept of those who left");
    }

    #[tokio::test]
    async fn turns_come_in_order_and_those_who_went_away_have_none() {
        let pool = Pool::new(100);
        let first = pool.enter(&holder("a"), 40, late()).await.expect("it is empty");
        let second = pool.enter(&holder("b"), 40, late()).await.expect("it fits");
        let enter = |name: &'static str, bytes| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.enter(&holder(name), bytes, late()).await })
        };
        let waiting = async |count| {
            while pool.lock().waiting.len() < count {
                tokio::task::yield_now().await;
            }
        };
        let gone = enter("x", 50);
        waiting(1).await;
        let large = enter("c", 50);
        waiting(2).await;
        let small = enter("d", 1);
        waiting(3).await;
        gone.abort();
        assert!(gone.await.is_err());
        assert_eq!(pool.used_bytes(), 80, "the small one does not go past the large one for ever");
        drop(first);
        let large = large.await.expect("no panic").expect("its turn");
        let small = small.await.expect("no panic").expect("its turn");
        assert_eq!(pool.used_bytes(), 91);
        drop((second, large, small));
        assert_eq!(pool.used_bytes(), 0);
    }

    #[tokio::test]
    async fn only_so_many_wait() {
        let pool = Pool::new(2);
        let held = pool.enter(&holder("a"), 1, late()).await.expect("it is empty");
        let entering = |_| {
            let pool = Arc::clone(&pool);
            tokio::spawn(async move { pool.enter(&holder("a"), 1, late()).await.is_some() })
        };
        let waiting: Vec<_> = (0..WAITING_MAX).map(entering).collect();
        while pool.lock().waiting.len() < WAITING_MAX {
            tokio::task::yield_now().await;
        }
        assert!(pool.enter(&holder("a"), 1, late()).await.is_none(), "it is told at once");
        assert!(pool.enter(&holder("b"), 1, late()).await.is_some(), "others are not concerned");
        drop(held);
        for waiting in waiting {
            assert!(waiting.await.expect("no panic"));
        }
    }
}
