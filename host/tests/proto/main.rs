// SPDX-License-Identifier: GPL-2.0

//! Tests of the protocol core; one binary, so that it links once.

mod cdc;
mod clc;
mod close;
mod common;
mod cursor;
mod group;
mod llc;
mod negotiate;
mod small;
mod tcpopt;
