// SPDX-License-Identifier: GPL-2.0

//! A connection changes its link, or its peer does (RFC 7609, section 4.6).

use kernel::{
    prelude::*,
    sync::Arc,
    time::msecs_to_jiffies,
    workqueue::WorkItem, //
};

use super::{
    Connection,
    Core,
    PeerRing,
    QUEUE, //
};
use crate::{
    kapi::work::cancel_delayed,
    proto::{
        conn::{
            Conn,
            Params,
            MOVING_MS, //
        },
        group::{
            Evacuation,
            Rtoken, //
        },
        reason::DeclineReason, //
    },
    smc_llc::{
        Binding,
        Link,
        Refuge,
        SendRing,
        TxSlot, //
    },
};

/// Where a connection stands that has to move.
enum Standing {
    /// It does not use the link that goes.
    Elsewhere,
    /// It does; the peer's ring there, if it is known and still written.
    Here(Option<Rtoken>),
}

impl Core {
    /// Arms the timer of a connection that waits for the rest on the peer's old link. Under the lock, as the other timer.
    pub(super) fn await_rest(&self) {
        if let Some(me) = &self.me {
            QUEUE.enqueue_delayed::<Connection, 3>(me.clone(), msecs_to_jiffies(MOVING_MS));
        }
    }

    /// Stops that timer.
    pub(super) fn stop_awaiting_rest(&self) {
        if let Some(me) = &self.me {
            cancel_delayed::<Connection, 3>(me);
        }
    }

    /// Where the connection stands when the link `from` goes.
    fn standing(&self, from: &Link) -> Standing {
        match &self.bound {
            Some(bound) if bound.link().is(from) => {}
            _ => return Standing::Elsewhere,
        }
        // After either side has closed the peer may have withdrawn its key, and nothing is written any more.
        let writes = self.conn.as_ref().is_some_and(Conn::may_write);
        let region = self.peer.filter(|_| writes).map(|peer| peer.region());
        Standing::Here(region)
    }
}

impl Connection {
    /// The link `from` has been taken apart: nothing of its device is needed any more. Only what posts looks at that, and
    /// nothing is posted there.
    pub(super) fn unmap(&self, from: &Link) {
        let mapped = {
            let mut core = self.core.lock();
            match &mut core.bound {
                Some(bound) if bound.link().is(from) => bound.unmap(),
                _ => return,
            }
        };
        drop(mapped);
    }

    /// The link `from` goes, and nothing that was sent over it will arrive any more. In a work item.
    pub(super) fn leave_link(&self, from: &Arc<Link>, evacuation: Evacuation) {
        let mut from = from.clone();
        loop {
            let Standing::Here(region) = self.core.lock().standing(&from) else {
                return;
            };
            let Some(refuge) = self.group().refuge(&from, region) else {
                // The group ends and says so.
                return;
            };
            match self.move_to(&from, region, &refuge, evacuation) {
                // That one has gone as well. Who looks for its connections has seen this one there, or is seen here.
                Ok(()) if refuge.link.has_ended() => {
                    self.unmap(&refuge.link);
                    from = refuge.link;
                }
                Ok(()) => break,
                // That one goes as well.
                Err(e) if e == ENOTCONN => {}
                // It cannot be used although it works: there is no memory, or its device cannot do what is needed.
                Err(_) => {
                    self.link_died();
                    return;
                }
            }
        }
        self.push();
    }

    /// Moves to another link, with a message that tells the peer what it has got. The peer's ring was `region` on the
    /// link `from`.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when that link goes as well; others when it cannot be used.
    fn move_to(
        &self,
        from: &Link,
        region: Option<Rtoken>,
        to: &Refuge,
        evacuation: Evacuation,
    ) -> Result {
        loop {
            let grown = self.core.lock().grown.clone();
            let bound = self
                .group()
                .bind(&to.link, &self.rmb, &self.first, grown.as_deref())?;
            let slot = to.link.slot_to_move(evacuation)?;
            if self.take_link(from, region, to, bound, grown, slot) {
                return Ok(());
            }
        }
    }

    /// Moves to another link by a slot of it and a binding that was made for it with the send ring `grown`; says whether
    /// that is still the present one.
    fn take_link(
        &self,
        from: &Link,
        region: Option<Rtoken>,
        to: &Refuge,
        bound: Binding,
        grown: Option<Arc<SendRing>>,
        slot: TxSlot,
    ) -> bool {
        // Data cannot follow where the peer has no key: it is told that the connection is over.
        let stranded = region.is_some() && to.peer.is_none();
        let (old, left) = {
            let mut core = self.core.lock();
            let core = &mut *core;
            match core.standing(from) {
                Standing::Here(_) => {}
                Standing::Elsewhere => return true,
            }
            let same = match (&core.grown, &grown) {
                (Some(now), Some(then)) => Arc::ptr_eq(now, then),
                (now, then) => now.is_none() && then.is_none(),
            };
            if !same {
                return false;
            }
            let left = core.peer;
            core.peer = match (core.peer, to.peer) {
                (Some(peer), Some(region)) => Some(peer.over(region)),
                _ => None,
            };
            core.no_ring = None;
            if let Some(first) = core.conn.as_mut().and_then(Conn::begin_failover) {
                to.link.post_move(slot, &first.encode());
            }
            (
                core.bound.replace(bound),
                left.filter(|_| core.peer.is_none()),
            )
        };
        drop(old);
        if let Some(peer) = left {
            self.group().leave_peer_rmb(from, peer.region());
        }
        if stranded {
            self.abort();
        }
        true
    }

    /// Knows the peer's ring, as it is reached over `link`.
    ///
    /// # Errors
    ///
    /// The reason to decline with when the connection has moved to where the peer has no key, or a message that came
    /// early was wrong.
    pub(super) fn start(
        &self,
        link: &Link,
        ring: PeerRing,
        params: Params,
    ) -> Result<(), DeclineReason> {
        loop {
            let now = {
                let core = self.core.lock();
                let bound = core.bound.as_ref().ok_or(DeclineReason::ERR_RDYLNK)?;
                bound.link().clone()
            };
            let peer = if now.is(link) {
                ring
            } else {
                let region = self.group().peer_token(link, ring.region(), &now);
                ring.over(region.ok_or(DeclineReason::CNFERR)?)
            };
            let mut core = self.core.lock();
            if !core.bound.as_ref().is_some_and(|b| b.link().is(&now)) {
                continue;
            }
            core.peer = Some(peer);
            return self
                .begin(&mut core, params)
                .map_err(|_| DeclineReason::CNFERR);
        }
    }
}

impl WorkItem<3> for Connection {
    type Pointer = Arc<Connection>;

    /// The rest on the peer's old link has had its time.
    fn run(this: Arc<Connection>) {
        this.rest_is_lost();
    }
}
