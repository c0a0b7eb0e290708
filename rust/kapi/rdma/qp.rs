// SPDX-License-Identifier: GPL-2.0

//! Reliable-connected queue pairs: their states as types, posting, and completions in softirq.
//!
//! Each queue pair has one completion queue of its own, polled in softirq and placed on the device's interrupt vectors
//! in turn. A queue from the device's shared pool would outlive the queue pair, and with it a completion that is still
//! waiting there when draining takes too long; its own goes away together with whatever waits in it. That makes the
//! end of a queue pair bounded and leaves nothing behind.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::to_result,
    ffi::c_void,
    num::casts::u32_as_usize,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Release, //
        },
        rcu,
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    from_err_ptr,
    DeviceUse,
    Mapped,
    Mr,
    Pd, //
};
use crate::kapi::event::Event;

/// Most RDMA WRITEs of one chain.
pub const MAX_WRITES: usize = 4;

/// Most scatter entries of one WRITE that are asked of a device.
const MAX_SGE: usize = 8;

/// Bytes of a message that is sent.
const MSG_LEN: usize = 44;

/// Distance of two messages in the send buffer.
const MSG_STRIDE: usize = 64;

/// Bytes of the area into which the tails of overlong messages go; nobody reads it.
const TAIL_LEN: usize = 8192;

/// Name under which the RDMA core lists our objects.
const OWNER: &CStr = c"smc_rs";

/// What a queue pair tells its owner. All functions run in softirq and must not sleep.
pub trait QpEvents: Send + Sync + 'static {
    /// A message has arrived. `head` is its beginning, up to the length of a receive buffer; `len` its whole length.
    fn received(&self, head: &[u8], len: usize);

    /// What was posted from `slot` has been sent and acknowledged (`ok`), or the queue pair has failed.
    fn sent(&self, slot: usize, ok: bool);

    /// The queue pair has failed. May be called more than once.
    fn broken(&self);
}

/// Size of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Slots for chains of up to [`MAX_WRITES`] WRITEs and a message; they are counted first.
    pub chain_slots: usize,
    /// Slots for single work requests, counted after those for chains.
    pub single_slots: usize,
    /// Receive buffers.
    pub recv_slots: usize,
    /// Bytes of a receive buffer, at least 44.
    pub recv_len: usize,
    /// Port of the device.
    pub port: u32,
}

/// What a queue pair has to know of the other end.
#[derive(Clone, Copy, Debug)]
pub struct RemoteEnd {
    /// Its queue pair number.
    pub qpn: u32,
    /// Its first packet sequence number.
    pub psn: u32,
    /// Its GID.
    pub gid: [u8; 16],
    /// Ethernet address of the next hop on the way to it.
    pub mac: [u8; 6],
    /// Path MTU code that both can do.
    pub mtu: u8,
    /// Index of our own GID.
    pub sgid_index: u16,
    /// Hop limit.
    pub hop_limit: u8,
}

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

/// State: knows its port, takes receive buffers.
pub struct Init(());

/// State: knows the other end, receives.
pub struct Rtr(());

/// State: receives and sends.
pub struct Rts(());

/// A queue pair in state `S` whose events go to `H`. Making, changing and dropping it may sleep.
pub struct Qp<H: QpEvents, S> {
    /// The C objects and their memory.
    core: Core<H>,
    /// The state.
    _state: PhantomData<fn() -> S>,
}

impl<H: QpEvents> Qp<H, Init> {
    /// Makes a queue pair, posts all its receive buffers and leaves it in state INIT.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the device cannot do what `config` asks; `ENOMEM`; what the device says.
    pub fn new(pd: &Arc<Pd>, config: QpConfig, events: H) -> Result<Self> {
        let core = Core::new(pd, config, events)?;
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_INIT,
            pkey_index: 0,
            port_num: config.port,
            qp_access_flags: i32::try_from(
                bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE
                    | bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
            )?,
            ..Default::default()
        };
        core.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | bindings::ib_qp_attr_mask_IB_QP_PORT
                | bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        )?;
        let block = core.block();
        for ctx in &block.recv {
            block.post_recv(ctx)?;
        }
        Ok(Self {
            core,
            _state: PhantomData,
        })
    }

    /// Ties the queue pair to the other end; from then on it receives.
    ///
    /// # Errors
    ///
    /// What the device says; the queue pair is destroyed then.
    pub fn into_rtr(self, end: &RemoteEnd) -> Result<Qp<H, Rtr>> {
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_RTR,
            path_mtu: u32::from(end.mtu),
            dest_qp_num: end.qpn,
            rq_psn: end.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 5,
            ..Default::default()
        };
        let device = self.core.pd.device().raw();
        let port = self.core.port;
        let mut gid = bindings::ib_gid { raw: end.gid };
        let index = u8::try_from(end.sgid_index).map_err(|_| ERANGE)?;
        // SAFETY: The device is valid, as it is in use.
        attr.ah_attr.type_ = unsafe { bindings::rdma_ah_find_type(device, port) };
        // SAFETY: The attribute and the GID are valid for the call.
        unsafe {
            bindings::rdma_ah_set_grh(&mut attr.ah_attr, &mut gid, 0, index, end.hop_limit, 0)
        };
        // SAFETY: The attribute is valid for the call.
        unsafe { bindings::rdma_ah_set_port_num(&mut attr.ah_attr, port) };
        // SAFETY: The attribute and the six bytes are valid for the call.
        unsafe { bindings::rdma_ah_set_dmac(&mut attr.ah_attr, end.mac.as_ptr()) };
        self.core.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_AV
                | bindings::ib_qp_attr_mask_IB_QP_PATH_MTU
                | bindings::ib_qp_attr_mask_IB_QP_DEST_QPN
                | bindings::ib_qp_attr_mask_IB_QP_RQ_PSN
                | bindings::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC
                | bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        )?;
        Ok(Qp {
            core: self.core,
            _state: PhantomData,
        })
    }
}

impl<H: QpEvents> Qp<H, Rtr> {
    /// Lets the queue pair send, too, its first packet having the number `psn`.
    ///
    /// # Errors
    ///
    /// What the device says; the queue pair is destroyed then.
    pub fn into_rts(self, psn: u32) -> Result<Qp<H, Rts>> {
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_RTS,
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: psn,
            max_rd_atomic: 1,
            ..Default::default()
        };
        self.core.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_TIMEOUT
                | bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT
                | bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY
                | bindings::ib_qp_attr_mask_IB_QP_SQ_PSN
                | bindings::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        )?;
        Ok(Qp {
            core: self.core,
            _state: PhantomData,
        })
    }
}

impl<H: QpEvents, S> Qp<H, S> {
    /// The queue pair number.
    pub fn qpn(&self) -> u32 {
        // SAFETY: The queue pair is valid, as `core` owns it; its number does not change.
        unsafe { (*self.core.qp.as_ptr()).qp_num }
    }

    /// Most pieces that a range of a ring may have to be sent by one WRITE.
    pub fn max_pieces(&self) -> usize {
        self.core.block().max_sge
    }

    /// Puts the queue pair into the error state: nothing is sent or received any more, and all that was posted comes
    /// back. Does not wait for that.
    pub fn into_closing(self) -> Closing<H> {
        let mut closing = Closing {
            core: self.core,
            started: false,
        };
        closing.start();
        closing
    }
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
            let mut used = 0usize;
            let max = block.max_sge;
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
            wr.wr.__bindgen_anon_1.wr_cqe = block.quiet.get();
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
            wr.wr.sg_list = list.as_mut_ptr();
            wr.wr.num_sge = i32::try_from(used)?;
            wr.remote_addr = write.remote;
            wr.rkey = write.rkey;
        }
        ctx.take()?;
        let mut hold = Hold::default();
        for (write, place) in writes.iter().zip(&mut hold.rings) {
            *place = Some(write.from.clone());
        }
        // SAFETY: This call took the slot, so that nobody else touches what it holds until it is posted.
        unsafe { ctx.hold.get().write(hold) };

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

    /// Posts the registration of a region under its present key. Any context.
    ///
    /// [`QpEvents::sent`] tells the end; then [`take_region`](Self::take_region) frees the slot.
    ///
    /// # Errors
    ///
    /// As [`post_chain`](Self::post_chain).
    pub fn post_register(&self, slot: usize, region: &Arc<Mr>) -> Result {
        let ctx = self.core.block().send.get(slot).ok_or(EINVAL)?;
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
        self.hold_region(ctx, region)?;
        self.core.post(ctx, &mut wr.wr)
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

/// A queue pair on its way out.
#[must_use]
pub struct Closing<H: QpEvents> {
    /// The C objects and their memory.
    core: Core<H>,
    /// Whether both drain markers have been posted.
    started: bool,
}

impl<H: QpEvents> Closing<H> {
    /// Enters the error state and posts the markers behind everything that was posted.
    fn start(&mut self) {
        let block = self.core.block();
        let mut attr = bindings::ib_qp_attr {
            qp_state: bindings::ib_qp_state_IB_QPS_ERR,
            ..Default::default()
        };
        if self
            .core
            .modify(&mut attr, bindings::ib_qp_attr_mask_IB_QP_STATE)
            .is_err()
        {
            return;
        }
        let mut recv = bindings::ib_recv_wr::default();
        recv.__bindgen_anon_1.wr_cqe = block.recv_end.cqe.get();
        let mut bad: *const bindings::ib_recv_wr = ptr::null();
        // SAFETY: The queue pair is valid; there is room for one more work request than for all buffers; the completion
        // entry lives in `block` until the queue pair is destroyed.
        let ret = unsafe { bindings::ib_post_recv(self.core.qp.as_ptr(), &recv, &mut bad) };
        if ret != 0 {
            return;
        }
        let mut send = bindings::ib_rdma_wr::default();
        send.wr.__bindgen_anon_1.wr_cqe = block.send_end.cqe.get();
        send.wr.opcode = bindings::ib_wr_opcode_IB_WR_RDMA_WRITE;
        let mut bad: *const bindings::ib_send_wr = ptr::null();
        // SAFETY: As above. In the error state the WRITE of no bytes is only sent back.
        let ret = unsafe { bindings::ib_post_send(self.core.qp.as_ptr(), &send.wr, &mut bad) };
        self.started = ret == 0;
    }

    /// Waits until everything that was posted has come back, for at most `timeout_ms`; says whether it has.
    pub fn wait(&mut self, timeout_ms: u32) -> bool {
        if self.started && !self.core.drained {
            let block = self.core.block();
            // The second wait is short: both queues are sent back at the same time.
            self.core.drained =
                block.send_end.done.wait_ms(timeout_ms) && block.recv_end.done.wait_ms(100);
        }
        self.core.drained
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
struct SendCtx<H: QpEvents> {
    /// The completion entry; first, so that its address is that of the slot.
    cqe: UnsafeCell<bindings::ib_cqe>,
    /// Back to the block.
    owner: *const Block<H>,
    /// Number of the slot.
    index: usize,
    /// One of the `SLOT_` constants.
    state: Atomic<i32>,
    /// What is kept alive.
    hold: UnsafeCell<Hold>,
}

impl<H: QpEvents> SendCtx<H> {
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

/// A receive buffer.
///
/// # Invariants
///
/// As [`SendCtx`] for `owner`.
#[repr(C)]
struct RecvCtx<H: QpEvents> {
    /// The completion entry; first, so that its address is that of the buffer's context.
    cqe: UnsafeCell<bindings::ib_cqe>,
    /// Back to the block.
    owner: *const Block<H>,
    /// Where in the receive memory the buffer begins.
    offset: usize,
}

impl<H: QpEvents> RecvCtx<H> {
    /// A message has arrived, or the queue pair has failed.
    ///
    /// # Safety
    ///
    /// As [`SendCtx::done`], for a `RecvCtx<H>`.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The completion is valid for the call; our completions name an entry.
        let cqe = unsafe { (*wc).__bindgen_anon_1.wr_cqe };
        // SAFETY: The entry is the first field of a context, and the block lives until its completion queue is gone.
        let ctx = unsafe { &*cqe.cast::<Self>() };
        // SAFETY: By the type invariant.
        let block = unsafe { &*ctx.owner };
        // SAFETY: The completion is valid for the call.
        let (status, len) = unsafe { ((*wc).status, (*wc).byte_len) };
        if status != bindings::ib_wc_status_IB_WC_SUCCESS {
            block.events.broken();
            return;
        }
        let len = u32_as_usize(len);
        let head = len.min(block.recv_len);
        if block.recv_buf.take(ctx.offset, head).is_ok() {
            let from = block.recv_buf.memory.wrapping_add(ctx.offset);
            // SAFETY: The buffer has `recv_len` bytes at `offset` and is not posted: the device does not touch it
            // before it is posted again below, and nobody else knows it.
            let bytes = unsafe { core::slice::from_raw_parts(from.cast_const(), head) };
            block.events.received(bytes, len);
        }
        // `Core::drop` waits for this reader between setting `closing` and destroying the queue pair.
        let guard = rcu::read_lock();
        let posted = block.closing.load(Acquire) || block.post_recv(ctx).is_ok();
        drop(guard);
        if !posted {
            block.events.broken();
        }
    }
}

/// A marker behind everything that was posted to a queue.
#[repr(C)]
#[pin_data]
struct EndCtx {
    /// The completion entry; first, so that its address is that of the marker.
    cqe: UnsafeCell<bindings::ib_cqe>,
    /// The marker has come back.
    #[pin]
    done: Event,
}

impl EndCtx {
    /// A marker that is not posted.
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            cqe: UnsafeCell::new(bindings::ib_cqe {
                done: Some(Self::done),
            }),
            done <- Event::new(),
        })
    }

    /// The marker has come back.
    ///
    /// # Safety
    ///
    /// As [`SendCtx::done`], for an `EndCtx`.
    unsafe extern "C" fn done(_cq: *mut bindings::ib_cq, wc: *mut bindings::ib_wc) {
        // SAFETY: The completion is valid for the call; our completions name an entry.
        let cqe = unsafe { (*wc).__bindgen_anon_1.wr_cqe };
        // SAFETY: The entry is the first field of a marker, and the block lives until its completion queue is gone.
        let ctx = unsafe { &*cqe.cast::<Self>() };
        ctx.done.set();
    }
}

/// Memory for messages, mapped for the device.
///
/// # Invariants
///
/// `memory` is `len` bytes that `_keep` owns, mapped at `addr` by this value.
struct MsgBuf {
    /// Owns the memory; not touched but through `memory`.
    _keep: KVec<u8>,
    /// The memory.
    memory: *mut u8,
    /// Its length.
    len: usize,
    /// Its address for the device.
    addr: u64,
    /// Who writes.
    dir: bindings::dma_data_direction,
    /// The device.
    device: DeviceUse,
}

impl MsgBuf {
    /// Allocates and maps `len` bytes.
    fn new(device: &DeviceUse, len: usize, dir: bindings::dma_data_direction) -> Result<Self> {
        let mut keep = KVec::from_elem(0u8, len, GFP_KERNEL)?;
        let memory = keep.as_mut_ptr();
        // SAFETY: The device is valid, as it is in use; the memory is `len` bytes from the slab or page allocator.
        let addr = unsafe { bindings::ib_dma_map_single(device.raw(), memory.cast(), len, dir) };
        // SAFETY: The device is valid; any address may be asked about.
        to_result(unsafe { bindings::ib_dma_mapping_error(device.raw(), addr) })
            .map_err(|_| ENOMEM)?;
        // INVARIANT: Mapped just now.
        Ok(Self {
            _keep: keep,
            memory,
            len,
            addr,
            dir,
            device: device.clone(),
        })
    }

    /// The device address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<u64> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        Ok(self
            .addr
            .wrapping_add(kernel::num::casts::usize_as_u64(offset)))
    }

    /// Copies a message to `offset` and gives it to the device.
    fn put(&self, offset: usize, msg: &[u8; MSG_LEN]) -> Result<u64> {
        let addr = self.at(offset, MSG_LEN)?;
        let to = self.memory.wrapping_add(offset);
        // SAFETY: The range lies in the memory, as `at` checked. It belongs to the caller's slot alone.
        unsafe { to.copy_from_nonoverlapping(msg.as_ptr(), MSG_LEN) };
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe {
            bindings::ib_dma_sync_single_for_device(self.device.raw(), addr, MSG_LEN, self.dir)
        };
        Ok(addr)
    }

    /// Takes `len` bytes at `offset` from the device.
    fn take(&self, offset: usize, len: usize) -> Result {
        let addr = self.at(offset, len)?;
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe { bindings::ib_dma_sync_single_for_cpu(self.device.raw(), addr, len, self.dir) };
        Ok(())
    }

    /// Gives `len` bytes at `offset` to the device.
    fn give(&self, offset: usize, len: usize) -> Result<u64> {
        let addr = self.at(offset, len)?;
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe { bindings::ib_dma_sync_single_for_device(self.device.raw(), addr, len, self.dir) };
        Ok(addr)
    }
}

impl Drop for MsgBuf {
    fn drop(&mut self) {
        // SAFETY: The device is valid, as it is in use; by the type invariant this value mapped the memory.
        unsafe { bindings::ib_dma_unmap_single(self.device.raw(), self.addr, self.len, self.dir) };
    }
}

/// Everything that completions refer to. It lives until the completion queue is gone.
#[pin_data]
struct Block<H: QpEvents> {
    /// The C queue pair, null until it exists.
    qp: Atomic<*mut bindings::ib_qp>,
    /// Set before the queue pair goes: nothing is posted from completions any more.
    closing: Atomic<bool>,
    /// Whether messages are sent inline.
    inline: bool,
    /// Scatter entries of a WRITE.
    max_sge: usize,
    /// How many slots take chains.
    chain_slots: usize,
    /// Bytes of a receive buffer.
    recv_len: usize,
    /// Whether receive buffers have a tail.
    tail: bool,
    /// Key for our own memory.
    lkey: u32,
    /// Completion entry of WRITEs, which complete only when they fail.
    quiet: UnsafeCell<bindings::ib_cqe>,
    /// Behind all sends.
    #[pin]
    send_end: EndCtx,
    /// Behind all receives.
    #[pin]
    recv_end: EndCtx,
    /// Slots of the send queue.
    send: KVec<SendCtx<H>>,
    /// Receive buffers.
    recv: KVec<RecvCtx<H>>,
    /// Memory of the send slots.
    send_buf: MsgBuf,
    /// Memory of the receive buffers.
    recv_buf: MsgBuf,
    /// Memory for tails.
    tail_buf: MsgBuf,
    /// Whom to tell.
    events: H,
}

impl<H: QpEvents> Block<H> {
    /// A WRITE has completed: it has failed, since it is not signaled.
    ///
    /// The SEND behind it fails, too, and tells the owner.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with a valid completion.
    unsafe extern "C" fn quiet_done(_cq: *mut bindings::ib_cq, _wc: *mut bindings::ib_wc) {}

    /// The device reports that the queue pair has failed.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with the context that was given when the queue pair was made: a living block.
    unsafe extern "C" fn qp_event(event: *mut bindings::ib_event, context: *mut c_void) {
        // SAFETY: The block lives until the queue pair is destroyed.
        let block = unsafe { &*context.cast::<Self>() };
        // SAFETY: The event is valid for the call.
        let kind = unsafe { (*event).event };
        if matches!(
            kind,
            bindings::ib_event_type_IB_EVENT_QP_FATAL
                | bindings::ib_event_type_IB_EVENT_QP_REQ_ERR
                | bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR
        ) {
            block.events.broken();
        }
    }

    /// Posts a receive buffer.
    fn post_recv(&self, ctx: &RecvCtx<H>) -> Result {
        let qp = self.qp.load(Acquire);
        if qp.is_null() {
            return Err(ENOTCONN);
        }
        let mut sges = [
            bindings::ib_sge {
                addr: self.recv_buf.give(ctx.offset, self.recv_len)?,
                length: u32::try_from(self.recv_len)?,
                lkey: self.lkey,
            },
            bindings::ib_sge {
                addr: self.tail_buf.addr,
                length: u32::try_from(TAIL_LEN)?,
                lkey: self.lkey,
            },
        ];
        let mut wr = bindings::ib_recv_wr::default();
        wr.__bindgen_anon_1.wr_cqe = ctx.cqe.get();
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = if self.tail { 2 } else { 1 };
        let mut bad: *const bindings::ib_recv_wr = ptr::null();
        // SAFETY: The queue pair is valid: this runs before it is handed out, or in one of its completions, which end
        // before it is destroyed. The buffer is mapped and not posted; its context lives until the queue is gone.
        to_result(unsafe { bindings::ib_post_recv(qp, &wr, &mut bad) })
    }
}

/// The C objects of a queue pair and the memory that belongs to them.
///
/// # Invariants
///
/// The three pointers are valid and owned by this value; `qp` is of domain `pd` and uses `cq` alone.
struct Core<H: QpEvents> {
    /// What completions refer to.
    block: NonNull<Block<H>>,
    /// The queue pair.
    qp: NonNull<bindings::ib_qp>,
    /// Its completion queue.
    cq: NonNull<bindings::ib_cq>,
    /// Its port.
    port: u32,
    /// Whether all that was posted has come back, and nothing was posted since.
    drained: bool,
    /// Its domain, let go last.
    pd: Arc<Pd>,
}

// SAFETY: The C objects may be used from any task, and the events are `Send`.
unsafe impl<H: QpEvents> Send for Core<H> {}

// SAFETY: Posting does its own locking in the driver; a slot is used by one poster at a time, as its state sees to;
// changes of state take the value. The events are `Sync`.
unsafe impl<H: QpEvents> Sync for Core<H> {}

impl<H: QpEvents> Core<H> {
    /// Makes completion queue and queue pair.
    fn new(pd: &Arc<Pd>, config: QpConfig, events: H) -> Result<Self> {
        let device = pd.device();
        let limits = device.limits();
        let slots = config
            .chain_slots
            .checked_add(config.single_slots)
            .ok_or(EINVAL)?;
        if config.recv_len < MSG_LEN || config.chain_slots == 0 || config.recv_slots == 0 {
            return Err(EINVAL);
        }
        // One chain has at most `MAX_WRITES` WRITEs and a SEND; one more is for the marker at the end.
        let send_wrs = config
            .chain_slots
            .checked_mul(MAX_WRITES)
            .and_then(|v| v.checked_add(slots))
            .and_then(|v| v.checked_add(1))
            .ok_or(EINVAL)?;
        let recv_wrs = config.recv_slots.checked_add(1).ok_or(EINVAL)?;
        // A queue pair that fails completes every work request, signaled or not.
        let cqes = send_wrs.checked_add(recv_wrs).ok_or(EINVAL)?;
        if cqes > u32_as_usize(limits.max_cqe) {
            return Err(EINVAL);
        }
        let max_sge = MAX_SGE.min(u32_as_usize(limits.max_send_sge));
        let tail = limits.max_recv_sge >= 2;
        let recv_len = if tail {
            config.recv_len
        } else {
            config.recv_len.max(TAIL_LEN)
        };

        // SAFETY: The device is valid, as it is in use; the name is a valid C string.
        let cq = unsafe {
            bindings::__ib_alloc_cq_any(
                device.raw(),
                ptr::null_mut(),
                i32::try_from(cqes)?,
                bindings::ib_poll_context_IB_POLL_SOFTIRQ,
                OWNER.as_char_ptr(),
            )
        };
        let cq = CqGuard(from_err_ptr(cq)?);

        let block = Self::new_block(pd, config, slots, recv_len, tail, max_sge, events)?;
        let raw_block = block.0.as_ptr();
        let mut attr = bindings::ib_qp_init_attr {
            event_handler: Some(Block::<H>::qp_event),
            qp_context: raw_block.cast(),
            send_cq: cq.0.as_ptr(),
            recv_cq: cq.0.as_ptr(),
            sq_sig_type: bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: bindings::ib_qp_type_IB_QPT_RC,
            ..Default::default()
        };
        let cap = bindings::ib_qp_cap {
            max_send_wr: u32::try_from(send_wrs)?,
            max_recv_wr: u32::try_from(recv_wrs)?,
            max_send_sge: u32::try_from(max_sge)?,
            max_recv_sge: if tail { 2 } else { 1 },
            max_inline_data: 48,
            ..Default::default()
        };
        attr.cap = cap;
        // SAFETY: The domain and both queues are valid; the block outlives the queue pair.
        let mut qp =
            unsafe { bindings::ib_create_qp_kernel(pd.raw(), &mut attr, OWNER.as_char_ptr()) };
        if from_err_ptr(qp).is_err() {
            // A device without inline data may refuse the wish instead of lowering it.
            attr.cap = cap;
            attr.cap.max_inline_data = 0;
            // SAFETY: As above.
            qp = unsafe { bindings::ib_create_qp_kernel(pd.raw(), &mut attr, OWNER.as_char_ptr()) };
        }
        let qp = from_err_ptr(qp)?;
        // SAFETY: No completion can run yet, as nothing was posted: this is the only user of the block.
        unsafe { (*raw_block).inline = attr.cap.max_inline_data >= 44 };
        // SAFETY: As above.
        unsafe { (*raw_block).qp.store(qp.as_ptr(), Release) };
        let (block, cq) = (block.release(), cq.release());
        // INVARIANT: Everything was made above and belongs to this value from here on.
        Ok(Self {
            block,
            qp,
            cq,
            port: config.port,
            drained: false,
            pd: pd.clone(),
        })
    }

    /// Makes the block.
    fn new_block(
        pd: &Arc<Pd>,
        config: QpConfig,
        slots: usize,
        recv_len: usize,
        tail: bool,
        max_sge: usize,
        events: H,
    ) -> Result<BlockGuard<H>> {
        let device = pd.device();
        let to_device = bindings::dma_data_direction_DMA_TO_DEVICE;
        let from_device = bindings::dma_data_direction_DMA_FROM_DEVICE;
        let recv_total = recv_len.checked_mul(config.recv_slots).ok_or(EINVAL)?;
        let send_total = slots.checked_mul(MSG_STRIDE).ok_or(EINVAL)?;
        let send_buf = MsgBuf::new(device, send_total, to_device)?;
        let recv_buf = MsgBuf::new(device, recv_total, from_device)?;
        let tail_buf = MsgBuf::new(device, TAIL_LEN, from_device)?;
        let mut send = KVec::with_capacity(slots, GFP_KERNEL)?;
        for index in 0..slots {
            let cqe = bindings::ib_cqe {
                done: Some(SendCtx::<H>::done),
            };
            let ctx = SendCtx {
                cqe: UnsafeCell::new(cqe),
                owner: ptr::null(),
                index,
                state: Atomic::new(SLOT_FREE),
                hold: UnsafeCell::new(Hold::default()),
            };
            send.push(ctx, GFP_KERNEL)?;
        }
        let mut recv = KVec::with_capacity(config.recv_slots, GFP_KERNEL)?;
        for index in 0..config.recv_slots {
            let cqe = bindings::ib_cqe {
                done: Some(RecvCtx::<H>::done),
            };
            let ctx = RecvCtx {
                cqe: UnsafeCell::new(cqe),
                owner: ptr::null(),
                offset: index.checked_mul(recv_len).ok_or(EINVAL)?,
            };
            recv.push(ctx, GFP_KERNEL)?;
        }
        let block = KBox::pin_init(
            pin_init!(Block {
                qp: Atomic::new(ptr::null_mut()),
                closing: Atomic::new(false),
                inline: false,
                max_sge,
                chain_slots: config.chain_slots,
                recv_len,
                tail,
                lkey: pd.local_key(),
                quiet: UnsafeCell::new(bindings::ib_cqe {
                    done: Some(Block::<H>::quiet_done),
                }),
                send_end <- EndCtx::new(),
                recv_end <- EndCtx::new(),
                send,
                recv,
                send_buf,
                recv_buf,
                tail_buf,
                events,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The block stays where it is: from here on it is only used through this pointer, until it is dropped.
        let raw = KBox::into_raw(unsafe { Pin::into_inner_unchecked(block) });
        // SAFETY: A box is never null.
        let guard = BlockGuard(unsafe { NonNull::new_unchecked(raw) });
        // SAFETY: Nobody else uses the block yet.
        let send = unsafe { &mut (*raw).send };
        for ctx in send.iter_mut() {
            // INVARIANT: The slot lies in the block.
            ctx.owner = raw;
        }
        // SAFETY: As above; `send` is not used any more.
        let recv = unsafe { &mut (*raw).recv };
        for ctx in recv.iter_mut() {
            // INVARIANT: The context lies in the block.
            ctx.owner = raw;
        }
        Ok(guard)
    }

    /// What completions refer to.
    fn block(&self) -> &Block<H> {
        // SAFETY: By the type invariant the block is valid, and it is only read while this value lives.
        unsafe { self.block.as_ref() }
    }

    /// Changes the queue pair's attributes. May sleep.
    fn modify(&self, attr: &mut bindings::ib_qp_attr, mask: bindings::ib_qp_attr_mask) -> Result {
        // SAFETY: The queue pair is valid by the type invariant, the attributes for the call.
        to_result(unsafe { bindings::ib_modify_qp(self.qp.as_ptr(), attr, i32::try_from(mask)?) })
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

impl<H: QpEvents> Drop for Core<H> {
    fn drop(&mut self) {
        self.block().closing.store(true, Release);
        if !self.drained {
            // A completion that did not see `closing` may be posting its buffer again, as an RCU reader.
            // SAFETY: The function has no requirements but that the caller may sleep, as the type's users do.
            unsafe { bindings::synchronize_rcu() };
        }
        // SAFETY: By the type invariant this value owns the queue pair, and nobody posts any more: posters borrow it.
        let ret = unsafe { bindings::ib_destroy_qp_user(self.qp.as_ptr(), ptr::null_mut()) };
        if ret != 0 {
            pr_err!("a queue pair cannot be destroyed ({ret}): its memory and this module stay\n");
            // SAFETY: The module is running this code, so that it may be pinned.
            unsafe { bindings::pin_this_module() };
            core::mem::forget(self.pd.clone());
            return;
        }
        // SAFETY: By the type invariant this value owns the completion queue, which no queue pair uses any more. When
        // the function returns no completion runs, and none will.
        unsafe { bindings::ib_free_cq(self.cq.as_ptr()) };
        drop(BlockGuard(self.block));
    }
}

/// Owns a completion queue until a [`Core`] does.
struct CqGuard(NonNull<bindings::ib_cq>);

impl CqGuard {
    /// Hands the queue over.
    fn release(self) -> NonNull<bindings::ib_cq> {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl Drop for CqGuard {
    fn drop(&mut self) {
        // SAFETY: The guard owns the queue, and no queue pair uses it.
        unsafe { bindings::ib_free_cq(self.0.as_ptr()) };
    }
}

/// Owns a block.
struct BlockGuard<H: QpEvents>(NonNull<Block<H>>);

impl<H: QpEvents> BlockGuard<H> {
    /// Hands the block over.
    fn release(self) -> NonNull<Block<H>> {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

impl<H: QpEvents> Drop for BlockGuard<H> {
    fn drop(&mut self) {
        // SAFETY: The block came from `KBox::into_raw()` and the guard owns it.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}
