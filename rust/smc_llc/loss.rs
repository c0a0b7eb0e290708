// SPDX-License-Identifier: GPL-2.0

//! Links that leave a group, lost or by an exchange, and connections that move to another link (RFC 7609, sections
//! 3.5.5.2 and 4.6).
//!
//! A lost link is taken apart before anything moves, so that nothing more of it arrives behind the first message of a
//! connection on another link; the peer is told at once, and ends its side. Nor does its device wait for the connections,
//! which may take their time on a slow wire: they let go of it first, and what they need of the link is its place in the
//! tables. Where an exchange ends a link, what is on its way arrives first.

use core::net::Ipv6Addr;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use super::{
    flow::Outcome,
    group::{
        LinkGroup,
        Reason, //
    },
    link::Link,
    registry,
    WAIT_STEP_MS, //
};
use crate::{
    net_ctx,
    proto::{
        group::{
            judge_delete,
            pick_other,
            Awaited,
            Deletion,
            Evacuation,
            FlowId,
            LinkEvent,
            LinkState,
            Rtoken,
            LINK_SLOTS,
            WAIT_MS, //
        },
        ids::{
            LinkId,
            Role, //
        },
        llc::{
            Body,
            DeleteLink,
            Opcode, //
        },
    }, //
};

/// How long chains may take to arrive on a link that an exchange ends; then it is lost.
const LEAVE_MS: u32 = 1000;

/// How long the answer may take to arrive before the link goes over which it was sent.
const ANSWER_MS: u32 = 500;

/// Why a link is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its port does not work any more.
    Port,
    /// Its device goes.
    Device,
    /// Its queue pair has failed.
    Transport,
    /// Something could not be posted.
    Posting,
    /// A key could not be made valid or invalid.
    Keys,
    /// The peer did not answer.
    Silence,
    /// It did not take over the connections of another link.
    Stalled,
    /// The peer uses its queue pair anew.
    Superseded,
    /// The peer said so.
    Peer,
}

impl Cause {
    /// Every cause.
    const ALL: [Self; 9] = [
        Self::Port,
        Self::Device,
        Self::Transport,
        Self::Posting,
        Self::Keys,
        Self::Silence,
        Self::Stalled,
        Self::Superseded,
        Self::Peer,
    ];

    /// As a number for an atomic, from 1 on.
    pub(super) fn number(self) -> i32 {
        let place = Self::ALL.iter().position(|c| *c == self);
        place
            .and_then(|at| i32::try_from(at.saturating_add(1)).ok())
            .unwrap_or(0)
    }

    /// From its number.
    pub(super) fn from_number(number: i32) -> Option<Self> {
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(place).copied()
    }

    /// For the log.
    fn describe(self) -> &'static str {
        match self {
            Self::Port => "its port does not work any more",
            Self::Device => "its device goes",
            Self::Transport => "its queue pair failed, as when nothing gets through",
            Self::Posting => "the device refused a work request",
            Self::Keys => "a key could not be registered or withdrawn",
            Self::Silence => "the peer does not answer",
            Self::Stalled => "too little got through when connections came from another one",
            Self::Superseded => "the peer uses its queue pair anew",
            Self::Peer => "the peer gave it up",
        }
    }
}

/// A link in a line of the log: its number, group, device and peer.
struct Shown<'a>(&'a Link);

impl kernel::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        let link = self.0;
        let number = link.known_id().map_or(0, LinkId::get);
        write!(
            f,
            "link {number} of group {:#x} on {} to ",
            link.group().id(),
            link.device_name()
        )?;
        match link.peer() {
            Some(peer) => {
                let ip = Ipv6Addr::from(peer.gid.0).to_canonical();
                core::fmt::Display::fmt(&ip, f)
            }
            None => f.write_str("an unknown peer"),
        }
    }
}

/// Where a connection goes whose link goes.
pub(crate) struct Refuge {
    /// The link.
    pub(crate) link: Arc<Link>,
    /// The peer's receive ring there, if the peer has told its key.
    pub(crate) peer: Option<Rtoken>,
}

/// Links on which no chain is posted while connections come to them: these are to get through before any data.
struct Held([Option<Arc<Link>>; LINK_SLOTS]);

impl Held {
    /// The active links of a group but one.
    fn all_but(group: &LinkGroup, from: &Link) -> Self {
        let mut links = [const { None }; LINK_SLOTS];
        {
            let state = group.llc.lock();
            for (place, column) in links.iter_mut().zip(state.others(Some(from))) {
                *place = Some(column.link.clone());
            }
        }
        links.iter().flatten().for_each(|link| link.hold_chains());
        Self(links)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for link in self.0.iter().flatten() {
            link.release_chains();
        }
    }
}

impl LinkGroup {
    /// Where a connection goes that leaves the link `from`; `peer` is the peer's receive ring there, if it is still
    /// written. Only where that has a key nothing is lost; a link without is better than none, to tell the peer. Nothing
    /// when there is no other link, or the group ends.
    pub(crate) fn refuge(&self, from: &Link, peer: Option<Rtoken>) -> Option<Refuge> {
        if !self.is_alive() {
            // Links that still seem to work do so for the farewell alone.
            return None;
        }
        let mut state = self.llc.lock();
        let all = Self::usable(&state);
        let mut known = all;
        if let Some(token) = peer {
            let table = state.table();
            for (column, link) in known.iter_mut().enumerate() {
                link.active &= table.translate(from.column(), token, column).is_some();
            }
        }
        let column =
            pick_other(&known, from.column()).or_else(|| pick_other(&all, from.column()))?;
        let peer = peer.and_then(|token| state.table().translate(from.column(), token, column));
        Some(Refuge {
            link: state.link(column)?,
            peer,
        })
    }

    /// The token of the peer's receive ring on the link `to`, if it has been told.
    pub(crate) fn peer_token(&self, from: &Link, token: Rtoken, to: &Link) -> Option<Rtoken> {
        let mut state = self.llc.lock();
        state.table().translate(from.column(), token, to.column())
    }

    /// Connections begin to leave a link.
    pub(crate) fn evacuation(&self) -> Evacuation {
        Evacuation::begin(self.now_ms())
    }

    /// The connections of a link that was taken apart let go of its device.
    fn unmap_conns(&self, from: &Link) {
        for sink in self.each_conn() {
            sink.on_unmap(from);
        }
    }

    /// Moves the connections of a link over which nothing is sent any more.
    fn evacuate(&self, from: &Arc<Link>) {
        let before = from.conns.load(Relaxed);
        let held = Held::all_but(self, from);
        let evacuation = self.evacuation();
        for sink in self.each_conn().take_while(|_| self.is_alive()) {
            sink.on_move(from, evacuation);
        }
        drop(held);
        let moved = before.saturating_sub(from.conns.load(Relaxed));
        self.tell_failover(from, u32::try_from(moved).unwrap_or(0));
    }

    /// Ends the links that are lost. The work item of [`look_after_losses`](Self::look_after_losses).
    pub(super) fn end_lost_links(self: &Arc<Self>) {
        while self.is_alive() {
            let lost = self.links().find(|link| {
                link.is_lost()
                    && self
                        .llc
                        .lock()
                        .column(link)
                        .is_some_and(|c| c.state != LinkState::Ending)
            });
            match lost {
                Some(link) => self.end_lost_link(&link),
                None => return,
            }
        }
    }

    /// Ends a lost link.
    fn end_lost_link(self: &Arc<Self>, link: &Arc<Link>) {
        let (active, actions) = {
            let mut state = self.llc.lock();
            let last = state.others(Some(link)).next().is_none();
            let Some(column) = state.column(link) else {
                return;
            };
            let active = column.state == LinkState::Active;
            if active && last {
                drop(state);
                self.end(Reason::LostPath);
                return;
            }
            match column.state.on(LinkEvent::Lost) {
                Ok(actions) => (active, actions),
                Err(_) => return,
            }
        };
        if active {
            self.tell_link_down(link, net_ctx::Cause::LostPath);
            self.log_loss(link);
        }
        link.take_apart();
        if let (true, Some(id)) = (actions.report, link.known_id()) {
            // Before connections move, however many they are: the peer's data waits for this.
            self.report_loss(DeleteLink {
                link_num: id.get(),
                all: false,
                orderly: false,
                reason: DeleteLink::LOST_PATH,
            });
        }
        if let (Some(peer), true) = (link.peer(), link.cause() != Some(Cause::Device)) {
            // Its device there may be out of order. The client asks for a further link if it is not.
            self.llc.lock().forget_peer_gid(peer.gid);
        }
        self.unmap_conns(link);
        self.llc.lock().link_gone(link.column());
        self.llc_event.notify_all();
        if actions.evacuate {
            link.release_later();
            if let Some(column) = self.llc.lock().column(link) {
                column.deserted = true;
            }
            registry::QUEUE.enqueue::<Self, { Self::MOVE }>(self.clone());
            return;
        }
        link.clear_later();
        if !self.is_active() && self.is_alive() {
            // The first link of a group that never came about.
            self.end(Reason::LostPath);
        }
        self.look_after_links();
    }

    /// Moves the connections of lost links. A work item of its own: that may take seconds, in which other links are lost.
    pub(super) fn leave_lost_links(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.llc.lock();
                let mut columns = state.columns.iter_mut().flatten();
                columns.find_map(|c| core::mem::take(&mut c.deserted).then(|| c.link.clone()))
            };
            let Some(link) = next else {
                return;
            };
            self.evacuate(&link);
            self.after_loss(&link);
            link.clear_later();
            self.look_after_links();
        }
    }

    /// Tells the operator of a lost link.
    fn log_loss(&self, link: &Link) {
        if let (Some(cause), true) = (link.cause(), registry::may_log()) {
            pr_notice!("{} is lost: {}\n", Shown(link), cause.describe());
        }
    }

    /// Tells the operator of a group that ends without being asked to here.
    pub(super) fn log_end(&self, reason: Reason) {
        let why = match reason {
            // Links of a group that never came about are the business of the handshake, which falls back.
            _ if !self.was_active() => return,
            Reason::Program | Reason::Operator | Reason::ByPeer { orderly: true } => return,
            Reason::LostPath => "its last link is lost",
            Reason::Violation => "the peer broke the protocol",
            Reason::ByPeer { orderly: false } => "the peer gave it up",
        };
        if !registry::may_log() {
            return;
        }
        let last = self.links().max_by_key(|link| link.cause().is_some());
        match (last, reason) {
            (Some(link), Reason::LostPath) => pr_notice!(
                "link group {:#x} ends with {} connections: {} is lost: {}\n",
                self.id(),
                self.conns(),
                Shown(&link),
                link.cause().unwrap_or(Cause::Peer).describe()
            ),
            (Some(link), _) => pr_notice!(
                "link group {:#x} ends with {} connections: {why} ({})\n",
                self.id(),
                self.conns(),
                Shown(&link)
            ),
            (None, _) => pr_notice!(
                "link group {:#x} ends with {} connections: {why}\n",
                self.id(),
                self.conns()
            ),
        }
    }

    /// Lets the peer know of a loss: the server begins the exchange, the client asks for it.
    fn report_loss(self: &Arc<Self>, what: DeleteLink) {
        match self.role() {
            Role::Server => {
                self.llc.lock().wish_delete(what);
                self.look_after_links();
            }
            Role::Client => {
                let over = self.llc.lock().others(None).next().map(|c| c.link.clone());
                if let Some(over) = over {
                    Self::request(&over, Body::DeleteLink(what));
                }
            }
        }
    }

    /// The number of active links has changed: this one has gone.
    fn after_loss(self: &Arc<Self>, link: &Link) {
        let by_path = !matches!(link.cause(), Some(Cause::Port | Cause::Device));
        let left = {
            let mut state = self.llc.lock();
            let left = state.others(None).count();
            state.kind = state.kind.after_delete(left);
            if left == 1 {
                // What remains is the only one, whatever it was.
                for column in state.columns.iter_mut().flatten() {
                    column.spare = false;
                }
                state.want_another(self.now_ms(), by_path);
            }
            left
        };
        if left == 0 {
            self.end(Reason::LostPath);
        }
    }

    /// Takes what is left of a link that was taken apart off its device: the queue pair, then keys and mappings of rings.
    /// What connections hold they let go of themselves. In a work item; may take seconds, as [`Link::destroy`].
    pub(super) fn release_link(&self, link: &Arc<Link>) {
        if link.releasing.xchg(true, Full) {
            // Somebody else is at it.
            while !link.released.wait_ms(WAIT_STEP_MS) {}
            return;
        }
        // Devices hold on to a key until the queue pair is gone that has used it.
        link.destroy();
        self.unmap_rings(link.column());
        link.released.set();
    }

    /// The same, and takes it off all tables: nothing of it is left afterwards.
    pub(super) fn forget_link(&self, link: &Arc<Link>) {
        if link.forgetting.xchg(true, Full) {
            // Somebody else is at it; afterwards another link may have the column.
            while !link.cleared.wait_ms(WAIT_STEP_MS) {}
            return;
        }
        self.release_link(link);
        let column = {
            let mut state = self.llc.lock();
            if let Some(column) = state.column(link) {
                let _ = column.state.on(LinkEvent::Deleted);
                let _ = column.state.on(LinkEvent::Cleared);
            }
            let here = state.column(link).is_some();
            if here {
                state.table().drop_link(link.column());
            }
            match state.columns.get_mut(link.column()) {
                Some(place) if here => place.take(),
                _ => None,
            }
        };
        drop(column);
        link.cleared.set();
    }

    /// Ends a link by an exchange; `over` is the column of the link on which the peer asked for it.
    pub(super) fn delete(self: &Arc<Self>, id: FlowId, m: DeleteLink, over: Option<usize>) {
        let (link, other) = {
            let state = self.llc.lock();
            let link = state.by_id(m.link_num);
            let other = state.others(link.as_deref()).next().map(|c| c.link.clone());
            (link, other)
        };
        // What we want to end ourselves may be gone here, but not at the peer.
        let known = link.is_some() || over.is_none();
        let verdict = judge_delete(self.role(), known, usize::from(other.is_some()));
        let over = over.and_then(|column| self.llc.lock().link(column));
        let cause = |orderly| {
            if m.orderly {
                orderly
            } else {
                net_ctx::Cause::LostPath
            }
        };
        match (verdict, other) {
            (Deletion::Ignore, _) => {}
            (Deletion::AnswerUnknown, _) => {
                if let Some(over) = over {
                    let body = Body::DeleteLink(DeleteLink {
                        reason: DeleteLink::UNKNOWN_LINK,
                        ..m
                    });
                    Self::response(&over, body);
                }
            }
            (Deletion::EndGroup, _) | (_, None) => {
                self.end(if m.orderly {
                    Reason::Program
                } else {
                    Reason::LostPath
                });
            }
            (Deletion::Ask, Some(other)) => {
                if let Some(link) = &link {
                    self.leave_link(link, &m);
                }
                let awaited = Awaited {
                    opcode: Opcode::DeleteLink,
                    response: true,
                    link: Some(other.column()),
                };
                self.expect(id, awaited);
                if Self::request(&other, Body::DeleteLink(m)) {
                    match self.await_message(id, WAIT_MS) {
                        Outcome::Ended => {
                            self.finish_exchange(id);
                            return;
                        }
                        // The link is left whatever the peer says.
                        _ => {}
                    }
                }
                if let Some(link) = &link {
                    self.deleted(link, cause(net_ctx::Cause::Unused));
                }
            }
            (Deletion::Answer, Some(other)) => {
                if let Some(link) = &link {
                    self.leave_link(link, &m);
                }
                let over = over.filter(|o| !o.is_lost()).unwrap_or(other);
                Self::response(&over, Body::DeleteLink(DeleteLink { reason: 0, ..m }));
                over.flush_llc(ANSWER_MS);
                if let Some(link) = &link {
                    self.deleted(link, cause(net_ctx::Cause::Peer));
                }
            }
        }
        self.finish_exchange(id);
    }

    /// The connections of a link that is to be ended leave it. Unless it is lost it stays usable for LLC messages.
    fn leave_link(self: &Arc<Self>, link: &Arc<Link>, m: &DeleteLink) {
        let active = match self.llc.lock().column(link) {
            Some(column) => {
                column.leaving = true;
                column.state == LinkState::Active
            }
            None => return,
        };
        if !active {
            return;
        }
        if m.reason != DeleteLink::LOST_PATH && link.stop_and_drain(LEAVE_MS) {
            self.evacuate(link);
        } else {
            // Nothing gets through: whatever is on its way comes back when it is taken apart.
            link.broken(Cause::Peer);
        }
    }

    /// The exchange that ends a link is over.
    fn deleted(self: &Arc<Self>, link: &Arc<Link>, cause: net_ctx::Cause) {
        let outcome = match self.llc.lock().column(link) {
            Some(column) if column.state != LinkState::Ending => {
                let active = column.state == LinkState::Active;
                column
                    .state
                    .on(LinkEvent::Deleted)
                    .ok()
                    .map(|a| (a, active))
            }
            _ => None,
        };
        let Some((actions, active)) = outcome else {
            return;
        };
        if active {
            self.tell_link_down(link, cause);
        }
        link.take_apart();
        if actions.evacuate {
            // A connection may have come to it meanwhile.
            self.unmap_conns(link);
            link.release_later();
            self.evacuate(link);
        }
        self.after_loss(link);
        self.llc.lock().link_gone(link.column());
        self.llc_event.notify_all();
        link.clear_later();
    }
}
