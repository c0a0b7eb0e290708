// SPDX-License-Identifier: GPL-2.0

//! Short messages: one RDMA write and what its immediate data says, in place of a write and a CDC message.
//!
//! Most messages say only that some bytes were written and some were read. Two peers that agreed to it
//! ([`Extensions::SHORT`]) say that with the write itself: its length is how far the producer cursor moves, its
//! immediate data holds the connection and how far the consumer cursor moves. The receiver makes the message of it that
//! would have come otherwise, and treats that like any other.
//!
//! Short messages count from the one before them. That is known as long as the sender has not changed links, and to a
//! receiver that has a connection, of which the sender is sure once it has heard of it.
//!
//! [`Extensions::SHORT`]: crate::proto::clc::Extensions::SHORT

use super::moving::Moving;
use super::{
    Conn,
    ConnViolation, //
};
use crate::proto::cdc::{
    ConnFlags,
    Message,
    ProdFlags, //
};
use crate::proto::cursor::Pos;
use crate::proto::ids::AlertToken;

/// The immediate data of a write.
///
/// | bits | field |
/// |---|---|
/// | 31-16 | the low half of the receiver's alert token |
/// | 15-0 | bytes that the sender has read since the message before |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The low half of the receiver's alert token.
    pub token: u16,
    /// Bytes that the sender has read since the message before.
    pub read: u16,
}

impl Short {
    /// Reads immediate data.
    pub const fn from_bits(bits: u32) -> Self {
        let [a, b, c, d] = bits.to_be_bytes();
        Self {
            token: u16::from_be_bytes([a, b]),
            read: u16::from_be_bytes([c, d]),
        }
    }

    /// The immediate data.
    pub const fn to_bits(self) -> u32 {
        let [a, b] = self.token.to_be_bytes();
        let [c, d] = self.read.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

/// What becomes of a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ShortSorted {
    /// It is due: [`Conn::short_message`].
    Take,
    /// It comes from a link that the peer has left, and is repeated; or nothing was written, as when a device repeats the
    /// end of a write that has arrived.
    Ignore,
    /// The peer has changed links and must not send any.
    Wrong,
}

impl Moving {
    /// Sorts a short message that has come on the link in column `link` with a write of `len` bytes.
    pub fn sort_short(&self, link: usize, len: u32) -> ShortSorted {
        if len == 0 {
            // No sender means that: what it would say was said by the write that had bytes.
            return ShortSorted::Ignore;
        }
        match (self.waits_on(), self.taken()) {
            (Some(new), _) | (None, Some(new)) if new == link => ShortSorted::Wrong,
            (None, Some(_)) => ShortSorted::Ignore,
            (_, _) => ShortSorted::Take,
        }
    }
}

impl Conn {
    /// Both sides have agreed on short messages.
    pub fn allow_short(&mut self) {
        self.short = true;
    }

    /// What is to be said in place of `message`, if it says no more than that `len` bytes were written behind `sent` and
    /// some were read behind `told`, which is where the message before it had the cursors.
    pub(super) fn shorten(
        &self,
        message: &Message,
        sent: Pos,
        len: u32,
        told: Pos,
    ) -> Option<Short> {
        let plain = message.prod_flags == ProdFlags::default()
            && message.conn_flags == ConnFlags::default();
        let known = self.short && self.heard && self.epoch == 0;
        if !plain || !known || self.sent != sent.advance(len) {
            return None;
        }
        Some(Short {
            token: self.params.peer_token.low_half(),
            read: u16::try_from(self.told.since(told)).ok()?,
        })
    }

    /// The message that a short one with a write of `len` bytes stands for.
    ///
    /// # Errors
    ///
    /// [`ConnViolation::ShortUnwanted`] when it was not agreed on, [`ConnViolation::ProducedTooMuch`] for more than a
    /// ring. [`Conn::on_cdc`] checks all else.
    pub fn short_message(&self, short: Short, len: u32) -> Result<Message, ConnViolation> {
        if !self.short {
            return Err(ConnViolation::ShortUnwanted);
        }
        if len > self.params.recv_ring.get() {
            return Err(ConnViolation::ProducedTooMuch);
        }
        let read = self.peer_cons.advance(u32::from(short.read));
        Ok(Message {
            seq: self.seq_recv.wrapping_add(1),
            // That of this connection, as the immediate data led here.
            token: AlertToken::from_peer(0),
            prod: self.arrived.advance(len).cursor(self.params.recv_ring),
            cons: read.cursor(self.params.peer_ring),
            prod_flags: ProdFlags::default(),
            conn_flags: ConnFlags::default(),
        })
    }
}
