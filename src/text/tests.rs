//! Tests of policies as text: what is printed, what is read, and the errors.

use proptest::prelude::*;

use std::time::Duration;

use super::reader::{MAX_LEN, Reader};
use super::span::DurationText;
use super::*;
use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::{
    Adapt, Align, Counts, Decay, FixedWindow, MaxConcurrency, Penalty, SlidingMethod,
    SlidingWindow, Throttle, TokenBucket, Unit,
};

fn duration() -> impl Strategy<Value = Duration> {
    let exact = (any::<u64>(), 0..1_000_000_000_u32)
        .prop_map(|(seconds, nanos)| Duration::new(seconds, nanos));
    let unit = prop::sample::select(vec![
        1,
        1_000,
        1_000_000,
        1_000_000_000,
        60_000_000_000,
        3_600_000_000_000,
        u64::MAX,
    ]);
    let round = (unit, 0..3_000_u64)
        .prop_map(|(unit, count)| Duration::from_nanos(unit.saturating_mul(count)));
    let day = Duration::from_secs(86_400);
    prop_oneof![
        exact,
        round,
        Just(Duration::MAX),
        Just(day),
        Just(day * 7),
        any::<u32>().prop_map(|seconds| Duration::from_secs(seconds.into()))
    ]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, any::<u64>(), Just(u64::MAX)]
}

fn rate() -> impl Strategy<Value = Rate> {
    (number(), duration()).prop_map(|(units, period)| Rate::new(units, period))
}

fn counts() -> BoxedStrategy<Counts> {
    let names = [
        "tokens",
        "a",
        "per",
        "and",
        "requests",
        "rpm",
        "concurrent",
        "min",
        "s",
        "input-tokens",
        "cache_read_input_tokens_5m",
    ];
    let unit = prop::sample::select(names.to_vec()).prop_map(|name| Counts::Unit(Unit::new(name)));
    prop_oneof![4 => Just(Counts::Cost), 2 => Just(Counts::Requests), 3 => unit].boxed()
}

/// The strategy is boxed: unboxed, the strategies of the whole grammar can overflow the stack of a test thread.
fn limit() -> BoxedStrategy<Limit> {
    let align = prop::sample::select(vec![Align::Creation, Align::FirstGrant, Align::WallClock]);
    prop_oneof![
        (
            rate(),
            prop::option::of(number()),
            any::<bool>(),
            prop::option::of(number()),
            counts()
        )
            .prop_map(|(rate, burst, each_period, initial, counts)| {
                TokenBucket {
                    rate,
                    burst: burst.unwrap_or(rate.units()),
                    each_period,
                    initial,
                    counts,
                }
                .into()
            }),
        (
            number(),
            prop::option::of(duration()),
            prop::option::of(adapt()),
            counts()
        )
            .prop_map(|(limit, ttl, adapt, counts)| MaxConcurrency {
                limit,
                ttl,
                adapt,
                counts
            }
            .into()),
        (duration(), number(), counts()).prop_map(|(interval, burst, counts)| Throttle {
            interval,
            burst,
            counts
        }
        .into()),
        (number(), duration(), align, counts()).prop_map(|(limit, period, align, counts)| {
            FixedWindow {
                limit,
                period,
                align,
                counts,
            }
            .into()
        }),
        sliding().prop_map(Limit::from),
        penalty().prop_map(Limit::from),
    ]
    .boxed()
}

fn adapt() -> BoxedStrategy<Adapt> {
    let per_mille = || prop::option::of(any::<u32>());
    let rule = prop::sample::select(vec![Adapt::aimd(), Adapt::gradient()]);
    (
        rule,
        number(),
        number(),
        prop::option::of(duration()),
        [per_mille(), per_mille(), per_mille()],
    )
        .prop_map(
            |(rule, floor, ceiling, timeout, [backoff, tolerance, smoothing])| {
                let adapt = rule.between(floor, ceiling);
                let adapt = timeout.map_or(adapt, |timeout| adapt.timeout(timeout));
                let adapt = backoff.map_or(adapt, |backoff| adapt.backoff(backoff));
                let adapt = tolerance.map_or(adapt, |tolerance| adapt.tolerance(tolerance));
                smoothing.map_or(adapt, |smoothing| adapt.smoothing(smoothing))
            },
        )
        .boxed()
}

fn sliding() -> impl Strategy<Value = SlidingWindow> {
    let method = prop::sample::select(vec![SlidingMethod::Log, SlidingMethod::Counter]);
    (number(), duration(), method, counts()).prop_map(|(limit, period, method, counts)| {
        SlidingWindow {
            limit,
            period,
            method,
            counts,
        }
    })
}

fn penalty() -> BoxedStrategy<Penalty> {
    let fall = prop_oneof![
        rate().prop_map(Decay::Steps),
        duration().prop_map(Decay::HalfLife)
    ];
    let times = prop::array::uniform3(prop::option::of(duration()));
    (
        number(),
        fall,
        prop::option::of(number()),
        times,
        any::<bool>(),
        counts(),
    )
        .prop_map(
            |(threshold, fall, ceiling, [ban, longest, forgive_after], ignores_denied, counts)| {
                Penalty {
                    threshold,
                    fall,
                    ceiling,
                    ban,
                    longest,
                    forgive_after,
                    ignores_denied,
                    counts,
                }
            },
        )
        .boxed()
}

fn policy() -> BoxedStrategy<Policy> {
    prop::collection::vec(limit(), 1..4)
        .prop_map(|limits| {
            limits
                .into_iter()
                .map(Policy::from)
                .reduce(Policy::and)
                .expect("one at least")
        })
        .boxed()
}

/// Texts that are nearly right, so that errors come late.
fn nearly() -> impl Strategy<Value = String> {
    let words = "100/min / per rps req 1_0 1,000 1,00 second 8 concurrent ttl 30s and every throttle 1h30m burst initial refilled each period fixed window from first grant wall \
                 clock 3/250ms 1/ /s 1//s 1/1 99999999999999999999999 5µs/µs 1/99999999999w 0.0000000000000000001s 1.s µ 9é 1/9é\
                 340282366920938463463374607431768211455w\u{2003}x";
    let word = prop::sample::select(words.split(' ').collect::<Vec<_>>());
    let space = prop::sample::select(vec![" ", "\t", "\n", "", "  ", "\u{85}"]);
    prop::collection::vec((word, space), 0..8).prop_map(|parts| {
        parts
            .into_iter()
            .flat_map(|(word, space)| [word, space])
            .collect()
    })
}

fn check_error(text: &str) {
    if let Err(error) = text.parse::<Policy>() {
        assert_eq!(error.text, text);
        assert!(text.get(error.at.clone()).is_some(), "{error:?}");
        let printed = error.to_string();
        let lines: Vec<_> = printed.lines().collect();
        assert_eq!(lines.len(), 3, "{printed:?}");
        assert!(
            lines[2].trim_start().chars().all(|char| char == '^'),
            "{printed}"
        );
    }
    let _ = (text.parse::<Limit>(), text.parse::<Rate>());
}

proptest! {
    #![proptest_config(crate::replay::cases(4_000))]

    #[test]
    fn printed_text_parses_to_the_same(policy in policy(), rate in rate(), limit in limit()) {
        prop_assert_eq!(policy.to_string().parse(), Ok(policy));
        prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        prop_assert_eq!(limit.to_string().parse(), Ok(limit));
    }

    #[test]
    fn case_and_spaces_do_not_matter(policy in policy()) {
        let text = format!("\n {}\t", policy.to_string().to_uppercase().replace(' ', " \n "));
        prop_assert_eq!(text.parse(), Ok(policy));
    }

    #[test]
    fn any_text_is_a_policy_or_an_error_that_points_into_it(text in any::<String>(), nearly in nearly()) {
        check_error(&text);
        check_error(&nearly);
    }
}

#[track_caller]
fn reads(text: &str, policy: impl Into<Policy>) {
    assert_eq!(text.parse(), Ok(policy.into()), "{text}");
}

#[track_caller]
fn prints(policy: impl Into<Policy>, text: &str) {
    let policy = policy.into();
    assert_eq!(policy.to_string(), text);
    reads(text, policy);
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn every_limit_has_a_short_form() {
    let minute = Rate::per_minute(100);
    prints(TokenBucket::new(minute, 100), "100/min");
    prints(TokenBucket::new(Rate::per_second(20), 40), "20/s burst 40");
    prints(
        TokenBucket::new(minute, 100)
            .refill_each_period()
            .initial(0),
        "100/min refilled each period initial 0",
    );
    prints(
        Throttle::every(Duration::from_millis(100)),
        "throttle every 100ms",
    );
    prints(
        Throttle::every(secs(90)).burst(5),
        "throttle every 1m30s burst 5",
    );
    prints(MaxConcurrency::new(8), "8 concurrent");
    prints(FixedWindow::new(100, secs(60)), "window 100/min");
    prints(
        FixedWindow::new(100, secs(60)).align(Align::FirstGrant),
        "window 100/min from first grant",
    );
    prints(
        FixedWindow::new(7, secs(3)).align(Align::WallClock),
        "window 7/3s wall clock",
    );
    prints(SlidingWindow::log(100, secs(60)), "sliding log 100/min");
    prints(
        SlidingWindow::counter(100, secs(60)),
        "sliding counter 100/min",
    );
    prints(
        Penalty::new(10, Rate::per_second(1)).ceiling(20),
        "penalty 10 falling 1/s ceiling 20",
    );
    prints(
        Penalty::new(10, Rate::per_second(1))
            .half_life(secs(30))
            .ban(secs(60))
            .escalate(secs(3_600))
            .forgive_after(secs(7_200))
            .ignore_denied(),
        "penalty 10 half-life 30s ban 1m up to 1h forgive 2h ignoring denied",
    );
    prints(
        MaxConcurrency::new(20)
            .ttl(secs(30))
            .adapt(Adapt::gradient().between(4, 200).tolerance(1_200)),
        "20 concurrent ttl 30s gradient from 4 to 200 tolerance 1200 smoothing 200",
    );
    prints(
        MaxConcurrency::new(20).adapt(Adapt::aimd().timeout(Duration::from_millis(250))),
        "20 concurrent aimd from 1 to 1000 timeout 250ms",
    );
    prints(
        Policy::from(MaxConcurrency::new(8).ttl(secs(30))).and(TokenBucket::new(minute, 100)),
        "8 concurrent ttl 30s and 100/min",
    );
}

#[test]
fn longer_forms_are_read_too() {
    reads(
        "100/MIN initial 0 burst 100 refilled EACH period",
        TokenBucket::new(Rate::per_minute(100), 100)
            .refill_each_period()
            .initial(0),
    );
    reads("every 100ms", Throttle::every(Duration::from_millis(100)));
    reads("Fixed Window 100/60s", FixedWindow::new(100, secs(60)));
}

/// The limit that is printed, in other spellings.
fn other_spellings(printed: &str) -> Vec<String> {
    let is_boundary = |one: char, other: char| one.is_ascii_digit() && other.is_ascii_alphabetic();
    let mut apart = String::new();
    for char in printed.chars() {
        if let Some(last) = apart.chars().last()
            && (is_boundary(last, char) || is_boundary(char, last))
        {
            apart.push(' ');
        }
        apart.push(char);
    }
    let mut spellings = vec![
        printed.replace('/', " / "),
        printed.replace('/', " per "),
        printed.replace('/', " requests/"),
        apart,
    ];
    spellings.push(spellings[3].replace('/', "req per "));
    spellings
}

proptest! {
    #![proptest_config(crate::replay::cases(256))]

    #[test]
    fn other_spellings_are_the_same(policy in policy(), rate in rate(), time in duration()) {
        let policy: Policy = policy.limits().iter().map(|limit| limit.counting(Counts::Cost)).collect();
        for text in other_spellings(&policy.to_string()) {
            prop_assert_eq!(text.parse(), Ok(policy.clone()), "{}", text);
        }
        prop_assert_eq!(format!("rate {rate}").parse::<Limit>(), rate.to_string().parse());
        for text in other_spellings(&format!("throttle every {}", DurationText(time))) {
            prop_assert_eq!(text.parse(), Ok(Limit::from(Throttle::every(time))), "{}", text);
        }
    }

    #[test]
    fn thousands_may_be_set_apart(number in any::<u64>()) {
        let digits = number.to_string();
        let grouped = |by: &str| {
            let groups = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap());
            groups.collect::<Vec<_>>().join(by)
        };
        for text in [digits.clone(), grouped("_"), grouped(",")] {
            prop_assert_eq!(format!("{text} concurrent").parse(), Ok(Limit::from(MaxConcurrency::new(number))));
            prop_assert_eq!(format!("{text}/h").parse(), Ok(Rate::per_hour(number)));
        }
        let time = format!("every {}s", grouped("_"));
        prop_assert_eq!(time.parse(), Ok(Limit::from(Throttle::every(secs(number)))));
    }
}

#[test]
fn the_usual_spellings_of_a_rate_are_read() {
    for (rate, texts) in [
        (
            Rate::per_second(10),
            "10 per second; 10 a second; 10/sec; 10 / s; 10 rps; 10rps; 10 QPS; 10r/s; 10 req/s; 10 calls per sec",
        ),
        (
            Rate::per_minute(100),
            "100/minute; 100 per min; 100 requests a minute; 100rpm; 100 qpm; 100 calls/min; 100r/m",
        ),
        (
            Rate::per_hour(100),
            "100/hr; 100/hour; 100 an hour; 100 per hrs; 100 rph",
        ),
        (
            Rate::per_day(5_000),
            "5,000/day; 5_000 per day; 5000 rpd; 5,000 queries / d",
        ),
        (
            Rate::new(10, secs(2)),
            "10 per 2s; 10/2 s; 10 per 2 seconds; 10 requests per 2 secs",
        ),
        (
            Rate::new(3, secs(5_400)),
            "3 per 1h30m; 3/1h 30m; 3 per 1 hour 30 minutes; 3 per 1.5 hrs",
        ),
    ] {
        for text in texts.split("; ") {
            assert_eq!(text.parse(), Ok(rate), "{text}");
            reads(text, TokenBucket::new(rate, rate.units()));
            reads(&format!("rate {text} burst 7"), TokenBucket::new(rate, 7));
            reads(
                &format!("sliding log {text}"),
                SlidingWindow::log(rate.units(), rate.period()),
            );
        }
    }
    reads(
        "8 concurrent requests ttl 30 sec and 100 requests per minute",
        MaxConcurrency::new(8)
            .ttl(secs(30))
            .and(TokenBucket::new(Rate::per_minute(100), 100)),
    );
}

#[test]
fn a_word_that_is_nearly_right_is_answered_with_the_right_one() {
    for (text, hint) in [
        ("8 concurent", "did you mean `concurrent`?"),
        ("8 concurrency", "did you mean `concurrent`?"),
        ("8 parallel", "did you mean `concurrent`?"),
        ("20/s brust 40", "did you mean `burst`?"),
        ("10 every 2s", "did you mean `per`?"),
        ("100/month", "did you mean `30d`?"),
        (
            "every 1,000ms",
            "did you mean `.`, or `_` between thousands?",
        ),
        ("1.5/s", "units are whole; did you mean `3/2s` for `1.5/s`?"),
        (
            "window 0.25/s",
            "units are whole; did you mean `1/4s` for `0.25/s`?",
        ),
        ("8 concurrent, 100/min", "limits are joined with `and`"),
        ("100/min, 8 concurrent", "limits are joined with `and`"),
        ("8 concurrent + 100/min", "did you mean `and`?"),
        ("throtle every 5s", "did you mean `throttle`?"),
        ("penalty 10 faling 1/s", "did you mean `falling`?"),
    ] {
        let message = text.parse::<Policy>().unwrap_err().to_string();
        let first = message.lines().next().unwrap();
        assert!(first.ends_with(&format!("`; {hint}")), "{text}: {message}");
    }
    for text in [
        "0,500/s",
        "1,00/s",
        "100 foo",
        "8 concurrent 5",
        "every 5 x",
        "",
    ] {
        let message = text.parse::<Policy>().unwrap_err().to_string();
        assert!(!message.contains("; "), "{text}: {message}");
    }
}

#[test]
fn times_are_read_exactly() {
    let read = |text: &str| Reader::parse(text, Reader::require::<Duration>).unwrap();
    for (text, nanos) in [
        ("100ms", 100_000_000),
        ("1.5s", 1_500_000_000),
        ("0.000000001s", 1),
        ("1.50us", 1_500),
        ("500µs", 500_000),
        ("500μs", 500_000),
        ("10ns", 10),
        ("1_500 nanos", 1_500),
        ("5 millis", 5_000_000),
        ("0.5 usec", 500),
        ("1 s 1 ms", 1_001_000_000),
    ] {
        assert_eq!(read(text), Duration::from_nanos(nanos), "{text}");
    }
    for (text, seconds) in [
        ("2m", 120),
        ("2min", 120),
        ("1h30m", 5_400),
        ("1.5h", 5_400),
        ("1d", 86_400),
        ("1week", 604_800),
        ("1w", 604_800),
    ] {
        assert_eq!(read(text), secs(seconds), "{text}");
    }
}

#[test]
fn times_are_printed_short() {
    for (time, text) in [
        (Duration::ZERO, "0s"),
        (Duration::from_nanos(1), "1ns"),
        (Duration::from_nanos(1_050), "1.05us"),
        (Duration::from_micros(100_500), "100.5ms"),
        (Duration::from_millis(1_500), "1.5s"),
        (Duration::from_millis(60_500), "1m0.5s"),
        (secs(3_600), "1h"),
        (secs(30 * 86_400 + 1), "30d1s"),
    ] {
        assert_eq!(DurationText(time).to_string(), text);
    }
}

#[test]
fn rates_name_their_unit() {
    for text in [
        "3/ns", "3/us", "3/ms", "20/s", "100/min", "5000/h", "100/day", "1/week", "3/250ms", "7/3s",
    ] {
        assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
    }
}

#[test]
fn errors_say_where_and_what() {
    let units = "`ns`, `us`, `ms`, `s`, `min`, `h`, `day`";
    for (text, said, pointed) in [
        (
            "8 concurrent and\n\t2x",
            "expected a rate such as `100/min`, a concurrency such as `8 concurrent`, `throttle`, `every`, `fixed`, `window`, `sliding` or `penalty`, found `2x`".to_owned(),
            "   2x\n   ^^",
        ),
        ("100 ", "expected `/`, `per` or `concurrent`, found the end of the text".to_owned(), "  100 \n     ^"),
        (
            "8 concurrent ttl 30 and 1/s",
            format!("expected {units} or `week`, found nothing"),
            "  8 concurrent ttl 30 and 1/s\n                     ^",
        ),
        ("window 9µ/s", "expected a rate such as `100/min`, found `9µ`".to_owned(), "  window 9µ/s\n         ^^"),
        ("3/250m5x burst 2", format!("expected {units} or `week`, found `x`"), "  3/250m5x burst 2\n         ^"),
        (
            "3/fortnight",
            format!("expected {units}, `week` or a time such as `1.5s` or `1h30m`, found `fortnight`"),
            "  3/fortnight\n    ^^^^^^^^^",
        ),
        (
            "1/s burst 2 burst 3",
            "expected `refilled`, `initial`, `per`, `counting`, `and` or the end of the text, found `burst`".to_owned(),
            "  1/s burst 2 burst 3\n              ^^^^^",
        ),
        (
            "window 18446744073709551616/s",
            "`18446744073709551616` is too large; the largest number is 18446744073709551615".to_owned(),
            "  window 18446744073709551616/s\n         ^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "every 99999999999999w",
            "`99999999999999w` is too long; the longest time is 36500d".to_owned(),
            "  every 99999999999999w\n        ^^^^^^^^^^^^^^^",
        ),
        (
            "every 1s0.5ns",
            "`0.5ns` has a fraction of a nanosecond; round it to whole nanoseconds".to_owned(),
            "  every 1s0.5ns\n          ^^^^^",
        ),
        (
            "every 0.00000000000000001w",
            "`0.00000000000000001w` has a fraction of a nanosecond; round it to whole nanoseconds".to_owned(),
            "  every 0.00000000000000001w\n        ^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "penalty 10 rising 1/s",
            "expected `falling` or `half-life`, found `rising`".to_owned(),
            "  penalty 10 rising 1/s\n             ^^^^^^",
        ),
    ] {
        assert_eq!(text.parse::<Policy>().unwrap_err().to_string(), format!("{said}\n{pointed}"));
    }
}

/// Parsing that took quadratic time would take minutes here.
#[test]
fn a_text_of_half_a_megabyte_is_parsed_in_linear_time() {
    const LEN: usize = 512 * 1_024;
    let parse = |text: &str| Reader::parse_any_length(text, limit::read_policy);
    let limits = LEN / "1/s and ".len();
    let text = format!("{}1/s", "1/s and ".repeat(limits));
    let policy = parse(&text).unwrap();
    assert_eq!(policy.limits().len(), limits + 1);
    assert_eq!(policy.to_string(), text);

    assert_eq!(
        parse(&format!("every {}", "1s".repeat(LEN / 2))),
        Ok(Throttle::every(secs(LEN as u64 / 2)).into())
    );
    assert_eq!(
        parse(&format!("every {}", "1 s ".repeat(LEN / 4))),
        Ok(Throttle::every(secs(LEN as u64 / 4)).into())
    );
    assert_eq!(
        parse(&format!("8{}concurrent", " ".repeat(LEN))),
        Ok(MaxConcurrency::new(8).into())
    );
    assert_eq!(
        parse(&format!("0{}0 concurrent", "_".repeat(LEN))),
        Ok(MaxConcurrency::new(0).into())
    );
    for (text, at) in [
        ("x".repeat(LEN), 0..LEN),
        ("1".repeat(LEN), 0..LEN),
        (
            format!("8 concurrent{}x", "\n ".repeat(LEN / 2)),
            12 + LEN..13 + LEN,
        ),
        (format!("{}x", "1/s and ".repeat(limits)), LEN..LEN + 1),
    ] {
        let error = parse(&text).unwrap_err();
        assert_eq!(error.at, at);
        assert!(error.to_string().len() < 500, "{error}");
    }
}

#[test]
fn a_text_above_the_bound_is_an_error_that_has_its_length_and_the_bound() {
    let fits = format!("8 concurrent{}", " ".repeat(MAX_LEN - 12));
    reads(&fits, MaxConcurrency::new(8));
    let rate = format!("1/s{}", " ".repeat(MAX_LEN - 3));
    assert_eq!(rate.parse(), Ok(Rate::per_second(1)));

    // The bound is in the middle of the two bytes of the last character.
    let too_long = format!("{}é", &fits[..MAX_LEN - 1]);
    let error = ParseError::text_too_long(&too_long, MAX_LEN);
    assert_eq!(
        error.kind,
        ParseErrorKind::TextTooLong {
            length: MAX_LEN + 1,
            max: MAX_LEN
        }
    );
    assert_eq!(
        (error.text.as_str(), error.at.clone()),
        (&fits[..MAX_LEN - 1], MAX_LEN - 1..MAX_LEN - 1)
    );
    assert_eq!(
        error.to_string(),
        "the text is 65537 bytes long; the longest text is 65536 bytes long"
    );
    assert_eq!(too_long.parse::<Policy>(), Err(error.clone()));
    assert_eq!(too_long.parse::<Limit>(), Err(error.clone()));
    assert_eq!(too_long.parse::<Rate>(), Err(error));
}

#[test]
fn an_error_quotes_only_the_part_around_its_place() {
    let text = format!("{}{} 8 concurrent", "1/s and ".repeat(100), "x".repeat(100));
    let error = text.parse::<Policy>().unwrap_err();
    assert_eq!(&text[error.at.clone()], "x".repeat(100));
    let (word, before) = ("x".repeat(60), &"1/s and ".repeat(8)[4..]);
    let printed = error.to_string();
    assert!(
        printed.ends_with(&format!(
            "found `{word}…`\n  …{before}{word}…\n   {:60}{}",
            "",
            "^".repeat(60)
        )),
        "{printed}"
    );

    let text = format!(
        "{}brust 5 and {}",
        "8 concurrent and ".repeat(3),
        "1/s and ".repeat(100)
    );
    let printed = text.parse::<Policy>().unwrap_err().to_string();
    let line = printed.lines().nth(1).unwrap();
    assert_eq!(line, format!("  {}…", &text[..3 * 17 + 60]));
}
