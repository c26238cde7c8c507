/// What happens to a new key when [`max_keys`](crate::KeyedLimiterBuilder::max_keys) keys are known and none that was checked is
/// reset. See [`KeyedLimiterBuilder::when_full`](crate::KeyedLimiterBuilder::when_full) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It is refused with [`TooManyKeys`](crate::TryAcquireError::TooManyKeys): no known key gets its usage back.
    #[default]
    Deny,
    /// Of up to 32 idle keys, or of 8 active ones if none is idle, the key that would be reset first is forgotten and gets its
    /// usage back. Keys with permits in flight or waiting requests, and keys whose limiter is held, stay.
    ///
    /// With `max_keys` of at most 1,024, a new key is refused only if all known keys have to stay. In a larger table the search
    /// is bounded, so that a refusal does not take longer the more keys there are: a new key is refused if all checked keys
    /// have to stay, about 150 of them. Keys that another call is just working on are not checked.
    EvictSoonestReset,
}
