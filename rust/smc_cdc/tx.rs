// SPDX-License-Identifier: GPL-2.0

//! Sending: from the application into the send ring, and from there to the peer.
//!
//! RFC 7609, sections 4.4 and 4.7.

use kernel::{
    iov::IovIterSource,
    num::casts::{
        u32_as_usize,
        usize_as_u64, //
    },
    prelude::*,
    sync::atomic::Relaxed, //
};

use super::Connection;
use crate::{
    proto::{
        conn::{
            Conn,
            DoneEffects,
            TxPlan,
            MAX_WRITES, //
        },
        cursor::Ranges,
        ids::Vaddr, //
    },
    smc_llc::{
        TxSlot,
        Write, //
    },
};

/// How much is copied before the first part of it is sent.
const PIECE: u32 = 32 * 1024;

/// How a call sends.
#[derive(Clone, Copy, Default)]
pub(crate) struct SendMode {
    /// More will follow soon (MSG_MORE, TCP_CORK).
    pub(crate) cork: bool,
    /// The last byte is urgent (MSG_OOB).
    pub(crate) urgent: bool,
}

impl Connection {
    /// Takes what fits into the send ring, and sends what the peer has room for. Does not wait.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when there is something to send and nothing fits; `EFAULT` when nothing could be read from the
    /// application; `EPIPE` after this side ended its sending; the connection's error, `ECONNRESET` or `ECONNABORTED`,
    /// once it has one.
    pub(crate) fn try_send(&self, from: &mut IovIterSource<'_>, mode: SendMode) -> Result<usize> {
        let _one = self.sender.lock();
        let mut total: usize = 0;
        let mut fault = false;
        if from.is_empty() {
            return self.core.lock().may_send().map(|()| 0);
        }
        while !from.is_empty() && !fault {
            let ranges = {
                let mut core = self.core.lock();
                if let Err(error) = core.may_send() {
                    if total > 0 {
                        break;
                    }
                    return Err(error);
                }
                let wanted = u32::try_from(from.len()).unwrap_or(PIECE).min(PIECE);
                let ranges = match core.conn.as_ref() {
                    // The peer has not read the urgent byte before: a second one has to wait.
                    Some(conn) if mode.urgent && conn.urgent_outstanding() => Ranges::EMPTY,
                    Some(conn) => conn.reserve_write(wanted),
                    None => return Err(ENOTCONN),
                };
                core.wants_room |= ranges.total() == 0;
                ranges
            };
            if ranges.total() == 0 {
                break;
            }
            let mut copied: u32 = 0;
            for range in ranges.iter() {
                let n = self.ring.copy_from_iter(range.offset, range.len, from);
                copied = copied.saturating_add(u32::try_from(n).unwrap_or(range.len));
                if n < u32_as_usize(range.len) {
                    fault = true;
                    break;
                }
            }
            let last = mode.urgent && from.is_empty() && !fault;
            self.commit(copied, last)?;
            total = total.saturating_add(u32_as_usize(copied));
            if !self.holds_back(mode.cork) {
                self.push();
            }
        }
        match total {
            0 if fault => Err(EFAULT),
            0 => Err(EAGAIN),
            _ => {
                self.tx_bytes.fetch_add(usize_as_u64(total), Relaxed);
                Ok(total)
            }
        }
    }

    /// Whether [`try_send`](Self::try_send) has something to say but `EAGAIN`. If not, the socket is woken when that
    /// changes.
    pub(crate) fn may_try_send(&self, mode: SendMode) -> bool {
        let mut core = self.core.lock();
        let may = core.may_send().is_err()
            || core.conn.as_ref().is_some_and(|conn| {
                conn.send_space() > 0 && !(mode.urgent && conn.urgent_outstanding())
            });
        core.wants_room |= !may;
        may
    }

    /// Counts what was copied into the send ring.
    fn commit(&self, copied: u32, urgent: bool) -> Result {
        let mut core = self.core.lock();
        let conn = core.conn.as_mut().ok_or(ENOTCONN)?;
        conn.commit_write(copied).map_err(|_| EINVAL)?;
        if urgent {
            conn.mark_urgent().map_err(|_| EINVAL)?;
        }
        Ok(())
    }

    /// Whether new data waits for more to go with it.
    fn holds_back(&self, cork: bool) -> bool {
        let autocorking = self.ctx().settings().autocorking_size();
        let core = self.core.lock();
        let autocork = if core.nodelay { 0 } else { autocorking };
        core.conn
            .as_ref()
            .is_some_and(|conn| conn.should_hold(cork, autocork))
    }

    /// Bytes that the peer has not taken yet, and those of them that have not left (SIOCOUTQ, SIOCOUTQNSD).
    pub(crate) fn out_queue(&self) -> (u32, u32) {
        let core = self.core.lock();
        core.conn
            .as_ref()
            .map_or((0, 0), |conn| (conn.unfinished(), conn.unsent()))
    }

    /// Switches TCP_NODELAY; turning it on sends what was held back.
    pub(crate) fn set_nodelay(&self, on: bool) {
        self.core.lock().nodelay = on;
        if on {
            self.push();
        }
    }

    /// Sends all that is due: data, consumer updates, close flags. Never sleeps, runs in any context but hard-irq.
    ///
    /// Without a free slot the link calls back through `on_slot` when there is one.
    pub(crate) fn push(&self) {
        let Some(token) = self.token() else {
            return;
        };
        loop {
            if !self.is_due() {
                return;
            }
            let Some(slot) = self.group().try_slot(token) else {
                return;
            };
            // ORDERING: plan and post under one lock, so that the queue pair sees the cursors in the order in which
            // they moved.
            let mut core = self.core.lock();
            let Some(conn) = core.conn.as_mut() else {
                return;
            };
            let Some(plan) = conn.plan_tx(true) else {
                return;
            };
            if self.post(slot, &plan).is_err() {
                // The link dies and says so by `on_link_dead`; the chain counts as flushed.
                let _ = conn.tx_failed(plan.token);
                return;
            }
        }
    }

    /// Whether a chain can be planned.
    fn is_due(&self) -> bool {
        let core = self.core.lock();
        core.conn.as_ref().is_some_and(Conn::has_work)
    }

    /// Posts a chain. Called under the core's lock.
    fn post(&self, slot: TxSlot, plan: &TxPlan) -> Result {
        let peer = self.peer.copy().ok_or(ENOTCONN)?;
        let token = self.token().ok_or(ENOTCONN)?;
        let mut writes = [Write {
            ring: &self.ring,
            offset: 0,
            len: 0,
            remote: peer.start,
            rkey: peer.rkey,
        }; MAX_WRITES];
        let planned = plan.writes();
        for (write, planned) in writes.iter_mut().zip(planned) {
            write.offset = planned.local;
            write.len = planned.len;
            let remote = peer.start.0.checked_add(u64::from(planned.remote));
            write.remote = Vaddr(remote.ok_or(EINVAL)?);
        }
        let writes = writes.get(..planned.len()).ok_or(EINVAL)?;
        let cdc = plan.cdc.encode();
        self.group()
            .post(slot, writes, &cdc, token, plan.token.to_cookie())
    }

    /// A chain has completed, in softirq.
    pub(super) fn sent(&self, cookie: u64, ok: bool) {
        let (effects, over, writable) = {
            let mut core = self.core.lock();
            let Some(conn) = core.conn.as_mut() else {
                return;
            };
            let token = conn.token_of(cookie);
            let effects: DoneEffects = if ok {
                conn.tx_done(token)
            } else {
                conn.tx_failed(token)
            };
            let news = effects.freed > 0 || effects.drained;
            // Nobody is woken who does not wait: that would cost a switch of tasks for each message.
            let writable = news && core::mem::take(&mut core.wants_room);
            (effects, core.is_over(), writable)
        };
        if effects.push {
            self.push();
        }
        if writable {
            self.wake(|w| w.writable());
        }
        if over {
            self.finish_later();
        }
    }
}
