// SPDX-License-Identifier: GPL-2.0

//! SMC-R for Linux: an `AF_SMC` stream socket whose bytes travel by RDMA WRITE, or by TCP where they cannot.
//!
//! This file is the crate root: it lists the rooms and registers them in the order in which they must go away.

use kernel::prelude::*;

#[allow(dead_code, unreachable_pub, unused_imports, reason = "a library of its own: it offers more than one caller uses")]
mod kapi;

module! {
    type: SmcModule,
    name: "smc_rs",
    authors: ["The smc-rs developers"],
    description: "Shared Memory Communications over RDMA (SMC-R)",
    license: "GPL",
}

/// Everything the module has registered.
struct SmcModule;

impl kernel::Module for SmcModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
