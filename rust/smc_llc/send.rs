// SPDX-License-Identifier: GPL-2.0

//! The send queue of a link: slots, the order of what is posted, and who waits for a slot.

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        msecs_to_jiffies,
        Jiffies, //
    },
};

use super::{
    gone,
    link::{
        Events,
        Link, //
    },
    loss::Cause,
    Deadline,
    WAIT_STEP_MS, //
};
use crate::{
    kapi::rdma::{
        self,
        Mapped,
        Qp,
        Rts,
        MAX_WRITES, //
    },
    proto::{
        cdc,
        conn::Short,
        group::{
            Evacuation,
            MAX_CONNS, //
        },
        ids::{
            AlertToken,
            Rkey,
            Vaddr, //
        },
        llc, //
    },
};

/// Slots for LLC messages, so that connections cannot starve them.
const LLC_SLOTS: usize = 4;

/// Slots for the first messages of connections that come from another link.
const MOVE_SLOTS: usize = 8;

/// Slots that take a single work request.
pub(super) const SINGLE_SLOTS: usize = LLC_SLOTS + MOVE_SLOTS;

/// Bytes of a long LLC message: ADD LINK of version 2 with the keys of all buffers.
pub(super) const LONG_LEN: usize = 72 + 16 * llc::MAX_RKEYS;

/// LLC messages that wait for a slot; more are dropped, and the peer asks again or gives up.
const LLC_BACKLOG: usize = 16;

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
    /// A message that nobody waits for: the first one of a connection that has moved here, or a long one.
    Quiet,
}

/// The send queue; its lock is level 7.
pub(super) struct SendQueue {
    /// The queue pair, while it can send. Nobody can post once it has been taken out.
    pub(super) qp: Option<Qp<Events, Rts>>,
    /// What each slot is used for: those for chains, for LLC messages, for connections that move, and the one for a long
    /// LLC message.
    slots: KVec<Use>,
    /// How many of them are for chains.
    chains: usize,
    /// The link goes: no chain is posted any more.
    stopped: bool,
    /// Nothing at all is posted any more.
    closed: bool,
    /// For how many links that go chains are kept back.
    held: u32,
    /// Connections that asked for a slot in vain, in that order.
    pending: KVec<AlertToken>,
    /// LLC messages that wait for a slot.
    backlog: KVec<[u8; llc::LEN]>,
    /// How many times something that was posted has arrived.
    delivered: u32,
    /// What that was when it was last seen to change, or nothing was under way.
    seen: u32,
    /// When that was, on the group's clock.
    seen_at: i64,
}

/// Slots for a queue that has none yet.
pub(super) struct Slots {
    /// All of them.
    slots: KVec<Use>,
    /// How many of them are for chains.
    chains: usize,
}

impl SendQueue {
    /// A queue without a queue pair, and without slots.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            qp: None,
            slots: KVec::new(),
            chains: 0,
            stopped: false,
            closed: false,
            held: 0,
            // Both lists are filled with the lock held and must not grow then.
            pending: KVec::with_capacity(usize::from(MAX_CONNS), GFP_KERNEL)?,
            backlog: KVec::with_capacity(LLC_BACKLOG, GFP_KERNEL)?,
            delivered: 0,
            seen: 0,
            seen_at: 0,
        })
    }

    /// Slots of a queue with so many for chains.
    pub(super) fn slots_for(chains: usize) -> Result<Slots> {
        let all = chains
            .checked_add(SINGLE_SLOTS)
            .and_then(|n| n.checked_add(1))
            .ok_or(EINVAL)?;
        let mut slots = KVec::with_capacity(all, GFP_KERNEL)?;
        slots.resize(all, Use::Free, GFP_KERNEL)?;
        Ok(Slots { slots, chains })
    }

    /// Takes the slots that the queue pair was made for.
    pub(super) fn set_slots(&mut self, new: Slots) {
        self.slots = new.slots;
        self.chains = new.chains;
    }

    /// The first slot for connections that move.
    fn first_move(&self) -> usize {
        self.chains.saturating_add(LLC_SLOTS)
    }

    /// The slot for a long LLC message.
    fn long_slot(&self) -> usize {
        self.chains.saturating_add(SINGLE_SLOTS)
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

    /// Takes one slot if it is free.
    fn take_of(&mut self, index: usize) -> Option<usize> {
        self.take(index, index.checked_add(1)?)
    }

    /// Takes a free slot for a chain.
    fn take_chain(&mut self) -> Option<usize> {
        if self.stopped || self.held > 0 {
            return None;
        }
        self.take(0, self.chains)
    }

    /// How many times something that was posted has arrived, as far as it goes into a number.
    pub(super) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// How much was posted and has not arrived.
    pub(super) fn under_way(&self) -> usize {
        let posted = |slot: &&Use| !matches!(slot, Use::Free | Use::Taken);
        self.slots.iter().filter(posted).count()
    }

    /// For how many milliseconds nothing has arrived of what is under way; nothing if nothing is. To be called every second
    /// or so, with the time on the group's clock.
    pub(super) fn stuck_ms(&mut self, now: i64) -> Option<u64> {
        let waits = self.under_way() > 0;
        if !waits || self.seen != self.delivered {
            self.seen = self.delivered;
            self.seen_at = now;
        }
        waits.then(|| u64::try_from(now.saturating_sub(self.seen_at)).unwrap_or(0))
    }

    /// Whether a slot for a chain is free.
    fn has_chain(&self) -> bool {
        !self.stopped
            && self.held == 0
            && self
                .slots
                .iter()
                .take(self.chains)
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
        !self.backlog.is_empty()
            || self
                .slots
                .iter()
                .any(|slot| matches!(slot, Use::Llc | Use::Quiet))
    }

    /// Whether a chain is under way, or a slot for one given out.
    fn chain_under_way(&self) -> bool {
        self.slots
            .iter()
            .take(self.chains)
            .any(|slot| matches!(slot, Use::Taken | Use::Chain(..)))
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
    /// The link whose slot it is.
    link: Arc<Link>,
    /// Number of the slot.
    index: usize,
    /// Whether the slot has to be given back.
    unused: bool,
}

impl TxSlot {
    /// A slot that was just taken.
    fn new(link: Arc<Link>, index: usize) -> Self {
        Self {
            link,
            index,
            unused: true,
        }
    }

    /// Whether it is a slot of this link.
    pub(crate) fn is_of(&self, link: &Link) -> bool {
        self.link.is(link)
    }
}

impl Drop for TxSlot {
    fn drop(&mut self) {
        if self.unused {
            self.link.give_back(self.index);
        }
    }
}

/// One RDMA WRITE of a chain: from a send ring to the peer's memory.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    /// The ring as the link's device sees it.
    pub(crate) ring: &'a Arc<Mapped>,
    /// Where in the ring the bytes begin.
    pub(crate) offset: u32,
    /// How many they are; not zero.
    pub(crate) len: u32,
    /// Where they go.
    pub(crate) remote: Vaddr,
    /// The peer's key.
    pub(crate) rkey: Rkey,
}

impl<'a> Write<'a> {
    /// The same for the verbs.
    fn resolve(&self) -> rdma::Write<'a> {
        rdma::Write {
            from: self.ring,
            offset: self.offset,
            len: self.len,
            remote: self.remote.0,
            rkey: self.rkey.0,
        }
    }
}

/// Hands writes over in the form of the verbs.
fn with_resolved(writes: &[Write<'_>], post: impl FnOnce(&[rdma::Write<'_>]) -> Result) -> Result {
    let Some(first) = writes.first() else {
        return post(&[]);
    };
    let mut list = [first.resolve(); MAX_WRITES];
    for (place, write) in list.iter_mut().zip(writes) {
        *place = write.resolve();
    }
    post(list.get(..writes.len()).ok_or(EINVAL)?)
}

impl Link {
    /// Takes a slot without waiting. Without one the connection is remembered, and its
    /// [`ConnSink::on_slot`](super::ConnSink::on_slot) is called when one is free. A link that goes has none, and calls
    /// nobody. Any context.
    pub(crate) fn try_slot(self: Arc<Self>, token: AlertToken) -> Option<TxSlot> {
        let mut queue = self.send.lock();
        if let Some(index) = queue.take_chain() {
            drop(queue);
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
        let stopped = queue.stopped;
        drop(queue);
        if stopped {
            self.queue_event.notify_all();
        }
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
            if let Some(sink) = self.group().conn(token) {
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
    /// `ENOTCONN` when the link goes or has gone; `EINVAL` and others for a chain that cannot be posted, which ends the
    /// link.
    pub(crate) fn post(
        self: &Arc<Self>,
        slot: TxSlot,
        writes: &[Write<'_>],
        cdc: &[u8; cdc::LEN],
        token: AlertToken,
        cookie: u64,
    ) -> Result {
        self.post_by(slot, token, cookie, |queue, index| {
            self.post_chain(queue, index, writes, cdc)
        })
    }

    /// Posts writes, the last of which is their message, as [`post`](Self::post) does with a chain.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn post_short(
        self: &Arc<Self>,
        slot: TxSlot,
        writes: &[Write<'_>],
        short: Short,
        token: AlertToken,
        cookie: u64,
    ) -> Result {
        self.post_by(slot, token, cookie, |queue, index| {
            let qp = queue.qp.as_ref().ok_or_else(gone)?;
            with_resolved(writes, |list| qp.post_writes(index, list, short.to_bits()))
        })
    }

    /// Posts from a slot of a connection.
    fn post_by(
        self: &Arc<Self>,
        mut slot: TxSlot,
        token: AlertToken,
        cookie: u64,
        post: impl FnOnce(&SendQueue, usize) -> Result,
    ) -> Result {
        if !slot.is_of(self) {
            return Err(EINVAL);
        }
        let mut queue = self.send.lock();
        if queue.stopped {
            drop(queue);
            return Err(gone());
        }
        let ret = post(&queue, slot.index);
        if ret.is_ok() {
            queue.replace(slot.index, Use::Chain(token, cookie));
        }
        drop(queue);
        // Part of a chain may have been posted even if that failed: the slot is not used again.
        slot.unused = false;
        if ret.is_err() {
            self.broken(Cause::Posting);
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
        with_resolved(writes, |list| qp.post_chain(slot, list, msg))
    }

    /// What was posted from a slot has completed. Softirq.
    pub(super) fn on_sent(self: &Arc<Self>, slot: usize, ok: bool) {
        let mut queue = self.send.lock();
        queue.delivered = queue.delivered.wrapping_add(u32::from(ok));
        match queue.replace(slot, Use::Free) {
            Use::Chain(token, cookie) => {
                let pending = !queue.pending.is_empty();
                let stopped = queue.stopped;
                drop(queue);
                // Who has waited comes before the one whose chain has just been sent and who may want to go on.
                if pending && ok {
                    self.serve_pending();
                }
                if let Some(sink) = self.group().conn(token) {
                    sink.on_tx_done(cookie, ok);
                }
                if stopped {
                    self.queue_event.notify_all();
                }
            }
            Use::Quiet => {
                drop(queue);
                self.queue_event.notify_all();
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
            Use::Free | Use::Taken => {}
        }
    }

    /// Sends an LLC message, or leaves it for when a slot is free; says whether it will be sent. Any context.
    pub(super) fn send_llc(self: &Arc<Self>, msg: &[u8; llc::LEN]) -> bool {
        let mut queue = self.send.lock();
        if queue.qp.is_none() || queue.closed {
            return false;
        }
        let (from, to) = (queue.chains, queue.first_move());
        let Some(slot) = queue.take(from, to) else {
            return queue.backlog.push_within_capacity(*msg).is_ok();
        };
        let ret = self.post_chain(&queue, slot, &[], msg);
        if ret.is_ok() {
            queue.replace(slot, Use::Llc);
        }
        drop(queue);
        if ret.is_err() {
            self.broken(Cause::Posting);
        }
        ret.is_ok()
    }

    /// Sends a long LLC message; says whether it will be sent. In a work item: there is one at a time, as whoever sends
    /// one has the exchange that changes links.
    pub(super) fn send_long(self: &Arc<Self>, msg: &[u8]) -> bool {
        let mut queue = self.send.lock();
        if queue.closed || queue.qp.is_none() {
            return false;
        }
        let long = queue.long_slot();
        let Some(slot) = queue.take_of(long) else {
            return false;
        };
        let ret = match &queue.qp {
            Some(qp) => qp.post_long(msg),
            None => Err(gone()),
        };
        let now = if ret.is_ok() { Use::Quiet } else { Use::Free };
        queue.replace(slot, now);
        drop(queue);
        if ret.is_err() {
            self.broken(Cause::Posting);
        }
        ret.is_ok()
    }

    /// Keeps chains back while connections come from another link, until [`release_chains`](Self::release_chains): their
    /// first messages, of which few are under way at a time, would stand behind them.
    pub(super) fn hold_chains(&self) {
        let mut queue = self.send.lock();
        queue.held = queue.held.saturating_add(1);
    }

    /// Ends that. In a work item.
    pub(super) fn release_chains(&self) {
        {
            let mut queue = self.send.lock();
            queue.held = queue.held.saturating_sub(1);
        }
        self.serve_pending();
    }

    /// Waits for a slot for the first message of a connection that moves here as part of `evacuation`. Where there is none
    /// in its time the link is lost, too. In a work item.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes.
    pub(crate) fn slot_to_move(self: &Arc<Self>, evacuation: Evacuation) -> Result<TxSlot> {
        let mut queue = self.send.lock();
        let mut waiting = evacuation.queue(queue.delivered, self.group().now_ms());
        loop {
            if queue.stopped || queue.qp.is_none() || self.is_lost() {
                return Err(gone());
            }
            let (from, to) = (queue.first_move(), queue.long_slot());
            if let Some(index) = queue.take(from, to) {
                drop(queue);
                return Ok(TxSlot::new(self.clone(), index));
            }
            let Some(left) = waiting.left_ms(queue.delivered, self.group().now_ms()) else {
                drop(queue);
                self.broken(Cause::Stalled);
                return Err(gone());
            };
            // In steps: who loses the link does not take the lock.
            let step = msecs_to_jiffies(left.min(WAIT_STEP_MS)).max(1);
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, step);
        }
    }

    /// Posts the first message of a connection that moves here. Any context, also under the lock of a connection.
    pub(crate) fn post_move(self: &Arc<Self>, mut slot: TxSlot, cdc: &[u8; cdc::LEN]) {
        if !slot.is_of(self) {
            return;
        }
        let mut queue = self.send.lock();
        if queue.stopped {
            // The connection moves on, and says this again on another link.
            return;
        }
        let ret = self.post_chain(&queue, slot.index, &[], cdc);
        if ret.is_ok() {
            queue.replace(slot.index, Use::Quiet);
        }
        drop(queue);
        slot.unused = false;
        if ret.is_err() {
            self.broken(Cause::Posting);
        }
    }

    /// Forbids chains, and waits until those on their way have arrived, for at most `timeout_ms`; says whether they have.
    /// In a work item.
    pub(super) fn stop_and_drain(&self, timeout_ms: u32) -> bool {
        let deadline = Deadline::after(timeout_ms);
        let mut queue = self.send.lock();
        queue.stop();
        while queue.qp.is_some() && queue.chain_under_way() {
            let Some(left) = deadline.left() else {
                return false;
            };
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, left);
        }
        queue.qp.is_some()
    }

    /// Reports every chain as lost that has not come back. The queue pair is destroyed.
    pub(super) fn report_lost_chains(&self) {
        let chains = self.send.lock().chains;
        for index in 0..chains {
            let before = {
                let mut queue = self.send.lock();
                match queue.slots.get(index) {
                    Some(Use::Chain(..)) => queue.replace(index, Use::Free),
                    _ => Use::Free,
                }
            };
            if let Use::Chain(token, cookie) = before {
                if let Some(sink) = self.group().conn(token) {
                    sink.on_tx_done(cookie, false);
                }
            }
        }
    }

    /// Waits while `busy` says so, for at most `timeout`; whoever changes that does it by
    /// [`tell_waiters`](Self::tell_waiters). In a work item.
    pub(super) fn wait_while(&self, timeout: Jiffies, busy: impl Fn() -> bool) {
        let mut queue = self.send.lock();
        if busy() {
            let _ = self
                .queue_event
                .wait_interruptible_timeout(&mut queue, timeout);
        }
    }

    /// Runs `change`, and wakes who waits for it.
    pub(super) fn tell_waiters(&self, change: impl FnOnce()) {
        let queue = self.send.lock();
        change();
        drop(queue);
        self.queue_event.notify_all();
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
}
