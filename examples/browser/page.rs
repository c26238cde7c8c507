//! A page in a browser, by WebDriver. The tests of this package share it.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "for the tests alone"
)]

use std::env;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::FutureExt as _;
use reqwest::Method;
use serde_json::{Value, json};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The name under which WebDriver sends the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys of WebDriver that are not characters.
pub mod key {
    pub const NULL: char = '\u{e000}';
    pub const ENTER: char = '\u{e007}';
    pub const CONTROL: char = '\u{e009}';
    pub const END: char = '\u{e010}';
    pub const HOME: char = '\u{e011}';
}

#[derive(Debug)]
pub struct Page {
    http: reqwest::Client,
    /// The URL of the session with the driver.
    session: String,
    /// The URL of the server, without a path.
    origin: String,
}

/// A variable that `scripts/browser` has set.
pub fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/browser"))
}

/// Opens the server's page `/` in a browser of its own, and closes the browser after the steps, also when they fail.
pub async fn visit(origin: &str, width: u32, steps: impl AsyncFnOnce(&Page)) {
    let page = Page::open(origin, width).await;
    let walked = AssertUnwindSafe(steps(&page)).catch_unwind().await;
    page.close().await;
    if let Err(failure) = walked {
        resume_unwind(failure);
    }
}

/// The value that the driver answers with, or its error.
async fn ask(
    http: &reqwest::Client,
    method: Method,
    url: &str,
    body: Option<Value>,
) -> Result<Value, String> {
    let request = http.request(method, url);
    let request = if let Some(body) = &body {
        request.json(body)
    } else {
        request
    };
    let answer = request.send().await.unwrap();
    let is_ok = answer.status().is_success();
    let value = answer.json::<Value>().await.unwrap()["value"].take();
    if is_ok {
        Ok(value)
    } else {
        Err(format!("{body:?}: {}", value["message"]))
    }
}

impl Page {
    async fn open(origin: &str, width: u32) -> Self {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let nth = OPENED.fetch_add(1, Relaxed);
        let profile = format!(
            "--user-data-dir={}-{}-{nth}",
            variable("CHROMIUM_PROFILE"),
            process::id()
        );
        // Chromium runs without a sandbox, because root cannot use one. No network is needed.
        let flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run \
            --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars";
        let flags: Vec<_> = flags.split_whitespace().chain([&*profile]).collect();
        let capabilities = json!({
            "goog:chromeOptions": { "binary": variable("CHROMIUM"), "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": PATIENCE.as_millis() as u64 },
        });
        // With the features of the whole workspace, reqwest needs a provider of TLS, also for http://.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::new();
        let driver = variable("WEBDRIVER_URL");
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = ask(
            &http,
            Method::POST,
            &format!("{driver}/session"),
            Some(wanted),
        )
        .await
        .unwrap();
        let session = format!(
            "{driver}/session/{}",
            session["sessionId"].as_str().unwrap()
        );
        let page = Self {
            http,
            session,
            origin: origin.to_owned(),
        };
        page.resize(width, 800).await;
        page.goto("/").await;
        page
    }

    async fn post(&self, command: &str, body: Value) -> Result<Value, String> {
        ask(
            &self.http,
            Method::POST,
            &format!("{}/{command}", self.session),
            Some(body),
        )
        .await
    }

    async fn get(&self, command: &str) -> Result<Value, String> {
        ask(
            &self.http,
            Method::GET,
            &format!("{}/{command}", self.session),
            None,
        )
        .await
    }

    pub async fn goto(&self, path: &str) {
        self.post("url", json!({ "url": format!("{}{path}", self.origin) }))
            .await
            .unwrap();
    }

    pub async fn back(&self) {
        self.post("back", json!({})).await.unwrap();
    }

    async fn close(self) {
        ask(&self.http, Method::DELETE, &self.session, None)
            .await
            .unwrap();
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.post(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await
        .unwrap();
    }

    /// Emulates a screen of this size. A window of Chromium cannot be narrower than 500 pixels.
    async fn resize(&self, width: u32, height: u64) {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", screen)
            .await;
    }

    /// Saves a screenshot of the whole page.
    pub async fn save(&self, width: u32, scheme: &str, file: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
        let height = self
            .run("return document.documentElement.scrollHeight")
            .await;
        self.resize(width, height.as_u64().unwrap()).await;
        tokio::time::sleep(Duration::from_secs(1)).await; // some ticks, to draw the charts anew
        let png = self.get("screenshot").await.unwrap();
        let png = BASE64_STANDARD.decode(png.as_str().unwrap()).unwrap();
        std::fs::write(format!("{}/{file}", variable("SCREENSHOTS")), png).unwrap();
        self.resize(width, 800).await;
    }

    /// The result of a script that may await.
    pub async fn run(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0];
            (async () => {{ {script} }})().then(value => done({{ value }}), error => done({{ error: String(error) }}));"
        );
        let mut result = self
            .post("execute/async", json!({ "script": script, "args": [] }))
            .await
            .unwrap();
        assert_eq!(result["error"], Value::Null, "{script}");
        result["value"].take()
    }

    /// Waits until a script's expression is true.
    pub async fn wait_until(&self, expression: &str) {
        self.run(&format!(
            "while (!({expression})) await new Promise(resolve => setTimeout(resolve, 50))"
        ))
        .await;
    }

    /// The path of an element's commands.
    async fn find(&self, selector: &str) -> Result<String, String> {
        let found = self
            .post(
                "element",
                json!({ "using": "css selector", "value": selector }),
            )
            .await?;
        Ok(format!("element/{}", found[ELEMENT].as_str().unwrap()))
    }

    async fn find_text(&self, selector: &str) -> Result<String, String> {
        let text = self
            .get(&format!("{}/text", self.find(selector).await?))
            .await?;
        Ok(text.as_str().unwrap().to_owned())
    }

    pub async fn text(&self, selector: &str) -> String {
        self.find_text(selector).await.unwrap()
    }

    pub async fn type_into(&self, selector: &str, keys: &str) {
        let element = self.find(selector).await.unwrap();
        self.post(&format!("{element}/value"), json!({ "text": keys }))
            .await
            .unwrap();
    }

    pub async fn click(&self, selector: &str) {
        let element = self.find(selector).await.unwrap();
        self.post(&format!("{element}/click"), json!({}))
            .await
            .unwrap();
    }

    /// Waits for a text of the page.
    pub async fn wait_for(&self, selector: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            // An element of a list may be replaced between the two calls.
            let text = self.find_text(selector).await;
            if text.as_deref().is_ok_and(&is_so) {
                return;
            }
            if start.elapsed() > PATIENCE {
                panic!(
                    "{selector} is not {what} but {text:?}; the console shows {:?}",
                    self.complaints().await
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The messages of the console since the last call, from warnings up.
    pub async fn complaints(&self) -> Vec<String> {
        let entries = self
            .post("se/log", json!({ "type": "browser" }))
            .await
            .unwrap();
        let severe = |entry: &&Value| {
            !["INFO", "DEBUG"].contains(&entry["level"].as_str().unwrap_or_default())
        };
        entries
            .as_array()
            .unwrap()
            .iter()
            .filter(severe)
            .map(ToString::to_string)
            .collect()
    }
}
