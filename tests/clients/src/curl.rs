use std::net::SocketAddr;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::server::{Limits, PLACES, QUEUE, serve};

const VERSIONS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// A command of curl; `options` are separated by spaces.
fn curl(version: &str, options: &str, address: SocketAddr, path: &str) -> Command {
    let mut curl = Command::new("curl");
    // Overrides the user's configuration file and the environment.
    curl.args([
        "--disable",
        "--noproxy",
        "*",
        version,
        "--silent",
        "--show-error",
        "--max-time",
        "300",
    ])
    .args(options.split_whitespace());
    curl.arg(format!("http://{address}{path}"))
        .kill_on_drop(true)
        .stdin(Stdio::null());
    curl.stdout(Stdio::piped()).stderr(Stdio::piped());
    curl
}

fn start(version: &str, options: &str, address: SocketAddr, path: &str) -> Child {
    curl(version, options, address, path)
        .spawn()
        .expect("curl is installed: scripts/clients")
}

async fn run(version: &str, options: &str, address: SocketAddr, path: &str) -> Output {
    start(version, options, address, path)
        .wait_with_output()
        .await
        .unwrap()
}

/// The standard output of a run without an error. `--include` puts the head before it.
async fn text(version: &str, options: &str, address: SocketAddr, path: &str) -> String {
    let output = run(version, options, address, path).await;
    assert!(output.status.success(), "{version} {options}: {output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_is_granted_and_refused_with_the_fields() {
    for version in VERSIONS {
        let limits = Limits::new("window 2/h");
        let address = serve(&limits).await;
        let granted = text(version, "--include -H x-client:a", address, "/").await;
        for part in [
            " 200",
            "\r\nratelimit: \"places\";r=3, \"quota\";r=1;t=",
            "\r\nratelimit-policy: ",
            "\r\n\r\nhello",
        ] {
            assert!(granted.contains(part), "{part} in {granted}");
        }
        // The answer to HEAD has no body, granted or refused.
        let head = text(version, "--head -H x-client:a", address, "/").await;
        assert!(
            head.contains(" 200") && head.contains("\"quota\";r=0;t="),
            "{head}"
        );
        let head = text(version, "--head -H x-client:a", address, "/").await;
        assert!(
            head.contains(" 429") && head.ends_with("\r\n\r\n"),
            "{head}"
        );

        let refused = text(version, "--include -H x-client:a", address, "/").await;
        let (head, body) = refused.split_once("\r\n\r\n").unwrap();
        for part in [
            " 429",
            "\r\nretry-after: 3",
            "\r\nratelimit: \"quota\";r=0;t=3",
            "\r\ncontent-type: application/problem+json",
        ] {
            assert!(head.contains(part), "{part} in {head}");
        }
        assert!(
            body.starts_with('{') && body.contains(r#""status":429,"violated-policies":["quota"]"#),
            "{body}"
        );
        // Another client has a quota of its own.
        assert!(
            text(version, "--include -H x-client:b", address, "/")
                .await
                .contains(" 200")
        );
        limits.come_to_rest().await;
        assert_eq!(limits.granted(), 3);
    }
}

/// curl waits for as long as `Retry-After` says. One that came back earlier would be refused again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_comes_back_after_retry_after() {
    let limits = Limits::new("window 1/1500ms");
    let address = serve(&limits).await;
    // Before version 8, curl cannot use a connection of HTTP/2 twice that it began without an upgrade.
    assert_eq!(text("--http1.1", "", address, "/").await, "hello");
    assert!(
        text("--http1.1", "--retry 1", address, "/")
            .await
            .ends_with("hello")
    );
    limits.come_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_either_side_cuts_leaves_nothing_behind() {
    for version in VERSIONS {
        let limits = Limits::new("window 1000/h");
        let address = serve(&limits).await;
        let mut children: Vec<_> = (0..PLACES)
            .map(|_| start(version, "--no-buffer", address, "/endless"))
            .collect();
        limits.come_to([PLACES, 0, PLACES]).await;
        for (nth, child) in (1..).zip(&mut children) {
            child.kill().await.unwrap(); // kill -9
            limits.come_to([PLACES - nth, 0, PLACES - nth]).await;
        }
        let timed_out = run(version, "--max-time 0.3", address, "/endless").await;
        assert_eq!(timed_out.status.code(), Some(28), "{timed_out:?}");
        limits.come_to_rest().await;
        let cut = run(version, "", address, "/cut").await;
        assert!(
            !cut.status.success() && cut.stdout.len() <= 3 * 1_024,
            "{cut:?}"
        );
        limits.come_to_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_leaves_nothing_behind() {
    for version in VERSIONS {
        let limits = Limits::new("window 1000/h");
        let address = serve(&limits).await;
        for _ in 0..PLACES + 1 {
            assert!(!run(version, "", address, "/panics").await.status.success());
        }
        limits.come_to_rest().await;
        assert_eq!(text(version, "", address, "/").await, "hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_leaves_the_queue() {
    for version in VERSIONS {
        let limits = Limits::new("window 1000/h");
        let address = serve(&limits).await;
        let mut holding: Vec<_> = (0..PLACES)
            .map(|_| start(version, "", address, "/never"))
            .collect();
        limits.come_to([PLACES, 0, PLACES]).await;
        let mut waiting: Vec<_> = (0..QUEUE)
            .map(|_| start(version, "", address, "/never"))
            .collect();
        limits.come_to([PLACES, QUEUE, PLACES]).await;
        let full = text(version, "--include", address, "/").await;
        assert!(
            full.contains(" 503") && full.contains("temporary-reduced-capacity"),
            "{full}"
        );
        for (nth, child) in (1..).zip(&mut waiting[..2]) {
            child.kill().await.unwrap();
            limits.come_to([PLACES, QUEUE - nth, PLACES]).await;
        }
        // The clients that still wait get the places of those that leave.
        for (nth, child) in (1..).zip(&mut holding) {
            child.kill().await.unwrap();
            let left = PLACES + QUEUE - 2 - nth;
            limits
                .come_to([
                    left.min(PLACES),
                    left.saturating_sub(PLACES),
                    left.min(PLACES),
                ])
                .await;
        }
        drop(waiting);
        limits.come_to_rest().await;
        assert_eq!(text(version, "", address, "/").await, "hello");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_read_when_it_was_granted_and_may_be_cut() {
    let body = "x".repeat(1_000_000);
    for version in VERSIONS {
        let limits = Limits::new("window 4/h"); // for each of two clients
        let address = serve(&limits).await;
        // The answer, its status, and how many bytes were sent.
        let upload = async || {
            let options = "--upload-file - -H Expect:100-continue --expect100-timeout 100 --write-out ,%{http_code},%{size_upload}";
            let mut child = curl(version, options, address, "/upload")
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            // The body of a refused request is not read to its end.
            let _broken = child.stdin.take().unwrap().write_all(body.as_bytes()).await;
            String::from_utf8(child.wait_with_output().await.unwrap().stdout).unwrap()
        };
        for _ in 0..2 {
            assert!(upload().await.starts_with("1000000,200,"));
            limits.come_to_rest().await;
        }

        // curl is killed in the middle of the body that it sends.
        let mut child = curl(version, "--upload-file -", address, "/upload")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(&body.as_bytes()[..1_000]).await.unwrap();
        limits.come_to([1, 0, 0]).await;
        child.kill().await.unwrap();
        limits.come_to_rest().await;

        // The client is killed while it waits, with a body that is not read yet. Over HTTP/1 the server notices this when it reads.
        let holding: Vec<_> = (0..PLACES)
            .map(|_| start(version, "-H x-client:b", address, "/never"))
            .collect();
        limits.come_to([PLACES, 0, PLACES]).await;
        let mut child = curl(version, "--upload-file -", address, "/upload")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _broken = input.write_all(&body.as_bytes()[..100_000]).await;
        limits.come_to([PLACES, 1, PLACES]).await;
        child.kill().await.unwrap();
        drop(holding);
        limits.come_to_rest().await;

        let refused = upload().await;
        // Before version 8, curl takes the RST_STREAM that ends the upload for an error, and not for the end of the answer.
        if version == "--http1.1" {
            assert!(
                refused.ends_with("},429,0"),
                "it waited for 100 (Continue): {refused}"
            );
        }
        limits.come_to_rest().await;
    }
}
