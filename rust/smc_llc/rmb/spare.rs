// SPDX-License-Identifier: GPL-2.0

//! RMBs that no connection has: those that one has let go of, which get fresh keys, and those that are ready for the
//! next ones.
//!
//! A ring returns to use under a fresh key alone. Where the peer has to be told keys by an exchange, some rings are made
//! and told ahead, so that a connection waits for none.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Full,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

use super::{
    super::{
        gone,
        group::LinkGroup,
        keys::KEYS_AT_ONCE,
        link::Link, //
    },
    Rmb,
    RmbMemory,
    IN_USE,
    KEY_OFF,
    KEY_ON,
    SPARE, //
};
use crate::{
    kapi::memcg::MemCg,
    proto::{
        group::{
            needs_delete,
            LINK_SLOTS, //
        },
        size::RmbeSizeCode, //
    },
};

/// RMBs that a group keeps for its next connections.
const SPARE_RMBS: usize = 16;

/// RMBs that are made for the next connections where their keys have to be told by an exchange.
const AHEAD_RMBS: usize = 2;

/// So much may be under way on a link while a key is told ahead.
const QUIET: usize = 4;

/// With fewer connections than this the peer is told the keys of spare RMBs ahead. Each takes a place in its table,
/// which has one for every connection.
const AHEAD_BELOW: u32 = 128;

impl LinkGroup {
    /// A spare RMB of this size and account with valid keys.
    pub(super) fn spare_rmb(
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

    /// The next connection will want such an RMB as this one has got: where that needs an exchange it is made ready
    /// before, soon.
    pub(super) fn make_ahead(self: &Arc<Self>, like: &Rmb) {
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
    pub(in crate::smc_llc) fn make_spares(self: &Arc<Self>) {
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

    /// Looks after the RMBs that connections have let go of. In a work item.
    pub(in crate::smc_llc) fn tidy_rmbs(self: &Arc<Self>) {
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
        for some in known.chunks(KEYS_AT_ONCE) {
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
    pub(in crate::smc_llc) fn give_up_spares(self: &Arc<Self>) {
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

    /// Takes an RMB off the list, and its regions.
    fn drop_rmb(&self, memory: &Arc<RmbMemory>) {
        self.rings
            .lock()
            .remove_rmbs(|m| core::ptr::eq(&**m, &**memory));
        for column in 0..LINK_SLOTS {
            drop(memory.take_region(column));
        }
    }
}
