//! Tells observers of a request that waits.

use super::lock::Manager;
use super::request_options::RequestOptions;
use crate::observe::{WaitSpan, WaitStart};

impl Manager {
    /// Whether anybody is told of a request that begins to wait.
    #[inline(always)]
    pub(crate) fn tells_waits(&self) -> bool {
        self.common().observed
    }

    /// A request waits from now on. What observers keep of it is kept with the request. Called outside every lock.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_wait(&self, options: &RequestOptions) -> Option<WaitSpan> {
        let &RequestOptions { cost, timeout, priority, caller: requested_in, .. } = options;
        let limiter = self.name();
        self.state.beside().observer.open(&WaitStart { limiter, key: None, cost, priority, timeout, requested_in })
    }
}
