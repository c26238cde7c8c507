//! Telemetry of limiters for operators: events and spans of waits for `tracing`, numbers for `metrics`.
//!
//! Each adapter is an [`Observer`](crate::Observer). One adapter may serve many limiters:
//! `Limiter::builder(policy).name("search").observer(adapter.clone())`, and likewise with the builders of keyed and shared
//! limiters. Give each limiter a name: names distinguish the events and metrics of limiters. An adapter leaves keys out unless it
//! is set to show them, because there may be a million keys and they may be secrets.
//!
//! # Events and spans for `tracing`
//!
//! With the feature `tracing`, `TracingObserver` emits an event for each [`LimiterEvent`](crate::LimiterEvent), with the target
//! `tollgate`, the field `limiter` and, if keys are shown, the field `key`. Durations are in seconds. `requested_in` and `acquired_in`
//! are the line of code that called the limiter.
//!
//! | event | level | message | further fields |
//! |---|---|---|---|
//! | `GrantedAfterWait` | debug | granted after a wait | `waited`, `fence`, `cost`, `priority`, `flow`, `requested_in` |
//! | `Denied` | debug | denied | `limit`, `retry_after`, `cost`, `flow`, `requested_in` |
//! | `TimedOut` | debug | timed out | `waited`, `retry_after`, `cost`, `priority`, `flow`, `requested_in` |
//! | `Shed` | debug | shed | `reason`, `cost`, `priority`, `flow`, `requested_in` |
//! | `WouldRefuse` | debug | would refuse a request | `status`, `error`, `cost`, `flow`, `requested_in` |
//! | `LimitMoved` | debug | the limit has moved | `from`, `to` |
//! | `Banned` | info | banned | `limit_index`, `banned_for`, `requested_in` |
//! | `Paused` | info | paused | `paused_for`, absent if the pause has no end |
//! | `Resumed` | info | resumed | `ended_ago` |
//! | `PolicyChanged` | info | the policy has changed | `from`, `to` |
//! | `Closed` | info | closed | |
//! | `StoreUp` | info | the store answers again | `down_for` |
//! | `Reclaimed` | warn | reclaimed a permit | `held`, `permit`, `fence`, `cost`, `acquired_in` |
//! | `ReleasedLate` | warn | a reclaimed permit was released late | `permit`, `fence`, `cost` |
//! | `UpstreamMalformed` | warn | ignored a malformed field of an upstream | `field` |
//! | `Evicted` | warn | evicted a key | `reset_after` |
//! | `TooManyKeys` | warn | refused a new key | |
//! | `StreamEnded` | warn | a throttled stream ended early | `error`, `requested_in` |
//! | `Refused` | warn | refused a request | `reason`, `error`, `cost`, `requested_in` |
//! | `StoreDown` | warn | the store does not answer | `error` |
//!
//! A request that waits has a span `wait` of level debug until it is answered or dropped. The span is a child of the span in
//! which the request was first polled. Its fields are `limiter`, `key`, `cost`, `priority`, `flow`, `requested_in`, and at
//! its end `outcome` (`granted`, `refused` or `cancelled`), `fence` and `error`. A request that does not wait has no span. The field
//! `flow` is the [`FlowId`](crate::FlowId) of a request in a flow; other requests do not have it.
//!
//! # Numbers for `metrics`
//!
//! With the feature `metrics`, `MetricsObserver` counts events when they happen, and `MetricsReporter` sets the numbers that only
//! a snapshot has. No label names a key or a [flow](crate::PermitRequest::flow), of which there may be a million;
//! [`Limiter::flows`](crate::Limiter::flows) lists those with the most waiting requests. Call `MetricsReporter::report` before each scrape,
//! or every few seconds. The numbers of a keyed limiter are sums over all its keys. The numbers of a shared limiter are sums over all keys in this process, unless the table says otherwise.
//!
//! | metric | kind | labels | by | what it is |
//! |---|---|---|---|---|
//! | `tollgate_granted_total` | counter | `limiter` | reporter | grants, also refunded ones |
//! | `tollgate_refunded_total` | counter | `limiter` | reporter | grants that were undone |
//! | `tollgate_in_flight` | gauge | `limiter` | reporter | units in flight |
//! | `tollgate_concurrency` | gauge | `limiter` | reporter | units that may be in flight; an adaptive limit changes this number. For a shared limiter, the number for the key of this handle; not set for a keyed one |
//! | `tollgate_queued` | gauge | `limiter` | reporter | requests that wait |
//! | `tollgate_available` | gauge | `limiter` | reporter | the largest cost that would be granted now. Only for a [`Limiter`](crate::Limiter) |
//! | `tollgate_paused` | gauge | `limiter` | reporter | 1 while the limiter is paused. For a shared limiter, the state of the key of this handle; not set for a keyed one |
//! | `tollgate_keys` | gauge | `limiter` | reporter | known keys of a keyed limiter |
//! | `tollgate_max_keys` | gauge | `limiter` | reporter | how many keys a keyed limiter may know |
//! | `tollgate_store_up` | gauge | `limiter` | reporter | 0 while the store of a shared limiter does not answer |
//! | `tollgate_denied_total` | counter | `limiter`, `limit`, `reason` | observer | `try_acquire` calls that were denied: `reason` is `limit`, `paused` or `store_down` |
//! | `tollgate_timed_out_total` | counter | `limiter` | observer | requests that timed out, or were refused at once because they would time out |
//! | `tollgate_shed_total` | counter | `limiter`, `reason` | observer | requests that a full queue refused (`queue_full`), dropped later (`dropped`), or refused while it let none in (`blocked`) |
//! | `tollgate_wait_seconds` | histogram | `limiter`, `outcome` | observer | how long requests waited, for a shared limiter including the time for the store; `outcome` is `granted` or `timed_out` |
//! | `tollgate_reclaimed_total` | counter | `limiter` | observer | permits reclaimed after their TTL |
//! | `tollgate_released_late_total` | counter | `limiter` | observer | reclaimed permits that were dropped later; the other reclaimed permits have leaked, or are still held |
//! | `tollgate_bans_total` | counter | `limiter`, `limit` | observer | bans that began |
//! | `tollgate_pauses_total` | counter | `limiter` | observer | pauses that began, or whose end moved |
//! | `tollgate_malformed_fields_total` | counter | `limiter`, `field` | observer | header fields of upstreams that were ignored |
//! | `tollgate_policy_changes_total` | counter | `limiter` | observer | policies replaced; for a keyed limiter, once for each key |
//! | `tollgate_evicted_keys_total` | counter | `limiter` | observer | keys that a keyed limiter forgot before their budget was full again |
//! | `tollgate_refused_keys_total` | counter | `limiter` | observer | requests with a new key that a keyed limiter refused |
//! | `tollgate_refused_total` | counter | `limiter`, `reason` | observer | requests that an HTTP layer refused and no limiter denied: `no_identity`, `exceeds_limit`, `misconfigured`, `closed`, `store_failed` |
//! | `tollgate_would_refuse_total` | counter | `limiter`, `status` | observer | requests that an HTTP layer in shadow mode served and would have refused with this status |
//! | `tollgate_streams_ended_total` | counter | `limiter` | observer | `throttled` streams that ended before their source |
//! | `tollgate_store_failures_total` | counter | `limiter` | observer | how often the store of a shared limiter went down |
//!
//! `limiter` is the limiter's name, or `unnamed`. `limit` is the index of the limit in the policy, from 0, with its kind, as in
//! `1/fixed_window`: `throttle`, `concurrency`, `fixed_window`, `token_bucket`, `sliding_window` or `penalty`; or `none` where a
//! pause (`paused`) or a store that does not answer (`store_down`) denied the request. `docs/grafana-dashboard.json` shows these
//! metrics, and the example `prometheus` serves them.
//!
//! # Where a request of a layer is counted
//!
//! A request to a limiter behind a `layers::LimitLayer` is counted in these metrics; `granted` stands for `tollgate_granted_total`,
//! and so on:
//!
//! | what became of the request | without `wait` | with `wait`, and of an `OutboundLayer` |
//! |---|---|---|
//! | admitted | `granted` | `granted`, and `wait_seconds` if it waited |
//! | refused by a limit or a pause | `denied` | `timed_out` and `wait_seconds` |
//! | refused by a full queue, or dropped from it | `shed`, only of a shared limiter | `shed` |
//! | a new key for which there is no room | `refused_keys` | `refused_keys` |
//! | given up by its client while it waited | none | none |
//! | refused by the layer itself: no identity, a cost above a capacity, closed, an error of the store | `refused` | `refused` |
//!
//! The share of requests that limits refuse is therefore the sum of `denied`, `timed_out`, `shed` and `refused_keys`, divided by
//! the same sum with `granted`. The dashboard has a panel for this share.
//!
//! # Buckets
//!
//! The crate `metrics-exporter-prometheus` renders a histogram as a summary unless the buckets are set. Without buckets there is
//! no `tollgate_wait_seconds_bucket`, and panels of percentiles stay empty. Set the buckets, in seconds, as the example does:
//!
//! ```text
//! let waits = Matcher::Full("tollgate_wait_seconds".to_owned());
//! let recorder = PrometheusBuilder::new().set_buckets_for_metric(waits, &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0])?.install_recorder()?;
//! ```

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

#[cfg(feature = "metrics")]
pub use self::metrics::{MetricsObserver, MetricsReporter};
#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
