// SPDX-License-Identifier: GPL-2.0

//! Ring positions: unbounded byte counts inside, wrap and count on the wire.

use core::num::NonZeroU32;

/// How many laps a wire cursor can count before it starts again at zero.
const LAPS: u64 = 1 << 16;

/// A cursor as it stands in a CDC message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Laps around the ring, modulo 65536.
    pub wrap: u16,
    /// Offset in the ring, below its size.
    pub count: u32,
}

/// The size of a ring in bytes, not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingSize(NonZeroU32);

impl RingSize {
    /// Takes a non-zero size.
    pub const fn new(bytes: u32) -> Option<Self> {
        match NonZeroU32::new(bytes) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// The size in bytes.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// The size in bytes, for arithmetic on positions.
    pub const fn wide(self) -> u64 {
        // Widening; `From` is not const.
        let [a, b, c, d] = self.0.get().to_be_bytes();
        u64::from_be_bytes([0, 0, 0, 0, a, b, c, d])
    }

    /// Laps and offset of a position. Rings are powers of two in practice, and a division costs
    /// more than all the rest of a message.
    fn div_rem(self, pos: u64) -> (u64, u64) {
        let size = self.wide();
        if size.is_power_of_two() {
            (
                pos.wrapping_shr(size.trailing_zeros()),
                pos & size.wrapping_sub(1),
            )
        } else {
            (
                pos.checked_div(size).unwrap_or(0),
                pos.checked_rem(size).unwrap_or(0),
            )
        }
    }
}

/// A contiguous part of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Where it starts, below the ring size.
    pub offset: u32,
    /// How long it is.
    pub len: u32,
}

/// Up to two contiguous parts of a ring, in stream order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The first part; empty if there is nothing at all.
    first: Range,
    /// The part behind the end of the ring; empty if the bytes do not wrap.
    second: Range,
}

impl Ranges {
    /// Nothing.
    pub const EMPTY: Self = Self {
        first: Range { offset: 0, len: 0 },
        second: Range { offset: 0, len: 0 },
    };

    /// The part up to the end of the ring.
    pub const fn first(&self) -> Range {
        self.first
    }

    /// The part from the start of the ring.
    pub const fn second(&self) -> Range {
        self.second
    }

    /// Bytes in both parts.
    pub const fn total(&self) -> u32 {
        self.first.len.saturating_add(self.second.len)
    }

    /// What is left without the first `n` bytes.
    #[must_use]
    pub fn behind(&self, n: u32) -> Self {
        let cut = |range: Range, n: u32| Range {
            offset: range.offset.saturating_add(n),
            len: range.len.saturating_sub(n),
        };
        let first = n.min(self.first.len);
        let second = n.saturating_sub(first).min(self.second.len);
        Self {
            first: cut(self.first, first),
            second: cut(self.second, second),
        }
    }

    /// The parts that are not empty.
    pub fn iter(&self) -> impl Iterator<Item = Range> {
        [self.first, self.second].into_iter().filter(|r| r.len > 0)
    }
}

/// A byte position in the stream of one direction, counted from the start of the connection.
///
/// 2^64 bytes are never reached, so positions do not wrap; only their wire form does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pos(u64);

impl Pos {
    /// The start of the stream.
    pub const ZERO: Self = Self(0);

    /// A position by its byte count.
    pub const fn new(v: u64) -> Self {
        Self(v)
    }

    /// The byte count.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `n` bytes further.
    #[must_use]
    pub fn advance(self, n: u32) -> Self {
        Self(self.0.saturating_add(u64::from(n)))
    }

    /// How far this lies behind `earlier`; zero if it does not. Callers compare positions that
    /// are at most a ring apart, so the result fits.
    pub fn since(self, earlier: Self) -> u32 {
        u32::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(u32::MAX)
    }

    /// The offset of this position in a ring.
    pub fn offset(self, ring: RingSize) -> u32 {
        let (_, rest) = ring.div_rem(self.0);
        u32::try_from(rest).unwrap_or(0)
    }

    /// The wire form of this position in a ring.
    pub fn cursor(self, ring: RingSize) -> Cursor {
        let (laps, rest) = ring.div_rem(self.0);
        let [.., hi, lo] = laps.to_be_bytes();
        Cursor {
            wrap: u16::from_be_bytes([hi, lo]),
            count: u32::try_from(rest).unwrap_or(0),
        }
    }

    /// How far a wire cursor lies ahead of this position in the modular order of the wire.
    ///
    /// `None` when the cursor's count does not lie in the ring. A cursor that lies behind gives a
    /// distance close to [`modulus`], never a negative one.
    pub fn distance_to(self, to: Cursor, ring: RingSize) -> Option<u64> {
        if to.count >= ring.get() {
            return None;
        }
        let m = modulus(ring);
        // The laps modulo 65536, then the offset: the same as the position modulo `m`.
        let (laps, rest) = ring.div_rem(self.0);
        let here = (laps & LAPS.wrapping_sub(1))
            .checked_mul(ring.wide())?
            .checked_add(rest)?;
        let there = u64::from(to.wrap)
            .checked_mul(ring.wide())?
            .checked_add(u64::from(to.count))?;
        // Both are below `m`, which is below 2^48.
        let ahead = there.checked_add(m)?.checked_sub(here)?;
        Some(if ahead >= m {
            ahead.saturating_sub(m)
        } else {
            ahead
        })
    }

    /// The `len` bytes from here on as parts of the ring; `len` is cut to the ring size.
    pub fn ranges(self, len: u32, ring: RingSize) -> Ranges {
        let len = len.min(ring.get());
        let offset = self.offset(ring);
        let first = len.min(ring.get().saturating_sub(offset));
        Ranges {
            first: Range { offset, len: first },
            second: Range {
                offset: 0,
                len: len.saturating_sub(first),
            },
        }
    }
}

/// After how many bytes the wire form of a position repeats.
pub fn modulus(ring: RingSize) -> u64 {
    ring.wide().saturating_mul(LAPS)
}
