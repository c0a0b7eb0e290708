// SPDX-License-Identifier: GPL-2.0

//! Completion queues, which are served at once, whoever tells of a completion.
//!
//! The RDMA core polls a queue in softirq. That is soon when the device tells in an interrupt: the softirq runs when
//! the interrupt ends. A device in software tells in one of its tasks, often with interrupts off, where the softirq
//! falls to `ksoftirqd`: a task that has to be woken and waits for its turn. There an interrupt of one's own does it,
//! which comes as soon as interrupts are on again.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/linux/irq_work.h`](srctree/include/linux/irq_work.h)

use core::{
    cell::UnsafeCell,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    ffi::c_void,
    prelude::*, //
};
use smc_bindings as bindings;

use super::{
    from_err_ptr,
    DeviceUse,
    OWNER, //
};

/// A completion queue.
///
/// # Invariants
///
/// The queue is valid and owned by this value; its context is `prompt`, which came from a box and lives as long.
pub(super) struct CompletionQueue {
    /// The queue.
    cq: NonNull<bindings::ib_cq>,
    /// What its handler needs.
    prompt: NonNull<Prompt>,
}

impl CompletionQueue {
    /// Makes a queue of so many entries.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; what the device says.
    pub(super) fn new(device: &DeviceUse, entries: usize) -> Result<Self> {
        let entries = i32::try_from(entries)?;
        let prompt = KBox::new(
            Prompt {
                work: UnsafeCell::new(bindings::irq_work::default()),
                cq: ptr::null_mut(),
                serve: None,
            },
            GFP_KERNEL,
        )?;
        // SAFETY: A box is never null.
        let prompt = unsafe { NonNull::new_unchecked(KBox::into_raw(prompt)) };
        // SAFETY: The device is valid, as it is in use; the name is a valid C string; the context is only handed on.
        let cq = unsafe {
            bindings::__ib_alloc_cq_any(
                device.raw(),
                prompt.as_ptr().cast(),
                entries,
                bindings::ib_poll_context_IB_POLL_SOFTIRQ,
                OWNER.as_char_ptr(),
            )
        };
        let cq = match from_err_ptr(cq) {
            Ok(cq) => cq,
            Err(e) => {
                // SAFETY: The pointer came from the box above, and nobody else has it.
                drop(unsafe { KBox::from_raw(prompt.as_ptr()) });
                return Err(e);
            }
        };
        // SAFETY: The queue is valid, and no queue pair uses it yet, so that nobody looks at its handler.
        let handler = unsafe { &mut (*cq.as_ptr()).comp_handler };
        // SAFETY: Nobody else has the memory yet.
        let place = unsafe { &mut *prompt.as_ptr() };
        place.cq = cq.as_ptr();
        place.serve = handler.replace(Prompt::told);
        // SAFETY: The work is valid, and does not move until it is freed.
        unsafe { bindings::init_irq_work(place.work.get(), Some(Prompt::interrupt)) };
        // INVARIANT: Both were made above.
        Ok(Self { cq, prompt })
    }

    /// The queue, for a queue pair that goes before this value.
    pub(super) fn as_ptr(&self) -> *mut bindings::ib_cq {
        self.cq.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the context is valid. No queue pair uses the queue any more, so that no
        // interrupt is asked for again.
        unsafe { bindings::irq_work_sync((*self.prompt.as_ptr()).work.get()) };
        // SAFETY: By the type invariant this value owns the queue. When the function returns no completion runs, and
        // none will.
        unsafe { bindings::ib_free_cq(self.cq.as_ptr()) };
        // SAFETY: By the type invariant the pointer came from a box; its last user, the queue, has gone.
        drop(unsafe { KBox::from_raw(self.prompt.as_ptr()) });
    }
}

/// What the handler of a queue needs.
struct Prompt {
    /// The interrupt.
    work: UnsafeCell<bindings::irq_work>,
    /// The queue.
    cq: *mut bindings::ib_cq,
    /// What the RDMA core does for a completion.
    serve: bindings::ib_comp_handler,
}

impl Prompt {
    /// Has the RDMA core poll the queue.
    fn serve(&self) {
        if let Some(serve) = self.serve {
            // SAFETY: The handler and the queue belong together, and the queue is valid: its owner waits for this. The
            // context is not looked at.
            unsafe { serve(self.cq, ptr::null_mut()) };
        }
    }

    /// The device tells of a completion. Any context.
    ///
    /// # Safety
    ///
    /// `context` is that of a living [`CompletionQueue`].
    unsafe extern "C" fn told(_cq: *mut bindings::ib_cq, context: *mut c_void) {
        // SAFETY: By the function's requirement the context is this value, which lives as long as the queue.
        let this = unsafe { &*context.cast::<Self>() };
        // SAFETY: The function has no requirements.
        if unsafe { bindings::softirq_comes_at_once() } {
            this.serve();
        } else {
            // SAFETY: The work was initialized before the queue was used. One that is on its way already comes after
            // this, and serves this completion too.
            unsafe { bindings::irq_work_queue(this.work.get()) };
        }
    }

    /// The interrupt.
    ///
    /// # Safety
    ///
    /// `work` is that of a living [`CompletionQueue`].
    unsafe extern "C" fn interrupt(work: *mut bindings::irq_work) {
        // SAFETY: By the function's requirement the work is the field of that name of a value, which waits for it before
        // it goes.
        let this = unsafe {
            &*kernel::container_of!(work.cast::<UnsafeCell<bindings::irq_work>>(), Self, work)
        };
        this.serve();
    }
}
