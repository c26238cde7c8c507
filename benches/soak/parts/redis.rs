//! Limits in a Redis that keeps what it has answered, and is killed every minute. Nothing is exceeded.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tollgate::store::RedisStore;

use super::ms;
use super::stores::Load;
use crate::run::Run;
use crate::support::redis_server::RedisServer;
use crate::tally::Tally;

/// How long it is down.
const DOWN: Duration = ms(1_500);
/// No server is killed so shortly before the end that callers could not come to rest.
const LAST: Duration = ms(8_000);

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let start = || RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = spawn_blocking(start).await.expect("the server starts");
    let url = server.url();
    let load = Load::begin(&run, &tally, Duration::ZERO, || {
        RedisStore::connect(url.as_str()).expect("a sound URL")
    });
    let every = (run.lasts / 3).min(Duration::from_secs(60));
    while run.pause(every).await && run.left() > LAST {
        run.killed(tally.name);
        let restarted = spawn_blocking(move || {
            server.kill();
            thread::sleep(DOWN);
            server.restart();
            server
        });
        server = restarted.await.expect("the server starts again");
        load.is_served_again().await;
    }
    load.end(&run).await;
    drop(server);
}
