// SPDX-License-Identifier: GPL-2.0

//! A shrinker: the kernel asks it to give memory back when there is little.
//!
//! C header: [`include/linux/shrinker.h`](srctree/include/linux/shrinker.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::prelude::*;
use smc_bindings as bindings;

/// Who has memory that can be given back. Both functions are called while somebody else allocates, perhaps with locks of
/// this module held: they must neither wait for a lock nor allocate.
pub trait Shrink: 'static {
    /// How many pages there are to be given back, as far as that can be told now.
    fn count() -> usize;

    /// Lets them be given back soon.
    fn shrink();
}

/// A registered shrinker; dropping it waits until nobody calls it any more.
///
/// # Invariants
///
/// `raw` is registered, and this value owns it.
pub struct ShrinkerRegistration<T: Shrink> {
    /// The C shrinker.
    raw: NonNull<bindings::shrinker>,
    /// Whom it calls.
    _user: PhantomData<fn() -> T>,
}

// SAFETY: The registration is only dropped, from any one task.
unsafe impl<T: Shrink> Send for ShrinkerRegistration<T> {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl<T: Shrink> Sync for ShrinkerRegistration<T> {}

impl<T: Shrink> ShrinkerRegistration<T> {
    /// Registers the shrinker of `T`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(name: &'static CStr) -> Result<Self> {
        // SAFETY: The format takes one string, which is one.
        let raw = unsafe { bindings::shrinker_alloc(0, c"%s".as_char_ptr(), name.as_char_ptr()) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // SAFETY: The shrinker was just allocated, and is not registered: nobody else looks at it.
        let shrinker = unsafe { &mut *raw.as_ptr() };
        shrinker.count_objects = Some(count::<T>);
        shrinker.scan_objects = Some(scan::<T>);
        // Rings are dear to make anew, but not more than other caches.
        shrinker.seeks = 2;
        // SAFETY: The shrinker is complete.
        unsafe { bindings::shrinker_register(raw.as_ptr()) };
        // INVARIANT: Registered just now.
        Ok(Self {
            raw,
            _user: PhantomData,
        })
    }
}

impl<T: Shrink> Drop for ShrinkerRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the function waits for running calls.
        unsafe { bindings::shrinker_free(self.raw.as_ptr()) };
    }
}

/// `shrinker::count_objects`.
///
/// # Safety
///
/// Called by the kernel for a registered shrinker.
unsafe extern "C" fn count<T: Shrink>(
    _shrinker: *mut bindings::shrinker,
    _control: *mut bindings::shrink_control,
) -> kernel::ffi::c_ulong {
    // CAST: Both are as wide as a pointer.
    T::count() as kernel::ffi::c_ulong
}

/// `shrinker::scan_objects`: what is given back comes back a little later, so that no more need be asked for now.
///
/// # Safety
///
/// As [`count`].
unsafe extern "C" fn scan<T: Shrink>(
    _shrinker: *mut bindings::shrinker,
    _control: *mut bindings::shrink_control,
) -> kernel::ffi::c_ulong {
    T::shrink();
    kernel::ffi::c_ulong::MAX
}
