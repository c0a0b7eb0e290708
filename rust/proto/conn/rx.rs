// SPDX-License-Identifier: GPL-2.0

//! The receiving half: CDC messages of the peer, and what the application reads.

use super::urgent::Urgent;
use super::{
    Conn,
    ConnViolation,
    OutOfRange, //
};
use crate::proto::cdc::{
    ConnFlags,
    Message, //
};
use crate::proto::cursor::{
    modulus,
    Cursor,
    Pos,
    Ranges,
    RingSize, //
};

/// Half of the sequence number space: what lies further ahead lies behind.
pub(super) const SEQ_HALF: u16 = 0x8000;

/// Close flags that a message set for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerClose {
    /// The peer will write no more.
    pub sending_done: bool,
    /// The peer has closed.
    pub closed: bool,
    /// The peer has aborted.
    pub abort: bool,
}

impl PeerClose {
    /// Whether anything is new.
    pub const fn any(self) -> bool {
        self.sending_done || self.closed || self.abort
    }
}

/// What a message changed; act on it after the lock is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct RxEffects {
    /// Bytes that became readable: wake readers if not zero.
    pub arrived: u32,
    /// A plan is due: data for a window that opened, or a consumer update.
    pub push: bool,
    /// Bytes of the send ring that became free: wake writers if not zero.
    pub freed: u32,
    /// Urgent data of ours was read: wake writers that wait to send more of it.
    pub urgent_read: bool,
    /// Urgent data of the peer. On `Present` copy the byte and call [`Conn::urgent_arrived`]
    /// before the lock is dropped.
    pub urgent: Option<Urgent>,
    /// Close flags that are new: an event for the state machine.
    pub close: PeerClose,
    /// The message was older than one received before and has been ignored.
    pub stale: bool,
}

impl RxEffects {
    /// What follows from two messages, one after the other.
    pub(super) fn then(self, next: Self) -> Self {
        Self {
            arrived: self.arrived.saturating_add(next.arrived),
            push: self.push || next.push,
            freed: self.freed.saturating_add(next.freed),
            urgent_read: self.urgent_read || next.urgent_read,
            urgent: next.urgent.or(self.urgent),
            close: PeerClose {
                sending_done: self.close.sending_done || next.close.sending_done,
                closed: self.close.closed || next.close.closed,
                abort: self.close.abort || next.close.abort,
            },
            stale: self.stale && next.stale,
        }
    }
}

/// What reading changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Consumed {
    /// A consumer update is due: ask for a plan.
    pub push: bool,
}

impl Conn {
    /// Takes in a message of the peer.
    ///
    /// Everything the peer claims is checked before anything moves: counts lie in their ring, the
    /// producer stays within the space that the peer was told of, the consumer within what was
    /// sent. Cursors that lie behind are an error too, but for a peer that has changed links and
    /// repeats what it had sent.
    ///
    /// # Errors
    ///
    /// Names the rule that was broken. The caller aborts the connection.
    pub fn on_cdc(&mut self, msg: &Message) -> Result<RxEffects, ConnViolation> {
        if self.is_given_up() {
            // Only the peer's close flags are of interest now (RFC 7609, section 4.8.2). Numbers
            // are not kept any more, so a validation says nothing about data that was lost.
            return Ok(RxEffects {
                close: self.note_close(msg.conn_flags),
                ..RxEffects::default()
            });
        }
        if msg.prod_flags.failover_validation {
            return self.on_validation(msg.seq);
        }
        let mut fx = RxEffects::default();
        if msg.seq.wrapping_sub(self.seq_recv) >= SEQ_HALF {
            fx.stale = true;
            return Ok(fx);
        }
        let p = self.params;
        let arrived = self.lift(
            self.arrived,
            msg.prod,
            p.recv_ring,
            self.told.advance(p.recv_ring.get()),
            ConnViolation::ProducedTooMuch,
        )?;
        let peer_cons = self.lift(
            self.peer_cons,
            msg.cons,
            p.peer_ring,
            self.max_sent,
            ConnViolation::ConsumedTooMuch,
        )?;

        self.seq_recv = msg.seq;
        fx.arrived = arrived.since(self.arrived);
        self.arrived = arrived;
        let kept_from = self.kept_from();
        self.peer_cons = peer_cons;
        fx.freed = self.kept_from().since(kept_from);
        if self.sent < peer_cons {
            // After a link change the peer acknowledges what we rolled back. A message makes a
            // completion that frees those bytes.
            self.sent = peer_cons;
            self.cdc_due = true;
        }
        if arrived.cursor(p.recv_ring) == msg.prod {
            // The peer has repeated everything.
            self.peer_moved = false;
        }
        self.peer_prod_flags = msg.prod_flags;
        if self.urgent_tx.is_some_and(|mark| peer_cons >= mark) {
            self.urgent_tx = None;
            fx.urgent_read = true;
        }
        fx.urgent = self.note_urgent(msg.prod_flags, fx.arrived > 0);
        fx.close = self.note_close(msg.conn_flags);
        // Otherwise the next read decides, whose update is worth more.
        let flags = msg.prod_flags;
        if (flags.write_blocked || flags.update_requested) && self.update_due() {
            self.cdc_due = true;
        }
        fx.push = self.has_work();
        Ok(fx)
    }

    /// Lifts a wire cursor to a position at or behind `known`, at most `limit`.
    fn lift(
        &self,
        known: Pos,
        cursor: Cursor,
        ring: RingSize,
        limit: Pos,
        too_much: ConnViolation,
    ) -> Result<Pos, ConnViolation> {
        let ahead = known
            .distance_to(cursor, ring)
            .ok_or(ConnViolation::CountOutsideRing)?;
        let room = u64::from(limit.since(known));
        if ahead <= room {
            let ahead = u32::try_from(ahead).map_err(|_| too_much)?;
            return Ok(known.advance(ahead));
        }
        let behind = modulus(ring).saturating_sub(ahead);
        if self.peer_moved && behind <= ring.wide() {
            return Ok(known);
        }
        Err(too_much)
    }

    /// Takes in the first message of a peer that has changed links (RFC 7609, section 4.6.1).
    ///
    /// Only its sequence number counts: what the peer knows to be delivered must have arrived.
    fn on_validation(&mut self, seq: u16) -> Result<RxEffects, ConnViolation> {
        if self.lags(seq) {
            return Err(ConnViolation::DataLost);
        }
        self.peer_moved = true;
        Ok(RxEffects::default())
    }

    /// Whether a message of the peer has not been taken in that it knows to be delivered. What it says does not matter
    /// to a connection that keeps no numbers any more.
    pub(super) fn lags(&self, seq: u16) -> bool {
        let ahead = seq.wrapping_sub(self.seq_recv);
        !self.is_given_up() && ahead != 0 && ahead < SEQ_HALF
    }

    /// The last `n` bytes have come for nobody: they count as never arrived, and the connection is aborted.
    pub fn refuse(&mut self, n: u32) {
        let before = self.arrived.get().saturating_sub(n.into());
        self.arrived = Pos::new(before).max(self.read);
        self.request_abort();
    }

    /// How many bytes from the start of our element the peer may have written, as far as is known: after an end in order,
    /// what has arrived; otherwise all.
    pub fn written_by_peer(&self) -> u32 {
        let all = u32::MAX;
        if !self.peer_close.closed || self.peer_close.abort || self.is_given_up() {
            return all;
        }
        u32::try_from(self.arrived.get()).unwrap_or(all)
    }

    /// Whether nothing counts any more that the peer says of data.
    pub const fn is_given_up(&self) -> bool {
        self.dead || self.want_close.abort
    }

    /// Remembers close flags and returns the new ones. An abort is answered by an abort.
    fn note_close(&mut self, flags: ConnFlags) -> PeerClose {
        let had = self.peer_close;
        let new = PeerClose {
            sending_done: flags.sending_done && !had.sending_done,
            closed: flags.closed && !had.closed,
            abort: flags.abort && !had.abort,
        };
        self.peer_close.sending_done |= flags.sending_done;
        self.peer_close.closed |= flags.closed;
        self.peer_close.abort |= flags.abort;
        if new.closed {
            // It says no more how far it has read.
            self.urgent_tx = None;
        }
        if new.abort {
            self.want_close.abort = true;
        }
        new
    }

    /// Whether `new` is the first that the peer has said of its end: no more data will come.
    pub fn is_first_close(&self, new: PeerClose) -> bool {
        let all = self.peer_close;
        new.any()
            && (all.sending_done, all.closed, all.abort)
                == (new.sending_done, new.closed, new.abort)
    }

    /// Bytes the application can read, an urgent byte that is kept apart not counted.
    pub fn readable_len(&self) -> u32 {
        let all = self.arrived.since(self.read);
        match self.pending_skip() {
            Some(_) => all.saturating_sub(1),
            None => all,
        }
    }

    /// Where the next bytes to read lie in our element. It ends in front of an urgent byte that
    /// is kept apart, as reads do.
    pub fn readable(&self) -> Ranges {
        let mut len = self.arrived.since(self.read);
        if let Some(byte) = self.pending_skip() {
            len = len.min(byte.since(self.read));
        }
        self.read.ranges(len, self.params.recv_ring)
    }

    /// Counts `n` bytes as read; they must have been copied out before.
    ///
    /// # Errors
    ///
    /// Refuses more than [`Conn::readable`] gave; nothing changes.
    pub fn consume(&mut self, n: u32) -> Result<Consumed, OutOfRange> {
        if n > self.readable().total() {
            return Err(OutOfRange);
        }
        self.read = self.read.advance(n);
        self.settle_urgent(n > 0);
        if self.update_due() {
            self.cdc_due = true;
        }
        Ok(Consumed {
            push: self.cdc_due && !self.dead,
        })
    }

    /// Whether the peer should be told how far we have read.
    ///
    /// RFC 7609, section 4.5.1: a tenth of the ring gained while the sender knows of less than
    /// half. A sender that says it is blocked gets an update for that gain at once, or when all
    /// is read; the RFC has it for any gain, which would make small reads provoke small writes.
    /// A sender that asks gets one for any gain.
    pub(super) fn update_due(&self) -> bool {
        let gain = self.read.since(self.told);
        if gain == 0 || self.sent_close.closed {
            return false;
        }
        if self.peer_prod_flags.update_requested
            || self.urgent_rx.update_forced(self.read, self.told)
        {
            return true;
        }
        let enough = gain >= self.params.update_limit;
        if self.peer_prod_flags.write_blocked {
            return enough || self.read == self.arrived;
        }
        let ring = self.params.recv_ring.get();
        let window = ring.saturating_sub(self.arrived.since(self.told));
        enough && window <= ring / 2
    }
}
