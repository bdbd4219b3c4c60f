//! Flags for where and how the server listens.

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
    /// The address to listen on; 0.0.0.0 is all of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// The port; 0 is any free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Serve administration and metrics on this port instead, and nowhere else
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// The address of that port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub admin_host: String,
    /// Encrypt, with this certificate and those that lead to it (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Let web pages of this origin call the API, such as https://chat.example; may be given several times, * is all
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// How long running answers may go on when the server is asked to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub drain_timeout: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Connections at once, as far as the limit of open files allows (`ulimit -Hn`); more wait
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Of them, connections of one address; more are refused. Half of them by default, and all for this machine, where a
    /// proxy may bring everybody's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections_per_address: Option<u32>,
    /// The head of a request: its line and headers
    #[arg(long, value_name = "SIZE", default_value = "32K", value_parser = parse_size)]
    max_header_size: u64,
    /// The body of a request
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    max_body_size: u64,
    /// Until the head of a request must have come
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    header_timeout: Duration,
    /// Until the body of a request must have come
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    body_timeout: Duration,
    /// Until a connection without requests is closed
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = parse_duration)]
    idle_timeout: Duration,
    /// Until a client that reads nothing of its answer is given up
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
            value.with_context(|| format!("--cors-origin '{text}' is no origin; give one such as https://chat.example"))
        };
        self.cors_origin.iter().map(origin).collect()
    }
}

impl LimitFlags {
    /// Raises the process's limit of open files, and keeps connections within it.
    pub fn connections(&self) -> ConnectionLimits {
        let wanted = self.max_connections as usize;
        let connections_max = wanted.min(listen::connections_within(listen::raise_descriptor_limit()));
        if connections_max < wanted {
            tracing::warn!(
                "{connections_max} connections at once, not {wanted}: more would need more open files (ulimit -Hn)"
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
