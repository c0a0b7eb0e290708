// SPDX-License-Identifier: GPL-2.0

//! What the module needs of the kernel's C interfaces, as bindgen reads it.
//!
//! The `kernel` crate's own bindings keep `sock`, `request_sock`, `ib_device` and others opaque, just where this
//! module works; hence a crate of its own. Only `kapi` may use it. [`bindings.h`](../bindings.h) lists the headers,
//! [`helpers.c`](../helpers.c) wraps the inline functions and macros that bindgen cannot see.

#![allow(clippy::all)]
#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    dead_code
)]

/// Types, constants and exported functions.
mod bindings_raw {
    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    include!(concat!(env!("SMC_BINDINGS"), "/bindings_generated.rs"));
}

/// The C wrappers of `helpers.c`, under the names of what they wrap.
mod bindings_helper {
    use super::bindings_raw::*;

    include!(concat!(env!("SMC_BINDINGS"), "/helpers_generated.rs"));
}

pub use bindings_helper::*;
pub use bindings_raw::*;
