// SPDX-License-Identifier: GPL-2.0

//! Random numbers.
//!
//! C header: [`include/linux/random.h`](srctree/include/linux/random.h)

use smc_bindings as bindings;

/// Eight random bytes, good enough for secrets. Any context.
pub fn random_u64() -> u64 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::get_random_u64() }
}

/// Four random bytes, good enough for secrets. Any context.
pub fn random_u32() -> u32 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::get_random_u32() }
}

/// Eight random bytes as such.
pub fn random_bytes() -> [u8; 8] {
    random_u64().to_ne_bytes()
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kernel::prelude::kunit_tests(smc_kapi_random)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ() {
        assert!(random_u64() != random_u64());
        assert!(random_bytes() != random_bytes());
        assert!((0..8).any(|_| random_u32() != random_u32()));
    }
}
