// SPDX-License-Identifier: GPL-2.0

//! Buffer size classes: 16 KiB times a power of two, as the compressed size field counts them.

/// The smallest ring in bytes.
pub const MIN_BYTES: u32 = 16 * 1024;

/// The largest class: 512 MiB.
pub const MAX_CLASS: u8 = 15;

/// Below this gain a receiver never sends a lone window update (half of the smallest send buffer
/// that the socket layer grants).
const MIN_UPDATE: u32 = 2304;

/// A size class `n`: 16 KiB shifted left by `n`, the four-bit code of Accept and Confirm.
///
/// # Invariants
///
/// At most [`MAX_CLASS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmbeSizeCode(u8);

impl RmbeSizeCode {
    /// 16 KiB.
    pub const MIN: Self = Self(0);
    /// 64 KiB, the default of both directions.
    pub const DEFAULT: Self = Self(2);
    /// 512 MiB.
    pub const MAX: Self = Self(MAX_CLASS);

    /// Keeps the low four bits of a wire byte.
    ///
    /// RFC 7609, appendix A.2.3 ends at code 5; Linux uses all sixteen, so all are taken.
    pub const fn from_nibble(v: u8) -> Self {
        Self(v & 0x0f)
    }

    /// The smallest class of at least `bytes`; the largest class for more than that.
    pub fn at_least(bytes: u32) -> Self {
        (0..=MAX_CLASS)
            .map(Self)
            .find(|c| c.bytes() >= bytes)
            .unwrap_or(Self::MAX)
    }

    /// The class for a socket buffer value as the socket layer stores it (twice what was asked).
    pub fn for_socket_buffer(sk_buf: u32) -> Self {
        Self::at_least(sk_buf.div_ceil(2))
    }

    /// The class for a socket buffer value, at most `limit`.
    pub fn for_socket_buffer_within(sk_buf: u32, limit: Self) -> Self {
        Self::for_socket_buffer(sk_buf).min(limit)
    }

    /// The next class to try when memory for this one is not available.
    pub const fn smaller(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(v) => Some(Self(v)),
            None => None,
        }
    }

    /// This class and then every smaller one: the order of degradation.
    pub fn degrade(self) -> impl Iterator<Item = Self> {
        core::iter::successors(Some(self), |c| c.smaller())
    }

    /// The four-bit code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        // The mask repeats the invariant for the compiler, which then sees no overflow.
        MIN_BYTES << (self.0 & MAX_CLASS)
    }
}

impl Default for RmbeSizeCode {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How many work requests the queues of a link take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequests {
    /// Chains that are on their way at the same time.
    pub send: u32,
    /// Receive buffers.
    pub receive: u32,
}

impl WorkRequests {
    /// As many as there are by default; fewer are not tried for want of memory.
    pub const DEFAULT: Self = Self {
        send: 16,
        receive: 48,
    };

    /// How many to try next when there is no memory for these, or the device does not take them: half of each, as far as
    /// it is more than the default.
    pub fn fewer(self) -> Option<Self> {
        let half = |n: u32, least: u32| if n > least { (n / 2).max(least) } else { n };
        let fewer = Self {
            send: half(self.send, Self::DEFAULT.send),
            receive: half(self.receive, Self::DEFAULT.receive),
        };
        (fewer != self).then_some(fewer)
    }
}

/// How much a receiver must have freed before a lone window update is worth a message.
///
/// A tenth of the ring (RFC 7609, section 4.5.1) with a floor, and never more than half the ring
/// so that small rings still get updates.
pub fn update_limit(ring_bytes: u32) -> u32 {
    (ring_bytes / 10).max(MIN_UPDATE).min(ring_bytes / 2).max(1)
}
