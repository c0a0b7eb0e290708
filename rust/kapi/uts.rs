// SPDX-License-Identifier: GPL-2.0

//! The name of this host.
//!
//! C header: [`include/linux/utsname.h`](srctree/include/linux/utsname.h)

use smc_bindings as bindings;

/// The longest name, without the NUL behind it.
const MAX_LEN: usize = bindings::__NEW_UTS_LEN as usize;

/// The host's name at one moment.
pub struct HostName {
    /// Its bytes; those behind the name are 0.
    bytes: [u8; MAX_LEN],
}

impl HostName {
    /// The name without padding.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.bytes.iter().position(|b| *b == 0).unwrap_or(MAX_LEN);
        self.bytes.get(..len).unwrap_or(&[])
    }
}

/// The name of the host, as the initial namespace has it.
///
/// When it is being changed at this moment the answer may be a mixture of both names.
pub fn host_name() -> HostName {
    let mut bytes = [0; MAX_LEN];
    // SAFETY: The helper writes at most `MAX_LEN` bytes to the array.
    unsafe { bindings::smc_host_name(bytes.as_mut_ptr().cast(), MAX_LEN) };
    HostName { bytes }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kernel::prelude::kunit_tests(smc_kapi_uts)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_name_without_padding() {
        let name = host_name();
        let bytes = name.as_bytes();
        assert!(!bytes.is_empty() && bytes.len() <= MAX_LEN);
        assert!(!bytes.contains(&0));
    }
}
