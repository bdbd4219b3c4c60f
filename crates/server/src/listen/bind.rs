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

/// How much of a request may wait in the kernel until it is read, on each connection: the kernel would buffer megabytes,
/// which count against this process in its cgroup but not in any budget of ours. Linux doubles it for its bookkeeping.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;

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
        // Connections inherit it.
        #[cfg(unix)]
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)
            .map_err(|error| explain(error.into()))?;
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    const READ_BYTES: usize = 1 << 20;

    /// Sends to a connection of `listener` whose other end only reads the first part, and returns what the receiver's
    /// kernel still buffers.
    fn buffered_bytes(listener: &std::net::TcpListener) -> usize {
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // What waits on the sender's side is its own affair.
        rustix::net::sockopt::set_socket_send_buffer_size(&sender, 4 << 10).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        // As a reader does whose interest makes the kernel's buffer grow.
        let reader = std::thread::spawn(move || {
            receiver.read_exact(&mut vec![0; READ_BYTES]).unwrap();
            receiver
        });
        sender.write_all(&vec![0; READ_BYTES]).unwrap();
        let _receiver = reader.join().unwrap();
        sender.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let (mut buffered, part) = (0, [0; 64 << 10]);
        loop {
            match sender.write(&part) {
                Ok(count) => buffered += count,
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    return buffered;
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_not_read_waits_with_its_sender() {
        let bound = Bound::bind("127.0.0.1", 0, "--port").await.unwrap();
        let listener = bound.into_socket().into_std().unwrap();
        listener.set_nonblocking(false).unwrap();
        let buffered = buffered_bytes(&listener);
        assert!(buffered <= 3 * RECEIVE_BUFFER_BYTES, "{buffered}");
    }
}
