//! A rate at an instant, as a line.

/// A rate at an instant, as a line: some parts are used, and parts are refilled at a constant rate. All numbers but the time are in
/// parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slope {
    pub(crate) parts_per_nano: u64,
    pub(crate) parts_per_unit: u64,
    /// The most that may be used at the same time.
    pub(crate) tolerance: u64,
    pub(crate) used: u64,
    /// Nanoseconds for which this holds from that instant on.
    pub(crate) holds_for: u64,
}
