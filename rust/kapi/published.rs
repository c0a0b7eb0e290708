// SPDX-License-Identifier: GPL-2.0

//! A value that is read often and replaced as a whole now and then.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
};
use smc_bindings as bindings;

/// A value behind RCU.
///
/// # Invariants
///
/// The pointer came from `Arc::into_raw()`, and its reference belongs to this object. It is given up only after the
/// pointer has been replaced and an RCU grace period has passed, or when the object is dropped.
pub struct Published<T: Send + Sync + 'static>(Atomic<*mut T>);

impl<T: Send + Sync + 'static> Published<T> {
    /// Begins with `value`.
    pub fn new(value: Arc<T>) -> Self {
        // INVARIANT: The reference becomes the object's.
        Self(Atomic::new(Arc::into_raw(value).cast_mut()))
    }

    /// Looks at the value. Any context; `look` must not sleep.
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let _guard = rcu::read_lock();
        // ORDERING: Pairs with the full exchange in `replace`, which publishes the finished value.
        let raw = self.0.load(Acquire);
        // SAFETY: By the type invariant the value is valid, and its reference is not given up before this RCU reader
        // ends.
        look(unsafe { &*raw })
    }

    /// Puts another value in its place. May sleep.
    pub fn replace(&self, value: Arc<T>) {
        let old = self.0.xchg(Arc::into_raw(value).cast_mut(), Full);
        // SAFETY: The function has no requirements but that the caller may sleep, which the documentation asks.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: By the type invariant the reference was this object's, and no reader is left that saw the pointer.
        drop(unsafe { Arc::from_raw(old.cast_const()) });
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        let raw = self.0.load(Relaxed);
        // SAFETY: By the type invariant the reference is this object's; readers borrow the object, so there is none.
        drop(unsafe { Arc::from_raw(raw.cast_const()) });
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_published)]
mod tests {
    use super::*;

    /// How many values have been dropped.
    static DROPPED: Atomic<i32> = Atomic::new(0);

    /// Counts its own end.
    struct Counted(i32);

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.add(1, Relaxed);
        }
    }

    #[test]
    fn the_latest_value_is_seen_and_each_is_dropped_once() -> Result {
        let before = DROPPED.load(Relaxed);
        let place = Published::new(Arc::new(Counted(1), GFP_KERNEL)?);
        assert_eq!(place.with(|value| value.0), 1);
        place.replace(Arc::new(Counted(2), GFP_KERNEL)?);
        assert_eq!(DROPPED.load(Relaxed), before + 1);
        assert_eq!(place.with(|value| value.0), 2);
        drop(place);
        assert_eq!(DROPPED.load(Relaxed), before + 2);
        Ok(())
    }
}
