//! The forms in which upstreams write times and durations. Instants are counted from the Unix epoch; earlier ones are the epoch.

use std::time::Duration;

const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
const DAYS: [&[u8]; 7] = [b"Monday", b"Tuesday", b"Wednesday", b"Thursday", b"Friday", b"Saturday", b"Sunday"];
const DAY: u64 = 86_400;
/// Of the Gregorian calendar, on average.
const YEAR: u64 = 31_556_952;

/// Whole seconds. A number that no duration can hold is the longest one.
pub(in crate::http) fn seconds(text: &[u8]) -> Option<Duration> {
    whole(text).map(Duration::from_secs)
}

/// Whole milliseconds.
pub(super) fn millis(text: &[u8]) -> Option<Duration> {
    whole(text).map(Duration::from_millis)
}

/// Seconds with or without a fraction, of which nine digits count.
pub(super) fn decimal_seconds(text: &[u8]) -> Option<Duration> {
    let (whole_part, fraction) = split_decimal(text)?;
    let fraction = if fraction.is_empty() { Duration::ZERO } else { Duration::from_nanos(nanos_of(fraction, 1_000_000_000)?) };
    Some(seconds(whole_part)?.saturating_add(fraction))
}

/// A number with a fraction, rounded down.
pub(super) fn decimal_whole(text: &[u8]) -> Option<u64> {
    let (whole_part, fraction) = split_decimal(text)?;
    whole(fraction).and(whole(whole_part))
}

/// `1h2m3.5s`, `250ms`, `0`: the text of Go's `time.Duration`, which is not negative.
pub(super) fn go_duration(text: &[u8]) -> Option<Duration> {
    if text == b"0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let len = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
        let (number, after) = rest.split_at(len);
        let len = after.iter().position(|byte| byte.is_ascii_digit() || *byte == b'.').unwrap_or(after.len());
        let (unit, after) = after.split_at(len);
        let unit: u64 = match unit {
            b"h" => 3_600_000_000_000,
            b"m" => 60_000_000_000,
            b"s" => 1_000_000_000,
            b"ms" => 1_000_000,
            b"us" | b"\xC2\xB5s" | b"\xCE\xBCs" => 1_000, // the micro sign, and the Greek letter
            b"ns" => 1,
            _ => return None,
        };
        let (whole_part, fraction) = split_decimal(number)?;
        let nanos = whole(whole_part)?.saturating_mul(unit);
        let fraction = if fraction.is_empty() { 0 } else { nanos_of(fraction, unit)? };
        total = total.saturating_add(Duration::from_nanos(nanos.saturating_add(fraction)));
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

/// The three forms of RFC 9110, section 5.6.7, with a leap second. Two digits of a year are its latest one that is at most 50 years
/// after `now`. The name of the day is not compared with the date.
pub(in crate::http) fn http_date(text: &[u8], now: Duration) -> Option<Duration> {
    let comma = text.iter().position(|byte| *byte == b',');
    let Some((day_name, rest)) = comma.map(|comma| text.split_at(comma)) else {
        // Sun Nov  6 08:49:37 1994
        let ([name @ .., b' '], rest) = text.split_at_checked(4)? else { return None };
        let ([month @ .., b' ', day_1, day_2, b' '], rest) = rest.split_at_checked(7)? else { return None };
        let ([time @ .., b' '], year) = rest.split_at_checked(9)? else { return None };
        let day_1 = if *day_1 == b' ' { b'0' } else { *day_1 };
        let is_day = DAYS.iter().any(|day| day[..3] == *name);
        return date(fixed(year, 4)?, named_month(month)?, fixed(&[day_1, *day_2], 2)?, time).filter(|_| is_day);
    };
    let rest = rest.strip_prefix(b", ")?.strip_suffix(b" GMT")?;
    let (rest, time) = rest.split_at_checked(rest.len().checked_sub(9)?)?;
    let time = time.strip_prefix(b" ")?;
    match *rest {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [d1, d2, b' ', ref month @ .., b' ', y1, y2, y3, y4] if DAYS.iter().any(|day| day[..3] == *day_name) => {
            date(fixed(&[y1, y2, y3, y4], 4)?, named_month(month)?, fixed(&[d1, d2], 2)?, time)
        }
        // Sunday, 06-Nov-94 08:49:37 GMT
        [d1, d2, b'-', ref month @ .., b'-', y1, y2] if DAYS.contains(&day_name) => {
            let latest = now.as_secs().saturating_add(50 * YEAR);
            let (month, day, year) = (named_month(month)?, fixed(&[d1, d2], 2)?, fixed(&[y1, y2], 2)?);
            let year = (1_970 + (latest / YEAR).min(8_000)) / 100 * 100 + 100 + year;
            let in_century = |year: u64| date(year, month, day, time);
            // A 29 February is in no other century than its own.
            let mut years = [0, 100, 200].into_iter().filter_map(|back| year.checked_sub(back)).filter_map(in_century);
            years.find(|instant| instant.as_secs() <= latest)
        }
        _ => None,
    }
}

/// `2026-11-23T01:02:03.5Z`, or with an offset. A leap second is the next one.
pub(super) fn rfc3339(text: &[u8]) -> Option<Duration> {
    let (day, rest) = text.split_at_checked(10)?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = *day else { return None };
    let ([b'T' | b't' | b' ', time @ ..], rest) = rest.split_at_checked(9)? else { return None };
    let day = date(fixed(&[y1, y2, y3, y4], 4)?, fixed(&[m1, m2], 2)?, fixed(&[d1, d2], 2)?, time)?;
    let (fraction, offset) = match rest.strip_prefix(b".") {
        Some(rest) => rest.split_at(rest.iter().position(|byte| !byte.is_ascii_digit())?),
        None => (b"0".as_slice(), rest),
    };
    let instant = day.saturating_add(Duration::from_nanos(nanos_of(fraction, 1_000_000_000)?));
    match *offset {
        [b'Z' | b'z'] => Some(instant),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (fixed(&[h1, h2], 2)?, fixed(&[m1, m2], 2)?);
            let offset = Duration::from_secs(hours * 3_600 + minutes * 60);
            let instant = if sign == b'+' { instant.saturating_sub(offset) } else { instant.saturating_add(offset) };
            (hours < 24 && minutes < 60).then_some(instant)
        }
        _ => None,
    }
}

/// Digits only. A number that is too large is the largest.
fn whole(text: &[u8]) -> Option<u64> {
    let digit =
        |number: u64, byte: &u8| byte.is_ascii_digit().then(|| number.saturating_mul(10).saturating_add(u64::from(byte - b'0')));
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

fn fixed(text: &[u8], len: usize) -> Option<u64> {
    if text.len() == len { whole(text) } else { None }
}

/// The digits before the point and after it.
fn split_decimal(text: &[u8]) -> Option<(&[u8], &[u8])> {
    match text.iter().position(|byte| *byte == b'.') {
        None => Some((text, b"")),
        Some(point) if point + 1 < text.len() => Some((&text[..point], &text[point + 1..])),
        Some(_) => None,
    }
}

/// What these digits after the point are of a unit in nanoseconds. Nine of them count.
fn nanos_of(fraction: &[u8], unit: u64) -> Option<u64> {
    whole(fraction)?;
    let digits = &fraction[..fraction.len().min(9)];
    let nanos = u128::from(whole(digits)?) * u128::from(unit) / 10_u128.pow(digits.len() as u32);
    u64::try_from(nanos).ok()
}

fn named_month(name: &[u8]) -> Option<u64> {
    let index = MONTHS.chunks(3).position(|month| month == name)?;
    Some(index as u64 + 1)
}

/// `time` is `08:49:37`.
fn date(year: u64, month: u64, day: u64, time: &[u8]) -> Option<Duration> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *time else { return None };
    let (hours, minutes, seconds) = (fixed(&[h1, h2], 2)?, fixed(&[m1, m2], 2)?, fixed(&[s1, s2], 2)?);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of_month = match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days_of_month).contains(&day) || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    // Years from March on, so that the day of a leap year is its last one: https://howardhinnant.github.io/date_algorithms.html
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = hours * 3_600 + minutes * 60 + seconds;
    Some(Duration::from_secs((days * DAY + seconds).saturating_sub(719_468 * DAY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOV_1994: Duration = Duration::from_secs(784_111_777);
    const NOV_2026: Duration = Duration::from_secs(1_795_400_000);

    #[test]
    fn a_date_has_three_forms() {
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(http_date(text.as_bytes(), NOV_2026), Some(NOV_1994), "{text}");
            for at in 0..text.len() {
                let mut other = text.as_bytes().to_vec();
                other[at] = b'!';
                assert_eq!(http_date(&other, NOV_2026), None, "{text} at {at}");
                assert_eq!(http_date(&text.as_bytes()[..at], NOV_2026), None);
                assert_eq!(http_date(&[&text.as_bytes()[..at], b" ", &text.as_bytes()[at..]].concat(), NOV_2026), None);
            }
        }
        assert_eq!(http_date(b"Wed Nov 16 08:49:37 1994", NOV_2026), Some(NOV_1994 + Duration::from_secs(10 * DAY)));
    }

    #[test]
    fn dates_outside_the_calendar_are_none_and_a_leap_second_is_one() {
        let date = |text: &str| http_date(text.as_bytes(), NOV_2026).map(|instant| instant.as_secs());
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
            let now = date(now, 6, 15, b"00:00:00").unwrap();
            let instant = http_date(format!("Monday, 01-Jan-{digits:02} 00:00:00 GMT").as_bytes(), now).unwrap();
            1_970 + (instant.as_secs() + DAY) / YEAR
        };
        assert_eq!([26, 27, 75, 76, 77, 99, 0].map(|digits| year(digits, 2026)), [2026, 2027, 2075, 2076, 1977, 1999, 2000]);
        assert_eq!([10, 30, 31, 79, 80].map(|digits| year(digits, 2080)), [2110, 2130, 2031, 2079, 2080]);
    }

    #[test]
    fn an_instant_of_rfc_3339_may_have_a_fraction_and_an_offset() {
        let instant = |text: &str| rfc3339(text.as_bytes());
        assert_eq!(instant("1994-11-06T08:49:37Z"), Some(NOV_1994));
        assert_eq!(instant("1994-11-06t08:49:37.25z"), Some(NOV_1994 + Duration::from_millis(250)));
        assert_eq!(instant("1994-11-06 09:49:37+01:00"), Some(NOV_1994));
        assert_eq!(instant("1994-11-06T03:19:37.000000000000-05:30"), Some(NOV_1994));
        for text in
            ["", "1994-11-06", "1994-11-06T08:49:37", "1994-11-06T08:49:37.Z", "1994-13-06T08:49:37Z", "1994-11-06T08:49:37+1"]
        {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn a_go_duration_is_a_sum_of_decimals_with_units() {
        let millis = |text: &str| go_duration(text.as_bytes()).map(|time| time.as_millis());
        assert_eq!(
            ["0", "1s", "12ms", "6m0s", "23h47m36.648s", "1.5h"].map(millis),
            [0, 1_000, 12, 360_000, 85_656_648, 5_400_000].map(Some)
        );
        assert_eq!(go_duration("1.5\u{B5}s".as_bytes()), Some(Duration::from_nanos(1_500)));
        assert_eq!(go_duration(b"99999999999999999999999h"), Some(Duration::from_nanos(u64::MAX)));
        for text in ["", "1", "s", "-1s", "1s ", "1.s", ".s", "1.5.5s", "1d", "1s1"] {
            assert_eq!(millis(text), None, "{text}");
        }
    }

    #[test]
    fn a_decimal_is_read_to_the_nanosecond() {
        let nanos = |text: &str| decimal_seconds(text.as_bytes()).map(|time| time.as_nanos());
        assert_eq!(["2", "2.0", "64.57", "0.0000000019"].map(nanos), [2_000_000_000, 2_000_000_000, 64_570_000_000, 1].map(Some));
        assert_eq!(["", ".", "1.", ".5", "-1", "1e3", "1,5", "1.5.5", "1.x"].map(nanos), [None; 9]);
    }
}
