//! The priority of a request in the queue.

use crate::error::PriorityError;

/// The priority of a request in the queue: 0 to 9. A higher number is served first; within one priority, requests are served in
/// order of arrival (FIFO), or as their [flows](crate::PermitRequest::flow) share.
///
/// Priorities are strict: while a request of a higher priority waits, no request of a lower one is granted.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency, Priority};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(1))?;
/// let in_flight = limiter.acquire().await?;
/// let mut normal = tokio_test::task::spawn(limiter.acquire());
/// let mut urgent = tokio_test::task::spawn(limiter.request().priority(Priority::HIGH).acquire());
/// assert!(normal.poll().is_pending() && urgent.poll().is_pending());
/// drop(in_flight);
/// assert!(!normal.is_woken() && urgent.is_woken());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// 0: served when no other request waits.
    pub const LOWEST: Self = Self(0);
    /// 2.
    pub const LOW: Self = Self(2);
    /// 5, the default.
    pub const NORMAL: Self = Self(5);
    /// 7.
    pub const HIGH: Self = Self(7);
    /// 9.
    pub const HIGHEST: Self = Self(9);

    pub(crate) const LEVELS: usize = Self::HIGHEST.0 as usize + 1;

    /// The priority of a level, 0 to 9.
    ///
    /// # Errors
    ///
    /// [`PriorityError`] for a level above 9.
    ///
    /// ```
    /// use tollgate::Priority;
    ///
    /// assert_eq!(Priority::new(5)?, Priority::NORMAL);
    /// assert_eq!(Priority::new(10).unwrap_err().level, 10);
    /// # Ok::<(), tollgate::PriorityError>(())
    /// ```
    pub const fn new(level: u8) -> Result<Self, PriorityError> {
        if level <= Self::HIGHEST.0 {
            Ok(Self(level))
        } else {
            Err(PriorityError {
                level,
                max: Self::HIGHEST.0,
            })
        }
    }

    /// The level, 0 to 9. See [`Priority::new`] for an example.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}
