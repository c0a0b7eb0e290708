// SPDX-License-Identifier: GPL-2.0

//! The table of the peer's buffers: key and address on every link, one row per buffer.

use crate::proto::ids::{
    Rkey,
    Vaddr, //
};
use crate::proto::llc::MovedRtoken;

/// The most buffers of a peer that a group stores.
pub const MAX_RTOKENS: usize = 255;

/// How many links a row has columns for: RFC 7609, section 2.2.2 allows more, and the known
/// implementations use two and a third one for a while.
pub const LINK_SLOTS: usize = 3;

/// Key and address of a buffer on one link; the address is zero where only the key has been named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtoken {
    /// Key.
    pub rkey: Rkey,
    /// Address.
    pub vaddr: Vaddr,
}

impl Rtoken {
    /// A key whose address is still to come.
    const fn named(rkey: Rkey) -> Self {
        Self {
            rkey,
            vaddr: Vaddr(0),
        }
    }
}

/// A row: one buffer of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtokenEntry {
    /// Its token on each link.
    links: [Option<Rtoken>; LINK_SLOTS],
}

impl RtokenEntry {
    /// A row without a buffer.
    pub const EMPTY: Self = Self {
        links: [None; LINK_SLOTS],
    };

    /// Whether the row holds a buffer.
    fn is_used(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }
}

/// The number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RtokenIndex(usize);

impl RtokenIndex {
    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// Every row holds a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

/// The table; the memory is the caller's, [`MAX_RTOKENS`] rows or fewer.
#[derive(Debug)]
pub struct RtokenTable<'a> {
    /// The rows.
    rows: &'a mut [RtokenEntry],
}

impl<'a> RtokenTable<'a> {
    /// A table over these rows.
    pub fn new(rows: &'a mut [RtokenEntry]) -> Self {
        Self { rows }
    }

    /// How many rows hold a buffer.
    pub fn used(&self) -> usize {
        self.rows
            .iter()
            .filter(|r| r.is_used())
            .fold(0, |n, _| n.saturating_add(1))
    }

    /// Whether another buffer can be stored.
    pub fn has_room(&self) -> bool {
        self.rows.iter().any(|r| !r.is_used())
    }

    /// The token of a buffer on a link.
    pub fn get(&self, index: RtokenIndex, link: usize) -> Option<Rtoken> {
        self.rows.get(index.0)?.links.get(link).copied().flatten()
    }

    /// The row whose buffer has this key on this link.
    pub fn find(&self, link: usize, rkey: Rkey) -> Option<RtokenIndex> {
        self.rows
            .iter()
            .position(|r| matches!(r.links.get(link), Some(Some(t)) if t.rkey == rkey))
            .map(RtokenIndex)
    }

    /// Stores a buffer by its token on one link, or finds the row that has it.
    ///
    /// A key that is known with another address was given to a new buffer: the row is emptied
    /// and filled anew, since a key names one buffer of a link at a time. One that was only named
    /// gets its address.
    ///
    /// # Errors
    ///
    /// Fails when no row is free.
    pub fn add(&mut self, link: usize, token: Rtoken) -> Result<RtokenIndex, TableFull> {
        let index = match self.find(link, token.rkey) {
            Some(i) => {
                let named = Rtoken::named(token.rkey);
                if !matches!(self.get(i, link), Some(t) if t == token || t == named) {
                    self.clear(i);
                }
                i
            }
            None => RtokenIndex(
                self.rows
                    .iter()
                    .position(|r| !r.is_used())
                    .ok_or(TableFull)?,
            ),
        };
        self.set(index, link, token)?;
        Ok(index)
    }

    /// Stores the token of a known buffer on a further link.
    ///
    /// # Errors
    ///
    /// Fails when there is no such row or column.
    pub fn set(&mut self, index: RtokenIndex, link: usize, token: Rtoken) -> Result<(), TableFull> {
        let slot = self
            .rows
            .get_mut(index.0)
            .and_then(|r| r.links.get_mut(link))
            .ok_or(TableFull)?;
        *slot = Some(token);
        Ok(())
    }

    /// Stores what a peer says about a new link: the buffer is named by its key on `from`.
    ///
    /// Returns whether the buffer is known.
    pub fn add_moved(&mut self, from: usize, new: usize, moved: &MovedRtoken) -> bool {
        let token = Rtoken {
            rkey: moved.rkey,
            vaddr: moved.vaddr,
        };
        self.find(from, moved.reference)
            .is_some_and(|i| self.set(i, new, token).is_ok())
    }

    /// As [`add_moved`](Self::add_moved), but a buffer that is not known yet gets a row, in which its handshake will
    /// find it.
    ///
    /// For a peer that tells keys by Accept and Confirm alone: those are on their way while a link is added.
    pub fn add_moved_early(&mut self, from: usize, new: usize, moved: &MovedRtoken) -> bool {
        self.add_moved(from, new, moved)
            || self.add(from, Rtoken::named(moved.reference)).is_ok()
                && self.add_moved(from, new, moved)
    }

    /// Whether a buffer has exactly this token on a link.
    pub fn holds(&self, link: usize, token: Rtoken) -> bool {
        self.row_of(link, token).is_some()
    }

    /// The token on the link `to` of the buffer that has this token on the link `from`: where a connection that moves
    /// writes from then on.
    pub fn translate(&self, from: usize, token: Rtoken, to: usize) -> Option<Rtoken> {
        self.get(self.row_of(from, token)?, to)
    }

    /// Forgets the buffer that has exactly this token on a link, on all links; says whether there was one.
    ///
    /// For a handshake that stored it and has come to nothing: the peer may have given the key to another buffer since.
    pub fn remove(&mut self, link: usize, token: Rtoken) -> bool {
        let row = self.row_of(link, token);
        if let Some(row) = row {
            self.clear(row);
        }
        row.is_some()
    }

    /// The row that has exactly this token on a link.
    fn row_of(&self, link: usize, token: Rtoken) -> Option<RtokenIndex> {
        self.find(link, token.rkey)
            .filter(|i| self.get(*i, link) == Some(token))
    }

    /// Forgets the buffer that has this key on this link, on all links.
    ///
    /// Returns whether there was one.
    pub fn delete(&mut self, link: usize, rkey: Rkey) -> bool {
        match self.find(link, rkey) {
            Some(i) => {
                self.clear(i);
                true
            }
            None => false,
        }
    }

    /// Forgets all tokens of a link that has ended.
    pub fn drop_link(&mut self, link: usize) {
        for row in self.rows.iter_mut() {
            if let Some(slot) = row.links.get_mut(link) {
                *slot = None;
            }
        }
    }

    /// Empties a row.
    fn clear(&mut self, index: RtokenIndex) {
        if let Some(row) = self.rows.get_mut(index.0) {
            *row = RtokenEntry::EMPTY;
        }
    }
}
