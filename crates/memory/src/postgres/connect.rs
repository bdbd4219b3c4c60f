//! Connections to the server: encrypted, with its certificate checked, unless it is on this machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{MemoryError, Result, with_cause};

/// Limit for one of several addresses, before the next is tried.
const ADDRESS_MAX: Duration = Duration::from_secs(3);
/// Time until a machine that is gone, or a network that drops packets, is noticed.
const SILENCE_MAX: Duration = Duration::from_secs(15);

pub(super) struct Connector {
    config: Config,
    /// `None` if the connection is not encrypted.
    tls: Option<MakeRustlsConnect>,
}

impl Connector {
    /// Follows `sslmode=disable` and `sslmode=require` in the address. Without them, what leaves the machine is encrypted.
    pub fn new(url: &str) -> Result<Self> {
        // The error would show the password.
        let mut config: Config =
            url.parse().map_err(|_| MemoryError::Connect("the address is not a PostgreSQL one".into()))?;
        let is_encrypted = match config.get_ssl_mode() {
            SslMode::Disable => false,
            SslMode::Prefer => !is_local(&config),
            _ => true,
        };
        config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(ADDRESS_MAX);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        config.keepalives_idle(SILENCE_MAX);
        let tls = is_encrypted.then(tls).transpose()?;
        Ok(Self { config, tls })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Connects. The connection runs as a task of the current runtime.
    pub async fn connect(&self) -> Result<Client> {
        match &self.tls {
            Some(tls) => self.connect_by(tls.clone()).await,
            None => self.connect_by(NoTls).await,
        }
    }

    async fn connect_by<T>(&self, tls: T) -> Result<Client>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) =
            self.config.connect(tls).await.map_err(|error| MemoryError::Connect(with_cause(&error)))?;
        // Its error is reported to the caller that waits for an answer.
        tokio::spawn(async move { connection.await.ok() });
        Ok(client)
    }
}

/// Uses the certificates that this machine trusts; `SSL_CERT_FILE` names others.
fn tls() -> Result<MakeRustlsConnect> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        let problem = format!("no certificate to check the server's with: {why}; name a file in SSL_CERT_FILE");
        return Err(MemoryError::Connect(problem));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| MemoryError::Connect(error.to_string()))?;
    Ok(MakeRustlsConnect::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Returns whether nothing that is sent leaves the machine.
fn is_local(config: &Config) -> bool {
    let is_loopback = |name: &str| name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => is_loopback(name),
        #[cfg(unix)]
        Host::Unix(_) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_machine_is_encrypted() {
        for (url, is_encrypted) in [
            ("postgres://u:p@db.example.org/d", true),
            ("postgres://u:p@db.example.org/d?sslmode=prefer", true),
            ("postgres://u:p@db.example.org/d?sslmode=disable", false),
            ("postgres://u:p@localhost,db.example.org/d", true),
            ("host=localhost hostaddr=10.0.0.1 user=u", true),
            ("postgres://u:p@localhost/d", false),
            ("postgres://u:p@[::1]/d", false),
            ("postgres://u:p@127.0.0.1/d?sslmode=require", true),
            ("host=/run/postgresql user=u", false),
        ] {
            assert_eq!(Connector::new(url).unwrap().tls.is_some(), is_encrypted, "{url}");
        }
    }

    #[test]
    fn a_wrong_address_is_told_without_its_password() {
        let error = Connector::new("postgres://u:secret@db:port/d").err().unwrap().to_string();
        assert!(error.contains("not a PostgreSQL one") && !error.contains("secret"), "{error}");
    }
}
