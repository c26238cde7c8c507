use std::cell::Cell;
use std::fmt;

use crate::contain_panic::contain_panic;
use crate::event::LimiterEvent;

/// The callback that events go to, called outside every lock.
///
/// A thin pointer: each of a million keys has one of these, and most have no callback.
#[derive(Default)]
pub(crate) struct Observer(Option<Box<Box<Callback>>>);

type Callback = dyn Fn(&LimiterEvent) + Send + Sync;

impl Observer {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(observer: impl Fn(&LimiterEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(Box::new(observer))))
    }

    /// Calls another one after those so far. A panic in one does not keep the others from being called.
    pub(crate) fn and(self, next: impl Fn(&LimiterEvent) + Send + Sync + 'static) -> Self {
        match self.0 {
            None => Self::new(next),
            Some(first) => Self::new(move |event| {
                contain_panic(|| first(event));
                next(event);
            }),
        }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Passes an event of a part of the limiter on, which that part [emits](Observer::emit).
    pub(crate) fn pass_on(&self, event: &LimiterEvent) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }

    pub(crate) fn emit(&self, event: &LimiterEvent) {
        if let Some(observer) = &self.0 {
            tell(|| observer(event));
        }
    }
}

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
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Observer(..)" } else { "Observer(none)" })
    }
}
