//! Limits in PostgreSQL.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use tollgate::store::PostgresStore;

use super::ms;
use super::stores::Load;
use crate::run::Run;
use crate::tally::Tally;

/// If the store knows the row from its last call, it decides as of an instant up to a round trip earlier, by which the span of a rate
/// ends earlier, too. This is the longest round trip.
const ROUND_TRIP: Duration = ms(100);

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let Ok(url) = env::var("TOLLGATE_POSTGRES_URL") else {
        tally.fault("TOLLGATE_POSTGRES_URL is not set: run it by scripts/soak");
        return;
    };
    let load = Load::begin(&run, &tally, ROUND_TRIP, || {
        PostgresStore::open(&url).expect("a sound URL")
    });
    load.end(&run).await;
}
