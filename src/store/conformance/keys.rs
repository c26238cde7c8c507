//! Claims on keys and their stored state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::fault::{Outcome, holds, pause, same, soon};
use super::holder::{Holder, MINUTE, SHORT, policy, remaining};
use crate::error::StoreError;
use crate::exchange::Settlement;
use crate::store::Store;

pub(super) async fn a_later_revision_replaces_the_policy_and_others_are_an_error(
    store: &Arc<dyn Store>,
) -> Outcome {
    let (former, latter) = (
        "4 concurrent ttl 1m and 5/min",
        "3 concurrent ttl 1m and window 9/h from first grant",
    );
    let mut holder = Holder::new(store, former)?;
    let granted = holder.ask(2, &[1, 1]).await?;
    let limiter = Arc::clone(&holder.call.scope.limiter);
    let differs = |stored: (&str, u64), given: (&str, u64)| StoreError::PolicyDiffers {
        limiter: Arc::clone(&limiter),
        stored: stored.0.to_owned(),
        stored_revision: stored.1,
        given: given.0.to_owned(),
        given_revision: given.1,
    };
    holder.call.policy = policy(latter)?;
    same(
        "the answer to a call with another policy of the same revision",
        holder.try_ask(1, &[1, 1], true).await,
        Err(differs((former, 0), (latter, 0))),
    )?;
    holder.call.revision = 3;
    let reply = holder.ask(2, &[1, 1]).await?;
    let stopped_by = (reply.granted, reply.stop.map(|stop| stop.limit));
    same(
        "the grants beside the leases that stay, and the limit that stops",
        stopped_by,
        (1, Some(0)),
    )?;
    same(
        "the units left of 9 after 2 that are carried over and a third",
        reply.limits[1].remaining,
        6,
    )?;
    let (before, fence) = (granted.first_fence + granted.granted - 1, reply.first_fence);
    holds(
        fence > before,
        "the fence under the new policy",
        format!("more than {before}"),
        fence,
    )?;
    let mut late = holder.clone();
    late.call.policy = policy(former)?;
    for revision in [0, 2, 3] {
        late.call.revision = revision;
        same(
            "the answer to a call with the former policy",
            late.try_ask(1, &[1, 1], true).await,
            Err(differs((latter, 3), (former, revision))),
        )?;
    }
    let mut earlier = holder.clone();
    earlier.call.revision = 2;
    same(
        "the answer to a call with the same policy of an earlier revision",
        earlier.try_ask(1, &[1, 1], true).await,
        Err(differs((latter, 3), (latter, 2))),
    )?;
    same(
        "the places left after the former leases came back",
        holder.give_back([1, 2]).await?.limits[0].remaining,
        2,
    )?;
    late.call.revision = u64::MAX;
    same(
        "the units left of 5 under the first policy again",
        late.peek(&[1, 1]).await?.limits[1].remaining,
        2,
    )?;
    let mut expired = Holder::new(store, "1 concurrent ttl 1m")?.ttl(SHORT);
    expired.ask(1, &[1]).await?;
    expired.call.policy = policy("2/s")?;
    let reply = soon("another policy after the state has expired", async {
        loop {
            match expired.try_ask(1, &[1], true).await {
                Err(StoreError::PolicyDiffers { .. }) => pause().await,
                reply => return Ok(reply?),
            }
        }
    });
    same(
        "the units left of 2 under that policy",
        reply.await?.limits[0].remaining,
        1,
    )
}

/// What is used of one limit is used of another one in its place, but for less than a unit of a rate.
pub(super) async fn usage_is_carried_over_to_a_later_revision(store: &Arc<dyn Store>) -> Outcome {
    const LIMITS: [&str; 8] = [
        "9/100d burst 9",
        "9/200d burst 9 initial 0",
        "window 9/100d wall clock",
        "window 9/200d from first grant",
        "sliding counter 9/100d",
        "sliding log 9/100d",
        "sliding log 9/50d",
        "penalty 9 falling 1/100d",
    ];
    for former in LIMITS
        .into_iter()
        .filter(|former| !former.contains("initial"))
    {
        for latter in LIMITS {
            let what = format!("the units left of 9 after 4 under `{former}` and then `{latter}`");
            let mut holder = Holder::new(store, former)?;
            holder.ask(2, &[1]).await?;
            holder.ask(2, &[1]).await?;
            holder.call.policy = policy(latter)?;
            holder.call.revision = 1;
            same(&what, remaining(&holder.peek(&[1]).await?), vec![5])?;
            holder.ask(1, &[5]).await?;
            same(&what, holder.ask(1, &[1]).await?.granted, 0)?;
        }
    }
    Ok(())
}

/// A lease holds the places that it was granted, or one of a limit that counts something else.
pub(super) async fn leases_are_carried_over_to_a_later_revision(store: &Arc<dyn Store>) -> Outcome {
    let policies = [
        "8 concurrent ttl 1m",
        "9 concurrent ttl 1m and 12 concurrent ttl 1m counting tokens",
        "6/h",
        "7 concurrent ttl 1m",
    ];
    let left = [vec![4], vec![5, 8], vec![6], vec![5]];
    let mut holder = Holder::new(store, policies[0])?;
    holder.ask(1, &[3]).await?;
    holder.ask(1, &[1]).await?;
    for (revision, (text, left)) in (0..).zip(policies.into_iter().zip(left)) {
        holder.call.policy = policy(text)?;
        holder.call.revision = revision;
        let reply = holder.send(|call| call.renewals = vec![1, 2]).await?;
        let what = format!("the leases lost, and the units left under `{text}`");
        same(
            what,
            (reply.lost.clone(), remaining(&reply)),
            (Vec::new(), left),
        )?;
    }
    same(
        "the places left after both leases came back",
        remaining(&holder.give_back([1, 2]).await?),
        vec![7],
    )
}

/// Although nothing is granted.
pub(super) async fn a_policy_that_is_to_be_kept_is_kept(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "1000/s")?;
    holder.call.revision = 7;
    holder.send(|call| call.keeps_policy = true).await?;
    sleep(2 * SHORT).await;
    holder.send(|call| call.keeps_policy = true).await?;
    holder.call.revision = 6;
    holder.call.policy = policy("999/s")?;
    let stored_revision = match holder.try_ask(1, &[1], true).await {
        Err(StoreError::PolicyDiffers {
            stored_revision, ..
        }) => Some(stored_revision),
        _ => None,
    };
    same("the revision that is kept", stored_revision, Some(7))
}

pub(super) async fn keys_are_listed_page_by_page(store: &Arc<dyn Store>) -> Outcome {
    let holder = Holder::new(store, "5/hour")?;
    let names: BTreeSet<Vec<u8>> = (0..10_u8).map(|n| vec![b'k'; n.into()]).collect();
    for name in &names {
        holder.of_key(name).ask(1, &[1]).await?;
    }
    let mut other = Holder::new(store, "5/hour")?;
    other.ask(1, &[1]).await?;
    same("the keys of a limiter", holder.keys().await?, names)?;
    same(
        "the keys of another limiter",
        other.keys().await?,
        [b"key".to_vec()].into(),
    )?;
    let peeked = Holder::new(store, "5/hour")?;
    peeked.peek(&[1]).await?;
    same(
        "the keys after a peek",
        peeked.keys().await?,
        BTreeSet::new(),
    )
}

pub(super) async fn a_reset_key_is_as_new(store: &Arc<dyn Store>) -> Outcome {
    let mut holder = Holder::new(store, "2 concurrent ttl 1m and 2/hour")?;
    let mut other = holder.of_key(b"other");
    holder.ask(2, &[1, 1]).await?;
    other.ask(2, &[1, 1]).await?;
    holder.reset().await?;
    let reply = holder.send(|call| call.renewals = vec![1]).await?;
    same(
        "the leases lost by a renewal after the reset",
        reply.lost,
        vec![1],
    )?;
    same(
        "the grants of 2 asks after the reset",
        holder.ask(2, &[1, 1]).await?.granted,
        2,
    )?;
    same(
        "the grants for another key, which had nothing left",
        other.ask(1, &[1, 1]).await?.granted,
        0,
    )
}

pub(super) async fn nothing_is_refunded_of_grants_from_before_a_reset(
    store: &Arc<dyn Store>,
) -> Outcome {
    const POLICIES: [&str; 2] = [
        "window 9/100d and window 9/100d wall clock and sliding counter 9/100d and sliding log 9/100d",
        "window 9/90d and window 9/90d wall clock and sliding counter 9/90d and sliding log 9/90d",
    ];
    let mut holder = Holder::new(store, POLICIES[0])?;
    let left_after_settlement = async |holder: &Holder, granted_at| {
        let settlement = Settlement::new(granted_at, [9; 4], [5; 4]);
        let reply = holder
            .send(|call| call.settlements = vec![settlement])
            .await?;
        Outcome::Ok(remaining(&reply))
    };
    let first = holder.ask(1, &[9; 4]).await?;
    sleep(Duration::from_millis(1)).await; // a clock may count microseconds
    holder.reset().await?;
    let second = holder.ask(1, &[9; 4]).await?;
    same("the grants after a reset", second.granted, 1)?;
    same(
        "the units left after a charge of 9 from before a reset was settled to 5",
        left_after_settlement(&holder, first.now).await?,
        vec![0; 4],
    )?;
    let mut changed = holder.of_key(b"changed");
    let before = changed.ask(1, &[9; 4]).await?;
    sleep(Duration::from_millis(1)).await;
    changed.call.policy = policy(POLICIES[1])?;
    changed.call.revision = 1;
    same(
        "the units left after a charge of 9 from before a change of the policy was settled to 5",
        left_after_settlement(&changed, before.now).await?,
        vec![0; 4],
    )?;
    same(
        "the units left after the latest charge of 9 was settled to 5",
        left_after_settlement(&holder, second.now).await?,
        vec![4; 4],
    )
}

pub(super) async fn any_name_and_key_is_kept_apart(store: &Arc<dyn Store>) -> Outcome {
    let plain = Holder::new(store, "1/hour")?;
    let unique = plain.call.scope.limiter.to_string();
    let long = "ü".repeat(40_000 - unique.len());
    let names = [
        "",
        "\0",
        "'; DROP TABLE tollgate_keys; --",
        "{}:*?[x]%_\\",
        &long,
    ]
    .map(|tail| format!("{unique}{tail}"));
    let mut keys: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        vec![0, 0],
        b"a".into(),
        b"A".into(),
        b"a ".into(),
        vec![0xff; 3],
        b"'\"`\\\n{}".into(),
    ];
    keys.extend([700, 4_000, 70_000].map(|length| vec![0xc3; length]));
    keys.extend([70_000].map(|length| [vec![0xc3; length - 1], vec![0]].concat()));
    let brief = |bytes: &[u8]| {
        format!(
            "{} bytes {}",
            bytes.len(),
            bytes[..bytes.len().min(60)].escape_ascii()
        )
    };
    for (round, granted) in [("first", 1), ("second", 0)] {
        for name in &names {
            for key in &keys {
                let mut holder = plain.of_limiter(name).of_key(key);
                let what = format!(
                    "the grants of the {round} ask for the key of {}, {}",
                    brief(name.as_bytes()),
                    brief(key)
                );
                same(what, holder.ask(1, &[1]).await?.granted, granted)?;
            }
        }
    }
    for name in &names {
        let holder = plain.of_limiter(name);
        let found = holder.keys().await?;
        let all = keys.iter().cloned().collect();
        holds(
            found == all,
            format!("the number of keys of {}", brief(name.as_bytes())),
            keys.len(),
            found.len(),
        )?;
        for key in &keys {
            holder.of_key(key).reset().await?;
        }
        same(
            "the number of keys after a reset of each",
            holder.keys().await?.len(),
            0,
        )?;
    }
    Ok(())
}

pub(super) async fn expired_keys_are_purged(store: &Arc<dyn Store>) -> Outcome {
    let holder = Holder::new(store, "1 concurrent ttl 1m and 1/100ms")?.ttl(SHORT);
    let limiter = &holder.call.scope.limiter;
    for key in [b"a", b"b", b"c"] {
        holder.of_key(key).ask(1, &[1, 1]).await?;
    }
    let mut stays = holder.of_key(b"d").ttl(MINUTE);
    stays.ask(1, &[1, 1]).await?;
    holder
        .has_keys_soon(1, "a list without the expired keys")
        .await?;
    // Other tests and the store itself may also purge.
    let purged = store.purge(limiter, 2).await?;
    holds(purged <= 2, "the keys purged", "2 at most", purged)?;
    soon("a purge that finds nothing more", async {
        while store.purge(limiter, 100).await? > 0 {}
        Ok(())
    })
    .await?;
    same(
        "the keys left after a purge",
        holder.keys().await?,
        [b"d".to_vec()].into(),
    )?;
    same(
        "the grants for the key that is left",
        stays.ask(1, &[1, 1]).await?.granted,
        0,
    )?;
    stays.give_back([1]).await?;
    stays
        .has_keys_soon(0, "no keys when all has come back")
        .await
}
