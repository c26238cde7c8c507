//! A ledger as bytes, for stores that keep bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the version of this form: 2 |
//! | 8 | a checksum of all that follows: FNV-1a, little-endian |
//! | n | the text of the policy |
//! | n | the latest instant, the time from the start of the limits to it, the fence |
//! | n | the number of limits, then the leases by holder: number, time from the latest instant to the expiry, costs |
//! | n | the state of each limit: two words, or the grants of a log that still count; nothing of a concurrency, which follows from the leases |
//!
//! Numbers are LEB128: seven bits a byte, the low ones first. A text has its length before it.
//!
//! The [past grants](crate::strategy::RefundBound) of a pace, which bound its refunds, are not among them. So a ledger that was read
//! refunds nothing of its earlier grants to a pace: too little, which never exceeds the limit.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{Lease, LeaseId, Ledger};
use crate::core::gate::limit_state::LimitState;
use crate::core::gate::plan::Plan;
use crate::strategy::{Grants, Moment};

const VERSION: u8 = 2;
const HEAD: usize = 9;

/// No ledger has written these bytes, or one of another version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl Ledger {
    /// As bytes. `text` is the policy's.
    pub(crate) fn encode(&self, text: &str) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        put(&mut bytes, text.len() as u64);
        bytes.extend_from_slice(text.as_bytes());
        put(&mut bytes, self.latest.nanos());
        put(&mut bytes, self.latest.since(self.reset_at));
        put(&mut bytes, self.fence);
        self.put_leases(&mut bytes);
        self.limits
            .iter()
            .for_each(|limit| put_limit(&mut bytes, limit, self.latest));
        let checksum = checksum(&bytes[HEAD..]);
        bytes[0] = VERSION;
        bytes[1..HEAD].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From bytes, with the plan of a policy and its text. If the bytes were written with another policy, the text of that policy is
    /// returned too, and the ledger has [replaced](Ledger::replace_policy) it.
    pub(crate) fn decode(
        plan: &Arc<Plan>,
        text: &str,
        now: Moment,
        bytes: &[u8],
    ) -> Result<(Self, Option<String>), Damaged> {
        let (head, mut rest) = bytes.split_at_checked(HEAD).ok_or(Damaged)?;
        if head[0] != VERSION || head[1..] != checksum(rest).to_le_bytes() {
            return Err(Damaged);
        }
        let bytes = &mut rest;
        let length = usize::try_from(take(bytes)?).map_err(|_| Damaged)?;
        let (stored, after) = bytes.split_at_checked(length).ok_or(Damaged)?;
        *bytes = after;
        let mut ledger = Self::new(Arc::clone(plan), Moment::from_nanos(take(bytes)?));
        ledger.reset_at = Moment::from_nanos(
            ledger
                .latest
                .nanos()
                .checked_sub(take(bytes)?)
                .ok_or(Damaged)?,
        );
        ledger.fence = take(bytes)?;
        ledger.take_leases(bytes)?;
        if ledger.latest > Moment::LAST {
            return Err(Damaged);
        }
        if stored != text.as_bytes() {
            ledger.replace_policy(Arc::clone(plan), now);
            return Ok((
                ledger,
                Some(String::from_utf8(stored.to_vec()).map_err(|_| Damaged)?),
            ));
        }
        for limit in &mut ledger.limits {
            take_limit(bytes, limit)?;
        }
        ledger.occupy_places()?;
        if bytes.is_empty() {
            Ok((ledger, None))
        } else {
            Err(Damaged)
        }
    }

    fn put_leases(&self, bytes: &mut Vec<u8>) {
        let leases: Vec<_> = self.leases.iter().collect();
        let by_holder = || leases.chunk_by(|((one, _), _), ((next, _), _)| one == next);
        put(bytes, self.limits.len() as u64);
        put(bytes, by_holder().count() as u64);
        for leases in by_holder() {
            put(bytes, leases[0].0.0);
            put(bytes, leases.len() as u64);
            let mut before = 0;
            for ((_, number), lease) in leases {
                put(bytes, number - before);
                before = *number;
                put(bytes, lease.expires_at.since(self.latest));
                lease.costs.iter().for_each(|cost| put(bytes, *cost));
            }
        }
    }

    fn take_leases(&mut self, bytes: &mut &[u8]) -> Result<(), Damaged> {
        let limits = take(bytes)?;
        let mut leases: Vec<(LeaseId, Lease)> = Vec::new();
        let mut costs = Vec::new();
        for _ in 0..take(bytes)? {
            let holder = take(bytes)?;
            let mut number = 0_u64;
            for _ in 0..take(bytes)? {
                number = number.checked_add(take(bytes)?).ok_or(Damaged)?;
                let expires_at = self.latest.plus(take(bytes)?);
                costs.clear();
                for _ in 0..limits {
                    costs.push(take(bytes)?);
                }
                let (id, last) = ((holder, number), leases.last());
                if last.is_some_and(|(last, _)| id <= *last) {
                    return Err(Damaged);
                }
                let same = last
                    .filter(|(_, last)| *last.costs == costs)
                    .map(|(_, last)| Arc::clone(&last.costs));
                let costs = same.unwrap_or_else(|| costs.as_slice().into());
                leases.push((id, Lease { expires_at, costs }));
            }
        }
        self.by_expiry = leases
            .iter()
            .map(|(id, lease)| (lease.expires_at, *id))
            .collect();
        self.leases = leases.into_iter().collect();
        Ok(())
    }

    /// Occupies the places that the leases hold.
    fn occupy_places(&mut self) -> Result<(), Damaged> {
        for lease in self.leases.values() {
            if lease.costs.len() != self.limits.len() {
                return Err(Damaged);
            }
            for (limit, cost) in self.limits.iter_mut().zip(&*lease.costs) {
                match limit {
                    LimitState::Places(places) => {
                        places.in_use = places.in_use.checked_add(*cost).ok_or(Damaged)?;
                    }
                    _ if *cost == 0 => {}
                    _ => return Err(Damaged),
                }
            }
        }
        Ok(())
    }
}

fn put_limit(bytes: &mut Vec<u8>, limit: &LimitState, now: Moment) {
    match limit {
        LimitState::Pace(_, words, _) | LimitState::Rule(_, words) => {
            words.iter().for_each(|word| put(bytes, *word));
        }
        LimitState::Log(rule, log) => {
            let grants = rule.counting(log, now);
            put(bytes, grants.len() as u64);
            let mut before = Moment::START;
            for (at, units) in grants {
                put(bytes, at.since(before));
                before = at;
                put(bytes, units);
            }
        }
        LimitState::Places(..) => {}
    }
}

fn take_limit(bytes: &mut &[u8], limit: &mut LimitState) -> Result<(), Damaged> {
    match limit {
        LimitState::Pace(_, words, _) | LimitState::Rule(_, words) => {
            *words = [take(bytes)?, take(bytes)?];
        }
        LimitState::Log(_, log) => {
            let (mut at, mut grants) = (0_u64, Vec::new());
            for _ in 0..take(bytes)? {
                at = at.checked_add(take(bytes)?).ok_or(Damaged)?;
                grants.push((Moment::from_nanos(at), take(bytes)?));
            }
            **log = Grants::new(grants).ok_or(Damaged)?;
        }
        LimitState::Places(..) => {}
    }
    Ok(())
}

/// Appends a number.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number from the front.
fn take(bytes: &mut &[u8]) -> Result<u64, Damaged> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Damaged)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return if number >> shift == bits {
                Ok(number)
            } else {
                Err(Damaged)
            };
        }
    }
    Err(Damaged)
}

/// FNV-1a of 64 bits (Fowler, Noll, Vo): it finds accidents.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
