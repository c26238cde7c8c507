//! How many retries a client may afford.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bounds how many requests an [`OutboundLayer`](super::OutboundLayer::retry) sends again, so that retries do not add to the load of an
/// upstream that is down. Clones share the budget.
///
/// Each successful request pays for a part of a retry, and each request, successful or not, for a smaller part, which is the floor. By
/// default a hundred successes pay for 20 retries, and a hundred requests without a success for 10. Up to ten retries are saved, and a
/// new budget has that many. So of `n` requests to an upstream that denies all of them, at most `n / 10 + 10` are sent again. Without
/// the budget, each of three layers of services that retry three times would multiply the load by four.
///
/// A request whose retry the budget cannot pay for is not sent again: its caller gets the denial. The budget reads no clock.
///
/// The rule is that of the retry throttling of gRPC
/// ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#throttling-retry-attempts-and-hedged-rpcs)) and of the
/// budget of Finagle, with a floor for each request instead of one for each second.
///
/// ```
/// use tollgate::layers::{OutboundLayer, RetryBudget};
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let budget = RetryBudget::new().percent_of_successes(50).percent_of_requests(0);
/// let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// let reads = OutboundLayer::new(limiter.clone()).retry(3).retry_budget(budget.clone());
/// let writes = OutboundLayer::new(limiter).retry(1).retry_budget(budget); // both draw on the same budget
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct RetryBudget {
    /// In hundredths of a retry.
    saved: Arc<AtomicU64>,
    most: u64,
    /// In hundredths of a retry.
    per_success: u64,
    per_request: u64,
}

const RETRY: u64 = 100;

impl RetryBudget {
    /// A budget with the default shares. See the [type's example](Self).
    #[must_use]
    pub fn new() -> Self {
        Self {
            saved: Arc::new(AtomicU64::new(10 * RETRY)),
            most: 10 * RETRY,
            per_success: 20,
            per_request: 10,
        }
    }

    /// A budget that pays for every retry.
    ///
    /// ```
    /// use tollgate::layers::{OutboundLayer, RetryBudget};
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let layer = OutboundLayer::new(limiter).retry(2).retry_budget(RetryBudget::unlimited()); // up to 3 attempts for each request
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new()
            .save_up_to(u64::MAX)
            .percent_of_requests(u32::MAX)
    }

    setters! {
        /// Sets how many retries a hundred successful requests pay for. Defaults to 20. The first attempt of a request and its retries
        /// count once.
        pub percent_of_successes(percent: u32) => per_success = percent.into();

        /// Sets how many retries a hundred requests pay for at least, although none succeeds. Defaults to 10.
        pub percent_of_requests(percent: u32) => per_request = percent.into();
    }

    /// Sets how many retries are saved at most, and saves as many: 0 to 2^64 - 1. Defaults to 10. With 0, nothing is sent again. The
    /// budget no longer shares anything with its former clones.
    ///
    /// ```
    /// use tollgate::layers::RetryBudget;
    ///
    /// let budget = RetryBudget::new().save_up_to(100);
    /// ```
    #[must_use]
    pub fn save_up_to(mut self, retries: u64) -> Self {
        self.most = retries.saturating_mul(RETRY);
        self.saved = Arc::new(AtomicU64::new(self.most));
        self
    }

    pub(super) fn note_request(&self) {
        self.save(self.per_request);
    }

    /// Called after [`RetryBudget::note_request`], whose part counts.
    pub(super) fn note_success(&self) {
        self.save(self.per_success.saturating_sub(self.per_request));
    }

    fn save(&self, hundredths: u64) {
        let add = |saved: u64| Some(saved.saturating_add(hundredths).min(self.most));
        let _saved = self.saved.fetch_update(Relaxed, Relaxed, add);
    }

    /// A retry that was paid for does not take place.
    pub(super) fn give_back(&self) {
        self.save(RETRY);
    }

    /// Pays for a retry. `false`, without a change, if there is not enough.
    pub(super) fn pay(&self) -> bool {
        let take = |saved: u64| saved.checked_sub(RETRY);
        self.saved.fetch_update(Relaxed, Relaxed, take).is_ok()
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}
