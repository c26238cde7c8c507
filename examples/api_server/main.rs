//! An API server with everything in front of it: a penalty for each address, with its live table; authentication; the limit that the
//! plan of the user sets; a stricter one for an expensive endpoint. Two processes serve it, and share the limits. A load over HTTP shows what
//! users of each plan get, and an abuser, and checks it.
//!
//! ```text
//! cargo run --example api_server --features sqlite                       # 2 processes, 9 s, limits in a temporary SQLite file
//! cargo run --example api_server --features sqlite,redis -- --store redis://127.0.0.1/
//! cargo run --example api_server --features sqlite -- --serve            # to try it by hand: prints what to type
//! cargo run --example api_server --features sqlite -- --store memory     # limits of each process alone: together they exceed them
//! ```
//!
//! A minute takes 3 s in the run, and the quotas of the plans are a twentieth; `--minute 60 --run 120` has those of the plans. The exit
//! code is 0 when the server kept to all that it claims, 1 when it did not, and 2 when something else failed.

mod answers;
mod claims;
mod instance;
mod instances;
mod load;
mod message;
mod options;
mod penalties;
mod plans;
mod progress;
mod record;
mod report;
mod users;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser as _;
use common::store::AnyStore;
use common::{Human, exit_code, say, while_wanted};
use tollgate::store::Store as _;

use crate::instances::Instances;
use crate::options::Options;
use crate::plans::Limiters;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    if options.name.is_some() {
        return instance::run(&options).await;
    }
    exit_code(while_wanted(run(options)).await)
}

async fn run(mut options: Options) -> Result<ExitCode, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let store = options
        .store
        .get_or_insert_with(|| folder.path().join("limits.db").display().to_string());
    let store = AnyStore::open(store)?;
    let database = folder.path().join("users.db");
    users::create(&database)?;
    // A name that no earlier run has used in the store.
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!(
        "api_server-{}-{}",
        std::process::id(),
        since_epoch.as_millis()
    );
    Limiters::new(&store, &name, options.minute())?
        .searches
        .limits()
        .await?; // creates the store
    options.name = Some(name);
    options.users = Some(database.clone());
    if !options.serve && options.proxies.is_empty() {
        options.proxies.push("127.0.0.1".to_owned()); // the load names its clients by X-Forwarded-For
    }
    let instances = Instances::start(&options)?;
    if options.serve {
        tell(&instances, &database, &store.name());
        return std::future::pending().await;
    }

    let (count, minute) = (options.instances, Human(options.minute()));
    say!(
        "{count} instances for {}, a minute of {minute}, store: {}\n",
        Human(options.run),
        store.name()
    );
    let results = load::run(&options, &instances.addresses).await?;
    report::print(&results, &options);
    let broken = claims::broken(&results, &options);
    if let Some(first) = broken.first() {
        let more = if broken.len() > 1 {
            format!(" (and {} more)", broken.len() - 1)
        } else {
            String::new()
        };
        eprintln!("error: {first}{more}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a person can type to see the limits at work.
fn tell(instances: &Instances, database: &Path, store: &str) {
    let tokens: Vec<_> = users::examples()
        .into_iter()
        .map(|(token, _)| token)
        .collect();
    say!("store: {store}, users: {}", database.display());
    say!("tokens: {}", tokens.join(", "));
    for (users, operators) in &instances.addresses {
        say!("\ncurl -i -H 'Authorization: Bearer token-of-free-1' http://{users}/items");
        say!("curl -i -H 'Authorization: Bearer token-of-pro-1' http://{users}/search");
        say!(
            "for n in 1 2 3 4 5 6 7; do curl -i -H \"Authorization: Bearer guess-$n\" http://{users}/items; done"
        );
        say!("curl http://{operators}/penalties");
    }
    say!(
        "\nsqlite3 {} \"UPDATE users SET plan = 'pro' WHERE name = 'free-1'\"",
        database.display()
    );
    say!("Ctrl-C ends it");
}
