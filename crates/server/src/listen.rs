//! Sockets: listens, accepts, encrypts, and keeps every connection within its limits.
//!
//! Knows nothing of what requests ask for. How a connection may be misused, and what stands against it:
//!
//! | misuse | limit |
//! | --- | --- |
//! | many connections | [`ConnectionLimits::connections_max`]; more wait unaccepted |
//! | many connections of one client | `address_connections_max`; more are told 503 and closed |
//! | a head that is huge | `head_bytes_max`: 431 |
//! | a head, or a handshake, that drips | `head_timeout` |
//! | a connection that does nothing | `idle_timeout` |
//! | a response that is not read | `write_timeout` |
//! | a body that is huge, or drips | `crate::BodyLimits` |

mod activity;
mod bind;
mod connection;
mod crowd;
mod descriptors;
mod io;
mod serve;
mod signals;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

pub use bind::{Bound, ListenError};
pub use descriptors::{connections_within, raise_descriptor_limit};
pub use serve::{Listener, serve};
pub use signals::advance_on_signals;
pub use tls::{Tls, TlsError};

/// Where a request comes from. In its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub connections_max: usize,
    /// Of one address, or one network of IPv6. `None` is half of all, and all for this machine.
    pub address_connections_max: Option<usize>,
    /// Of the request line and all headers.
    pub head_bytes_max: usize,
    /// From the first byte of a request to the last of its head; for a new connection, from the beginning.
    pub head_timeout: Duration,
    /// Between two requests of a connection.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of a response.
    pub write_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            address_connections_max: None,
            head_bytes_max: 32 << 10,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(60),
        }
    }
}
