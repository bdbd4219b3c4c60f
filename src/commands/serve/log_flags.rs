//! The log of the server.

use clap::{Args, ValueEnum};
use ruvllm_server::log::{LogFormat, LogOptions};
use tracing::Level;

#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct LogFlags {
    /// Format of log lines
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    log_format: Format,
    /// Minimum level: error, warn, info (one line per request), debug or trace; also set by RUVLLM_LOG
    #[arg(long, default_value_t = Level::INFO, value_name = "LEVEL", ignore_case = true)]
    log_level: Level,
    /// Export a span for each request to this OpenTelemetry collector, by OTLP over gRPC, such as http://localhost:4317
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL")]
    otel_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl LogFlags {
    pub fn options(&self) -> LogOptions {
        LogOptions {
            format: match self.log_format {
                Format::Text => LogFormat::Text,
                Format::Json => LogFormat::Json,
            },
            level: self.log_level,
            #[cfg(feature = "otel")]
            otel_endpoint: self.otel_endpoint.clone(),
        }
    }
}
