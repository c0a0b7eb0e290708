// SPDX-License-Identifier: GPL-2.0

//! Link groups: when a connection may join one, and what its links answer.

mod addition;
mod confirm;
mod evacuation;
mod exchange;
mod flow;
mod keys;
mod link;
mod respond;
mod rtoken;
mod topology;

pub use addition::{
    AddEvent,
    Addition,
    End,
    Order,
    Say,
    Step,
    Via,
    Wait, //
};
pub use confirm::{
    judge_confirm_link,
    judge_confirm_rkey,
    KeyAnswer,
    LinkAgreed, //
};
pub use evacuation::{
    Evacuation,
    Queueing,
    EVACUATION_MS,
    STALLED_MS, //
};
pub use exchange::{
    TokenError,
    TokenExchange,
    Told,
    Turn,
    TOKENS_PER_MESSAGE, //
};
pub use flow::{
    Awaited,
    Busy,
    Dropped,
    Exchange,
    FlowId,
    Flows,
    Next,
    Verdict,
    WAIT_FIRST_LINK_MS,
    WAIT_MS,
    WAIT_NEW_LINK_MS,
    WAIT_PRESSED_MS, //
};
pub use keys::{
    needs_confirm,
    needs_delete,
    tells_again,
    FRESH_MS, //
};
pub use link::{
    judge_delete,
    judge_silence,
    linger_ms,
    Deletion,
    LinkActions,
    LinkEvent,
    LinkState,
    Signs,
    Silence,
    WrongLinkState,
    STUCK_MS,
    TEST_ANSWER_MS, //
};
pub use topology::{
    is_failure,
    pick_alternate,
    pick_link,
    pick_other,
    retry_ms,
    AddContext,
    Alternate,
    GroupType,
    Usable, //
};

pub use respond::{
    refuse_for_now,
    respond,
    Context,
    Ignored,
    LlcReply, //
};
pub use rtoken::{
    Rtoken,
    RtokenEntry,
    RtokenIndex,
    RtokenTable,
    TableFull,
    LINK_SLOTS,
    MAX_RTOKENS, //
};

use super::clc::Version;
use super::ids::{
    AlertToken,
    Eid,
    Gid,
    LinkId,
    Mac,
    PeerId,
    Qpn,
    Role, //
};

/// The most connections of a link group.
pub const MAX_CONNS: u8 = 255;

/// Who is on the other side of a link group and what was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Our side.
    pub role: Role,
    /// Version of the handshake.
    pub version: Version,
    /// The peer's stack instance; may be zero, so it never identifies a peer alone.
    pub peer_id: PeerId,
    /// The enterprise id of version 2: connections of different ids do not share links.
    pub eid: Option<Eid>,
    /// VLAN of the links: connections of different ones never share a group (RFC 7609, section 5.1).
    pub vlan: Option<u16>,
}

/// One link of a group as far as matching is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPeer {
    /// The link carries connections.
    pub active: bool,
    /// The peer's GID.
    pub gid: Gid,
    /// The peer's MAC.
    pub mac: Mac,
    /// The peer's queue pair.
    pub qpn: Qpn,
}

/// A group that a connection might join.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Who it belongs to.
    pub identity: Identity,
    /// It is ending, or its two sides disagree.
    pub ending: bool,
    /// Connections in it.
    pub conns: u8,
    /// Connections it may have.
    pub max_conns: u8,
    /// A token of the peer can still be stored.
    pub rtoken_free: bool,
    /// Its links.
    pub links: &'a [LinkPeer],
}

/// A connection that looks for a group.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Who is on the other side.
    pub identity: Identity,
    /// The peer's GID from its Proposal or Accept.
    pub gid: Gid,
    /// The peer's MAC from there; compared in version 1 only.
    pub mac: Mac,
    /// On the client: the queue pair in the Accept, which names the server's link.
    pub qpn: Option<Qpn>,
}

/// Whether a connection may join a group; returns the position of the link that matched.
///
/// The server looks for a group with room and the peer's address. The client must find the very
/// link that the server named; whether there is room is the server's decision (RFC 7609, sections
/// 2.2.3 and 3.5.2.1). Where a group is full a further one is made beside it (section 3.5.3).
pub fn find_link(group: &Candidate<'_>, wanted: &Wanted) -> Option<usize> {
    if group.ending || group.identity != wanted.identity {
        return None;
    }
    let server = wanted.identity.role == Role::Server;
    if server && (group.conns >= group.max_conns || !group.rtoken_free) {
        return None;
    }
    group.links.iter().position(|l| {
        l.active
            && l.gid == wanted.gid
            && (wanted.identity.version == Version::V2 || l.mac == wanted.mac)
            && (server || wanted.qpn == Some(l.qpn))
    })
}

/// Whether a first contact with the queue pair `qpn` behind `gid` shows that a link's peer is gone.
///
/// A device gives a number to one queue pair at a time. Where a link goes to that very number, the peer has lost its end
/// of it, perhaps with its device or its whole system, and nothing was heard of that. Left alone its group would be
/// taken for the new one by whoever looks for a link with that number.
pub fn is_superseded(link: &LinkPeer, gid: Gid, qpn: Qpn) -> bool {
    link.gid == gid && link.qpn == qpn
}

/// Gives out alert tokens: never zero, and the same one only after all others.
#[derive(Clone, Copy, Debug)]
pub struct TokenAllocator {
    /// The last one.
    last: AlertToken,
}

impl TokenAllocator {
    /// Starts behind an arbitrary number.
    pub const fn new(seed: u32) -> Self {
        Self {
            last: AlertToken::from_peer(seed),
        }
    }

    /// The next token. The caller asks again while it is in use.
    pub fn next_token(&mut self) -> AlertToken {
        self.last = self.last.next();
        self.last
    }
}

/// Gives out link numbers of one group: never zero, none that `used` has (RFC 7609, section 2.2.4).
pub fn next_link_id<I>(last: u8, used: I) -> Option<LinkId>
where
    I: Iterator<Item = LinkId> + Clone,
{
    (1..=u8::MAX)
        .filter_map(|step| LinkId::new(last.wrapping_add(step)))
        .find(|id| used.clone().all(|u| u != *id))
}
