// SPDX-License-Identifier: GPL-2.0

//! Link groups and their links.

use kernel::prelude::*;

use crate::{
    kapi::{
        net::NetNs,
        netlink::{
            genl::Dump,
            Attrs, //
        },
    },
    net_ctx::NetCtx,
    proto::{
        ids::{
            Gid,
            Role, //
        },
        pnet::PnetId, //
    },
    smc_ib::until_zero,
    smc_llc::{
        self,
        LinkFacts,
        LinkGroup, //
    },
};

use super::{
    gid_text,
    system::command::{
        GET_LGR_SMCR,
        GET_LINK_SMCR, //
    },
};

/// Attribute around a group.
const LGR_SMCR: u16 = 2;

/// Attribute around a link.
const LINK_SMCR: u16 = 3;

/// Attributes of a group.
mod group {
    /// Its number on this host.
    pub(super) const ID: u16 = 1;
    /// Our role: 0 for the client, 1 for the server.
    pub(super) const ROLE: u16 = 2;
    /// How its links lie.
    pub(super) const LINKS: u16 = 3;
    /// The id of its physical network.
    pub(super) const PNETID: u16 = 4;
    /// The low byte of its VLAN.
    pub(super) const VLAN_ID: u16 = 5;
    /// Connections now.
    pub(super) const CONNS_NUM: u16 = 6;
    /// What version 2 has for every kind of group.
    pub(super) const V2_COMMON: u16 = 7;
    /// What version 2 has for SMC-R.
    pub(super) const V2: u16 = 8;
    /// The number of its namespace that is never used again.
    pub(super) const NET_COOKIE: u16 = 9;
    /// Fills a gap.
    pub(super) const PAD: u16 = 10;
    /// How its rings lie in memory.
    pub(super) const BUF_TYPE: u16 = 11;
    /// Bytes of its send rings.
    pub(super) const SNDBUF_ALLOC: u16 = 12;
    /// Bytes of its receive rings.
    pub(super) const RMB_ALLOC: u16 = 13;
}

/// Attributes within [`group::V2_COMMON`].
mod common {
    /// Version.
    pub(super) const VER: u16 = 0;
    /// Release of that.
    pub(super) const REL: u16 = 1;
    /// The peer's operating system.
    pub(super) const OS: u16 = 2;
    /// The enterprise id.
    pub(super) const NEG_EID: u16 = 3;
    /// The peer's host name.
    pub(super) const PEER_HOST: u16 = 4;
}

/// Attributes within [`group::V2`].
mod v2 {
    /// Whether no router lies between.
    pub(super) const NO_ROUTER: u16 = 1;
    /// Most connections.
    pub(super) const MOST_CONNS: u16 = 2;
    /// Most links.
    pub(super) const MOST_LINKS: u16 = 3;
}

/// Attributes of a link.
mod link {
    /// Its number in the group.
    pub(super) const ID: u16 = 1;
    /// Name of the RDMA device.
    pub(super) const IB_DEV: u16 = 2;
    /// Its port.
    pub(super) const IB_PORT: u16 = 3;
    /// Our GID as text.
    pub(super) const GID: u16 = 4;
    /// The peer's.
    pub(super) const PEER_GID: u16 = 5;
    /// Connections that use it.
    pub(super) const CONN_CNT: u16 = 6;
    /// Number of the network interface.
    pub(super) const NET_DEV: u16 = 7;
    /// Our id of it, as it stands on the wire.
    pub(super) const UID: u16 = 8;
    /// The peer's.
    pub(super) const PEER_UID: u16 = 9;
    /// Its state.
    pub(super) const STATE: u16 = 10;
}

/// Lists the groups.
pub(super) fn dump(dump: &mut Dump<'_>) -> Result {
    list(dump, false)
}

/// Lists the groups, each with its links behind it.
pub(super) fn dump_links(dump: &mut Dump<'_>) -> Result {
    list(dump, true)
}

/// Lists groups in the order of their numbers. The position is the least number that is still to come, and how far that
/// group has come: zero if not at all, else one more than the place of the next link.
fn list(dump: &mut Dump<'_>, with_links: bool) -> Result {
    let net = dump.net();
    let [mut least, mut done] = dump.position();
    while let Some(group) = u32::try_from(least)
        .ok()
        .and_then(|least| smc_llc::group_from(net, least))
    {
        let id = u64::from(group.id());
        if done == 0 || id != least {
            dump.message(GET_LGR_SMCR, |message| {
                message.nest(LGR_SMCR, |to| put_group(to, net, &group))
            })?;
            done = 1;
            dump.set_position([id, done]);
        }
        let from = usize::try_from(done.saturating_sub(1))?;
        for (place, facts) in group.links_from(from).take_while(|_| with_links) {
            dump.message(GET_LINK_SMCR, |message| {
                message.nest(LINK_SMCR, |to| put_link(to, &facts))
            })?;
            dump.set_position([id, u64::try_from(place)?.saturating_add(2)]);
        }
        (least, done) = (id.saturating_add(1), 0);
        dump.set_position([least, done]);
    }
    Ok(())
}

/// Writes a group.
fn put_group(to: &mut Attrs<'_>, net: &NetNs, group: &LinkGroup) -> Result {
    let facts = group.facts();
    let role = match group.role() {
        Role::Client => 0,
        Role::Server => 1,
    };
    let id = group
        .links_from(0)
        .next()
        .and_then(|(_, first)| first.link.start().network());
    to.u32(group::ID, group.id())?;
    to.u8(group::ROLE, role)?;
    to.u8(group::LINKS, facts.kind.number())?;
    to.text(group::PNETID, id.as_ref().map_or(&[], PnetId::name))?;
    let vlan = facts.vlan.unwrap_or(0) & 0xff;
    to.u8(group::VLAN_ID, u8::try_from(vlan).unwrap_or(0))?;
    to.u32(group::CONNS_NUM, group.conns())?;
    to.u64(group::NET_COOKIE, net.cookie(), group::PAD)?;
    to.u8(group::BUF_TYPE, NetCtx::of(net)?.settings().buf_type())?;
    to.uint(group::SNDBUF_ALLOC, facts.send_bytes)?;
    to.uint(group::RMB_ALLOC, facts.receive_bytes)?;
    // Without them it is one of version 1, which has nothing of that.
    let Some(eid) = facts.eid else {
        return Ok(());
    };
    to.nest(group::V2_COMMON, |to| {
        to.u8(common::VER, group.version().number())?;
        to.u8(common::REL, group.release())?;
        to.u8(common::OS, facts.peer.os.get())?;
        to.text(common::NEG_EID, &eid.0)?;
        to.text(common::PEER_HOST, facts.peer.name.name())
    })?;
    to.nest(group::V2, |to| {
        to.u8(v2::NO_ROUTER, u8::from(facts.direct))?;
        to.u8(v2::MOST_CONNS, facts.max_conns)?;
        to.u8(v2::MOST_LINKS, facts.max_links)
    })
}

/// Writes a link.
fn put_link(to: &mut Attrs<'_>, facts: &LinkFacts) -> Result {
    let start = facts.link.start();
    let peer = facts.link.peer().map_or(Gid::ZERO, |peer| peer.gid);
    to.u8(link::ID, facts.link.id().get())?;
    to.text(link::IB_DEV, until_zero(&start.device_name()))?;
    to.u8(link::IB_PORT, u8::try_from(start.port())?)?;
    to.text(link::GID, until_zero(&gid_text(&start.gid())))?;
    to.text(link::PEER_GID, until_zero(&gid_text(&peer)))?;
    to.u32(link::CONN_CNT, facts.conns)?;
    to.u32(link::NET_DEV, start.ifindex())?;
    to.bytes(link::UID, &facts.user_id.0)?;
    to.bytes(link::PEER_UID, &facts.peer_user_id.0)?;
    to.u32(link::STATE, facts.state)
}
