//! The forms of a policy: limits, `and`, tuples, lists, text.

use crate::common::{limiter, ms};
use tollgate::{
    Adapt, Align, ConfigError, FixedWindow, KeyedLimiter, Limit, Limiter, MaxConcurrency,
    ParseError, Penalty, Policy, Rate, SlidingMethod, SlidingWindow, Throttle, TokenBucket,
    TryAcquireError, UsageCarryOver,
};

const SLOTS: MaxConcurrency = MaxConcurrency::new(8);

#[test]
fn every_limit_begins_a_policy() {
    let pace = Throttle::every(ms(100));
    let minute = Rate::per_minute(5);
    let policies = [
        (pace.and(SLOTS), Limit::from(pace)),
        (SLOTS.and(SLOTS), SLOTS.into()),
        (
            FixedWindow::new(5, ms(1)).and(SLOTS),
            FixedWindow::new(5, ms(1)).into(),
        ),
        (
            TokenBucket::new(minute, 5).and(SLOTS),
            TokenBucket::new(minute, 5).into(),
        ),
        (
            SlidingWindow::log(5, ms(1)).and(SLOTS),
            SlidingWindow::log(5, ms(1)).into(),
        ),
        (
            Penalty::new(5, minute).and(SLOTS),
            Penalty::new(5, minute).into(),
        ),
        (Limit::from(pace).and(SLOTS), pace.into()),
    ];
    for (policy, first) in policies {
        assert_eq!(policy.limits(), [first, SLOTS.into()]);
    }
}

#[test]
fn a_tuple_is_a_policy_of_its_parts_in_their_order() {
    let (pace, window) = (Throttle::every(ms(100)), FixedWindow::new(5, ms(1)));
    let policy = SLOTS.and(pace);
    assert_eq!(Policy::from((SLOTS, pace)), policy);
    assert_eq!(
        Policy::from((SLOTS, pace, window)),
        policy.clone().and(window)
    );
    assert_eq!(
        Policy::from((policy.clone(), window, SLOTS, pace)),
        policy.and(window).and(SLOTS).and(pace)
    );
    assert!(Limiter::new((SLOTS, pace)).is_ok() && KeyedLimiter::<u8>::new((SLOTS, pace)).is_ok());
}

#[test]
fn a_list_of_limits_is_a_policy() -> Result<(), ParseError> {
    let limits: Vec<Limit> = vec!["8 concurrent".parse()?, "100/min".parse()?];
    let policy: Policy = limits.iter().copied().collect();
    assert_eq!(policy.limits(), limits);
    Ok(())
}

#[test]
fn a_policy_without_limits_is_refused_everywhere_and_adds_nothing() {
    let none = || Policy::from_iter([]);
    assert_eq!(none().to_string(), "");
    assert_eq!(none().and(SLOTS), SLOTS.and(none()));
    assert_eq!(Limiter::new(none()).unwrap_err(), ConfigError::NoLimits);
    assert_eq!(
        KeyedLimiter::<u8>::new(none()).unwrap_err(),
        ConfigError::NoLimits
    );
    let limiter = limiter(SLOTS);
    assert_eq!(limiter.set_policy(none()), Err(ConfigError::NoLimits));
    assert_eq!(limiter.check(1).limit(), 8);
    let keyed = KeyedLimiter::builder(SLOTS)
        .tiers(move |_| none())
        .build()
        .unwrap();
    assert_eq!(
        keyed.try_acquire(&1).unwrap_err(),
        TryAcquireError::Config(Box::new(ConfigError::NoLimits))
    );
    assert!(!keyed.check(&1, 1).is_allowed());
}

#[test]
fn text_is_accepted_wherever_a_policy_is() {
    let text = "8 concurrent and 100/min";
    let policy: Policy = text.parse().unwrap();
    assert_eq!(Policy::try_from(text), Ok(policy.clone()));
    assert_eq!(Policy::try_from(text.to_owned()), Ok(policy));
    assert_eq!(Limit::try_from("8 concurrent"), Ok(SLOTS.into()));
    assert_eq!(Rate::try_from("3/s"), Ok(Rate::per_second(3)));

    let from_config = String::from(text);
    let limiter = Limiter::new(&from_config).unwrap();
    assert_eq!(limiter.check(1).remaining(), 8);
    assert_eq!(
        Limiter::builder(from_config)
            .build()
            .unwrap()
            .check(1)
            .remaining(),
        8
    );
    assert_eq!(KeyedLimiter::new(text).unwrap().check(&1, 1).remaining(), 8);
    assert_eq!(
        KeyedLimiter::builder(text)
            .build()
            .unwrap()
            .check(&1, 1)
            .remaining(),
        8
    );
    limiter.set_policy("3 concurrent").unwrap();
    assert_eq!(limiter.check(1).remaining(), 3);
    limiter
        .set_policy_with("5 concurrent", UsageCarryOver::InProportion)
        .unwrap();
    assert_eq!(limiter.check(1).remaining(), 5);
}

#[test]
fn wrong_text_is_an_error_of_the_call_that_builds_and_prints_as_when_parsed() {
    let reported = "8 concurent".parse::<Policy>().unwrap_err();
    let error = ConfigError::from(reported.clone());
    assert_eq!(error.to_string(), reported.to_string());
    assert_eq!(
        Limiter::builder("8 concurent")
            .max_queue(1)
            .build()
            .unwrap_err(),
        error
    );
    assert_eq!(
        KeyedLimiter::<u8>::builder("8 concurent")
            .build()
            .unwrap_err(),
        error
    );
    let limiter = limiter(SLOTS);
    assert_eq!(limiter.set_policy("8 concurent"), Err(error));
    assert_eq!(limiter.check(1).limit(), 8);
}

#[test]
fn a_limit_prints_as_in_a_policy() {
    for text in [
        "throttle every 100ms burst 5",
        "8 concurrent ttl 30s",
        "window 5/s",
        "5/s burst 9",
        "sliding log 5/s",
        "penalty 5 falling 1/s",
    ] {
        let limit: Limit = text.parse().unwrap();
        let printed = match limit {
            Limit::Throttle(limit) => limit.to_string(),
            Limit::MaxConcurrency(limit) => limit.to_string(),
            Limit::FixedWindow(limit) => limit.to_string(),
            Limit::TokenBucket(limit) => limit.to_string(),
            Limit::SlidingWindow(limit) => limit.to_string(),
            Limit::Penalty(limit) => limit.to_string(),
            _ => unreachable!("another kind"),
        };
        assert_eq!((printed.as_str(), limit.to_string().as_str()), (text, text));
    }
}

#[test]
fn every_number_that_was_set_is_read_back() {
    let (second, minute) = (ms(1_000), ms(60_000));
    let penalty = Penalty::new(5, Rate::per_second(1))
        .ceiling(9)
        .ban(second)
        .escalate(minute)
        .forgive_after(ms(7))
        .ignore_denied();
    assert_eq!(
        (
            penalty.get_threshold(),
            penalty.get_ceiling(),
            penalty.get_ignore_denied()
        ),
        (5, Some(9), true)
    );
    assert_eq!(
        (penalty.get_fall(), penalty.get_half_life()),
        (Some(Rate::per_second(1)), None)
    );
    assert_eq!(
        (penalty.get_ban(), penalty.get_escalate()),
        (Some(second), Some(minute))
    );
    assert_eq!(penalty.get_forgive_after(), Some(ms(7)));
    let penalty = penalty.half_life(minute);
    assert_eq!(
        (penalty.get_fall(), penalty.get_half_life()),
        (None, Some(minute))
    );

    let adapt = Adapt::gradient()
        .between(2, 9)
        .backoff(800)
        .timeout(second)
        .tolerance(1_200)
        .smoothing(300);
    assert_eq!(
        (adapt.get_floor(), adapt.get_ceiling(), adapt.get_backoff()),
        (2, 9, 800)
    );
    assert_eq!(
        (
            adapt.get_timeout(),
            adapt.get_tolerance(),
            adapt.get_smoothing()
        ),
        (Some(second), Some(1_200), Some(300))
    );
    assert_eq!(SLOTS.adapt(adapt).get_adapt(), Some(adapt));
    assert!(
        TokenBucket::new(Rate::per_second(1), 2)
            .refill_each_period()
            .get_refill_each_period()
    );
    assert_eq!(
        SlidingWindow::counter(5, minute).method(),
        SlidingMethod::Counter
    );
    assert_eq!(FixedWindow::new(5, minute).get_align(), Align::Creation);
}
