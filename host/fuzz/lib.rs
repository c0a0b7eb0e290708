// SPDX-License-Identifier: GPL-2.0

//! The protocol core and what its fuzz targets do, for `cargo fuzz`.

#[path = "../../rust/proto/mod.rs"]
pub mod proto;

pub mod bodies;

#[path = "../tests/proto/sim.rs"]
pub mod sim;

#[path = "../tests/proto/common.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod common;

/// The simulator of whole hosts.
#[path = "../tests/sim/mod.rs"]
#[allow(dead_code, reason = "shared with its own tests")]
pub mod hosts;
