//! The dashboard in a browser, at a width.

use std::env;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

/// Generous: a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name under which WebDriver sends the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys of WebDriver that are no characters.
pub(crate) mod key {
    pub(crate) const NULL: char = '\u{e000}';
    pub(crate) const ENTER: char = '\u{e007}';
    pub(crate) const CONTROL: char = '\u{e009}';
    pub(crate) const END: char = '\u{e010}';
    pub(crate) const HOME: char = '\u{e011}';
}

pub(crate) struct Page {
    http: reqwest::Client,
    /// The URL of the session with the driver.
    session: String,
    /// That of the dashboard.
    url: String,
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/browser"))
}

/// The value that the driver answers with, or its error.
async fn ask(http: &reqwest::Client, method: Method, url: &str, body: Option<Value>) -> Result<Value, String> {
    let request = http.request(method, url);
    let request = if let Some(body) = &body { request.json(body) } else { request };
    let answer = request.send().await.unwrap();
    let is_ok = answer.status().is_success();
    let value = answer.json::<Value>().await.unwrap()["value"].take();
    if is_ok { Ok(value) } else { Err(format!("{body:?}: {}", value["message"])) }
}

impl Page {
    pub(crate) async fn open(width: u32) -> Self {
        let profile = format!("--user-data-dir={}-{width}", variable("CHROMIUM_PROFILE"));
        // Without a sandbox, because root has none. Nothing is asked of the network.
        let flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run \
            --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars";
        let flags: Vec<_> = flags.split_whitespace().chain([&*profile]).collect();
        let capabilities = json!({
            "goog:chromeOptions": { "binary": variable("CHROMIUM"), "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let http = reqwest::Client::new();
        let driver = variable("WEBDRIVER_URL");
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = ask(&http, Method::POST, &format!("{driver}/session"), Some(wanted)).await.unwrap();
        let session = format!("{driver}/session/{}", session["sessionId"].as_str().unwrap());
        let page = Self { http, session, url: variable("DASHBOARD_URL") };
        page.resize(width, 800).await;
        page.goto("/").await;
        page
    }

    async fn post(&self, command: &str, body: Value) -> Result<Value, String> {
        ask(&self.http, Method::POST, &format!("{}/{command}", self.session), Some(body)).await
    }

    async fn get(&self, command: &str) -> Result<Value, String> {
        ask(&self.http, Method::GET, &format!("{}/{command}", self.session), None).await
    }

    pub(crate) async fn goto(&self, path: &str) {
        self.post("url", json!({ "url": format!("{}{path}", self.url) })).await.unwrap();
    }

    pub(crate) async fn back(&self) {
        self.post("back", json!({})).await.unwrap();
    }

    pub(crate) async fn close(&self) {
        ask(&self.http, Method::DELETE, &self.session, None).await.unwrap();
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.post("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await.unwrap();
    }

    /// A window of Chromium is not narrower than 500 pixels, so that a narrow screen is emulated.
    async fn resize(&self, width: u32, height: u64) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", screen).await;
    }

    /// Saves what the whole page looks like.
    pub(crate) async fn save(&self, width: u32, scheme: &str, file: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
        let height = self.run("return document.documentElement.scrollHeight").await;
        self.resize(width, height.as_u64().unwrap()).await;
        tokio::time::sleep(Duration::from_secs(1)).await; // some ticks, to draw the charts anew
        let png = self.get("screenshot").await.unwrap();
        let png = BASE64_STANDARD.decode(png.as_str().unwrap()).unwrap();
        std::fs::write(format!("{}/{file}", variable("SCREENSHOTS")), png).unwrap();
        self.resize(width, 800).await;
    }

    /// The result of a script that may await.
    pub(crate) async fn run(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0];
            (async () => {{ {script} }})().then(value => done({{ value }}), error => done({{ error: String(error) }}));"
        );
        let mut result = self.post("execute/async", json!({ "script": script, "args": [] })).await.unwrap();
        assert_eq!(result["error"], Value::Null, "{script}");
        result["value"].take()
    }

    /// Waits until a script's expression is true.
    pub(crate) async fn wait_until(&self, expression: &str) {
        self.run(&format!("while (!({expression})) await new Promise(resolve => setTimeout(resolve, 50))")).await;
    }

    /// The path of an element's commands.
    async fn find(&self, selector: &str) -> Result<String, String> {
        let found = self.post("element", json!({ "using": "css selector", "value": selector })).await?;
        Ok(format!("element/{}", found[ELEMENT].as_str().unwrap()))
    }

    async fn find_text(&self, selector: &str) -> Result<String, String> {
        let text = self.get(&format!("{}/text", self.find(selector).await?)).await?;
        Ok(text.as_str().unwrap().to_owned())
    }

    pub(crate) async fn text(&self, selector: &str) -> String {
        self.find_text(selector).await.unwrap()
    }

    pub(crate) async fn type_into(&self, selector: &str, keys: &str) {
        let element = self.find(selector).await.unwrap();
        self.post(&format!("{element}/value"), json!({ "text": keys })).await.unwrap();
    }

    pub(crate) async fn click(&self, selector: &str) {
        let element = self.find(selector).await.unwrap();
        self.post(&format!("{element}/click"), json!({})).await.unwrap();
    }

    /// Waits for a text of the page.
    pub(crate) async fn wait_for(&self, selector: &str, what: &str, is_so: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            // An element of a list may be replaced between the two calls.
            let text = self.find_text(selector).await;
            if text.as_deref().is_ok_and(&is_so) {
                return;
            }
            if start.elapsed() > PATIENCE {
                panic!("{selector} is not {what} but {text:?}; the console was told {:?}", self.complaints().await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the console was told since the last call, without mere information.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let entries = self.post("se/log", json!({ "type": "browser" })).await.unwrap();
        let severe = |entry: &&Value| !["INFO", "DEBUG"].contains(&entry["level"].as_str().unwrap_or_default());
        entries.as_array().unwrap().iter().filter(severe).map(ToString::to_string).collect()
    }
}
