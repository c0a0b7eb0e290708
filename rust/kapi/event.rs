// SPDX-License-Identifier: GPL-2.0

//! A one-time event that can be waited for with a time limit.
//!
//! The `kernel` crate's `Completion` has no wait with a limit, and nothing in this module may wait without one.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use kernel::{
    prelude::*,
    types::Opaque, //
};
use smc_bindings as bindings;

/// Something that happens once and stays happened.
#[pin_data]
pub struct Event {
    /// The C completion; it is only ever completed for all.
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A C completion may be used from any task.
unsafe impl Send for Event {}

// SAFETY: A C completion has a lock of its own, so that concurrent use is sound.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has not happened.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid memory for a completion, which `pin_init!` hands over.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Lets it happen: every waiter, now and later, goes on. Any context.
    pub fn set(&self) {
        // SAFETY: `inner` was initialised by the only constructor and lives as long as `self`.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        // SAFETY: `inner` was initialised by the only constructor and lives as long as `self`.
        unsafe { bindings::completion_done(self.inner.get()) }
    }

    /// Waits until it happens or the time is over; says whether it happened. May sleep; signals do not end the wait.
    pub fn wait_ms(&self, timeout_ms: u32) -> bool {
        let jiffies = kernel::time::msecs_to_jiffies(timeout_ms);
        // SAFETY: `inner` was initialised by the only constructor and lives as long as `self`.
        let left = unsafe { bindings::wait_for_completion_timeout(self.inner.get(), jiffies) };
        left != 0
    }

    /// Waits until it happens, without a limit. May sleep.
    pub fn wait(&self) {
        // SAFETY: `inner` was initialised by the only constructor and lives as long as `self`.
        unsafe { bindings::wait_for_completion(self.inner.get()) };
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_event)]
mod tests {
    use super::*;

    #[test]
    fn a_new_event_has_not_happened() -> Result {
        let event = KBox::pin_init(Event::new(), GFP_KERNEL)?;
        assert!(!event.is_set());
        assert!(!event.wait_ms(1));
        Ok(())
    }

    #[test]
    fn an_event_stays_happened_for_every_waiter() -> Result {
        let event = KBox::pin_init(Event::new(), GFP_KERNEL)?;
        Event::set(&event);
        assert!(event.is_set());
        assert!(event.wait_ms(1));
        assert!(event.wait_ms(0));
        event.wait();
        assert!(event.is_set());
        Ok(())
    }
}
