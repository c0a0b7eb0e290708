// SPDX-License-Identifier: GPL-2.0

//! A peer that changes links: its first message on the new one may be taken in before its last ones on the old.
//!
//! Each link has a completion queue of its own, so that the order between two links is lost on the way. The message
//! that validates (RFC 7609, section 4.6.1) says what has been delivered, not what has been taken in: where it is ahead,
//! it and what follows on its link wait for the rest to come from the queue of the old one. What the peer does not know to
//! be delivered may come from there as well, behind the message that validates; the peer repeats it.

use super::{
    Conn,
    ConnViolation,
    Early,
    RxEffects, //
};
use crate::proto::cdc::Message;

/// How long the rest may take that has arrived on the old link, in milliseconds. Then data is lost.
pub const MOVING_MS: u32 = 500;

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sorted {
    /// It is due: [`Conn::on_cdc`], and then [`Moving::is_due`] may be.
    Take,
    /// It comes from a link that the peer has left: [`Conn::on_late`].
    Late,
    /// It waits, as the first one: [`Conn::on_moved`] is due after [`MOVING_MS`] at the latest.
    Wait,
    /// It waits with others.
    Kept,
}

/// What waits for a connection whose peer has changed links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moving {
    /// The message that validates, and the column of the link on which it came.
    first: Option<(Message, usize)>,
    /// What has followed it there.
    then: Early,
    /// The column of the link that the peer has taken last.
    taken: Option<usize>,
}

impl Moving {
    /// Nothing waits.
    pub const fn new() -> Self {
        Self {
            first: None,
            then: Early::new(),
            taken: None,
        }
    }

    /// Sorts a message that has come on the link in column `link`.
    pub fn sort(&mut self, conn: &Conn, msg: &Message, link: usize) -> Sorted {
        match self.first {
            None if msg.prod_flags.failover_validation && conn.lags(msg.seq) => {
                self.first = Some((*msg, link));
                Sorted::Wait
            }
            Some((_, new)) if new == link => {
                self.then.keep(msg);
                Sorted::Kept
            }
            None if msg.prod_flags.failover_validation => {
                self.taken = Some(link);
                Sorted::Take
            }
            None if self.taken.is_some_and(|taken| taken != link) => Sorted::Late,
            _ => Sorted::Take,
        }
    }

    /// The column of the link whose messages wait.
    pub(super) fn waits_on(&self) -> Option<usize> {
        self.first.map(|(_, link)| link)
    }

    /// The column of the link that the peer has taken last, if it has changed links.
    pub(super) const fn taken(&self) -> Option<usize> {
        self.taken
    }

    /// Whether something waits that waits no longer: all has been taken in that it names.
    pub fn is_due(&self, conn: &Conn) -> bool {
        self.first.is_some_and(|(msg, _)| !conn.lags(msg.seq))
    }
}

impl Conn {
    /// Takes in a message from a link that the peer has left. What it says is true; but the peer may not know that it
    /// was delivered, and repeats it.
    ///
    /// # Errors
    ///
    /// As [`Conn::on_cdc`].
    pub fn on_late(&mut self, msg: &Message) -> Result<RxEffects, ConnViolation> {
        let moved = self.peer_moved;
        let effects = self.on_cdc(msg)?;
        self.peer_moved |= moved;
        Ok(effects)
    }

    /// Takes in what has waited; nothing happens when nothing has.
    ///
    /// # Errors
    ///
    /// As [`Conn::on_cdc`]: [`ConnViolation::DataLost`] when what was waited for has not come.
    pub fn on_moved(&mut self, moving: &mut Moving) -> Result<RxEffects, ConnViolation> {
        let mut then = core::mem::take(&mut moving.then);
        match moving.first.take() {
            Some((msg, link)) => {
                moving.taken = Some(link);
                let _ = self.on_cdc(&msg)?;
                self.on_early(&mut then)
            }
            None => Ok(RxEffects::default()),
        }
    }
}
