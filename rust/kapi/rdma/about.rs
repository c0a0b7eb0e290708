// SPDX-License-Identifier: GPL-2.0

//! What an operator wants to know of an RDMA device: its network interfaces and its place in the machine.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use kernel::prelude::*;
use smc_bindings as bindings;

use super::{
    AsNet,
    DeviceUse, //
};

/// Longest name of a PCI device here, with the zero at its end.
const PCI_NAME: usize = 16;

/// A device on the PCI bus.
pub struct Pci {
    /// Number of its maker.
    pub vendor: u16,
    /// Its number there.
    pub device: u16,
    /// Its address, padded with zeroes.
    pub name: [u8; PCI_NAME],
}

impl DeviceUse {
    /// The number of a port's network interface; 0 when it has none in `net`. May sleep.
    pub fn netdev_index(&self, port: u32, net: &impl AsNet) -> u32 {
        let net = net.as_net().as_ptr();
        // SAFETY: By the type invariant the device is valid, and so is the namespace by the contract of `AsNet`; the
        // RDMA core checks the port number.
        unsafe { bindings::ib_netdev_index(self.raw(), port, net) }
    }

    /// Where the device is on the PCI bus, if it is there; one made in software is not.
    pub fn pci(&self) -> Option<Pci> {
        let mut pci = Pci {
            vendor: 0,
            device: 0,
            name: [0; PCI_NAME],
        };
        // SAFETY: By the type invariant the device is valid, and the array is as long as the call says.
        let found = unsafe {
            bindings::ib_pci_about(
                self.raw(),
                &mut pci.vendor,
                &mut pci.device,
                pci.name.as_mut_ptr().cast(),
                PCI_NAME,
            )
        };
        found.then_some(pci)
    }
}
