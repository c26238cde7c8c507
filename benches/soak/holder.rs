//! What becomes of a permit: it is held for a while and released; or its holder panics, or forgets it.

use std::panic::panic_any;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::Permit;

use crate::reference::{Hold, Reference};
use crate::tally::{Counts, Tally, add};

/// The panic of a holder, which is not printed.
#[derive(Debug)]
pub(crate) struct OnPurpose;

/// A permit with its account. The account ends first.
#[derive(Debug)]
struct Held {
    hold: Hold,
    permit: Permit,
}

/// How permits are held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habit {
    pub(crate) longest: Duration,
    /// One of so many is forgotten; 0 if nothing would reclaim it.
    pub(crate) leaks: u32,
    /// One of so many holders panics.
    pub(crate) panics: u32,
}

fn one_of(count: u32) -> bool {
    count > 0 && fastrand::u32(..count) == 0
}

/// The times between which a permit was granted that was just received. If it states its time, that must lie within its request.
pub(crate) fn granted_between(
    permit: &Permit,
    asked: Instant,
    tally: &Tally,
) -> (Instant, Instant) {
    let received = Instant::now();
    match permit.acquired_at() {
        Some(at) if (asked..=received).contains(&at) => (at, at),
        Some(at) => {
            tally.fault(format_args!(
                "granted {at:?}, requested {asked:?}, received {received:?}: {permit:?}"
            ));
            (asked, received)
        }
        None => (asked, received),
    }
}

/// Counts a permit that was granted between two times, holds it and gives it back.
pub(crate) async fn hold(
    (permit, times, until): (Permit, (Instant, Instant), Option<Instant>),
    reference: &Arc<Reference>,
    (tally, counts): (&Tally, &Counts),
    habit: Habit,
) {
    add(&counts.granted);
    let hold = reference.enter(permit.cost(), times, until);
    let held = Held { hold, permit };
    if one_of(habit.leaks) {
        add(&counts.leaked);
        held.hold.leak();
        held.permit.forget();
    } else if one_of(habit.panics) {
        add(&counts.panicked);
        let holder = tokio::spawn(async move {
            let _held = held;
            sleep(Duration::from_millis(1)).await;
            panic_any(OnPurpose)
        });
        if !holder.await.is_err_and(|error| error.is_panic()) {
            tally.fault("a holder that panics did not");
        }
    } else {
        let time = habit.longest.mul_f64(fastrand::f64());
        if time > Duration::from_micros(500) {
            sleep(time).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}
