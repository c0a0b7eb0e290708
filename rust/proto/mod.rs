// SPDX-License-Identifier: GPL-2.0

//! The protocol core: everything SMC-R leaves to software, as pure functions of bytes and values.
//!
//! Nothing here allocates, locks, sleeps, logs or reads a clock. Bytes and values come in; small
//! `#[must_use]` values that say what to do come out. The module is compiled into the kernel
//! object and, by path, into the host package that tests it.
//!
//! Numbers made by a peer enter through constructors that check them once; after that arithmetic
//! on them is `checked_`, `wrapping_` or `saturating_`, because a kernel with overflow checks
//! would otherwise let a peer stop the machine.

#![forbid(unsafe_code)]
#![deny(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_docs_in_private_items,
    clippy::panic,
    clippy::unwrap_used
)]
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the host package proves all of it; the shell uses what it needs"
)]

pub mod cdc;
pub mod clc;
pub mod close;
pub mod conn;
pub mod cursor;
pub mod error;
pub mod group;
pub mod ids;
pub mod llc;
pub mod pnet;
pub mod reason;
pub mod size;
pub mod stats;
pub mod tcpopt;
pub mod wire;

pub use error::{DecodeError, EncodeError, ProtoError, Why};
pub use reason::DeclineReason;
