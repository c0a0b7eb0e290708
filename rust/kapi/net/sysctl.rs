// SPDX-License-Identifier: GPL-2.0

//! Settings of a network namespace under `/proc/sys/net/`.
//!
//! C header: [`include/linux/sysctl.h`](srctree/include/linux/sysctl.h)

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    NetNs,
    Zeroed, //
};

/// A whole number between two bounds that an administrator may set.
pub struct Setting {
    /// The file's name.
    pub name: &'static CStr,
    /// The least value.
    pub min: u32,
    /// The greatest value.
    pub max: u32,
}

/// The value of a setting, read and written as a whole.
pub type Value = Atomic<u32>;

/// The settings of one namespace; dropping it takes the files away and waits for their readers.
///
/// # Invariants
///
/// `header` is registered, and the table points at values that `values` keeps alive.
pub struct Sysctls<T: Send + Sync + 'static> {
    /// What the kernel gave for the registration.
    header: NonNull<bindings::ctl_table_header>,
    /// The table that the kernel reads.
    _table: KVec<bindings::ctl_table>,
    /// The bounds that the table points at.
    _bounds: KVec<[u32; 2]>,
    /// The values that the table points at.
    _values: Arc<T>,
}

// SAFETY: The registration is only dropped, from any one task; the values are shared by their own type.
unsafe impl<T: Send + Sync + 'static> Send for Sysctls<T> {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl<T: Send + Sync + 'static> Sync for Sysctls<T> {}

impl<T: Send + Sync + 'static> Sysctls<T> {
    /// Makes a directory with a file for each setting; `pick` names each setting's value.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn register<const N: usize>(
        net: &NetNs,
        path: &'static CStr,
        settings: &'static [Setting; N],
        values: Arc<T>,
        pick: impl Fn(&T) -> [&Value; N],
    ) -> Result<Self> {
        let mut table = KVec::with_capacity(N, GFP_KERNEL)?;
        let mut bounds = KVec::with_capacity(N, GFP_KERNEL)?;
        for setting in settings {
            bounds.push([setting.min, setting.max], GFP_KERNEL)?;
        }
        for ((setting, bound), value) in settings.iter().zip(bounds.iter()).zip(pick(&values)) {
            let [min, max] = bound;
            let entry = bindings::ctl_table {
                procname: setting.name.as_char_ptr(),
                data: value.as_ptr().cast(),
                maxlen: 4,
                mode: 0o644,
                proc_handler: Some(bindings::proc_douintvec_minmax),
                extra1: core::ptr::from_ref(min).cast_mut().cast(),
                extra2: core::ptr::from_ref(max).cast_mut().cast(),
                ..Zeroed::ZERO
            };
            table.push(entry, GFP_KERNEL)?;
        }
        // SAFETY: The namespace is alive, the path is a C string, and table, bounds and values live as long as the
        // object returned below, whose drop unregisters them first. The kernel's handler reads and writes a value as
        // a whole, as the atomic does.
        let header = unsafe {
            bindings::register_net_sysctl_sz(
                net.as_raw(),
                path.as_char_ptr(),
                table.as_mut_ptr(),
                table.len(),
            )
        };
        // INVARIANT: The registration succeeded, and the object owns all that it points at. Moving a `KVec` does not
        // move what is in it.
        Ok(Self {
            header: NonNull::new(header).ok_or(ENOMEM)?,
            _table: table,
            _bounds: bounds,
            _values: values,
        })
    }
}

impl<T: Send + Sync + 'static> Drop for Sysctls<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the header is registered; it is so no more afterwards.
        unsafe { bindings::unregister_net_sysctl_table(self.header.as_ptr()) };
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_sysctl)]
mod tests {
    use kernel::sync::atomic::Relaxed;

    use super::*;

    /// One setting.
    static SETTINGS: [Setting; 1] = [Setting {
        name: c"probe",
        min: 1,
        max: 9,
    }];

    #[test]
    fn files_come_and_go_with_their_registration() -> Result {
        // A path that is still there would be refused the second time.
        for _ in 0..2 {
            let values = Arc::new(Value::new(5), GFP_KERNEL)?;
            let files = Sysctls::register(
                NetNs::initial(),
                c"net/smc_kunit",
                &SETTINGS,
                values.clone(),
                |value| [value],
            )?;
            assert_eq!(values.load(Relaxed), 5);
            drop(files);
            assert!(Arc::into_unique_or_drop(values).is_some());
        }
        Ok(())
    }
}
