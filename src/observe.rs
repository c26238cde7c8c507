//! Observers of limiters, and what they receive: events, and the waits of requests.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::contain_panic::contain_panic;
use crate::error::AcquireError;
use crate::event::EventKind;
use crate::flow::FlowId;
use crate::priority::Priority;

/// Receives the events of limiters, and the waits of their requests. One observer may serve any number of limiters, keyed
/// limiters and shared limiters.
///
/// Pass an observer to `observer` of a builder: [`LimiterBuilder::observer`](crate::LimiterBuilder::observer), which states when
/// an observer is called and what it may do, or those of [keyed](crate::KeyedLimiterBuilder::observer) and
/// [shared](crate::SharedLimiterBuilder::observer) limiters. [`LimiterEvent`] has a table of all events.
///
/// A closure that takes a [`&LimiterEvent<'_>`](LimiterEvent) is an observer; `on_event` of each builder takes a closure without
/// a type for its argument. With the features `tracing` and `metrics`, the module `telemetry` has two observers that are ready to
/// use.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tollgate::{EventKind, KeyedLimiter, Limiter, MaxConcurrency, LimiterEvent, Observer};
///
/// #[derive(Clone, Default)]
/// struct Denials(Arc<Mutex<Vec<String>>>);
///
/// impl Observer for Denials {
///     fn observe(&self, event: &LimiterEvent<'_>) {
///         if let EventKind::Denied { decision, .. } = event.kind {
///             let limit = decision.denied_by();
///             self.0.lock().unwrap().push(format!("{:?} {:?}: {}", event.name(), event.key, limit.unwrap()));
///         }
///     }
/// }
///
/// let denials = Denials::default();
/// let limiter = Limiter::builder(MaxConcurrency::new(1)).name("search").observer(denials.clone()).build()?;
/// let keyed = KeyedLimiter::builder(MaxConcurrency::new(1)).name("users").observer(denials.clone()).build()?;
/// let _permits = (limiter.try_acquire()?, keyed.try_acquire(&7)?);
/// assert!(limiter.try_acquire().is_err() && keyed.try_acquire(&7).is_err());
/// let seen = denials.0.lock().unwrap();
/// assert_eq!(seen[0], r#"Some("search") None: 1 concurrent"#);
/// assert_eq!(seen[1], r#"Some("users") Some(7): 1 concurrent"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives an event.
    fn observe(&self, event: &LimiterEvent<'_>);

    /// A request has begun to wait. The returned [`OpenWait`] is kept with the request, and receives the end of the wait. The
    /// default is `None`.
    ///
    /// This is called in the task or thread of the request, at its first poll. The wait ends there, too. It is not called for a
    /// request that does not wait. The request is already in the queue, so the event of its grant may be reported first. See
    /// [`OpenWait`] for an example.
    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        _ = wait;
        None
    }
}

impl<F: Fn(&LimiterEvent<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &LimiterEvent<'_>) {
        self(event);
    }
}

/// An event as an [`Observer`] receives it: the limiter, the key, and what has happened.
///
/// | event | when | what it has |
/// |---|---|---|
/// | [`GrantedAfterWait`](EventKind::GrantedAfterWait) | a request that had to wait is granted | the permit, how long it waited, where it was requested |
/// | [`TimedOut`](EventKind::TimedOut) | a request times out, or fails at once because it would | how long it waited, when to retry |
/// | [`Shed`](EventKind::Shed) | a full queue drops or refuses a request | why |
/// | [`Denied`](EventKind::Denied) | `try_acquire` is denied | the [`Decision`](crate::Decision): which limit denied, when to retry |
/// | [`Banned`](EventKind::Banned) | a denied attempt starts a [ban](crate::Penalty::ban) | for how long |
/// | [`Reclaimed`](EventKind::Reclaimed) | the TTL of a permit has passed | the permit, how long it was held, where it was requested |
/// | [`ReleasedLate`](EventKind::ReleasedLate) | a permit is dropped after it was reclaimed: its holder was slow, and has not leaked it | the permit |
/// | [`LimitMoved`](EventKind::LimitMoved) | an [adaptive](crate::Adapt) concurrency finds another limit | from which to which |
/// | [`Paused`](EventKind::Paused) | a pause begins, or its end moves | for how long |
/// | [`Resumed`](EventKind::Resumed) | a pause ends, by a call or by itself | how long ago |
/// | [`UpstreamMalformed`](EventKind::UpstreamMalformed) | an upstream's answer had a field that was ignored | which |
/// | [`PolicyChanged`](EventKind::PolicyChanged) | the policy is replaced | from which to which |
/// | [`Closed`](EventKind::Closed) | the limiter is closed | |
/// | [`StoreDown`](EventKind::StoreDown) | calls to the store of a shared limiter are given up for a while | the error |
/// | [`StoreUp`](EventKind::StoreUp) | the store answers again | for how long it was down |
/// | [`Evicted`](EventKind::Evicted) | a keyed limiter forgets a key before it is reset | how long until then |
/// | [`TooManyKeys`](EventKind::TooManyKeys) | a keyed limiter refuses a new key | |
/// | [`StreamEnded`](EventKind::StreamEnded) | a `throttled` stream ends before its source | the error |
/// | [`WouldRefuse`](EventKind::WouldRefuse) | a layer of HTTP in [shadow mode](crate::layers::LimitLayer::shadow) serves a request that it would refuse | with which status, and why |
/// | [`Refused`](EventKind::Refused) | a [layer of HTTP](crate::layers::LimitLayer) refuses a request that its limiter has not denied | why |
///
/// A grant without a wait causes no event, so that it needs no lock. [`LimiterSnapshot`](crate::LimiterSnapshot) counts it. An
/// `acquire` of a shared limiter waits for the store, too; a grant of `try_acquire` causes no event. A ban that begins in the
/// store is reported by the process whose request caused it. A later [policy](crate::SharedLimiterBuilder::revision) is reported by each
/// process, for each key that it uses.
///
/// # Keys
///
/// An event of one key of a keyed or shared limiter has that key. A call that changes all keys of a keyed limiter
/// ([`pause_for`](crate::KeyedLimiter::pause_for), [`resume`](crate::KeyedLimiter::resume),
/// [`set_policy`](crate::KeyedLimiter::set_policy), [`close`](crate::KeyedLimiter::close)), and the end of such a pause, cause an
/// event for each key that is [active](crate::KeyedLimiter#memory) at the time.
///
/// # Order
///
/// The effects of one call are reported in the order in which they happened, cause before effect. They are reported before the
/// affected waiters are woken and before the call returns. So the events of calls in one thread are in the order of the calls.
/// Events of calls in different threads are reported outside the lock that orders the calls, so they may be reported in another
/// order, or at the same time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{EventKind, Limiter, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (events, seen) = std::sync::mpsc::channel();
/// let limiter = Limiter::builder(Throttle::every(Duration::from_secs(1)))
///     .name("mail")
///     .on_event(move |event| match &event.kind {
///         EventKind::GrantedAfterWait { waited, .. } => events.send(format!("{:?} waited {waited:?}", event.name())).unwrap(),
///         _ => events.send(event.to_string()).unwrap(), // as text
///     })
///     .build()?;
/// for _ in 0..2 {
///     limiter.acquire().await?.release();
/// }
/// assert!(limiter.try_acquire().is_err());
/// assert_eq!(seen.recv()?, r#"Some("mail") waited 1s"#);
/// assert_eq!(seen.recv()?, "mail: denied by `throttle every 1s`; retry after 1s");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LimiterEvent<'a> {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one. All keys of a keyed or shared limiter have the same
    /// name.
    pub limiter: Option<&'a Arc<str>>,
    /// The key of a keyed or shared limiter, if the event belongs to one. [`key_as`](Self::key_as) returns it with its type.
    pub key: Option<ObservedKey<'a>>,
    /// What has happened. [`EventKind`] is `Clone`, so an observer can keep it or send it.
    pub kind: &'a EventKind,
}

impl<'a> LimiterEvent<'a> {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.limiter.map(|name| &**name)
    }

    /// The key, if the event has one of this type. See [`KeyedLimiterBuilder::on_event`](crate::KeyedLimiterBuilder::on_event)
    /// for an example.
    #[must_use]
    pub fn key_as<K: 'static>(&self) -> Option<&'a K> {
        self.key?.downcast_ref()
    }
}

/// `mail "alice": granted after 1s`: the name and the key, if it has them, and what has happened. The key may be a secret: print
/// only `kind` then.
impl fmt::Display for LimiterEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.limiter, self.key) {
            (Some(name), Some(key)) => write!(f, "{name} {key:?}: ")?,
            (Some(name), None) => write!(f, "{name}: ")?,
            (None, Some(key)) => write!(f, "{key:?}: ")?,
            (None, None) => {}
        }
        self.kind.fmt(f)
    }
}

/// The key that an event belongs to, of any type. It can be formatted by `Debug`, or downcast to its type.
///
/// The key of a [`SharedLimiter`](crate::SharedLimiter) is an `Arc<[u8]>`, and is formatted as text with escapes.
///
/// There may be a million keys, and a key may be a secret: consider this before you use it as a label or log it.
///
/// ```
/// use tollgate::{KeyedLimiter, Rate, TokenBucket};
///
/// let (events, seen) = std::sync::mpsc::channel();
/// let limiter = KeyedLimiter::<String>::builder(TokenBucket::new(Rate::per_minute(1), 1))
///     .on_event(move |event| {
///         let Some(key) = event.key else { return };
///         events.send((format!("{key:?}"), key.downcast_ref::<String>().cloned())).unwrap();
///     })
///     .build()?;
/// assert!(limiter.try_acquire("alice").is_ok() && limiter.try_acquire("alice").is_err());
/// assert_eq!(seen.recv()?, (r#""alice""#.to_owned(), Some("alice".to_owned())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct ObservedKey<'a> {
    key: &'a (dyn Any + Send + Sync),
    format: FormatKey,
}

/// Formats a key. The function knows the type of the key.
pub(crate) type FormatKey = fn(&dyn Any, &mut fmt::Formatter<'_>) -> fmt::Result;

impl<'a> ObservedKey<'a> {
    pub(crate) fn new<K: Send + Sync + 'static>(key: &'a K, format: FormatKey) -> Self {
        Self { key, format }
    }

    /// The key, if keys are of this type.
    #[must_use]
    pub fn downcast_ref<K: 'static>(&self) -> Option<&'a K> {
        self.key.downcast_ref()
    }
}

impl fmt::Debug for ObservedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.format)(self.key, f)
    }
}

/// Formats keys that are `Debug`.
pub(crate) fn format_by_debug<K: fmt::Debug + 'static>(
    key: &dyn Any,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match key.downcast_ref::<K>() {
        Some(key) => key.fmt(f),
        None => format_nothing(key, f),
    }
}

/// Formats a placeholder, for a limiter without an observer.
pub(crate) fn format_nothing(_: &dyn Any, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("..")
}

/// A request that begins to wait: the argument of [`Observer::wait_begins`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WaitStart<'a> {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    pub limiter: Option<&'a Arc<str>>,
    /// The key of a keyed or a shared limiter.
    pub key: Option<ObservedKey<'a>>,
    /// The units of the request.
    pub cost: u64,
    /// The priority of the request.
    pub priority: Priority,
    /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
    pub flow: Option<FlowId>,
    /// The longest time that the request waits, if it has a timeout.
    pub timeout: Option<Duration>,
    /// Where in the program the request was made.
    pub requested_in: &'static Location<'static>,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum WaitEnd<'a> {
    /// The request has its permit.
    #[non_exhaustive]
    Granted {
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
    },
    /// The request failed with this error.
    Refused(&'a AcquireError),
    /// The future was dropped before the request was answered.
    Cancelled,
}

/// A wait in progress: what an observer [keeps with a request](Observer::wait_begins) while the request waits.
///
/// It is called and dropped outside every lock. A panic in it is caught.
///
/// # Examples
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use tollgate::{Limiter, MaxConcurrency, LimiterEvent, Observer, OpenWait, WaitEnd, WaitStart};
///
/// struct Waits(Sender<String>);
/// struct Open(Sender<String>);
///
/// impl Observer for Waits {
///     fn observe(&self, _: &LimiterEvent<'_>) {}
///     fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
///         self.0.send(format!("waits for {}", wait.cost)).unwrap();
///         Some(Box::new(Open(self.0.clone())))
///     }
/// }
/// impl OpenWait for Open {
///     fn end(self: Box<Self>, end: WaitEnd<'_>) {
///         self.0.send(format!("{end:?}")).unwrap();
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (sender, seen) = channel();
/// let limiter = Limiter::builder(MaxConcurrency::new(8)).observer(Waits(sender)).build()?;
/// let permit = limiter.acquire_many(8).await?; // it does not wait
/// let mut waiting = tokio_test::task::spawn(limiter.acquire_many(3));
/// assert!(waiting.poll().is_pending());
/// drop(permit);
/// let _permit = waiting.await?;
/// assert_eq!(seen.try_iter().collect::<Vec<_>>(), ["waits for 3", "Granted { fence: 2 }"]);
/// # Ok(())
/// # }
/// ```
pub trait OpenWait: Send + Sync + 'static {
    /// The wait is over. This is called once, in the task or thread of the request.
    fn end(self: Box<Self>, end: WaitEnd<'_>);
}

/// The waits that observers keep with one request. Dropping it ends the waits that have not ended before.
pub(crate) struct WaitSpan(Option<Box<dyn OpenWait>>);

impl WaitSpan {
    #[cold]
    pub(crate) fn end(mut self, end: WaitEnd<'_>) {
        self.end_once(end);
    }

    fn end_once(&mut self, end: WaitEnd<'_>) {
        if let Some(wait) = self.0.take() {
            call(|| wait.end(end));
        }
    }
}

impl Drop for WaitSpan {
    fn drop(&mut self) {
        self.end_once(WaitEnd::Cancelled);
    }
}

debug_fields! { WaitSpan }

/// The observers of a limiter. They are called outside every lock.
///
/// This is a thin pointer, because each of a million keys has one, and most have no observer.
#[derive(Default)]
pub(crate) struct Observers(Option<Box<Box<dyn Observer>>>);

impl Observers {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(observer: impl Observer) -> Self {
        Self(Some(Box::new(Box::new(observer))))
    }

    /// Adds an observer, which is called after the earlier ones. If one observer panics, the others are still called.
    pub(crate) fn and(self, next: impl Observer) -> Self {
        match self.0 {
            None => Self::new(next),
            Some(first) => Self::new(Both(*first, next)),
        }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn emit(&self, event: &LimiterEvent<'_>) {
        if let Some(observer) = &self.0 {
            call(|| observer.observe(event));
        }
    }

    /// Reports that a request waits.
    pub(crate) fn open(&self, wait: &WaitStart<'_>) -> Option<WaitSpan> {
        let mut span = None;
        if let Some(observer) = &self.0 {
            call(|| span = observer.wait_begins(wait).map(|wait| WaitSpan(Some(wait))));
        }
        span
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() {
            "Observers(..)"
        } else {
            "Observers(none)"
        })
    }
}

/// The observers of a limiter with keys.
#[derive(Debug)]
pub(crate) struct KeyedObservers {
    /// The name of the limiter with all its keys.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) observers: Observers,
    pub(crate) format: FormatKey,
}

impl KeyedObservers {
    /// Reports an event of a key without a manager, or of a request whose key is unknown. Called outside every lock.
    pub(crate) fn tell<K: Send + Sync + 'static>(
        &self,
        key: Option<&K>,
        kind: impl FnOnce() -> EventKind,
    ) {
        if self.observers.is_some() {
            let key = key.map(|key| ObservedKey::new(key, self.format));
            self.observers.emit(&LimiterEvent {
                limiter: self.name.as_ref(),
                key,
                kind: &kind(),
            });
        }
    }

    /// The observers of the manager of one key, or of requests without a key. If there are any, the key is cloned.
    #[inline(always)] // most limiters have no observer
    pub(crate) fn of_key<K: Clone + Send + Sync + 'static>(
        self: &Arc<Self>,
        key: Option<&K>,
    ) -> Observers {
        if !self.observers.is_some() {
            return Observers::NONE;
        }
        let (keyed, key) = (Arc::clone(self), key.cloned());
        Observers::new(OfKey { keyed, key })
    }
}

/// Adds the key to the events that the manager of one key reports.
struct OfKey<K> {
    keyed: Arc<KeyedObservers>,
    key: Option<K>,
}

impl<K: Send + Sync + 'static> OfKey<K> {
    fn key(&self) -> Option<ObservedKey<'_>> {
        let key = self.key.as_ref();
        key.map(|key| ObservedKey::new(key, self.keyed.format))
    }
}

impl<K: Send + Sync + 'static> Observer for OfKey<K> {
    fn observe(&self, event: &LimiterEvent<'_>) {
        if let Some(observer) = &self.keyed.observers.0 {
            observer.observe(&LimiterEvent {
                limiter: self.keyed.name.as_ref(),
                key: self.key(),
                ..*event
            });
        }
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        self.keyed.observers.0.as_ref()?.wait_begins(&WaitStart {
            limiter: self.keyed.name.as_ref(),
            key: self.key(),
            ..*wait
        })
    }
}

struct Both<A, B>(A, B);

impl<B: Observer> Observer for Both<Box<dyn Observer>, B> {
    fn observe(&self, event: &LimiterEvent<'_>) {
        contain_panic(|| self.0.observe(event));
        self.1.observe(event);
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        let (mut first, mut next) = (None, None);
        contain_panic(|| first = self.0.wait_begins(wait));
        contain_panic(|| next = self.1.wait_begins(wait));
        match (first, next) {
            (Some(first), Some(next)) => Some(Box::new(Both(first, next))),
            (first, next) => first.or(next),
        }
    }
}

impl OpenWait for Both<Box<dyn OpenWait>, Box<dyn OpenWait>> {
    fn end(self: Box<Self>, end: WaitEnd<'_>) {
        let Self(first, next) = *self;
        contain_panic(|| first.end(end));
        next.end(end);
    }
}

/// Calls an observer. An observer that calls a limiter may cause an event, for which it is called again. Without a bound, such
/// nested calls would overflow the stack.
fn call(observer: impl FnOnce()) {
    /// The deepest nesting of calls of observers. An observer that causes n events at each event is called n + 1 times, not for
    /// ever.
    const DEEPEST: u8 = 2;
    thread_local! {
        static DEPTH: Cell<u8> = const { Cell::new(0) };
    }
    let depth = DEPTH.get();
    if depth < DEEPEST {
        DEPTH.set(depth + 1);
        contain_panic(observer);
        DEPTH.set(depth);
    } else {
        contain_panic(|| drop(observer));
    }
}
