// SPDX-License-Identifier: GPL-2.0

//! The choice of device, port and GID for a connection, and the way to its peer.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::rdma::{
        self,
        AsNet,
        Device,
        DeviceUse,
        GidEntry, //
    },
    proto::{
        ids::{
            Gid,
            Mac,
            MtuCode, //
        },
        DeclineReason, //
    },
};

/// How long the next hop may take to tell its Ethernet address.
const RESOLVE_MS: u32 = 2000;

/// Hop limit towards a peer behind a router, and on the same network.
const HOPS: (u8, u8) = (64, 1);

/// By what a peer is reached: our device, port and GID, and the next hop.
#[derive(Clone)]
pub(crate) struct Path {
    /// The device.
    device: Arc<Device>,
    /// Its port, counted from 1.
    port: u32,
    /// Our GID there.
    gid: GidEntry,
    /// Path MTU of the port.
    mtu: MtuCode,
    /// Ethernet address of the next hop.
    next_hop: Mac,
    /// The peer is on the same network.
    direct: bool,
}

impl Path {
    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Port of the device.
    pub(crate) fn port(&self) -> u32 {
        self.port
    }

    /// Our GID.
    pub(crate) fn gid(&self) -> Gid {
        Gid(self.gid.gid)
    }

    /// Index of our GID in the port's table.
    pub(crate) fn gid_index(&self) -> u16 {
        self.gid.index
    }

    /// Our Ethernet address.
    pub(crate) fn mac(&self) -> Mac {
        Mac(self.gid.mac)
    }

    /// VLAN of our network interface.
    pub(crate) fn vlan(&self) -> Option<u16> {
        (self.gid.vlan < 0x1000).then_some(self.gid.vlan)
    }

    /// Path MTU of our port.
    pub(crate) fn mtu(&self) -> MtuCode {
        self.mtu
    }

    /// Whether no router lies between.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    /// Where frames to a peer with this Ethernet address go.
    pub(crate) fn destination(&self, peer: Mac) -> Mac {
        if self.direct && !peer.is_zero() {
            peer
        } else {
            self.next_hop
        }
    }

    /// Hop limit for packets to the peer.
    pub(crate) fn hop_limit(&self) -> u8 {
        if self.direct {
            HOPS.1
        } else {
            HOPS.0
        }
    }

    /// Whether both begin at the same port with the same GID.
    pub(crate) fn same_start(&self, other: &Self) -> bool {
        core::ptr::eq(&*self.device, &*other.device)
            && self.port == other.port
            && self.gid.gid == other.gid.gid
    }

    /// The device's name, ended by a zero byte; zeros when the device has gone.
    pub(crate) fn device_name(&self) -> [u8; 64] {
        let mut name = [0; 64];
        if let Some(device) = self.device.enter() {
            device.name(&mut name);
        }
        name
    }
}

/// Finds the path of a connection from `local` to `peer`, both IPv4, in `net`.
///
/// May sleep for two seconds, when the next hop's Ethernet address is not known yet.
///
/// # Errors
///
/// [`DeclineReason::NOSMCRDEV`] without a RoCE v2 GID on the network of `local`; [`DeclineReason::NOROUTE`] without a
/// way to the peer.
pub(crate) fn find_path(
    net: &impl AsNet,
    local: [u8; 4],
    peer: [u8; 4],
) -> Result<Path, DeclineReason> {
    let mut best: Option<(DeviceUse, u32, GidEntry, MtuCode)> = None;
    for device in super::devices().filter_map(|device| device.enter()) {
        if !device.visible_in(net) {
            continue;
        }
        for port in 1..=device.limits().ports {
            let Ok(state) = device.port(port) else {
                continue;
            };
            let mtu = MtuCode::from_nibble(state.mtu);
            if !state.usable || mtu.bytes().is_none() {
                continue;
            }
            let Some(gid) = device.find_gid(port, state.gids, net, local) else {
                continue;
            };
            // The GID of the address itself is better than one of its network.
            let exact = Gid(gid.gid).as_v4() == Some(local);
            if exact || best.is_none() {
                best = Some((device.clone(), port, gid, mtu));
            }
        }
    }
    let (device, port, gid, mtu) = best.ok_or(DeclineReason::NOSMCRDEV)?;
    let route = rdma::resolve(net, local, peer, RESOLVE_MS).map_err(|_| DeclineReason::NOROUTE)?;
    super::identify(device.device(), gid.mac);
    Ok(Path {
        device: device.device().clone(),
        port,
        gid,
        mtu,
        next_hop: Mac(route.next_hop),
        direct: !route.gateway,
    })
}
