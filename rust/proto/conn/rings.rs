// SPDX-License-Identifier: GPL-2.0

//! The rings that outgoing bytes lie in until they are no longer needed: a small one to begin with, and a large one
//! while there is more to send than that holds.
//!
//! A connection changes its ring between two bytes of the stream. What lies before that place stays in the ring where it
//! is, as long as it may have to be sent, be it for a second time; no chain crosses the place. So a connection never has
//! more than two rings, and nothing is copied from one to the other.

use super::{
    Conn,
    OutOfRange, //
};
use crate::proto::cursor::{
    Pos,
    Range,
    Ranges,
    RingSize, //
};

/// The present ring, and the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// The present ring.
    now: RingSize,
    /// The first byte that lies in it.
    from: Pos,
    /// What lies before is in a ring of this size.
    before: RingSize,
}

impl Rings {
    /// One ring for all bytes.
    pub(super) const fn one(size: RingSize) -> Self {
        Self {
            now: size,
            from: Pos::ZERO,
            before: size,
        }
    }

    /// Size of the present ring.
    pub(super) const fn size(&self) -> RingSize {
        self.now
    }

    /// How much of the present ring is in use when bytes are kept from `kept_from` to `end`.
    pub(super) fn used(&self, kept_from: Pos, end: Pos) -> u32 {
        end.since(kept_from.max(self.from))
    }

    /// Whether bytes from here on lie in the ring before the present one.
    pub(super) fn is_before(&self, from: Pos) -> bool {
        from < self.from
    }

    /// How many of `len` bytes from here on lie in one ring.
    pub(super) fn within(&self, from: Pos, len: u32) -> u32 {
        if self.is_before(from) {
            len.min(self.from.since(from))
        } else {
            len
        }
    }

    /// Where the first of `len` bytes from here on lie, which are [`within`](Self::within) one ring.
    pub(super) fn first_part(&self, from: Pos, len: u32) -> Range {
        let size = if self.is_before(from) {
            self.before
        } else {
            self.now
        };
        from.ranges(len, size).first()
    }

    /// Where `len` bytes from here on lie in the present ring.
    pub(super) fn parts(&self, from: Pos, len: u32) -> Ranges {
        from.ranges(len, self.now)
    }
}

impl Conn {
    /// Size of the ring that what the application writes next goes into.
    pub const fn send_ring(&self) -> RingSize {
        self.rings.size()
    }

    /// Whether bytes are kept in the ring before the present one.
    pub fn keeps_ring_before(&self) -> bool {
        self.rings.is_before(self.kept_from())
    }

    /// From the next byte that the application writes on, all goes into another ring, of this size. What was written
    /// before stays where it is.
    ///
    /// # Errors
    ///
    /// Refuses a third ring while two are in use; nothing changes.
    pub fn switch_ring(&mut self, size: RingSize) -> Result<(), OutOfRange> {
        if self.keeps_ring_before() {
            return Err(OutOfRange);
        }
        self.rings = Rings {
            now: size,
            from: self.prep,
            before: self.rings.now,
        };
        Ok(())
    }
}
