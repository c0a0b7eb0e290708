// SPDX-License-Identifier: GPL-2.0

//! Safe abstractions over the kernel's C interfaces: the only room, beside `bindings`, where `unsafe` stands.
//!
//! It imports the `kernel` crate and the private bindings, never the protocol core nor the shell.

pub mod event;
pub mod global;
#[cfg(CONFIG_KUNIT = "y")]
mod layout;
pub mod memcg;
pub mod net;
pub mod netlink;
pub mod pages;
pub mod percpu;
pub mod probe;
pub mod published;
pub mod random;
pub mod rdma;
pub mod rivals;
pub mod shrinker;
pub mod sync;
pub mod trace;
pub mod uts;
pub mod work;
