//! Several managers charged at one moment.

use std::sync::Arc;

use super::answer::TimedGrant;
use super::lock::{Locked, Manager};
use super::state::State;
use crate::core::costs::Costs;
use crate::core::effects::Effects;
use crate::core::request::Caller;
use crate::error::TryAcquireError;
use crate::strategy::Moment;

/// Charges the costs to each manager, or to none. The error names the first that denies; if the caller `waits` next, that is not
/// counted as a denial.
///
/// All are locked at once, in the order of their addresses, so that two such calls never wait for each other. No manager may be
/// listed twice.
pub(crate) fn try_acquire_all(
    managers: &[&Arc<Manager>],
    costs: Costs<'_>,
    waits: bool,
    caller: Caller,
) -> Result<Vec<TimedGrant>, (usize, TryAcquireError)> {
    let (mut states, mut nows) = lock_all(managers);
    if states.iter().zip(&nows).any(|(state, now)| state.schedule.next_wake() <= *now) {
        drop(states);
        // What is due may take several batches, and between them wakers run: no other lock may be held.
        managers.iter().for_each(|manager| drop(manager.lock_and_advance()));
        (states, nows) = lock_all(managers);
    }
    let mut effects: Vec<Effects> = managers.iter().map(|_| Effects::default()).collect();

    let denials = (0..managers.len()).try_for_each(|index| {
        states[index]
            .schedule
            .would_acquire(nows[index], costs, waits, caller, &mut effects[index])
            .map_err(|error| (index, error))
    });
    let result = denials.and_then(|()| {
        let take = |index: usize| {
            let State { schedule, clock, .. } = &mut *states[index];
            let taken = schedule.try_acquire(nows[index], costs, caller, &mut effects[index]);
            taken.map(|grant| TimedGrant { grant, origin: clock.origin() }).map_err(|error| (index, error))
        };
        (0..managers.len()).map(take).collect()
    });

    // Wakers run foreign code, so they are woken after the last lock is released.
    let unlocked: Vec<_> = states.into_iter().zip(&mut effects).map(|(state, effects)| Manager::unlock(state, effects)).collect();
    for ((manager, timer_action), mut effects) in managers.iter().zip(unlocked).zip(effects) {
        manager.apply(timer_action, &mut effects);
    }
    result
}

/// All locks, taken in the order of the managers' addresses, and the present moment of each.
fn lock_all<'a>(managers: &[&'a Arc<Manager>]) -> (Vec<Locked<'a>>, Vec<Moment>) {
    let mut order: Vec<usize> = (0..managers.len()).collect();
    order.sort_unstable_by_key(|&index| Arc::as_ptr(managers[index]));
    let mut states: Vec<Option<Locked<'_>>> = managers.iter().map(|_| None).collect();
    for index in order {
        states[index] = Some(managers[index].lock());
    }
    let mut states: Vec<_> = states.into_iter().flatten().collect();
    let nows = states.iter_mut().map(|state| state.now()).collect();
    (states, nows)
}
