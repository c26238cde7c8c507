/// What becomes of a new key when as many keys are known as may be, and none of those that were looked at is as good as new. See
/// [`KeyedLimiterBuilder::when_full`](crate::KeyedLimiterBuilder::when_full) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It is turned away with [`TooManyKeys`](crate::TryAcquireError::TooManyKeys): no known key gets back what it has used.
    #[default]
    Deny,
    /// Of up to 32 idle keys, or of 8 active ones where there is no idle one, the key that would be as good as new first is forgotten,
    /// and gets back what it has used. Keys that have places out or requests that wait stay. A new key is turned away only where all
    /// keys that were looked at have to stay.
    EvictSoonestReset,
}
