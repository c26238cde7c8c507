//! Claims on leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::fault::{Fault, Outcome, holds, same, soon};
use super::holder::{Holder, LATEST, MINUTE, SHORT, nanos};
use crate::exchange::{Asks, DeniedAsk, DeniedUntil, Reply};
use crate::store::Store;

pub(super) async fn leases_come_back_once(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "3 concurrent ttl 1m")?;
    let reply = holder.ask(5, &[1]).await?;
    same("the grants of 5 asks from 3 places", reply.granted, 3)?;
    let until = reply.now + nanos(MINUTE);
    ends_at("the first end of a lease", &reply, until)?;
    let places = "the places left after a return of one of three, and of one that is not known";
    same(
        places,
        holder.give_back([2, 77]).await?.limits[0].remaining,
        1,
    )?;
    same(
        "the places left after the same return again",
        holder.give_back([2]).await?.limits[0].remaining,
        1,
    )?;
    same(
        "the grants of 2 asks from the returned place",
        holder.ask(2, &[1]).await?.granted,
        1,
    )?;
    let asks = Asks::new(20, 2, [1]);
    let reply = holder
        .send(|call| (call.returns, call.asks) = (vec![1, 3], vec![asks]))
        .await?;
    let granted = (reply.granted, reply.limits[0].remaining);
    same(
        "the grants of 2 asks in the call that returns two places, and the places left",
        granted,
        (2, 0),
    )
}

pub(super) async fn leases_of_another_holder_are_not_touched(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "2 concurrent ttl 1m")?;
    holder.ask(2, &[1]).await?;
    let other = holder.other(u64::MAX);
    let left = other.give_back([1, 2]).await?.limits[0].remaining;
    same(
        "the places left after another holder returned these numbers",
        left,
        0,
    )?;
    let reply = other.send(|call| call.renewals = vec![1]).await?;
    same(
        "the leases lost to another holder that renews these numbers",
        reply.lost,
        vec![1],
    )?;
    same(
        "the places left after the holder returned them",
        holder.give_back([1, 2]).await?.limits[0].remaining,
        2,
    )
}

pub(super) async fn a_lease_that_was_not_renewed_is_reclaimed(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "3 concurrent ttl 1m")?.ttl(SHORT);
    // A store may drop a whole key, and then reclaims nothing. The lease of another holder keeps the key.
    holder.other(2).ttl(MINUTE).ask(1, &[1]).await?;
    let granted = holder.ask(2, &[1]).await?;
    let expiry = granted.now + nanos(SHORT);
    let reply = soon("the end of a lease", async {
        loop {
            let reply = holder.peek(&[1]).await?;
            if reply.reclaimed > 0 || reply.now > expiry + nanos(LATEST) {
                return Ok(reply);
            }
            same(
                "the places left before the end",
                reply.limits[0].remaining,
                0,
            )?;
            sleep(Duration::from_millis(2)).await;
        }
    })
    .await?;
    holds(
        reply.now >= expiry,
        "the instant at which leases were reclaimed",
        format!("{expiry} or later"),
        reply.now,
    )?;
    let what = "the leases reclaimed, the places left, and the stop after the end";
    same(
        what,
        (reply.reclaimed, reply.limits[0].remaining, reply.stop),
        (2, 2, None),
    )?;
    let reply = holder.send(|call| call.renewals = vec![1]).await?;
    same(
        "the leases lost, and reclaimed again, by a later renewal",
        (reply.lost, reply.reclaimed),
        (vec![1], 0),
    )?;
    same(
        "the places left after a later return",
        holder.give_back([1, 2]).await?.limits[0].remaining,
        2,
    )
}

pub(super) async fn renewals_extend_leases(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "1 concurrent ttl 1m")?.ttl(SHORT);
    let expiry = holder.ask(1, &[1]).await?.now + nanos(SHORT);
    holder = holder.ttl(MINUTE);
    let renewed = holder.send(|call| call.renewals = vec![1]).await?;
    if renewed.now >= expiry {
        return Ok(()); // the machine slept
    }
    same(
        "the leases lost by a renewal in time",
        renewed.lost,
        Vec::new(),
    )?;
    sleep(SHORT).await;
    ends_at(
        "the end of the renewed lease",
        &holder.ask(1, &[1]).await?,
        renewed.now + nanos(MINUTE),
    )
}

/// Checks that an ask was stopped until a lease ends at this instant, or soon after.
fn ends_at(what: &str, reply: &Reply, expiry: u64) -> Outcome {
    match reply.stop {
        Some(DeniedAsk {
            limit: 0,
            until: DeniedUntil::Release { first_expiry },
        }) => {
            let latest = expiry + nanos(LATEST);
            holds(
                (expiry..latest).contains(&first_expiry),
                what,
                format!("{expiry} to {latest}"),
                first_expiry,
            )
        }
        stop => Err(Fault::new(what, "a stop until a release", stop)),
    }
}

pub(super) async fn fences_rise_over_holders_and_resets(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "1000000/s")?;
    let mut other = holder.other(2);
    let mut last = 0;
    for round in 1..20 {
        for holder in [&mut holder, &mut other] {
            let reply = holder.ask(round, &[1]).await?;
            same("the grants from a million units", reply.granted, round)?;
            let (fence, micros) = (reply.first_fence, reply.now / 1_000);
            holds(
                fence > last,
                "the first fence of a call",
                format!("more than {last}"),
                fence,
            )?;
            holds(
                fence >= micros,
                "the first fence of a call",
                format!("the microseconds {micros}, or more"),
                fence,
            )?;
            last = fence + reply.granted - 1;
        }
        if round % 5 == 0 {
            holder.reset().await?;
            sleep(Duration::from_millis(1)).await; // fences follow the clock, in microseconds
        }
    }
    Ok(())
}
