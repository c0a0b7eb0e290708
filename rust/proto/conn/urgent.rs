// SPDX-License-Identifier: GPL-2.0

//! Urgent data: one byte in each direction that is announced ahead of its turn.
//!
//! A sender marks the last byte of a call. Until the peer has read it nothing behind it is sent
//! (RFC 7609, section 4.7.5); what the application writes meanwhile stays in the send ring.

use super::{
    Conn,
    OutOfRange, //
};
use crate::proto::cdc::ProdFlags;
use crate::proto::cursor::Pos;

/// News about urgent data of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgent {
    /// It is announced: raise the exception event.
    Pending,
    /// It is here, at this offset of our element.
    Present {
        /// Where the urgent byte lies.
        offset: u32,
    },
}

/// Why there is no urgent byte to give out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrgentError {
    /// None was sent, it was given out already, or it is part of the normal data.
    None,
    /// It is announced but not here.
    NotYet,
}

/// State of the incoming urgent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Idle,
    /// Announced.
    Pending,
    /// Present; the byte is kept until it is given out.
    Valid(u8),
    /// Given out, or read as normal data.
    Read,
}

/// The incoming urgent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rx {
    /// What is known of it.
    state: State,
    /// The position behind it.
    mark: Pos,
    /// Present, but its value has not been handed over yet.
    fetching: bool,
    /// Reading stands at the mark: the byte was passed over and nothing was read since.
    at_mark: bool,
    /// It belongs to the normal data (SO_OOBINLINE).
    inline: bool,
}

impl Rx {
    /// Nothing urgent.
    pub(super) const fn new() -> Self {
        Self {
            state: State::Idle,
            mark: Pos::ZERO,
            fetching: false,
            at_mark: false,
            inline: false,
        }
    }

    /// Whether the byte is here.
    const fn is_here(&self) -> bool {
        matches!(self.state, State::Valid(_) | State::Read)
    }

    /// Whether reading has passed the byte and the peer, who waits for that, was not told yet.
    pub(super) fn update_forced(&self, read: Pos, told: Pos) -> bool {
        self.is_here() && told < self.mark && read >= self.mark
    }
}

impl Conn {
    /// Marks the last byte written as urgent.
    ///
    /// # Errors
    ///
    /// Refuses while the peer has not read the urgent byte before, and when nothing was written.
    pub fn mark_urgent(&mut self) -> Result<(), OutOfRange> {
        if self.urgent_tx.is_some() || self.prep == self.fin {
            return Err(OutOfRange);
        }
        self.urgent_tx = Some(self.prep);
        // Announced at once, even if the window is closed (RFC 7609, section 4.7.6).
        self.cdc_due = true;
        Ok(())
    }

    /// Whether an urgent byte of ours is still to be read by the peer.
    pub const fn urgent_outstanding(&self) -> bool {
        self.urgent_tx.is_some()
    }

    /// Says whether urgent bytes belong to the normal data (SO_OOBINLINE).
    pub fn set_oob_inline(&mut self, inline: bool) {
        self.urgent_rx.inline = inline;
    }

    /// Hands over the value of the urgent byte that [`Urgent::Present`] announced.
    ///
    /// Returns whether a plan is due: reading may have stood right before the byte.
    #[must_use = "a plan may be due, and nobody else asks for it"]
    pub fn urgent_arrived(&mut self, byte: u8) -> bool {
        if self.urgent_rx.fetching {
            self.urgent_rx.fetching = false;
            self.urgent_rx.state = State::Valid(byte);
            self.settle_urgent(false);
            if self.update_due() {
                self.cdc_due = true;
            }
        }
        self.has_work()
    }

    /// Gives out the urgent byte; with `peek` it stays.
    ///
    /// # Errors
    ///
    /// Says why there is none.
    pub fn take_urgent(&mut self, peek: bool) -> Result<u8, UrgentError> {
        if self.urgent_rx.inline {
            return Err(UrgentError::None);
        }
        match self.urgent_rx.state {
            State::Valid(byte) => {
                if !peek {
                    self.urgent_rx.state = State::Read;
                }
                Ok(byte)
            }
            State::Pending => Err(UrgentError::NotYet),
            State::Idle | State::Read => Err(UrgentError::None),
        }
    }

    /// Whether an urgent byte can be given out (POLLPRI).
    pub const fn urgent_valid(&self) -> bool {
        matches!(self.urgent_rx.state, State::Valid(_))
    }

    /// Whether reading stands at the urgent byte (SIOCATMARK).
    pub fn at_mark(&self) -> bool {
        let rx = &self.urgent_rx;
        rx.is_here() && (rx.at_mark || self.read.advance(1) == rx.mark)
    }

    /// Where the urgent byte lies if it is still to be passed over by reading.
    pub(super) fn pending_skip(&self) -> Option<Pos> {
        let rx = &self.urgent_rx;
        let byte = Pos::new(rx.mark.get().checked_sub(1)?);
        let apart = !rx.inline && (rx.is_here() || rx.fetching);
        (apart && self.read <= byte).then_some(byte)
    }

    /// Whether an urgent byte that is kept apart lies behind what can be read.
    pub fn is_mark_ahead(&self) -> bool {
        self.readable_len() > 0 && self.pending_skip().is_some()
    }

    /// How many bytes come before an urgent byte that belongs to the normal data, if reading has
    /// not come to it: one call reads no further.
    pub fn before_inline_mark(&self) -> Option<u32> {
        let rx = &self.urgent_rx;
        let byte = Pos::new(rx.mark.get().checked_sub(1)?);
        let ahead = rx.inline && (rx.is_here() || rx.fetching) && self.read < byte;
        ahead.then(|| byte.since(self.read))
    }

    /// A call begins to read, and does not only look: it leaves the mark behind, whether or not it finds anything there.
    ///
    /// With TCP an urgent byte that nobody has taken by then is lost.
    pub fn leave_mark(&mut self) {
        let rx = &mut self.urgent_rx;
        if rx.at_mark {
            rx.at_mark = false;
            if matches!(rx.state, State::Valid(_)) {
                rx.state = State::Read;
            }
        }
    }

    /// Takes in the urgent flags of a message.
    pub(super) fn note_urgent(&mut self, flags: ProdFlags, advanced: bool) -> Option<Urgent> {
        if flags.urgent_present && advanced {
            let byte = Pos::new(self.arrived.get().checked_sub(1)?);
            self.urgent_rx.mark = self.arrived;
            self.urgent_rx.state = State::Pending;
            self.urgent_rx.fetching = true;
            self.urgent_rx.at_mark = false;
            return Some(Urgent::Present {
                offset: byte.offset(self.params.recv_ring),
            });
        }
        let news = matches!(self.urgent_rx.state, State::Idle | State::Read);
        if flags.urgent_pending && !flags.urgent_present && news {
            self.urgent_rx.state = State::Pending;
            return Some(Urgent::Pending);
        }
        None
    }

    /// Passes over an urgent byte that is kept apart when reading has come to it.
    pub(super) fn settle_urgent(&mut self, progress: bool) {
        if progress {
            self.leave_mark();
        }
        let Some(byte) = self.pending_skip() else {
            if self.urgent_rx.inline && self.urgent_rx.is_here() && self.read >= self.urgent_rx.mark
            {
                self.urgent_rx.state = State::Read;
            }
            return;
        };
        if byte == self.read && !self.urgent_rx.fetching {
            self.read = self.urgent_rx.mark;
            self.urgent_rx.at_mark = true;
        }
    }
}
