//! The integration tests: a module for each subject, in one program, so that it is linked once.
//!
//! The tests run concurrently in one process. A test that needs a process of its own is a program beside this directory.

#[global_allocator]
static ALLOCATOR: common::counting::Counting = common::counting::Counting;

mod adaptive;
mod available;
mod bad_input;
mod by_reference;
mod cancellation;
mod cancellation_matrix;
mod carry_over;
#[cfg(feature = "http")]
mod client_ip;
mod common;
#[cfg(feature = "serde")]
mod config;
mod costs_by_unit;
mod costs_memory;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod deployment;
mod errors;
mod events;
mod explained;
#[cfg(feature = "quanta")]
mod fast_clock;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod faults;
mod first_hour;
mod flows;
mod foreign_wakers;
#[cfg(feature = "http")]
mod fuzzed;
mod grant_time;
mod group;
mod group_reclaim;
mod group_request;
mod hand_off;
#[cfg(feature = "http")]
mod http_fields;
#[cfg(feature = "http")]
mod http_hostile;
#[cfg(feature = "http")]
mod http_layer;
#[cfg(feature = "http")]
mod http_layer_server;
#[cfg(feature = "http")]
mod http_layer_terms;
#[cfg(feature = "http")]
mod http_outbound;
#[cfg(feature = "http")]
mod http_outbound_costs;
#[cfg(feature = "http")]
mod http_readiness;
#[cfg(feature = "http")]
mod http_refusals;
#[cfg(feature = "http")]
mod http_upstream;
mod invariants;
mod jitter;
mod keyed;
mod keyed_control;
mod keyed_foreign_code;
mod keyed_full;
mod keyed_memory;
mod keyed_stress;
mod names;
mod observer;
mod observers;
#[cfg(feature = "conformance")]
mod own_store;
mod owned;
mod pause;
mod policies;
mod policy_forms;
mod precise_timer;

mod programs;
mod queue;
mod queue_order;
mod reclaim;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_cluster;
mod replay;
mod reservation;
mod rooms;
mod runtimes;
mod runtimes_awake;
mod set_policy;
mod settle;
mod shared;
mod shared_carrier;
mod shared_faults;
mod shared_local;
mod shared_memory;
mod shared_policies;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod shared_stores;
mod shared_turns;
mod sinks;
mod split_merge;
mod streams;
mod stress;
mod stress_millions;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod support;
#[cfg(all(feature = "http", feature = "metrics"))]
mod telemetry_metrics;
#[cfg(all(feature = "http", feature = "tracing"))]
mod telemetry_tracing;
#[cfg(any(feature = "mysql-tls", feature = "postgres-tls", feature = "redis-tls"))]
mod tls;
mod totals;
mod traps;
#[cfg(feature = "http")]
mod traps_http;
mod ttl_by_request;
mod wakers;
