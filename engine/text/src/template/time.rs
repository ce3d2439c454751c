//! `strftime` in UTC and English, as far as chat templates use it.

use std::fmt::Write as _;

const SECONDS_PER_DAY: i64 = 86_400;
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
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

/// Formats a time in seconds since 1970. A directive that isn't known is written as it stands.
pub(super) fn strftime(seconds: i64, format: &str) -> String {
    let time = Civil::new(seconds);
    let mut out = String::new();
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        // `%-d` is the number without padding.
        let padded = characters.next_if_eq(&'-').is_none();
        match characters.next() {
            Some(directive) => time.write(directive, padded, &mut out),
            None => out.push('%'),
        }
    }
    out
}

/// A time on the Gregorian calendar, UTC.
struct Civil {
    year: i64,
    /// 1 to 12.
    month: i64,
    /// 1 to 31.
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Civil {
    /// Days to a date by counting from 1 March of year 0, so that the leap day ends a year (Howard Hinnant,
    /// "chrono-compatible low-level date algorithms").
    fn new(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        Self {
            year,
            month,
            day: from_march - (153 * month_from_march + 2) / 5 + 1,
            day_of_year: if from_march < 306 {
                from_march + 60 + i64::from(leap)
            } else {
                from_march - 305
            },
            weekday: (days + 4).rem_euclid(7),
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    fn write(&self, directive: char, padded: bool, out: &mut String) {
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            write!(out, "{value:0width$}").expect("a string takes any text");
        };
        let month = MONTHS[(self.month - 1).rem_euclid(12) as usize];
        let weekday = DAYS[self.weekday.rem_euclid(7) as usize];
        match directive {
            'Y' => number(self.year, 4),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'j' => number(self.day_of_year, 3),
            'H' => number(self.hour, 2),
            'I' => number((self.hour + 11) % 12 + 1, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'f' => number(0, 6),
            'w' => number(self.weekday, 1),
            'u' => number((self.weekday + 6) % 7 + 1, 1),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'A' => out.push_str(weekday),
            'a' => out.push_str(&weekday[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'Z' | 'z' => {}
            'F' => out.push_str(&strftime(self.seconds(), "%Y-%m-%d")),
            'T' | 'X' => out.push_str(&strftime(self.seconds(), "%H:%M:%S")),
            'D' | 'x' => out.push_str(&strftime(self.seconds(), "%m/%d/%y")),
            'R' => out.push_str(&strftime(self.seconds(), "%H:%M")),
            'c' => out.push_str(&strftime(self.seconds(), "%a %b %d %H:%M:%S %Y")),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }

    /// Back to seconds since 1970, for the directives that are made of others.
    fn seconds(&self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let month_from_march = (self.month + 9) % 12;
        let from_march = (153 * month_from_march + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + from_march;
        let days = era * 146_097 + day_of_era - 719_468;
        days * SECONDS_PER_DAY + self.hour * 3_600 + self.minute * 60 + self.second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_format_as_python_does() {
        // Expected texts from Python's datetime in UTC.
        assert_eq!(
            strftime(0, "%Y-%m-%d %H:%M:%S %A %j"),
            "1970-01-01 00:00:00 Thursday 001"
        );
        assert_eq!(
            strftime(1_709_208_000, "%d %b %Y, %I:%M %p, %a, %j"),
            "29 Feb 2024, 12:00 PM, Thu, 060"
        );
        assert_eq!(
            strftime(1_735_689_599, "%-d %B %y %-H %F %T"),
            "31 December 24 23 2024-12-31 23:59:59"
        );
        assert_eq!(strftime(-1, "%c %j"), "Wed Dec 31 23:59:59 1969 365");
        assert_eq!(strftime(1_709_208_000, "100%% %Q %"), "100% %Q %");
    }
}
