// SPDX-License-Identifier: GPL-2.0

//! The send queue of a link: slots, the order of what is posted, and who waits for a slot.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    gone,
    group::{
        Events,
        LinkGroup, //
    },
    ring::SendRing,
    Deadline, //
};
use crate::{
    kapi::rdma::{
        self,
        Mr,
        Qp,
        Rts,
        MAX_WRITES, //
    },
    proto::{
        cdc,
        group::MAX_CONNS,
        ids::{
            AlertToken,
            Rkey,
            Vaddr, //
        },
        llc, //
    },
};

/// Slots for the chains of connections.
pub(super) const CHAIN_SLOTS: usize = 32;

/// Slots for LLC messages, so that connections cannot starve them.
const LLC_SLOTS: usize = 4;

/// Slots for registering and invalidating keys.
const KEY_SLOTS: usize = 4;

/// The first slot for keys.
const FIRST_KEY: usize = CHAIN_SLOTS + LLC_SLOTS;

/// All slots.
const ALL_SLOTS: usize = FIRST_KEY + KEY_SLOTS;

/// Slots that take a single work request.
pub(super) const SINGLE_SLOTS: usize = LLC_SLOTS + KEY_SLOTS;

/// LLC messages that wait for a slot; more are dropped, and the peer asks again or gives up.
const LLC_BACKLOG: usize = 16;

/// How long a key operation may take.
const KEY_MS: u32 = 5000;

/// What a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Nothing.
    Free,
    /// Given out, not posted.
    Taken,
    /// A chain of the connection with this token, which wants its cookie back.
    Chain(AlertToken, u64),
    /// An LLC message.
    Llc,
    /// A key operation that runs.
    Key,
    /// A key operation that has ended, well or not.
    KeyDone(bool),
}

/// The send queue; its lock is level 7.
pub(super) struct SendQueue {
    /// The queue pair, while it can send. Nobody can post once it has been taken out.
    pub(super) qp: Option<Qp<Events, Rts>>,
    /// What each slot is used for.
    slots: [Use; ALL_SLOTS],
    /// The group ends: no chain is posted any more.
    stopped: bool,
    /// Nothing at all is posted any more.
    closed: bool,
    /// Connections that asked for a slot in vain, in that order.
    pending: KVec<AlertToken>,
    /// LLC messages that wait for a slot.
    backlog: KVec<[u8; llc::LEN]>,
}

impl SendQueue {
    /// A queue without a queue pair.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            qp: None,
            slots: [Use::Free; ALL_SLOTS],
            stopped: false,
            closed: false,
            // Both lists are filled with the lock held and must not grow then.
            pending: KVec::with_capacity(usize::from(MAX_CONNS), GFP_KERNEL)?,
            backlog: KVec::with_capacity(LLC_BACKLOG, GFP_KERNEL)?,
        })
    }

    /// Takes a free slot of a range.
    fn take(&mut self, from: usize, to: usize) -> Option<usize> {
        let (index, slot) = self
            .slots
            .iter_mut()
            .enumerate()
            .take(to)
            .skip(from)
            .find(|(_, slot)| **slot == Use::Free)?;
        *slot = Use::Taken;
        Some(index)
    }

    /// Takes a free slot for a chain.
    fn take_chain(&mut self) -> Option<usize> {
        if self.stopped {
            return None;
        }
        self.take(0, CHAIN_SLOTS)
    }

    /// Whether a slot for a chain is free.
    fn has_chain(&self) -> bool {
        !self.stopped
            && self
                .slots
                .iter()
                .take(CHAIN_SLOTS)
                .any(|slot| *slot == Use::Free)
    }

    /// Says what a slot is used for now, and what for until now.
    fn replace(&mut self, index: usize, now: Use) -> Use {
        match self.slots.get_mut(index) {
            Some(slot) => core::mem::replace(slot, now),
            None => Use::Free,
        }
    }

    /// The connection that has waited longest for a slot.
    fn next_pending(&mut self) -> Option<AlertToken> {
        self.pending.remove(0).ok()
    }

    /// Whether an LLC message is under way.
    fn llc_under_way(&self) -> bool {
        !self.backlog.is_empty() || self.slots.iter().any(|slot| *slot == Use::Llc)
    }

    /// Forbids chains, so that what has to be said to the peer gets through.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.pending.clear();
    }

    /// Forbids everything.
    pub(super) fn close(&mut self) {
        self.stop();
        self.closed = true;
        self.backlog.clear();
    }
}

/// The right to post one chain. Given back when it is dropped unused.
#[must_use]
pub(crate) struct TxSlot {
    /// The group whose slot it is.
    group: Arc<LinkGroup>,
    /// Number of the slot.
    index: usize,
    /// Whether the slot has to be given back.
    unused: bool,
}

impl TxSlot {
    /// A slot that was just taken.
    fn new(group: &Arc<LinkGroup>, index: usize) -> Self {
        Self {
            group: group.clone(),
            index,
            unused: true,
        }
    }
}

impl Drop for TxSlot {
    fn drop(&mut self) {
        if self.unused {
            self.group.give_back(self.index);
        }
    }
}

/// One RDMA WRITE of a chain: from a send ring to the peer's memory.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    /// The ring.
    pub(crate) ring: &'a SendRing,
    /// Where in the ring the bytes begin.
    pub(crate) offset: u32,
    /// How many they are; not zero.
    pub(crate) len: u32,
    /// Where they go.
    pub(crate) remote: Vaddr,
    /// The peer's key.
    pub(crate) rkey: Rkey,
}

impl Write<'_> {
    /// The same for the verbs, if the ring is mapped and of this queue's group.
    fn resolve<'a>(&'a self, group: &LinkGroup, queue: &'a SendQueue) -> Result<rdma::Write<'a>> {
        Ok(rdma::Write {
            from: self.ring.mapped(group, queue)?,
            offset: self.offset,
            len: self.len,
            remote: self.remote.0,
            rkey: self.rkey.0,
        })
    }
}

impl LinkGroup {
    /// Takes a slot without waiting. Without one the connection is remembered, and its
    /// [`ConnSink::on_slot`](super::ConnSink::on_slot) is called when one is free. Any context.
    pub(crate) fn try_slot(self: &Arc<Self>, token: AlertToken) -> Option<TxSlot> {
        let mut queue = self.send.lock();
        if let Some(index) = queue.take_chain() {
            return Some(TxSlot::new(self, index));
        }
        if !queue.stopped && !queue.pending.contains(&token) {
            // There is room for every connection; a stale token beyond that has nobody to tell.
            let _ = queue.pending.push_within_capacity(token);
        }
        None
    }

    /// Gives a slot back that was not used. Any context, also under the lock of a connection.
    fn give_back(self: &Arc<Self>, index: usize) {
        let mut queue = self.send.lock();
        queue.replace(index, Use::Free);
        let pending = !queue.pending.is_empty();
        drop(queue);
        if pending {
            // Not from here: the caller may hold the lock of a connection.
            self.serve_later();
        }
    }

    /// Offers free slots to the connections that have asked for one in vain, until there is none of either.
    pub(super) fn serve_pending(&self) {
        for _ in 0..MAX_CONNS {
            let token = {
                let mut queue = self.send.lock();
                if !queue.has_chain() {
                    return;
                }
                queue.next_pending()
            };
            let Some(token) = token else {
                return;
            };
            if let Some(sink) = self.conn(token) {
                sink.on_slot();
            }
        }
    }

    /// Posts a chain: the writes, then `cdc`. Any context, also under the lock of a connection (level 6).
    ///
    /// Chains are sent in the order of these calls. [`ConnSink::on_tx_done`](super::ConnSink::on_tx_done) of the
    /// connection `token` gets `cookie` back.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends or has ended; `EINVAL` and others for a chain that cannot be posted, which ends
    /// the group.
    pub(crate) fn post(
        self: &Arc<Self>,
        mut slot: TxSlot,
        writes: &[Write<'_>],
        cdc: &[u8; cdc::LEN],
        token: AlertToken,
        cookie: u64,
    ) -> Result {
        if !core::ptr::eq(&*slot.group, &**self) {
            return Err(EINVAL);
        }
        let mut queue = self.send.lock();
        if queue.stopped {
            drop(queue);
            return Err(gone());
        }
        let ret = self.post_chain(&queue, slot.index, writes, cdc);
        if ret.is_ok() {
            queue.replace(slot.index, Use::Chain(token, cookie));
        }
        drop(queue);
        // Part of a chain may have been posted even if that failed: the slot is not used again.
        slot.unused = false;
        if ret.is_err() {
            self.broken();
        }
        ret
    }

    /// Posts a chain with the lock held.
    fn post_chain(
        &self,
        queue: &SendQueue,
        slot: usize,
        writes: &[Write<'_>],
        msg: &[u8; llc::LEN],
    ) -> Result {
        let qp = queue.qp.as_ref().ok_or_else(gone)?;
        let Some(first) = writes.first() else {
            return qp.post_chain(slot, &[], msg);
        };
        let mut list = [first.resolve(self, queue)?; MAX_WRITES];
        for (place, write) in list.iter_mut().zip(writes) {
            *place = write.resolve(self, queue)?;
        }
        qp.post_chain(slot, list.get(..writes.len()).ok_or(EINVAL)?, msg)
    }

    /// What was posted from a slot has completed. Softirq.
    pub(super) fn on_sent(self: &Arc<Self>, slot: usize, ok: bool) {
        let mut queue = self.send.lock();
        match queue.replace(slot, Use::Free) {
            Use::Chain(token, cookie) => {
                let pending = !queue.pending.is_empty();
                drop(queue);
                // Who has waited comes before the one whose chain has just been sent and who may want to go on.
                if pending && ok {
                    self.serve_pending();
                }
                if let Some(sink) = self.conn(token) {
                    sink.on_tx_done(cookie, ok);
                }
            }
            Use::Llc if !ok => {
                // The queue pair is broken: nothing that waits would get through.
                queue.backlog.clear();
                drop(queue);
                self.queue_event.notify_all();
            }
            Use::Llc => {
                if let Ok(msg) = queue.backlog.remove(0) {
                    let ret = self.post_chain(&queue, slot, &[], &msg);
                    if ret.is_ok() {
                        queue.replace(slot, Use::Llc);
                    }
                }
                drop(queue);
                self.queue_event.notify_all();
            }
            Use::Key => {
                queue.replace(slot, Use::KeyDone(ok));
                drop(queue);
                self.queue_event.notify_all();
            }
            Use::Free | Use::Taken | Use::KeyDone(_) => {}
        }
    }

    /// Sends an LLC message, or leaves it for when a slot is free; says whether it will be sent. Any context.
    pub(super) fn send_llc(self: &Arc<Self>, msg: &[u8; llc::LEN]) -> bool {
        let mut queue = self.send.lock();
        if queue.qp.is_none() || queue.closed {
            return false;
        }
        let Some(slot) = queue.take(CHAIN_SLOTS, FIRST_KEY) else {
            return queue.backlog.push_within_capacity(*msg).is_ok();
        };
        let ret = self.post_chain(&queue, slot, &[], msg);
        if ret.is_ok() {
            queue.replace(slot, Use::Llc);
        }
        drop(queue);
        if ret.is_err() {
            self.broken();
        }
        ret.is_ok()
    }

    /// Waits until no LLC message is under way any more, for at most `timeout_ms`. In a work item.
    pub(super) fn flush_llc(&self, timeout_ms: u32) {
        let deadline = Deadline::after(timeout_ms);
        let mut queue = self.send.lock();
        while queue.qp.is_some() && queue.llc_under_way() {
            let Some(left) = deadline.left() else {
                break;
            };
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, left);
        }
    }

    /// Registers a region under its key, and waits for that. In a work item.
    pub(super) fn register(self: &Arc<Self>, region: &Arc<Mr>) -> Result {
        self.key_operation(|qp, slot| qp.post_register(slot, region))
    }

    /// Makes the key of a region invalid, and waits for that. In a work item.
    pub(super) fn invalidate(self: &Arc<Self>, region: &Arc<Mr>) -> Result {
        self.key_operation(|qp, slot| qp.post_invalidate(slot, region))
    }

    /// Posts a key operation and waits for its end.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends or cannot send yet; `ETIMEDOUT`, and `EIO` when the operation failed, both of
    /// which end the group.
    fn key_operation(
        self: &Arc<Self>,
        post: impl FnOnce(&Qp<Events, Rts>, usize) -> Result,
    ) -> Result {
        let deadline = Deadline::after(KEY_MS);
        let mut queue = self.send.lock();
        let slot = loop {
            if queue.closed {
                return Err(gone());
            }
            if let Some(slot) = queue.take(FIRST_KEY, ALL_SLOTS) {
                break slot;
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, left);
        };
        let ret = match &queue.qp {
            Some(qp) => post(qp, slot),
            None => Err(gone()),
        };
        if let Err(e) = ret {
            queue.replace(slot, Use::Free);
            drop(queue);
            self.queue_event.notify_all();
            return Err(e);
        }
        queue.replace(slot, Use::Key);
        let ok = loop {
            // When the group ends meanwhile, the queue pair keeps the region until it is destroyed.
            if queue.closed {
                return Err(gone());
            }
            if let Some(Use::KeyDone(ok)) = queue.slots.get(slot) {
                break Some(*ok);
            }
            let Some(left) = deadline.left() else {
                break None;
            };
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, left);
        };
        let Some(ok) = ok else {
            drop(queue);
            self.broken();
            return Err(ETIMEDOUT);
        };
        let region = queue.qp.as_ref().and_then(|qp| qp.take_region(slot));
        queue.replace(slot, Use::Free);
        drop(queue);
        // Dropping a region may sleep.
        drop(region);
        self.queue_event.notify_all();
        if ok {
            Ok(())
        } else {
            self.broken();
            Err(EIO)
        }
    }
}
