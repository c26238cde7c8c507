/// What happens to a new key when [`max_keys`](crate::KeyedLimiterBuilder::max_keys) keys are known and none that was checked is
/// reset. See [`KeyedLimiterBuilder::when_full`](crate::KeyedLimiterBuilder::when_full) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It is refused with [`TooManyKeys`](crate::TryAcquireError::TooManyKeys): no known key gets its usage back.
    #[default]
    Deny,
    /// Of up to 32 idle keys, or of 8 active ones if none is idle, the key that would be reset first is forgotten and gets its
    /// usage back. Keys with permits in flight or waiting requests stay. A new key is refused only if all checked keys have to
    /// stay.
    EvictSoonestReset,
}
