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
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Moved,
    PeerRing,
    QUEUE, //
};
use crate::{
    proto::{
        conn::{
            Conn,
            DoneEffects,
            TxPlan,
            MAX_WRITES, //
        },
        cursor::Ranges,
        ids::AlertToken, //
    },
    smc_llc::{
        Binding,
        Link,
        TxSlot,
        Write, //
    },
};

/// How much is copied before the first part of it is sent.
const PIECE: u32 = 64 * 1024;

/// How long data is held back because more is to follow, as with TCP.
const CORK_MS: u32 = 200;

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
    pub(crate) fn try_send(&self, from: &mut IovIterSource<'_>, mode: SendMode) -> Result<Moved> {
        let _one = self.sender.lock();
        let mut total: usize = 0;
        let mut fault = false;
        if from.is_empty() {
            return self.core.lock().may_send().map(|()| Moved::NOTHING);
        }
        while !from.is_empty() {
            let (ranges, grown) = {
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
                    Some(conn) if core.may_grow() && conn.send_space() < wanted => {
                        drop(core);
                        self.grow();
                        continue;
                    }
                    Some(conn) => conn.reserve_write(wanted),
                    None => return Err(ENOTCONN),
                };
                core.wants_room |= ranges.total() == 0;
                (ranges, core.grown.clone())
            };
            let ring = grown.as_deref().unwrap_or(&self.first);
            if ranges.total() == 0 {
                break;
            }
            let mut copied: u32 = 0;
            for range in ranges.iter() {
                let n = ring.copy_from_iter(range.offset, range.len, from);
                copied = copied.saturating_add(u32::try_from(n).unwrap_or(range.len));
                if n < u32_as_usize(range.len) {
                    fault = true;
                    break;
                }
            }
            if fault {
                // As with TCP a piece goes whole or not at all.
                break;
            }
            let last = mode.urgent && from.is_empty();
            self.commit(copied, last)?;
            total = total.saturating_add(u32_as_usize(copied));
            if !self.holds_back(mode.cork) {
                self.push();
            } else if mode.cork {
                self.send_in_a_while();
            }
        }
        match total {
            0 if fault => Err(EFAULT),
            0 => Err(EAGAIN),
            _ => {
                self.tx_bytes.fetch_add(usize_as_u64(total), Relaxed);
                Ok(Moved {
                    bytes: total,
                    fault,
                })
            }
        }
    }

    /// Whether [`try_send`](Self::try_send) has something to say but `EAGAIN`. If not, the socket is woken when that
    /// changes.
    pub(crate) fn may_try_send(&self, mode: SendMode) -> bool {
        let mut core = self.core.lock();
        let may = core.may_send().is_err()
            || core.conn.as_ref().is_some_and(|conn| {
                core.has_room(conn) && !(mode.urgent && conn.urgent_outstanding())
            });
        core.wants_room |= !may;
        may
    }

    /// Counts what was copied into the send ring.
    fn commit(&self, copied: u32, urgent: bool) -> Result {
        let mut core = self.core.lock();
        core.sending = true;
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

    /// Sends in a while what is held back because more was to follow. Under the lock, as for the orphan timer.
    fn send_in_a_while(&self) {
        let core = self.core.lock();
        if let Some(me) = &core.me {
            QUEUE.enqueue_delayed::<Connection, 4>(me.clone(), msecs_to_jiffies(CORK_MS));
        }
    }

    /// Bytes that the peer has not taken yet, and those of them that have not left (SIOCOUTQ, SIOCOUTQNSD).
    pub(crate) fn out_queue(&self) -> (u32, u32) {
        let core = self.core.lock();
        core.conn
            .as_ref()
            .map_or((0, 0), |conn| (conn.unfinished(), conn.unsent()))
    }

    /// Switches TCP_NODELAY for what is sent from here on.
    pub(crate) fn set_nodelay(&self, on: bool) {
        self.core.lock().nodelay = on;
    }

    /// Sends all that is due: data, consumer updates, close flags. Never sleeps, runs in any context but hard-irq.
    ///
    /// Without a free slot the link calls back through `on_slot` when there is one.
    pub(crate) fn push(&self) {
        let Some(token) = self.token() else {
            return;
        };
        loop {
            let Some(link) = self.link_if_due() else {
                return;
            };
            let Some(slot) = link.try_slot(token) else {
                return;
            };
            // ORDERING: plan and post under one lock, so that the queue pair sees the cursors in the order in which
            // they moved.
            let mut core = self.core.lock();
            let core = &mut *core;
            let (Some(conn), Some(bound)) = (core.conn.as_mut(), &core.bound) else {
                return;
            };
            if !slot.is_of(bound.link()) {
                // It has moved meanwhile.
                continue;
            }
            let Some(plan) = conn.plan_tx(true) else {
                return;
            };
            if post(bound, slot, &plan, core.peer, token).is_err() {
                // The link goes: `on_move` or `on_link_dead` follows, and the chain counts as flushed.
                let _ = conn.tx_failed(plan.token);
                return;
            }
        }
    }

    /// The present link, if a chain can be planned.
    fn link_if_due(&self) -> Option<Arc<Link>> {
        let mut core = self.core.lock();
        if core.conn.as_ref().is_some_and(Conn::is_unheard) {
            drop(core);
            self.nobody_listens();
            core = self.core.lock();
        }
        let due = core.conn.as_ref().is_some_and(Conn::has_work);
        match &core.bound {
            Some(bound) if due => Some(bound.link().clone()),
            _ => None,
        }
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
            self.finish();
        }
    }
}

/// Posts a chain. Called under the core's lock.
fn post(
    bound: &Binding,
    slot: TxSlot,
    plan: &TxPlan,
    peer: Option<PeerRing>,
    token: AlertToken,
) -> Result {
    let cdc = plan.cdc.encode();
    let cookie = plan.token.to_cookie();
    let planned = plan.writes();
    let Some(peer) = peer else {
        // A connection that writes nothing any more needs no key of the peer.
        return if planned.is_empty() {
            bound.link().post(slot, &[], &cdc, token, cookie)
        } else {
            Err(ENOTCONN)
        };
    };
    let ring = bound.ring(plan.from_before).ok_or(ENOTCONN)?;
    let mut writes = [Write {
        ring,
        offset: 0,
        len: 0,
        remote: peer.vaddr,
        rkey: peer.rkey,
    }; MAX_WRITES];
    for (write, planned) in writes.iter_mut().zip(planned) {
        write.offset = planned.local;
        write.len = planned.len;
        write.remote = peer.at(planned.remote).ok_or(EINVAL)?;
    }
    let writes = writes.get(..planned.len()).ok_or(EINVAL)?;
    match plan.short {
        Some(short) => bound.link().post_short(slot, writes, short, token, cookie),
        None => bound.link().post(slot, writes, &cdc, token, cookie),
    }
}

impl WorkItem<4> for Connection {
    type Pointer = Arc<Connection>;

    /// What was held back has waited long enough.
    fn run(this: Arc<Connection>) {
        this.push();
    }
}
