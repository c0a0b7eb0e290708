// SPDX-License-Identifier: GPL-2.0

//! Links that come into a group: the first contact, offers of the server, and the client's answer (RFC 7609, sections
//! 3.5.1 and 3.5.5.1).
//!
//! The protocol core says what is sent, what is awaited and what has come of it ([`Addition`]); this file makes the
//! hardware, writes the messages and waits. One work item of the group runs these exchanges, and those that end links;
//! only a first contact runs in its handshake.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    continuation::Continuation,
    flow::{
        Outcome,
        TURN_MS, //
    },
    gone,
    group::LinkGroup,
    link::{
        Link,
        PeerLink, //
    },
    state::{
        Column,
        LlcState,
        Started,
        Text,
        What,
        PEER_GIDS, //
    },
    Deadline, //
};
use crate::{
    proto::{
        clc::Extensions,
        group::{
            judge_confirm_link,
            next_link_id,
            AddContext,
            AddEvent,
            Addition,
            Awaited,
            End,
            Exchange,
            FlowId,
            GroupType,
            LinkEvent,
            LinkState,
            Order,
            Say,
            Via,
            WAIT_PRESSED_MS, //
        },
        ids::{
            Gid,
            LinkId,
            Role, //
        },
        llc::{
            AddLink,
            Body,
            ByteOrder,
            ConfirmLink,
            DeleteLink,
            Extension,
            Gids,
            Llc,
            MovedRtoken,
            MovedRtokens,
            Opcode,
            ReqAddLink,
            Version, //
        },
        DeclineReason, //
    },
    smc_ib::{
        self,
        Path,
        Start, //
    },
};

/// A link on its way into the group.
struct Adding {
    /// The exchange.
    id: FlowId,
    /// Where it stands.
    run: Addition,
    /// A link that is there already; the new one itself on a first contact.
    old: Arc<Link>,
    /// The new link.
    new: Arc<Link>,
    /// It is the first link.
    first: bool,
    /// What was known when it was offered.
    context: Option<AddContext>,
    /// What the server has offered.
    sent: Option<AddLink<'static>>,
    /// How the links lie with it.
    becomes: GroupType,
    /// Our keys on it.
    keys: KVec<MovedRtoken>,
    /// How they are told in version 1.
    continuation: Option<Continuation>,
    /// The client has refused it.
    refused: bool,
    /// Why a first contact is declined if this fails.
    why: DeclineReason,
}

/// What this side knows when a further link is to be made.
struct Outlook {
    /// For the core.
    context: AddContext,
    /// The link beside which it would lie.
    base: Arc<Link>,
    /// Where it would begin.
    start: Start,
}

impl LinkGroup {
    /// Makes a link in a free column. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends; `ENOSPC` without a free column; `EOPNOTSUPP` when the device cannot read a send
    /// ring that the group has; what the device says.
    pub(super) fn new_link(
        self: &Arc<Self>,
        start: &Start,
        id: Option<LinkId>,
    ) -> Result<Arc<Link>> {
        let free = |state: &LlcState| state.columns.iter().position(Option::is_none).ok_or(ENOSPC);
        // Links come one at a time, so that the column stays free.
        let column = free(&self.llc.lock())?;
        let link = Link::new(self, column, start, id)?;
        let mut column = Column {
            link: link.clone(),
            state: LinkState::Unused,
            spare: false,
            leaving: false,
            deserted: false,
        };
        let _ = column.state.on(LinkEvent::Made);
        let entered = {
            let mut state = self.llc.lock();
            let closed = state.is_closed();
            if let Some(id) = id {
                state.last_id = id.get();
            }
            match state.columns.get_mut(link.column()) {
                Some(place @ None) if !closed => {
                    *place = Some(column);
                    true
                }
                _ => false,
            }
        };
        // Whoever ends the links of a device has seen this one, or is seen here.
        let refused = if !entered || start.device().is_going() {
            Some(gone())
        } else if self.most_pieces() > link.max_pieces() {
            Some(EOPNOTSUPP)
        } else {
            None
        };
        if let Some(why) = refused {
            link.take_apart();
            self.forget_link(&link);
            return Err(why);
        }
        Ok(link)
    }

    /// Goes on with what the peer has begun, and begins what is wanted here. The work item of
    /// [`look_after_links`](Self::look_after_links).
    pub(super) fn change_links(self: &Arc<Self>) {
        loop {
            self.ask_for_link();
            // A temporary guard would live as long as the exchange.
            let next = self.llc.lock().next_change();
            let Some(Started { id, what }) = next else {
                return;
            };
            match what {
                What::Offer(wish) => self.offer(id, wish),
                What::Take(text, column) => self.take_offer(id, &text, column),
                What::Delete(m, over) => self.delete(id, m, over),
            }
        }
    }

    /// A device or port has been found: a further link may be possible now. Any context.
    pub(super) fn port_found(self: &Arc<Self>) {
        self.llc.lock().forget_failures();
        self.want_link();
    }

    /// A further link is wanted if it would help. Any context.
    pub(super) fn want_link(self: &Arc<Self>) {
        {
            let mut state = self.llc.lock();
            if state.max_links <= 1 || !state.kind.wants_link() {
                return;
            }
            state.want_add = true;
        }
        self.look_after_links();
    }

    /// A column is free again: what was not offered for want of one may be offered now. In a work item.
    pub(super) fn column_freed(self: &Arc<Self>) {
        let lacked = core::mem::take(&mut self.llc.lock().lacks_column);
        if lacked {
            self.want_link();
        }
    }

    /// Client: asks the server for a further link, if one is wanted and there is a device for it. Nothing waits for the
    /// answer, which is the server's offer (RFC 7609, section 3.5.5.1.2).
    fn ask_for_link(self: &Arc<Self>) {
        {
            let mut state = self.llc.lock();
            if self.role() != Role::Client || !core::mem::take(&mut state.want_add) {
                return;
            }
        }
        let Some(outlook) = self.outlook(None) else {
            return;
        };
        if !outlook.context.may_ask(Role::Client) {
            return;
        }
        let (base, other) = (&outlook.base, &outlook.start);
        match self.version() {
            Version::V1 => {
                let wish = AddLink::wish(other.gid(), other.mac());
                Self::request(base, Body::AddLink(wish));
            }
            Version::V2 => {
                let gids = [base.start().gid(), other.gid()];
                let body = Body::ReqAddLink(ReqAddLink {
                    gids: Gids::new(&gids),
                });
                let mut bytes = [0; 60];
                let len = Llc::request(Version::V2, body).encode(&mut bytes);
                if let Some(message) = len.ok().and_then(|len| bytes.get(..len)) {
                    base.send_long(message);
                }
            }
        }
        // There may have been no slot for it, or the server is busy with another exchange and drops it: it is asked again,
        // now and then.
        self.llc.lock().add_failed(self.now_ms());
    }

    /// What this side knows when a further link is to be made; the peer's GID on it where that is known. Nothing without
    /// an active link. May sleep.
    fn outlook(&self, near: Option<Gid>) -> Option<Outlook> {
        let (base, peer, group, max_links, free_slot, peer_other) = {
            let state = self.llc.lock();
            let base = state.others(None).find(|c| !c.spare)?.link.clone();
            let peer = base.peer()?;
            let free = state.columns.iter().any(Option::is_none);
            let other = state.other_peer_gid(peer.gid);
            (base, peer, state.kind, state.max_links, free, other)
        };
        // An asymmetric link is there to be replaced.
        let used = |start: &Start| {
            let state = self.llc.lock();
            let mut columns = state.columns.iter().flatten();
            columns.any(|c| !c.spare && !c.link.is_lost() && c.link.start().is_at(start.device()))
        };
        let near = near.or(peer_other).unwrap_or(peer.gid);
        let other = smc_ib::find_alternate(base.start(), near, used);
        let context = AddContext {
            group,
            own_alternate: other.is_some(),
            peer_alternate: peer_other.is_some(),
            peer_gid: peer.gid,
            peer_mac: peer.mac,
            compare_mac: self.version() == Version::V1,
            max_links,
            free_slot,
        };
        let start = other.unwrap_or_else(|| base.start().clone());
        Some(Outlook {
            context,
            base,
            start,
        })
    }

    /// Server: offers a link if that would help; a wish is refused otherwise.
    fn offer(self: &Arc<Self>, id: FlowId, wish: Option<(Text, usize)>) {
        let near = wish.as_ref().and_then(|(text, _)| match Llc::decode(text) {
            Ok(Llc {
                body: Body::ReqAddLink(m),
                ..
            }) => m.gids.iter().last(),
            _ => None,
        });
        let owed = core::mem::take(&mut self.llc.lock().owes_offer);
        let mut outlook = self.outlook(near);
        if let (true, Version::V1, Some(outlook)) = (owed, self.version(), &mut outlook) {
            // A client of version 1 has had no chance yet to say whether it has another device.
            outlook.context.peer_alternate = true;
        }
        if outlook.as_ref().is_some_and(|o| !o.context.free_slot) {
            self.llc.lock().lacks_column = true;
        }
        let base = outlook.as_ref().map(|o| o.base.clone());
        let outlook = outlook.filter(|o| o.context.may_offer(Role::Server));
        let Some(outlook) = outlook else {
            if let Some((text, column)) = wish {
                self.refuse_wish(&text, column);
            } else if let (true, Some(base)) = (owed, base) {
                self.offer_nothing(id, &base);
            }
            self.finish_exchange(id);
            return;
        };
        let (run, order) = Addition::offer(self.version());
        let failed = match self.prepare_offer(id, run, &outlook) {
            Ok(mut adding) => {
                let given_up = self.obey(&mut adding, order) == End::GivenUp;
                if adding.refused {
                    // What it has said of other devices does not hold any more, or they cannot be reached.
                    self.llc.lock().peer_gids = [None; PEER_GIDS];
                }
                given_up && !adding.refused
            }
            Err(_) => {
                self.finish_exchange(id);
                true
            }
        };
        if failed && outlook.context.own_alternate {
            self.llc.lock().add_failed(self.now_ms());
        }
    }

    /// Server: offers a link to a client of a first contact where neither side has a second device. One that agreed on
    /// two links may be waiting for an offer for seconds (C clients do), and goes on when it has refused this one, as it
    /// has to: no link lies beside another. So nothing is made for it. A client that takes it has got a device
    /// meanwhile, and gets a true offer.
    fn offer_nothing(self: &Arc<Self>, id: FlowId, base: &Arc<Link>) {
        let number = {
            let state = self.llc.lock();
            let ids = state.ids();
            match next_link_id(state.last_id, ids.iter().flatten().copied()) {
                Some(number) => number,
                None => return,
            }
        };
        let awaited = Awaited {
            opcode: Opcode::AddLink,
            response: true,
            link: Some(base.column()),
        };
        self.expect(id, awaited);
        let offer = AddLink {
            link_num: number.get(),
            ..Self::describe(base)
        };
        if !Self::send_add_link(base, true, offer, &[], base) {
            return;
        }
        let (limit, pressed) = (Deadline::after(TURN_MS), Some(WAIT_PRESSED_MS));
        let Outcome::Message(text) = self.await_answer(id, base, limit, pressed) else {
            return;
        };
        let taken = match Llc::decode(&text) {
            Ok(Llc {
                body: Body::AddLink(m),
                ..
            }) if !m.rejected => m.gid,
            _ => return,
        };
        Self::request(
            base,
            Body::DeleteLink(DeleteLink {
                link_num: number.get(),
                all: false,
                orderly: false,
                reason: DeleteLink::LOST_PATH,
            }),
        );
        let mut state = self.llc.lock();
        state.note_peer_gid(taken);
        state.want_add = true;
    }

    /// Sends ADD LINK about the link that `m` describes, in version 2 with our keys on it, over the link `via`; says
    /// whether it will be sent. `old` is the link that the keys refer to.
    fn send_add_link(
        via: &Arc<Link>,
        server: bool,
        m: AddLink<'_>,
        keys: &[MovedRtoken],
        old: &Link,
    ) -> bool {
        if via.group().version() == Version::V1 {
            return Self::ask_or_answer(via, server, Body::AddLink(m));
        }
        let order = via.group().llc.lock().peer_order;
        let body = Body::AddLink(AddLink {
            ext: Some(Extension {
                direct: old.is_direct(),
                client_gid: old.peer().map_or(Gid::ZERO, |peer| peer.gid),
                rtokens: MovedRtokens::new(keys),
                order,
            }),
            ..m
        });
        let msg = if server {
            Llc::request(Version::V2, body)
        } else {
            Llc::response(Version::V2, body)
        };
        let Ok(mut bytes) = KVec::from_elem(0, super::send::LONG_LEN, GFP_KERNEL) else {
            return false;
        };
        match msg.encode(&mut bytes) {
            Ok(len) => bytes.get(..len).is_some_and(|bytes| via.send_long(bytes)),
            Err(_) => false,
        }
    }

    /// Server: answers a wish for a link that cannot be fulfilled.
    fn refuse_wish(self: &Arc<Self>, text: &Text, column: usize) {
        let Ok(msg) = Llc::decode(text) else {
            return;
        };
        let (link, reply) = {
            let mut state = self.llc.lock();
            let Some(link) = state.link(column) else {
                return;
            };
            let reply = state.reply_to(&msg, column);
            (link, reply)
        };
        self.act_on(&link, reply);
    }

    /// Server: makes the link that is offered.
    fn prepare_offer(
        self: &Arc<Self>,
        id: FlowId,
        run: Addition,
        outlook: &Outlook,
    ) -> Result<Adding> {
        let number = {
            let state = self.llc.lock();
            let ids = state.ids();
            next_link_id(state.last_id, ids.iter().flatten().copied()).ok_or(ENOSPC)?
        };
        let new = self.new_link(&outlook.start, Some(number))?;
        let mut adding = self.adding(id, run, &outlook.base, &new, number)?;
        adding.context = Some(outlook.context);
        Ok(adding)
    }

    /// A link that was just made is on its way: its keys, and that others know.
    fn adding(
        self: &Arc<Self>,
        id: FlowId,
        run: Addition,
        old: &Arc<Link>,
        new: &Arc<Link>,
        number: LinkId,
    ) -> Result<Adding> {
        self.llc.lock().adding = Some(new.column());
        match self.keys_for_link(old, new) {
            Ok(keys) => Ok(Adding {
                id,
                run,
                old: old.clone(),
                new: new.clone(),
                first: false,
                context: None,
                sent: None,
                becomes: GroupType::None,
                continuation: (self.version() == Version::V1)
                    .then(|| Continuation::new(self.role(), number, &keys)),
                keys,
                refused: false,
                why: DeclineReason::TIMEOUT_CL,
            }),
            Err(e) => {
                self.give_link_up(new);
                Err(e)
            }
        }
    }

    /// Our end of a new link, as ADD LINK describes it.
    fn describe(new: &Link) -> AddLink<'static> {
        let local = new.local();
        AddLink {
            mac: local.mac,
            gid: local.gid,
            qpn: local.qpn,
            link_num: new.known_id().map_or(0, LinkId::get),
            mtu: local.mtu,
            psn: local.psn,
            rejected: false,
            reject_reason: 0,
            ext: None,
        }
    }

    /// Client: takes the server's offer or refuses it.
    fn take_offer(self: &Arc<Self>, id: FlowId, text: &Text, column: usize) {
        let old = self.llc.lock().link(column);
        let (Some(old), Ok(msg)) = (old, Llc::decode(text)) else {
            self.finish_exchange(id);
            return;
        };
        let Body::AddLink(m) = &msg.body else {
            self.finish_exchange(id);
            return;
        };
        let (run, order) = Addition::accept(self.version());
        let outlook = self.outlook(Some(m.gid));
        let failed = match self.prepare_answer(id, run, &old, m, outlook.as_ref()) {
            Ok(mut adding) => self.obey(&mut adding, order) == End::GivenUp,
            Err(reason) => {
                Self::response(&old, Body::AddLink(m.rejection(reason)));
                self.finish_exchange(id);
                true
            }
        };
        if failed && outlook.is_some_and(|o| o.context.own_alternate) {
            // The server does not ask again by itself.
            self.llc.lock().offer_failed(self.now_ms());
        }
    }

    /// Client: makes our end of the link that the server offers.
    ///
    /// # Errors
    ///
    /// The reason to reject the offer with.
    fn prepare_answer(
        self: &Arc<Self>,
        id: FlowId,
        run: Addition,
        old: &Arc<Link>,
        m: &AddLink<'_>,
        outlook: Option<&Outlook>,
    ) -> Result<Adding, u8> {
        let none = AddLink::NO_ALT_PATH;
        let known = self.llc.lock().by_id(m.link_num).is_some();
        let outlook = outlook.ok_or(none)?;
        if known || !self.is_active() {
            return Err(none);
        }
        let becomes = outlook.context.judge_request(m)?;
        let path = outlook.start.to(m.gid, m.mac).map_err(|_| none)?;
        let number = LinkId::new(m.link_num).ok_or(none)?;
        let new = self
            .new_link(&outlook.start, Some(number))
            .map_err(|_| none)?;
        let adding = self.adding(id, run, old, &new, number);
        let mut adding = adding.map_err(|_| none)?;
        adding.becomes = becomes;
        if self.tie(&adding, &path, m).is_err() {
            self.give_link_up(&new);
            return Err(none);
        }
        Ok(adding)
    }

    /// Ties our end of a new link to the peer's, and in version 2 stores the peer's keys on it.
    fn tie(&self, adding: &Adding, path: &Path, m: &AddLink<'_>) -> Result {
        let peer = PeerLink {
            qpn: m.qpn,
            psn: m.psn,
            gid: m.gid,
            mac: m.mac,
            mtu: m.mtu,
        };
        adding.new.connect(path, &peer)?;
        if let Some(ext) = &m.ext {
            let early = self.extensions().contains(Extensions::OWN_KEYS);
            let (from, new) = (adding.old.column(), adding.new.column());
            let mut state = self.llc.lock();
            let mut table = state.table();
            for moved in ext.rtokens.iter() {
                // What names no buffer that is known is not used by anybody here, unless its handshake goes on.
                let _ = if early {
                    table.add_moved_early(from, new, &moved)
                } else {
                    table.add_moved(from, new, &moved)
                };
            }
        }
        Ok(())
    }

    /// Does what an addition asks for, until it is over.
    fn obey(self: &Arc<Self>, adding: &mut Adding, mut order: Order) -> End {
        loop {
            if order.end == Some(End::Linked) && self.linked(adding).is_err() {
                order = adding.run.on(AddEvent::LinkGone);
            }
            if let Some(wait) = order.wait {
                let awaited = wait.awaited(adding.old.column(), adding.new.column());
                self.expect(adding.id, awaited);
            }
            let said = match order.say {
                Some((what, via)) => self.say(adding, what, via),
                None => true,
            };
            if let Some(end) = order.end {
                self.llc.lock().adding = None;
                if end == End::GivenUp && !adding.first {
                    self.give_link_up(&adding.new);
                }
                self.finish_exchange(adding.id);
                return end;
            }
            let event = match order.wait {
                Some(wait) if said => {
                    match self.await_pressed(adding.id, wait.limit_ms, wait.pressed_ms) {
                        Outcome::Message(text) => self.arrived(adding, &text),
                        Outcome::Nothing => AddEvent::LinkGone,
                        Outcome::TimedOut | Outcome::Pressed => AddEvent::TimedOut,
                        Outcome::Ended => AddEvent::Failed,
                    }
                }
                _ => AddEvent::Failed,
            };
            order = adding.run.on(event);
        }
    }

    /// Takes in what an addition waited for.
    fn arrived(self: &Arc<Self>, adding: &mut Adding, text: &Text) -> AddEvent {
        let Ok(msg) = Llc::decode(text) else {
            return AddEvent::Failed;
        };
        match &msg.body {
            Body::AddLink(m) => self.offer_answered(adding, m),
            Body::AddLinkCont(m) => match &mut adding.continuation {
                Some(continuation) => {
                    let links = (&*adding.old, &*adding.new);
                    continuation.arrived(&mut self.llc.lock(), m, links, &adding.keys)
                }
                None => AddEvent::Failed,
            },
            Body::ConfirmLink(m) => match self.confirmed(adding, m) {
                Ok(()) => {
                    self.llc.lock().peer_order = ByteOrder::of_sender(text);
                    AddEvent::Confirmed
                }
                Err(why) => {
                    adding.why = why;
                    AddEvent::Failed
                }
            },
            _ => AddEvent::Failed,
        }
    }

    /// Server: the client's answer to an offer.
    fn offer_answered(self: &Arc<Self>, adding: &mut Adding, m: &AddLink<'_>) -> AddEvent {
        let (Some(context), Some(sent)) = (&adding.context, &adding.sent) else {
            return AddEvent::Refused;
        };
        if AddContext::is_echo(sent, m) {
            return AddEvent::Failed;
        }
        let Some((becomes, mtu)) = context.judge_response(sent, m) else {
            adding.refused = true;
            return AddEvent::Refused;
        };
        adding.becomes = becomes;
        let m = AddLink { mtu, ..*m };
        let ready = adding
            .new
            .start()
            .to(m.gid, m.mac)
            .map_err(|_| ENETUNREACH)
            .and_then(|path| self.tie(adding, &path, &m))
            .and_then(|()| adding.new.begin_sending())
            .and_then(|()| self.validate_link(&adding.new));
        match ready {
            Ok(()) => AddEvent::Accepted,
            Err(_) => AddEvent::OutOfReach,
        }
    }

    /// CONFIRM LINK or its answer has come.
    fn confirmed(self: &Arc<Self>, adding: &Adding, m: &ConfirmLink) -> Result<(), DeclineReason> {
        let max_links = self.llc.lock().max_links;
        let agreed = judge_confirm_link(m, adding.new.known_id(), max_links)?;
        adding.new.set_id(agreed.id);
        adding.new.set_peer_user_id(m.user_id);
        {
            let mut state = self.llc.lock();
            state.max_links = agreed.max_links;
            state.last_id = agreed.id.get();
        }
        if adding.run.role() == Role::Client {
            // Our answer goes over the new link.
            self.make_ready(adding)?;
        }
        Ok(())
    }

    /// Lets a new link send, and makes our keys on it valid.
    fn make_ready(self: &Arc<Self>, adding: &Adding) -> Result<(), DeclineReason> {
        adding
            .new
            .begin_sending()
            .map_err(|_| DeclineReason::ERR_RDYLNK)?;
        if adding.first {
            self.validate_early()
        } else {
            self.validate_link(&adding.new)
        }
        .map_err(|_| DeclineReason::ERR_REGBUF)
    }

    /// Sends a message of an addition; says whether it will be sent.
    fn say(self: &Arc<Self>, adding: &mut Adding, what: Say, via: Via) -> bool {
        let link = match via {
            Via::Old => &adding.old,
            Via::New => &adding.new,
        };
        let server = adding.run.role() == Role::Server;
        match what {
            Say::AddLink => {
                let sent = Self::describe(&adding.new);
                adding.sent = Some(sent);
                Self::send_add_link(link, server, sent, &adding.keys, &adding.old)
            }
            Say::Keys => {
                let continuation = adding.continuation.as_mut();
                continuation
                    .and_then(|c| c.message(&adding.keys))
                    .is_some_and(|m| Self::ask_or_answer(link, server, Body::AddLinkCont(m)))
            }
            Say::Confirm => {
                let local = adding.new.local();
                let params = self.params();
                let body = Body::ConfirmLink(ConfirmLink {
                    mac: local.mac,
                    gid: local.gid,
                    qpn: local.qpn,
                    link_num: adding.new.id().get(),
                    user_id: adding.new.user_id(),
                    max_links: params.max_links,
                    // Reserved in version 1.
                    max_conns: match params.version {
                        Version::V1 => 0,
                        Version::V2 => params.max_conns,
                    },
                    no_eyecatcher: true,
                });
                Self::ask_or_answer(link, server, body)
            }
            Say::Delete => {
                let Some(id) = adding.new.known_id() else {
                    return true;
                };
                let other = self
                    .llc
                    .lock()
                    .others(Some(&adding.new))
                    .next()
                    .map(|c| c.link.clone());
                if let Some(link) = other {
                    let body = Body::DeleteLink(DeleteLink {
                        link_num: id.get(),
                        all: false,
                        orderly: false,
                        reason: DeleteLink::LOST_PATH,
                    });
                    Self::request(&link, body);
                }
                true
            }
        }
    }

    /// A link has been confirmed: connections may take it.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when it, or the group, has gone meanwhile.
    fn linked(self: &Arc<Self>, adding: &Adding) -> Result {
        if adding.first {
            self.activate(&adding.new)?;
        }
        let mut state = self.llc.lock();
        let column = state.column(&adding.new).ok_or_else(gone)?;
        if column.link.is_lost() {
            return Err(gone());
        }
        let _ = column.state.on(LinkEvent::Confirmed).map_err(|_| gone())?;
        let old_spare = state
            .others(Some(&adding.new))
            .find(|c| c.spare && adding.becomes == GroupType::Symmetric)
            .and_then(|c| c.link.known_id());
        state.link_came(self.now_ms());
        if let Some(peer) = adding.new.peer() {
            state.note_peer_gid(peer.gid);
        }
        state.kind = if adding.first {
            GroupType::Single
        } else {
            adding.becomes
        };
        if let Some(column) = state.column(&adding.new) {
            column.spare = adding.becomes.is_asymmetric();
        }
        if self.role() == Role::Server {
            if let Some(id) = old_spare {
                state.wish_delete(DeleteLink {
                    link_num: id.get(),
                    all: false,
                    orderly: true,
                    reason: DeleteLink::NO_ASYMMETRIC,
                });
            }
            // Further links follow the first at once.
            if adding.first && state.max_links > 1 {
                state.want_add = true;
                state.owes_offer = true;
            }
            if adding.becomes == GroupType::AsymmetricPeer {
                // It would have taken another device, if it had one that works.
                state.peer_gids = [adding.new.peer().map(|peer| peer.gid), None];
            }
        }
        let kind = state.kind;
        drop(state);
        pr_info!("link group {:#x} is {}\n", self.id(), kind.name());
        self.tell_link_up(&adding.new, adding.first);
        Ok(())
    }

    /// A link that was to be added does not come about.
    fn give_link_up(self: &Arc<Self>, link: &Arc<Link>) {
        {
            let mut state = self.llc.lock();
            state.adding = None;
            if let Some(column) = state.column(link) {
                let _ = column.state.on(LinkEvent::GivenUp);
            }
        }
        link.take_apart();
        link.clear_later();
    }

    /// First contact, both sides: ties the queue pair to the peer's, which it can receive from then on, and begins the
    /// exchange that confirms the link. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends, or is tied already; what the device says.
    pub(crate) fn connect(
        self: &Arc<Self>,
        link: &Arc<Link>,
        path: &Path,
        peer: &PeerLink,
    ) -> Result<FirstContact> {
        let id = self.begin_exchange(Exchange::AddLink, Deadline::after(TURN_MS))?;
        let (run, order) = Addition::first_contact(self.role(), self.version());
        if let Some(wait) = order.wait {
            // A server's request may come as soon as it can be received.
            self.expect(id, wait.awaited(link.column(), link.column()));
        }
        if let Err(e) = link.connect(path, peer) {
            self.finish_exchange(id);
            return Err(e);
        }
        let adding = Adding {
            id,
            run,
            old: link.clone(),
            new: link.clone(),
            first: true,
            context: None,
            sent: None,
            becomes: GroupType::Single,
            keys: KVec::new(),
            continuation: None,
            refused: false,
            why: DeclineReason::TIMEOUT_CL,
        };
        Ok(FirstContact {
            group: self.clone(),
            adding: Some((adding, order)),
        })
    }
}

/// A first contact whose queue pair is tied to the peer's.
#[must_use]
pub(crate) struct FirstContact {
    /// The group.
    group: Arc<LinkGroup>,
    /// The first link, and what is to be done now; until that is done.
    adding: Option<(Adding, Order)>,
}

impl FirstContact {
    /// Confirms the link with the peer: the server asks, the client answers. In a work item; takes at most some seconds.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_RDYLNK`], [`DeclineReason::ERR_REGBUF`]; [`DeclineReason::TIMEOUT_CL`] when the peer says
    /// nothing; [`DeclineReason::RMBE_EC`] when it uses eyecatchers.
    pub(crate) fn confirm(mut self) -> Result<(), DeclineReason> {
        let Some((mut adding, order)) = self.adding.take() else {
            return Err(DeclineReason::INTERR);
        };
        if self.group.role() == Role::Server {
            if let Err(why) = self.group.make_ready(&adding) {
                self.group.finish_exchange(adding.id);
                return Err(why);
            }
        }
        match self.group.obey(&mut adding, order) {
            End::Linked => Ok(()),
            End::GivenUp => Err(adding.why),
        }
    }
}

impl Drop for FirstContact {
    fn drop(&mut self) {
        if let Some((adding, _)) = self.adding.take() {
            self.group.finish_exchange(adding.id);
        }
    }
}
