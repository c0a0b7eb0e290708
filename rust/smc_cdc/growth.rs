// SPDX-License-Identifier: GPL-2.0

//! The send ring grows when more is to be sent than the first one holds, and the memory is given back when nothing was
//! sent for a while. So a connection that is idle, as most are, holds little more than its receive ring.
//!
//! Whoever changes the ring is the one sender, and does it under the core's lock, too: the cursors, the memory and what
//! the link's device sees of it change together.

use kernel::{
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};

use super::{
    Connection,
    Core, //
};
use crate::{
    net_ctx::{
        RingEvent,
        Way, //
    },
    proto::{
        conn::Conn,
        cursor::RingSize, //
    },
    smc_llc::{
        Link,
        SendRing, //
    },
};

/// How long a connection goes on with its first ring before it asks again for a larger one.
const PAUSE: Delta = Delta::from_secs(1);

impl Core {
    /// Whether a larger send ring can be asked for.
    pub(super) fn may_grow(&self) -> bool {
        let later = |since: Instant<Monotonic>| since.elapsed() >= PAUSE;
        self.grown.is_none() && self.no_ring.is_none_or(later) && self.bound.is_some()
    }

    /// Whether something that is written has room, be it in a larger ring.
    pub(super) fn has_room(&self, conn: &Conn) -> bool {
        conn.send_space() > 0 || self.may_grow()
    }
}

impl Connection {
    /// Takes a larger send ring into use. Whatever comes of it, the same call need not be made again for a while, unless
    /// the connection has moved. Called by the one sender; may sleep.
    pub(super) fn grow(&self) {
        let link = {
            let core = self.core.lock();
            core.bound.as_ref().map(|bound| bound.link().clone())
        };
        let Some(link) = link else {
            return;
        };
        let ring = match self.larger_ring(&link) {
            Ok(ring) => ring,
            Err(why) => return self.stay_small(why),
        };
        let bytes = ring.bytes();
        let (reused, degraded) = (ring.is_reused(), bytes < self.most.bytes());
        match self.use_ring(&link, ring) {
            Ok(true) => {
                self.send_bytes.store(bytes, Relaxed);
                self.rings.take(Way::Send, bytes, reused, degraded);
            }
            // It has moved meanwhile, and the next attempt is for the other link.
            Ok(false) => {}
            Err(why) => self.stay_small(why),
        }
    }

    /// Goes on with the first ring for a while. A connection is counted once for which there is no memory; where the link
    /// or the group goes nothing is known of that.
    fn stay_small(&self, why: Error) {
        let small = self.first.bytes();
        if why != ENOTCONN && self.send_bytes.xchg(small, Relaxed) != small {
            self.rings.ctx.stats().ring(Way::Send, RingEvent::DEGRADED);
        }
        self.core.lock().no_ring = Some(Instant::now());
    }

    /// A send ring of the wanted size, or the largest that there is memory for.
    fn larger_ring(&self, link: &Link) -> Result<Arc<SendRing>> {
        let memcg = self.first.memcg();
        let ring = self.group().new_send_ring(self.most, link, memcg)?;
        Ok(Arc::new(ring, GFP_KERNEL)?)
    }

    /// Sends from `ring` from now on; says whether the connection still uses `link`.
    fn use_ring(&self, link: &Link, ring: Arc<SendRing>) -> Result<bool> {
        let mapped = self.group().map_send_ring(link, &ring)?;
        let size = RingSize::new(ring.bytes()).ok_or(EINVAL)?;
        let mut core = self.core.lock();
        let core = &mut *core;
        let (Some(conn), Some(bound)) = (core.conn.as_mut(), core.bound.as_mut()) else {
            return Ok(false);
        };
        if !bound.link().is(link) {
            return Ok(false);
        }
        conn.switch_ring(size).map_err(|_| EBUSY)?;
        bound.set_grown(Some(mapped));
        core.grown = Some(ring);
        Ok(true)
    }

    /// Gives the larger send ring back if nothing was written since this was called the last time, and nothing of it is
    /// needed any more. May sleep.
    pub(super) fn shrink(&self) {
        // A sender that holds the lock is sending.
        let Some(_one) = self.sender.try_lock() else {
            return;
        };
        let Some(first) = RingSize::new(self.first.bytes()) else {
            return;
        };
        let (grown, mapped) = {
            let mut core = self.core.lock();
            let core = &mut *core;
            let (Some(conn), Some(bound)) = (core.conn.as_mut(), core.bound.as_mut()) else {
                return;
            };
            if core.grown.is_none() || core::mem::take(&mut core.sending) {
                return;
            }
            let needed = conn.unfinished() > 0 || conn.posted() > 0;
            if needed || conn.switch_ring(first).is_err() {
                return;
            }
            (core.grown.take(), bound.set_grown(None))
        };
        // The mapping goes before the ring, outside of the lock.
        drop(mapped);
        if let Some(grown) = grown {
            self.rings.give(Way::Send, grown.bytes());
        }
    }
}
