//! Shows warnings of the libraries as lines on standard error; with `RUVLLM_LOG=debug` also remarks, such as where a
//! prompt diverged from a cached one.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::remark;

/// Shows warnings from now on.
pub fn show() {
    let level = std::env::var("RUVLLM_LOG").ok().and_then(|level| level.parse().ok());
    // Fails if another subscriber is set already.
    drop(tracing::subscriber::set_global_default(Warnings { level: level.unwrap_or(Level::WARN) }));
}

struct Warnings {
    /// The least important level that is shown.
    level: Level,
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = metadata.target().starts_with("ruvllm");
        is_ours && metadata.is_event() && *metadata.level() <= self.level
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let kind = if *event.metadata().level() <= Level::WARN { "warning: " } else { "" };
        remark(&format!("{kind}{}{}", line.message, line.fields));
    }

    // Spans are not used.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " ({name}: {value:?})"),
        };
    }
}
