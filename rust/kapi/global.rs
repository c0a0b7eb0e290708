// SPDX-License-Identifier: GPL-2.0

//! A place in static memory for the one instance of something that lives as long as the module is up.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use core::{
    mem::ManuallyDrop,
    ptr, //
};

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

/// A static place that is empty until a value is installed, and empty again when its [`Installed`] is dropped.
///
/// # Invariants
///
/// The pointer is null or came from `Arc::into_raw()` of an `Arc<T>` whose reference a living [`Installed`] owns. That
/// reference is given up only after the pointer has been cleared and an RCU grace period has passed.
pub struct Global<T: Send + Sync + 'static>(Atomic<*mut T>);

impl<T: Send + Sync + 'static> Global<T> {
    /// An empty place.
    pub const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// The installed value, or nothing before that and while the module goes away. Any context but hard-irq.
    pub fn get(&self) -> Option<Arc<T>> {
        let _guard = rcu::read_lock();
        // ORDERING: Pairs with the full exchange in `install`, which publishes the finished value.
        let raw = self.0.load(Acquire);
        if raw.is_null() {
            return None;
        }
        // SAFETY: By the type invariant the pointer came from `Arc::into_raw()` and its reference cannot be given up
        // before this RCU reader ends; `ManuallyDrop` leaves that reference where it is.
        let borrowed = ManuallyDrop::new(unsafe { Arc::from_raw(raw.cast_const()) });
        Some(Arc::clone(&borrowed))
    }

    /// Puts a value into the place.
    ///
    /// # Errors
    ///
    /// `EBUSY` when there is one already.
    pub fn install(&'static self, value: Arc<T>) -> Result<Installed<T>> {
        let raw = Arc::into_raw(value).cast_mut();
        // INVARIANT: The reference behind `raw` goes to the `Installed` that is returned.
        if self.0.cmpxchg(ptr::null_mut(), raw, Full).is_err() {
            // SAFETY: `raw` came from `Arc::into_raw()` above and was not stored.
            drop(unsafe { Arc::from_raw(raw.cast_const()) });
            return Err(EBUSY);
        }
        Ok(Installed(self))
    }
}

/// Owns the value of a [`Global`]; dropping it empties the place. The drop may sleep.
#[must_use]
pub struct Installed<T: Send + Sync + 'static>(&'static Global<T>);

impl<T: Send + Sync + 'static> Drop for Installed<T> {
    fn drop(&mut self) {
        let place = &self.0 .0;
        let raw = place.load(Relaxed);
        place.store(ptr::null_mut(), Relaxed);
        // SAFETY: The function has no requirements but that the caller may sleep, which the type's documentation asks.
        unsafe { bindings::synchronize_rcu() };
        // SAFETY: `install` stored the pointer of an `Arc` whose reference this value owns. No reader can hold the
        // bare pointer any more: it was cleared before the grace period.
        drop(unsafe { Arc::from_raw(raw.cast_const()) });
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_global)]
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

    /// The place under test.
    static PLACE: Global<Counted> = Global::new();

    #[test]
    fn a_value_is_there_from_install_until_its_owner_goes() -> Result {
        let before = DROPPED.load(Relaxed);
        assert!(PLACE.get().is_none());
        let installed = PLACE.install(Arc::new(Counted(7), GFP_KERNEL)?)?;
        let borrowed = PLACE.get().ok_or(ENOENT)?;
        assert_eq!(borrowed.0, 7);
        assert!(matches!(
            PLACE.install(Arc::new(Counted(8), GFP_KERNEL)?),
            Err(e) if e == EBUSY
        ));
        assert_eq!(DROPPED.load(Relaxed), before + 1);
        drop(installed);
        assert!(PLACE.get().is_none());
        // Who got it before still has it.
        assert_eq!(DROPPED.load(Relaxed), before + 1);
        drop(borrowed);
        assert_eq!(DROPPED.load(Relaxed), before + 2);
        Ok(())
    }

    #[test]
    fn an_empty_place_takes_a_value_again() -> Result {
        for value in 0..3 {
            let installed = PLACE.install(Arc::new(Counted(value), GFP_KERNEL)?)?;
            assert_eq!(PLACE.get().ok_or(ENOENT)?.0, value);
            drop(installed);
        }
        Ok(())
    }
}
