//! The messages between the scheduler of one process and a store: a call for one key, and its reply. Data, and
//! a check of replies on arrival, because a store may be written outside this crate, and be wrong.
//!
//! All instants are the store's own: nanoseconds since 1970-01-01 00:00 UTC, 0 to 2^64 - 2 (the year 2554). No clock of a process is
//! ever compared with them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::error::{ReplyFault, StoreError};
use crate::policy::{Limit, Policy};

/// Which limiter and which key a [`Call`] is for.
///
/// A store keeps one state for each pair of name and key. A name may be any text, and a key any bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// The name of the limiter.
    pub limiter: Arc<str>,
    /// The key; empty for a limiter without keys.
    pub key: Arc<[u8]>,
}

impl Call {
    /// A call without asks. Its other fields are empty, `None`, 0 or `false`, and can be set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::store::{Asks, Call, MemoryStore, Scope, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scope = Scope { limiter: "api".into(), key: b"alice".as_slice().into() };
    /// let mut call = Call::new(scope, "2 concurrent and 100/min".parse()?, 1);
    /// call.ttl = Duration::from_secs(30).as_nanos() as u64;
    /// call.asks.push(Asks::new(1, 3, [1, 1]));
    /// let reply = MemoryStore::new().call(call).await?;
    /// assert_eq!((reply.granted, reply.limits[1].remaining), (2, 98));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn new(scope: Scope, policy: Policy, holder: u64) -> Self {
        Self {
            scope,
            policy,
            holder,
            valid_until: None,
            returns: Vec::new(),
            settlements: Vec::new(),
            renewals: Vec::new(),
            ttl: 0,
            asks: Vec::new(),
            peek: None,
            polls_every: 0,
            waits_no_more: false,
            revision: 0,
            keeps_policy: false,
        }
    }
}

impl Call {
    /// How long a store keeps a policy that is [to be kept](Self::keeps_policy), in nanoseconds.
    pub(crate) const KEEPS_POLICY_FOR: u64 = 30 * 86_400 * 1_000_000_000;
}

impl Asks {
    /// Makes asks that wait. See [`Call::new`] for an example.
    #[must_use]
    pub fn new(first: u64, count: u64, costs: impl Into<Box<[u64]>>) -> Self {
        Self {
            first,
            count,
            costs: costs.into(),
            waits: true,
            ahead: false,
        }
    }
}

impl Settlement {
    /// The actual cost of work that the store granted at this instant, for each limit of the policy.
    ///
    /// ```
    /// use tollgate::store::Settlement;
    ///
    /// let settlement = Settlement::new(1_800_000_000_000_000_000, [1, 400], [1, 250]);
    /// assert_eq!(settlement.charged[1] - settlement.actual[1], 150);
    /// ```
    #[must_use]
    pub fn new(
        granted_at: u64,
        charged: impl Into<Box<[u64]>>,
        actual: impl Into<Box<[u64]>>,
    ) -> Self {
        Self {
            granted_at,
            charged: charged.into(),
            actual: actual.into(),
        }
    }

    /// A charge without a grant, for each limit of the policy. A limit is charged even if it would not admit the units.
    ///
    /// ```
    /// use tollgate::store::Settlement;
    ///
    /// assert_eq!(Settlement::charge([20]), Settlement::new(0, [0], [20]));
    /// ```
    #[must_use]
    pub fn charge(units: impl Into<Box<[u64]>>) -> Self {
        let actual = units.into();
        Self {
            granted_at: Self::NO_GRANT,
            charged: vec![0; actual.len()].into(),
            actual,
        }
    }

    const NO_GRANT: u64 = 0;

    pub(crate) fn is_charge(&self) -> bool {
        self.granted_at == Self::NO_GRANT
    }
}

impl Reply {
    /// A reply that grants nothing, denies nothing, and has reclaimed nothing. Its fields can be set. A store that decides by the
    /// [rules](crate::store::Rules) of this crate receives its replies from them.
    ///
    /// ```
    /// use tollgate::store::{LimitReading, Reply};
    ///
    /// let now = 1_800_000_000_000_000_000;
    /// let reading = LimitReading { remaining: 7, available_at: now, reset_at: now + 1_000_000_000 };
    /// let mut reply = Reply::new(now, [reading]);
    /// (reply.granted, reply.first_fence) = (3, now / 1_000);
    /// ```
    #[must_use]
    pub fn new(now: u64, limits: impl Into<Vec<LimitReading>>) -> Self {
        Self {
            now,
            granted: 0,
            first_fence: 0,
            stop: None,
            limits: limits.into(),
            lost: Vec::new(),
            reclaimed: 0,
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.limiter, self.key.escape_ascii())
    }
}

/// One call for one key. A store carries it out in one atomic step, in this order: it reclaims expired leases, then takes the
/// returns, the settlements, the renewals, and last the asks.
///
/// Each ask is granted in full or not at all: each limit of the policy is charged, or none is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Which limiter and which key.
    pub scope: Scope,
    /// The policy. The costs of a call have one number for each of its limits, in its order.
    pub policy: Policy,
    /// The holder that calls: a random number for each process and limiter. A lease is identified by its holder and its number.
    pub holder: u64,
    /// The call must not be carried out at or after this instant of the store, because its caller no longer waits for the reply.
    /// `None` if the call may be carried out at any time.
    pub valid_until: Option<u64>,
    /// The numbers of the leases that are returned. An unknown number changes nothing, so a return may be sent again.
    pub returns: Vec<u64>,
    /// The actual costs of finished work, for the limits of time.
    pub settlements: Vec<Settlement>,
    /// The numbers of the leases to renew: their TTL starts again.
    pub renewals: Vec<u64>,
    /// The TTL of leases, in nanoseconds, at least 1. It applies to the asks and the renewals. 0 if the policy has no limit of
    /// concurrency.
    pub ttl: u64,
    /// The asks in order. The store grants the longest prefix of them that all limits admit.
    pub asks: Vec<Asks>,
    /// Costs to check. The reply states whether they would be granted after this call; no limit is charged. Only in a call
    /// without asks.
    pub peek: Option<Box<[u64]>>,
    /// How often the holder asks again while it waits for a place, in nanoseconds; 0 if the store reports to it that its turn has
    /// come.
    pub polls_every: u64,
    /// Whether no request of the holder waits any more, in a call without asks: its turn passes on.
    pub waits_no_more: bool,
    /// The revision of the policy. If the state of the key has a policy of a lower revision, the store replaces it by this one, and
    /// carries the usage and the leases over. If it has a policy of a higher revision, or another one of the same revision, the
    /// call fails with [`PolicyDiffers`](crate::store::StoreError::PolicyDiffers).
    pub revision: u64,
    /// Whether the store keeps the policy of the key, with its revision, for at least 30 days from now on.
    pub keeps_policy: bool,
}

/// Consecutive asks with the same costs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Asks {
    /// The number of the lease of the first ask; the next ones have the next numbers.
    pub first: u64,
    /// The number of asks, at least 1.
    pub count: u64,
    /// The cost of each ask, for each limit; 0 for a limit that does not count it.
    pub costs: Box<[u64]>,
    /// Whether the asks wait if they are not granted. Otherwise each ask that is not granted counts as a denied attempt.
    pub waits: bool,
    /// Whether no request waits for the units yet, because they are prefetched. If they are not granted, nothing is set aside for
    /// them.
    pub ahead: bool,
}

/// The actual cost of the work of a grant, or a charge without a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settlement {
    /// When the work was granted: [`Reply::now`] of that call; 0 without a grant. A store refunds nothing for a grant from before
    /// a reset, or under another policy.
    pub granted_at: u64,
    /// What was charged, for each limit.
    pub charged: Box<[u64]>,
    /// The actual cost, for each limit.
    pub actual: Box<[u64]>,
}

/// What a limiter does with requests while the store does not answer, or sends [wrong replies](Reply#what-a-reply-must-satisfy).
///
/// ```
/// use tollgate::SharedLimiter;
/// use tollgate::store::{MemoryStore, OnStoreDown};
///
/// // A tenth of the requests by each process.
/// let fallback = OnStoreDown::Local("10/s and 2 concurrent".parse()?);
/// let limiter = SharedLimiter::builder(MemoryStore::new(), "api", "100/s and 20 concurrent").on_store_down(fallback).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreDown {
    /// Requests fail with the error of the store.
    #[default]
    Error,
    /// Requests are denied, or wait until the store answers.
    Deny,
    /// Requests are granted without any limit. Such a permit holds nothing in the store; its fence is lower than that of any
    /// grant of the store. No limit was charged for it, so [`settle`](crate::Permit::settle) changes nothing, and returns
    /// `false`.
    Allow,
    /// Local fallback: this process decides for each key by this policy, until the store answers again. The process detects that
    /// within [`probe_every`](crate::SharedLimiterBuilder::probe_every). The policy may have other limits than the one in the
    /// store. Requests wait in the same queue, and are granted by this policy or by the store, whichever is first. A request that
    /// this policy can never grant fails as it would in a [`Limiter`](crate::Limiter). Of the named units, only those that this
    /// policy counts are charged. A grant counts until this policy has forgotten it, also if the store answers in between.
    ///
    /// A permit of the local fallback holds nothing in the store, and its fence is lower than that of any grant of the store. The
    /// permit holds its place in this policy until it is dropped, even after the store answers again. This policy gives permits
    /// no TTL, and may not have one.
    Local(Policy),
}

/// The reply to a [`Call`].
///
/// # What a reply must satisfy
///
/// A limiter checks each reply when it arrives. A reply that breaks a rule of this list is a
/// [`BadReply`](crate::store::StoreError::BadReply), with a [`ReplyFault`] for each rule. The requests
/// of the call then follow the [`OnStoreDown`] of the limiter, as if the store had not answered. The grants of the reply are not
/// used: units of rates that the store has charged stay charged, and places are returned to it.
///
/// - `now` is 1 to 2^64 - 2. It may be before that of an earlier reply.
/// - `granted` is at most the sum of the [counts](Asks::count) of the asks.
/// - With a grant, `first_fence` is at least 1, and the last fence is at most 2^63.
/// - `stop` is `Some` if not all asks were granted, and `None` if all were; after a [peek](Call::peek) it may be either. Its
///   limit is an index in the policy. An instant in `stop` is after `now`.
/// - `limits` has one reading for each limit of the policy. `remaining` is at most the [capacity](crate::Limit::capacity) of its limit.
///   An `available_at` or a `reset_at` before `now` counts as `now`.
/// - `lost` has only numbers of the [renewals](Call::renewals) of the call.
///
/// The error [`TooLate`](crate::store::StoreError::TooLate) is a wrong reply to a call without [`valid_until`](Call::valid_until).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// The instant of the call.
    pub now: u64,
    /// The number of asks that were granted, from the first on.
    pub granted: u64,
    /// The fence of the first grant; the next ones have the next numbers. The fences of one key rise with every grant, over all
    /// processes and restarts of the store. A fence is at least the time of the grant in microseconds since 1970: without the
    /// store, a process gives lower fences. If nothing was granted, the field has no meaning.
    pub first_fence: u64,
    /// What stopped the first ask that was not granted, or would stop the peek. `None` if all asks were granted, or the peek
    /// would be.
    pub stop: Option<DeniedAsk>,
    /// The state of each limit of the policy after the call.
    pub limits: Vec<LimitReading>,
    /// The numbers of the renewals that came too late: these leases have been reclaimed.
    pub lost: Vec<u64>,
    /// How many expired leases of any holder this call has reclaimed.
    pub reclaimed: u64,
}

/// Why an ask was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeniedAsk {
    /// The index in the policy of the limit that stopped the ask. If several limits did, it is the one that stops the ask
    /// longest.
    pub limit: usize,
    /// Until when the ask is stopped.
    pub until: DeniedUntil,
}

/// Until when an ask is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeniedUntil {
    /// The ask can be granted at this instant, if no other request comes.
    Instant(u64),
    /// Until a lease is returned or reclaimed. The first lease is reclaimed at this instant.
    Release {
        /// When the first lease expires.
        first_expiry: u64,
    },
    /// The ask can never be granted.
    Never,
}

/// The state of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReading {
    /// The units that the limit would admit now.
    pub remaining: u64,
    /// When the limit admits a unit, if nothing more is admitted until then: [`Reply::now`] while units remain, and for a
    /// concurrency.
    pub available_at: u64,
    /// When the limit is reset, if nothing more is admitted until then; [`Reply::now`] for a concurrency.
    pub reset_at: u64,
}

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
            Some(stop) => {
                let (limit, stops) = (stop.limit, granted < asked || self.peeks);
                ensure(stops, ReplyFault::StopsNothing { limit, asked })?;
                self.check_stop(now, stop)?;
            }
        }
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
