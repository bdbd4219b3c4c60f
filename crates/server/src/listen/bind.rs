//! Binds ports.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("port {port} of {host} is in use by another program; choose another with {flag}")]
    InUse { host: String, port: u16, flag: &'static str },
    #[error("port {port} needs more privileges than this process has; choose one above 1023 with {flag}")]
    NotAllowed { port: u16, flag: &'static str },
    #[error("cannot listen on {host}, port {port}: {error}")]
    Other { host: String, port: u16, error: io::Error },
}

/// A bound port that nobody accepts on yet: the system lets clients wait.
#[derive(Debug)]
pub struct Bound {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
}

impl Bound {
    /// Port 0 is any free port. `flag` names the flag of the port, for errors.
    pub async fn bind(host: &str, port: u16, flag: &'static str) -> Result<Self, ListenError> {
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => ListenError::InUse { host: host.to_owned(), port, flag },
            io::ErrorKind::PermissionDenied => ListenError::NotAllowed { port, flag },
            _ => ListenError::Other { host: host.to_owned(), port, error },
        };
        let socket = TcpListener::bind((host, port)).await.map_err(explain)?;
        let address = socket.local_addr().map_err(explain)?;
        Ok(Self { socket, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For a protocol other than HTTP.
    pub fn into_socket(self) -> TcpListener {
        self.socket
    }

    /// Whether other machines can reach it.
    pub fn is_public(&self) -> bool {
        !self.address.ip().to_canonical().is_loopback()
    }
}
