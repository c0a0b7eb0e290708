// SPDX-License-Identifier: GPL-2.0

//! The sending half: send ring, window, plans and their completions.

use super::short::Short;
use super::{
    Conn,
    OutOfRange, //
};
use crate::proto::cdc::{
    ConnFlags,
    Message,
    ProdFlags, //
};
use crate::proto::cursor::{
    Pos,
    Ranges, //
};

/// The most RDMA writes in one plan: the bytes may wrap in the send ring and in the peer's
/// element, at different places.
pub const MAX_WRITES: usize = 3;

/// One RDMA write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Offset in the send ring.
    pub local: u32,
    /// Offset in the peer's element.
    pub remote: u32,
    /// Length, not zero.
    pub len: u32,
}

/// Comes back with the completion of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxToken {
    /// What will be complete.
    end: Pos,
    /// Sequence number of the message.
    seq: u16,
    /// Link change counter.
    epoch: u16,
}

impl TxToken {
    /// The token as one number, for a work request; [`Conn::token_of`] is the way back.
    pub const fn to_cookie(self) -> u64 {
        let [_, _, _, _, a, b, c, d] = self.end.get().to_be_bytes();
        let [e, f] = self.seq.to_be_bytes();
        let [g, h] = self.epoch.to_be_bytes();
        u64::from_be_bytes([g, h, e, f, a, b, c, d])
    }
}

/// A chain to post as one: the writes in order, then the CDC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the cursors have moved: the chain must be posted under the same lock"]
pub struct TxPlan {
    /// The writes; only the first `count` are used.
    writes: [Write; MAX_WRITES],
    /// How many writes there are.
    count: usize,
    /// The bytes lie in the ring before the present one.
    pub from_before: bool,
    /// The message behind them.
    pub cdc: Message,
    /// What the only write can say in its place.
    pub short: Option<Short>,
    /// To give back with the completion.
    pub token: TxToken,
}

impl TxPlan {
    /// The writes in order; none for a message alone.
    pub fn writes(&self) -> &[Write] {
        self.writes.get(..self.count).unwrap_or(&[])
    }

    /// Data bytes in the chain.
    pub fn data_len(&self) -> u32 {
        self.writes().iter().fold(0, |n, w| n.saturating_add(w.len))
    }
}

/// Passed by value, so it stays small.
const _: () = assert!(core::mem::size_of::<TxPlan>() <= 256);

/// What a completion changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct DoneEffects {
    /// Bytes of the send ring that became free: wake writers if not zero.
    pub freed: u32,
    /// More can be sent now: ask for a plan.
    pub push: bool,
    /// Everything the application wrote has been completed: wake who waits for that.
    pub drained: bool,
    /// No plan is outstanding: buffers may go away if the connection is dead.
    pub idle: bool,
}

impl Conn {
    /// Where the bytes begin that the send ring has to keep.
    ///
    /// What the peer has read it has got, so that its bytes are free even if the completion that says so is still on its
    /// way: a card that repeats such a write, because the acknowledgement was lost, sends what the peer's card drops
    /// unread. Completions come in the order of the queue pair, behind what was posted for others meanwhile; the peer's
    /// word often comes before.
    pub(super) fn kept_from(&self) -> Pos {
        self.fin.max(self.peer_cons)
    }

    /// Free bytes of the present send ring.
    pub fn send_space(&self) -> u32 {
        let used = self.rings.used(self.kept_from(), self.prep);
        self.send_ring().get().saturating_sub(used)
    }

    /// Bytes the application wrote that the peer is not known to have got (SIOCOUTQ).
    pub fn unfinished(&self) -> u32 {
        self.prep.since(self.kept_from())
    }

    /// Bytes the application wrote that no plan covers yet (SIOCOUTQNSD).
    pub fn unsent(&self) -> u32 {
        self.prep.since(self.sent)
    }

    /// Whether there are bytes that no plan will ever cover, since the peer has closed: an event for the state machine.
    pub fn is_unheard(&self) -> bool {
        self.peer_close.closed && self.unsent() > 0 && !self.is_given_up()
    }

    /// Bytes the peer's element can take.
    pub fn window(&self) -> u32 {
        let used = self.sent.since(self.peer_cons);
        self.params.peer_ring.get().saturating_sub(used)
    }

    /// Whether all that was written has been completed.
    pub fn is_drained(&self) -> bool {
        self.fin == self.prep
    }

    /// Where up to `len` bytes can be put into the send ring; empty when it is full.
    ///
    /// Nothing changes until [`Conn::commit_write`], so the bytes may be copied without the
    /// connection's lock as long as one writer at a time does so.
    pub fn reserve_write(&self, len: u32) -> Ranges {
        self.rings.parts(self.prep, len.min(self.send_space()))
    }

    /// Counts `n` bytes that were put where [`Conn::reserve_write`] said.
    ///
    /// # Errors
    ///
    /// Refuses more than there is space for; nothing changes.
    pub fn commit_write(&mut self, n: u32) -> Result<(), OutOfRange> {
        if n > self.send_space() {
            return Err(OutOfRange);
        }
        self.prep = self.prep.advance(n);
        Ok(())
    }

    /// Whether to keep what was written for a while, hoping for more to send with it (RFC 7609,
    /// section 4.5.2).
    ///
    /// `cork` is the wish of the application (MSG_MORE, TCP_CORK): it holds as long as the send
    /// ring has space. Otherwise small data, less than `autocork` bytes and than half the ring, waits
    /// for the completion of what was posted before; [`Conn::tx_done`] then says `push`. From half
    /// the ring on it does not: one half is on its way while the other one is filled.
    pub fn should_hold(&self, cork: bool, autocork: u32) -> bool {
        if self.urgent_tx.is_some() || self.want_close != self.sent_close {
            return false;
        }
        if cork {
            return self.send_space() > 0;
        }
        let limit = autocork.min(self.send_ring().get() / 2);
        self.posted > 0 && self.unsent() < limit
    }

    /// Bytes that may be sent now: within the window, and not beyond an urgent byte that the
    /// peer has not read (RFC 7609, section 4.7.5). A peer that has closed reads nothing more.
    fn sendable(&self) -> u32 {
        if self.peer_close.closed || self.peer_close.abort || self.sent_close.closed {
            return 0;
        }
        let mut len = self.unsent().min(self.window());
        if let Some(mark) = self.urgent_tx {
            len = len.min(mark.since(self.sent));
        }
        len = self.rings.within(self.sent, len);
        match self.params.max_chain {
            0 => len,
            most => len.min(most),
        }
    }

    /// Close flags that may go out when `sent` is the new end of what is covered.
    fn ready_close(&self, sent: Pos) -> ConnFlags {
        let mut flags = self.sent_close;
        flags.abort |= self.want_close.abort;
        if sent == self.prep {
            flags.sending_done |= self.want_close.sending_done;
        }
        // A peer that has closed reads no more: what it has not got is dropped, and we are done
        // with its element once nothing is under way.
        if self.is_drained() || (self.peer_close.closed && self.posted == 0) {
            flags.closed |= self.want_close.closed;
        }
        flags
    }

    /// Whether a call of [`Conn::plan_tx`] with data would give a plan.
    pub fn has_work(&self) -> bool {
        !self.dead && (self.want_close.abort || self.sendable() > 0 || self.control_due(self.sent))
    }

    /// Whether a message is due even without data.
    fn control_due(&self, sent: Pos) -> bool {
        self.cdc_due || self.ready_close(sent) != self.sent_close
    }

    /// The producer flags that describe the present state.
    pub(super) fn prod_flags(&self) -> ProdFlags {
        ProdFlags {
            // Set whenever the window is closed, so that the receiver tells us when it opens.
            write_blocked: self.window() == 0,
            urgent_pending: self.urgent_tx.is_some(),
            urgent_present: self.urgent_tx == Some(self.sent),
            update_requested: false,
            failover_validation: false,
        }
    }

    /// Plans the next chain, or nothing when nothing is due.
    ///
    /// Call it only with a slot in hand, post the chain under the same lock, and call again until
    /// it returns nothing. With `data` false only a message is planned: for a consumer update
    /// while data is held back.
    ///
    /// Every message carries the newest consumer cursor (RFC 7609, section 4.5.1).
    pub fn plan_tx(&mut self, data: bool) -> Option<TxPlan> {
        if self.dead {
            return None;
        }
        let abort = self.want_close.abort;
        let len = if data && !abort { self.sendable() } else { 0 };
        let end = self.sent.advance(len);
        if len == 0 && !abort && !self.control_due(self.sent) {
            return None;
        }
        let (writes, count) = self.split(len);
        let from_before = self.rings.is_before(self.sent);
        let close = self.ready_close(end);
        let (sent, told) = (self.sent, self.told);
        self.sent = end;
        self.max_sent = self.max_sent.max(end);
        self.told = self.read;
        self.sent_close = close;
        self.cdc_due = false;
        self.dead = abort;
        self.posted = self.posted.saturating_add(1);
        self.seq_sent = self.seq_sent.wrapping_add(1);
        let token = TxToken {
            end,
            seq: self.seq_sent,
            epoch: self.epoch,
        };
        let cdc = self.message();
        let short = self.shorten(&cdc, sent, writes.get(..count).unwrap_or(&[]), told);
        Some(TxPlan {
            writes,
            count,
            from_before,
            cdc,
            short,
            token,
        })
    }

    /// The message that describes the present state.
    fn message(&self) -> Message {
        Message {
            seq: self.seq_sent,
            token: self.params.peer_token,
            prod: self.sent.cursor(self.params.peer_ring),
            cons: self.told.cursor(self.params.recv_ring),
            prod_flags: self.prod_flags(),
            conn_flags: self.sent_close,
        }
    }

    /// Cuts the `len` bytes from `sent` on where either ring wraps.
    fn split(&self, len: u32) -> ([Write; MAX_WRITES], usize) {
        let mut writes = [Write::default(); MAX_WRITES];
        let mut count: usize = 0;
        let mut pos = self.sent;
        let mut left = len;
        for slot in &mut writes {
            if left == 0 {
                break;
            }
            let local = self.rings.first_part(pos, left);
            let remote = pos.ranges(left, self.params.peer_ring).first();
            let n = local.len.min(remote.len);
            *slot = Write {
                local: local.offset,
                remote: remote.offset,
                len: n,
            };
            count = count.saturating_add(1);
            pos = pos.advance(n);
            left = left.saturating_sub(n);
        }
        (writes, count)
    }

    /// The token of a plan of this connection that [`TxToken::to_cookie`] made a number of.
    ///
    /// What a plan covers ends less than 4 GiB behind what has completed, so that the low half of the position is
    /// enough.
    pub fn token_of(&self, cookie: u64) -> TxToken {
        let [g, h, e, f, a, b, c, d] = cookie.to_be_bytes();
        let [_, _, _, _, p, q, r, s] = self.fin.get().to_be_bytes();
        let ahead = u32::from_be_bytes([a, b, c, d]).wrapping_sub(u32::from_be_bytes([p, q, r, s]));
        TxToken {
            end: self.fin.advance(ahead),
            seq: u16::from_be_bytes([e, f]),
            epoch: u16::from_be_bytes([g, h]),
        }
    }

    /// A chain has completed successfully.
    ///
    /// Completions of a link that has been left are counted, but what they carried was planned
    /// again on the new link, so they free nothing.
    pub fn tx_done(&mut self, token: TxToken) -> DoneEffects {
        self.posted = self.posted.saturating_sub(1);
        let (fin, kept_from) = (self.fin, self.kept_from());
        if token.epoch == self.epoch {
            self.fin = self.fin.max(token.end);
            self.seq_fin = token.seq;
        }
        DoneEffects {
            freed: self.kept_from().since(kept_from),
            drained: self.fin > fin && self.is_drained(),
            ..self.done_effects()
        }
    }

    /// A chain has failed or was flushed: nothing is freed, the bytes stay for another link.
    pub fn tx_failed(&mut self, token: TxToken) -> DoneEffects {
        self.failed |= token.epoch == self.epoch;
        self.posted = self.posted.saturating_sub(1);
        self.done_effects()
    }

    /// What follows from any completion.
    fn done_effects(&self) -> DoneEffects {
        let idle = self.posted == 0;
        DoneEffects {
            // Data held back for autocorking waits for the last completion; the closed flag
            // waits for the last byte.
            push: !self.dead
                && (self.ready_close(self.sent) != self.sent_close || (idle && self.has_work())),
            idle,
            ..DoneEffects::default()
        }
    }

    /// Moves the connection to another link: rolls back to what has completed and returns the
    /// validation message, which must be the first message on the new link (RFC 7609, 4.6.1).
    ///
    /// Every state is rolled back, also half-closed ones (section 4.6.2): whatever was not completed is planned
    /// again, and one message is due even without data, so that lost flags and cursors are told
    /// again. Bytes the peer is known to have read are not written again. Returns nothing when
    /// the connection no longer sends.
    ///
    /// Nothing that was posted on the old link may arrive behind it: the old queue pair is in error,
    /// or all of it has completed. The receiver takes a message there for the peer's last word.
    ///
    /// The message is not counted as posted and carries the number of the last completed message
    /// without using up a new one (RFC 7609, appendix A.4).
    pub fn begin_failover(&mut self) -> Option<Message> {
        if self.dead {
            return None;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.failed = false;
        self.sent = self.kept_from();
        self.cdc_due = true;
        // It goes out again with the last byte that is repeated.
        self.sent_close.sending_done &= self.sent == self.prep;
        Some(Message {
            seq: self.seq_fin,
            token: self.params.peer_token,
            prod: Default::default(),
            cons: Default::default(),
            prod_flags: ProdFlags {
                failover_validation: true,
                ..ProdFlags::default()
            },
            conn_flags: ConnFlags::default(),
        })
    }
}
