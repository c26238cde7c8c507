//! The forms in which upstreams write times and durations. Instants count from the Unix epoch; an earlier instant is read as the
//! epoch.

use std::time::Duration;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const DAY: u64 = 86_400;
/// The average year of the Gregorian calendar.
const YEAR: u64 = 31_556_952;

/// Digits only. A number that is too large is read as the largest one.
pub(in crate::layers) fn whole(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whole seconds. A number that no duration can hold is read as the longest duration.
pub(in crate::layers) fn seconds(text: &str) -> Option<Duration> {
    whole(text).map(Duration::from_secs)
}

/// Whole milliseconds.
pub(super) fn millis(text: &str) -> Option<Duration> {
    whole(text).map(Duration::from_millis)
}

/// Seconds with or without a fraction. Nine digits of the fraction count.
pub(super) fn decimal_seconds(text: &str) -> Option<Duration> {
    let (whole_part, nanos) = decimal(text, 1_000_000_000)?;
    Some(Duration::from_secs(whole_part).saturating_add(Duration::from_nanos(nanos)))
}

/// A number with a fraction, rounded down.
pub(super) fn decimal_whole(text: &str) -> Option<u64> {
    let (whole_part, fraction) = text.split_once('.')?;
    whole(fraction).and(whole(whole_part))
}

/// The number before the point, and the digits after it converted to nanoseconds. `unit` is the unit in nanoseconds.
fn decimal(text: &str, unit: u64) -> Option<(u64, u64)> {
    match text.split_once('.') {
        None => Some((whole(text)?, 0)),
        Some((whole_part, fraction)) => Some((whole(whole_part)?, nanos_of(fraction, unit)?)),
    }
}

/// The nanoseconds for these digits after the point. `unit` is the unit in nanoseconds. Nine digits count.
fn nanos_of(fraction: &str, unit: u64) -> Option<u64> {
    whole(fraction)?;
    let digits = &fraction[..fraction.len().min(9)];
    let nanos = u128::from(whole(digits)?) * u128::from(unit) / 10_u128.pow(digits.len() as u32);
    u64::try_from(nanos).ok()
}

/// `1h2m3.5s`, `250ms`, `0`: the text of a Go `time.Duration` that is not negative.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let is_digit = |char: char| char.is_ascii_digit() || char == '.';
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|char| !is_digit(char))?);
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        let unit = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "\u{B5}s" | "\u{3BC}s" => 1_000, // the micro sign, and the Greek letter
            "ns" => 1,
            _ => return None,
        };
        let (whole_part, nanos) = decimal(number, unit)?;
        let nanos = whole_part.saturating_mul(unit).saturating_add(nanos);
        total = total.saturating_add(Duration::from_nanos(nanos));
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// The three forms of RFC 9110, section 5.6.7, with a leap second. A year of two digits is the latest such year that is at most
/// 50 years after `now`. The name of the day is not compared with the date.
pub(in crate::layers) fn http_date(text: &str, now: Duration) -> Option<Duration> {
    for pattern in ["%a, %d %b %Y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"] {
        if let Some((date, "")) = DateTime::read(text, pattern) {
            return date.instant();
        }
    }
    let Some((date, "")) = DateTime::read(text, "%A, %d-%b-%y %H:%M:%S GMT") else {
        return None;
    };
    let latest = now.as_secs().saturating_add(50 * YEAR);
    let year = (1_970 + (latest / YEAR).min(8_000)) / 100 * 100 + 100 + date.year;
    let in_century = |year| DateTime { year, ..date }.instant();
    // A 29 February may not exist in the other centuries.
    let mut instants = [year, year - 100, year - 200]
        .into_iter()
        .filter_map(in_century);
    instants.find(|instant| instant.as_secs() <= latest)
}

/// `2026-11-23T01:02:03.5Z`, or with an offset. A leap second is read as the next second.
pub(super) fn rfc3339(text: &str) -> Option<Duration> {
    let patterns = [
        "%Y-%m-%dT%H:%M:%S",
        "%Y-%m-%dt%H:%M:%S",
        "%Y-%m-%d %H:%M:%S",
    ];
    let read = |pattern: &&str| DateTime::read(text, pattern);
    let (date, rest) = patterns.iter().find_map(read)?;
    let (fraction, zone) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
    let nanos = match fraction.strip_prefix('.') {
        Some(digits) => nanos_of(digits, 1_000_000_000)?,
        None if fraction.is_empty() => 0,
        None => return None,
    };
    let instant = date.instant()?.saturating_add(Duration::from_nanos(nanos));
    if let "Z" | "z" = zone {
        return Some(instant);
    }
    let Some((DateTime { hour, minute, .. }, "")) = DateTime::read(&zone[1..], "%H:%M") else {
        return None;
    };
    let offset = Duration::from_secs(hour * 3_600 + minute * 60);
    let instant = match zone.as_bytes()[0] {
        b'+' => instant.saturating_sub(offset),
        b'-' => instant.saturating_add(offset),
        _ => return None,
    };
    (hour < 24 && minute < 60).then_some(instant)
}

/// A date and a time of day, which may be impossible in the calendar.
#[derive(Debug, Clone, Copy, Default)]
struct DateTime {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl DateTime {
    /// Reads the start of a text by a pattern of `strftime`. Also returns the rest of the text.
    fn read<'t>(text: &'t str, pattern: &str) -> Option<(Self, &'t str)> {
        let (mut date, mut rest) = (Self::default(), text);
        let mut pattern = pattern.chars();
        while let Some(expected) = pattern.next() {
            if expected != '%' {
                rest = rest.strip_prefix(expected)?;
                continue;
            }
            let conversion = pattern.next()?;
            let len = match conversion {
                'A' => rest.find(',')?,
                'Y' => 4,
                'a' | 'b' => 3,
                _ => 2,
            };
            let (part, after) = rest.split_at_checked(len)?;
            rest = after;
            match conversion {
                'a' if DAYS.iter().any(|day| day[..3] == *part) => {}
                'A' if DAYS.contains(&part) => {}
                'b' => date.month = 1 + MONTHS.iter().position(|month| *month == part)? as u64,
                'd' => date.day = whole(part)?,
                'e' => date.day = whole(part.trim_start_matches(' '))?,
                'H' => date.hour = whole(part)?,
                'm' => date.month = whole(part)?,
                'M' => date.minute = whole(part)?,
                'S' => date.second = whole(part)?,
                'y' | 'Y' => date.year = whole(part)?,
                _ => return None,
            }
        }
        Some((date, rest))
    }

    fn instant(self) -> Option<Duration> {
        let Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = self;
        if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let first_day = days_before(year, month)?;
        let days_of_month = days_before(year, month + 1)? - first_day;
        if !(1..=days_of_month).contains(&day) {
            return None;
        }
        let seconds = (first_day + day - 1) * DAY + hour * 3_600 + minute * 60 + second;
        let epoch = days_before(1_970, 1)? * DAY;
        Some(Duration::from_secs(seconds.saturating_sub(epoch)))
    }
}

/// The days from March of the year 0 to a month; month 13 is the next January. `None` before that March.
///
/// Years count from March on, so that a leap day is the last day of its year:
/// <https://howardhinnant.github.io/date_algorithms.html>
fn days_before(year: u64, month: u64) -> Option<u64> {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year.checked_sub(1)?, month + 9)
    };
    Some(year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOV_1994: Duration = Duration::from_secs(784_111_777);
    const NOV_2026: Duration = Duration::from_secs(1_795_400_000);

    #[test]
    fn a_date_has_three_forms() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(http_date(text, NOV_2026), Some(NOV_1994), "{text}");
            for at in 0..text.len() {
                let (start, end) = text.split_at(at);
                for other in [
                    format!("{start}!{}", &end[1..]),
                    start.to_owned(),
                    format!("{start} {end}"),
                ] {
                    assert_eq!(http_date(&other, NOV_2026), None, "{text} at {at}");
                }
            }
        }
        assert_eq!(
            http_date("Wed Nov 16 08:49:37 1994", NOV_2026),
            Some(NOV_1994 + Duration::from_secs(10 * DAY))
        );
    }

    #[test]
    fn dates_outside_the_calendar_are_none_and_a_leap_second_is_one() {
        let date = |text: &str| http_date(text, NOV_2026).map(|instant| instant.as_secs());
        assert_eq!(date("Sat, 31 Dec 2016 23:59:60 GMT"), Some(1_483_228_800));
        assert_eq!(date("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800));
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(date("Sun, 31 Dec 0000 00:00:00 GMT"), Some(0));
        for text in [
            "Sat, 29 Feb 2025 00:00:00 GMT",
            "Sat, 31 Apr 2025 00:00:00 GMT",
            "Sat, 00 Apr 2025 00:00:00 GMT",
            "Sat, 01 Apr 2025 24:00:00 GMT",
            "Sat, 01 Apr 2025 00:60:00 GMT",
            "Sat, 01 Apr 2025 00:00:61 GMT",
            "Sat, 01 Apr 2025 00:00:00 CET",
            "Sat, 01 Foo 2025 00:00:00 GMT",
            "Sat, 01 anF 2025 00:00:00 GMT",
        ] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn two_digits_of_a_year_slide_with_the_present() {
        let year = |digits: u64, now: u64| {
            let now = rfc3339(&format!("{now}-06-15T00:00:00Z")).unwrap();
            let text = format!("Monday, 01-Jan-{digits:02} 00:00:00 GMT");
            let instant = http_date(&text, now).unwrap();
            1_970 + (instant.as_secs() + DAY) / YEAR
        };
        assert_eq!(
            [26, 27, 75, 76, 77, 99, 0].map(|digits| year(digits, 2026)),
            [2026, 2027, 2075, 2076, 1977, 1999, 2000]
        );
        assert_eq!(
            [10, 30, 31, 79, 80].map(|digits| year(digits, 2080)),
            [2110, 2130, 2031, 2079, 2080]
        );
    }

    #[test]
    fn an_instant_of_rfc_3339_may_have_a_fraction_and_an_offset() {
        let instant = |text: &str| rfc3339(text);
        assert_eq!(instant("1994-11-06T08:49:37Z"), Some(NOV_1994));
        assert_eq!(
            instant("1994-11-06t08:49:37.25z"),
            Some(NOV_1994 + Duration::from_millis(250))
        );
        assert_eq!(instant("1994-11-06 09:49:37+01:00"), Some(NOV_1994));
        assert_eq!(
            instant("1994-11-06T03:19:37.000000000000-05:30"),
            Some(NOV_1994)
        );
        for text in [
            "",
            "1994-11-06",
            "1994-11-06T08:49:37",
            "1994-11-06T08:49:37.Z",
            "1994-11-06T08:49:375Z",
            "1994-11-06T08:49:37+24:00",
            "1994-11-06T08:49:37+23:60",
            "1994-13-06T08:49:37Z",
            "1994-11-06T08:49:37+1",
        ] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn a_go_duration_is_a_sum_of_decimals_with_units() {
        let millis = |text: &str| go_duration(text).map(|time| time.as_millis());
        assert_eq!(
            ["0", "1s", "12ms", "6m0s", "23h47m36.648s", "1.5h"].map(millis),
            [0, 1_000, 12, 360_000, 85_656_648, 5_400_000].map(Some)
        );
        assert_eq!(go_duration("1.5\u{B5}s"), Some(Duration::from_nanos(1_500)));
        assert_eq!(go_duration("7ns"), Some(Duration::from_nanos(7)));
        assert_eq!(
            go_duration("99999999999999999999999h"),
            Some(Duration::from_nanos(u64::MAX))
        );
        for text in [
            "", "1", "s", "-1s", "1s ", "1.s", ".s", "1.5.5s", "1d", "1s1",
        ] {
            assert_eq!(millis(text), None, "{text}");
        }
    }

    #[test]
    fn a_decimal_is_read_to_the_nanosecond() {
        let nanos = |text: &str| decimal_seconds(text).map(|time| time.as_nanos());
        assert_eq!(
            ["2", "2.0", "64.57", "0.0000000019"].map(nanos),
            [2_000_000_000, 2_000_000_000, 64_570_000_000, 1].map(Some)
        );
        assert_eq!(
            ["", ".", "1.", ".5", "-1", "1e3", "1,5", "1.5.5", "1.x"].map(nanos),
            [None; 9]
        );
    }
}
