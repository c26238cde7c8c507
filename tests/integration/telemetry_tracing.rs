//! The events and spans that limiters send to a subscriber of `tracing`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use crate::common::everything::{KEY, NAMES, SHARED_KEY, everything};
use crate::common::{ms, queued};
use tokio::time::sleep;
use tokio_test::assert_ready_ok;
use tollgate::telemetry::TracingObserver;
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency, Throttle};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The fields of an event or a span, as text.
#[derive(Debug, Clone, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("none", |value| value)
    }

    fn as_f64(&self, name: &str) -> f64 {
        self.get(name)
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {}", self.get(name)))
    }
}

#[derive(Debug)]
struct SpanSeen {
    parent: Option<&'static str>,
    fields: Fields,
    open: bool,
}

#[derive(Debug, Default)]
struct Seen {
    events: Vec<(Level, Fields)>,
    spans: Vec<SpanSeen>,
}

/// Collects the events and spans with the target `tollgate`.
#[derive(Clone, Default)]
struct Collect(Arc<Mutex<Seen>>);

impl Collect {
    /// Collects from now on, in this thread.
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let collect = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(collect.clone()));
        (collect, guard)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collect {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "tollgate" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.seen().events.push((*event.metadata().level(), fields));
        }
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        if span.metadata().target() == "tollgate" {
            assert_eq!(
                (span.name(), *span.metadata().level()),
                ("wait", Level::DEBUG)
            );
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            let parent = span.parent().map(|parent| parent.metadata().name());
            let mut seen = self.seen();
            span.extensions_mut().insert(seen.spans.len());
            seen.spans.push(SpanSeen {
                parent,
                fields,
                open: true,
            });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(&nth) = context.span(id).unwrap().extensions().get::<usize>() {
            values.record(&mut self.seen().spans[nth].fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(&nth) = context.span(&id).unwrap().extensions().get::<usize>() {
            self.seen().spans[nth].open = false;
        }
    }
}

const LEVELS: [(Level, &[&str]); 3] = [
    (
        Level::DEBUG,
        &[
            "granted after a wait",
            "denied",
            "timed out",
            "shed",
            "would refuse a request",
            "the limit has moved",
        ],
    ),
    (
        Level::INFO,
        &[
            "banned",
            "paused",
            "resumed",
            "the policy has changed",
            "closed",
            "the store answers again",
        ],
    ),
    (
        Level::WARN,
        &[
            "reclaimed a permit",
            "a reclaimed permit was released late",
            "ignored a malformed field of an upstream",
            "evicted a key",
            "refused a new key",
            "refused a request",
            "a throttled stream ended early",
            "the store does not answer",
        ],
    ),
];

/// The table of the docs has the same messages, levels and fields.
#[tokio::test(start_paused = true)]
async fn every_event_has_its_level_its_fields_and_no_key() {
    let (collect, _guard) = Collect::begin();
    everything(TracingObserver::new()).await;
    let seen = collect.seen();
    let expected: BTreeSet<_> = LEVELS
        .iter()
        .flat_map(|(level, messages)| messages.iter().map(|text| (*level, *text)))
        .collect();
    let reported = seen
        .events
        .iter()
        .map(|(level, fields)| (*level, fields.get("message")));
    assert_eq!(reported.collect::<BTreeSet<_>>(), expected);

    let table: Vec<Vec<&str>> = include_str!("../../src/telemetry.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `"))
        .map(|row| row.split('|').map(str::trim).collect())
        .filter(|row: &Vec<&str>| ["debug", "info", "warn"].contains(&row[1]))
        .collect();
    assert_eq!(table.len(), expected.len());
    for row in table {
        let of_row = |(_, fields): &&(Level, Fields)| fields.get("message") == row[2];
        let all: Vec<_> = seen.events.iter().filter(of_row).collect();
        assert!(!all.is_empty(), "{row:?}");
        let documented: BTreeSet<_> = row[3].split('`').skip(1).step_by(2).collect();
        let fields: BTreeSet<_> = all
            .iter()
            .flat_map(|(_, fields)| fields.0.keys().copied())
            .collect();
        let own = fields
            .into_iter()
            .filter(|name| !["limiter", "message"].contains(name))
            .collect::<BTreeSet<_>>();
        assert_eq!(own, documented, "{row:?}");
        assert!(
            all.iter()
                .all(|(level, _)| level.as_str().eq_ignore_ascii_case(row[1])),
            "{row:?}"
        );
    }
    for (_, fields) in &seen.events {
        assert!(NAMES.contains(&fields.get("limiter")), "{fields:?}");
        assert!(
            !format!("{fields:?}").contains(KEY) && !format!("{fields:?}").contains(SHARED_KEY),
            "{fields:?}"
        );
    }
    let ends: BTreeSet<_> = seen
        .spans
        .iter()
        .map(|span| (span.fields.get("limiter"), span.fields.get("outcome")))
        .collect();
    for name in NAMES {
        assert!(
            ends.contains(&(name, "granted")) && ends.contains(&(name, "refused")),
            "{ends:?}"
        );
    }
    assert!(
        seen.spans
            .iter()
            .all(|span| !span.open && !format!("{:?}", span.fields).contains(KEY))
    );
}

#[tokio::test(start_paused = true)]
async fn keys_are_shown_where_they_are_asked_for() {
    let (collect, _guard) = Collect::begin();
    everything(TracingObserver::new().with_keys()).await;
    let seen = collect.seen();
    let spans = seen.spans.iter().map(|span| &span.fields);
    for fields in seen.events.iter().map(|(_, fields)| fields).chain(spans) {
        let expected = match fields.get("limiter") {
            "plain" => vec!["none".to_owned()],
            "keyed" => vec![format!("{KEY:?}"), r#""other""#.to_owned()],
            _ => vec![format!("{SHARED_KEY:?}"), "none".to_owned()],
        };
        assert!(
            expected.contains(&fields.get("key").to_owned()),
            "{fields:?}"
        );
    }
}

/// The span lasts from the first poll that waits to the poll with the answer, or to the drop. Its parent is the caller's span.
#[tokio::test(start_paused = true)]
async fn a_span_lasts_as_long_as_its_request_waits() {
    let (collect, _guard) = Collect::begin();
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .name("jobs")
        .observer(TracingObserver::new())
        .build()
        .unwrap();
    let spans = || {
        collect
            .seen()
            .spans
            .iter()
            .map(|span| span.open)
            .collect::<Vec<_>>()
    };
    let held = limiter.acquire().await.unwrap();
    assert!(spans().is_empty(), "it did not wait");
    let (mut first, second) =
        info_span!("handler").in_scope(|| (queued(limiter.acquire()), queued(limiter.acquire())));
    assert_eq!(spans(), [true, true]);
    drop(second);
    sleep(ms(30)).await;
    drop(held);
    assert_eq!(spans(), [true, false], "it has not seen its permit");
    let permit = assert_ready_ok!(first.poll());
    assert_eq!(spans(), [false, false]);
    assert!(limiter.request().timeout(ms(5)).acquire().await.is_err());

    let seen = collect.seen();
    let [granted, cancelled, refused] = &seen.spans[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(
        (granted.parent, cancelled.parent, refused.parent),
        (Some("handler"), Some("handler"), None)
    );
    let of = |span: &SpanSeen| {
        ["limiter", "outcome", "fence", "error"].map(|name| span.fields.get(name).to_owned())
    };
    let fence = permit.fence().to_string();
    assert_eq!(of(granted), ["jobs", "granted", &fence, "none"]);
    assert_eq!(of(cancelled), ["jobs", "cancelled", "none", "none"]);
    assert_eq!(of(refused)[..3], ["jobs", "refused", "none"]);
    assert!(
        refused.fields.get("error").contains("within the timeout"),
        "{refused:?}"
    );
    assert!(
        granted
            .fields
            .get("requested_in")
            .contains("telemetry_tracing.rs"),
        "{granted:?}"
    );
    let [(_, after_wait), (_, timed_out)] = &seen.events[..] else {
        panic!("{:?}", seen.events)
    };
    assert_eq!(
        (after_wait.as_f64("waited"), timed_out.as_f64("waited")),
        (0.03, 0.005)
    );
}

#[tokio::test(start_paused = true)]
async fn spans_can_be_left_out_and_are_not_made_without_a_subscriber() {
    let (collect, guard) = Collect::begin();
    let counts = || {
        let seen = collect.seen();
        (seen.spans.len(), seen.events.len())
    };
    let wait = async |observer| {
        let limiter = Limiter::builder(Throttle::every(ms(5)))
            .observer(observer)
            .build()
            .unwrap();
        for _ in 0..2 {
            limiter.acquire().await.unwrap().release();
        }
    };
    wait(TracingObserver::new().without_spans()).await;
    assert_eq!(counts(), (0, 1));
    drop(guard);
    wait(TracingObserver::new()).await;
    assert_eq!(counts(), (0, 1));
    let keyed = KeyedLimiter::<u8>::builder(Throttle::every(ms(5)))
        .observer(TracingObserver::new())
        .build()
        .unwrap();
    assert!(keyed.try_acquire(&1).is_ok() && keyed.try_acquire(&1).is_err());
}
