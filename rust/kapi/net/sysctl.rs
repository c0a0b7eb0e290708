// SPDX-License-Identifier: GPL-2.0

//! Settings of a network namespace under `/proc/sys/net/`.
//!
//! C header: [`include/linux/sysctl.h`](srctree/include/linux/sysctl.h)

use core::ptr::NonNull;

use kernel::{
    error::from_result,
    ffi::{
        c_int,
        c_void, //
    },
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

/// Files in a directory of one namespace; dropping it takes them away and waits for their users.
///
/// # Invariants
///
/// `header` is registered with the table.
struct Files {
    /// What the kernel gave for the registration.
    header: NonNull<bindings::ctl_table_header>,
    /// The table that the kernel reads.
    _table: KVec<bindings::ctl_table>,
}

// SAFETY: The registration is only dropped, from any one task.
unsafe impl Send for Files {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Files {}

impl Files {
    /// Makes a file for each entry, in a directory that others may have files in as well.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// What the entries point at must suit their handlers and live longer than what is returned.
    unsafe fn register(
        net: &NetNs,
        path: &'static CStr,
        mut table: KVec<bindings::ctl_table>,
    ) -> Result<Self> {
        // SAFETY: The namespace is alive, the path is a C string, the table lives as long as the object returned below,
        // and the caller vouches for what it points at.
        let header = unsafe {
            bindings::register_net_sysctl_sz(
                net.as_raw(),
                path.as_char_ptr(),
                table.as_mut_ptr(),
                table.len(),
            )
        };
        // INVARIANT: The registration succeeded. Moving a `KVec` does not move what is in it.
        Ok(Self {
            header: NonNull::new(header).ok_or(ENOMEM)?,
            _table: table,
        })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the header is registered; it is so no more afterwards.
        unsafe { bindings::unregister_net_sysctl_table(self.header.as_ptr()) };
    }
}

/// The settings of one namespace; dropping it takes the files away and waits for their readers.
///
/// # Invariants
///
/// The table points at `_bounds`, and at values that `_values` keeps alive. The fields go in this order.
pub struct Sysctls<T: Send + Sync + 'static> {
    /// The files.
    _files: Files,
    /// The bounds that the table points at.
    _bounds: KVec<[u32; 2]>,
    /// The values that the table points at.
    _values: Arc<T>,
}

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
        // SAFETY: Bounds and values live as long as the object returned below, whose first field is the registration.
        // The kernel's handler reads and writes a value as a whole, as the atomic does.
        let files = unsafe { Files::register(net, path, table) }?;
        // INVARIANT: The object owns all that the table points at. Moving a `KVec` does not move what is in it.
        Ok(Self {
            _files: files,
            _bounds: bounds,
            _values: values,
        })
    }
}

/// Most bytes of a setting that is a text.
pub const TEXT_MAX: usize = 1024;

/// A setting that is more than a number in its place: reading and writing it are calls.
pub enum Active<T> {
    /// A whole number from 0 on.
    Number {
        /// The file's name.
        name: &'static CStr,
        /// The greatest value.
        max: u32,
        /// Reads it.
        get: fn(&T) -> u32,
        /// Writes it, or refuses.
        set: fn(&T, u32) -> Result,
    },
    /// A line of text of less than [`TEXT_MAX`] bytes.
    Text {
        /// The file's name.
        name: &'static CStr,
        /// Appends it to an empty vector.
        get: fn(&T, &mut KVec<u8>) -> Result,
        /// Writes it, or refuses.
        set: fn(&T, &[u8]) -> Result,
    },
}

/// What a table entry of an [`Active`] setting points at.
struct Bound<T: 'static> {
    /// The setting.
    setting: &'static Active<T>,
    /// What it is a setting of.
    values: *const T,
}

/// Settings of one namespace that are calls; dropping it takes the files away and waits for their users.
///
/// # Invariants
///
/// The table points at entries of `_bound`, which point at what `_values` keeps alive. The fields go in this order.
pub struct ActiveSysctls<T: Send + Sync + 'static> {
    /// The files.
    _files: Files,
    /// What it points at.
    _bound: KVec<Bound<T>>,
    /// What the settings are of.
    _values: Arc<T>,
}

// SAFETY: The registration is only dropped, from any one task; the values are shared by their own type.
unsafe impl<T: Send + Sync + 'static> Send for ActiveSysctls<T> {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl<T: Send + Sync + 'static> Sync for ActiveSysctls<T> {}

impl<T: Send + Sync + 'static> ActiveSysctls<T> {
    /// Makes the files, in a directory that others may have files in as well.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn register(
        net: &NetNs,
        path: &'static CStr,
        settings: &'static [Active<T>],
        values: Arc<T>,
    ) -> Result<Self> {
        let mut table = KVec::with_capacity(settings.len(), GFP_KERNEL)?;
        let mut bound = KVec::with_capacity(settings.len(), GFP_KERNEL)?;
        for setting in settings {
            bound.push(
                Bound {
                    setting,
                    values: &*values,
                },
                GFP_KERNEL,
            )?;
        }
        for entry in bound.iter() {
            let (Active::Number { name, .. } | Active::Text { name, .. }) = entry.setting;
            let entry = bindings::ctl_table {
                procname: name.as_char_ptr(),
                data: core::ptr::from_ref(entry).cast_mut().cast(),
                maxlen: 4,
                mode: 0o644,
                proc_handler: Some(active_handler::<T>),
                ..Zeroed::ZERO
            };
            table.push(entry, GFP_KERNEL)?;
        }
        // SAFETY: What the table points at lives as long as the object returned below, whose first field is the
        // registration. The handler suits the entries.
        let files = unsafe { Files::register(net, path, table) }?;
        // INVARIANT: The object owns all that the table points at. Moving a `KVec` does not move what is in it.
        Ok(Self {
            _files: files,
            _bound: bound,
            _values: values,
        })
    }
}

/// `ctl_table::proc_handler` of the settings that are calls.
///
/// # Safety
///
/// Called by the kernel with an entry of an [`ActiveSysctls`] and the buffer of the call in progress.
unsafe extern "C" fn active_handler<T: Send + Sync + 'static>(
    table: *const bindings::ctl_table,
    write: c_int,
    buffer: *mut c_void,
    len: *mut usize,
    position: *mut bindings::loff_t,
) -> c_int {
    // SAFETY: The kernel hands over an entry that stays registered for the time of the call.
    let bound = unsafe { &*(*table).data.cast::<Bound<T>>() };
    // SAFETY: The registration keeps the values alive.
    let values = unsafe { &*bound.values };
    from_result(|| {
        match bound.setting {
            Active::Number { max, get, set, .. } => {
                let mut value = get(values);
                let (min, max) = (0u32, *max);
                let entry = bindings::ctl_table {
                    data: (&raw mut value).cast(),
                    maxlen: 4,
                    mode: 0o644,
                    extra1: (&raw const min).cast_mut().cast(),
                    extra2: (&raw const max).cast_mut().cast(),
                    ..Zeroed::ZERO
                };
                // SAFETY: The entry and what it points at live for the time of the call, and the rest is the kernel's.
                kernel::error::to_result(unsafe {
                    bindings::proc_douintvec_minmax(&entry, write, buffer, len, position)
                })?;
                if write != 0 {
                    set(values, value)?;
                }
            }
            Active::Text { get, set, .. } => {
                let mut text = KVec::with_capacity(TEXT_MAX, GFP_KERNEL)?;
                get(values, &mut text)?;
                text.resize(TEXT_MAX, 0, GFP_KERNEL)?;
                if write != 0 {
                    // SAFETY: The length is the caller's.
                    if unsafe { *len } >= TEXT_MAX {
                        return Err(EINVAL);
                    }
                }
                let entry = bindings::ctl_table {
                    data: text.as_mut_ptr().cast(),
                    // CAST: A small constant.
                    maxlen: TEXT_MAX as c_int,
                    mode: 0o644,
                    ..Zeroed::ZERO
                };
                // SAFETY: As above; the text has the length that the entry says.
                kernel::error::to_result(unsafe {
                    bindings::proc_dostring(&entry, write, buffer, len, position)
                })?;
                if write != 0 {
                    let end = text.iter().position(|c| *c == 0).unwrap_or(0);
                    set(values, text.get(..end).ok_or(EINVAL)?)?;
                }
            }
        }
        Ok(0)
    })
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
