// SPDX-License-Identifier: GPL-2.0

//! Which LLC exchange may run, what it waits for, and what becomes of everything else.
//!
//! Two exchanges can be under way on one side: one that changes links (add or delete), and one
//! that tells our own keys. They exclude each other when we start them, but the peer's start of
//! the former may cross with our start of the latter (RFC 7609, section 3.5.5.3). The peer's keys
//! are served in between, because that needs no exchange of ours.
//!
//! A first contact is an exchange that adds a link: the handshake begins it before anything can
//! arrive, and waits for CONFIRM LINK in it.

use crate::proto::ids::{
    Gid,
    Role, //
};
use crate::proto::llc::{
    Body,
    DeleteLink,
    Llc,
    Opcode, //
};

use super::rtoken::LINK_SLOTS;

/// How long an answer may take, in milliseconds (RFC 7609, appendix C.7).
pub const WAIT_MS: u32 = 2_000;

/// How long CONFIRM LINK of a further link may take, on both sides.
pub const WAIT_NEW_LINK_MS: u32 = 5_000;

/// How long the server waits for the answer to that while a connection needs the exchange to be over: a further link that
/// can be reached answers much sooner, and one that cannot is no reason to do without RDMA.
pub const WAIT_PRESSED_MS: u32 = 1_000;

/// How long a client waits for CONFIRM LINK of the first link.
pub const WAIT_FIRST_LINK_MS: u32 = 4_000;

/// An exchange that changes the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Our keys: CONFIRM RKEY or DELETE RKEY.
    Rkey,
    /// A further link.
    AddLink,
    /// The end of a link.
    DeleteLink,
}

/// Names an exchange that was begun; a later one has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowId(u32);

/// Another exchange is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// The message that an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Its kind.
    pub opcode: Opcode,
    /// Whether it is an answer or a request.
    pub response: bool,
    /// The column of the link on which it must come; any link for `None`.
    pub link: Option<usize>,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The exchange waits for it.
    Deliver(FlowId),
    /// Answer it at once: [`super::respond`] knows how.
    Answer,
    /// Answer it negatively, to be tried again after the present change.
    RefuseForNow,
    /// Begin an exchange because of it: call [`Flows::begin_for_peer`].
    Start(Exchange),
    /// It is kept and comes back from [`Flows::finish`].
    Parked,
    /// The whole group ends.
    Terminate,
    /// Count it and do nothing.
    Drop(Dropped),
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Nothing waits for it.
    Unsolicited,
    /// It has come before.
    Duplicate,
    /// The sender's side never sends it.
    WrongRole,
    /// What it asks for is being done.
    UnderWay,
}

/// What was parked and may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A further link; with the GID that the client named, if it named one.
    AddLink(Option<Gid>),
    /// The end of a link, as the peer asked for it.
    DeleteLink(DeleteLink),
}

/// An exchange under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    /// Its number.
    id: FlowId,
    /// What it is.
    kind: Exchange,
    /// What it waits for.
    awaited: Option<Awaited>,
    /// What it has got last, to recognise that coming twice.
    got: Option<Awaited>,
}

impl Running {
    /// Whether the exchange waits for this message, or has got it before.
    fn judge(&mut self, msg: Awaited) -> Option<Verdict> {
        let same = |a: &Awaited| {
            a.opcode == msg.opcode
                && a.response == msg.response
                && (a.link.is_none() || a.link == msg.link)
        };
        if self.awaited.as_ref().is_some_and(same) {
            self.got = self.awaited.take();
            return Some(Verdict::Deliver(self.id));
        }
        self.got
            .as_ref()
            .is_some_and(same)
            .then_some(Verdict::Drop(Dropped::Duplicate))
    }
}

/// The exchanges of one link group on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// Our side.
    role: Role,
    /// The peer tells a key again that was refused for now.
    peer_tells_again: bool,
    /// Number of the last exchange.
    last: u32,
    /// The exchange that changes links.
    links: Option<Running>,
    /// The exchange that tells our keys.
    keys: Option<Running>,
    /// A further link was asked for meanwhile, perhaps with a GID.
    parked_add: Option<Option<Gid>>,
    /// Ends of links that were asked for meanwhile.
    parked_delete: [Option<DeleteLink>; LINK_SLOTS],
}

impl Flows {
    /// Nothing under way.
    pub const fn new(role: Role) -> Self {
        Self {
            role,
            peer_tells_again: true,
            last: 0,
            links: None,
            keys: None,
            parked_add: None,
            parked_delete: [None; LINK_SLOTS],
        }
    }

    /// Says whether the peer tells a key again that was refused for now; so it is at first.
    pub fn set_peer_tells_again(&mut self, again: bool) {
        self.peer_tells_again = again;
    }

    /// The exchange that changes links, if one is under way.
    pub fn changing_links(&self) -> Option<Exchange> {
        self.links.map(|r| r.kind)
    }

    /// Whether nothing is under way.
    pub const fn is_idle(&self) -> bool {
        self.links.is_none() && self.keys.is_none()
    }

    /// Begins an exchange of our own.
    ///
    /// # Errors
    ///
    /// Refuses while another one is under way; wait for [`Flows::finish`].
    pub fn begin(&mut self, kind: Exchange) -> Result<FlowId, Busy> {
        if !self.is_idle() {
            return Err(Busy);
        }
        Ok(self.run(kind))
    }

    /// Begins an exchange that [`Verdict::Start`] named. It may cross with keys of ours: the peer
    /// then refuses those, to be told again afterwards.
    ///
    /// # Errors
    ///
    /// Refuses while links are being changed.
    pub fn begin_for_peer(&mut self, kind: Exchange) -> Result<FlowId, Busy> {
        if self.links.is_some() || kind == Exchange::Rkey {
            return Err(Busy);
        }
        Ok(self.run(kind))
    }

    /// Puts an exchange into its place.
    fn run(&mut self, kind: Exchange) -> FlowId {
        self.last = self.last.wrapping_add(1);
        let id = FlowId(self.last);
        let slot = match kind {
            Exchange::Rkey => &mut self.keys,
            Exchange::AddLink | Exchange::DeleteLink => &mut self.links,
        };
        *slot = Some(Running {
            id,
            kind,
            awaited: None,
            got: None,
        });
        id
    }

    /// Says what an exchange waits for next. Call it before the message is sent that provokes the
    /// answer. Returns whether the exchange is still under way.
    pub fn expect(&mut self, id: FlowId, awaited: Awaited) -> bool {
        match self.find(id) {
            Some(r) => {
                r.awaited = Some(awaited);
                true
            }
            None => false,
        }
    }

    /// The running exchange of a number.
    fn find(&mut self, id: FlowId) -> Option<&mut Running> {
        [&mut self.links, &mut self.keys]
            .into_iter()
            .flatten()
            .find(|r| r.id == id)
    }

    /// Ends an exchange, whatever came of it, and returns what was parked and may begin now: with
    /// [`Flows::begin`], and after the end of that exchange ask again. Ends of links go first.
    ///
    /// A number that is not under way changes nothing.
    pub fn finish(&mut self, id: FlowId) -> Option<Next> {
        for slot in [&mut self.links, &mut self.keys] {
            if slot.is_some_and(|r| r.id == id) {
                *slot = None;
            }
        }
        if !self.is_idle() {
            return None;
        }
        if let Some(d) = self.parked_delete.iter_mut().find_map(Option::take) {
            return Some(Next::DeleteLink(d));
        }
        self.parked_add.take().map(Next::AddLink)
    }

    /// A link has gone. Exchanges that wait for a message on it will not get it: they are named,
    /// and the caller ends them as if their time had run out (RFC 7609, appendix C.7.1).
    pub fn link_gone(&self, link: usize) -> impl Iterator<Item = FlowId> {
        [self.links, self.keys]
            .into_iter()
            .flatten()
            .filter(move |r| r.awaited.is_some_and(|a| a.link == Some(link)))
            .map(|r| r.id)
    }

    /// Judges a message that came on a link.
    pub fn arrived(&mut self, msg: &Llc<'_>, link: usize) -> Verdict {
        let this = Awaited {
            opcode: msg.body.opcode(),
            response: msg.response,
            link: Some(link),
        };
        // A request that ends the group goes before everything.
        if let (false, Body::DeleteLink(DeleteLink { all: true, .. })) = (msg.response, &msg.body) {
            return Verdict::Terminate;
        }
        for slot in [&mut self.links, &mut self.keys] {
            let verdict = slot.as_mut().and_then(|r| r.judge(this));
            if let Some(v) = verdict {
                return v;
            }
        }
        if msg.response {
            return Verdict::Drop(Dropped::Unsolicited);
        }
        match &msg.body {
            Body::TestLink(_) | Body::DeleteRkey(_) => Verdict::Answer,
            // Our keys on the links may be changing right now (RFC 7609, 3.5.5.3.1 and .2).
            Body::ConfirmRkey(_)
                if self.role == Role::Server && self.links.is_some() && self.peer_tells_again =>
            {
                Verdict::RefuseForNow
            }
            Body::ConfirmRkey(_) => Verdict::Answer,
            Body::AddLink(_) => self.asked_to_add(None),
            Body::ReqAddLink(m) => match self.role {
                Role::Server => self.asked_to_add(m.gids.get(0)),
                Role::Client => Verdict::Drop(Dropped::WrongRole),
            },
            Body::DeleteLink(m) => self.asked_to_delete(m),
            Body::ConfirmLink(_) if self.role == Role::Server => Verdict::Drop(Dropped::WrongRole),
            Body::ConfirmLink(_) | Body::AddLinkCont(_) | Body::ConfirmRkeyCont(_) => {
                Verdict::Drop(Dropped::Unsolicited)
            }
        }
    }

    /// A request for a further link: the server's own on the client, a wish of the client on the
    /// server (RFC 7609, section 3.5.5.1.2).
    fn asked_to_add(&mut self, gid: Option<Gid>) -> Verdict {
        match (self.role, self.links.map(|r| r.kind)) {
            // The client's keys may be under way; they are refused and told again later.
            (Role::Client, None) => Verdict::Start(Exchange::AddLink),
            // A server has one offer at a time: for it the last addition is over, whose end may be a moment away here.
            (Role::Server, Some(Exchange::AddLink)) => Verdict::Drop(Dropped::UnderWay),
            (Role::Server, None) if self.keys.is_none() => Verdict::Start(Exchange::AddLink),
            _ => {
                self.parked_add = Some(gid);
                Verdict::Parked
            }
        }
    }

    /// A request to end one link: the server's own on the client, a wish of the client on the
    /// server (RFC 7609, sections 3.5.5.1.3 and 3.5.5.1.4).
    fn asked_to_delete(&mut self, m: &DeleteLink) -> Verdict {
        match self.role {
            Role::Client if self.links.is_none() => return Verdict::Start(Exchange::DeleteLink),
            Role::Server if self.is_idle() => return Verdict::Start(Exchange::DeleteLink),
            _ => {}
        }
        let known = self
            .parked_delete
            .iter()
            .flatten()
            .any(|p| p.link_num == m.link_num);
        if known {
            return Verdict::Drop(Dropped::Duplicate);
        }
        match self.parked_delete.iter_mut().find(|p| p.is_none()) {
            Some(slot) => {
                *slot = Some(*m);
                Verdict::Parked
            }
            // There are not that many links.
            None => Verdict::Drop(Dropped::Unsolicited),
        }
    }
}
