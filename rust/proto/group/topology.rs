// SPDX-License-Identifier: GPL-2.0

//! How the links of a group lie between the devices of both sides, and which link is used.

use crate::proto::ids::{
    Gid,
    Mac,
    MtuCode,
    Role, //
};
use crate::proto::llc::AddLink;

/// How long it takes until a link is tried again that could not be added.
const RETRY_MS: u32 = 2_000;

/// How the links lie; the numbers and words are those of the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupType {
    /// No link.
    None,
    /// One link.
    Single,
    /// Two links between different devices on both sides.
    Symmetric,
    /// The peer has one device for both links.
    AsymmetricPeer,
    /// We have one device for both links.
    AsymmetricLocal,
}

impl GroupType {
    /// The number that tools know.
    pub const fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Single => 1,
            Self::Symmetric => 2,
            Self::AsymmetricPeer => 3,
            Self::AsymmetricLocal => 4,
        }
    }

    /// The word for a log line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Single => "SINGLE",
            Self::Symmetric => "SYMMETRIC",
            Self::AsymmetricPeer => "ASYMMETRIC_PEER",
            Self::AsymmetricLocal => "ASYMMETRIC_LOCAL",
        }
    }

    /// Whether one device carries both links.
    pub const fn is_asymmetric(self) -> bool {
        matches!(self, Self::AsymmetricPeer | Self::AsymmetricLocal)
    }

    /// The type after a link has gone and `left` are active.
    pub const fn after_delete(self, left: usize) -> Self {
        match left {
            0 => Self::None,
            1 => Self::Single,
            _ => self,
        }
    }

    /// Whether a further link would help: there is none yet, or one that could become symmetric.
    pub const fn wants_link(self) -> bool {
        matches!(
            self,
            Self::Single | Self::AsymmetricPeer | Self::AsymmetricLocal
        )
    }
}

/// What a side knows when a further link is to be made.
#[derive(Clone, Copy, Debug)]
pub struct AddContext {
    /// How the links lie now.
    pub group: GroupType,
    /// We have a second device for it, which carries at most the asymmetric link that this one would replace.
    pub own_alternate: bool,
    /// The peer has one, as far as it has said.
    pub peer_alternate: bool,
    /// GID and MAC of the peer on the first link.
    pub peer_gid: Gid,
    /// See `peer_gid`.
    pub peer_mac: Mac,
    /// Version 1 compares the MAC too.
    pub compare_mac: bool,
    /// How many links were agreed upon.
    pub max_links: u8,
    /// A column is free.
    pub free_slot: bool,
}

impl AddContext {
    /// Whether the peer uses the device of the first link again.
    fn peer_repeats(&self, gid: Gid, mac: Mac) -> bool {
        gid == self.peer_gid && (!self.compare_mac || mac == self.peer_mac)
    }

    /// The type that a link between these devices gives; `None` when it would lie beside the
    /// first one (RFC 7609, section 2.2.1: parallel links are not allowed), or when there is an
    /// asymmetric link already and this would be a second one (section 3.5.5.1.1).
    fn result(&self, own_alternate: bool, peer_repeats: bool) -> Option<GroupType> {
        let new = match (own_alternate, peer_repeats) {
            (true, false) => GroupType::Symmetric,
            (true, true) => GroupType::AsymmetricPeer,
            (false, false) => GroupType::AsymmetricLocal,
            (false, true) => return None,
        };
        (!(new.is_asymmetric() && self.group.is_asymmetric())).then_some(new)
    }

    /// Whether this side may begin to add a link at all: only the server, with room for it, and where it can come
    /// about: one of the two has a second device, and both where one device carries both links already.
    pub fn may_offer(&self, role: Role) -> bool {
        let helps = match self.group {
            GroupType::Single => self.own_alternate || self.peer_alternate,
            GroupType::AsymmetricLocal => self.own_alternate,
            GroupType::AsymmetricPeer => self.own_alternate && self.peer_alternate,
            GroupType::None | GroupType::Symmetric => false,
        };
        role == Role::Server && self.max_links > 1 && self.free_slot && helps
    }

    /// Whether a client has reason to ask for a link: it has a device that its links do not use. Where it is the server
    /// that lacks one, nothing would come of it (C peers do not ask either).
    pub fn may_ask(&self, role: Role) -> bool {
        role == Role::Client
            && self.max_links > 1
            && self.own_alternate
            && matches!(self.group, GroupType::Single | GroupType::AsymmetricLocal)
    }

    /// The client's answer to ADD LINK: the type that results (RFC 7609, section 3.5.1.6.1).
    ///
    /// # Errors
    ///
    /// The reason to reject it with.
    pub fn judge_request(&self, m: &AddLink<'_>) -> Result<GroupType, u8> {
        if m.mtu.bytes().is_none() {
            return Err(AddLink::INVALID_MTU);
        }
        if self.max_links <= 1 || !self.free_slot || m.link_num == 0 || !m.qpn.is_usable() {
            return Err(AddLink::NO_ALT_PATH);
        }
        self.result(self.own_alternate, self.peer_repeats(m.gid, m.mac))
            .ok_or(AddLink::NO_ALT_PATH)
    }

    /// Whether the answer is the offer itself, which names our end: a C client sends back so what comes while it waits
    /// for the end of the offer before, and takes neither.
    pub fn is_echo(sent: &AddLink<'_>, m: &AddLink<'_>) -> bool {
        !m.rejected && (m.gid, m.qpn) == (sent.gid, sent.qpn)
    }

    /// The server's look at the client's answer: the type that results and the path MTU, or
    /// nothing when the link is given up and the group goes on without it (RFC 7609, section
    /// 3.5.1.6.2 and appendix C.8).
    pub fn judge_response(
        &self,
        sent: &AddLink<'_>,
        m: &AddLink<'_>,
    ) -> Option<(GroupType, MtuCode)> {
        if m.rejected || m.link_num != sent.link_num || !m.qpn.is_usable() {
            return None;
        }
        let mtu = sent.mtu.agree(m.mtu)?;
        let new = self.result(self.own_alternate, self.peer_repeats(m.gid, m.mac))?;
        Some((new, mtu))
    }
}

/// A port of ours at which a further link might begin: it works, and belongs to another device than the first link's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Another link of the group is at its device already.
    pub used: bool,
    /// The peer is on its network, as far as that is known.
    pub near: bool,
}

/// Which port a further link takes: one whose device has no link of the group yet, best one that the peer is near to.
///
/// Whether the peer can be reached at all shows when its address is known: CONFIRM LINK has the last word.
pub fn pick_alternate(ports: &[Alternate]) -> Option<usize> {
    (0..ports.len())
        .filter(|i| ports.get(*i).is_some_and(|p| !p.used))
        .min_by_key(|i| ports.get(*i).map(|p| !p.near))
}

/// How long a side that has a device for a further link waits before it tries again, after so many failures in a row, in
/// milliseconds. RFC 7609 leaves that open. It never gives up: a way that is mended far from here changes no port.
pub const fn retry_ms(failures: u32) -> u32 {
    match failures {
        0 => 0,
        1..=7 => RETRY_MS << failures.saturating_sub(1),
        _ => RETRY_MS << 6,
    }
}

/// How long a further link has to live until its end says nothing of the way.
const SETTLED_MS: u32 = 10_000;

/// Whether the end of a further link counts like one that did not come: messages that came through in one direction alone
/// may have made one side believe in it. `by_path` says that neither its port nor its device has gone here.
pub const fn is_failure(lived_ms: u32, by_path: bool) -> bool {
    by_path && lived_ms < SETTLED_MS
}

/// One link when connections choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usable {
    /// It carries connections.
    pub active: bool,
    /// It is the asymmetric one of the two: it is used only if it is the last.
    pub spare: bool,
    /// Connections on it.
    pub conns: u32,
}

/// The column of the link for a new connection: the active one with the fewest connections,
/// asymmetric ones last (RFC 7609, section 2.3). C takes them in turns by the number of
/// connections.
pub fn pick_link(links: &[Usable]) -> Option<usize> {
    best(links, |_| true)
}

/// The column of the link that takes over from the one in column `failed`. Links on which no key of
/// the connection's peer is known are no choice: the peer may have left them already. Without a
/// choice the connection is aborted.
pub fn pick_other(links: &[Usable], failed: usize) -> Option<usize> {
    best(links, |i| i != failed)
}

/// The best active link among those that may be taken.
fn best(links: &[Usable], may: impl Fn(usize) -> bool) -> Option<usize> {
    (0..links.len())
        .filter(|i| may(*i) && links.get(*i).is_some_and(|l| l.active))
        .min_by_key(|i| links.get(*i).map(|l| (l.spare, l.conns)))
}
