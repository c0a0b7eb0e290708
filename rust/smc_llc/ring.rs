// SPDX-License-Identifier: GPL-2.0

//! Ring memory of connections: RMBs, which the peer writes (RFC 7609, section 2.1), and send rings, which the device
//! reads.
//!
//! A ring belongs to its group until it is freed. A connection holds a handle; dropping that only marks the ring, in
//! any context, and a work item does the rest: the peer is told to forget the key, the key is made invalid, and an RMB
//! is kept for the next connection, under a key and an address that no peer knows. An RMB whose key could not be made
//! invalid is not used again.

use kernel::{
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        LockedBy,
        Mutex, //
    },
};

use super::{
    gone,
    group::LinkGroup,
    registry,
    send::SendQueue, //
};
use crate::{
    kapi::{
        pages::Ring,
        rdma::{
            Mapped,
            Mr,
            Pd, //
        },
    },
    proto::{
        ids::{
            Rkey,
            Vaddr, //
        },
        size::RmbeSizeCode, //
    },
};

/// Most pieces of a receive ring: its pages are listed one by one anyway.
const RMB_PIECES: usize = 64;

/// RMBs that a group keeps for its next connections.
const SPARE_RMBS: usize = 16;

/// Send rings that a group keeps for its next connections.
const SPARE_SENDS: usize = 16;

/// With fewer connections than this the peer is told the keys of spare RMBs ahead. Each takes a place in its table,
/// which has one for every connection.
const AHEAD_BELOW: u32 = 128;

/// Rings that connections have let go of before somebody looks after them at once; fewer wait for the clock. One
/// DELETE_RKEY then names several keys.
const RETURNED_AT_ONCE: i32 = 12;

/// A connection uses the ring.
const IN_USE: i32 = 0;
/// The connection has let go of it.
const RETURNED: i32 = 1;
/// Waits for the next connection, under a key that the peer does not know.
const SPARE: i32 = 2;

/// An RMB of a group.
#[pin_data]
pub(super) struct RmbMemory {
    /// The memory.
    ring: Arc<Ring>,
    /// Its size class.
    size: RmbeSizeCode,
    /// Who uses it: one of the constants above.
    owner: Atomic<i32>,
    /// The peer knows the key.
    known: Atomic<bool>,
    /// The key is valid.
    registered: Atomic<bool>,
    /// The region, until the group's hardware is taken apart. Lock level 4.
    #[pin]
    region: Mutex<Option<Arc<Mr>>>,
}

/// A send ring of a group.
pub(super) struct SendMemory {
    /// The memory.
    ring: Arc<Ring>,
    /// The connection has let go of it.
    returned: Atomic<bool>,
    /// The mapping, until the group's hardware is taken apart.
    mapped: LockedBy<Option<Arc<Mapped>>, SendQueue>,
}

/// All rings of a group; the lock around it is level 4.
pub(super) struct Rings {
    /// RMBs, in use or spare.
    rmbs: KVec<Arc<RmbMemory>>,
    /// Send rings.
    sends: KVec<Arc<SendMemory>>,
    /// The hardware has been taken apart: no ring can be added.
    closed: bool,
}

impl Rings {
    /// No rings.
    pub(super) fn new() -> Self {
        Self {
            rmbs: KVec::new(),
            sends: KVec::new(),
            closed: false,
        }
    }
}

/// A connection's receive ring. It may be dropped in any context.
pub(crate) struct Rmb {
    /// The ring.
    memory: Arc<RmbMemory>,
    /// The key for the peer.
    rkey: Rkey,
    /// The address of the ring's first byte for the peer.
    vaddr: Vaddr,
    /// Its group.
    group: Arc<LinkGroup>,
}

impl Rmb {
    /// Size class.
    pub(crate) fn size(&self) -> RmbeSizeCode {
        self.memory.size
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.memory.ring.bytes()
    }

    /// The key for the peer.
    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// The address of the ring's first byte for the peer.
    pub(crate) fn vaddr(&self) -> Vaddr {
        self.vaddr
    }

    /// Copies to an I/O vector; returns the bytes copied, fewer than asked when the destination faults or the ring ends.
    pub(crate) fn copy_to_iter(&self, offset: u32, len: u32, dst: &mut IovIterDest<'_>) -> usize {
        self.memory.ring.copy_to_iter(offset, len, dst)
    }

    /// Copies bytes out; returns how many, fewer than asked at the end of the ring. Any context.
    pub(crate) fn read_bytes(&self, offset: u32, out: &mut [u8]) -> usize {
        self.memory.ring.read(offset, out)
    }
}

impl Drop for Rmb {
    fn drop(&mut self) {
        self.memory.owner.store(RETURNED, Release);
        self.group.ring_returned();
    }
}

/// A connection's send ring. It may be dropped in any context.
pub(crate) struct SendRing {
    /// The ring.
    memory: Arc<SendMemory>,
    /// Its group.
    group: Arc<LinkGroup>,
}

impl SendRing {
    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.memory.ring.bytes()
    }

    /// Copies from an I/O vector; returns the bytes copied, fewer than asked when the source faults or the ring ends.
    pub(crate) fn copy_from_iter(
        &self,
        offset: u32,
        len: u32,
        src: &mut IovIterSource<'_>,
    ) -> usize {
        self.memory.ring.copy_from_iter(offset, len, src)
    }

    /// The mapping for posting, if the ring is of `group`, whose queue is locked.
    pub(super) fn mapped<'a>(
        &'a self,
        group: &LinkGroup,
        queue: &'a SendQueue,
    ) -> Result<&'a Arc<Mapped>> {
        // Asking with another group's queue would be a fatal error.
        if !core::ptr::eq(&*self.group, group) {
            return Err(EINVAL);
        }
        self.memory.mapped.access(queue).as_ref().ok_or_else(gone)
    }
}

impl Drop for SendRing {
    fn drop(&mut self) {
        self.memory.returned.store(true, Release);
        self.group.ring_returned();
    }
}

impl LinkGroup {
    /// Makes an RMB of the wanted size, or smaller where memory or the device does not give it; look at its size.
    ///
    /// It is zeroed. Once the link can send, its key is valid when this returns; before that, when CONFIRM_LINK is
    /// done. In a work item.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOTCONN` when the group ends.
    pub(crate) fn new_rmb(self: &Arc<Self>, want: RmbeSizeCode) -> Result<Rmb> {
        if let Some(rmb) = self.spare_rmb(want)? {
            return Ok(rmb);
        }
        let pd = self.domain()?;
        let mut last = ENOMEM;
        for size in want.degrade() {
            match self.make_rmb(&pd, size) {
                Ok(rmb) => return Ok(rmb),
                Err(e) if e == gone() => return Err(e),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// A spare RMB of this size with a valid key.
    fn spare_rmb(self: &Arc<Self>, size: RmbeSizeCode) -> Result<Option<Rmb>> {
        let memory = {
            let rings = self.rings.lock();
            let found = rings
                .rmbs
                .iter()
                .find(|m| m.size == size && m.owner.load(Acquire) == SPARE);
            let Some(memory) = found else {
                return Ok(None);
            };
            // The lock is held, so that nobody else takes it.
            memory.owner.store(IN_USE, Relaxed);
            memory.clone()
        };
        let region = memory.region.lock().clone().ok_or_else(gone)?;
        let rmb = self.rmb_handle(memory, &region);
        self.validate(&rmb.memory, &region)?;
        Ok(Some(rmb))
    }

    /// Makes an RMB of exactly this size.
    fn make_rmb(self: &Arc<Self>, pd: &Arc<Pd>, size: RmbeSizeCode) -> Result<Rmb> {
        let ring = Ring::new(size.bytes(), RMB_PIECES)?;
        let region = Arc::new(Mr::new(pd, &ring)?, GFP_KERNEL)?;
        let held = region.clone();
        let memory = Arc::pin_init(
            pin_init!(RmbMemory {
                ring,
                size,
                owner: Atomic::new(IN_USE),
                known: Atomic::new(false),
                registered: Atomic::new(false),
                region <- new_mutex!(Some(held), "smc_llc::rmb"),
            }),
            GFP_KERNEL,
        )?;
        {
            let mut rings = self.rings.lock();
            if rings.closed {
                return Err(gone());
            }
            rings.rmbs.push(memory.clone(), GFP_KERNEL)?;
        }
        let rmb = self.rmb_handle(memory, &region);
        self.validate(&rmb.memory, &region)?;
        Ok(rmb)
    }

    /// The handle of an RMB.
    fn rmb_handle(self: &Arc<Self>, memory: Arc<RmbMemory>, region: &Mr) -> Rmb {
        Rmb {
            memory,
            rkey: Rkey(region.rkey()),
            vaddr: Vaddr(region.address()),
            group: self.clone(),
        }
    }

    /// Makes the key of an RMB valid, if the link can send already.
    fn validate(self: &Arc<Self>, memory: &RmbMemory, region: &Arc<Mr>) -> Result {
        if !memory.registered.load(Acquire) && self.can_send() {
            self.register(region)?;
            memory.registered.store(true, Release);
        }
        Ok(())
    }

    /// Makes the keys valid that were given out before the link could send, which are those of its first connection.
    pub(super) fn validate_early(self: &Arc<Self>) -> Result {
        let mut list = KVec::new();
        for memory in self.rings.lock().rmbs.iter() {
            if memory.owner.load(Acquire) == IN_USE && !memory.registered.load(Acquire) {
                list.push(memory.clone(), GFP_KERNEL)?;
            }
        }
        for memory in &list {
            let region = memory.region.lock().clone().ok_or_else(gone)?;
            self.validate(memory, &region)?;
            // The peer has the key from Accept or Confirm.
            memory.known.store(true, Release);
        }
        Ok(())
    }

    /// Remembers that the peer knows the key of an RMB and has to be told to forget it; says whether it knew before.
    pub(super) fn mark_known(&self, rmb: &Rmb) -> bool {
        rmb.memory.known.xchg(true, Full)
    }

    /// Makes a send ring of the wanted size, or smaller; look at its size. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOTCONN` when the group ends.
    pub(crate) fn new_send_ring(self: &Arc<Self>, want: RmbeSizeCode) -> Result<SendRing> {
        if let Some(ring) = self.spare_send_ring(want) {
            return Ok(ring);
        }
        let pd = self.domain()?;
        let pieces = self.max_pieces();
        let mut last = ENOMEM;
        for size in want.degrade() {
            let ring = match Ring::new(size.bytes(), pieces) {
                Ok(ring) => ring,
                Err(e) => {
                    last = e;
                    continue;
                }
            };
            let mapped = Mapped::for_sending(pd.device(), &ring)?;
            let memory = SendMemory {
                ring,
                returned: Atomic::new(false),
                mapped: LockedBy::new(&self.send, Some(mapped)),
            };
            let memory = Arc::new(memory, GFP_KERNEL)?;
            let mut rings = self.rings.lock();
            if rings.closed {
                return Err(gone());
            }
            rings.sends.push(memory.clone(), GFP_KERNEL)?;
            return Ok(SendRing {
                memory,
                group: self.clone(),
            });
        }
        Err(last)
    }

    /// A send ring of this size that a connection has let go of.
    ///
    /// A connection lets go of its ring when nothing of it is on its way any more.
    fn spare_send_ring(self: &Arc<Self>, size: RmbeSizeCode) -> Option<SendRing> {
        let rings = self.rings.lock();
        // The lock is held, so that nobody else takes it.
        let memory = rings
            .sends
            .iter()
            .find(|m| m.ring.bytes() == size.bytes() && m.returned.load(Acquire))?;
        memory.returned.store(false, Relaxed);
        Some(SendRing {
            memory: memory.clone(),
            group: self.clone(),
        })
    }

    /// Counts a ring that a connection has let go of. Any context.
    fn ring_returned(self: &Arc<Self>) {
        if self.returned.fetch_add(1, Full) >= RETURNED_AT_ONCE {
            self.tidy_rings();
        }
    }

    /// Looks after the rings that connections have let go of, if there are any. Called every second or so.
    pub(super) fn tidy_some(self: &Arc<Self>) {
        if self.returned.load(Relaxed) > 0 {
            self.tidy_rings();
        }
    }

    /// Lets the work item look after rings that connections have let go of. Any context.
    fn tidy_rings(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::TIDY }>(self.clone());
    }

    /// Looks after rings that connections have let go of. The work item of [`tidy_rings`](Self::tidy_rings).
    pub(super) fn tidy(self: &Arc<Self>) {
        self.returned.store(0, Relaxed);
        let mut freed_sends = KVec::new();
        let mut returned = KVec::new();
        {
            let mut rings = self.rings.lock();
            let mut at = 0usize;
            let mut kept = 0usize;
            while let Some(memory) = rings.sends.get(at) {
                let keep = if memory.returned.load(Acquire) {
                    kept = kept.saturating_add(1);
                    kept <= SPARE_SENDS
                } else {
                    true
                };
                if keep {
                    at = at.saturating_add(1);
                    continue;
                }
                let Ok(memory) = rings.sends.remove(at) else {
                    break;
                };
                // Without memory for the list it is freed here, under a lock that allows that, too.
                let _ = freed_sends.push(memory, GFP_NOWAIT);
            }
            for memory in rings.rmbs.iter() {
                if memory.owner.load(Acquire) == RETURNED {
                    if returned.push(memory.clone(), GFP_NOWAIT).is_err() {
                        // There is no memory for the list: the clock has this looked after later.
                        self.returned.add(1, Relaxed);
                    }
                }
            }
        }
        // What is still being sent from a ring keeps its mapping and its memory.
        drop(freed_sends);
        if returned.is_empty() {
            return;
        }
        self.forget_at_peer(&returned);
        for memory in returned.iter() {
            if self.renew(memory).is_err() {
                self.rings
                    .lock()
                    .rmbs
                    .retain(|m| !core::ptr::eq(&**m, &**memory));
                let region = memory.region.lock().take();
                drop(region);
            }
        }
    }

    /// Tells the peer to forget the keys of RMBs, and waits for its answer, if it has been told of them.
    fn forget_at_peer(self: &Arc<Self>, memories: &[Arc<RmbMemory>]) {
        let mut keys = [Rkey(0); super::flow::KEYS_AT_ONCE];
        let mut used = 0usize;
        for memory in memories {
            if !memory.known.xchg(false, Full) {
                continue;
            }
            let Some(region) = memory.region.lock().clone() else {
                continue;
            };
            if let Some(place) = keys.get_mut(used) {
                *place = Rkey(region.rkey());
                used = used.saturating_add(1);
            }
            if used == keys.len() {
                let _ = self.delete_rkeys(&keys);
                used = 0;
            }
        }
        if let Some(rest) = keys.get(..used) {
            if !rest.is_empty() {
                // Without an answer the key is made invalid all the same; a peer that still writes breaks the link.
                let _ = self.delete_rkeys(rest);
            }
        }
    }

    /// Makes the key of an RMB invalid and keeps the RMB for the next connection.
    ///
    /// # Errors
    ///
    /// When it cannot be used again, for whatever reason.
    fn renew(self: &Arc<Self>, memory: &Arc<RmbMemory>) -> Result {
        let region = memory.region.lock().clone().ok_or_else(gone)?;
        if memory.registered.load(Acquire) {
            self.invalidate(&region)?;
            memory.registered.store(false, Release);
        }
        let spare = self
            .rings
            .lock()
            .rmbs
            .iter()
            .filter(|m| m.owner.load(Relaxed) == SPARE)
            .count();
        if spare >= SPARE_RMBS || region.is_worn() || !self.is_alive() {
            return Err(ENOSPC);
        }
        region.fresh_key();
        memory.ring.clear();
        // The key is made valid and told to the peer now: the next connection waits for neither.
        self.validate(memory, &region)?;
        if memory.registered.load(Acquire) && self.conns() < AHEAD_BELOW {
            let taken = self.tell_key(Rkey(region.rkey()), Vaddr(region.address()))?;
            memory.known.store(taken, Release);
        }
        memory.owner.store(SPARE, Release);
        Ok(())
    }

    /// Frees the spare RMBs and has the peer forget their keys. In a work item.
    pub(super) fn give_up_spares(self: &Arc<Self>) {
        let mut spares = KVec::new();
        self.rings.lock().rmbs.retain(|memory| {
            // The lock is held, so that nobody else takes it.
            let spare = memory.owner.load(Acquire) == SPARE
                && spares.push(memory.clone(), GFP_KERNEL).is_ok();
            if spare {
                memory.owner.store(IN_USE, Relaxed);
            }
            !spare
        });
        self.forget_at_peer(&spares);
        for memory in &spares {
            let region = memory.region.lock().take();
            if let (Some(region), true) = (&region, memory.registered.load(Acquire)) {
                // When that fails the group ends, and the key with it.
                let _ = self.invalidate(region);
            }
            drop(region);
        }
        // What connections have let go of makes room as well, a moment later.
        self.tidy_rings();
    }

    /// Takes the keys and mappings of all rings, after the queue pair was destroyed. The memory stays with those who
    /// hold it.
    pub(super) fn take_apart_rings(&self) {
        let (rmbs, sends) = {
            let mut rings = self.rings.lock();
            rings.closed = true;
            (
                core::mem::replace(&mut rings.rmbs, KVec::new()),
                core::mem::replace(&mut rings.sends, KVec::new()),
            )
        };
        for memory in &rmbs {
            let region = memory.region.lock().take();
            drop(region);
        }
        for memory in &sends {
            let mapped = memory.mapped.access_mut(&mut self.send.lock()).take();
            drop(mapped);
        }
    }
}
