// SPDX-License-Identifier: GPL-2.0

//! The choice of device, port and GID for a link, and the way from there to its peer.

use core::{
    net::IpAddr,
    ops::Deref, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::{
        net::NetNs,
        rdma::{
            self,
            AsNet,
            Device,
            DeviceUse,
            Ends,
            GidEntry,
            GidKind, //
        },
    },
    net_ctx::NetCtx,
    proto::{
        clc::{
            Subnet,
            Version, //
        },
        group::{
            pick_alternate,
            Alternate, //
        },
        ids::{
            Gid,
            Mac,
            MtuCode, //
        },
        pnet::{
            serves,
            PnetId,
            Port, //
        },
        DeclineReason, //
    },
};

/// How long the next hop may take to tell its Ethernet address.
const RESOLVE_MS: u32 = 2000;

/// The same for a further link: the server waits two seconds for the answer to its offer. Time for two questions, of which
/// there is one in a second.
const RESOLVE_FURTHER_MS: u32 = 1500;

/// Hop limit towards a peer behind a router, and on the same network.
const HOPS: (u8, u8) = (64, 1);

/// Where a link begins: our device, port and GID.
#[derive(Clone)]
pub(crate) struct Start {
    /// The device.
    device: Arc<Device>,
    /// Its port, counted from 1.
    port: u32,
    /// Our GID there.
    gid: GidEntry,
    /// Path MTU of the port.
    mtu: MtuCode,
    /// Version of the link.
    version: Version,
    /// What is kept for the namespace of its network interface.
    ctx: Arc<NetCtx>,
}

impl Start {
    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What is kept for its namespace.
    pub(crate) fn ctx(&self) -> &Arc<NetCtx> {
        &self.ctx
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

    /// Whether it is at this device.
    pub(crate) fn is_at(&self, device: &Arc<Device>) -> bool {
        core::ptr::eq(&*self.device, &**device)
    }

    /// The network interface of the GID.
    pub(crate) fn ifindex(&self) -> u32 {
        self.gid.ifindex.unsigned_abs()
    }

    /// Whether it is in this namespace, as far as the interface is still there.
    pub(crate) fn is_in(&self, net: &NetNs) -> bool {
        self.device
            .enter()
            .and_then(|device| device.namespace_of(self.port, &self.gid))
            .is_some_and(|own| *own == *net)
    }

    /// Whether both are the same port with the same GID of the same kind.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.is_at(&other.device)
            && self.port == other.port
            && self.gid.gid == other.gid.gid
            && self.gid.kind == other.gid.kind
    }

    /// Whether packets from here can be addressed to a peer's GID.
    pub(crate) fn speaks_with(&self, peer: Gid) -> bool {
        match self.gid.kind {
            GidKind::RoceV1 => !peer.is_zero(),
            GidKind::RoceV2 => self.gid().speaks_with(peer),
        }
    }

    /// The way to a peer on the same network, as version 1 has it: its GID and its Ethernet address are all there is.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::NOROUTE`].
    fn across(&self, peer: Gid, mac: Mac) -> Result<Path, DeclineReason> {
        if !self.speaks_with(peer) || mac.is_zero() {
            return Err(DeclineReason::NOROUTE);
        }
        Ok(Path {
            start: self.clone(),
            next_hop: mac,
            direct: true,
        })
    }

    /// The device's name, ended by a zero byte; for one that has gone that which it had when it came.
    pub(crate) fn device_name(&self) -> [u8; 64] {
        let mut name = *self.device.first_name();
        if let Some(device) = self.device.enter() {
            device.name(&mut name);
        }
        name
    }

    /// The id of the physical network of its port.
    pub(crate) fn network(&self) -> Option<PnetId> {
        port_network(&self.ctx, &self.device.enter()?, self.port)
    }

    /// The way from here to a peer's GID and Ethernet address, in the namespace of our network interface. May sleep for
    /// a second and a half.
    ///
    /// In version 2 a peer on a network of our interface is reached through that, whatever the routes say of others beside
    /// it; else the route to it has to begin there.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::NOROUTE`].
    pub(crate) fn to(&self, peer: Gid, mac: Mac) -> Result<Path, DeclineReason> {
        if self.version == Version::V1 {
            return self.across(peer, mac);
        }
        let none = DeclineReason::NOROUTE;
        let device = self.device.enter().ok_or(none)?;
        let net = device.namespace_of(self.port, &self.gid).ok_or(none)?;
        let near = device.gid_is_near(self.port, &self.gid, &*net, rdma::ip_of(peer.0));
        let via = near.then_some(self.gid.ifindex);
        let ends = Ends::of_gids(self.gid.gid, peer.0, via).ok_or(none)?;
        let route = rdma::resolve(&*net, &ends, RESOLVE_FURTHER_MS).map_err(|_| none)?;
        if route.source != self.gid.mac {
            return Err(none);
        }
        Ok(Path {
            start: self.clone(),
            next_hop: Mac(route.next_hop),
            direct: !route.gateway,
        })
    }
}

/// Where a connection would begin, before anybody has asked for the next hop to its peer: only a new link needs that.
pub(crate) struct Approach {
    /// Our side.
    start: Start,
    /// The addresses of the connection.
    ends: Ends,
}

impl Deref for Approach {
    type Target = Start;

    fn deref(&self) -> &Start {
        &self.start
    }
}

impl Approach {
    /// The way to the peer in `net`, whose GID and Ethernet address are these. May sleep for two seconds, when the next
    /// hop's Ethernet address is not known yet.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::NOROUTE`].
    pub(crate) fn path(&self, net: &impl AsNet, gid: Gid, mac: Mac) -> Result<Path, DeclineReason> {
        if self.start.version == Version::V1 {
            return self.start.across(gid, mac);
        }
        let none = DeclineReason::NOROUTE;
        if !self.start.speaks_with(gid) {
            return Err(none);
        }
        let route = rdma::resolve(net, &self.ends, RESOLVE_MS).map_err(|_| none)?;
        Ok(Path {
            start: self.start.clone(),
            next_hop: Mac(route.next_hop),
            direct: !route.gateway,
        })
    }

    /// Our address of the connection.
    pub(crate) fn local(&self) -> IpAddr {
        self.ends.local()
    }

    /// The subnets of the interface by which the connection goes in `net`, of the kind of our address.
    pub(crate) fn subnets(&self, net: &impl AsNet) -> impl Iterator<Item = Subnet> {
        rdma::subnets(net, &self.ends).filter_map(|(address, len)| Subnet::new(address, len))
    }
}

/// By what a peer is reached: where our side begins, and the next hop.
#[derive(Clone)]
pub(crate) struct Path {
    /// Our side.
    start: Start,
    /// Ethernet address of the next hop.
    next_hop: Mac,
    /// The peer is on the same network.
    direct: bool,
}

impl Deref for Path {
    type Target = Start;

    fn deref(&self) -> &Start {
        &self.start
    }
}

impl Path {
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
}

/// The ports that work of the devices that may be used in `net`: device, port, length of the GID table, path MTU.
fn ports<'a, N: AsNet>(
    net: &'a N,
) -> impl Iterator<Item = (DeviceUse, u32, u32, MtuCode)> + use<'a, N> {
    ports_that(net, |_, _| true)
}

/// Those of them that are `wanted`; the others are not asked for their state.
fn ports_that<'a, N: AsNet>(
    net: &'a N,
    wanted: fn(&DeviceUse, u32) -> bool,
) -> impl Iterator<Item = (DeviceUse, u32, u32, MtuCode)> + use<'a, N> {
    super::devices()
        .filter_map(|device| device.enter())
        .filter(move |device| device.visible_in(net))
        .flat_map(move |device| {
            (1..=device.limits().ports).filter_map(move |port| {
                if !wanted(&device, port) {
                    return None;
                }
                let state = device.port(port).ok()?;
                let mtu = MtuCode::from_nibble(state.mtu);
                (state.usable && mtu.bytes().is_some())
                    .then(|| (device.clone(), port, state.gids, mtu))
            })
        })
}

/// A name without the zeroes at its end.
pub(crate) fn until_zero(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or(name)
}

/// The id that the table of a namespace gives to a port, by the device's name or that of its PCI function.
pub(crate) fn port_network(ctx: &NetCtx, device: &DeviceUse, port: u32) -> Option<PnetId> {
    let mut name = [0; 64];
    device.name(&mut name);
    let pci = device.pci().map_or([0; 16], |pci| pci.name);
    let names = [until_zero(&name), until_zero(&pci)];
    ctx.pnet().of_port(&names, u8::try_from(port).ok()?)
}

/// The id that the table of `net`, whose context `ctx` is, gives to the interface by which a connection goes, and the
/// VLAN of that (`0xffff` for none).
fn interface_network(ctx: &NetCtx, net: &NetNs, ends: &Ends) -> Option<(PnetId, u16)> {
    if ctx.pnet().is_empty() {
        return None;
    }
    let interface = rdma::interface(net, ends)?;
    let (base, name) = (until_zero(&interface.base), until_zero(&interface.name));
    Some((ctx.pnet().of_interface(base, name)?, interface.vlan))
}

/// Finds where a connection between two ends in `net` begins.
///
/// If the interface of the connection has an id of a physical network only ports with the same one are considered.
///
/// # Errors
///
/// [`DeclineReason::NOSMCRDEV`] without a port that serves the interface and has a RoCE v2 GID on the network of our
/// address.
pub(crate) fn approach(net: &NetNs, ends: Ends) -> Result<Approach, DeclineReason> {
    let ctx = NetCtx::of(net).map_err(|_| DeclineReason::NOSMCRDEV)?;
    let interface = interface_network(&ctx, net, &ends).map(|(id, _)| id);
    let start = own_start(&ctx, net, &ends, interface, Version::V2);
    let start = start.ok_or(DeclineReason::NOSMCRDEV)?;
    super::identify(&start.device, start.gid.mac);
    Ok(Approach { start, ends })
}

/// A start of a link of this version at a RoCE v2 GID on the network of our address, at a port that serves an interface
/// with this id of a physical network.
fn own_start(
    ctx: &Arc<NetCtx>,
    net: &NetNs,
    ends: &Ends,
    interface: Option<PnetId>,
    version: Version,
) -> Option<Start> {
    let mut best: Option<Start> = None;
    // The GID of the address itself is better than one of its network, and is found without looking at every entry.
    for own in [true, false] {
        for (device, port, gids, mtu) in ports(net) {
            let found = match own {
                true => device.find_own_gid(port, net, ends),
                false => device.find_gid_around(port, gids, net, ends),
            };
            let Some(gid) = found else {
                continue;
            };
            let candidate = Port {
                usable: true,
                id: port_network(ctx, &device, port),
                // Its GID is one of the connection's own network.
                own: true,
            };
            let own = own || rdma::gid_of(ends.local()) == gid.gid;
            if serves(interface, &candidate) && (own || best.is_none()) {
                best = Some(Start {
                    device: device.device().clone(),
                    port,
                    gid,
                    mtu,
                    version,
                    ctx: ctx.clone(),
                });
            }
        }
        if best.is_some() {
            break;
        }
    }
    best
}

/// As [`approach`] for version 1: at a port with a RoCE v1 GID. That is one of the interface by which the connection
/// goes; where the table gives that an id, any one of a port of the same physical network, in the VLAN of the
/// connection.
///
/// # Errors
///
/// [`DeclineReason::NOSMCRDEV`] without such a port.
pub(crate) fn approach_v1(net: &NetNs, ends: Ends) -> Result<Approach, DeclineReason> {
    let ctx = NetCtx::of(net).map_err(|_| DeclineReason::NOSMCRDEV)?;
    let interface = interface_network(&ctx, net, &ends);
    let mut best: Option<Start> = None;
    for (device, port, gids, mtu) in ports_that(net, DeviceUse::has_v1_gids) {
        let own = device.find_v1_gid(port, gids, net, Some(ends.local()), None);
        let gid = match (own, interface) {
            (Some(own), _) => own,
            (None, Some((_, vlan))) => {
                match device.find_v1_gid(port, gids, net, None, Some(vlan)) {
                    Some(other) => other,
                    None => continue,
                }
            }
            (None, None) => continue,
        };
        let own = own.is_some();
        let candidate = Port {
            usable: true,
            id: port_network(&ctx, &device, port),
            own,
        };
        if serves(interface.map(|(id, _)| id), &candidate) && (own || best.is_none()) {
            best = Some(Start {
                device: device.device().clone(),
                port,
                gid,
                mtu,
                version: Version::V1,
                ctx: ctx.clone(),
            });
            if own {
                break;
            }
        }
    }
    if best.is_none() && super::v1_over_v2() {
        let interface = interface.map(|(id, _)| id);
        best = own_start(&ctx, net, &ends, interface, Version::V1);
    }
    let start = best.ok_or(DeclineReason::NOSMCRDEV)?;
    super::identify(&start.device, start.gid.mac);
    Ok(Approach { start, ends })
}

/// Finds where a further link may begin beside one that begins at `base`: at another device in the same namespace and
/// VLAN and, as far as the table says, physical network, that `used` does not say to have a link already, best on the
/// network of the peer's GID `near`, which is of IPv4 or of IPv6 as those of the group are. At a RoCE v1 GID where `base`
/// is one: the peer's then says nothing of where it is.
pub(crate) fn find_alternate(
    base: &Start,
    near: Gid,
    used: impl Fn(&Start) -> bool,
) -> Option<Start> {
    let net = {
        let device = base.device.enter()?;
        device.namespace_of(base.port, &base.gid)?
    };
    if !base.speaks_with(near) {
        return None;
    }
    let near = rdma::ip_of(near.0);
    let network = base.network();
    let mut starts = KVec::new();
    let mut ranks = KVec::new();
    for (device, port, gids, mtu) in ports(&*net) {
        if base.is_at(device.device()) || port_network(&base.ctx, &device, port) != network {
            continue;
        }
        let found = match base.gid.kind {
            GidKind::RoceV1 => device
                .find_v1_gid(port, gids, &*net, None, Some(base.gid.vlan))
                .map(|gid| (gid, false)),
            GidKind::RoceV2 => device.find_gid_near(port, gids, &*net, near),
        };
        let Some((gid, near)) = found else {
            continue;
        };
        let start = Start {
            device: device.device().clone(),
            port,
            gid,
            mtu,
            version: base.version,
            ctx: base.ctx.clone(),
        };
        if start.vlan() != base.vlan() {
            continue;
        }
        let rank = Alternate {
            used: used(&start),
            near,
        };
        // Without memory for the list there is no choice, and no further link.
        starts.push(start, GFP_KERNEL).ok()?;
        ranks.push(rank, GFP_KERNEL).ok()?;
    }
    starts.get(pick_alternate(&ranks)?).cloned()
}
