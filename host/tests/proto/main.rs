// SPDX-License-Identifier: GPL-2.0

//! Tests of the protocol core; one binary, so that it links once, with the core inside, so that
//! coverage counts its generic functions where they are used.

#[path = "../../../rust/proto/mod.rs"]
mod proto;

mod addition;
mod captured;
mod cdc;
mod clc;
mod close;
mod common;
mod conn_limits;
mod cursor;
mod differences;
mod endpoint;
mod evacuation;
mod exchange;
mod failover;
mod flow;
mod fuzz;
#[path = "../../fuzz/bodies.rs"]
mod fuzz_bodies;
mod group;
mod llc;
mod matrices;
mod messages;
mod negotiate;
mod pair;
mod pnet;
mod rfc_collisions;
mod rfc_endings;
mod rfc_flows;
mod rings;
mod sim;
mod small;
mod subnet;
mod tcpopt;
mod urgent;
