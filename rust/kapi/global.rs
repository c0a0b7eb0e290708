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
