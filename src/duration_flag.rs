//! Times on the command line: `30s`, `500ms`, `10m`, `12h`, `30d`.

use std::time::Duration;

/// A whole number and a unit; without a unit, seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "give a whole number and a unit, such as 30s".to_owned())?;
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        unit => return Err(format!("{unit:?} is no unit; use ms, s, m, h or d")),
    };
    // Sums with any time of this century then stay in range.
    let ms = number.checked_mul(unit_ms).filter(|ms| *ms <= 1000 * 365 * 86_400_000);
    match ms {
        Some(0) => Err("it must be more than nothing, such as 30s".to_owned()),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err("that is too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms) in [("30", 30_000), ("30s", 30_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "s", "0", "-1s", "1.5s", "10w", "99999999999999d", "999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
