//! Claims on asks.

use std::sync::Arc;

use super::fault::{Outcome, holds, same};
use super::holder::{Holder, MINUTE, nanos, policy, remaining};
use crate::error::StoreError;
use crate::exchange::{Asks, DeniedAsk, DeniedUntil, Settlement};
use crate::store::Store;

pub(super) async fn asks_are_granted_in_order_up_to_the_limit(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "10/min")?;
    let (first, second) = (Asks::new(1, 3, [2]), Asks::new(4, 9, [1]));
    let reply = holder.send(|call| call.asks = vec![first, second]).await?;
    same(
        "the grants of 3 asks of 2 and 9 asks of 1 from 10 units, and the units left",
        (reply.granted, reply.limits[0].remaining),
        (7, 0),
    )?;
    let stop = Some(DeniedAsk {
        limit: 0,
        until: DeniedUntil::Instant(reply.now + 6_000_000_000),
    });
    same("the stop: a unit comes every six seconds", reply.stop, stop)?;
    let mut other = Holder::new(store, "10/min")?;
    other.ask(1, &[7]).await?;
    let (large, small) = (Asks::new(2, 1, [5]), Asks::new(3, 1, [1]));
    let reply = other.send(|call| call.asks = vec![large, small]).await?;
    same(
        "the grants of a smaller ask behind an ask that must wait",
        reply.granted,
        0,
    )?;
    same(
        "the grants of an ask of 1 where 3 units are left",
        other.ask(1, &[1]).await?.granted,
        1,
    )?;
    let never = holder.ask(1, &[11]).await?;
    let stop = Some(DeniedAsk {
        limit: 0,
        until: DeniedUntil::Never,
    });
    same(
        "the answer to an ask of 11 where the limit is 10",
        (never.granted, never.stop),
        (0, stop),
    )
}

pub(super) async fn all_limits_admit_or_none_is_charged(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(
        store,
        "9/min and window 4/h from first grant and sliding log 6/h and sliding counter 8/100d",
    )?;
    let reply = holder.ask(9, &[1, 1, 1, 0]).await?;
    same(
        "the grants of 9 asks from limits of 9, 4 and 6, and the limit that stops them",
        granted_and_limit(&reply),
        (4, Some(1)),
    )?;
    same(
        "the units left of each limit",
        remaining(&reply),
        vec![5, 0, 2, 8],
    )?;
    let reply = holder.ask(9, &[1, 0, 1, 2]).await?;
    same(
        "the grants of 9 more asks that cost nothing of the second limit",
        granted_and_limit(&reply),
        (2, Some(2)),
    )?;
    same(
        "the units left of each limit after these asks",
        remaining(&reply),
        vec![3, 0, 0, 4],
    )
}

fn granted_and_limit(reply: &crate::exchange::Reply) -> (u64, Option<usize>) {
    (reply.granted, reply.stop.map(|stop| stop.limit))
}

pub(super) async fn a_peek_charges_nothing(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "2 concurrent ttl 1m and 3/min")?;
    for _ in 0..3 {
        let reply = holder.peek(&[1, 1]).await?;
        same(
            "the grants of a peek, and its stop",
            (reply.granted, reply.stop),
            (0, None),
        )?;
        same("the units left after a peek", remaining(&reply), vec![2, 3])?;
    }
    holder.ask(2, &[1, 1]).await?;
    let reply = holder.peek(&[1, 1]).await?;
    same(
        "the limit that would stop a third place of two",
        reply.stop.map(|stop| stop.limit),
        Some(0),
    )?;
    same(
        "the stop of a peek that costs no place",
        holder.peek(&[0, 1]).await?.stop,
        None,
    )
}

pub(super) async fn a_settlement_charges_more_or_refunds(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "100/hour and window 100/100d from first grant")?;
    let granted_at = holder.ask(1, &[10, 10]).await?.now;
    let settle = |actual: u64| Settlement::new(granted_at, [10, 10], [actual, actual]);
    let reply = holder
        .send(|call| call.settlements = vec![settle(30)])
        .await?;
    same(
        "the units left of 100 after a charge of 10 was settled to 30",
        remaining(&reply),
        vec![70, 70],
    )?;
    let reply = holder
        .send(|call| call.settlements = vec![settle(4)])
        .await?;
    same(
        "the units left of the window after the charge was settled to 4",
        reply.limits[1].remaining,
        76,
    )?;
    let of_pace = reply.limits[0].remaining;
    // A store need not know the past grants of a rate.
    holds(
        [70, 76].contains(&of_pace),
        "the units left of the rate after the charge was settled to 4",
        "76, or 70 without a refund",
        of_pace,
    )?;
    let reply = holder
        .send(|call| call.settlements = vec![settle(10_000)])
        .await?;
    same(
        "the units left after the charge was settled to 10,000, a debt",
        remaining(&reply),
        vec![0, 0],
    )
}

pub(super) async fn denied_attempts_count_if_they_do_not_wait(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "penalty 2 falling 1/min ban 1m up to 1h")?;
    holder.ask(2, &[1]).await?;
    let waits = holder.ask(1, &[1]).await?;
    let until_step = waits.now + nanos(MINUTE);
    let is_no_ban = matches!(waits.stop, Some(DeniedAsk { until: DeniedUntil::Instant(step), .. }) if step <= until_step);
    holds(
        is_no_ban,
        "the stop of an ask that waits",
        format!("until the penalty falls, by {until_step}"),
        waits.stop,
    )?;
    let banned = holder.try_ask(1, &[1], false).await?;
    let stop = Some(DeniedAsk {
        limit: 0,
        until: DeniedUntil::Instant(banned.now + nanos(MINUTE)),
    });
    same(
        "the stop of an ask that does not wait: banned for a minute",
        banned.stop,
        stop,
    )?;
    same(
        "the stop of a peek after it",
        holder.peek(&[1]).await?.stop,
        stop,
    )
}

pub(super) async fn a_call_that_comes_too_late_is_not_carried_out(
    store: &Arc<dyn Store>,
) -> Outcome {
    let mut holder = Holder::new(store, "5/min")?;
    let now = holder.ask(1, &[1]).await?.now;
    holder.call.valid_until = Some(now);
    let late = holder.try_ask(1, &[1], true).await;
    holds(
        matches!(late, Err(StoreError::TooLate { .. })),
        "the answer to a call that is too late",
        "TooLate",
        &late,
    )?;
    holder.call.valid_until = Some(now + nanos(MINUTE));
    same(
        "the units left of 5 after one more call in time",
        holder.ask(1, &[1]).await?.limits[0].remaining,
        3,
    )
}

pub(super) async fn a_concurrency_that_adapts_is_refused(store: &Arc<dyn Store>) -> Outcome {
    let adapts = store.supports(&policy("20 concurrent aimd")?);
    holds(
        matches!(adapts, Err(StoreError::Unsupported { .. })),
        "whether it adapts",
        "Unsupported",
        &adapts,
    )?;
    Ok(store.supports(&policy("20 concurrent ttl 1m and 5/s")?)?)
}
