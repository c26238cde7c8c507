use proptest::prelude::*;

use super::super::stand_in::{Fall, Penalty, SlidingMethod, SlidingWindow};
use super::*;

struct Shown<'a, T>(&'a T);

impl<T: Phrase> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f)
    }
}

fn read<T: Phrase>(text: &str) -> Result<T, ParseError> {
    let mut reader = Reader::new(text);
    let limit = T::want(&mut reader)?;
    reader.end()?;
    Ok(limit)
}

fn sliding() -> impl Strategy<Value = SlidingWindow> {
    let method = prop::sample::select(vec![SlidingMethod::Log, SlidingMethod::Counter]);
    (number(), duration(), method).prop_map(|(limit, period, method)| SlidingWindow { limit, period, method })
}

fn penalty() -> impl Strategy<Value = Penalty> {
    let fall = prop_oneof![rate().prop_map(Fall::Steps), duration().prop_map(Fall::HalfLife)];
    let times = prop::array::uniform3(prop::option::of(duration()));
    (number(), fall, prop::option::of(number()), times, any::<bool>()).prop_map(
        |(threshold, fall, ceiling, [ban, longest, forgive_after], counts_denied)| Penalty {
            threshold,
            fall,
            ceiling,
            ban,
            longest,
            forgive_after,
            counts_denied,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn sliding_windows_and_penalties_print_and_parse_to_the_same(sliding in sliding(), penalty in penalty()) {
        prop_assert_eq!(read(&Shown(&sliding).to_string()), Ok(sliding));
        prop_assert_eq!(read(&Shown(&penalty).to_string()), Ok(penalty));
    }
}

#[test]
fn sliding_windows_and_penalties_have_a_short_form() {
    for text in ["sliding log 100/min", "sliding counter 100/min"] {
        assert_eq!(Shown(&read::<SlidingWindow>(text).unwrap()).to_string(), text);
    }
    for text in ["penalty 10 falling 1/s ceiling 20", "penalty 10 half-life 30s ban 1m up to 1h forgive 2h ignoring denied"] {
        assert_eq!(Shown(&read::<Penalty>(text).unwrap()).to_string(), text);
    }
}
