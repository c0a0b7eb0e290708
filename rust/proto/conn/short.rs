// SPDX-License-Identifier: GPL-2.0

//! Short messages: one RDMA write and what its immediate data says, in place of a write and a CDC message.
//!
//! Most messages say only that some bytes were written and some were read. Two peers that agreed to it
//! ([`Extensions::SHORT`]) say that with the write itself: its length is how far the producer cursor moves, its
//! immediate data holds the connection and how far the consumer cursor moves. The receiver makes the message of it that
//! would have come otherwise, and treats that like any other.
//!
//! Short messages count from the one before them, which is known as long as the sender has not changed links.
//!
//! [`Extensions::SHORT`]: crate::proto::clc::Extensions::SHORT

use super::moving::Moving;
use super::tx::Write;
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
/// | 15 | the ring was written up to its end before that |
/// | 14-0 | bytes that the sender has read since the message before |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    /// The low half of the receiver's alert token.
    pub token: u16,
    /// The write is the second of two: the one before it, which says nothing itself, went up to the end of the
    /// receiver's ring, and this one begins at its start.
    pub wrapped: bool,
    /// Bytes that the sender has read since the message before, less than [`Short::MOST_READ`].
    pub read: u16,
}

impl Short {
    /// What is read is less than this.
    pub const MOST_READ: u16 = 0x8000;

    /// Reads immediate data.
    pub const fn from_bits(bits: u32) -> Self {
        let [a, b, c, d] = bits.to_be_bytes();
        let low = u16::from_be_bytes([c, d]);
        Self {
            token: u16::from_be_bytes([a, b]),
            wrapped: low & Self::MOST_READ != 0,
            read: low & !Self::MOST_READ,
        }
    }

    /// The immediate data.
    pub const fn to_bits(self) -> u32 {
        let [a, b] = self.token.to_be_bytes();
        let wrapped = if self.wrapped { Self::MOST_READ } else { 0 };
        let [c, d] = (self.read | wrapped).to_be_bytes();
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

    /// What is to be said in place of `message`, if it says no more than that `writes` were made behind `sent` and some
    /// bytes were read behind `told`, which is where the message before it had the cursors.
    ///
    /// That the window is closed need not be said: the receiver sees it in its own numbers, or has opened it meanwhile.
    pub(super) fn shorten(
        &self,
        message: &Message,
        sent: Pos,
        writes: &[Write],
        told: Pos,
    ) -> Option<Short> {
        let (len, wrapped) = match writes {
            [one] => (one.len, false),
            [one, two] if two.remote == 0 => (one.len.saturating_add(two.len), true),
            _ => return None,
        };
        let flags = ProdFlags {
            write_blocked: false,
            ..message.prod_flags
        };
        let plain = flags == ProdFlags::default() && message.conn_flags == ConnFlags::default();
        let known = self.short && self.epoch == 0;
        if !plain || !known || self.sent != sent.advance(len) {
            return None;
        }
        let read = u16::try_from(self.told.since(told)).ok()?;
        (read < Short::MOST_READ).then_some(Short {
            token: self.params.peer_token.low_half(),
            wrapped,
            read,
        })
    }

    /// The message that a short one with a write of `len` bytes, the last one, stands for.
    ///
    /// # Errors
    ///
    /// [`ConnViolation::ShortUnwanted`] when it was not agreed on, [`ConnViolation::ProducedTooMuch`] for more than a
    /// ring. [`Conn::on_cdc`] checks all else.
    pub fn short_message(&self, short: Short, len: u32) -> Result<Message, ConnViolation> {
        let before = if short.wrapped { self.ring_left() } else { 0 };
        self.message_of(1, before.saturating_add(len), u32::from(short.read))
    }

    /// How much there is up to the end of the receive ring from where the next bytes arrive.
    pub(super) fn ring_left(&self) -> u32 {
        let ring = self.params.recv_ring;
        ring.get().saturating_sub(self.arrived.offset(ring))
    }

    /// The message that so many short ones stand for, with writes of `len` bytes in all.
    pub(super) fn message_of(
        &self,
        count: u16,
        len: u32,
        read: u32,
    ) -> Result<Message, ConnViolation> {
        if !self.short {
            return Err(ConnViolation::ShortUnwanted);
        }
        let ring = self.params.recv_ring;
        if len > ring.get() {
            return Err(ConnViolation::ProducedTooMuch);
        }
        let arrived = self.arrived.advance(len);
        Ok(Message {
            seq: self.seq_recv.wrapping_add(count),
            // That of this connection, as the immediate data led here.
            token: AlertToken::from_peer(0),
            prod: arrived.cursor(ring),
            cons: self.peer_cons.advance(read).cursor(self.params.peer_ring),
            prod_flags: ProdFlags {
                write_blocked: arrived.since(self.told) >= ring.get(),
                ..ProdFlags::default()
            },
            conn_flags: ConnFlags::default(),
        })
    }
}
