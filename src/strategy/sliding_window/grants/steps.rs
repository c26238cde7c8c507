//! Counts the entries and chunks that are visited, for the tests.

#[cfg(not(test))]
#[inline(always)]
pub(super) fn count() {}

#[cfg(test)]
pub(super) use counted::count;
#[cfg(test)]
pub(crate) use counted::of;

#[cfg(test)]
mod counted {
    use std::cell::Cell;

    thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    pub(crate) fn of(act: impl FnOnce()) -> u64 {
        let before = STEPS.get();
        act();
        STEPS.get() - before
    }
}
