//! Claims on concurrent calls.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, join_all, select, try_join_all};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::fault::{Fault, Outcome, holds, same, soon};
use super::holder::Holder;
use crate::store::{Release, ReleaseListener, Store};

/// Detects a store that reads, decides, and then writes without a lock, so that two callers read the same state.
pub(super) async fn contending_callers_get_exactly_the_limit(store: &Arc<dyn Store>) -> Outcome {
    let holder = Holder::new(store, "window 1000/100d from first grant and 1200/100d")?;
    let task = |task| {
        let holder = holder.other(task);
        tokio::spawn(async move {
            let callers = (0..32).map(|_| {
                let mut holder = holder.clone();
                async move {
                    let mut granted = 0;
                    for round in 0..3 {
                        granted += holder.ask(1 + round, &[1, 1]).await?.granted;
                    }
                    Ok::<_, Fault>(granted)
                }
            });
            Ok::<_, Fault>(try_join_all(callers).await?.into_iter().sum::<u64>())
        })
    };
    let mut granted = 0;
    for task in (0..8).map(task).collect::<Vec<_>>() {
        granted += task.await??;
    }
    same("the grants of 1,536 asks from 1,000", granted, 1_000)?;
    same(
        "the units left of 1,000",
        holder.peek(&[0, 1]).await?.limits[0].remaining,
        0,
    )
}

pub(super) async fn no_place_is_held_twice(store: &Arc<dyn Store>) -> Outcome {
    let holder = Holder::new(store, "3 concurrent ttl 1m")?;
    let held = Arc::new(AtomicU64::new(0));
    let task = |task| {
        let (mut holder, held) = (holder.other(task), Arc::clone(&held));
        tokio::spawn(async move {
            for _ in 0..20 {
                let number = holder.next;
                while holder.ask(1, &[1]).await?.granted == 0 {
                    holder.next = number;
                    yield_now().await;
                }
                let others = held.fetch_add(1, Ordering::SeqCst);
                holds(others < 3, "the places held by others", "2 at most", others)?;
                yield_now().await;
                held.fetch_sub(1, Ordering::SeqCst);
                holder.give_back([number]).await?;
            }
            Ok::<_, Fault>(())
        })
    };
    for task in (1..9).map(task).collect::<Vec<_>>() {
        task.await??;
    }
    same(
        "the places left when all have come back",
        holder.peek(&[1]).await?.limits[0].remaining,
        3,
    )?;
    holder
        .has_keys_soon(0, "no keys when all has come back")
        .await
}

pub(super) async fn a_caller_that_gives_up_leaves_nothing_locked(
    store: &Arc<dyn Store>,
) -> Outcome {
    let holder = Holder::new(store, "1000000/h")?;
    for wait in 0..40 {
        let calls = (0..4).map(|caller| {
            let mut holder = holder.other(4 * wait + caller);
            async move { holder.ask(1, &[1]).await.is_ok() }
        });
        timeout(Duration::from_micros(100 * wait), join_all(calls))
            .await
            .ok();
    }
    soon("a reply after that", holder.other(u64::MAX).ask(1, &[1]))
        .await
        .map(drop)
}

pub(super) async fn listeners_are_told(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "2 concurrent ttl 1m")?;
    let mut waiting = holder.other(7);
    let target = Arc::new((Notify::new(), Mutex::new(Vec::new())));
    let listener = ReleaseListener::new(&target, |(notify, turns), release| {
        let Release::Turn { key, holder, .. } = release else {
            return;
        };
        turns.lock().push((key.to_vec(), holder));
        notify.notify_one();
    });
    if !store.listen(&holder.call.scope.limiter, listener) {
        return Ok(());
    }
    for _ in 0..2 {
        // A message may be lost, for instance before the store subscribes to the channel.
        let notified = async {
            target.0.notified().await;
            Ok(())
        };
        let returned = async {
            loop {
                let number = holder.next;
                holder.ask(1, &[2]).await?;
                waiting.ask(1, &[2]).await?;
                holder.give_back([number]).await?;
                sleep(Duration::from_millis(100)).await;
            }
        };
        soon("the notification of a release", async {
            match select(pin!(notified), pin!(returned)).await {
                Either::Left((result, _)) | Either::Right((result, _)) => result,
            }
        })
        .await?;
        sleep(Duration::from_millis(50)).await; // the turn has passed
    }
    let mut turns = target.1.lock().clone();
    turns.dedup();
    same(
        "the keys and holders that the listener was notified of",
        turns,
        vec![(b"key".to_vec(), waiting.call.holder)],
    )
}
