// SPDX-License-Identifier: GPL-2.0

//! Receive rings (RMBs), which the peer writes (RFC 7609, section 2.1), and their keys, one for each link.
//!
//! A connection that lets go of its ring only marks it, in any context, and a work item does the rest: the peer is told
//! to forget the keys, they are made invalid, and the ring is kept for the next connection, under keys and addresses
//! that no peer knows. A ring whose keys could not be made invalid is not used again.
//!
//! A ring gets its key for a new link from whoever sees both first: the one who makes the ring looks at the links after
//! it has entered the ring into the group's list, and the one who makes the link looks at the list after it has entered
//! the link.

use kernel::{
    iov::IovIterDest,
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
    ring::Rings,
    Deadline, //
};
use crate::{
    kapi::{
        memcg::MemCg,
        pages::Ring,
        rdma::Mr, //
    },
    proto::{
        group::{
            needs_delete,
            Rtoken,
            LINK_SLOTS,
            MAX_RTOKENS, //
        },
        ids::{
            Rkey,
            Vaddr, //
        },
        llc::MovedRtoken,
        size::RmbeSizeCode, //
    },
};

/// Most pieces of a receive ring: its pages are listed one by one anyway.
const RMB_PIECES: usize = 64;

/// RMBs that a group keeps for its next connections.
const SPARE_RMBS: usize = 16;

/// Most RMBs of a group: those of all connections that it can have, and as many that the peer is still asked to forget.
/// One that takes its time for that, or never answers, gets no more of them.
const MOST_RMBS: usize = 2 * MAX_RTOKENS;

/// RMBs that are made for the next connections where their keys have to be told by an exchange.
const AHEAD_RMBS: usize = 2;

/// So much may be under way on a link while a key is told ahead.
const QUIET: usize = 4;

/// With fewer connections than this the peer is told the keys of spare RMBs ahead. Each takes a place in its table,
/// which has one for every connection.
const AHEAD_BELOW: u32 = 128;

/// How long somebody else may take to make a key valid.
const VALIDATE_MS: u32 = 6000;

/// A connection uses the ring.
const IN_USE: i32 = 0;
/// The connection has let go of it.
const RETURNED: i32 = 1;
/// Waits for the next connection, under keys that the peer does not know or has been told ahead.
const SPARE: i32 = 2;

/// The key is not valid.
const KEY_OFF: i32 = 0;
/// Somebody makes it valid.
const KEY_BUSY: i32 = 1;
/// The key is valid.
const KEY_ON: i32 = 2;

/// An RMB of a group.
#[pin_data]
pub(super) struct RmbMemory {
    /// The memory.
    ring: Arc<Ring>,
    /// Its size class.
    size: RmbeSizeCode,
    /// To whose account it goes: only connections of the same one get it.
    memcg: Option<MemCg>,
    /// Who uses it: one of the constants above.
    owner: Atomic<i32>,
    /// The peer knows the keys, or is about to.
    known: Atomic<bool>,
    /// The peer of the connection that had it has closed or aborted: it writes no more.
    last_word: Atomic<bool>,
    /// So many bytes from its start have been written, if the peer has said so with its last word.
    written: Atomic<u32>,
    /// Whether the key for each link is valid: one of the `KEY_` constants.
    keys: [Atomic<i32>; LINK_SLOTS],
    /// The region for each link, until that is taken apart. Lock level 4.
    #[pin]
    regions: Mutex<[Option<Arc<Mr>>; LINK_SLOTS]>,
}

impl RmbMemory {
    /// Size in bytes.
    pub(super) fn bytes(&self) -> u32 {
        self.ring.bytes()
    }

    /// The region for the link in a column.
    fn region(&self, column: usize) -> Option<Arc<Mr>> {
        self.regions.lock().get(column)?.clone()
    }

    /// Key and address on a link.
    pub(super) fn token_on(&self, link: &Link) -> Option<Rtoken> {
        self.region(link.column()).map(|region| Rtoken {
            rkey: Rkey(region.rkey()),
            vaddr: Vaddr(region.address()),
        })
    }

    /// Remembers that the peer knows the keys and has to be told to forget them; says whether it knew before.
    pub(super) fn mark_known(&self) -> bool {
        self.known.xchg(true, Full)
    }

    /// Whether a connection has let go of it.
    fn is_returned(&self) -> bool {
        self.owner.load(Acquire) == RETURNED
    }

    /// Takes the region for a link that is taken apart.
    pub(super) fn take_region(&self, column: usize) -> Option<Arc<Mr>> {
        let region = self.regions.lock().get_mut(column)?.take();
        if let Some(key) = self.keys.get(column) {
            key.store(KEY_OFF, Release);
        }
        region
    }
}

/// A connection's receive ring. It may be dropped in any context.
pub(crate) struct Rmb {
    /// The ring.
    memory: Arc<RmbMemory>,
    /// Its group.
    group: Arc<LinkGroup>,
    /// Another connection had it before.
    reused: bool,
}

impl Rmb {
    /// Whether another connection had it before.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// Size class.
    pub(crate) fn size(&self) -> RmbeSizeCode {
        self.memory.size
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.memory.ring.bytes()
    }

    /// The peer has closed or aborted the connection, and everything that it wrote has arrived: `written` bytes from the
    /// start of the stream. Any context.
    pub(crate) fn peer_is_done(&self, written: u32) {
        self.memory.written.store(written, Relaxed);
        self.memory.last_word.store(true, Release);
    }

    /// The ring in its group.
    pub(super) fn memory(&self) -> &Arc<RmbMemory> {
        &self.memory
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

impl LinkGroup {
    /// Makes an RMB of the wanted size on the account of `memcg`, or smaller where memory or the device does not give
    /// it; look at its size.
    ///
    /// It is zeroed. Its keys are valid on every link that can send when this returns; on a first contact, when
    /// CONFIRM_LINK is done. In a work item.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENOTCONN` when the group ends.
    pub(crate) fn new_rmb(
        self: &Arc<Self>,
        want: RmbeSizeCode,
        memcg: Option<&MemCg>,
    ) -> Result<Rmb> {
        if let Some(rmb) = self.spare_rmb(want, memcg)? {
            self.make_ahead(&rmb);
            return Ok(rmb);
        }
        let mut last = ENOMEM;
        for size in want.degrade() {
            match self.make_rmb(size, memcg) {
                Ok(rmb) => {
                    self.make_ahead(&rmb);
                    return Ok(rmb);
                }
                Err(e) if e == gone() => return Err(e),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// A spare RMB of this size and account with valid keys.
    fn spare_rmb(
        self: &Arc<Self>,
        size: RmbeSizeCode,
        memcg: Option<&MemCg>,
    ) -> Result<Option<Rmb>> {
        let memory = {
            let mut rings = self.rings.lock();
            let fits = |m: &Arc<RmbMemory>| m.size == size && MemCg::same(m.memcg.as_ref(), memcg);
            let Some(at) = rings.spares.iter().position(fits) else {
                return Ok(None);
            };
            let memory = rings.spares.remove(at).map_err(|_| EINVAL)?;
            memory.owner.store(IN_USE, Relaxed);
            memory
        };
        let rmb = self.rmb_handle(memory, true);
        self.validate(&rmb.memory)?;
        Ok(Some(rmb))
    }

    /// Makes an RMB of exactly this size.
    fn make_rmb(self: &Arc<Self>, size: RmbeSizeCode, memcg: Option<&MemCg>) -> Result<Rmb> {
        let memory = self.make_memory(size, memcg)?;
        let rmb = self.rmb_handle(memory, false);
        self.validate(&rmb.memory)?;
        Ok(rmb)
    }

    /// Makes the memory of an RMB, without a key.
    fn make_memory(&self, size: RmbeSizeCode, memcg: Option<&MemCg>) -> Result<Arc<RmbMemory>> {
        if self.rings.lock().rmbs.len() >= MOST_RMBS {
            return Err(ENOMEM);
        }
        let layout = self.ctx().settings().layout();
        let ring = Ring::new(size.bytes(), RMB_PIECES, layout, memcg)?;
        let memcg = memcg.cloned();
        let memory = Arc::pin_init(
            pin_init!(RmbMemory {
                ring,
                size,
                memcg,
                owner: Atomic::new(IN_USE),
                known: Atomic::new(false),
                last_word: Atomic::new(false),
                written: Atomic::new(u32::MAX),
                keys: [const { Atomic::new(KEY_OFF) }; LINK_SLOTS],
                regions <- new_mutex!([const { None }; LINK_SLOTS], "smc_llc::rmb"),
            }),
            GFP_KERNEL,
        )?;
        {
            let mut rings = self.rings.lock();
            if rings.is_closed() {
                return Err(gone());
            }
            rings.rmbs.push(memory.clone(), GFP_KERNEL)?;
        }
        Ok(memory)
    }

    /// The next connection will want such an RMB as this one has got: where that needs an exchange it is made ready
    /// before, soon.
    fn make_ahead(self: &Arc<Self>, like: &Rmb) {
        if !self.tells_ahead() {
            return;
        }
        let few = {
            let mut rings = self.rings.lock();
            rings.like = Some((like.memory.size, like.memory.memcg.clone()));
            rings.spares.len() < AHEAD_RMBS
        };
        if few {
            self.tidy_rings();
        }
    }

    /// Makes such RMBs as the next connections will want. In a work item.
    pub(super) fn make_spares(self: &Arc<Self>) {
        let missing = {
            let rings = self.rings.lock();
            AHEAD_RMBS.saturating_sub(rings.spares.len())
        };
        for _ in 0..missing {
            let like = self.rings.lock().like.clone();
            let Some((size, memcg)) = like.filter(|_| self.tells_ahead()) else {
                return;
            };
            if !self.is_quiet() {
                // The clock has this looked after once more.
                self.returned.add(1, Relaxed);
                return;
            }
            // Where there is no memory for it the next connection gets what there is then.
            let Ok(memory) = self.make_memory(size, memcg.as_ref()) else {
                return;
            };
            if self.keep(&memory).is_err() {
                self.drop_rmb(&memory);
                return;
            }
        }
    }

    /// Whether the peer is told keys before a connection needs them.
    fn tells_ahead(&self) -> bool {
        self.is_active() && (1..AHEAD_BELOW).contains(&self.conns()) && !self.handshake_tells()
    }

    /// Whether keys can be told ahead now without being in the way: what is told stands behind all that was posted, and a
    /// connection whose key has to be told waits for its turn behind that.
    fn is_quiet(&self) -> bool {
        self.links()
            .all(|link| link.send.lock().under_way() <= QUIET)
    }

    /// The handle of an RMB.
    fn rmb_handle(self: &Arc<Self>, memory: Arc<RmbMemory>, reused: bool) -> Rmb {
        Rmb {
            memory,
            reused,
            group: self.clone(),
        }
    }

    /// Gives an RMB a region on every link, and makes its key valid where the link can send already. A link that goes is
    /// passed over.
    ///
    /// # Errors
    ///
    /// `ENOMEM` and what the device says; `ENOTCONN` when the group ends.
    pub(super) fn validate(self: &Arc<Self>, memory: &Arc<RmbMemory>) -> Result {
        for link in self.links() {
            self.make_region(memory, &link)?;
            self.make_valid(memory, &link)?;
        }
        if self.is_alive() {
            Ok(())
        } else {
            Err(gone())
        }
    }

    /// Gives an RMB a region on a link.
    pub(super) fn make_region(&self, memory: &RmbMemory, link: &Link) -> Result {
        let column = link.column();
        if memory.region(column).is_some() {
            return Ok(());
        }
        let Ok(pd) = link.domain() else {
            return Ok(());
        };
        let region = Arc::new(Mr::new(&pd, &memory.ring)?, GFP_KERNEL)?;
        let spare = {
            let mut regions = memory.regions.lock();
            match regions.get_mut(column) {
                Some(place @ None) => {
                    *place = Some(region);
                    None
                }
                _ => Some(region),
            }
        };
        drop(spare);
        // Whoever takes the link apart has seen the region, or is seen here.
        if link.is_taken_apart() {
            drop(memory.take_region(column));
        }
        Ok(())
    }

    /// Makes the key of an RMB on a link valid, if the link can send already and does not go.
    pub(super) fn make_valid(&self, memory: &RmbMemory, link: &Arc<Link>) -> Result {
        let column = link.column();
        let (Some(region), Some(key)) = (memory.region(column), memory.keys.get(column)) else {
            return Ok(());
        };
        if !link.can_send() {
            return Ok(());
        }
        let deadline = Deadline::after(VALIDATE_MS);
        loop {
            match key.cmpxchg(KEY_OFF, KEY_BUSY, Full) {
                Ok(_) => {
                    let ret = link.register(&region);
                    link.tell_waiters(|| {
                        key.store(if ret.is_ok() { KEY_ON } else { KEY_OFF }, Release);
                    });
                    return match ret {
                        Err(_) if link.is_lost() => Ok(()),
                        ret => ret,
                    };
                }
                Err(KEY_ON) => return Ok(()),
                Err(_) => {
                    let left = deadline.left().ok_or(ETIMEDOUT)?;
                    link.wait_while(left, || key.load(Acquire) == KEY_BUSY);
                }
            }
        }
    }

    /// Makes the keys valid that were given out before the first link could send, which are those of its first
    /// connection.
    pub(super) fn validate_early(self: &Arc<Self>) -> Result {
        for memory in &self.rmbs_where(|m| m.owner.load(Acquire) == IN_USE)? {
            self.validate(memory)?;
            // The peer has the key from Accept or Confirm.
            memory.known.store(true, Release);
        }
        Ok(())
    }

    /// The RMBs that `which` chooses.
    fn rmbs_where(&self, which: impl Fn(&RmbMemory) -> bool) -> Result<KVec<Arc<RmbMemory>>> {
        let mut list = KVec::new();
        for memory in self.rings.lock().rmbs.iter().filter(|m| which(m)) {
            list.push(memory.clone(), GFP_KERNEL)?;
        }
        Ok(list)
    }

    /// Gives every RMB whose key the peer may have a region on a new link, and lists the keys: the peer learns them by
    /// what it knows already on the link `old`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` and what the device says.
    pub(super) fn keys_for_link(&self, old: &Link, new: &Arc<Link>) -> Result<KVec<MovedRtoken>> {
        let mut list = KVec::new();
        for memory in &self.rmbs_where(|m| m.known.load(Acquire) && !m.is_returned())? {
            self.make_region(memory, new)?;
            let (Some(from), Some(to)) = (memory.token_on(old), memory.token_on(new)) else {
                continue;
            };
            let moved = MovedRtoken {
                reference: from.rkey,
                rkey: to.rkey,
                vaddr: to.vaddr,
            };
            list.push(moved, GFP_KERNEL)?;
        }
        Ok(list)
    }

    /// Makes every key on a new link valid that the peer may use there. The link can send.
    ///
    /// # Errors
    ///
    /// `ENOMEM` and what the device says.
    pub(super) fn validate_link(&self, new: &Arc<Link>) -> Result {
        for memory in &self.rmbs_where(|m| m.known.load(Acquire) && !m.is_returned())? {
            self.make_region(memory, new)?;
            self.make_valid(memory, new)?;
        }
        Ok(())
    }

    /// Looks after the RMBs that connections have let go of. In a work item.
    pub(super) fn tidy_rmbs(self: &Arc<Self>) {
        // Without memory for the list the clock has this looked after later.
        let Ok(returned) = self.rmbs_where(RmbMemory::is_returned) else {
            self.returned.add(1, Relaxed);
            return;
        };
        if returned.is_empty() {
            return;
        }
        self.forget_at_peer(&returned);
        // Without memory none is kept.
        let renewed = self.renew(&returned).unwrap_or_default();
        let mut renewed = renewed.iter().copied();
        for memory in &returned {
            let kept = renewed.next().unwrap_or(false) && self.keep(memory).is_ok();
            if !kept {
                self.drop_rmb(memory);
            }
        }
    }

    /// Takes an RMB off the list, and its regions.
    fn drop_rmb(&self, memory: &Arc<RmbMemory>) {
        self.rings
            .lock()
            .remove_rmbs(|m| core::ptr::eq(&**m, &**memory));
        for column in 0..LINK_SLOTS {
            drop(memory.take_region(column));
        }
    }

    /// Tells the peer to forget the keys of RMBs, and waits for its answer, where it knows them and does not forget them
    /// by itself.
    fn forget_at_peer(self: &Arc<Self>, memories: &[Arc<RmbMemory>]) {
        let mut known = KVec::new();
        for memory in memories {
            let last_word = memory.last_word.xchg(false, Full);
            if !memory.known.xchg(false, Full) || !needs_delete(self.extensions(), last_word) {
                continue;
            }
            if known.push(memory.clone(), GFP_KERNEL).is_err() {
                break;
            }
        }
        for some in known.chunks(super::keys::KEYS_AT_ONCE) {
            // Without an answer the keys are made invalid all the same, and the others are not asked for: a peer that still
            // writes breaks the link.
            if self.withdraw_keys(some).is_err() {
                self.doubt();
                return;
            }
        }
    }

    /// Makes the keys of an RMB invalid.
    ///
    /// # Errors
    ///
    /// When that fails on a link that does not go.
    fn make_invalid(&self, memory: &RmbMemory) -> Result {
        for link in self.links() {
            let column = link.column();
            let (Some(region), Some(key)) = (memory.region(column), memory.keys.get(column)) else {
                continue;
            };
            if key.load(Acquire) != KEY_ON {
                continue;
            }
            match link.invalidate(&region) {
                Ok(()) => key.store(KEY_OFF, Release),
                // Its region goes with it.
                Err(_) if link.is_lost() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Gives RMBs fresh keys, which are valid where the old ones were, as many as the next connections may want; the others
    /// have no valid key afterwards. Says of each whether it can be used again.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn renew(self: &Arc<Self>, memories: &[Arc<RmbMemory>]) -> Result<KVec<bool>> {
        let mut kept = KVec::with_capacity(memories.len(), GFP_KERNEL)?;
        let mut spare = self.rings.lock().spares.len();
        for memory in memories {
            let worn = (0..LINK_SLOTS)
                .filter_map(|column| memory.region(column))
                .any(|region| region.is_worn());
            let keep = !worn && spare < SPARE_RMBS && self.is_alive();
            if keep {
                spare = spare.saturating_add(1);
            } else {
                // When that fails the link ends, and the key with it.
                let _ = self.make_invalid(memory);
            }
            kept.push(keep, GFP_KERNEL)?;
        }
        for link in self.links() {
            self.renew_on(&link, memories, &mut kept)?;
        }
        Ok(kept)
    }

    /// Gives RMBs fresh keys on a link. None is `kept` with which that fails, as its device may still look at the region.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    fn renew_on(
        &self,
        link: &Arc<Link>,
        memories: &[Arc<RmbMemory>],
        kept: &mut KVec<bool>,
    ) -> Result {
        let column = link.column();
        let mut places = KVec::with_capacity(memories.len(), GFP_KERNEL)?;
        let mut regions = KVec::with_capacity(memories.len(), GFP_KERNEL)?;
        for (place, memory) in memories.iter().enumerate() {
            let Some(keep) = kept.get_mut(place).filter(|keep| **keep) else {
                continue;
            };
            let (Some(region), Some(key)) = (memory.region(column), memory.keys.get(column)) else {
                continue;
            };
            match key.load(Acquire) {
                KEY_ON => {
                    *keep = false;
                    places.push(place, GFP_KERNEL)?;
                    regions.push(region, GFP_KERNEL)?;
                }
                KEY_OFF => region.fresh_key(),
                _ => *keep = false,
            }
        }
        if regions.is_empty() {
            return Ok(());
        }
        // Those that were not renewed are told by that.
        let _ = link.renew(&regions, |index| {
            let place = places.get(index).copied().unwrap_or(usize::MAX);
            if let Some(keep) = kept.get_mut(place) {
                *keep = true;
            }
        });
        Ok(())
    }

    /// Keeps an RMB with fresh keys for the next connection.
    ///
    /// # Errors
    ///
    /// When it cannot be used again, for whatever reason.
    fn keep(self: &Arc<Self>, memory: &Arc<RmbMemory>) -> Result {
        // Nobody can write any more who could before. What a peer has written without saying so may stay: the next
        // connection is with the same one.
        memory.ring.clear(memory.written.xchg(u32::MAX, Relaxed));
        // The keys are made valid and told to the peer now: the next connection waits for neither.
        self.validate(memory)?;
        if self.tells_ahead() && self.is_quiet() {
            // Before it is told: a link that comes meanwhile gets a key as well.
            memory.known.store(true, Release);
            let taken = self.tell_key(memory, None)?;
            memory.known.store(taken, Release);
        }
        let mut rings = self.rings.lock();
        if rings.is_closed() {
            return Err(gone());
        }
        rings.spares.push(memory.clone(), GFP_KERNEL)?;
        memory.owner.store(SPARE, Release);
        Ok(())
    }

    /// Frees the spare RMBs and has the peer forget their keys. In a work item.
    pub(super) fn give_up_spares(self: &Arc<Self>) {
        let spares = {
            let mut rings = self.rings.lock();
            let spares = core::mem::replace(&mut rings.spares, KVec::new());
            rings.remove_rmbs(|memory| {
                let spare = memory.owner.load(Relaxed) == SPARE;
                if spare {
                    memory.owner.store(IN_USE, Relaxed);
                }
                spare
            });
            spares
        };
        self.forget_at_peer(&spares);
        for memory in &spares {
            // When that fails the link ends, and the key with it.
            let _ = self.make_invalid(memory);
            self.drop_rmb(memory);
        }
    }

    /// Takes the keys of all RMBs, after the queue pairs were destroyed. The memory stays with those who hold it.
    pub(super) fn take_apart_rmbs(list: KVec<Arc<RmbMemory>>) {
        for memory in &list {
            for column in 0..LINK_SLOTS {
                drop(memory.take_region(column));
            }
        }
    }

    /// Takes the keys of all RMBs on a link, whose queue pair was destroyed.
    pub(super) fn drop_keys(rings: &Mutex<Rings>, column: usize) {
        // One after the other: a region is not dropped under the lock of the list. When one is removed meanwhile the
        // places of the others have changed.
        let mut at = 0usize;
        let mut removals = None;
        loop {
            let memory = {
                let rings = rings.lock();
                if removals != Some(rings.removals()) {
                    removals = Some(rings.removals());
                    at = 0;
                }
                match rings.rmbs.get(at) {
                    Some(memory) => memory.clone(),
                    None => break,
                }
            };
            drop(memory.take_region(column));
            at = at.saturating_add(1);
        }
    }
}
