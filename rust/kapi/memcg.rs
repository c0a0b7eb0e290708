// SPDX-License-Identifier: GPL-2.0

//! Memory cgroups: whose account memory goes to that is allocated on behalf of a socket, by whatever task.
//!
//! C header: [`include/linux/memcontrol.h`](srctree/include/linux/memcontrol.h)

use core::ptr::{
    self,
    NonNull, //
};

use smc_bindings as bindings;

/// A reference to a memory cgroup.
///
/// # Invariants
///
/// `raw` is valid, and this value owns one reference to it.
pub struct MemCg(NonNull<bindings::mem_cgroup>);

// SAFETY: References to a cgroup are counted atomically, and may be used and given up by any task.
unsafe impl Send for MemCg {}

// SAFETY: A shared cgroup offers nothing but to be charged, which the kernel does with its own locks.
unsafe impl Sync for MemCg {}

impl MemCg {
    /// The cgroup that a socket belongs to; nothing where there is none, or it is that of the whole machine.
    ///
    /// # Safety
    ///
    /// `sk` is a valid sock.
    pub(super) unsafe fn of_sock(sk: *const bindings::sock) -> Option<Self> {
        // SAFETY: By the caller's promise. A sock keeps its cgroup until it is freed.
        let raw = unsafe { bindings::smc_sk_memcg_get(sk) };
        // INVARIANT: The function has taken a reference.
        NonNull::new(raw).map(Self)
    }

    /// Whether both are the same, or there is none.
    pub fn same(one: Option<&Self>, other: Option<&Self>) -> bool {
        one.map(|m| m.0) == other.map(|m| m.0)
    }

    /// Runs `f`; what this task allocates meanwhile that is to be accounted goes to `memcg`, or, without one, to where it
    /// went before. Any task, but not in an interrupt.
    pub fn charge<R>(memcg: Option<&Self>, f: impl FnOnce() -> R) -> R {
        let raw = memcg.map_or(ptr::null_mut(), |m| m.0.as_ptr());
        // SAFETY: The cgroup is valid by the type invariant, as long as `memcg` is borrowed, which is until the former
        // value is put back below; null stands for none.
        let before = unsafe { bindings::set_active_memcg(raw) };
        let result = f();
        // SAFETY: As above: the former value was set by somebody who is still at it.
        unsafe { bindings::set_active_memcg(before) };
        result
    }
}

impl Clone for MemCg {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant the cgroup is valid and has a reference.
        unsafe { bindings::smc_memcg_get(self.0.as_ptr()) };
        // INVARIANT: The reference was just taken.
        Self(self.0)
    }
}

impl Drop for MemCg {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns a reference.
        unsafe { bindings::mem_cgroup_put(self.0.as_ptr()) };
    }
}
