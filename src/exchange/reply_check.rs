//! Checks the replies of stores where they arrive: a store may be written outside this crate, and be wrong.

use std::collections::BTreeSet;

use super::{Call, LimitReading, Reply, Stop, Until};
use crate::error::{ReplyFault, StoreError};
use crate::policy::Policy;

/// What the reply to a call may say.
#[derive(Debug)]
pub(crate) struct ReplyTerms {
    policy: Policy,
    asked: u64,
    peeks: bool,
    renewals: BTreeSet<u64>,
    can_be_too_late: bool,
}

impl ReplyTerms {
    /// Instants are below 2^55 microseconds, so no store gets so far before 2^62 grants. A process that counts on from here does not
    /// overflow.
    const LAST_FENCE: u64 = 1 << 63;

    pub(crate) fn of(call: &Call) -> Self {
        Self {
            policy: call.policy.clone(),
            asked: call.asks.iter().fold(0, |sum, asks| sum.saturating_add(asks.count)),
            peeks: call.peek.is_some(),
            renewals: call.renewals.iter().copied().collect(),
            can_be_too_late: call.valid_until.is_some(),
        }
    }

    /// # Errors
    ///
    /// The first rule of [`Reply`] that the answer breaks.
    pub(crate) fn check(&self, answer: &Result<Reply, StoreError>) -> Result<(), ReplyFault> {
        match answer {
            Ok(reply) => self.check_reply(reply),
            // It would be sent again at once, and again.
            Err(StoreError::TooLate { .. }) if !self.can_be_too_late => Err(ReplyFault::NeverTooLate),
            Err(_) => Ok(()),
        }
    }

    fn check_reply(&self, reply: &Reply) -> Result<(), ReplyFault> {
        let &Reply { now, granted, first_fence, .. } = reply;
        let asked = self.asked;
        if now == 0 || now == u64::MAX {
            return Err(ReplyFault::Instant { now });
        }
        if granted > asked {
            return Err(ReplyFault::GrantsTooMany { granted, asked });
        }
        let can_rise = first_fence.checked_add(granted).is_some_and(|next| next <= Self::LAST_FENCE + 1);
        if granted > 0 && (first_fence == 0 || !can_rise) {
            return Err(ReplyFault::Fence { first_fence, granted });
        }
        match reply.stop {
            None if granted < asked => return Err(ReplyFault::NoStop { granted, asked }),
            Some(Stop { limit, .. }) if granted == asked && !self.peeks => return Err(ReplyFault::StopsNothing { limit, asked }),
            Some(stop) => self.check_stop(now, stop)?,
            None => {}
        }
        self.check_readings(&reply.limits)?;
        reply
            .lost
            .iter()
            .find(|number| !self.renewals.contains(number))
            .map_or(Ok(()), |number| Err(ReplyFault::NotRenewed { number: *number }))
    }

    fn check_stop(&self, now: u64, Stop { limit, until }: Stop) -> Result<(), ReplyFault> {
        let limits = self.policy.limits().len();
        if limit >= limits {
            return Err(ReplyFault::UnknownLimit { limit, limits });
        }
        match until {
            // The same would be asked again at once, and again.
            Until::Instant(until) | Until::Release { first_expiry: until } if until <= now => {
                Err(ReplyFault::StopIsOver { until, now })
            }
            _ => Ok(()),
        }
    }

    fn check_readings(&self, readings: &[LimitReading]) -> Result<(), ReplyFault> {
        let limits = self.policy.limits();
        if readings.len() != limits.len() {
            return Err(ReplyFault::Readings { found: readings.len(), limits: limits.len() });
        }
        for (limit, (&LimitReading { remaining, .. }, of)) in readings.iter().zip(limits).enumerate() {
            let capacity = of.capacity();
            if remaining > capacity {
                return Err(ReplyFault::Remaining { limit, remaining, capacity });
            }
        }
        Ok(())
    }
}

/// Checks the mark of the next page of keys. If it were that of this page, a caller that reads all pages would never finish.
pub(crate) fn check_next_page(from: Option<&[u8]>, next: Option<&[u8]>) -> Result<(), ReplyFault> {
    if next.is_some() && next == from { Err(ReplyFault::PageRepeats) } else { Ok(()) }
}

/// Checks how many keys were purged.
pub(crate) fn check_purged(purged: u64, max: usize) -> Result<(), ReplyFault> {
    if purged > max as u64 { Err(ReplyFault::PurgedTooMany { purged, max }) } else { Ok(()) }
}
