// SPDX-License-Identifier: GPL-2.0

//! Waiting on the wait queue of a socket, as long as a call may.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h)

use core::mem::MaybeUninit;

use kernel::{
    ffi::c_long,
    prelude::*,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use smc_bindings as bindings;

/// How long a call may wait.
#[derive(Clone, Copy)]
pub struct Patience {
    /// What is left.
    jiffies: c_long,
    /// For how many microseconds it looks again and again before it sleeps for the first time.
    busy_us: u32,
}

impl Patience {
    /// None at all.
    pub const NONE: Self = Self::of(0);

    /// As long as that.
    pub(super) const fn of(jiffies: c_long) -> Self {
        Self {
            jiffies,
            busy_us: 0,
        }
    }

    /// As long as `ms`.
    pub fn from_ms(ms: u32) -> Self {
        // SAFETY: A plain computation.
        Self::of(unsafe { bindings::msecs_to_jiffies(ms) })
    }

    /// The next wait looks again and again for as long as `us` before it sleeps.
    pub fn look_first(&mut self, us: u32) {
        self.busy_us = us;
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
        if let Some(ready) = self.look(&mut cond) {
            return Ok(ready);
        }
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
            // SAFETY: The entry was made for this, and is queued or was until it was woken.
            self.jiffies = unsafe { bindings::wait_queued(entry, self.jiffies) };
        };
        // SAFETY: The entry was initialised above.
        if unsafe { bindings::wait_is_queued(entry) } {
            // SAFETY: The entry is in this queue.
            unsafe { bindings::remove_wait_queue(queue, entry) };
        }
        outcome
    }

    /// Looks for `cond` without sleep, once for a while at most: as long as the processor is wanted for nothing else.
    fn look<R>(&mut self, cond: &mut impl FnMut() -> Option<R>) -> Option<R> {
        let busy_us = core::mem::take(&mut self.busy_us);
        if busy_us == 0 || self.is_over() {
            return None;
        }
        let micros = i64::from(busy_us).min(self.micros());
        let limit = Delta::from_micros(micros);
        let began = Instant::<Monotonic>::now();
        let found = loop {
            let found = cond();
            // SAFETY: A look at the current task and processor.
            if found.is_some() || !unsafe { bindings::pause_looking() } {
                break found;
            }
            if began.elapsed() >= limit {
                break None;
            }
        };
        if self.jiffies < c_long::MAX {
            let spent = u32::try_from(began.elapsed().as_millis()).unwrap_or(u32::MAX);
            let spent = Self::from_ms(spent).jiffies.min(self.jiffies);
            self.jiffies = self.jiffies.saturating_sub(spent);
        }
        found
    }

    /// What is left, in microseconds; weeks at most.
    fn micros(&self) -> i64 {
        let jiffies = u32::try_from(self.jiffies).unwrap_or(u32::MAX);
        // SAFETY: A plain computation.
        let ms = unsafe { bindings::jiffies64_to_msecs(u64::from(jiffies)) };
        i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX)
    }

    /// What a signal makes of a wait.
    fn interrupted(&self) -> Error {
        // SAFETY: A plain computation.
        Error::from_errno(unsafe { bindings::sock_intr_errno(self.jiffies) })
    }
}
