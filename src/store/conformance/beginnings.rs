//! Claims on keys that have been granted nothing yet. A bucket that starts low fills from the first call on, whatever the reply
//! to that call was. Nothing else begins before the first grant.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fault::{Outcome, holds, pause, same, soon};
use super::holder::{Holder, MINUTE, nanos, policy};
use crate::exchange::{DeniedAsk, DeniedUntil, LimitReading, Reply};
use crate::store::Store;

const TENTH: u64 = 100_000_000;
const DAY: u64 = 24 * 3_600 * 1_000_000_000;

/// A bucket that starts empty.
struct Bucket {
    policy: &'static str,
    /// When the bucket has its first unit, if it was new at this instant.
    first_unit_at: fn(u64) -> u64,
    /// When the bucket has three units, which is its capacity.
    full_at: fn(u64) -> u64,
}

const BUCKETS: [Bucket; 2] = [
    Bucket {
        policy: "10/s burst 3 initial 0",
        first_unit_at: |new_at| new_at + TENTH,
        full_at: |new_at| new_at + 3 * TENTH,
    },
    Bucket {
        policy: "1/100ms burst 3 refilled each period initial 0",
        first_unit_at: |new_at| (new_at / TENTH + 1) * TENTH,
        full_at: |new_at| (new_at / TENTH + 3) * TENTH,
    },
];

pub(super) async fn a_bucket_that_starts_low_refills_for_a_key_that_was_only_denied(
    store: &Arc<dyn Store>,
) -> Outcome {
    for bucket in BUCKETS {
        for (cost, at) in [(1, bucket.first_unit_at), (3, bucket.full_at)] {
            for waits in [true, false] {
                let mut holder = Holder::new(store, bucket.policy)?;
                let new_at = holder.try_ask(1, &[cost], waits).await?.now;
                let what = format!("an ask for {cost} of the key that was only denied");
                loop {
                    let reply = holder.try_ask(1, &[cost], waits).await?;
                    if is_admitted(&what, bucket.policy, &reply, at(new_at))? {
                        same(what, reply.granted, 1)?;
                        break;
                    }
                    pause().await;
                }
            }
        }
    }
    Ok(())
}

pub(super) async fn a_bucket_that_starts_low_refills_for_a_key_that_was_only_peeked_at(
    store: &Arc<dyn Store>,
) -> Outcome {
    for bucket in BUCKETS {
        let mut holder = Holder::new(store, bucket.policy)?;
        let full_at = (bucket.full_at)(holder.peek(&[3]).await?.now);
        while !is_admitted(
            "a peek of the key that was only peeked at",
            bucket.policy,
            &holder.peek(&[3]).await?,
            full_at,
        )? {
            pause().await;
        }
        same(
            "the grants of an ask after a peek was admitted",
            holder.ask(1, &[3]).await?.granted,
            1,
        )?;
    }
    Ok(())
}

pub(super) async fn a_bucket_that_starts_low_refills_for_a_key_that_was_only_listed(
    store: &Arc<dyn Store>,
) -> Outcome {
    for bucket in BUCKETS {
        let mut holder = Holder::new(store, bucket.policy)?;
        let first = holder.send(|_| ()).await?;
        let (first_unit_at, full_at) = (
            (bucket.first_unit_at)(first.now),
            (bucket.full_at)(first.now),
        );
        loop {
            let reply = holder.send(|_| ()).await?;
            let LimitReading {
                remaining,
                available_at,
                reset_at,
            } = reply.limits[0];
            let what = format!(
                "when the limit of the key that was only listed has a unit, and is reset, under `{}`",
                bucket.policy
            );
            same(
                what,
                (available_at, reset_at),
                (first_unit_at.max(reply.now), full_at.max(reply.now)),
            )?;
            if reply.now >= full_at {
                same("the units left in a full bucket of 3", remaining, 3)?;
                break;
            }
            pause().await;
        }
        same(
            "what is granted then",
            holder.ask(1, &[3]).await?.granted,
            1,
        )?;
    }
    Ok(())
}

pub(super) async fn a_bucket_that_starts_low_refills_under_another_policy(
    store: &Arc<dyn Store>,
) -> Outcome {
    for bucket in BUCKETS {
        let mut holder = Holder::new(store, "5 concurrent ttl 1m")?;
        let before = holder.ask(5, &[1]).await?;
        holder.call.policy = policy(bucket.policy)?;
        holder.call.revision = 1;
        let first = holder.ask(1, &[3]).await?;
        // A store may replace the policy a moment before it carries out the call.
        let expected = (bucket.full_at)(before.now)..=(bucket.full_at)(first.now);
        let stopped_until = match first.stop.map(|stop| stop.until) {
            Some(DeniedUntil::Instant(until)) => until,
            _ => 0,
        };
        holds(
            expected.contains(&stopped_until),
            "the end of the wait of the call that replaces the policy",
            format!("{expected:?}"),
            first.stop,
        )?;
        let full_at = stopped_until;
        while !is_admitted(
            "an ask under the new policy",
            bucket.policy,
            &holder.ask(1, &[3]).await?,
            full_at,
        )? {
            pause().await;
        }
    }
    Ok(())
}

pub(super) async fn a_key_that_starts_low_is_kept_until_it_is_full(
    store: &Arc<dyn Store>,
) -> Outcome {
    for bucket in BUCKETS {
        let mut holder = Holder::new(store, bucket.policy)?;
        let full_at = (bucket.full_at)(holder.ask(1, &[1]).await?.now);
        let keys = holder.keys().await?;
        if holder.peek(&[1]).await?.now < full_at {
            same(
                "the keys while the bucket of one that was denied fills",
                keys,
                [b"key".to_vec()].into(),
            )?;
        }
        holder
            .has_keys_soon(0, "no keys some time after it was full")
            .await?;
    }
    Ok(())
}

pub(super) async fn a_key_that_is_as_new_is_not_kept(store: &Arc<dyn Store>) -> Outcome {
    let policy = "5/h and 5/h burst 5 refilled each period initial 5 and window 5/h and window 5/h wall clock and window 5/h from first \
                  grant and sliding log 5/h and sliding counter 5/h and penalty 5 falling 1/h and 5 concurrent ttl 1m";
    let holder = Holder::new(store, policy)?;
    holder.of_key(b"denied").ask(1, &[6; 9]).await?;
    holder.of_key(b"peeked at").peek(&[1; 9]).await?;
    holder.of_key(b"listed").send(|_| ()).await?;
    same(
        "the keys after a denial, a peek and a reading of limits that are as new",
        holder.keys().await?,
        BTreeSet::new(),
    )
}

pub(super) async fn a_window_from_the_first_grant_opens_with_a_grant(
    store: &Arc<dyn Store>,
) -> Outcome {
    let mut holder = Holder::new(
        store,
        "window 5/100d from first grant and 10/s burst 1 initial 0",
    )?;
    soon("a grant of a bucket that was empty at first", async {
        loop {
            let reply = holder.ask(1, &[1, 1]).await?;
            let LimitReading {
                remaining,
                reset_at,
                ..
            } = reply.limits[0];
            if reply.granted > 0 {
                let expected = (4, reply.now + 100 * DAY);
                return same(
                    "the units left of the window that a grant has opened, and its end",
                    (remaining, reset_at),
                    expected,
                );
            }
            same(
                "the units left of a window that was not opened, and its end",
                (remaining, reset_at),
                (5, reply.now),
            )?;
            pause().await;
        }
    })
    .await
}

pub(super) async fn a_window_that_no_grant_opens_ends_at_a_multiple_of_its_period(
    store: &Arc<dyn Store>,
) -> Outcome {
    let mut holder = Holder::new(
        store,
        "window 5/100d and window 5/100d wall clock and 10/s burst 1 initial 0",
    )?;
    soon("a grant of a bucket that was empty at first", async {
        loop {
            let reply = holder.ask(1, &[1, 1, 1]).await?;
            if reply.granted > 0 {
                let ends_at = (reply.now / (100 * DAY) + 1) * 100 * DAY;
                return same(
                    "when the windows are reset",
                    [0, 1].map(|limit| reply.limits[limit].reset_at),
                    [ends_at; 2],
                );
            }
            pause().await;
        }
    })
    .await
}

pub(super) async fn a_penalty_rises_for_a_key_that_was_only_denied(
    store: &Arc<dyn Store>,
) -> Outcome {
    let until = |minutes: u64, now: u64| {
        Some(DeniedAsk {
            limit: 0,
            until: DeniedUntil::Instant(now + minutes * nanos(MINUTE)),
        })
    };
    let mut raised = Holder::new(store, "penalty 2 falling 1/min")?;
    let denied = raised.try_ask(1, &[3], false).await?;
    same(
        "the stop of an ask for 3 of 2",
        (denied.granted, denied.stop),
        (
            0,
            Some(DeniedAsk {
                limit: 0,
                until: DeniedUntil::Never,
            }),
        ),
    )?;
    same(
        "the stop of a peek when 3 of 2 were denied",
        raised.peek(&[1]).await?.stop,
        until(2, denied.now),
    )?;
    let mut banned = Holder::new(store, "penalty 2 falling 1/min ban 10m")?;
    let denied = banned.try_ask(1, &[3], false).await?;
    same(
        "the stop of a peek at a key that is banned",
        banned.peek(&[1]).await?.stop,
        until(10, denied.now),
    )
}

/// Checks that a reply admits from that instant on, and not before. Returns whether it admits.
fn is_admitted(what: &str, policy: &str, reply: &Reply, at: u64) -> Outcome<bool> {
    let is_due = reply.now >= at;
    let stop = (!is_due).then_some(DeniedAsk {
        limit: 0,
        until: DeniedUntil::Instant(at),
    });
    holds(
        reply.stop == stop,
        format!("what stops {what} at {} under `{policy}`", reply.now),
        format!("{stop:?}"),
        reply.stop,
    )?;
    Ok(is_due)
}
