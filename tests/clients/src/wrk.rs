use std::process::Stdio;

use tokio::process::Command;

use crate::server::{Limits, PLACES, serve};

/// The number before these words in the report.
fn number(report: &str, words: &str) -> u64 {
    let line = report
        .lines()
        .find(|line| line.contains(words))
        .unwrap_or_default();
    line.split([' ', ':'])
        .find_map(|word| word.parse().ok())
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrk_is_kept_to_the_limit_and_leaves_nothing_behind() {
    let limits = Limits::new("window 1000000/h");
    let address = serve(&limits).await;
    let wrk = |path: &str, seconds: u64| {
        let mut wrk = Command::new("wrk");
        wrk.args([
            "--threads",
            "1",
            "--connections",
            "32",
            "--duration",
            &format!("{seconds}s"),
        ]);
        wrk.arg(format!("http://{address}{path}"))
            .kill_on_drop(true)
            .stdout(Stdio::piped());
        wrk.spawn().expect("wrk is installed: scripts/clients")
    };
    let report = wrk("/work", 2).wait_with_output().await.unwrap();
    let report = String::from_utf8(report.stdout).unwrap();
    limits.come_to_rest().await;
    let (all, refused) = (number(&report, "requests in"), number(&report, "Non-2xx"));
    // Requests that were in flight at the end are not in the report.
    let granted = all - refused;
    assert!(
        refused > 0 && granted > 0 && (granted..=granted + 32).contains(&limits.granted()),
        "{report}"
    );
    assert_eq!(limits.running.most(), PLACES);

    for path in ["/work", "/endless", "/cut", "/panics", "/never"] {
        let mut child = wrk(path, 100);
        // wrk is killed in the middle of its work.
        let before = limits.granted();
        while limits.granted() < before + PLACES {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        child.kill().await.unwrap();
        limits.come_to_rest().await;
    }
}
