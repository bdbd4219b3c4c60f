//! The server's log: lines on standard error, as text or as JSON objects; with the feature `otel`, also spans of
//! requests to a collector.

mod lines;
#[cfg(feature = "otel")]
mod otel;

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub(crate) use self::lines::lost_lines;
use self::lines::{Lines, LinesGuard};
#[cfg(feature = "otel")]
pub(crate) use otel::{end_request_span, request_span};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub struct LogOptions {
    pub format: LogFormat,
    /// Minimum level of our own lines; libraries log warnings.
    pub level: Level,
    /// Where spans are sent, such as `http://localhost:4317`.
    #[cfg(feature = "otel")]
    pub otel_endpoint: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot start the log's thread: {0}")]
    Thread(#[from] std::io::Error),
    #[error("another logger is already installed: {0}")]
    Taken(#[from] tracing_subscriber::util::TryInitError),
    #[cfg(feature = "otel")]
    #[error("cannot export spans to {endpoint}: {why}")]
    Otel { endpoint: String, why: String },
}

/// Ends the log when dropped: what waits is written, and pending spans are exported.
#[derive(Debug)]
pub struct Logs {
    #[cfg(feature = "otel")]
    _exporter: Option<otel::Exporter>,
    _lines: LinesGuard,
}

/// Starts the log. With an exporter, must be called within the runtime.
pub fn start(options: &LogOptions) -> Result<Logs, LogError> {
    let registry = tracing_subscriber::registry();
    #[cfg(feature = "otel")]
    let (registry, exporter) = {
        let exporter = options.otel_endpoint.as_deref().map(otel::Exporter::new).transpose()?;
        (registry.with(exporter.as_ref().map(otel::Exporter::layer)), exporter)
    };
    let (writer, guard) = Lines::start(std::io::stderr())?;
    registry.with(lines(options, writer)).try_init()?;
    Ok(Logs {
        #[cfg(feature = "otel")]
        _exporter: exporter,
        _lines: guard,
    })
}

fn lines<S>(options: &LogOptions, writer: Lines) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = Targets::new().with_default(Level::WARN).with_target("ruvllm", options.level);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false);
    match options.format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => {
            let layer = layer.with_ansi(false).json().flatten_event(true);
            layer.with_current_span(false).with_span_list(false).with_filter(filter).boxed()
        }
    }
}
