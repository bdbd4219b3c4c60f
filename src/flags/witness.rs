//! Filters for entries of the witness log.

use anyhow::Result;
use clap::Args;
use ruvllm_memory::{ErrorFilter, Range, WitnessQuery, now_ms, parse_span};

#[derive(Clone, Debug, Args)]
pub struct WitnessFlags {
    /// Only entries newer than this, such as 90s, 15m, 36h, 2d or 1w
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only entries older than this
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Quality from 0 to 1, such as '<0.5' or 0.2..0.8
    #[arg(long, value_name = "RANGE")]
    quality: Option<String>,
    /// Total latency in milliseconds, such as '>1000'
    #[arg(long, value_name = "RANGE")]
    latency: Option<String>,
    /// Outcome: any (failed), none (succeeded), or a kind of error such as timeout, cancelled or context_length
    #[arg(long, value_name = "KIND")]
    error: Option<String>,
    /// Only answers of this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only entries of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Only entries of this end user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only entries of this tenant [default: all]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
}

impl WitnessFlags {
    pub fn query(&self) -> Result<WitnessQuery> {
        let ago = |field, text: &Option<String>| {
            let span = text.as_ref().map(|text| parse_span(field, text)).transpose()?;
            anyhow::Ok(span.map(|span| now_ms() - i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
        };
        let range = |field, text: &Option<String>| text.as_ref().map(|text| Range::parse(field, text)).transpose();
        Ok(WitnessQuery {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            model: self.model.clone(),
            session: self.session.clone(),
            since_ms: ago("--since", &self.since)?,
            until_ms: ago("--until", &self.until)?,
            quality: range("--quality", &self.quality)?,
            latency_ms: range("--latency", &self.latency)?,
            error: self.error.as_deref().map(|error| match error {
                "any" => ErrorFilter::Any,
                "none" => ErrorFilter::None,
                kind => ErrorFilter::Kind(kind.to_owned()),
            }),
            ..WitnessQuery::default()
        })
    }
}
