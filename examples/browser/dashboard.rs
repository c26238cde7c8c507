//! What the dashboard shows, in a browser. `scripts/browser` runs it.

use page::{Page, key, variable, visit};
use serde_json::{Value, json};

/// The numbers of each limiter on the page and on the server, at the same tick and in the same order.
const BOTH: &str = "
    for (;;) {
        const status = await (await fetch('/status')).json();
        if (document.documentElement.dataset.at === String(status.numbers.at)) {
            return Object.entries(status.numbers.panels).flatMap(([name, numbers]) =>
                [...document.querySelectorAll(`#${name} [data-of]`)].map(shown =>
                    ({ of: `${name} ${shown.dataset.of}`, reported: numbers[shown.dataset.of], shown: shown.textContent })));
        }
        await new Promise(resolve => setTimeout(resolve, 20));
    }";
/// The number of coloured pixels of each chart, and its image.
const CHARTS: &str = "
    return [...document.querySelectorAll('.chart canvas')].map(canvas => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        let coloured = 0;
        for (let at = 0; at < data.length; at += 4) {
            const [red, green, blue, alpha] = data.slice(at, at + 4);
            if (alpha === 255 && Math.max(red, green, blue) - Math.min(red, green, blue) > 80) coloured += 1;
        }
        return { coloured, image: canvas.toDataURL() };
    })";

#[tokio::test]
async fn at_1280_pixels() {
    visit(&variable("DASHBOARD_URL"), 1280, async |page| {
        walk(page, 1280).await;
    })
    .await;
}

#[tokio::test]
async fn at_400_pixels() {
    visit(&variable("DASHBOARD_URL"), 400, async |page| {
        walk(page, 400).await;
    })
    .await;
}

async fn walk(page: &Page, width: u32) {
    page.wait_for("#connection", "live", |text| text == "live, 1 page")
        .await;
    // Wait until a few seconds are drawn.
    page.wait_until("document.documentElement.dataset.at > 5")
        .await;

    has_sliders_at_their_charts(page).await;
    shows_what_the_server_tells(page).await;
    is_not_alone(page).await;
    fits(page, width).await;
    follows_a_slider(page).await;
    shares_by_flows(page).await;
    shows_a_leak(page).await;
    assert_eq!(page.complaints().await, Vec::<String>::new());
    tells_what_is_refused(page).await;
    fits(page, width).await;
    // The browser also writes a refusal to the console. The console has no other messages.
    let others = page
        .complaints()
        .await
        .into_iter()
        .filter(|reported| !reported.contains("400 (Bad Request)"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<String>::new());

    page.save(width, "dark", &format!("dashboard-{width}-dark.png"))
        .await;
    page.save(width, "light", &format!("dashboard-{width}.png"))
        .await;
    leaves_nothing(page).await;
}

async fn shows_what_the_server_tells(page: &Page) {
    let both = page.run(BOTH).await;
    let both = both.as_array().unwrap();
    assert_eq!(both.len(), 2 + 2 + 2 + 3 * (2 + 3 + 2) + 3 * 3, "{both:?}");
    for number in both {
        let (reported, shown) = (&number["reported"], number["shown"].as_str().unwrap());
        let Some(reported) = reported.as_f64() else {
            assert_eq!(shown, "–", "{number}");
            continue;
        };
        let (value, unit) = shown.split_once(['/', ' ']).unwrap_or((shown, ""));
        let value: f64 = value.parse().unwrap();
        let value = if unit == "s" && shown.contains(' ') {
            value * 1e3
        } else {
            value
        };
        assert!(
            (value - reported).abs() <= 0.51 + reported * 0.006,
            "{number}"
        );
    }

    let charts = page.run(CHARTS).await;
    page.run("window.before = +document.documentElement.dataset.at")
        .await;
    page.wait_until("document.documentElement.dataset.at > window.before + 2")
        .await;
    let later = page.run(CHARTS).await;
    let (charts, later) = (charts.as_array().unwrap(), later.as_array().unwrap());
    assert_eq!((charts.len(), later.len()), (15, 15));
    for (nth, (chart, later)) in charts.iter().zip(later).enumerate() {
        assert!(
            chart["coloured"].as_u64() > Some(20),
            "chart {nth} is empty"
        );
        // No caller waits for the first limiter.
        assert!(
            nth == 2 || chart["image"] != later["image"],
            "chart {nth} does not move"
        );
    }
}

async fn fits(page: &Page, width: u32) {
    let wide = page
        .run("return document.documentElement.scrollWidth")
        .await;
    assert_eq!(wide, width, "the page is wider than the screen");
    let cut = "
        return [...document.querySelectorAll('.knob label, .knob input[type=number]')]
            .filter(element => element.scrollWidth > element.clientWidth)
            .map(element => element.textContent || element.id)";
    assert_eq!(
        page.run(cut).await,
        json!([]),
        "labels and fields with too little room"
    );
}

/// The sliders of the first limiter and the chart that they move at once are on the first screen. Of each limiter the sliders and all
/// charts fit on one.
async fn has_sliders_at_their_charts(page: &Page) {
    let places = "
        const edges = element => (({ top, bottom }) => [top, bottom])(element.getBoundingClientRect());
        const all = selector => panel => [...panel.querySelectorAll(selector)].map(edges);
        const panels = [...document.querySelectorAll('.panel')];
        return { screen: innerHeight, sliders: panels.map(all('.knob input:not([type=number])')), charts: panels.map(all('.chart')) }";
    let places = page.run(places).await;
    let of_panels =
        |name: &str| serde_json::from_value::<Vec<Vec<[f64; 2]>>>(places[name].clone()).unwrap();
    let (screen, sliders, charts) = (
        places["screen"].as_f64().unwrap(),
        of_panels("sliders"),
        of_panels("charts"),
    );
    assert_eq!((sliders.len(), charts.len()), (5, 5));
    for (nth, (sliders, charts)) in sliders.iter().zip(&charts).enumerate() {
        assert_eq!((sliders.len(), charts.len()), (4, 3));
        let top = sliders
            .iter()
            .chain(charts)
            .map(|[top, _]| *top)
            .fold(f64::INFINITY, f64::min);
        let bottom = sliders
            .iter()
            .chain(charts)
            .map(|[_, bottom]| *bottom)
            .fold(0.0, f64::max);
        assert!(
            bottom - top <= screen,
            "the sliders and charts of limiter {nth} take {} of {screen} pixels",
            bottom - top
        );
    }
    for [top, bottom] in sliders[0].iter().chain(&charts[0][..1]) {
        assert!(
            *top >= 0.0 && *bottom <= screen,
            "one from {top} to {bottom} of {screen} pixels"
        );
    }
}

async fn follows_a_slider(page: &Page) {
    page.type_into("#api-rate", &key::HOME.to_string()).await;
    page.wait_for("#api .policy", "1/s", |text| text == "1/s burst 60")
        .await;
    page.wait_for("#api [data-of=granted]", "a few", |text| number(text) < 4.0)
        .await;
    page.wait_for("#api [data-of=denied]", "many", |text| number(text) > 4.0)
        .await;
    page.type_into("#api-rate", &key::END.to_string()).await;
    page.wait_for("#api .policy", "200/s", |text| text == "200/s burst 60")
        .await;
    page.wait_for("#api [data-of=granted]", "many", |text| number(text) > 12.0)
        .await;
    // Other pages see it as well, and this one after it is loaded anew.
    page.goto("/").await;
    page.wait_for("#api .policy", "still 200/s", |text| {
        text == "200/s burst 60"
    })
    .await;
    assert_eq!(
        page.run("return document.querySelector('#api-rate').value")
            .await,
        "200"
    );
    set(page, "api", &json!({ "rate": 40 })).await;
    page.wait_for("#api .policy", "40/s", |text| text == "40/s burst 60")
        .await;
}

/// A flood takes its share of the requests without flows, and one of five shares with them.
async fn shares_by_flows(page: &Page) {
    let granted = async |tenant: &str, what: &str, is_so: fn(f64) -> bool| {
        let shown = format!("#tenants [data-of={tenant}_granted]");
        page.wait_for(&shown, what, |text| is_so(number(text)))
            .await;
    };
    for _ in 0..2 {
        granted("flood", "a fifth", |rate| rate < 26.0).await;
        granted("gold", "three fifths", |rate| rate > 50.0).await;
        page.click("#tenants-flows").await;
        granted("flood", "most", |rate| rate > 45.0).await;
        granted("gold", "few", |rate| rate < 36.0).await;
        page.click("#tenants-flows").await;
    }
}

async fn shows_a_leak(page: &Page) {
    set(page, "database", &json!({ "ttl": 3 })).await;
    let record = "
        window.seen = [];
        const list = document.querySelector('#database .leaks ol');
        new MutationObserver(() => window.seen.push(list.firstChild?.textContent)).observe(list, { childList: true })";
    page.run(record).await;
    let list = "#database .leaks ol";
    let before = page.text(list).await; // the leaks of another test
    page.click("#database button").await;
    page.wait_for(list, "longer", |text| text.len() > before.len())
        .await;
    page.wait_for("#database .leaks li:first-child", "reclaimed", |text| {
        text.ends_with("its TTL of 3.0 s")
    })
    .await;
    let seen = page.run("return window.seen.filter(text => text)").await;
    let seen: Vec<_> = seen
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap().replace('\u{a0}', " "))
        .collect();
    let permit = seen
        .last()
        .unwrap()
        .strip_suffix("reclaimed after its TTL of 3.0 s")
        .unwrap();
    let left = seen.iter().filter_map(|text| {
        text.strip_prefix(permit)?
            .strip_prefix("reclaimed in ")?
            .strip_suffix(" s")
    });
    let left: Vec<f64> = left.map(|left| left.parse().unwrap()).collect();
    assert!(
        left.len() > 1 && left[0] <= 3.0 && left.is_sorted_by(|earlier, later| earlier > later),
        "{seen:?}"
    );
    set(page, "database", &json!({ "ttl": 8 })).await;
    // Without a TTL, a leak would be for ever.
    assert_eq!(
        page.run("return document.querySelector('#search .leaks').hidden")
            .await,
        true
    );
}

async fn tells_what_is_refused(page: &Page) {
    let refusal = "#api .refusal";
    let retype = |keys: &str| format!("{}a{}{keys}{}", key::CONTROL, key::NULL, key::ENTER);
    page.type_into("#api-rate-field", &retype("0")).await;
    page.wait_for(refusal, "the limiter's error", |text| {
        text.contains("the rate of `0/s burst 60` is zero")
    })
    .await;
    page.type_into("#api-rate-field", &retype("100000")).await;
    page.wait_for(refusal, "the range", |text| {
        text == "Rate: give a whole number from 1 to 200, not 100000"
    })
    .await;
    page.type_into("#api-rate-field", &retype("-")).await;
    page.wait_for(refusal, "the range", |text| {
        text == "Rate: give a whole number from 1 to 200, not \"\""
    })
    .await;
    assert_eq!(page.text("#api .policy").await, "40/s burst 60");
    page.type_into("#api-rate-field", &retype("41")).await;
    page.wait_for("#api .policy", "41/s", |text| text == "41/s burst 60")
        .await;
    assert_eq!(page.text(refusal).await, "");
    set(page, "api", &json!({ "rate": 40 })).await;
}

async fn is_not_alone(page: &Page) {
    let join = "
        window.other = new EventSource('/events');
        const start = await new Promise(resolve => window.other.addEventListener('start', resolve, { once: true }));
        return JSON.parse(start.data).history.length";
    assert!(
        page.run(join).await.as_u64() > Some(20),
        "a new page gets no events from before it"
    );
    page.wait_for("#connection", "of two pages", |text| {
        text == "live, 2 pages"
    })
    .await;
    page.run("window.other.close()").await;
    page.wait_for("#connection", "of one page", |text| text == "live, 1 page")
        .await;
}

/// A page that the browser has left is not counted. It is live again when the browser returns.
async fn leaves_nothing(page: &Page) {
    for _ in 0..2 {
        page.goto("/status").await;
        page.wait_until("(await (await fetch('/status')).json()).pages === 0")
            .await;
        page.back().await;
        page.wait_for("#connection", "live again", |text| text == "live, 1 page")
            .await;
    }
}

async fn set(page: &Page, name: &str, settings: &Value) {
    let options = json!({ "method": "PUT", "headers": { "content-type": "application/json" }, "body": settings.to_string() });
    let answer = page
        .run(&format!(
            "return (await fetch('/panels/{name}', {options})).status"
        ))
        .await;
    assert_eq!(answer, 204);
}

fn number(text: &str) -> f64 {
    text.trim_end_matches("/s").parse().unwrap_or(f64::NAN)
}
