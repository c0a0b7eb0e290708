// SPDX-License-Identifier: GPL-2.0

//! SMC-R for Linux: an `AF_SMC` stream socket whose bytes travel by RDMA WRITE, or by TCP where they cannot.
//!
//! This file is the crate root: it lists the rooms and registers them in the order in which they must go away.

use kernel::prelude::*;

#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a library of its own: it offers more than one caller uses"
)]
mod kapi;
pub mod proto;
#[allow(
    dead_code,
    unused_imports,
    reason = "used by the handshake and the data path, which follow"
)]
mod smc_ib;
#[allow(
    dead_code,
    unused_imports,
    reason = "used by the handshake and the data path, which follow"
)]
mod smc_llc;

module! {
    type: SmcModule,
    name: "smc_rs",
    authors: ["The smc-rs developers"],
    description: "Shared Memory Communications over RDMA (SMC-R)",
    license: "GPL",
}

/// Everything the module has registered; fields are dropped from first to last.
struct SmcModule {
    /// RDMA devices.
    _ib: smc_ib::Registration,
    /// Link groups.
    _llc: smc_llc::Registration,
}

impl kernel::Module for SmcModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let llc = smc_llc::Registration::new()?;
        let ib = smc_ib::Registration::new(llc.device_user())?;
        Ok(Self { _ib: ib, _llc: llc })
    }
}
