//! Durations on the command line: `30s`, `500ms`, `10m`, `12h`, `30d`.

use std::time::Duration;

/// Longer durations are refused, so that adding one to any date of this century cannot overflow.
const DURATION_MS_MAX: u64 = 1000 * 365 * 86_400_000;

/// Parses a whole number with a unit; without a unit, seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "expected a whole number and a unit, such as 30s".to_owned())?;
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        unit => return Err(format!("unknown unit {unit:?}; use ms, s, m, h or d")),
    };
    let ms = number.checked_mul(unit_ms).filter(|ms| *ms <= DURATION_MS_MAX);
    match ms {
        Some(0) => Err("must be greater than zero, such as 30s".to_owned()),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err("too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("30", 30_000), ("30s", 30_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "s", "0", "-1s", "1.5s", "10w", "99999999999999d", "999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
