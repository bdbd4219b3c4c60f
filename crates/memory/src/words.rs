//! Ranges, times and sizes as people write them: `<0.5`, `200..400`, `2d`.

use std::time::Duration;

use crate::error::{MemoryError, Result};

/// Inclusive bounds of a number; infinite where there is no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub min: f64,
    pub max: f64,
}

impl Range {
    pub fn contains(&self, value: f64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    /// Parses `<0.5`, `<=0.5`, `>0.5`, `>=0.5`, `0.2..0.5` or `0.5`. `field` is for the error.
    pub fn parse(field: &'static str, text: &str) -> Result<Self> {
        let wrong = || MemoryError::invalid(field, format!("{text:?} is not like '<0.5', '>=0.9' or '0.2..0.5'"));
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong);
        let everything = Self { min: f64::NEG_INFINITY, max: f64::INFINITY };
        let range = if let Some(rest) = text.strip_prefix("<=") {
            Self { max: number(rest)?, ..everything }
        } else if let Some(rest) = text.strip_prefix(">=") {
            Self { min: number(rest)?, ..everything }
        } else if let Some(rest) = text.strip_prefix('<') {
            Self { max: number(rest)?.next_down(), ..everything }
        } else if let Some(rest) = text.strip_prefix('>') {
            Self { min: number(rest)?.next_up(), ..everything }
        } else if let Some((min, max)) = text.split_once("..") {
            Self { min: number(min)?, max: number(max)? }
        } else {
            Self { min: number(text)?, max: number(text)? }
        };
        if range.min <= range.max { Ok(range) } else { Err(wrong()) }
    }
}

/// Parses `90s`, `15m`, `36h`, `2d` or `1w`.
pub fn parse_span(field: &'static str, text: &str) -> Result<Duration> {
    let wrong = || MemoryError::invalid(field, format!("{text:?} is not a time like 90s, 15m, 36h, 2d or 1w"));
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        'w' => 7 * 24 * 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    count.checked_mul(seconds).filter(|total| *total < 1 << 40).map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses `512MB`, `5GB`, or a number of bytes.
pub fn parse_bytes(field: &'static str, text: &str) -> Result<u64> {
    let wrong = || MemoryError::invalid(field, format!("{text:?} is not a size like 500MB or 5GB"));
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    text[..digits].parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_meant() {
        let parse = |text| Range::parse("quality", text).unwrap();
        assert!(parse("<0.5").contains(0.499) && !parse("<0.5").contains(0.5));
        assert!(parse("<=0.5").contains(0.5) && !parse(">0.5").contains(0.5) && parse(">=0.5").contains(0.5));
        assert!(parse("0.2..0.5").contains(0.2) && !parse("0.2..0.5").contains(0.51));
        assert!(parse("200").contains(200.0));
        for wrong in ["", "<", "a", "0.5..0.2", "<NaN", ">inf", "1..", "<<1"] {
            let error = Range::parse("quality", wrong).unwrap_err().to_string();
            assert!(error.starts_with("quality:") && error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn spans_and_sizes_have_units() {
        assert_eq!(parse_span("since", "2d").unwrap(), Duration::from_secs(172_800));
        assert_eq!(parse_bytes("size", "5GB").unwrap(), 5_000_000_000);
        for wrong in ["", "d", "-1d", "1y", "1.5d", "99999999999999999w", "2€"] {
            assert!(parse_span("since", wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "GB", "-1", "1XB", "99999999999999999999"] {
            assert!(parse_bytes("size", wrong).is_err(), "{wrong}");
        }
    }
}
