//! Sinks whose items wait for a rate.

use std::error::Error as _;

use crate::common::{limiter, ms};
use futures_util::{FutureExt as _, Sink, SinkExt, StreamExt as _, sink, stream};
use tokio::time::{Instant, advance};
use tokio_test::task;
use tollgate::{AcquireError, MaxConcurrency, SinkError, SinkLimitExt as _, Throttle};

/// A channel whose sender is a sink that can be full.
fn channel() -> (
    impl Sink<u32, Error = &'static str> + Unpin,
    tokio::sync::mpsc::Receiver<u32>,
) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let send = |sender: tokio::sync::mpsc::Sender<u32>, item| async move {
        sender.send(item).await.map_err(|_| "gone")?;
        Ok(sender)
    };
    (Box::pin(sink::unfold(sender, send)), receiver)
}

#[tokio::test(start_paused = true)]
async fn each_item_waits_for_the_rate_and_all_arrive_in_order() {
    let limiter = limiter(Throttle::every(ms(100)));
    let (sink, mut received) = channel();
    let start = Instant::now();
    let sending = tokio::spawn(
        stream::iter(0..4)
            .map(Ok)
            .forward(sink.throttled_sink(&limiter)),
    );
    for item in 0..4 {
        assert_eq!(received.recv().await, Some(item));
        assert_eq!(start.elapsed(), ms(100) * item);
    }
    sending.await.unwrap().unwrap();
    assert_eq!(received.recv().await, None, "it was closed");
    assert_eq!(limiter.snapshot().granted, 4);
}

#[tokio::test(start_paused = true)]
async fn a_unit_of_a_dropped_future_serves_the_next_item() {
    let limiter = limiter(Throttle::every(ms(100)));
    let mut sink = sink::drain().throttled_sink(&limiter);
    let poll = |sink: &mut tollgate::ThrottledSink<_>| {
        task::spawn(std::future::poll_fn(|cx| {
            Sink::<u32>::poll_ready(std::pin::Pin::new(&mut *sink), cx)
        }))
        .poll()
        .is_ready()
    };
    assert!(poll(&mut sink) && poll(&mut sink));
    assert_eq!(
        limiter.snapshot().granted,
        1,
        "the second poll takes no other unit"
    );
    sink.start_send_unpin(1).unwrap();
    assert!(!poll(&mut sink));
    assert_eq!(sink.start_send_unpin(2), Err(SinkError::NotReady));
    assert!(sink.send(3).now_or_never().is_none());
    SinkExt::<u32>::flush(&mut sink)
        .now_or_never()
        .expect("a flush waits for no permit")
        .unwrap();
    advance(ms(100)).await;
    assert!(poll(&mut sink));
    sink.start_send_unpin(4).unwrap();
    SinkExt::<u32>::close(&mut sink)
        .now_or_never()
        .expect("nor does closing")
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_full_uses_no_unit() {
    let limiter = limiter(Throttle::every(ms(100)).burst(9));
    let (sink, mut received) = channel();
    let mut sink = sink.throttled_sink(&limiter);
    let mut taken = 0;
    while sink.feed(1).now_or_never().is_some() {
        taken += 1;
    }
    assert!(taken < 9);
    assert_eq!(limiter.snapshot().granted, taken);
    received.recv().await.unwrap();
    assert!(sink.feed(1).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_limiter_and_of_the_sink_are_distinguished() {
    let limiter = limiter(Throttle::every(ms(100)).burst(9));
    let (sink, received) = channel();
    let mut sink = sink.throttled_sink(&limiter);
    sink.send(1).await.unwrap();
    drop(received);
    assert_eq!(sink.send(2).await.unwrap_err(), SinkError::Sink("gone"));

    let mut sink = sink::drain().throttled_sink(&limiter);
    limiter.close();
    let refused = sink.send(3).await.unwrap_err();
    assert_eq!(refused, SinkError::Refused(AcquireError::Closed));
    assert_eq!(
        refused.source().unwrap().to_string(),
        "the limiter is closed"
    );
}

#[tokio::test]
async fn a_policy_of_nothing_but_places_is_refused() {
    let limiter = limiter(MaxConcurrency::new(3));
    let refused = sink::drain()
        .throttled_sink(&limiter)
        .send(1)
        .await
        .unwrap_err();
    assert!(matches!(
        refused,
        SinkError::Refused(AcquireError::NoRate { .. })
    ));
    assert_eq!(limiter.snapshot().granted, 0);
}

/// A fixed bug: a sink checked only the policy that its limiter had when the sink was made.
#[tokio::test(start_paused = true)]
async fn a_sink_refuses_items_while_the_policy_has_no_rate() {
    let limiter = limiter(MaxConcurrency::new(3));
    let mut sink = sink::drain().throttled_sink(&limiter);
    for item in 0..3 {
        limiter.set_policy(MaxConcurrency::new(3)).unwrap();
        for _ in 0..2 {
            assert!(matches!(
                sink.send(item).await,
                Err(SinkError::Refused(AcquireError::NoRate { .. }))
            ));
        }
        limiter.set_policy(Throttle::every(ms(100))).unwrap();
        sink.send(item).await.unwrap();
    }
    assert_eq!(limiter.snapshot().in_flight, 0);
}
