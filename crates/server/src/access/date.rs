//! Times as TOML writes them: `2026-11-15T08:30:00Z`, to the second.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ruvllm_text::strftime;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use toml::value::{Datetime, Offset};

pub(super) const DAY_S: u64 = 24 * 60 * 60;

/// Seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub fn now() -> Self {
        Self(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    }

    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time.as_secs()))
    }

    /// Returns `None` for times without date or offset, and for times before 1970.
    fn from_toml(datetime: &Datetime) -> Option<Self> {
        let (date, time) = (datetime.date?, datetime.time?);
        let offset_minutes = match datetime.offset? {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes),
        };
        let days = days_to(date.year, date.month, date.day);
        let seconds = i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
        u64::try_from(days * DAY_S as i64 + seconds - offset_minutes * 60).ok().map(Self)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&strftime::format("%Y-%m-%dT%H:%M:%SZ", i64::try_from(self.0).unwrap_or(i64::MAX)))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_string().parse::<Datetime>().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let datetime = Datetime::deserialize(deserializer)?;
        Self::from_toml(&datetime).ok_or_else(|| {
            de::Error::custom(
                "expected date, time and offset: \
                                                                    2026-11-15T08:30:00Z",
            )
        })
    }
}

// Years are counted from March: the leap day is then the last day of its year, and the months follow a cycle of 153
// days in five. 400 years have 146,097 days.

fn days_to(year: u16, month: u8, day: u8) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let month = (i64::from(month) + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + i64::from(day) - 1;
    let day_of_era = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year;
    day_of_era - DAYS_TO_1970
}

/// Counted from 1 March of year 0.
const DAYS_TO_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_they_are_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp(seconds).to_string(), text);
            assert_eq!(Timestamp::from_toml(&text.parse().unwrap()), Some(Timestamp(seconds)), "{text}");
        }
        let zoned = "2025-01-01T01:30:00+01:30".parse().unwrap();
        assert_eq!(Timestamp::from_toml(&zoned), Some(Timestamp(1_735_689_600)));
    }

    #[test]
    fn every_day_of_eight_centuries_is_its_own() {
        for day in 0..800 * 365 {
            let midnight = Timestamp(day * DAY_S);
            assert_eq!(Timestamp::from_toml(&midnight.to_string().parse().unwrap()), Some(midnight), "{midnight}");
        }
    }
}
