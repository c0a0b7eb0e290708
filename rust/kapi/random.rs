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
