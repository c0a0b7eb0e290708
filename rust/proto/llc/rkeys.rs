// SPDX-License-Identifier: GPL-2.0

//! Lists inside LLC messages: borrowed from the wire, or from the caller who sends them.

use super::MAX_RKEYS;
use crate::proto::error::EncodeError;
use crate::proto::ids::{
    Gid,
    Rkey,
    Vaddr, //
};
use crate::proto::wire::{
    Reader,
    Writer, //
};

/// Wire length of a [`MovedRtoken`].
pub(super) const MOVED_LEN: usize = 16;

/// Wire length of a key.
const RKEY_LEN: usize = 4;

/// Wire length of a GID.
const GID_LEN: usize = 16;

/// A buffer's token on a new link, with the key by which the peer knows it already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovedRtoken {
    /// The key on the link that carries the message.
    pub reference: Rkey,
    /// The key on the new link.
    pub rkey: Rkey,
    /// The address on the new link.
    pub vaddr: Vaddr,
}

impl MovedRtoken {
    /// Reads 16 bytes.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        Some(Self {
            reference: Rkey(r.be32("reference").ok()?),
            rkey: Rkey(r.be32("rkey").ok()?),
            vaddr: Vaddr(r.be64("vaddr").ok()?),
        })
    }

    /// Writes 16 bytes.
    pub(super) fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.be32(self.reference.0)?;
        w.be32(self.rkey.0)?;
        w.be64(self.vaddr.0)
    }
}

/// Declares a list that is either wire bytes or a slice of values.
macro_rules! wire_list {
    ($(#[$doc:meta])* $name:ident, $item:ty, $len:expr, $read:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<'a>(Source<'a, $item>);

        impl<'a> $name<'a> {
            /// No element.
            pub const EMPTY: Self = Self(Source::Slice(&[]));

            /// A list to send.
            pub const fn new(items: &'a [$item]) -> Self {
                Self(Source::Slice(items))
            }

            /// A list as it arrived, a multiple of the element's length.
            pub(super) const fn from_wire(bytes: &'a [u8]) -> Self {
                Self(Source::Wire(bytes))
            }

            /// How many elements there are.
            pub fn len(&self) -> usize {
                match self.0 {
                    Source::Wire(b) => b.len() / $len,
                    Source::Slice(s) => s.len(),
                }
            }

            /// Whether there is none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// One element.
            pub fn get(&self, index: usize) -> Option<$item> {
                match self.0 {
                    Source::Wire(b) => b.chunks_exact($len).nth(index).and_then($read),
                    Source::Slice(s) => s.get(index).copied(),
                }
            }

            /// The elements in order.
            pub fn iter(&self) -> impl Iterator<Item = $item> + 'a {
                let this = *self;
                (0..self.len()).map_while(move |i| this.get(i))
            }

            /// How many bytes the list takes.
            pub(super) fn wire_len(&self) -> Result<usize, EncodeError> {
                if self.len() > MAX_RKEYS {
                    return Err(EncodeError::TooMany);
                }
                self.len().checked_mul($len).ok_or(EncodeError::TooMany)
            }
        }

        impl PartialEq for $name<'_> {
            fn eq(&self, other: &Self) -> bool {
                self.len() == other.len() && self.iter().eq(other.iter())
            }
        }

        impl Default for $name<'_> {
            fn default() -> Self {
                Self::EMPTY
            }
        }
    };
}

/// Where the elements of a list are.
#[derive(Clone, Copy, Debug)]
enum Source<'a, T> {
    /// In a received message.
    Wire(&'a [u8]),
    /// In the caller's memory.
    Slice(&'a [T]),
}

wire_list!(
    /// Keys that DELETE RKEY withdraws.
    Rkeys,
    Rkey,
    RKEY_LEN,
    |b: &[u8]| Reader::new(b).be32("rkey").ok().map(Rkey)
);

wire_list!(
    /// Tokens for a new link.
    MovedRtokens,
    MovedRtoken,
    MOVED_LEN,
    MovedRtoken::from_bytes
);

wire_list!(
    /// GIDs that a client offers for a new link.
    Gids,
    Gid,
    GID_LEN,
    |b: &[u8]| Reader::new(b).array("gid").ok().map(Gid)
);
