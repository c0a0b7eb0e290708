// SPDX-License-Identifier: GPL-2.0

//! Waiting on the wait queue of a socket, as long as a call may.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h)

use core::mem::MaybeUninit;

use kernel::{
    ffi::c_long,
    prelude::*, //
};
use smc_bindings as bindings;

/// How long a call may wait.
#[derive(Clone, Copy)]
pub struct Patience {
    /// What is left.
    pub(super) jiffies: c_long,
}

impl Patience {
    /// None at all.
    pub const NONE: Self = Self { jiffies: 0 };

    /// As long as `ms`.
    pub fn from_ms(ms: u32) -> Self {
        // SAFETY: A plain computation.
        let jiffies: c_long = unsafe { bindings::msecs_to_jiffies(ms) };
        Self { jiffies }
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.jiffies <= 0
    }

    /// Waits on `queue` until `cond` gives something; `cond` may sleep.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when the time is over, `ERESTARTSYS` or `EINTR` for a signal.
    ///
    /// # Safety
    ///
    /// `queue` must be valid for the time of the call.
    pub(super) unsafe fn wait_on<R>(
        &mut self,
        queue: *mut bindings::wait_queue_head,
        exclusive: bool,
        mut cond: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        let mut entry = MaybeUninit::<bindings::wait_queue_entry>::uninit();
        let entry = entry.as_mut_ptr();
        // SAFETY: The entry is memory on this stack, which does not move before it is out of the queue below.
        unsafe { bindings::init_wait_leaving(entry) };
        let outcome = loop {
            if let Some(ready) = cond() {
                break Ok(ready);
            }
            // SAFETY: The entry was initialised above.
            if !unsafe { bindings::wait_is_queued(entry) } {
                // SAFETY: The caller vouches for the queue; the entry is in none.
                unsafe { bindings::add_wait_as(queue, entry, exclusive) };
                // What happened before has woken nobody.
                continue;
            }
            if self.jiffies <= 0 {
                break Err(EAGAIN);
            }
            // SAFETY: A plain look at the current task.
            if unsafe { bindings::current_signal_pending() } {
                break Err(self.interrupted());
            }
            // CAST: A small constant.
            let mode = bindings::TASK_INTERRUPTIBLE;
            // SAFETY: The entry is queued, or was until it was woken, and was made for this function.
            self.jiffies = unsafe { bindings::wait_woken(entry, mode, self.jiffies) };
        };
        // SAFETY: The entry was initialised above.
        if unsafe { bindings::wait_is_queued(entry) } {
            // SAFETY: The entry is in this queue.
            unsafe { bindings::remove_wait_queue(queue, entry) };
        }
        outcome
    }

    /// What a signal makes of a wait.
    fn interrupted(&self) -> Error {
        // SAFETY: A plain computation.
        Error::from_errno(unsafe { bindings::sock_intr_errno(self.jiffies) })
    }
}
