//! Where and how the server listens.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_server::listen::{self, ConnectionLimits, Tls};
use ruvllm_server::{BodyLimits, HeaderValue};

use crate::flags::duration::parse_duration;
use crate::flags::size::parse_size;

#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub struct ListenFlags {
    /// Address to listen on; 0.0.0.0 is all addresses of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 is any free port
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Serve administration and metrics only on this port
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// Address of the administration port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub admin_host: String,
    /// Certificate chain for TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Allow web pages of this origin to call the API, such as https://chat.example; can be repeated, * is all
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// How long the server goes on as usual before it stops, while /ready says 503, so that load balancers and routers
    /// notice first
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub drain_delay: Option<Duration>,
    /// How long running answers may take to finish when the server stops
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Maximum concurrent connections, as far as the limit of open files allows (`ulimit -Hn`); more wait
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Maximum concurrent connections per address; more are refused [default: half of them; all for this machine, where
    /// a proxy may run]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,
    /// Maximum size of a request's line and headers
    #[arg(long, value_name = "SIZE", default_value = "32K", value_parser = parse_size)]
    max_header_size: u64,
    /// Maximum size of a request's body
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    max_body_size: u64,
    /// Timeout for receiving the headers of a request
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    header_timeout: Duration,
    /// Timeout for receiving the body of a request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    body_timeout: Duration,
    /// Timeout of connections without requests
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = parse_duration)]
    idle_timeout: Duration,
    /// Timeout of clients that read nothing of their response
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    write_timeout: Duration,
}

impl ListenFlags {
    pub fn tls(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(Tls::from_files(certificate, key)?)),
            _ => Ok(None),
        }
    }

    pub fn origins(&self) -> Result<Vec<HeaderValue>> {
        let origin = |text: &String| {
            let is_origin = text == "*" || (text.contains("://") && !text.ends_with('/'));
            let value = HeaderValue::from_str(text).ok().filter(|_| is_origin);
            value.with_context(|| {
                format!(
                    "--cors-origin '{text}' is not an origin; give one such as \
                                           https://chat.example"
                )
            })
        };
        self.cors_origin.iter().map(origin).collect()
    }
}

impl LimitFlags {
    /// Raises the process's limit of open files, and limits connections to it.
    pub fn connections(&self) -> ConnectionLimits {
        let wanted = self.max_connections as usize;
        let connections_max = wanted.min(listen::connections_within(listen::raise_descriptor_limit()));
        if connections_max < wanted {
            tracing::warn!(
                "{connections_max} concurrent connections instead of {wanted}: more would need more open files \
                 (ulimit -Hn)"
            );
        }
        ConnectionLimits {
            connections_max,
            address_connections_max: self.max_connections_per_address.map(|count| count as usize),
            head_bytes_max: usize::try_from(self.max_header_size).unwrap_or(usize::MAX),
            head_timeout: self.header_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
        }
    }

    pub fn body(&self) -> BodyLimits {
        let bytes_max = usize::try_from(self.max_body_size).unwrap_or(usize::MAX);
        BodyLimits { bytes_max, timeout: self.body_timeout }
    }
}
