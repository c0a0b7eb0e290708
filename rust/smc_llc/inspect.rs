// SPDX-License-Identifier: GPL-2.0

//! What an operator sees of the link groups.

use kernel::sync::{
    atomic::Relaxed,
    Arc, //
};

use crate::{
    kapi::{
        net::NetNs,
        rdma::Device, //
    },
    proto::{
        group::{
            GroupType,
            LINK_SLOTS, //
        },
        ids::{
            Eid,
            LinkUserId, //
        },
    },
};

use super::{
    group::{
        LinkGroup,
        PeerHost, //
    },
    link::Link,
    registry, //
};

/// How many links there are on a port of a device.
pub(crate) fn links_on(device: &Arc<Device>, port: u32) -> u32 {
    let mut links: u32 = 0;
    registry::each_group(|group| {
        for link in group.kept_links() {
            if link.start().is_at(device) && link.start().port() == port {
                links = links.saturating_add(1);
            }
        }
    });
    links
}

/// Whether a link group would end with the device: all its links are there.
pub(crate) fn is_critical(device: &Arc<Device>) -> bool {
    let mut critical = false;
    registry::each_group(|group| {
        let mut links = group.kept_links().peekable();
        critical |= links.peek().is_some() && links.all(|link| link.start().is_at(device));
    });
    critical
}

/// The group in a namespace with the least number that is `least` or more.
pub(crate) fn group_from(net: &NetNs, least: u32) -> Option<Arc<LinkGroup>> {
    let mut found: Option<Arc<LinkGroup>> = None;
    registry::each_group(|group| {
        let nearer = found.as_ref().is_none_or(|f| group.id() < f.id());
        if group.id() >= least && nearer && group.kept_links().any(|l| l.start().is_in(net)) {
            found = Some(group.clone());
        }
    });
    found
}

/// What an operator sees of a group.
pub(crate) struct GroupFacts {
    /// How its links lie.
    pub(crate) kind: GroupType,
    /// VLAN of its links.
    pub(crate) vlan: Option<u16>,
    /// The enterprise id that both chose in version 2.
    pub(crate) eid: Option<Eid>,
    /// The peer's host.
    pub(crate) peer: PeerHost,
    /// No router lies between.
    pub(crate) direct: bool,
    /// Most connections.
    pub(crate) max_conns: u8,
    /// Most links.
    pub(crate) max_links: u8,
    /// Bytes of its send rings, spare ones included.
    pub(crate) send_bytes: u64,
    /// Bytes of its receive rings, spare ones included.
    pub(crate) receive_bytes: u64,
}

/// What an operator sees of a link.
pub(crate) struct LinkFacts {
    /// The link.
    pub(crate) link: Arc<Link>,
    /// Its state as tools number it.
    pub(crate) state: u32,
    /// Our id of it.
    pub(crate) user_id: LinkUserId,
    /// The peer's.
    pub(crate) peer_user_id: LinkUserId,
    /// Connections that use it.
    pub(crate) conns: u32,
}

impl LinkGroup {
    /// Every link that does not go.
    fn kept_links(&self) -> impl Iterator<Item = Arc<Link>> + use<'_> {
        self.links().filter(|link| !link.is_lost())
    }

    /// What an operator sees of it.
    pub(crate) fn facts(&self) -> GroupFacts {
        let (kind, max_links) = {
            let state = self.llc.lock();
            (state.kind, state.max_links)
        };
        let (receive_bytes, send_bytes) = self.rings.lock().bytes();
        let params = self.params();
        GroupFacts {
            kind,
            vlan: self.vlan(),
            eid: params.eid,
            peer: self.peer_host(),
            direct: self.kept_links().any(|link| link.is_direct()),
            max_conns: params.max_conns,
            max_links,
            send_bytes,
            receive_bytes,
        }
    }

    /// The link in a column, unless it is on its way out.
    fn link_facts(&self, column: usize) -> Option<LinkFacts> {
        let (link, state) = {
            let state = self.llc.lock();
            let column = state.columns.get(column)?.as_ref()?;
            (column.link.clone(), column.state.number()?)
        };
        Some(LinkFacts {
            state,
            user_id: link.user_id(),
            peer_user_id: link.peer_user_id(),
            conns: u32::try_from(link.conns.load(Relaxed)).unwrap_or(0),
            link,
        })
    }

    /// What an operator sees of its links from a place on: their places, and the links.
    pub(crate) fn links_from(
        &self,
        place: usize,
    ) -> impl Iterator<Item = (usize, LinkFacts)> + use<'_> {
        (place..LINK_SLOTS).filter_map(|at| Some((at, self.link_facts(at)?)))
    }
}
