// SPDX-License-Identifier: GPL-2.0

//! Counters that each processor has for itself.
//!
//! C header: [`include/linux/percpu.h`](srctree/include/linux/percpu.h)

use core::ptr::NonNull;

use kernel::{
    ffi::c_void,
    prelude::*, //
};
use smc_bindings as bindings;

/// A number of counters, each 64 bits wide.
///
/// # Invariants
///
/// `memory` is an allocation of `len` counters for each processor, owned by this object.
pub struct Counters {
    /// What the kernel gave.
    memory: NonNull<c_void>,
    /// How many counters there are.
    len: usize,
}

// SAFETY: Each counter is changed on its processor alone, in one instruction or with preemption off, and read as a whole.
unsafe impl Send for Counters {}
// SAFETY: As for `Send`.
unsafe impl Sync for Counters {}

impl Counters {
    /// `len` counters, all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(len: usize) -> Result<Self> {
        let size = len.checked_mul(size_of::<u64>()).ok_or(EINVAL)?;
        // SAFETY: A plain allocation; null means that it failed.
        let memory = unsafe { bindings::alloc_percpu_zeroed(size, align_of::<u64>()) };
        // INVARIANT: The allocation is this large.
        Ok(Self {
            memory: NonNull::new(memory).ok_or(ENOMEM)?,
            len,
        })
    }

    /// Where a counter is, if there is one of this number.
    fn place(&self, index: usize) -> Option<*mut u64> {
        (index < self.len).then(|| self.memory.as_ptr().cast::<u64>().wrapping_add(index))
    }

    /// Adds to a counter. Any context; a number without a counter is not counted.
    pub fn add(&self, index: usize, by: u64) {
        if let Some(place) = self.place(index) {
            // SAFETY: By the type invariant the counter is there.
            unsafe { bindings::percpu_count(place, by) };
        }
    }

    /// What all processors have counted.
    pub fn total(&self, index: usize) -> u64 {
        self.place(index).map_or(0, |place| {
            // SAFETY: By the type invariant the counter is there.
            unsafe { bindings::percpu_total(place) }
        })
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the memory is this object's.
        unsafe { bindings::free_percpu_memory(self.memory.as_ptr()) };
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_percpu)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_counts_for_itself() -> Result {
        let counters = Counters::new(3)?;
        counters.add(0, 5);
        counters.add(2, u64::from(u32::MAX));
        counters.add(2, 1);
        // There is none of this number.
        counters.add(3, 1);
        assert_eq!(counters.total(0), 5);
        assert_eq!(counters.total(1), 0);
        assert_eq!(counters.total(2), 1 << 32);
        assert_eq!(counters.total(3), 0);
        Ok(())
    }
}
