// SPDX-License-Identifier: GPL-2.0

//! What two peers of this implementation do beyond the standard, agreed at the first contact.
//!
//! The messages of version 2.1 have room for a vendor's options: eight bytes in the Proposal, of which three name the
//! vendor, and four in the first-contact extension. The client offers, the server chooses, the client confirms. A peer
//! that does not know the vendor ignores the bytes, and nothing changes.

/// The vendor: a locally administered number, since it names a protocol and not a maker of devices.
const VENDOR: [u8; 3] = *b"rsm";

/// A set of extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions(u8);

impl Extensions {
    /// None.
    pub const NONE: Self = Self(0);

    /// A key belongs to one connection: Accept or Confirm tell it, and it is forgotten when the connection has ended.
    ///
    /// CONFIRM RKEY is only needed for the keys of further links, DELETE RKEY only for keys that no connection used or
    /// whose connection has not ended in good order.
    pub const OWN_KEYS: Self = Self(0x01);

    /// A message that only moves cursors goes as the immediate data of its RDMA write.
    pub const SHORT: Self = Self(0x02);

    /// All that this implementation can do.
    pub const ALL: Self = Self(Self::OWN_KEYS.0 | Self::SHORT.0);

    /// As a number, for settings.
    pub const fn bits(self) -> u32 {
        // Widening; `From` is not const.
        u32::from_be_bytes([0, 0, 0, self.0])
    }

    /// Those of them that a number names.
    #[must_use]
    pub const fn limited_to(self, bits: u32) -> Self {
        let [_, _, _, low] = bits.to_be_bytes();
        Self(self.0 & low)
    }

    /// Those that both have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads the vendor's bytes of a Proposal.
    pub const fn from_proposal(bytes: [u8; 8]) -> Self {
        let [a, b, c, options, _, _, _, _] = bytes;
        Self::from_contact([a, b, c, options])
    }

    /// The vendor's bytes of a Proposal.
    pub const fn to_proposal(self) -> [u8; 8] {
        let [a, b, c, options] = self.to_contact();
        [a, b, c, options, 0, 0, 0, 0]
    }

    /// Reads the vendor's bytes of a first-contact extension.
    pub const fn from_contact(bytes: [u8; 4]) -> Self {
        let [a, b, c, options] = bytes;
        let [x, y, z] = VENDOR;
        if a == x && b == y && c == z {
            Self(options)
        } else {
            Self::NONE
        }
    }

    /// The vendor's bytes of a first-contact extension; zero for none, as every other implementation sends them.
    pub const fn to_contact(self) -> [u8; 4] {
        let [a, b, c] = VENDOR;
        match self.0 {
            0 => [0; 4],
            options => [a, b, c, options],
        }
    }
}
