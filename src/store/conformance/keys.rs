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

pub(super) async fn another_policy_is_an_error_or_replaces_the_stored_one(
    store: &Arc<dyn Store>,
) -> Outcome {
    let (former, latter) = (
        "4 concurrent ttl 1m and 5/min",
        "3 concurrent ttl 1m and window 9/h from first grant",
    );
    let mut holder = Holder::new(store, former)?;
    let granted = holder.ask(2, &[1, 1]).await?;
    holder.call.policy = policy(latter)?;
    let limiter = Arc::clone(&holder.call.scope.limiter);
    let differs = StoreError::PolicyDiffers {
        limiter,
        stored: former.to_owned(),
        given: latter.to_owned(),
    };
    same(
        "the answer to a call with another policy",
        holder.try_ask(1, &[1, 1], true).await,
        Err(differs),
    )?;
    holder.call.replaces_policy = true;
    let reply = holder.ask(2, &[1, 1]).await?;
    let stopped_by = (reply.granted, reply.stop.map(|stop| stop.limit));
    same(
        "the grants beside the leases that stay, and the limit that stops",
        stopped_by,
        (1, Some(0)),
    )?;
    same(
        "the units left of the new window",
        reply.limits[1].remaining,
        8,
    )?;
    let (before, fence) = (granted.first_fence + granted.granted - 1, reply.first_fence);
    holds(
        fence > before,
        "the fence under the new policy",
        format!("more than {before}"),
        fence,
    )?;
    holder.call.replaces_policy = false;
    same(
        "the places left after the former leases came back",
        holder.give_back([1, 2]).await?.limits[0].remaining,
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
    let five_were_enough = |granted_at| Settlement::new(granted_at, [9; 4], [5; 4]);
    let mut granted_at = holder.ask(1, &[9; 4]).await?.now;
    for before in ["a reset", "another policy"] {
        sleep(Duration::from_millis(1)).await; // a clock may count microseconds
        if before == "a reset" {
            holder.reset().await?;
        } else {
            holder.call.policy = policy(POLICIES[1])?;
            holder.call.replaces_policy = true;
        }
        let latter = holder.ask(1, &[9; 4]).await?;
        same(format!("the grants after {before}"), latter.granted, 1)?;
        let reply = holder
            .send(|call| call.settlements = vec![five_were_enough(granted_at)])
            .await?;
        same(
            format!("the units left after a charge of 9 from before {before} was settled to 5"),
            remaining(&reply),
            vec![0; 4],
        )?;
        granted_at = latter.now;
    }
    let reply = holder
        .send(|call| call.settlements = vec![five_were_enough(granted_at)])
        .await?;
    same(
        "the units left after the latest charge of 9 was settled to 5",
        remaining(&reply),
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
