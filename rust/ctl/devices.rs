// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their ports.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::{
        net::NetNs,
        netlink::{
            genl::Dump,
            Attrs, //
        },
        rdma::{
            Device,
            DeviceUse, //
        },
    },
    net_ctx::NetCtx,
    proto::pnet::{
        PnetId,
        MAX_PORTS, //
    },
    smc_ib::{
        self,
        until_zero, //
    },
    smc_llc, //
};

use super::system::command::GET_DEV_SMCR;

/// Attribute around a device.
const DEV_SMCR: u16 = 6;

/// Attributes of a device.
mod dev {
    /// Links on it.
    pub(super) const USE_CNT: u16 = 1;
    /// Whether a link group would end with it.
    pub(super) const IS_CRIT: u16 = 2;
    /// Number of the PCI function.
    pub(super) const PCI_FID: u16 = 3;
    /// Channel of the PCI function.
    pub(super) const PCI_CHID: u16 = 4;
    /// Its maker.
    pub(super) const PCI_VENDOR: u16 = 5;
    /// Its number there.
    pub(super) const PCI_DEVICE: u16 = 6;
    /// Its address.
    pub(super) const PCI_ID: u16 = 7;
    /// The first port; the second has the number behind.
    pub(super) const PORT: u16 = 8;
    /// Name of the RDMA device.
    pub(super) const IB_NAME: u16 = 10;
}

/// Attributes of a port.
mod port {
    /// Whether an operator gave it the id of its network.
    pub(super) const PNET_USR: u16 = 1;
    /// That id.
    pub(super) const PNETID: u16 = 2;
    /// Number of its network interface.
    pub(super) const NETDEV: u16 = 3;
    /// Whether it is up.
    pub(super) const STATE: u16 = 4;
    /// Whether there is such a port.
    pub(super) const VALID: u16 = 5;
    /// Links on it.
    pub(super) const LNK_CNT: u16 = 6;
}

/// Lists the devices.
pub(super) fn dump(dump: &mut Dump<'_>) -> Result {
    let net = dump.net();
    let [start, _] = dump.position();
    let skip = usize::try_from(start)?;
    for (at, device) in (start..).zip(smc_ib::devices().skip(skip)) {
        if let Some(used) = device.enter() {
            if used.visible_in(net) {
                dump.message(GET_DEV_SMCR, |message| {
                    message.nest(DEV_SMCR, |to| put(to, net, &device, &used))
                })?;
            }
        }
        dump.set_position([at.saturating_add(1), 0]);
    }
    Ok(())
}

/// The ports that tools know of.
fn ports(used: &DeviceUse) -> impl Iterator<Item = u32> {
    1..=used.limits().ports.min(u32::from(MAX_PORTS))
}

/// Writes a device.
fn put(to: &mut Attrs<'_>, net: &NetNs, device: &Arc<Device>, used: &DeviceUse) -> Result {
    let links = |port| smc_llc::links_on(device, port);
    let all = ports(used).map(links).fold(0, u32::saturating_add);
    to.u32(dev::USE_CNT, all)?;
    to.u8(dev::IS_CRIT, u8::from(smc_llc::is_critical(device)))?;
    if let Some(pci) = used.pci() {
        to.u32(dev::PCI_FID, 0)?;
        to.u16(dev::PCI_CHID, 0)?;
        to.u16(dev::PCI_VENDOR, pci.vendor)?;
        to.u16(dev::PCI_DEVICE, pci.device)?;
        to.text(dev::PCI_ID, until_zero(&pci.name))?;
    }
    let mut name = [0; 64];
    used.name(&mut name);
    to.text(dev::IB_NAME, until_zero(&name))?;
    for (kind, number) in (dev::PORT..).zip(ports(used)) {
        let id = NetCtx::of(net)
            .ok()
            .and_then(|ctx| smc_ib::port_network(&ctx, used, number));
        to.nest(kind, |to| {
            to.u8(port::PNET_USR, u8::from(id.is_some()))?;
            to.text(port::PNETID, id.as_ref().map_or(&[], PnetId::name))?;
            to.u32(port::NETDEV, used.netdev_index(number, net))?;
            let up = used.port(number).is_ok_and(|state| state.usable);
            to.u8(port::STATE, u8::from(up))?;
            to.u8(port::VALID, 1)?;
            to.u32(port::LNK_CNT, links(number))
        })?;
    }
    Ok(())
}
