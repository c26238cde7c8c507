use std::cell::Cell;

use crate::contain_panic::contain_panic;

/// Calls an observer. One that calls a limiter may cause an event, at which it is called again, and so on: without an end, it would
/// overflow the stack.
pub(crate) fn tell(observer: impl FnOnce()) {
    /// One within another. An observer that causes n events at each one is called n + 1 times, not for ever.
    const DEEPEST: u8 = 2;
    thread_local! {
        static DEPTH: Cell<u8> = const { Cell::new(0) };
    }
    let depth = DEPTH.get();
    if depth < DEEPEST {
        DEPTH.set(depth + 1);
        contain_panic(observer);
        DEPTH.set(depth);
    } else {
        contain_panic(|| drop(observer));
    }
}
