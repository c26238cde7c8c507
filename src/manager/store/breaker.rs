//! Breakers, which give a store time to recover when it does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;

/// One breaker for each [part](crate::store::Store::part_of) of a store that has failed lately.
#[derive(Debug)]
pub(super) struct Breakers {
    /// By the number of the part. A part that has answered its latest call has none.
    failing: BTreeMap<u64, Breaker>,
    /// Since when a breaker has been open without a break.
    open_since: Option<Instant>,
    /// The longest pause between two probes.
    longest_pause: Duration,
}

/// Opens after some failures in a row. While it is open, calls fail at once; then one call at a time probes the part.
#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    error: StoreError,
    probe_at: Instant,
    probing: bool,
}

impl Breakers {
    const FAILURES: u32 = 2;
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    /// An open breaker that nobody has asked for so long after its pause is dropped, because a cluster may have lost that part.
    const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

    pub(super) const fn new(longest_pause: Duration) -> Self {
        Self {
            failing: BTreeMap::new(),
            open_since: None,
            longest_pause,
        }
    }

    /// Decides whether a call may be made now. Returns whether the call is a probe.
    pub(super) fn admit(
        &mut self,
        part: u64,
        now: impl FnOnce() -> Instant,
    ) -> Result<bool, StoreError> {
        let breaker = self.failing.get_mut(&part);
        match breaker.and_then(|breaker| breaker.open.as_mut()) {
            Some(open) if open.probing || now() < open.probe_at => Err(open.error.clone()),
            Some(open) => {
                open.probing = true;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Records a failed call. Returns whether it opened the first breaker.
    pub(super) fn failed(&mut self, part: u64, now: Instant, error: &StoreError) -> bool {
        let breaker = self.failing.entry(part).or_default();
        breaker.failures = breaker.failures.saturating_add(1);
        if breaker.failures < Self::FAILURES {
            return false;
        }
        let pause = Self::FIRST_PAUSE
            .saturating_mul(1 << (breaker.failures - Self::FAILURES).min(16))
            .min(self.longest_pause);
        breaker.open = Some(Open {
            error: error.clone(),
            probe_at: now + pause,
            probing: false,
        });
        let is_first = self.open_since.is_none();
        self.open_since.get_or_insert(now);
        is_first
    }

    /// Records an answered call. Returns since when a breaker has been open, if this closed the last one.
    pub(super) fn answered(&mut self, part: u64, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if self.failing.is_empty() {
            return None;
        }
        let now = now();
        self.failing.retain(|failing, breaker| {
            let is_forgotten = breaker
                .open
                .as_ref()
                .is_some_and(|open| !open.probing && open.probe_at + Self::FORGOTTEN_AFTER < now);
            *failing != part && !is_forgotten
        });
        if self.failing.values().any(|breaker| breaker.open.is_some()) {
            return None;
        }
        self.open_since.take()
    }

    /// Records that a probe ended without a result, because its future was dropped.
    pub(super) fn probe_was_dropped(&mut self, part: u64) {
        let breaker = self.failing.get_mut(&part);
        if let Some(open) = breaker.and_then(|breaker| breaker.open.as_mut()) {
            open.probing = false;
        }
    }

    /// Whether no breaker is open.
    pub(super) const fn are_closed(&self) -> bool {
        self.open_since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> StoreError {
        StoreError::Unanswered {
            store: "s".to_owned(),
            after: None,
            source: None,
        }
    }

    const fn breakers() -> Breakers {
        Breakers::new(Duration::from_secs(1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_breaker_opens_after_two_failures_and_lets_one_probe_through_after_a_pause() {
        let (mut breakers, now, error) = (breakers(), Instant::now(), error());
        assert_eq!(
            (breakers.admit(0, || now), breakers.failed(0, now, &error)),
            (Ok(false), false)
        );
        assert_eq!(
            (breakers.admit(0, || now), breakers.failed(0, now, &error)),
            (Ok(false), true)
        );
        assert_eq!(breakers.admit(0, || now), Err(error.clone()));
        let later = now + Breakers::FIRST_PAUSE;
        assert_eq!(
            (breakers.admit(0, || later), breakers.admit(0, || later)),
            (Ok(true), Err(error.clone()))
        );
        assert!(!breakers.failed(0, later, &error), "it is open already");
        assert_eq!(
            breakers.admit(0, || later + Breakers::FIRST_PAUSE),
            Err(error.clone()),
            "the pause has doubled"
        );
        let much_later = later + 2 * Breakers::FIRST_PAUSE;
        assert_eq!(breakers.admit(0, || much_later), Ok(true));
        assert!(!breakers.are_closed());
        assert_eq!(breakers.answered(0, || much_later), Some(now));
        assert!(breakers.are_closed());
        assert_eq!(
            (
                breakers.admit(0, || much_later),
                breakers.admit(0, || much_later)
            ),
            (Ok(false), Ok(false))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn its_pause_grows_to_the_longest_one() {
        let longest = Duration::from_millis(300);
        let (mut breakers, now) = (Breakers::new(longest), Instant::now());
        (0..100).for_each(|_| _ = breakers.failed(0, now, &error()));
        let sooner = now + longest - Duration::from_nanos(1);
        assert!(breakers.admit(0, || sooner).is_err());
        assert_eq!(breakers.admit(0, || now + longest), Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_dropped_does_not_keep_it_open() {
        let (mut breakers, now) = (breakers(), Instant::now());
        (0..Breakers::FAILURES).for_each(|_| _ = breakers.failed(0, now, &error()));
        let later = now + Breakers::FIRST_PAUSE;
        assert_eq!(breakers.admit(0, || later), Ok(true));
        breakers.probe_was_dropped(0);
        assert_eq!(breakers.admit(0, || later), Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn parts_fail_and_come_back_apart_from_each_other() {
        let (mut breakers, now, error) = (breakers(), Instant::now(), error());
        // Answers of the other part do not break the row.
        assert!(!breakers.failed(1, now, &error));
        assert_eq!(breakers.answered(0, || now), None);
        assert!(breakers.failed(1, now, &error));
        assert_eq!(breakers.admit(1, || now), Err(error.clone()));
        assert_eq!(breakers.admit(0, || now), Ok(false));

        // They are reported as one store.
        let later = now + Duration::from_millis(50);
        breakers.failed(2, later, &error);
        assert!(!breakers.failed(2, later, &error));
        assert_eq!(breakers.answered(1, || later), None);
        assert_eq!(breakers.answered(2, || later), Some(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_nobody_asks_any_more_is_forgotten() {
        let (mut breakers, now) = (breakers(), Instant::now());
        (0..2).for_each(|_| _ = breakers.failed(7, now, &error()));
        let then = now + Breakers::FIRST_PAUSE + Breakers::FORGOTTEN_AFTER;
        assert_eq!(breakers.answered(0, || then), None);
        let after = then + Duration::from_nanos(1);
        assert_eq!(breakers.answered(0, || after), Some(now));
        assert!(breakers.are_closed());
    }
}
