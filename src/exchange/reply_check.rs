//! Checks the replies of stores on arrival, because a store may be written outside this crate, and be wrong.

use std::collections::BTreeSet;

use super::{Call, DeniedAsk, DeniedUntil, LimitReading, Reply};
use crate::error::{ReplyFault, StoreError};
use crate::policy::{Limit, Policy};

/// What a valid reply to a call may contain.
#[derive(Debug)]
pub(crate) struct ReplyTerms {
    policy: Policy,
    asked: u64,
    peeks: bool,
    renewals: BTreeSet<u64>,
    can_be_too_late: bool,
}

impl ReplyTerms {
    /// The highest valid fence. Instants are below 2^55 microseconds, so no store reaches this fence before 2^62 grants. A
    /// process that counts on from it does not overflow.
    const LAST_FENCE: u64 = 1 << 63;

    pub(crate) fn of(call: &Call) -> Self {
        Self {
            policy: call.policy.clone(),
            asked: call
                .asks
                .iter()
                .fold(0, |sum, asks| sum.saturating_add(asks.count)),
            peeks: call.peek.is_some(),
            renewals: call.renewals.iter().copied().collect(),
            can_be_too_late: call.valid_until.is_some(),
        }
    }

    /// # Errors
    ///
    /// Returns the first rule of [`Reply`] that the answer breaks.
    pub(crate) fn check(&self, answer: &Result<Reply, StoreError>) -> Result<(), ReplyFault> {
        match answer {
            Ok(reply) => self.check_reply(reply),
            // The limiter would send the call again at once, without end.
            Err(StoreError::TooLate { .. }) if !self.can_be_too_late => {
                Err(ReplyFault::NeverTooLate)
            }
            Err(_) => Ok(()),
        }
    }

    fn check_reply(&self, reply: &Reply) -> Result<(), ReplyFault> {
        let &Reply {
            now,
            granted,
            first_fence,
            stop,
            ..
        } = reply;
        let asked = self.asked;
        ensure(now != 0 && now != u64::MAX, ReplyFault::Instant { now })?;
        ensure(
            granted <= asked,
            ReplyFault::GrantsTooMany { granted, asked },
        )?;
        let next_fence = first_fence.checked_add(granted);
        let can_rise = next_fence.is_some_and(|next| next <= Self::LAST_FENCE + 1);
        let fault = ReplyFault::Fence {
            first_fence,
            granted,
        };
        ensure(granted == 0 || first_fence > 0 && can_rise, fault)?;
        match stop {
            None => ensure(granted == asked, ReplyFault::NoStop { granted, asked })?,
            Some(DeniedAsk { limit, .. }) => {
                let stops = granted < asked || self.peeks;
                ensure(stops, ReplyFault::StopsNothing { limit, asked })?;
            }
        }
        stop.map_or(Ok(()), |stop| self.check_stop(now, stop))?;
        self.check_readings(&reply.limits)?;
        reply.lost.iter().try_for_each(|&number| {
            let fault = ReplyFault::NotRenewed { number };
            ensure(self.renewals.contains(&number), fault)
        })
    }

    fn check_stop(&self, now: u64, stop: DeniedAsk) -> Result<(), ReplyFault> {
        let DeniedAsk { limit, until } = stop;
        let limits = self.policy.limits().len();
        ensure(limit < limits, ReplyFault::UnknownLimit { limit, limits })?;
        match until {
            // The limiter would ask for the same again at once, without end.
            DeniedUntil::Instant(until)
            | DeniedUntil::Release {
                first_expiry: until,
            } => ensure(until > now, ReplyFault::StopIsOver { until, now }),
            DeniedUntil::Never => Ok(()),
        }
    }

    fn check_readings(&self, readings: &[LimitReading]) -> Result<(), ReplyFault> {
        let (found, limits) = (readings.len(), self.policy.limits().len());
        ensure(found == limits, ReplyFault::Readings { found, limits })?;
        let capacities = self.policy.limits().iter().map(Limit::capacity);
        for (limit, (reading, capacity)) in readings.iter().zip(capacities).enumerate() {
            let remaining = reading.remaining;
            let fault = ReplyFault::Remaining {
                limit,
                remaining,
                capacity,
            };
            ensure(remaining <= capacity, fault)?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, fault: ReplyFault) -> Result<(), ReplyFault> {
    if holds { Ok(()) } else { Err(fault) }
}

/// Checks the mark of the next page of keys. If it were the mark of this page, a caller that reads all pages would never finish.
pub(crate) fn check_next_page(from: Option<&[u8]>, next: Option<&[u8]>) -> Result<(), ReplyFault> {
    ensure(next.is_none() || next != from, ReplyFault::PageRepeats)
}

/// Checks how many keys were purged.
pub(crate) fn check_purged(purged: u64, max: usize) -> Result<(), ReplyFault> {
    ensure(
        purged <= max as u64,
        ReplyFault::PurgedTooMany { purged, max },
    )
}
