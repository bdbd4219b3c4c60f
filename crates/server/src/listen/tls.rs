//! Certificate and key from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the {what} in {}: {error}", path.display())]
    Read { what: &'static str, path: PathBuf, error: pem::Error },
    #[error("{} holds no certificate; it must be in PEM format, with '-----BEGIN CERTIFICATE-----'", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} holds no private key; it must be in PEM format, with '-----BEGIN PRIVATE KEY-----' or the like", .0.display())]
    NoKey(PathBuf),
    #[error("the certificate in {} and the key in {} cannot be used together: {error}", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, error: rustls::Error },
}

/// Encrypts connections. HTTP/2 is offered to clients that support it.
#[derive(Clone)]
pub struct Tls {
    pub(super) acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
            error => TlsError::Read { what: "private key", path: key.to_owned(), error },
        })?;
        let unusable = |error| TlsError::Unusable { certificate: certificate.to_owned(), key: key.to_owned(), error };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |error| TlsError::Read { what: "certificate", path: path.to_owned(), error };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(read)?.collect();
    let chain = chain.map_err(read)?;
    if chain.is_empty() { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_wrong_with_the_files_is_told_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        fs::write(path("cert.pem"), issued.cert.pem()).unwrap();
        fs::write(path("key.pem"), issued.signing_key.serialize_pem()).unwrap();
        fs::write(path("other.pem"), other.serialize_pem()).unwrap();
        fs::write(path("text.pem"), "no pem at all").unwrap();
        let load = |certificate: &str, key: &str| {
            Tls::from_files(&path(certificate), &path(key)).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(load("cert.pem", "key.pem"), Ok(()));
        for (certificate, key, said) in [
            ("none.pem", "key.pem", "none.pem"),
            ("text.pem", "key.pem", "text.pem holds no certificate"),
            ("cert.pem", "none.pem", "none.pem"),
            ("cert.pem", "text.pem", "text.pem holds no private key"),
            ("cert.pem", "cert.pem", "cert.pem holds no private key"),
            ("cert.pem", "other.pem", "cannot be used together"),
        ] {
            let error = load(certificate, key).unwrap_err();
            assert!(error.contains(said), "{certificate} and {key}: {error}");
        }
    }
}
