// SPDX-License-Identifier: GPL-2.0

//! Receive rings (RMBs), which the peer writes (RFC 7609, section 2.1), and their keys, one for each link.
//!
//! A connection that lets go of its ring only marks it, in any context, and a work item does the rest (`spare`): the peer
//! is told to forget the keys, they are made invalid, and the ring is kept for the next connection, under keys and
//! addresses that no peer knows. A ring whose keys could not be made invalid is not used again.
//!
//! A ring gets its key for a new link from whoever sees both first: the one who makes the ring looks at the links after
//! it has entered the ring into the group's list, and the one who makes the link looks at the list after it has entered
//! the link.

mod spare;

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

/// Most RMBs of a group: those of all connections that it can have, and as many that the peer is still asked to forget.
/// One that takes its time for that, or never answers, gets no more of them.
const MOST_RMBS: usize = 2 * MAX_RTOKENS;

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
