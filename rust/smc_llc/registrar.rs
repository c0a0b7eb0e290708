// SPDX-License-Identifier: GPL-2.0

//! The queue pair by which a link makes the keys of its regions valid and invalid: tied to itself, it sends nothing.
//!
//! Any queue pair of the protection domain may do that. On the one to the peer a key would wait until everything posted
//! before it has been acknowledged, which takes seconds on a slow path; and a software device (rxe) that has to send
//! again what lies before a registration registers again as well, finds the region in use, and gives the queue pair up
//! without a word.

use kernel::{
    new_condvar,
    prelude::*,
    sync::{
        Arc,
        CondVar, //
    }, //
};

use super::{
    gone,
    link::Link,
    Deadline, //
};
use crate::{
    kapi::{
        rdma::{
            Message,
            Mr,
            Pd,
            Qp,
            QpConfig,
            QpEvents,
            RemoteEnd,
            Rts, //
        },
        sync::BhLock, //
    },
    new_bh_lock,
    proto::llc,
    smc_ib::Start, //
};

/// Operations that run at the same time.
const SLOTS: usize = 8;

/// How long an operation may take, with the wait for a slot.
const OPERATION_MS: u32 = 5000;

/// How long what was posted may take to come back at the end.
const DRAIN_MS: u32 = 500;

/// What a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Nothing.
    Free,
    /// An operation runs.
    Posted,
    /// It has ended, well or not.
    Done(bool),
}

/// What the lock guards.
struct State {
    /// The queue pair, from [`Registrar::open`] to [`Registrar::close`].
    qp: Option<Qp<Events, Rts>>,
    /// What each slot is used for.
    slots: [Use; SLOTS],
}

/// Registers and withdraws keys. Its lock is level 7.
#[pin_data]
pub(super) struct Registrar {
    /// The queue pair and its slots.
    #[pin]
    state: BhLock<State>,
    /// A slot has changed, or the queue pair has gone.
    #[pin]
    event: CondVar,
}

/// What the queue pair reports to; as [`super::link::Events`], a circle that [`Registrar::close`] breaks.
struct Events(Arc<Link>);

impl QpEvents for Events {
    fn received(&self, _message: &Message<'_>) {}

    fn sent(&self, slot: usize, ok: bool) {
        self.0.registrar().on_done(slot, ok);
    }

    // Every operation comes back as failed, and whoever waits for it ends the link.
    fn broken(&self) {}
}

impl Registrar {
    /// One without a queue pair.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_bh_lock!(
                State {
                    qp: None,
                    slots: [Use::Free; SLOTS],
                },
                "smc_llc::registrar"
            ),
            event <- new_condvar!("smc_llc::registrar_event"),
        })
    }

    /// Makes the queue pair. May sleep.
    ///
    /// # Errors
    ///
    /// What the device says.
    // Not part of its caller's frame on the stack.
    #[inline(never)]
    pub(super) fn open(&self, link: &Arc<Link>, pd: &Arc<Pd>, start: &Start) -> Result {
        let config = QpConfig {
            chain_slots: SLOTS,
            single_slots: 0,
            long_len: llc::LEN,
            recv_slots: 1,
            recv_len: llc::LEN,
            port: start.port(),
        };
        let qp = Qp::new(pd, config, Events(link.clone()))?;
        let itself = RemoteEnd {
            qpn: qp.qpn(),
            psn: 0,
            gid: start.gid().0,
            mac: start.mac().0,
            mtu: start.mtu().get(),
            sgid_index: start.gid_index(),
            hop_limit: 1,
        };
        let qp = qp.into_rtr(&itself)?.into_rts(0)?;
        self.state.lock().qp = Some(qp);
        Ok(())
    }

    /// Registers a region under its key, and waits for that. In a work item.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the link goes; `ETIMEDOUT`; `EIO` when it failed.
    pub(super) fn register(&self, region: &Arc<Mr>) -> Result {
        self.run(|qp, slot| qp.post_register(slot, region))
    }

    /// Makes the keys of regions invalid and registers them under fresh ones, several at the same time, and waits for
    /// that; `renewed` is told of each with which that went well. In a work item.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register); some may have been renewed nevertheless.
    pub(super) fn renew(&self, regions: &[Arc<Mr>], mut renewed: impl FnMut(usize)) -> Result {
        let deadline = Deadline::after(OPERATION_MS);
        let mut mine = [None; SLOTS];
        let mut waiting = regions.iter().enumerate().peekable();
        let mut state = self.state.lock();
        loop {
            for (slot, place) in mine.iter_mut().enumerate() {
                if let (Some(index), Some(Use::Done(ok))) = (*place, state.slots.get(slot)) {
                    if *ok {
                        renewed(index);
                    }
                    // The caller has a reference, so that this does not drop the region.
                    let _ = state.qp.as_ref().and_then(|qp| qp.take_region(slot));
                    state.replace(slot, Use::Free);
                    *place = None;
                }
                if state.slots.get(slot) == Some(&Use::Free) {
                    if let Some((index, region)) = waiting.next() {
                        state
                            .qp
                            .as_ref()
                            .ok_or_else(gone)?
                            .post_renew(slot, region)?;
                        state.replace(slot, Use::Posted);
                        *place = Some(index);
                    }
                }
            }
            // When the link goes meanwhile, the queue pair keeps the regions until it is destroyed.
            if state.qp.is_none() {
                return Err(gone());
            }
            if waiting.peek().is_none() && mine.iter().all(Option::is_none) {
                break;
            }
            // The slots stay taken: what was posted may still come back.
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.event.wait_interruptible_timeout(&mut state, left);
        }
        drop(state);
        self.event.notify_all();
        Ok(())
    }

    /// Makes the key of a region invalid, and waits for that. In a work item.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    pub(super) fn invalidate(&self, region: &Arc<Mr>) -> Result {
        self.run(|qp, slot| qp.post_invalidate(slot, region))
    }

    /// Posts an operation and waits for its end.
    fn run(&self, post: impl FnOnce(&Qp<Events, Rts>, usize) -> Result) -> Result {
        let deadline = Deadline::after(OPERATION_MS);
        let mut state = self.state.lock();
        let slot = loop {
            if state.qp.is_none() {
                return Err(gone());
            }
            if let Some(slot) = state.slots.iter().position(|slot| *slot == Use::Free) {
                break slot;
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.event.wait_interruptible_timeout(&mut state, left);
        };
        match &state.qp {
            Some(qp) => post(qp, slot)?,
            None => return Err(gone()),
        }
        state.replace(slot, Use::Posted);
        let ok = loop {
            // When the link goes meanwhile, the queue pair keeps the region until it is destroyed.
            if state.qp.is_none() {
                return Err(gone());
            }
            if let Some(Use::Done(ok)) = state.slots.get(slot) {
                break *ok;
            }
            // The slot stays taken: what was posted may still come back.
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.event.wait_interruptible_timeout(&mut state, left);
        };
        let region = state.qp.as_ref().and_then(|qp| qp.take_region(slot));
        state.replace(slot, Use::Free);
        drop(state);
        // Dropping a region may sleep.
        drop(region);
        self.event.notify_all();
        if ok {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    /// An operation has ended. Softirq.
    fn on_done(&self, slot: usize, ok: bool) {
        let under_way = {
            let mut state = self.state.lock();
            state.replace(slot, Use::Done(ok));
            state.slots.contains(&Use::Posted)
        };
        // They end at about the same time, and whoever waits is woken once.
        if !under_way {
            self.event.notify_all();
        }
    }

    /// Destroys the queue pair and ends all waits. May sleep.
    pub(super) fn close(&self) {
        let qp = self.state.lock().qp.take();
        self.event.notify_all();
        if let Some(qp) = qp {
            let mut closing = qp.into_closing();
            // Where nothing comes back, its destruction shows that nothing will.
            closing.wait(DRAIN_MS);
            drop(closing);
        }
    }
}

impl State {
    /// Says what a slot is used for now.
    fn replace(&mut self, slot: usize, now: Use) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = now;
        }
    }
}
