//! Warnings of the libraries, each as one line on standard error; with `RUVLLM_LOG=debug`, remarks as well, such as where a
//! prompt left a cached text.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::remark;

/// Shows them from now on.
pub fn show() {
    let level = std::env::var("RUVLLM_LOG").ok().and_then(|level| level.parse().ok());
    // It fails if somebody else shows them already.
    drop(tracing::subscriber::set_global_default(Warnings { level: level.unwrap_or(Level::WARN) }));
}

struct Warnings {
    /// The least important that are shown.
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

    // There are no spans to follow.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What an event says, and what it says it of.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Strings take everything that is written to them.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " ({name}: {value:?})"),
        };
    }
}
