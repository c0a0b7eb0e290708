// SPDX-License-Identifier: GPL-2.0

//! Reliable-connected queue pairs: made, brought through their states, which are types, and ended.
//!
//! Posting is in `post`, receiving in `recv`; both complete in softirq.
//!
//! Each queue pair has one completion queue of its own, polled in softirq and placed on the device's interrupt vectors
//! in turn. A queue from the device's shared pool would outlive the queue pair, and with it a completion that is still
//! waiting there when draining takes too long; its own goes away together with whatever waits in it. That makes the
//! end of a queue pair bounded and leaves nothing behind.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

mod buffer;
mod cq;
mod post;
mod recv;

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    alloc::flags::__GFP_NOWARN,
    error::to_result,
    ffi::c_void,
    num::casts::u32_as_usize,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Release, //
        },
        Arc, //
    },
};
use smc_bindings as bindings;

pub use self::{
    post::Write,
    recv::Message, //
};
use super::{
    from_err_ptr,
    DeviceUse,
    Mapped,
    Mr,
    Pd, //
};

use self::{
    buffer::MsgBuf,
    cq::CompletionQueue,
    post::SendCtx,
    recv::RecvCtx, //
};
use crate::kapi::event::Event;

/// Most RDMA WRITEs of one chain.
pub const MAX_WRITES: usize = 4;

/// Most scatter entries of one WRITE that are asked of a device.
pub(super) const MAX_SGE: usize = 8;

/// Bytes of a message that is sent.
const MSG_LEN: usize = 44;

/// Distance of two messages in the send buffer.
const MSG_STRIDE: usize = 64;

/// Bytes of the area into which the tails of long messages go, one over the other.
const TAIL_LEN: usize = 8192;

/// Name under which the RDMA core lists our objects.
const OWNER: &CStr = c"smc_rs";

/// What a queue pair tells its owner. All functions run in softirq and must not sleep.
pub trait QpEvents: Send + Sync + 'static {
    /// A message has arrived.
    fn received(&self, message: &Message<'_>);

    /// The peer has written `len` bytes where it was given a key, with this immediate data.
    fn written(&self, _immediate: u32, _len: u32) {}

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
    /// Slots for single work requests, counted after those for chains. Behind them comes the one for long messages.
    pub single_slots: usize,
    /// Bytes of a long message, at least 44.
    pub long_len: usize,
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
            // 4.096 µs × 2^16, and seven attempts: a dead path is noticed after some two seconds. Software devices take
            // a count of 7 as endless. Where the peer offers no receive buffer every device asks without end: a busy peer
            // is not lost for it, and the group's clock notices one that never offers any.
            timeout: 16,
            retry_cnt: 6,
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

    /// Waits until everything that was posted has come back, for at most `timeout_ms` for each of the two queues; says
    /// whether it has.
    pub fn wait(&mut self, timeout_ms: u32) -> bool {
        if self.started && !self.core.drained {
            let block = self.core.block();
            // Both are sent back at the same time, but not by the same hand: on a busy machine one may be long after
            // the other.
            self.core.drained =
                block.send_end.done.wait_ms(timeout_ms) && block.recv_end.done.wait_ms(timeout_ms);
        }
        self.core.drained
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
    /// The slot for long messages.
    long_slot: usize,
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
    /// Memory of the long message.
    long_buf: MsgBuf,
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
}

/// The C objects of a queue pair and the memory that belongs to them.
///
/// # Invariants
///
/// The two pointers are valid and owned by this value; `qp` is of domain `pd` and uses `cq` alone.
struct Core<H: QpEvents> {
    /// What completions refer to.
    block: NonNull<Block<H>>,
    /// The queue pair.
    qp: NonNull<bindings::ib_qp>,
    /// Its completion queue; nothing in the drop alone.
    cq: Option<CompletionQueue>,
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
            .and_then(|v| v.checked_add(1))
            .ok_or(EINVAL)?;
        if config.recv_len.min(config.long_len) < MSG_LEN
            || config.chain_slots == 0
            || config.recv_slots == 0
        {
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
        let max_sge = limits.pieces();
        let tail = limits.max_recv_sge >= 2;
        let recv_len = if tail {
            config.recv_len
        } else {
            config.recv_len.max(TAIL_LEN)
        };

        let cq = CompletionQueue::new(device, cqes)?;
        let block = Self::new_block(pd, config, slots, recv_len, tail, max_sge, events)?;
        let raw_block = block.0.as_ptr();
        let mut attr = bindings::ib_qp_init_attr {
            event_handler: Some(Block::<H>::qp_event),
            qp_context: raw_block.cast(),
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
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
        let block = block.release();
        // INVARIANT: Everything was made above and belongs to this value from here on.
        Ok(Self {
            block,
            qp,
            cq: Some(cq),
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
        let long_slot = slots.checked_sub(1).ok_or(EINVAL)?;
        let send_buf = MsgBuf::new(device, send_total, to_device)?;
        let long_buf = MsgBuf::new(device, config.long_len, to_device)?;
        let recv_buf = MsgBuf::new(device, recv_total, from_device)?;
        let tail_buf = MsgBuf::new(device, TAIL_LEN, from_device)?;
        let mut send = KVec::with_capacity(slots, GFP_KERNEL | __GFP_NOWARN)?;
        for index in 0..slots {
            send.push(SendCtx::new(index), GFP_KERNEL)?;
        }
        let mut recv = KVec::with_capacity(config.recv_slots, GFP_KERNEL | __GFP_NOWARN)?;
        for index in 0..config.recv_slots {
            let offset = index.checked_mul(recv_len).ok_or(EINVAL)?;
            recv.push(RecvCtx::new(offset), GFP_KERNEL)?;
        }
        let block = KBox::pin_init(
            pin_init!(Block {
                qp: Atomic::new(ptr::null_mut()),
                closing: Atomic::new(false),
                inline: false,
                max_sge,
                chain_slots: config.chain_slots,
                long_slot,
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
                long_buf,
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
            core::mem::forget(self.cq.take());
            core::mem::forget(self.pd.clone());
            return;
        }
        drop(self.cq.take());
        drop(BlockGuard(self.block));
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
