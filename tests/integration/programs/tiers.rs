//! An axum server whose clients have the limits of their plan, which a future looks up.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::time::sleep;
use tollgate::layers::{HeaderKey, Identity, LimitLayer, NoIdentity};
use tollgate::{KeyedLimiter, Policy};
use tower::ServiceExt;

use super::Outcome;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Account {
    Free(u64),
    Paid(u64),
}

/// Asks a database.
async fn account_of(token: String) -> Option<Account> {
    sleep(Duration::from_millis(5)).await;
    let id: u64 = token.strip_prefix("token-")?.parse().ok()?;
    Some([Account::Free(id), Account::Paid(id)][id as usize % 2].clone())
}

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let (free, paid): (Policy, Policy) = ("2/min".parse()?, "100/min".parse()?);
    let policy_of = move |account: &Account| match account {
        Account::Free(_) => free.clone(),
        Account::Paid(_) => paid.clone(),
    };
    let per_account = KeyedLimiter::builder("2/min").tiers(policy_of).build()?;
    let layer = LimitLayer::new(per_account).by_async(|request: &Request<Body>| {
        let token = HeaderKey::bearer().identify(request);
        async { account_of(token?).await.ok_or(NoIdentity::Unknown) }
    });
    let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);

    for (token, admitted) in [("token-2", 2), ("token-1", 5), ("forged", 0)] {
        let mut served = 0;
        for _ in 0..5 {
            let request = Request::get("/").header("authorization", format!("Bearer {token}"));
            let answer = app.clone().oneshot(request.body(Body::empty())?).await?;
            served += u32::from(answer.status().is_success());
        }
        assert_eq!(served, admitted, "{token}");
    }
    Ok(())
}
