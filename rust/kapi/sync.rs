// SPDX-License-Identifier: GPL-2.0

//! A spinlock for data shared with softirq: taking it turns bottom halves off.
//!
//! C header: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h)

use kernel::{
    ffi::c_char,
    sync::lock::{Backend, Guard, Lock},
};
use smc_bindings as bindings;

/// Lock back end over `spinlock_t` with `spin_lock_bh()`.
pub struct BhBackend;

/// A value shared between tasks and softirq (lock levels 5 to 7).
///
/// Never taken from hard-irq context. Make one with [`new_bh_lock!`](crate::new_bh_lock).
pub type BhLock<T> = Lock<T, BhBackend>;

/// The guard of a [`BhLock`].
pub type BhGuard<'a, T> = Guard<'a, T, BhBackend>;

// SAFETY: `spin_lock_bh()` gives mutual exclusion among tasks and softirqs, which are the only contexts in which a
// `BhLock` is taken; `relock` is the default, a plain `lock`.
unsafe impl Backend for BhBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kernel::bindings::lock_class_key,
    ) {
        // SAFETY: The caller hands over valid memory for a lock, and `name` and `key` live as long as the module.
        unsafe { bindings::spin_lock_bh_init(ptr, name, key.cast()) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller ensures that `ptr` is an initialised lock.
        unsafe { bindings::spin_lock_bh(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        // SAFETY: The caller ensures that `ptr` is an initialised lock.
        let taken = unsafe { bindings::spin_trylock_bh(ptr) };
        (taken != 0).then_some(())
    }

    unsafe fn unlock(ptr: *mut Self::State, _state: &Self::GuardState) {
        // SAFETY: The caller ensures that this context holds the lock.
        unsafe { bindings::spin_unlock_bh(ptr) }
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller ensures that `ptr` is an initialised lock.
        unsafe { bindings::assert_spin_locked(ptr) }
    }
}

/// Creates a [`BhLock`] initialiser with a lockdep class of its own for each place of use.
#[macro_export]
macro_rules! new_bh_lock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::kapi::sync::BhLock::new(
            $inner,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
