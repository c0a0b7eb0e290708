// SPDX-License-Identifier: GPL-2.0

//! The protocol core of the kernel module, compiled for the host so that it can be tested.

#![no_std]
#![deny(missing_docs)]

#[path = "../../rust/proto/mod.rs"]
pub mod proto;
