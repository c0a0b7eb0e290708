// SPDX-License-Identifier: GPL-2.0

//! The protocol core and what its fuzz targets do, for `cargo fuzz`.

#[path = "../../rust/proto/mod.rs"]
pub mod proto;

pub mod bodies;

#[path = "../tests/proto/sim.rs"]
pub mod sim;
