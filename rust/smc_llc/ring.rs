// SPDX-License-Identifier: GPL-2.0

//! Ring memory of a group: the list of all rings, send rings, which the device reads, and who looks after rings that are
//! given back. Receive rings are in `rmb`.
//!
//! A ring belongs to its group until it is freed. A connection holds a handle; dropping that only marks the ring, in any
//! context. What is bound to one link, the mapping of a send ring for its device and the region of a receive ring, is
//! made when a connection or the peer needs it there, and goes with the link.

use kernel::{
    iov::IovIterSource,
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
        Mutex, //
    },
};

use super::{
    gone,
    group::LinkGroup,
    link::Link,
    registry,
    rmb::{
        Rmb,
        RmbMemory, //
    },
};
use crate::{
    kapi::{
        memcg::MemCg,
        pages::Ring,
        rdma::Mapped, //
    },
    proto::{
        group::{
            Rtoken,
            LINK_SLOTS, //
        },
        size::RmbeSizeCode, //
    },
    smc_ib, //
};

/// Bytes of the send ring that a connection has from its start. Most never need more, and one that gets no more memory
/// goes on with it.
const FIRST_BYTES: u32 = 4096;

/// Send rings that a group keeps for its next connections.
const SPARE_SENDS: usize = 16;

/// Rings that connections have let go of before somebody looks after them at once; fewer wait for the clock. One
/// DELETE_RKEY then names several keys.
const RETURNED_AT_ONCE: i32 = 12;

/// A send ring of a group.
#[pin_data]
pub(super) struct SendMemory {
    /// The memory.
    ring: Arc<Ring>,
    /// To whose account it goes: only connections of the same one get it.
    memcg: Option<MemCg>,
    /// The connection has let go of it.
    returned: Atomic<bool>,
    /// Somebody has looked since, and found that no other connection wanted it.
    rested: Atomic<bool>,
    /// The mapping for the device of each link, until that is taken apart. Lock level 4.
    #[pin]
    mapped: Mutex<[Option<Arc<Mapped>>; LINK_SLOTS]>,
}

/// All rings of a group; the lock around it is level 4.
pub(super) struct Rings {
    /// RMBs, in use or not.
    pub(super) rmbs: KVec<Arc<RmbMemory>>,
    /// Those of them that wait for the next connection, which are few.
    pub(super) spares: KVec<Arc<RmbMemory>>,
    /// Size and account of the one that a connection got last, where such are made ahead.
    pub(super) like: Option<(RmbeSizeCode, Option<MemCg>)>,
    /// How often RMBs were taken off the list.
    removals: u32,
    /// Send rings.
    sends: KVec<Arc<SendMemory>>,
    /// The group has been taken apart: no ring can be added.
    closed: bool,
}

impl Rings {
    /// No rings.
    pub(super) fn new() -> Self {
        Self {
            rmbs: KVec::new(),
            spares: KVec::new(),
            like: None,
            removals: 0,
            sends: KVec::new(),
            closed: false,
        }
    }

    /// Bytes of all receive rings, and of all send rings.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let sum = |sizes: &mut dyn Iterator<Item = u32>| {
            sizes.map(u64::from).fold(0, u64::saturating_add)
        };
        (
            sum(&mut self.rmbs.iter().map(|memory| memory.bytes())),
            sum(&mut self.sends.iter().map(|memory| memory.ring.bytes())),
        )
    }

    /// Whether no ring can be added any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes RMBs off the list.
    pub(super) fn remove_rmbs(&mut self, mut which: impl FnMut(&Arc<RmbMemory>) -> bool) {
        self.rmbs.retain(|memory| !which(memory));
        self.removals = self.removals.wrapping_add(1);
    }

    /// How often RMBs were taken off the list.
    pub(super) fn removals(&self) -> u32 {
        self.removals
    }
}

/// A connection's send ring. It may be dropped in any context.
pub(crate) struct SendRing {
    /// The ring.
    memory: Arc<SendMemory>,
    /// Its group.
    group: Arc<LinkGroup>,
    /// Another connection had it before.
    reused: bool,
}

impl SendRing {
    /// Whether another connection had it before.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.memory.ring.bytes()
    }

    /// To whose account it goes.
    pub(crate) fn memcg(&self) -> Option<&MemCg> {
        self.memory.memcg.as_ref()
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
}

impl Drop for SendRing {
    fn drop(&mut self) {
        if self.memory.is_large() {
            self.group.grown.add(-1, Relaxed);
        }
        self.memory.returned.store(true, Release);
        self.group.ring_returned();
    }
}

/// What a connection needs to use one link. It may be dropped in any context.
pub(crate) struct Binding {
    /// The link.
    link: Arc<Link>,
    /// The send ring that the connection has from its start, as the link's device sees it, until that is let go of.
    first: Option<Arc<Mapped>>,
    /// The larger one, while there is one.
    grown: Option<Arc<Mapped>>,
    /// Key and address of the connection's receive ring for the peer on the link.
    rmb: Rtoken,
}

impl Binding {
    /// The link.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The present send ring for posting, or the one before it; nothing when the link's device has been let go of.
    pub(crate) fn ring(&self, before: bool) -> Option<&Arc<Mapped>> {
        match &self.grown {
            Some(grown) if !before => Some(grown),
            _ => self.first.as_ref(),
        }
    }

    /// Takes a larger send ring into use, or (with nothing) the first one again; returns what is not used any more.
    pub(crate) fn set_grown(&mut self, ring: Option<Arc<Mapped>>) -> Option<Arc<Mapped>> {
        if self.first.is_none() {
            return ring;
        }
        core::mem::replace(&mut self.grown, ring)
    }

    /// Lets go of the link's device, which goes; returns what was used there. Nothing can be posted any more.
    pub(crate) fn unmap(&mut self) -> [Option<Arc<Mapped>>; 2] {
        [self.first.take(), self.grown.take()]
    }

    /// Key and address of the receive ring for the peer.
    pub(crate) fn rmb(&self) -> Rtoken {
        self.rmb
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.link.conns.add(-1, Relaxed);
    }
}

impl LinkGroup {
    /// Binds a connection with these rings to a link. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes; `EOPNOTSUPP` when its device cannot read a send ring as it is; `ENOMEM` and what
    /// the device says.
    pub(crate) fn bind(
        &self,
        link: &Arc<Link>,
        rmb: &Rmb,
        first: &SendRing,
        grown: Option<&SendRing>,
    ) -> Result<Binding> {
        // The link may have come after the ring.
        self.make_region(rmb.memory(), link)?;
        self.make_valid(rmb.memory(), link)?;
        let token = rmb.memory().token_on(link).ok_or_else(gone)?;
        let first = self.map_send_ring(link, first)?;
        let grown = grown
            .map(|ring| self.map_send_ring(link, ring))
            .transpose()?;
        link.conns.add(1, Relaxed);
        Ok(Binding {
            link: link.clone(),
            first: Some(first),
            grown,
            rmb: token,
        })
    }

    /// A send ring as the device of a link sees it. May sleep.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub(crate) fn map_send_ring(&self, link: &Link, ring: &SendRing) -> Result<Arc<Mapped>> {
        let column = link.column();
        if ring.memory.ring.pieces() > link.max_pieces() {
            return Err(EOPNOTSUPP);
        }
        let known = ring.memory.mapping(column);
        let mapped = match known {
            Some(mapped) => mapped,
            None => {
                let pd = link.domain()?;
                let mapped = Mapped::for_sending(pd.device(), &ring.memory.ring)?;
                ring.memory.set_mapping(column, mapped.clone());
                mapped
            }
        };
        // Whoever takes the link apart has seen the mapping, or is seen here.
        if link.is_taken_apart() {
            drop(ring.memory.take_mapping(column));
            return Err(gone());
        }
        Ok(mapped)
    }

    /// Makes the send ring that a connection has from its start, on the account of `memcg`. It is to be used on `link`
    /// first. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOTCONN` when the group ends.
    pub(crate) fn first_send_ring(
        self: &Arc<Self>,
        link: &Link,
        memcg: Option<&MemCg>,
    ) -> Result<SendRing> {
        self.make_send_ring(FIRST_BYTES, link, memcg)
    }

    /// Makes a send ring of the wanted size on the account of `memcg`, or smaller; look at its size. It is to be used on
    /// `link` first. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOTCONN` when the group ends.
    pub(crate) fn new_send_ring(
        self: &Arc<Self>,
        want: RmbeSizeCode,
        link: &Link,
        memcg: Option<&MemCg>,
    ) -> Result<SendRing> {
        let mut last = ENOMEM;
        for size in want.degrade() {
            match self.make_send_ring(size.bytes(), link, memcg) {
                Ok(ring) => return Ok(ring),
                Err(e) if e == gone() => return Err(e),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The pieces of the send ring that has most of them.
    pub(super) fn most_pieces(&self) -> usize {
        let rings = self.rings.lock();
        let pieces = rings.sends.iter().map(|memory| memory.ring.pieces());
        pieces.max().unwrap_or(0)
    }

    /// A send ring of exactly so many bytes.
    fn make_send_ring(
        self: &Arc<Self>,
        bytes: u32,
        link: &Link,
        memcg: Option<&MemCg>,
    ) -> Result<SendRing> {
        let pieces = link.max_pieces();
        if let Some(memory) = self.spare_send_ring(bytes, pieces, memcg) {
            return Ok(self.send_handle(memory, true));
        }
        let layout = self.ctx().settings().layout();
        let pieces = smc_ib::common_pieces().map_or(pieces, |most| most.min(pieces));
        let ring = Ring::new(bytes, pieces, layout, memcg)?;
        let memcg = memcg.cloned();
        let memory = Arc::pin_init(
            pin_init!(SendMemory {
                ring,
                memcg,
                returned: Atomic::new(false),
                rested: Atomic::new(false),
                mapped <- new_mutex!([const { None }; LINK_SLOTS], "smc_llc::mapped"),
            }),
            GFP_KERNEL,
        )?;
        let mut rings = self.rings.lock();
        if rings.closed {
            return Err(gone());
        }
        rings.sends.push(memory.clone(), GFP_KERNEL)?;
        drop(rings);
        Ok(self.send_handle(memory, false))
    }

    /// The handle of a send ring.
    fn send_handle(self: &Arc<Self>, memory: Arc<SendMemory>, reused: bool) -> SendRing {
        if memory.is_large() {
            self.grown.add(1, Relaxed);
        }
        SendRing {
            memory,
            group: self.clone(),
            reused,
        }
    }

    /// A send ring of this size and account, of at most so many pieces, that a connection has let go of.
    ///
    /// A connection lets go of its ring when nothing of it is on its way any more.
    fn spare_send_ring(
        &self,
        bytes: u32,
        max_pieces: usize,
        memcg: Option<&MemCg>,
    ) -> Option<Arc<SendMemory>> {
        let rings = self.rings.lock();
        // The lock is held, so that nobody else takes it.
        let memory = rings.sends.iter().find(|m| {
            m.ring.bytes() == bytes
                && m.ring.pieces() <= max_pieces
                && m.returned.load(Acquire)
                && MemCg::same(m.memcg.as_ref(), memcg)
        })?;
        memory.returned.store(false, Relaxed);
        memory.rested.store(false, Relaxed);
        Some(memory.clone())
    }

    /// Counts a ring that a connection has let go of. Any context.
    pub(super) fn ring_returned(self: &Arc<Self>) {
        if self.returned.fetch_add(1, Full) >= RETURNED_AT_ONCE {
            self.tidy_rings();
        }
    }

    /// Looks after the rings that connections have let go of, or may let go of, if there are any. Called every second or
    /// so.
    pub(super) fn tidy_some(self: &Arc<Self>) {
        if self.returned.load(Relaxed) > 0 || self.grown.load(Relaxed) > 0 {
            self.ticked.store(true, Release);
            self.tidy_rings();
        }
    }

    /// Lets the work item look after rings that connections have let go of. Any context.
    pub(super) fn tidy_rings(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::TIDY }>(self.clone());
    }

    /// Looks after rings that connections have let go of. The work item of [`tidy_rings`](Self::tidy_rings).
    pub(super) fn tidy(self: &Arc<Self>) {
        let relief = self.relief.xchg(false, Full);
        let time = self.ticked.xchg(false, Full) || relief;
        if time && self.grown.load(Relaxed) > 0 {
            for conn in self.each_conn() {
                conn.on_rest();
            }
        }
        self.returned.store(0, Relaxed);
        let spares = if relief { 0 } else { SPARE_SENDS };
        let mut freed_sends = KVec::new();
        let mut again = false;
        {
            let mut rings = self.rings.lock();
            let mut at = 0usize;
            let mut kept = 0usize;
            while let Some(memory) = rings.sends.get(at) {
                let keep = if memory.returned.load(Acquire) {
                    kept = kept.saturating_add(1);
                    // A large one is made as fast as it is found, so that it does not wait for long.
                    let large = memory.is_large();
                    let rested = large && time && memory.rested.xchg(true, Relaxed);
                    again |= large;
                    kept <= spares && !rested
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
        }
        // What is still being sent from a ring keeps its mapping and its memory.
        drop(freed_sends);
        if again {
            // The clock has this looked after once more.
            self.returned.add(1, Relaxed);
        }
        self.tidy_rmbs();
        if relief {
            self.give_up_spares();
        } else {
            self.make_spares();
        }
    }

    /// Gives back the memory of all rings that no connection uses, soon. Any context.
    pub(super) fn relieve(self: &Arc<Self>) {
        self.relief.store(true, Release);
        self.tidy_rings();
    }

    /// Bytes of rings that no connection uses, if nobody is looking at them.
    pub(super) fn spare_bytes(&self) -> u64 {
        let Some(rings) = self.rings.try_lock() else {
            return 0;
        };
        let sends = rings.sends.iter().filter(|m| m.returned.load(Relaxed));
        let sends = sends.map(|memory| memory.ring.bytes());
        let rmbs = rings.spares.iter().map(|memory| memory.bytes());
        let add = |sum: u64, bytes: u32| sum.saturating_add(u64::from(bytes));
        sends.fold(rmbs.fold(0, add), add)
    }

    /// Takes keys and mappings of all rings for a link, whose queue pair was destroyed. In a work item.
    pub(super) fn unmap_rings(&self, column: usize) {
        Self::drop_keys(&self.rings, column);
        for memory in self.rings.lock().sends.iter() {
            drop(memory.take_mapping(column));
        }
    }

    /// Takes the keys and mappings of all rings, after the queue pairs were destroyed. The memory stays with those who
    /// hold it.
    pub(super) fn take_apart_rings(&self) {
        let (rmbs, sends) = {
            let mut rings = self.rings.lock();
            rings.closed = true;
            rings.spares.clear();
            rings.like = None;
            (
                core::mem::replace(&mut rings.rmbs, KVec::new()),
                core::mem::replace(&mut rings.sends, KVec::new()),
            )
        };
        Self::take_apart_rmbs(rmbs);
        for memory in &sends {
            for column in 0..LINK_SLOTS {
                drop(memory.take_mapping(column));
            }
        }
    }
}

impl SendMemory {
    /// Whether it is more than a connection has from its start.
    fn is_large(&self) -> bool {
        self.ring.bytes() > FIRST_BYTES
    }

    /// The mapping for the link in a column.
    fn mapping(&self, column: usize) -> Option<Arc<Mapped>> {
        self.mapped.lock().get(column)?.clone()
    }

    /// Keeps a mapping for the link in a column.
    fn set_mapping(&self, column: usize, mapped: Arc<Mapped>) {
        let before = self
            .mapped
            .lock()
            .get_mut(column)
            .and_then(|place| place.replace(mapped));
        drop(before);
    }

    /// Takes the mapping for a link that is taken apart.
    fn take_mapping(&self, column: usize) -> Option<Arc<Mapped>> {
        self.mapped.lock().get_mut(column)?.take()
    }
}
