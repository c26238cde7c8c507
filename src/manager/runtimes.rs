use tokio::runtime;

/// The runtimes that a manager has had a driver in. Most limiters have one; a limiter in a `static` may see several, and the first
/// need not be the one that is run.
#[derive(Debug, Default)]
pub(super) struct Runtimes(Vec<(runtime::Id, Driver)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Runs,
    /// The runtime has ended, or has no timers.
    Left,
}

impl Runtimes {
    /// How many have a driver.
    #[inline]
    pub(super) fn drivers(&self) -> usize {
        self.0.iter().filter(|(_, driver)| *driver == Driver::Runs).count()
    }

    /// Whether the runtime has a driver, or can have none any more.
    pub(super) fn knows(&self, runtime: runtime::Id) -> bool {
        self.0.iter().any(|(known, _)| *known == runtime)
    }

    /// A driver is to be started in the runtime.
    pub(super) fn enter(&mut self, runtime: runtime::Id) {
        self.0.reserve_exact(1); // each of a million keys may have one
        self.0.push((runtime, Driver::Runs));
    }

    /// The driver has left the runtime.
    pub(super) fn leave(&mut self, runtime: runtime::Id) {
        /// Enough that a future which is still polled in an ended runtime finds it here; not so many that a limiter grows.
        const REMEMBERED: usize = 32;
        self.0.retain(|(known, _)| *known != runtime);
        if self.0.len() - self.drivers() == REMEMBERED
            && let Some(oldest) = self.0.iter().position(|(_, driver)| *driver == Driver::Left)
        {
            self.0.remove(oldest);
        }
        self.0.push((runtime, Driver::Left));
    }
}
