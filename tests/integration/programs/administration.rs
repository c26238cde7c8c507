//! Live administration: limits are read from a TOML file, and changed while the program runs.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{KeyedLimiter, Policy};

use super::Outcome;

/// Limits by the name of a service.
type Limits = HashMap<String, Policy>;

fn apply(file: &str, services: &HashMap<&str, KeyedLimiter<u64>>) -> Outcome {
    for (name, policy) in toml::from_str::<Limits>(file)? {
        let service = services
            .get(name.as_str())
            .ok_or(format!("no service {name}"))?;
        service.set_policy(policy)?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let services = ["mail", "search"].map(|name| Ok((name, KeyedLimiter::new("1/s burst 1")?)));
    let services: HashMap<_, _> = services
        .into_iter()
        .collect::<Result<_, tollgate::ConfigError>>()?;
    let mail = &services["mail"];
    mail.try_acquire(&7)?.release();

    // A request waits at the old rate, and is granted at the new one.
    let start = Instant::now();
    let waiting = tokio::spawn(mail.acquire_owned(&7));
    tokio::task::yield_now().await;
    apply(
        "mail = '10/s burst 1'\nsearch = '4 concurrent and 100/min'",
        &services,
    )?;
    waiting.await??.release();
    assert!(start.elapsed() <= Duration::from_millis(100));
    assert_eq!(
        services["search"].policy().to_string(),
        "4 concurrent and 100/min"
    );

    // A mistake changes nothing, and says where it is.
    let error = apply("mail = '10/s brust 5'", &services)
        .unwrap_err()
        .to_string();
    assert!(error.contains("did you mean `burst`?"), "{error}");
    assert_eq!(mail.policy().to_string(), "10/s burst 1");

    // An incident: nobody sends mail until further notice, then all go on.
    mail.pause_for(Duration::from_secs(3_600));
    assert!(mail.try_acquire(&8).is_err());
    mail.resume();
    assert!(mail.try_acquire(&8).is_ok());
    Ok(())
}
