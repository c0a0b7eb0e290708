// SPDX-License-Identifier: GPL-2.0

//! Which counter of a size statistic a number of bytes belongs to.

/// How many size classes the statistics have: up to 8 KiB, 16 KiB and so on to 1 MiB, and more.
pub const BUCKETS: usize = 9;

/// Log2 of the largest size of the first class.
const FIRST_SHIFT: u32 = 13;

/// The class of a payload or a buffer, from 0 to 8: each is twice as large as the one before.
pub fn bucket(bytes: u64) -> usize {
    let blocks = bytes.saturating_sub(1) >> FIRST_SHIFT;
    let bits = u64::BITS.saturating_sub(blocks.leading_zeros());
    usize::try_from(bits)
        .unwrap_or(BUCKETS)
        .min(BUCKETS.saturating_sub(1))
}
