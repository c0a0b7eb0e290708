// SPDX-License-Identifier: GPL-2.0

//! Numbers and names that have a meaning: one type each, checked when made.

use core::num::NonZeroU8;

use super::error::{
    DecodeError,
    Why, //
};

/// A 16-byte GID; RoCEv2 over IPv4 uses the v4-mapped form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// No GID.
    pub const ZERO: Self = Self([0; 16]);

    /// The v4-mapped GID of an IPv4 address in network byte order.
    pub const fn from_v4([a, b, c, d]: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// The IPv4 address inside a v4-mapped GID.
    pub const fn as_v4(&self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Whether all bytes are zero.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether packets from here can be addressed to a peer's GID: RoCEv2 packets of one queue pair are of IPv4 or of
    /// IPv6, and its two GIDs say which.
    pub fn speaks_with(&self, peer: Self) -> bool {
        !peer.is_zero() && self.as_v4().is_some() == peer.as_v4().is_some()
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// No address.
    pub const ZERO: Self = Self([0; 6]);

    /// Whether all bytes are zero.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 6]
    }
}

/// The id of a stack instance: two instance bytes and a RoCE MAC (RFC 7609, appendix A.2.1).
///
/// Zero is legal: Linux sends it in a proposal that offers version 2 alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerId(pub [u8; 8]);

impl PeerId {
    /// No id.
    pub const ZERO: Self = Self([0; 8]);

    /// Builds the id from its two parts.
    pub const fn new([i, j]: [u8; 2], Mac([a, b, c, d, e, f]): Mac) -> Self {
        Self([i, j, a, b, c, d, e, f])
    }
}

/// Largest value of a 24-bit field.
const MAX_24: u32 = 0x00ff_ffff;

/// A queue pair number, 24 bits.
///
/// # Invariants
///
/// At most `0xff_ffff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// Takes a 24-bit number.
    pub const fn new(v: u32) -> Option<Self> {
        if v <= MAX_24 {
            Some(Self(v))
        } else {
            None
        }
    }

    /// Keeps the low 24 bits.
    pub const fn truncate(v: u32) -> Self {
        Self(v & MAX_24)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether an ordinary queue pair may have it: not 0 or 1 (special) and not all ones (multicast).
    pub const fn is_usable(self) -> bool {
        self.0 > 1 && self.0 < MAX_24
    }
}

/// A packet sequence number, 24 bits.
///
/// # Invariants
///
/// At most `0xff_ffff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits, so that any random number will do.
    pub const fn truncate(v: u32) -> Self {
        Self(v & MAX_24)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A remote key of a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// The address under which a memory region is reached with its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vaddr(pub u64);

impl Vaddr {
    /// Where element `index` (from 1) of `size` bytes starts; `None` if the peer's numbers overflow.
    pub fn element(self, index: RmbeIndex, size: u32) -> Option<Self> {
        let skipped = u64::from(index.get().checked_sub(1)?).checked_mul(u64::from(size))?;
        let start = self.0.checked_add(skipped)?;
        // The whole element must be addressable, so that an offset below `size` never overflows.
        start.checked_add(u64::from(size))?;
        Some(Self(start))
    }
}

/// Declares the number of something that is counted from 1, one byte wide.
macro_rules! counted_from_one {
    ($(#[$doc:meta])* $name:ident, $(#[$first:meta])* FIRST) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU8);

        impl $name {
            $(#[$first])*
            pub const FIRST: Self = Self(NonZeroU8::MIN);

            /// Takes a number that is not zero.
            pub const fn new(v: u8) -> Option<Self> {
                match NonZeroU8::new(v) {
                    Some(v) => Some(Self(v)),
                    None => None,
                }
            }

            /// The number.
            pub const fn get(self) -> u8 {
                self.0.get()
            }
        }
    };
}

counted_from_one!(
    /// Which element of an RMB a connection uses.
    RmbeIndex,
    /// The only element of an RMB that holds a single one.
    FIRST
);

counted_from_one!(
    /// Identifies a link inside its link group on the wire; given by the server.
    LinkId,
    /// What a server calls the first link of a group.
    FIRST
);

/// Names one connection of a link group in CDC messages; opaque to the peer, who echoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlertToken(u32);

impl AlertToken {
    /// A token of our own, which is never zero.
    pub const fn new(v: u32) -> Option<Self> {
        if v == 0 {
            None
        } else {
            Some(Self(v))
        }
    }

    /// A token from the peer: any value, since it is opaque (RFC 7609, appendix A.2.3).
    pub const fn from_peer(v: u32) -> Self {
        Self(v)
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its low half, by which a short message names a connection.
    pub const fn low_half(self) -> u16 {
        let [_, _, a, b] = self.0.to_be_bytes();
        u16::from_be_bytes([a, b])
    }

    /// The next token of our own after this one; skips zero.
    pub const fn next(self) -> Self {
        match self.0.wrapping_add(1) {
            0 => Self(1),
            v => Self(v),
        }
    }
}

/// An opaque 4-byte id of a link that each side shows in its tools; kept as it stands on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkUserId(pub [u8; 4]);

impl LinkUserId {
    /// An id of our own, by its number.
    pub const fn from_number(number: u32) -> Self {
        Self(number.to_be_bytes())
    }
}

/// The path MTU code of a queue pair: 1 to 5 for 256 to 4096 bytes (RFC 7609, appendix A.2.3).
///
/// # Invariants
///
/// At most 15. Values outside 1 to 5 can arrive and are refused when they matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MtuCode(u8);

impl MtuCode {
    /// 256 bytes.
    pub const B256: Self = Self(1);
    /// 512 bytes.
    pub const B512: Self = Self(2);
    /// 1024 bytes.
    pub const B1024: Self = Self(3);
    /// 2048 bytes.
    pub const B2048: Self = Self(4);
    /// 4096 bytes.
    pub const B4096: Self = Self(5);

    /// Keeps the low four bits of a wire byte.
    pub const fn from_nibble(v: u8) -> Self {
        Self(v & 0x0f)
    }

    /// The code, as the verbs number it too.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The MTU in bytes; `None` for a reserved code.
    pub const fn bytes(self) -> Option<u16> {
        match self.0 {
            1 => Some(256),
            2 => Some(512),
            3 => Some(1024),
            4 => Some(2048),
            5 => Some(4096),
            _ => None,
        }
    }

    /// The smaller of two valid codes; `None` if either is reserved.
    pub fn agree(self, other: Self) -> Option<Self> {
        self.bytes()?;
        other.bytes()?;
        Some(self.min(other))
    }
}

/// Length of an enterprise id.
pub const EID_LEN: usize = 32;

/// An enterprise id: 32 bytes, padded with blanks on the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eid(pub [u8; EID_LEN]);

impl Eid {
    /// The id that is offered when an administrator has set none, so that two hosts of this
    /// implementation need no configuration.
    pub const DEFAULT: Self = Self(*b"SMC-RS.DEFAULT                  ");

    /// Checks a name of 1 to 32 characters and pads it.
    ///
    /// Allowed are capital letters, digits, `.` and `-`; the first character is a letter or a
    /// digit. Blanks may only follow.
    ///
    /// # Errors
    ///
    /// Names the rule that `name` breaks.
    pub fn new(name: &[u8]) -> Result<Self, DecodeError> {
        let mut out = [b' '; EID_LEN];
        if name.len() > EID_LEN {
            return Err(DecodeError::new("eid", Why::Length));
        }
        for (o, c) in out.iter_mut().zip(name) {
            *o = *c;
        }
        let eid = Self(out);
        if eid.is_valid() {
            Ok(eid)
        } else {
            Err(DecodeError::new("eid", Why::Value))
        }
    }

    /// Whether the bytes follow the rules of [`Eid::new`]. An id from the wire need not.
    pub fn is_valid(&self) -> bool {
        let [first, rest @ ..] = &self.0;
        if !is_alnum(*first) {
            return false;
        }
        let mut ended = false;
        rest.iter().all(|&c| {
            if c == b' ' {
                ended = true;
                true
            } else {
                !ended && (is_alnum(c) || c == b'.' || c == b'-')
            }
        })
    }

    /// The name without its padding.
    pub fn name(&self) -> &[u8] {
        trim_blanks(&self.0)
    }
}

/// Capital letter or digit.
const fn is_alnum(c: u8) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit()
}

/// Cuts blanks and NULs off the right end.
fn trim_blanks(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes;
    while let [head @ .., b' ' | 0] = rest {
        rest = head;
    }
    rest
}

/// Length of a host name on the wire.
pub const HOSTNAME_LEN: usize = 32;

/// A host name of the first-contact extension: ASCII, padded with blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hostname([u8; HOSTNAME_LEN]);

impl Hostname {
    /// Takes the first 32 bytes of a name; anything that is not printable ASCII becomes `.`.
    ///
    /// A name from a peer goes to logs and tools, hence the same cleaning for both directions.
    pub fn clean(name: &[u8]) -> Self {
        let mut out = [b' '; HOSTNAME_LEN];
        for (o, c) in out.iter_mut().zip(trim_blanks(name)) {
            *o = if matches!(c, 0x21..=0x7e) { *c } else { b'.' };
        }
        Self(out)
    }

    /// The 32 bytes with their padding.
    pub const fn as_bytes(&self) -> &[u8; HOSTNAME_LEN] {
        &self.0
    }

    /// The name without its padding.
    pub fn name(&self) -> &[u8] {
        trim_blanks(&self.0)
    }
}

impl Default for Hostname {
    fn default() -> Self {
        Self([b' '; HOSTNAME_LEN])
    }
}

/// The operating system of a peer, four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OsType(u8);

impl OsType {
    /// z/OS.
    pub const ZOS: Self = Self(1);
    /// Linux.
    pub const LINUX: Self = Self(2);
    /// AIX.
    pub const AIX: Self = Self(3);

    /// Keeps the low four bits.
    pub const fn from_nibble(v: u8) -> Self {
        Self(v & 0x0f)
    }

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Which side of the TCP connection, and therefore of the link group, we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that called connect.
    Client,
    /// The side that listened.
    Server,
}
