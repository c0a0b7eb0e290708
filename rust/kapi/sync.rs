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

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kernel::prelude::kunit_tests(smc_kapi_sync)]
mod tests {
    use kernel::prelude::*;

    use super::*;
    use crate::new_bh_lock;

    /// Whether bottom halves are off on this CPU.
    fn softirqs_off() -> bool {
        // SAFETY: A plain look at the current task's count.
        unsafe { bindings::softirqs_off() }
    }

    /// The lockdep class of a lock.
    fn class<T>(lock: &BhLock<T>) -> usize {
        let lock: *const BhLock<T> = lock;
        // SAFETY: The C lock is the first field of a `Lock`, which is `repr(C)`.
        unsafe { bindings::lock_class_of(lock.cast_mut().cast()) }.addr()
    }

    /// A lock that is made in one place of the code.
    fn made_here() -> Result<Pin<KBox<BhLock<u32>>>> {
        KBox::pin_init(new_bh_lock!(0u32, "smc_kapi_sync::here"), GFP_KERNEL)
    }

    #[test]
    fn the_guard_keeps_bottom_halves_off() -> Result {
        let lock = made_here()?;
        assert!(!softirqs_off());
        {
            let mut guard = lock.lock();
            *guard += 1;
            assert!(softirqs_off());
        }
        assert!(!softirqs_off());
        assert_eq!(*lock.lock(), 1);
        Ok(())
    }

    #[test]
    fn guards_nest_and_end_in_any_order() -> Result {
        let outer = made_here()?;
        let inner = KBox::pin_init(new_bh_lock!(0u32, "smc_kapi_sync::inner"), GFP_KERNEL)?;
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        assert!(softirqs_off());
        drop(second);
        assert!(!softirqs_off());
        Ok(())
    }

    #[test]
    fn a_held_lock_cannot_be_taken_by_trying() -> Result {
        let lock = made_here()?;
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        // The failed attempt has not let bottom halves run.
        assert!(softirqs_off());
        drop(guard);
        let guard = lock.try_lock();
        assert!(guard.is_some());
        assert!(softirqs_off());
        drop(guard);
        assert!(!softirqs_off());
        Ok(())
    }

    #[test]
    fn each_place_has_a_lockdep_class_of_its_own() -> Result {
        let (a, b) = (made_here()?, made_here()?);
        let other = KBox::pin_init(new_bh_lock!(0u32, "smc_kapi_sync::other"), GFP_KERNEL)?;
        if class(&a) == 0 {
            // A kernel without lockdep.
            return Ok(());
        }
        assert_eq!(class(&a), class(&b));
        assert!(class(&a) != class(&other));
        Ok(())
    }
}
