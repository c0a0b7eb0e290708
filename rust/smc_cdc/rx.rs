// SPDX-License-Identifier: GPL-2.0

//! Receiving: what the peer's messages say, and from the receive ring to the application.
//!
//! RFC 7609, sections 4.4 and 4.5.1.

use kernel::{
    iov::IovIterDest,
    num::casts::{
        u32_as_usize,
        usize_as_u64, //
    },
    prelude::*,
    sync::atomic::Relaxed, //
};

use super::{
    close::PeerSaid,
    Connection,
    Core,
    Moved, //
};
use crate::proto::{
    cdc::{
        Message,
        LEN, //
    },
    clc::Extensions,
    conn::{
        Conn,
        ConnViolation,
        Params,
        RxEffects,
        Short,
        ShortSorted,
        Sorted,
        Urgent,
        UrgentError, //
    },
};

/// How much is copied to the application before the peer may learn of the room.
const PIECE: usize = 64 * 1024;

/// How a call receives.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecvMode {
    /// The bytes stay (MSG_PEEK).
    pub(crate) peek: bool,
    /// The bytes are thrown away (MSG_TRUNC).
    pub(crate) discard: bool,
    /// So many bytes are passed over by a peek (SO_PEEK_OFF).
    pub(crate) skip: u32,
}

/// What follows from a message, after the lock has been dropped.
#[derive(Default)]
struct Then {
    /// Readers have something to see.
    readable: bool,
    /// An urgent byte is here.
    urgent: bool,
    /// Writers have something to see.
    writable: bool,
    /// A plan is due.
    push: bool,
    /// What follows from data and the peer's close flags.
    said: PeerSaid,
    /// The connection is over.
    over: bool,
}

/// What follows from a message, and from those that have waited for it.
type Arrived = (
    Result<Then, ConnViolation>,
    Option<Result<Then, ConnViolation>>,
);

impl Connection {
    /// A CDC message has arrived on the link in this column, in softirq.
    pub(super) fn receive_message(&self, bytes: &[u8; LEN], column: usize) {
        let Ok(message) = Message::decode(bytes) else {
            self.peer_lied();
            return;
        };
        let arrived = {
            let mut core = self.core.lock();
            let core = &mut *core;
            let Some(conn) = core.conn.as_mut() else {
                core.early.keep(&message);
                return;
            };
            let effects = match core.moving.sort(conn, &message, column) {
                Sorted::Take => conn.on_cdc(&message),
                Sorted::Late => conn.on_late(&message),
                Sorted::Wait => {
                    core.await_rest();
                    return;
                }
                Sorted::Kept => return,
            };
            self.take_in(core, effects)
        };
        self.run_all(arrived);
    }

    /// A short message has arrived on the link in this column, with a write of `len` bytes; in softirq.
    pub(super) fn receive_short(&self, short: Short, len: u32, column: usize) {
        let arrived = {
            let mut core = self.core.lock();
            let core = &mut *core;
            let effects = match (core.conn.as_mut(), core.moving.sort_short(column, len)) {
                (_, ShortSorted::Ignore) => return,
                (Some(conn), ShortSorted::Take) => conn
                    .short_message(short, len)
                    .and_then(|message| conn.on_cdc(&message)),
                (None, ShortSorted::Take) => {
                    core.early.keep_short(short, len);
                    return;
                }
                (_, ShortSorted::Wrong) => Err(ConnViolation::ShortUnwanted),
            };
            self.take_in(core, effects)
        };
        self.run_all(arrived);
    }

    /// Carries out what a message has led to, and takes in what has waited for it. Called under the core's lock.
    fn take_in(&self, core: &mut Core, effects: Result<RxEffects, ConnViolation>) -> Arrived {
        let due = core
            .conn
            .as_ref()
            .is_some_and(|conn| core.moving.is_due(conn));
        let result = effects.map(|effects| self.apply(core, &effects));
        let rest = due.then(|| self.take_moved(core));
        (result, rest)
    }

    /// Takes in what has waited for the rest of what the peer sent on its old link. Called under the core's lock.
    fn take_moved(&self, core: &mut Core) -> Result<Then, ConnViolation> {
        let Some(conn) = core.conn.as_mut() else {
            return Ok(Then::default());
        };
        let effects = conn.on_moved(&mut core.moving)?;
        Ok(self.apply(core, &effects))
    }

    /// The rest of what the peer sent on its old link has not come in time: it is lost, and so is the connection.
    pub(super) fn rest_is_lost(&self) {
        let result = self.take_moved(&mut self.core.lock());
        self.run(result);
    }

    /// Knows the peer's ring now: makes the core and takes in what came early. Called under the core's lock.
    pub(super) fn begin(&self, core: &mut Core, params: Params) -> Result<(), ConnViolation> {
        let conn = core.conn.insert(Conn::new(params));
        if self.group().params().extensions.contains(Extensions::SHORT) {
            conn.allow_short();
        }
        let effects = conn.on_early(&mut core.early)?;
        // Nobody waits yet: the socket looks by itself when the handshake has ended.
        let _ = self.apply(core, &effects);
        Ok(())
    }

    /// Carries out what a message asks for. Called under the core's lock.
    fn apply(&self, core: &mut Core, effects: &RxEffects) -> Then {
        let Some(conn) = core.conn.as_mut() else {
            return Then::default();
        };
        if effects.stale {
            return Then::default();
        }
        let mut push = effects.push || effects.close.any();
        if let Some(Urgent::Present { offset }) = effects.urgent {
            let mut byte = [0];
            self.rmb.read_bytes(offset, &mut byte);
            let [value] = byte;
            push |= conn.urgent_arrived(value);
        }
        // The end of the data is read like data, and signalled once.
        let end = conn.is_first_close(effects.close);
        let said = core.peer_says(effects.arrived, effects.close);
        self.tell_error(said.error);
        push |= said.push;
        let room = effects.freed > 0 || effects.urgent_read;
        let writable = room && core::mem::take(&mut core.wants_room);
        Then {
            readable: effects.arrived > 0 || effects.urgent.is_some() || end,
            urgent: matches!(effects.urgent, Some(Urgent::Present { .. })),
            writable,
            push,
            said,
            over: core.is_over(),
        }
    }

    /// Does what a message asks for, and those that have waited for it.
    fn run_all(&self, (result, rest): Arrived) {
        self.run(result);
        if let Some(rest) = rest {
            self.run(rest);
        }
    }

    /// Does what a message asks for.
    fn run(&self, result: Result<Then, ConnViolation>) {
        let then = match result {
            Ok(then) => then,
            Err(_) => {
                self.peer_lied();
                return;
            }
        };
        if then.urgent {
            self.wake(|w| w.urgent());
        }
        // The application's wake-up first: it is what the peer waits for.
        if then.readable {
            self.wake(|w| w.readable());
        }
        if then.push {
            self.push();
        }
        if then.writable {
            self.wake(|w| w.writable());
        }
        if then.said.wake {
            self.wake(|w| w.state());
        }
        if then.over {
            self.finish();
        }
    }

    /// Gives what is there, at most `most` bytes. Does not wait.
    ///
    /// # Errors
    ///
    /// No bytes at the end of the stream; `EAGAIN` when nothing is there; `EFAULT` when nothing could be written to the
    /// application; the connection's error, `ECONNRESET` or `ECONNABORTED`, once it has one and all data is read.
    pub(crate) fn try_recv(
        &self,
        to: &mut IovIterDest<'_>,
        most: usize,
        mode: RecvMode,
    ) -> Result<Moved> {
        let _one = self.receiver.lock();
        let mut total: usize = 0;
        let mut fault = false;
        while total < most {
            let (ranges, to_mark) = {
                let mut core = self.core.lock();
                let Some(conn) = core.conn.as_mut() else {
                    return Err(ENOTCONN);
                };
                if total == 0 && !mode.peek {
                    conn.leave_mark();
                }
                (conn.readable(), conn.before_inline_mark())
            };
            if ranges.total() <= mode.skip {
                break;
            }
            let mut left = most.saturating_sub(total);
            // A peek that begins at the mark goes on from there.
            let before = to_mark.and_then(|n| n.checked_sub(mode.skip));
            if let Some(before) = before.filter(|n| *n > 0) {
                left = left.min(u32_as_usize(before));
            }
            if !mode.peek {
                left = left.min(PIECE);
            }
            let mut copied: u32 = 0;
            for range in ranges.behind(mode.skip).iter() {
                let len = range.len.min(u32::try_from(left).unwrap_or(range.len));
                let n = if mode.discard {
                    len
                } else {
                    let n = self.rmb.copy_to_iter(range.offset, len, to);
                    u32::try_from(n).unwrap_or(len)
                };
                copied = copied.saturating_add(n);
                left = left.saturating_sub(u32_as_usize(n));
                if n < len {
                    fault = true;
                    break;
                }
                if left == 0 {
                    break;
                }
            }
            if fault {
                // As with TCP a piece goes whole or not at all.
                if total == 0 {
                    return Err(EFAULT);
                }
                break;
            }
            total = total.saturating_add(u32_as_usize(copied));
            if !mode.peek {
                self.consume(copied);
            }
            // As with TCP no call reads across the urgent mark.
            if mode.peek || to.is_empty() && !mode.discard || self.at_mark() {
                break;
            }
        }
        if total == 0 {
            let core = self.core.lock();
            let there = core.conn.as_ref().map_or(0, Conn::readable_len);
            // What has arrived since is for the next call, unless this one had no room anyway.
            if most > 0 || there <= mode.skip {
                return core.nothing_to_read().map(|()| Moved::NOTHING);
            }
        }
        if !mode.peek {
            self.rx_bytes.fetch_add(usize_as_u64(total), Relaxed);
        }
        Ok(Moved {
            bytes: total,
            fault,
        })
    }

    /// Counts what the application took and tells the peer if it should know.
    fn consume(&self, n: u32) {
        let push = {
            let mut core = self.core.lock();
            core.conn
                .as_mut()
                .is_some_and(|conn| conn.consume(n).is_ok_and(|consumed| consumed.push))
        };
        if push {
            self.push();
        }
    }

    /// The urgent byte, once (MSG_OOB).
    ///
    /// # Errors
    ///
    /// `EINVAL` when there is none, `ENOTCONN` when there is one but the connection was reset, `EAGAIN` when it is
    /// announced but not here.
    pub(crate) fn take_urgent(&self, peek: bool) -> Result<u8> {
        let byte = {
            let mut core = self.core.lock();
            let conn = core.conn.as_mut().ok_or(ENOTCONN)?;
            let reset = conn.is_dead() || conn.peer_close().abort;
            if reset && conn.take_urgent(true) != Err(UrgentError::None) {
                return Err(ENOTCONN);
            }
            conn.take_urgent(peek)
        };
        self.push();
        byte.map_err(|error| match error {
            UrgentError::None => EINVAL,
            UrgentError::NotYet => EAGAIN,
        })
    }

    /// Whether reading stands at the urgent mark (SIOCATMARK).
    pub(crate) fn at_mark(&self) -> bool {
        let core = self.core.lock();
        core.conn.as_ref().is_some_and(Conn::at_mark)
    }

    /// Whether the urgent byte is part of the normal data (SO_OOBINLINE).
    pub(crate) fn set_oob_inline(&self, inline: bool) {
        if let Some(conn) = self.core.lock().conn.as_mut() {
            conn.set_oob_inline(inline);
        }
    }

    /// Size of the receive ring in bytes.
    pub(crate) fn receive_ring(&self) -> u32 {
        self.rmb.bytes()
    }

    /// How many bytes further calls would find, as TCP counts them (TCP_INQ): with an urgent byte among them, and the
    /// end of the data as one.
    pub(crate) fn left_to_read(&self) -> u32 {
        let core = self.core.lock();
        core.conn.as_ref().map_or(0, |conn| {
            let bytes = conn.readable_len();
            bytes
                .saturating_add(u32::from(conn.is_mark_ahead()))
                .max(u32::from(conn.peer_close().any()))
        })
    }

    /// Bytes that can be read (SIOCINQ).
    pub(crate) fn readable_len(&self) -> u32 {
        let core = self.core.lock();
        core.conn.as_ref().map_or(0, Conn::readable_len)
    }
}
