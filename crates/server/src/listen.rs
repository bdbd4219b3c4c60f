//! Sockets: listens, accepts, encrypts, and limits every connection.
//!
//! Does not know what requests ask for. How a connection can be abused, and the limit against it:
//! | abuse | limit |
//! | --- | --- |
//! | many connections | [`ConnectionLimits::connections_max`]; more wait unaccepted |
//! | many connections of one client | `address_connections_max`; more get 503 and are closed |
//! | huge headers | `head_bytes_max`: 431 |
//! | slow headers, or a slow handshake | `head_timeout` |
//! | an idle connection | `idle_timeout` |
//! | a response that is not read | `write_timeout` |
//! | a huge or slow body | `crate::BodyLimits` |

mod activity;
mod address_connections;
mod bind;
mod connection;
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
pub use signals::{advance_on_signals, drain_at_end_of_input};
pub use tls::{Tls, TlsError};

/// Address of the client. In the extensions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    pub connections_max: usize,
    /// Maximum per address, or per IPv6 network. `None` is half of all, and all for this machine.
    pub address_connections_max: Option<usize>,
    /// Size of the request line and all headers.
    pub head_bytes_max: usize,
    /// From the first byte of a request to the last of its headers; for a new connection, from its start.
    pub head_timeout: Duration,
    /// Between two requests of a connection.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of a response.
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
