// SPDX-License-Identifier: GPL-2.0

//! Posting to the send queue: chains of WRITEs with their message, and registrations of regions.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    cell::UnsafeCell,
    ptr, //
};

use kernel::{
    error::to_result,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Release, //
        },
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    Block,
    Core,
    Mapped,
    Mr,
    Qp,
    QpEvents,
    Rts,
    MAX_SGE,
    MAX_WRITES,
    MSG_LEN,
    MSG_STRIDE, //
};

/// One RDMA WRITE of a chain.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// The ring from which bytes are written.
    pub from: &'a Arc<Mapped>,
    /// Where in the ring they begin.
    pub offset: u32,
    /// How many they are.
    pub len: u32,
    /// Where in the peer's memory they go.
    pub remote: u64,
    /// The peer's key.
    pub rkey: u32,
}

impl<H: QpEvents> Qp<H, Rts> {
    /// Posts a chain: the WRITEs, then the message as a signaled, solicited SEND. Any context.
    ///
    /// What is posted under one lock is sent in that order. [`QpEvents::sent`] tells the end.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a chain that the slot cannot take; `EBUSY` when the slot is in use; what the device says. Where
    /// part of a chain was posted the slot stays in use, and the queue pair ought to be closed.
    pub fn post_chain(&self, slot: usize, writes: &[Write<'_>], msg: &[u8; MSG_LEN]) -> Result {
        let block = self.core.block();
        let ctx = block.send.get(slot).ok_or(EINVAL)?;
        if writes.len() > MAX_WRITES || (!writes.is_empty() && slot >= block.chain_slots) {
            return Err(EINVAL);
        }
        let lkey = self.core.pd.local_key();
        let mut sges = [[bindings::ib_sge::default(); MAX_SGE]; MAX_WRITES];
        let mut wrs = [bindings::ib_rdma_wr::default(); MAX_WRITES];
        for ((write, wr), list) in writes.iter().zip(&mut wrs).zip(&mut sges) {
            self.core.fill(write, wr, list)?;
            wr.wr.__bindgen_anon_1.wr_cqe = block.quiet.get();
        }
        Self::hold_rings(ctx, writes)?;

        let mut flags =
            bindings::ib_send_flags_IB_SEND_SIGNALED | bindings::ib_send_flags_IB_SEND_SOLICITED;
        let mut sge = bindings::ib_sge {
            addr: 0,
            length: 44,
            lkey,
        };
        if block.inline {
            flags |= bindings::ib_send_flags_IB_SEND_INLINE;
            // An inline message is copied by the CPU, from its kernel address, during the call.
            sge.addr = kernel::num::casts::usize_as_u64(msg.as_ptr().expose_provenance());
        } else {
            sge.addr = block
                .send_buf
                .put(slot.checked_mul(MSG_STRIDE).ok_or(EINVAL)?, msg)?;
        }
        let mut send = bindings::ib_send_wr::default();
        send.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
        send.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
        send.send_flags = flags;
        send.sg_list = &mut sge;
        send.num_sge = 1;

        // Link the chain from its end.
        let mut first: *mut bindings::ib_send_wr = &mut send;
        for wr in wrs.iter_mut().take(writes.len()).rev() {
            wr.wr.next = first;
            first = &mut wr.wr;
        }
        self.core.post(ctx, first)
    }

    /// Posts WRITEs, the last of which carries immediate data, signaled and solicited: a chain and its message in one.
    /// Any context.
    ///
    /// [`QpEvents::sent`] tells the end; the peer gets [`QpEvents::written`] with the length of the last one.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain); `EINVAL` without a WRITE.
    pub fn post_writes(&self, slot: usize, writes: &[Write<'_>], immediate: u32) -> Result {
        // Most are alone, and the lists are cleared each time.
        if writes.len() == 1 {
            self.post_few_writes::<1>(slot, writes, immediate)
        } else {
            self.post_few_writes::<MAX_WRITES>(slot, writes, immediate)
        }
    }

    /// Posts at most `MOST` WRITEs, as [`post_writes`](Self::post_writes) does.
    fn post_few_writes<const MOST: usize>(
        &self,
        slot: usize,
        writes: &[Write<'_>],
        immediate: u32,
    ) -> Result {
        let block = self.core.block();
        let ctx = block.send.get(slot).ok_or(EINVAL)?;
        let last = writes.len().checked_sub(1).ok_or(EINVAL)?;
        if writes.len() > MOST || slot >= block.chain_slots {
            return Err(EINVAL);
        }
        let mut sges = [[bindings::ib_sge::default(); MAX_SGE]; MOST];
        let mut wrs = [bindings::ib_rdma_wr::default(); MOST];
        for ((write, wr), list) in writes.iter().zip(&mut wrs).zip(&mut sges) {
            self.core.fill(write, wr, list)?;
            wr.wr.__bindgen_anon_1.wr_cqe = block.quiet.get();
        }
        Self::hold_rings(ctx, writes)?;

        // Link the chain from its end.
        let mut first: *mut bindings::ib_send_wr = ptr::null_mut();
        for (index, wr) in wrs.iter_mut().enumerate().take(writes.len()).rev() {
            if index == last {
                wr.wr.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
                wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM;
                wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED
                    | bindings::ib_send_flags_IB_SEND_SOLICITED;
                wr.wr.ex.imm_data = immediate.to_be();
            }
            wr.wr.next = first;
            first = &mut wr.wr;
        }
        self.core.post(ctx, first)
    }

    /// Takes a slot for the rings of WRITEs.
    fn hold_rings(ctx: &SendCtx<H>, writes: &[Write<'_>]) -> Result {
        ctx.take()?;
        let mut hold = Hold::default();
        for (write, place) in writes.iter().zip(&mut hold.rings) {
            *place = Some(write.from.clone());
        }
        // SAFETY: This call took the slot, so that nobody else touches what it holds until it is posted.
        unsafe { ctx.hold.get().write(hold) };
        Ok(())
    }

    /// Posts a message of any length up to that of the configuration, from the slot for such. Any context.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain).
    pub fn post_long(&self, msg: &[u8]) -> Result {
        let block = self.core.block();
        let ctx = block.send.get(block.long_slot).ok_or(EINVAL)?;
        ctx.take()?;
        let mut sge = bindings::ib_sge {
            addr: 0,
            length: 0,
            lkey: self.core.pd.local_key(),
        };
        match (block.long_buf.put(0, msg), u32::try_from(msg.len())) {
            (Ok(addr), Ok(length)) => {
                sge.addr = addr;
                sge.length = length;
            }
            _ => {
                ctx.state.store(SLOT_FREE, Release);
                return Err(EINVAL);
            }
        }
        let mut send = bindings::ib_send_wr::default();
        send.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
        send.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
        send.send_flags =
            bindings::ib_send_flags_IB_SEND_SIGNALED | bindings::ib_send_flags_IB_SEND_SOLICITED;
        send.sg_list = &mut sge;
        send.num_sge = 1;
        self.core.post(ctx, &mut send)
    }

    /// Posts the registration of a region under its present key. Any context.
    ///
    /// [`QpEvents::sent`] tells the end; then [`take_region`](Self::take_region) frees the slot.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain).
    pub fn post_register(&self, slot: usize, region: &Arc<Mr>) -> Result {
        let ctx = self.core.block().send.get(slot).ok_or(EINVAL)?;
        let mut wr = register(ctx, region)?;
        self.hold_region(ctx, region)?;
        self.core.post(ctx, &mut wr.wr)
    }

    /// Posts the end of a region's registration under its key, and the registration under a fresh one. Any context.
    ///
    /// [`QpEvents::sent`] tells the end of both; then [`take_region`](Self::take_region) frees the slot.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain); `EIO` where the queue pair ought to be closed.
    pub fn post_renew(&self, slot: usize, region: &Arc<Mr>) -> Result {
        let ctx = self.core.block().send.get(slot).ok_or(EINVAL)?;
        let mut end = bindings::ib_send_wr::default();
        end.__bindgen_anon_1.wr_cqe = self.core.block().quiet.get();
        end.opcode = bindings::ib_wr_opcode_IB_WR_LOCAL_INV;
        end.ex.invalidate_rkey = region.rkey();
        self.hold_region(ctx, region)?;
        region.fresh_key();
        let posted = register(ctx, region).and_then(|mut begin| {
            end.next = &mut begin.wr;
            self.core.post(ctx, &mut end)
        });
        // The region has a key that is not that of the device.
        posted.map_err(|_| EIO)
    }

    /// Posts the end of a region's registration: its key is good for nothing afterwards. Any context.
    ///
    /// [`QpEvents::sent`] tells the end; then [`take_region`](Self::take_region) frees the slot.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain).
    pub fn post_invalidate(&self, slot: usize, region: &Arc<Mr>) -> Result {
        let ctx = self.core.block().send.get(slot).ok_or(EINVAL)?;
        let mut wr = bindings::ib_send_wr::default();
        wr.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
        wr.opcode = bindings::ib_wr_opcode_IB_WR_LOCAL_INV;
        wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED;
        wr.ex.invalidate_rkey = region.rkey();
        self.hold_region(ctx, region)?;
        self.core.post(ctx, &mut wr)
    }

    /// Takes a slot for a region.
    fn hold_region(&self, ctx: &SendCtx<H>, region: &Arc<Mr>) -> Result {
        if !ptr::eq(&**region.pd(), &*self.core.pd) {
            return Err(EINVAL);
        }
        ctx.take()?;
        let hold = Hold {
            region: Some(region.clone()),
            ..Default::default()
        };
        // SAFETY: This call took the slot, so that nobody else touches what it holds until it is posted.
        unsafe { ctx.hold.get().write(hold) };
        Ok(())
    }

    /// Takes back the region of a slot whose work has ended, which frees the slot.
    ///
    /// The region comes back to be dropped where that may sleep; nothing comes from a slot that is still posted.
    pub fn take_region(&self, slot: usize) -> Option<Arc<Mr>> {
        let ctx = self.core.block().send.get(slot)?;
        ctx.state.cmpxchg(SLOT_ENDED, SLOT_TAKEN, Full).ok()?;
        // SAFETY: The exchange made this call the only user of the slot.
        let hold = unsafe { ptr::replace(ctx.hold.get(), Hold::default()) };
        ctx.state.store(SLOT_FREE, Release);
        hold.region
    }
}

/// The registration of a region under its present key, for a slot.
fn register<H: QpEvents>(ctx: &SendCtx<H>, region: &Mr) -> Result<bindings::ib_reg_wr> {
    let mut wr = bindings::ib_reg_wr::default();
    wr.wr.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
    wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
    wr.wr.send_flags = bindings::ib_send_flags_IB_SEND_SIGNALED;
    wr.mr = region.raw();
    wr.key = region.rkey();
    wr.access = i32::try_from(
        bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
            | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
    )?;
    Ok(wr)
}

impl<H: QpEvents> Core<H> {
    /// Writes a WRITE into a work request, whose scatter list is `list`.
    fn fill(
        &self,
        write: &Write<'_>,
        wr: &mut bindings::ib_rdma_wr,
        list: &mut [bindings::ib_sge; MAX_SGE],
    ) -> Result {
        let lkey = self.pd.local_key();
        let max = self.block().max_sge;
        let mut used = 0usize;
        write
            .from
            .for_parts(write.offset, write.len, |addr, length| {
                if used >= max {
                    return Err(EINVAL);
                }
                let sge = list.get_mut(used).ok_or(EINVAL)?;
                *sge = bindings::ib_sge { addr, length, lkey };
                used = used.checked_add(1).ok_or(EINVAL)?;
                Ok(())
            })?;
        wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
        wr.wr.sg_list = list.as_mut_ptr();
        wr.wr.num_sge = i32::try_from(used)?;
        wr.remote_addr = write.remote;
        wr.rkey = write.rkey;
        Ok(())
    }

    /// Posts the work requests from `first` on, the last of which belongs to the slot `ctx`, which is taken.
    fn post(&self, ctx: &SendCtx<H>, first: *mut bindings::ib_send_wr) -> Result {
        ctx.state.store(SLOT_POSTED, Release);
        let mut bad: *const bindings::ib_send_wr = ptr::null();
        // SAFETY: The queue pair is valid by the type invariant and in a state that sends, as only `Qp<_, Rts>` calls
        // this. The list is valid for the call; what it points at is held by the slot.
        let ret = unsafe { bindings::ib_post_send(self.qp.as_ptr(), first, &mut bad) };
        if ret != 0 && ptr::eq(bad, first) {
            // Nothing was posted, so that no completion comes.
            // SAFETY: No completion can touch what the slot holds.
            let hold = unsafe { ptr::replace(ctx.hold.get(), Hold::default()) };
            // A region does not go by this, which would sleep: the caller of `hold_region` has a reference.
            drop(hold);
            ctx.state.store(SLOT_FREE, Release);
        }
        to_result(ret)
    }
}

/// What a posted slot keeps alive.
#[derive(Default)]
struct Hold {
    /// The rings of a chain's WRITEs; let go by the completion, which any context may do.
    rings: [Option<Arc<Mapped>>; MAX_WRITES],
    /// The region of a registration; let go where that may sleep.
    region: Option<Arc<Mr>>,
}

/// Nothing is posted.
const SLOT_FREE: i32 = 0;
/// Belongs to whoever made this state.
const SLOT_TAKEN: i32 = 1;
/// Posted; the completion is the next to touch it.
const SLOT_POSTED: i32 = 2;
/// Completed, and a region waits to be taken.
const SLOT_ENDED: i32 = 3;

/// A slot of the send queue.
///
/// # Invariants
///
/// - `owner` points at the block in which this slot lies, once a queue pair exists.
/// - `hold` belongs to whoever moved `state` to `SLOT_TAKEN`, or to the completion while it is `SLOT_POSTED`.
#[repr(C)]
pub(super) struct SendCtx<H: QpEvents> {
    /// The completion entry; first, so that its address is that of the slot.
    cqe: UnsafeCell<bindings::ib_cqe>,
    /// Back to the block.
    pub(super) owner: *const Block<H>,
    /// Number of the slot.
    index: usize,
    /// One of the `SLOT_` constants.
    state: Atomic<i32>,
    /// What is kept alive.
    hold: UnsafeCell<Hold>,
}

impl<H: QpEvents> SendCtx<H> {
    /// A free slot with this number.
    pub(super) fn new(index: usize) -> Self {
        Self {
            cqe: UnsafeCell::new(bindings::ib_cqe {
                done: Some(Self::done),
            }),
            owner: ptr::null(),
            index,
            state: Atomic::new(SLOT_FREE),
            hold: UnsafeCell::new(Hold::default()),
        }
    }

    /// Takes a free slot.
    fn take(&self) -> Result {
        match self.state.cmpxchg(SLOT_FREE, SLOT_TAKEN, Full) {
            Ok(_) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// A slot's last work request has completed.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with a valid completion whose entry is the first field of a `SendCtx<H>` in a living
    /// block.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The completion is valid for the call; our completions name an entry.
        let cqe = unsafe { (*wc).__bindgen_anon_1.wr_cqe };
        // SAFETY: The entry is the first field of a slot, and the block lives until its completion queue is gone.
        let ctx = unsafe { &*cqe.cast::<Self>() };
        // SAFETY: By the type invariant.
        let block = unsafe { &*ctx.owner };
        // SAFETY: The completion is valid for the call.
        let ok = unsafe { (*wc).status } == bindings::ib_wc_status_IB_WC_SUCCESS;
        // SAFETY: The slot is posted, so that what it holds belongs to this completion.
        let hold = unsafe { &mut *ctx.hold.get() };
        let next = if hold.region.is_some() {
            SLOT_ENDED
        } else {
            *hold = Hold::default();
            SLOT_FREE
        };
        // ORDERING: Pairs with the exchanges in `take` and `take_region`.
        ctx.state.store(next, Release);
        if !ok {
            block.events.broken();
        }
        block.events.sent(ctx.index, ok);
    }
}
