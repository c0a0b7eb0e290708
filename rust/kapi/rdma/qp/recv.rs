// SPDX-License-Identifier: GPL-2.0

//! The receive queue: buffers for messages, posted again after each.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    cell::UnsafeCell,
    ptr, //
};

use kernel::{
    error::to_result,
    num::casts::u32_as_usize,
    prelude::*,
    sync::{
        atomic::Acquire,
        rcu, //
    },
};
use smc_bindings as bindings;

use super::{
    buffer::MsgBuf,
    Block,
    QpEvents,
    TAIL_LEN, //
};

/// A message that has arrived.
pub struct Message<'a> {
    /// Its beginning, up to the length of a receive buffer.
    head: &'a [u8],
    /// Its whole length.
    len: usize,
    /// Where the rest of it is, unless another long message has followed.
    tail: Option<&'a MsgBuf>,
}

impl Message<'_> {
    /// The beginning of the message, up to the length of a receive buffer.
    pub fn head(&self) -> &[u8] {
        self.head
    }

    /// Its whole length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the message out, as much as `out` takes; returns how much that is.
    ///
    /// The end of a message that is longer than a receive buffer is that of the last one of this kind: a peer that
    /// sends two at a time spoils the first.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let len = self.len.min(out.len());
        let near = len.min(self.head.len());
        let (Some((first, rest)), Some(head)) = (
            out.get_mut(..len)
                .and_then(|o| o.split_at_mut_checked(near)),
            self.head.get(..near),
        ) else {
            return 0;
        };
        first.copy_from_slice(head);
        match self.tail {
            Some(tail) if !rest.is_empty() && tail.copy_out(rest).is_ok() => len,
            _ => near,
        }
    }
}

/// A receive buffer.
///
/// # Invariants
///
/// As [`SendCtx`] for `owner`.
#[repr(C)]
pub(super) struct RecvCtx<H: QpEvents> {
    /// The completion entry; first, so that its address is that of the buffer's context.
    cqe: UnsafeCell<bindings::ib_cqe>,
    /// Back to the block.
    pub(super) owner: *const Block<H>,
    /// Where in the receive memory the buffer begins.
    offset: usize,
}

impl<H: QpEvents> RecvCtx<H> {
    /// A context for the buffer at `offset`.
    pub(super) fn new(offset: usize) -> Self {
        Self {
            cqe: UnsafeCell::new(bindings::ib_cqe {
                done: Some(Self::done),
            }),
            owner: ptr::null(),
            offset,
        }
    }

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
        // SAFETY: The completion is valid for the call.
        if unsafe { (*wc).opcode } == bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM {
            // SAFETY: As above; a completion of this kind has immediate data.
            let immediate = u32::from_be(unsafe { (*wc).ex.imm_data });
            block.events.written(immediate, len);
            ctx.post_again(block);
            return;
        }
        let len = u32_as_usize(len);
        let head = len.min(block.recv_len);
        if block.recv_buf.take(ctx.offset, head).is_ok() {
            let from = block.recv_buf.memory.wrapping_add(ctx.offset);
            // SAFETY: The buffer has `recv_len` bytes at `offset` and is not posted: the device does not touch it
            // before it is posted again below, and nobody else knows it.
            let bytes = unsafe { core::slice::from_raw_parts(from.cast_const(), head) };
            let tail = block.tail.then_some(&block.tail_buf);
            block.events.received(&Message {
                head: bytes,
                len,
                tail,
            });
        }
        ctx.post_again(block);
    }

    /// Gives the buffer back to the device.
    fn post_again(&self, block: &Block<H>) {
        // `Core::drop` waits for this reader between setting `closing` and destroying the queue pair.
        let guard = rcu::read_lock();
        let posted = block.closing.load(Acquire) || block.post_recv(self).is_ok();
        drop(guard);
        if !posted {
            block.events.broken();
        }
    }
}

impl<H: QpEvents> Block<H> {
    /// Posts a receive buffer.
    pub(super) fn post_recv(&self, ctx: &RecvCtx<H>) -> Result {
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
