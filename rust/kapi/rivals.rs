// SPDX-License-Identifier: GPL-2.0

//! Keeps modules out that cannot live beside this one.
//!
//! Two modules that register the same sysctls, slab caches or protocol numbers do not merely fail: the kernel warns,
//! and a refused sysctl table leaves the directory of the other one empty. So the later one is refused before its
//! first instruction.
//!
//! C headers: [`include/linux/module.h`](srctree/include/linux/module.h),
//! [`include/linux/notifier.h`](srctree/include/linux/notifier.h)

use core::{
    cell::UnsafeCell,
    ffi::CStr, //
};

use kernel::{
    bindings::EBUSY,
    error::to_result,
    ffi::{
        c_int,
        c_ulong,
        c_void, //
    },
    prelude::*,
};
use smc_bindings as bindings;

/// The names of modules that are kept out: a static, without effect until it is registered.
#[repr(C)]
pub struct Rivals {
    /// What the kernel calls; the first field, so that its address is that of the whole.
    block: UnsafeCell<bindings::notifier_block>,
    /// The modules' names.
    names: &'static [&'static CStr],
    /// Told the name of a module that was refused. May sleep.
    refused: fn(&CStr),
}

// SAFETY: `block` is written by the kernel under the lock of its list; the rest is never written.
unsafe impl Sync for Rivals {}

impl Rivals {
    /// These modules are to be kept out.
    pub const fn new(names: &'static [&'static CStr], refused: fn(&CStr)) -> Self {
        Self {
            block: UnsafeCell::new(bindings::notifier_block {
                notifier_call: Some(module_callback),
                next: core::ptr::null_mut(),
                priority: 0,
            }),
            names,
            refused,
        }
    }

    /// From now on they are refused with `EBUSY`: modprobe(8) takes `EEXIST` for success. One that is there already
    /// stays.
    ///
    /// # Errors
    ///
    /// `EEXIST`, with a warning of the kernel, when it is registered already.
    pub fn register(&'static self) -> Result<RivalsRegistration> {
        // SAFETY: The block lives for ever, and its callback is for blocks that are the first field of a `Rivals`.
        to_result(unsafe { bindings::register_module_notifier(self.block.get()) })?;
        Ok(RivalsRegistration { rivals: self })
    }
}

/// Dropping it lets the modules in again.
#[must_use]
pub struct RivalsRegistration {
    /// What is registered.
    rivals: &'static Rivals,
}

impl Drop for RivalsRegistration {
    fn drop(&mut self) {
        // SAFETY: The block is registered; the kernel waits for callbacks that run.
        unsafe { bindings::unregister_module_notifier(self.rivals.block.get()) };
    }
}

/// A module comes or goes.
///
/// # Safety
///
/// `block` must be the first field of a static [`Rivals`], `data` a module that cannot go meanwhile.
unsafe extern "C" fn module_callback(
    block: *mut bindings::notifier_block,
    action: c_ulong,
    data: *mut c_void,
) -> c_int {
    // CAST: A small constant.
    if action != bindings::module_state_MODULE_STATE_COMING as c_ulong {
        return bindings::NOTIFY_DONE as c_int;
    }
    // SAFETY: The caller vouches for the block; a shared reference to its static is sound, as only `block` is written,
    // which is in a cell.
    let rivals = unsafe { &*block.cast::<Rivals>() };
    // SAFETY: The caller vouches for the module; the loader ends its name with a zero byte.
    let name =
        unsafe { CStr::from_ptr((&raw const (*data.cast::<bindings::module>()).name).cast()) };
    if !rivals.names.contains(&name) {
        return bindings::NOTIFY_DONE as c_int;
    }
    (rivals.refused)(name);
    // What `notifier_from_errno()` makes of an error. CAST: Small constants.
    (bindings::NOTIFY_STOP_MASK | (bindings::NOTIFY_OK + EBUSY)) as c_int
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_rivals)]
mod tests {
    use super::*;

    static NOBODY: Rivals = Rivals::new(&[c"no_such_module"], |_| ());

    #[test]
    fn registration_can_be_repeated_after_its_end() -> Result {
        for _ in 0..2 {
            drop(NOBODY.register()?);
        }
        Ok(())
    }
}
