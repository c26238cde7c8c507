//! Numbers that look random, and are the same in each run.

/// The key with this number. The keys of neighbouring numbers are far apart.
pub(crate) fn key(number: usize) -> u64 {
    scatter(!(number as u64))
}

/// The finalizer of splitmix64.
pub(crate) fn scatter(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
