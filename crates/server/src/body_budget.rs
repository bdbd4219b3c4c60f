//! One memory budget for the bodies of all requests in flight, and for what is parsed from them.
//!
//! A body needs a permit while it is received, by its size, and another while it is parsed and prepared, by the size
//! that JSON can grow to. Small bodies have a pool of their own, so that nothing large or slow blocks them. No sender
//! gets more than half of a pool. A request that gets no permit waits as long as a body may take, and is then told to
//! retry.

mod pool;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::Extensions;
use http_body_util::BodyExt;
use tokio::time::Instant;

use self::pool::Pool;
pub(crate) use self::pool::{Holder, PoolPermit};
use crate::access::{Caller, Identity};
use crate::background;
use crate::body_limits::{BodyError, BodyLimits};
use crate::error::ApiError;
use crate::listen::Peer;

/// Larger bodies share the other pools.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Two bytes of JSON, such as `1,`, can become a value of 32 bytes.
const PARSED_FACTOR: usize = 16;
/// Retry interval.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Memory for request bodies. It is a limit: nothing is allocated in advance.
#[derive(Debug)]
pub struct BodyBudget {
    /// Both stages of small bodies.
    small: Arc<Pool>,
    receiving: Arc<Pool>,
    parsed: Arc<Pool>,
}

impl Default for BodyBudget {
    /// Room to parse two of the largest bodies that are allowed by default.
    fn default() -> Self {
        Self::new(384 << 20)
    }
}

/// The budget in parts: one for small bodies, three for receiving, the rest for parsed bodies.
const PARTS: usize = 16;
const RECEIVING_PARTS: usize = 3;
const PARSED_PARTS: usize = PARTS - RECEIVING_PARTS - 1;

impl BodyBudget {
    pub fn new(bytes_max: usize) -> Self {
        let part = bytes_max / PARTS;
        let (small, receiving) = (part, RECEIVING_PARTS * part);
        let parsed = bytes_max - small - receiving;
        Self { small: Pool::new(small), receiving: Pool::new(receiving), parsed: Pool::new(parsed) }
    }

    /// Returns the smallest budget that has room for a parsed body of this size.
    pub fn bytes_min(body_bytes: usize) -> usize {
        const FACTOR: usize = (PARSED_FACTOR * PARTS).div_ceil(PARSED_PARTS);
        body_bytes.saturating_mul(FACTOR)
    }

    pub fn bytes_max(&self) -> usize {
        self.pools().map(|pool| pool.bytes_max).iter().sum()
    }

    /// Returns the memory that bodies in flight may need at the moment.
    pub fn used_bytes(&self) -> usize {
        self.pools().map(|pool| pool.used_bytes()).iter().sum()
    }

    fn pools(&self) -> [&Pool; 3] {
        [&self.small, &self.receiving, &self.parsed]
    }
}

/// Budget and limits of a request's body. In its extensions.
#[derive(Clone, Debug)]
pub(crate) struct BodyPermit {
    budget: Arc<BodyBudget>,
    limits: BodyLimits,
    held: HeldPermit,
}

/// The permit of a body that was read, until nothing of it is needed any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldPermit(Arc<Mutex<Option<PoolPermit>>>);

impl HeldPermit {
    /// Releases the permit before the request itself is dropped.
    pub(crate) fn release(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn hold(&self, permit: PoolPermit) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
    }
}

impl BodyPermit {
    pub(crate) fn new(budget: Arc<BodyBudget>, limits: BodyLimits) -> Self {
        Self { budget, limits, held: HeldPermit::default() }
    }

    pub(crate) fn held(&self) -> HeldPermit {
        self.held.clone()
    }

    /// Reads and parses a body, each when there is room for it.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        holder: &Holder,
        mut body: Body,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        let mut room = announced.unwrap_or(SMALL_BYTES_MAX);
        let mut permit = self.enter(holder, room).await?;
        let mut text = Vec::with_capacity(announced.unwrap_or(0));
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(explain)?.into_data() else { continue };
            if text.len() + data.len() > room {
                // Its size is unknown, and it is not small.
                room = self.limits.bytes_max;
                permit = self.enter(holder, room).await?;
            }
            text.extend_from_slice(&data);
        }
        if room > SMALL_BYTES_MAX {
            let parsed = self.turn(&self.budget.parsed, holder, text.len().saturating_mul(PARSED_FACTOR)).await?;
            self.held.hold(parsed);
            if text.len() <= background::LONG_BYTES {
                return parse(&text);
            }
            let parsed = background::run(move || {
                // Released with the text: from then on only the parsed value exists.
                let _place = permit;
                parse(&text)
            });
            return parsed.await.unwrap_or_else(|| Err(ApiError::internal("the body could not be parsed")));
        }
        self.held.hold(permit);
        parse(&text)
    }

    /// Waits for a permit to receive a body; a small one may also be parsed with it.
    async fn enter(&self, holder: &Holder, bytes: usize) -> Result<PoolPermit, ApiError> {
        if bytes > SMALL_BYTES_MAX {
            return self.turn(&self.budget.receiving, holder, bytes).await;
        }
        self.turn(&self.budget.small, holder, bytes * PARSED_FACTOR).await
    }

    async fn turn(&self, pool: &Arc<Pool>, holder: &Holder, bytes: usize) -> Result<PoolPermit, ApiError> {
        let entered = pool.enter(holder, bytes, Instant::now() + self.limits.timeout).await;
        entered.ok_or_else(|| {
            let message =
                "too many large requests are being received at the moment; send smaller ones, or try again later";
            ApiError::unavailable(message, Some(RETRY_AFTER)).with_code("too_many_bytes")
        })
    }
}

/// Converts what ended a body too early.
pub(crate) fn explain(error: axum::Error) -> ApiError {
    let error = error.into_inner();
    match error.downcast_ref::<BodyError>() {
        Some(BodyError::TooLarge { bytes_max }) => ApiError::too_large(*bytes_max),
        Some(slow @ BodyError::TooSlow { .. }) => ApiError::too_slow(slow.to_string()),
        None => ApiError::invalid("the body ended too early").with_code("incomplete_body"),
    }
}

impl Holder {
    /// Whose share a request's body counts against.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        match (extensions.get::<Caller>(), extensions.get::<Peer>()) {
            (Some(caller), Some(peer)) if caller.identity != Identity::Proven => Self::Address(network(peer.0.ip())),
            (Some(caller), _) => Self::Tenant(Arc::clone(&caller.tenant)),
            (None, Some(peer)) => Self::Address(network(peer.0.ip())),
            (None, None) => Self::Tenant("".into()),
        }
    }
}

/// Returns the network of one client: for IPv6 the first 64 bits, since it can use any address in it.
pub(crate) fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(budget: &Arc<BodyBudget>) -> BodyPermit {
        let limits = BodyLimits { timeout: Duration::from_millis(20), ..BodyLimits::default() };
        BodyPermit::new(Arc::clone(budget), limits)
    }

    fn length(text: &[u8]) -> Result<usize, ApiError> {
        Ok(text.len())
    }

    fn holder(name: &str) -> Holder {
        Holder::Tenant(name.into())
    }

    #[tokio::test]
    async fn a_body_that_finds_no_room_is_told_to_come_back() {
        let budget = Arc::new(BodyBudget::new(64 << 20));
        let late = Instant::now() + Duration::from_secs(600);
        let hoard = budget.receiving.enter(&holder("a"), usize::MAX, late).await.expect("it is empty");
        let large = || Body::from(vec![b' '; 1 << 20]);
        let refused = permit(&budget).read(&holder("a"), large(), length).await.expect_err("there is no room");
        assert_eq!((refused.status.as_u16(), refused.code.as_deref()), (503, Some("too_many_bytes")));
        assert!(refused.retry_after.is_some());
        assert_eq!(permit(&budget).read(&holder("b"), large(), length).await, Ok(1 << 20), "others have room");
        let small = Body::from(vec![b' '; SMALL_BYTES_MAX]);
        assert_eq!(
            permit(&budget).read(&holder("a"), small, length).await,
            Ok(SMALL_BYTES_MAX),
            "small ones always do"
        );
        drop(hoard);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn what_was_parsed_counts_until_it_is_prepared() {
        let budget = Arc::new(BodyBudget::default());
        for bytes in [1000, 1 << 20] {
            let permit = permit(&budget);
            let held = permit.held();
            assert_eq!(permit.read(&holder("a"), Body::from(vec![b' '; bytes]), length).await, Ok(bytes));
            assert_eq!(budget.used_bytes(), bytes * PARSED_FACTOR);
            held.release();
            assert_eq!(budget.used_bytes(), 0);
        }
        assert_eq!(budget.bytes_max(), 384 << 20);
    }
}
