// SPDX-License-Identifier: GPL-2.0

//! Messages that come before the peer's ring is known, because its side of the handshake is over.

use super::rx::SEQ_HALF;
use super::{
    Conn,
    ConnViolation,
    RxEffects,
    Short, //
};
use crate::proto::cdc::Message;

/// What such messages say together: the newest cursors, every close flag, and whether the peer has
/// changed links meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Early {
    /// The newest message that carries cursors, with the close flags of all.
    newest: Option<Message>,
    /// The newest message that only validates (RFC 7609, section 4.6.1): its cursors are void.
    validation: Option<Message>,
    /// How many short messages came behind the newest one.
    shorts: u16,
    /// Bytes that came with them before the ring began anew.
    bytes: u32,
    /// Bytes that came with them since, if it did.
    anew: Option<u32>,
    /// What they say in all to be read.
    read: u32,
}

impl Early {
    /// Nothing has come.
    pub const fn new() -> Self {
        Self {
            newest: None,
            validation: None,
            shorts: 0,
            bytes: 0,
            anew: None,
            read: 0,
        }
    }

    /// Keeps a message.
    pub fn keep(&mut self, msg: &Message) {
        if msg.prod_flags.failover_validation {
            self.validation = Some(*msg);
            return;
        }
        let mut newest = *msg;
        if let Some(kept) = &self.newest {
            newest.conn_flags.sending_done |= kept.conn_flags.sending_done;
            newest.conn_flags.closed |= kept.conn_flags.closed;
            newest.conn_flags.abort |= kept.conn_flags.abort;
        }
        // It says what the short ones before it have said.
        *self = Self {
            newest: Some(newest),
            validation: self.validation,
            ..Self::new()
        };
    }

    /// Keeps a short message with a write of `len` bytes.
    ///
    /// One that comes when the peer has changed links was sent before. It counts only if the peer knows it to be
    /// delivered; otherwise it is repeated.
    pub fn keep_short(&mut self, short: Short, len: u32) {
        let before = self.newest.map_or(0, |msg| msg.seq);
        let before = before.wrapping_add(self.shorts);
        if let Some(validation) = &self.validation {
            let missing = validation.seq.wrapping_sub(before);
            if missing == 0 || missing >= SEQ_HALF {
                return;
            }
        }
        self.shorts = self.shorts.saturating_add(1);
        match (&mut self.anew, short.wrapped) {
            (None, false) => self.bytes = self.bytes.saturating_add(len),
            (None, true) => self.anew = Some(len),
            (Some(anew), false) => *anew = anew.saturating_add(len),
            // More than a ring, before anything was read.
            (Some(anew), true) => *anew = u32::MAX,
        }
        self.read = self.read.saturating_add(u32::from(short.read));
    }
}

impl Conn {
    /// Takes in what came early, once.
    ///
    /// # Errors
    ///
    /// As [`Conn::on_cdc`].
    pub fn on_early(&mut self, early: &mut Early) -> Result<RxEffects, ConnViolation> {
        let Early {
            newest,
            validation,
            shorts,
            bytes,
            anew,
            read,
        } = core::mem::take(early);
        let mut effects = match newest {
            Some(msg) => self.on_cdc(&msg)?,
            None => RxEffects::default(),
        };
        if shorts > 0 {
            if shorts >= SEQ_HALF {
                // More than can be told from old ones.
                return Err(ConnViolation::ProducedTooMuch);
            }
            let left = self.ring_left();
            let len = match anew {
                None => bytes,
                Some(anew) if bytes < left => left.saturating_add(anew),
                Some(_) => return Err(ConnViolation::ProducedTooMuch),
            };
            let msg = self.message_of(shorts, len, read)?;
            effects = effects.then(self.on_cdc(&msg)?);
        }
        if let Some(msg) = validation {
            let _ = self.on_cdc(&msg)?;
        }
        Ok(effects)
    }
}
