//! Dates as templates ask for them (`strftime_now("%d %B %Y")`). The time is an argument; nothing reads a clock.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAY_S: i64 = 86_400;

/// A moment in the Gregorian calendar.
struct Moment {
    year: i64,
    /// 1 to 12.
    month: usize,
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// Monday is 0.
    weekday: usize,
    second_of_day: i64,
    unix_s: i64,
}

impl Moment {
    fn from_unix(unix_s: i64) -> Self {
        let days = unix_s.div_euclid(DAY_S);
        // Count from 1 March of year 0, so that the leap day is the last of its year; 400 years are 146,097 days.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let months_after_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * months_after_march + 2) / 5 + 1;
        let month = if months_after_march < 10 { months_after_march + 3 } else { months_after_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let since_january = if month > 2 { day_of_year + 60 + i64::from(is_leap) } else { day_of_year - 305 };
        Self {
            year,
            month: month as usize,
            day,
            day_of_year: since_january,
            weekday: (days + 3).rem_euclid(7) as usize,
            second_of_day: unix_s.rem_euclid(DAY_S),
            unix_s,
        }
    }

    /// Returns the number of the week, where weeks begin so many days after Monday, and the first in the year with its first
    /// such day.
    fn week(&self, first_day: i64) -> i64 {
        (self.day_of_year + 6 - (self.weekday as i64 - first_day).rem_euclid(7)) / 7
    }

    /// Returns year and week of ISO 8601: a week belongs to the year that its Thursday is in.
    fn iso_week(&self) -> (i64, i64) {
        let thursday = Self::from_unix(self.unix_s + (3 - self.weekday as i64) * DAY_S);
        (thursday.year, (thursday.day_of_year + 6) / 7)
    }
}

/// Formats as Python's `strftime` does with glibc, in the C locale and without a time zone; what is no directive stays as it
/// is.
pub fn format(format: &str, unix_s: i64) -> String {
    // Keeps the arithmetic in range; years beyond four digits are no dates that a template shows.
    let moment = Moment::from_unix(unix_s.clamp(-62_135_596_800, 253_402_300_799));
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        // `%-d` is glibc's `%d` without padding.
        let is_padded = chars.next_if_eq(&'-').is_none();
        let directive = chars.next();
        match directive.and_then(|directive| expand(directive, is_padded, &moment)) {
            Some(text) => out.push_str(&text),
            None => out.extend(['%'].into_iter().chain((!is_padded).then_some('-')).chain(directive)),
        }
    }
    out
}

fn expand(directive: char, is_padded: bool, moment: &Moment) -> Option<String> {
    let number = |value: i64, width: usize| {
        if is_padded { format!("{value:0width$}") } else { value.to_string() }
    };
    let hour = moment.second_of_day / 3600;
    let (month, weekday) = (MONTHS[moment.month - 1], WEEKDAYS[moment.weekday]);
    let spaced = |value: i64| if is_padded { format!("{value:2}") } else { value.to_string() };
    let several = |format: &str| {
        let parts = format.chars().map(|part| match part {
            '/' | ':' | '-' | ' ' => Some(part.to_string()),
            directive => expand(directive, true, moment),
        });
        parts.collect::<Option<String>>()
    };
    let half = if hour < 12 { "AM" } else { "PM" };
    let hour_of_half = (hour + 11) % 12 + 1;
    Some(match directive {
        'Y' => moment.year.to_string(),
        'y' => number(moment.year.rem_euclid(100), 2),
        'C' => number(moment.year.div_euclid(100), 2),
        'G' => moment.iso_week().0.to_string(),
        'V' => number(moment.iso_week().1, 2),
        'U' => number(moment.week(6), 2),
        'W' => number(moment.week(0), 2),
        'm' => number(moment.month as i64, 2),
        'd' => number(moment.day, 2),
        'e' => spaced(moment.day),
        'j' => number(moment.day_of_year, 3),
        'H' => number(hour, 2),
        'k' => spaced(hour),
        'I' => number(hour_of_half, 2),
        'l' => spaced(hour_of_half),
        'M' => number(moment.second_of_day / 60 % 60, 2),
        'S' => number(moment.second_of_day % 60, 2),
        'f' => "000000".to_owned(),
        's' => moment.unix_s.to_string(),
        'p' => half.to_owned(),
        'P' => half.to_lowercase(),
        'B' => month.to_owned(),
        'b' | 'h' => month[..3].to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'u' => (moment.weekday + 1).to_string(),
        'w' => ((moment.weekday + 1) % 7).to_string(),
        'F' => several("Y-m-d")?,
        'D' | 'x' => several("m/d/y")?,
        'T' | 'X' => several("H:M:S")?,
        'R' => several("H:M")?,
        'r' => several("I:M:S p")?,
        'c' => several("a b e T Y")?,
        'Z' | 'z' => String::new(),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(format("%Y-%m-%d %H:%M:%S %A", 0), "1970-01-01 00:00:00 Thursday");
        assert_eq!(format("%d %b %Y", 1_721_952_000), "26 Jul 2024");
        assert_eq!(format("%F %j", 1_709_164_800), "2024-02-29 060");
        assert_eq!(format("%F %j", 1_709_251_200), "2024-03-01 061");
        assert_eq!(format("%F %a", -1), "1969-12-31 Wed");
        assert_eq!(format("%F %j", 4_107_542_400), "2100-03-01 060");
    }

    #[test]
    fn weeks_belong_to_the_years_of_their_days() {
        // Sunday, 31 December 2023; Monday, 1 January 2024; Friday, 1 January 2021.
        assert_eq!(format("%G-%V %U %W", 1_703_980_800), "2023-52 53 52");
        assert_eq!(format("%G-%V %U %W", 1_704_067_200), "2024-01 00 01");
        assert_eq!(format("%G-%V %U %W", 1_609_459_200), "2020-53 00 00");
    }

    #[test]
    fn padding_and_clocks_follow_python() {
        assert_eq!(format("%-d/%-m %I:%M %p", 1_709_251_200 + 13 * 3600 + 5 * 60), "1/3 01:05 PM");
        assert_eq!(format("100%% %c", 0), "100% Thu Jan  1 00:00:00 1970");
    }

    #[test]
    fn what_is_not_a_format_stays_as_it_is() {
        assert_eq!(format("%Q", 0), "%Q");
        assert_eq!(format("%Y %-Q %Z|", 0), "1970 %-Q |");
        assert_eq!(format("50%", 0), "50%");
        assert_eq!(format("%F", i64::MAX), "9999-12-31");
    }
}
