// SPDX-License-Identifier: GPL-2.0

//! Messages that come before the peer's ring is known, because its side of the handshake is over.

use super::{
    Conn,
    ConnViolation,
    RxEffects, //
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
}

impl Early {
    /// Nothing has come.
    pub const fn new() -> Self {
        Self {
            newest: None,
            validation: None,
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
        self.newest = Some(newest);
    }
}

impl Conn {
    /// Takes in what came early, once.
    ///
    /// # Errors
    ///
    /// As [`Conn::on_cdc`].
    pub fn on_early(&mut self, early: &mut Early) -> Result<RxEffects, ConnViolation> {
        let Early { newest, validation } = core::mem::take(early);
        let effects = match newest {
            Some(msg) => self.on_cdc(&msg)?,
            None => RxEffects::default(),
        };
        if let Some(msg) = validation {
            let _ = self.on_cdc(&msg)?;
        }
        Ok(effects)
    }
}
