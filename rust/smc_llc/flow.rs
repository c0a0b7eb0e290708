// SPDX-License-Identifier: GPL-2.0

//! The LLC layer of a group: which links there are, what arrives on them, and the turns of exchanges.
//!
//! What arrives is judged in softirq by the protocol core. What it can answer at once it answers there, so that a TEST
//! LINK never waits behind anything. What belongs to an exchange goes to its mailbox, where a work item waits for it with
//! a limit; what begins an exchange is left for the work item in `change`.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Release, //
        },
        Arc, //
    },
    time::msecs_to_jiffies, //
};

use super::{
    gone,
    group::{
        LinkGroup,
        Reason, //
    },
    link::Link,
    loss::Cause,
    Deadline, //
};
use crate::{
    kapi::{
        rdma::Message,
        sync::BhGuard, //
    },
    proto::{
        clc::Extensions,
        group::{
            is_failure,
            judge_silence,
            needs_confirm,
            refuse_for_now,
            respond,
            retry_ms,
            Awaited,
            Context,
            Exchange,
            FlowId,
            Flows,
            GroupType,
            LinkState,
            LlcReply,
            Next,
            Rtoken,
            RtokenEntry,
            RtokenTable,
            Signs,
            Silence,
            Verdict,
            LINK_SLOTS,
            MAX_RTOKENS,
            WAIT_MS, //
        },
        ids::{
            Gid,
            LinkId,
            Role, //
        },
        llc::{
            self,
            Body,
            ByteOrder,
            DeleteLink,
            Llc, //
        },
        DeclineReason, //
    },
};

/// How long an exchange waits for those before it: longer than adding a link takes.
pub(super) const TURN_MS: u32 = 10_000;

/// How long a server's offer may wait for its turn: the server waits for two seconds for the answer, and finding the way to
/// its device may take the rest.
const PARKED_MS: u32 = 400;

/// Ends of links that wait for their turn.
const MOST_DELETES: usize = 4;

/// GIDs of the peer that are kept in mind: one for each device that a group can use.
pub(super) const PEER_GIDS: usize = 2;

/// A message in memory of its own.
pub(super) type Text = KVec<u8>;

/// A link in its column.
pub(super) struct Column {
    /// The link.
    pub(super) link: Arc<Link>,
    /// Its state.
    pub(super) state: LinkState,
    /// It is the asymmetric one of two.
    pub(super) spare: bool,
    /// An exchange ends it: no connection takes it any more.
    pub(super) leaving: bool,
    /// It was lost and taken apart, and its connections have to leave it.
    pub(super) deserted: bool,
}

impl Column {
    /// Whether connections may take the link.
    pub(super) fn carries(&self) -> bool {
        self.state == LinkState::Active && !self.leaving && !self.link.is_lost()
    }
}

/// What has come for an exchange.
enum Got {
    /// The message that it waits for.
    Message(Text),
    /// That does not come any more: the link has gone, or there was no memory to keep it.
    Nothing,
}

/// Where a work item waits for what an exchange needs.
struct Mailbox {
    /// The exchange.
    id: FlowId,
    /// What has come.
    got: Option<Got>,
}

/// How a wait has ended.
pub(super) enum Outcome {
    /// The message has come.
    Message(Text),
    /// It does not come any more, because the link has gone or for want of memory: another question may be answered.
    Nothing,
    /// It has not come in time.
    TimedOut,
    /// It has not come, and a connection waits for the end of the exchange.
    Pressed,
    /// The group ends.
    Ended,
}

/// An exchange that was begun and that a work item has to go on with.
pub(super) struct Started {
    /// The exchange.
    pub(super) id: FlowId,
    /// What it is.
    pub(super) what: What,
}

/// A server's offer of a link that waits for its turn.
struct ParkedOffer {
    /// The message.
    text: Text,
    /// Column of the link on which it came, and on which the answer is awaited.
    column: usize,
    /// That link's number.
    link: Option<LinkId>,
    /// Until when it can be answered in time.
    until: Deadline,
}

/// What an exchange that changes links is about.
pub(super) enum What {
    /// Server: a further link, which the client may have asked for by this message, on the link in this column.
    Offer(Option<(Text, usize)>),
    /// Client: the server's offer, and the column of the link on which it came.
    Take(Text, usize),
    /// The end of a link, and the column of the link on which the peer asked for it; none where we want it.
    Delete(DeleteLink, Option<usize>),
}

/// State of the LLC layer of a group; its lock is of level 5 and never held with another of that level.
pub(super) struct LlcState {
    /// Our side.
    role: Role,
    /// Memory of the table of the peer's keys.
    rows: KVec<RtokenEntry>,
    /// The links.
    pub(super) columns: [Option<Column>; LINK_SLOTS],
    /// Number of the last link.
    pub(super) last_id: u8,
    /// How the links lie.
    pub(super) kind: GroupType,
    /// Links that both sides agreed on.
    pub(super) max_links: u8,
    /// Which exchange may run, and what it waits for.
    flows: Flows,
    /// The mailbox of the exchange that changes links.
    change: Option<Mailbox>,
    /// The mailbox of the exchange that tells our keys.
    keys: Option<Mailbox>,
    /// Column of the link that is being added.
    pub(super) adding: Option<usize>,
    /// Connections that wait for their turn to tell a key.
    pressing: u32,
    /// Since when there are such, on the group's clock.
    pressed_at: i64,
    /// An exchange that waits for the work item.
    started: Option<Started>,
    /// A server's offer that waits for its turn.
    parked_offer: Option<ParkedOffer>,
    /// Ends of links that are wanted here. It has room for [`MOST_DELETES`].
    want_delete: KVec<DeleteLink>,
    /// A further link is wanted: a server offers one, a client asks for it.
    pub(super) want_add: bool,
    /// A link could not be offered because links that go had all columns.
    pub(super) lacks_column: bool,
    /// How the peer writes the numbers whose order is that of its machine.
    pub(super) peer_order: ByteOrder,
    /// GIDs of the peer, as far as it has told them.
    pub(super) peer_gids: [Option<Gid>; PEER_GIDS],
    /// Server: the client of a first contact may be waiting for an offer.
    pub(super) owes_offer: bool,
    /// How often adding a link has failed here since the ports changed or a link came.
    failures: u32,
    /// When it is tried again, on the group's clock.
    retry_at: Option<i64>,
    /// When the last further link came, on the same clock.
    linked_at: i64,
    /// The group ends: nothing more is sent or awaited.
    closed: bool,
}

impl LlcState {
    /// The state of a new group.
    pub(super) fn new(role: Role, max_links: u8) -> Result<Self> {
        let mut rows = KVec::with_capacity(MAX_RTOKENS, GFP_KERNEL)?;
        for _ in 0..MAX_RTOKENS {
            rows.push(RtokenEntry::EMPTY, GFP_KERNEL)?;
        }
        Ok(Self {
            role,
            rows,
            columns: [const { None }; LINK_SLOTS],
            last_id: 0,
            kind: GroupType::None,
            max_links,
            flows: Flows::new(role),
            change: None,
            keys: None,
            adding: None,
            pressing: 0,
            pressed_at: 0,
            started: None,
            parked_offer: None,
            want_delete: KVec::with_capacity(MOST_DELETES, GFP_KERNEL)?,
            want_add: false,
            lacks_column: false,
            peer_order: ByteOrder::Network,
            peer_gids: [None; PEER_GIDS],
            owes_offer: false,
            failures: 0,
            retry_at: None,
            linked_at: 0,
            closed: false,
        })
    }

    /// The peer has given up the link that is being added, if it has this number: nothing is to be waited for. Says whether
    /// that is so.
    fn give_up_numbered(&mut self, number: u8) -> bool {
        let added = self.adding.and_then(|n| self.columns.get(n)?.as_ref());
        let known = added.and_then(|column| column.link.known_id());
        known.is_some_and(|id| id.get() == number) && self.give_up_added()
    }

    /// The peer has given up the link that is being added, if there is one: nothing is to be waited for. Says whether
    /// somebody was waiting.
    fn give_up_added(&mut self) -> bool {
        if self.adding.is_none() {
            return false;
        }
        match &mut self.change {
            Some(mailbox) if mailbox.got.is_none() => {
                mailbox.got = Some(Got::Nothing);
                true
            }
            _ => false,
        }
    }

    /// Says whether the peer tells a key again that was refused for now.
    pub(super) fn set_peer_tells_again(&mut self, again: bool) {
        self.flows.set_peer_tells_again(again);
    }

    /// The table of the peer's keys.
    pub(super) fn table(&mut self) -> RtokenTable<'_> {
        RtokenTable::new(&mut self.rows)
    }

    /// Whether another key of the peer can be stored.
    pub(super) fn has_room(&mut self) -> bool {
        self.table().has_room()
    }

    /// Ends every wait.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the group ends.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The link in a column.
    pub(super) fn link(&self, column: usize) -> Option<Arc<Link>> {
        let column = self.columns.get(column)?.as_ref()?;
        Some(column.link.clone())
    }

    /// The column of a link, while it is there.
    pub(super) fn column(&mut self, link: &Link) -> Option<&mut Column> {
        self.columns
            .get_mut(link.column())?
            .as_mut()
            .filter(|column| column.link.is(link))
    }

    /// The link of a number that is not on its way out.
    pub(super) fn by_id(&self, id: u8) -> Option<Arc<Link>> {
        self.columns
            .iter()
            .flatten()
            .find(|c| {
                c.state != LinkState::Ending && c.link.known_id().is_some_and(|i| i.get() == id)
            })
            .map(|c| c.link.clone())
    }

    /// The number of each link.
    pub(super) fn ids(&self) -> [Option<LinkId>; LINK_SLOTS] {
        let mut ids = [None; LINK_SLOTS];
        for (id, column) in ids.iter_mut().zip(&self.columns) {
            *id = column.as_ref().and_then(|c| c.link.known_id());
        }
        ids
    }

    /// The active links but one: those that carry connections or could.
    pub(super) fn others<'a>(&'a self, but: Option<&'a Link>) -> impl Iterator<Item = &'a Column> {
        self.columns
            .iter()
            .flatten()
            .filter(move |c| c.carries() && !but.is_some_and(|b| c.link.is(b)))
    }

    /// A link could not be added although there was a device for it: it is tried again later.
    pub(super) fn add_failed(&mut self, now: i64) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now.saturating_add(i64::from(retry_ms(self.failures))));
    }

    /// The server's offer has come to nothing. If it was asked for, that counts already.
    pub(super) fn offer_failed(&mut self, now: i64) {
        if self.retry_at.is_none() {
            self.add_failed(now);
        }
    }

    /// Keeps a GID of the peer in mind; the latest ones, if there are more than places.
    pub(super) fn note_peer_gid(&mut self, gid: Gid) {
        if gid.is_zero() || self.peer_gids.contains(&Some(gid)) {
            return;
        }
        self.peer_gids.rotate_right(1);
        if let Some(first) = self.peer_gids.first_mut() {
            *first = Some(gid);
        }
    }

    /// Forgets a GID of the peer.
    pub(super) fn forget_peer_gid(&mut self, gid: Gid) {
        for place in &mut self.peer_gids {
            let _ = place.take_if(|g| *g == gid);
        }
    }

    /// A GID of the peer beside this one, of a device that could have a further link.
    pub(super) fn other_peer_gid(&self, gid: Gid) -> Option<Gid> {
        self.peer_gids.iter().flatten().copied().find(|g| *g != gid)
    }

    /// A further link has come. Whether it is to be relied upon shows later.
    pub(super) fn link_came(&mut self, now: i64) {
        self.retry_at = None;
        self.linked_at = now;
    }

    /// A link has gone, and one is left: another one is wanted, now or later. `by_path` as in [`is_failure`].
    pub(super) fn want_another(&mut self, now: i64, by_path: bool) {
        if self.max_links <= 1 {
            return;
        }
        let lived = now.saturating_sub(self.linked_at);
        if is_failure(u32::try_from(lived).unwrap_or(u32::MAX), by_path) {
            self.add_failed(now);
        } else {
            self.forget_failures();
            self.want_add = true;
        }
    }

    /// Trying to add a link is worth it anew.
    pub(super) fn forget_failures(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }

    /// Wants a link to be ended. What there is no room for the peer finds out by itself.
    pub(super) fn wish_delete(&mut self, what: DeleteLink) {
        let _ = self.want_delete.push_within_capacity(what);
    }

    /// What the core answers to a request that came on the link in this column.
    pub(super) fn reply_to(&mut self, msg: &Llc<'_>, column: usize) -> LlcReply {
        let ids = self.ids();
        let context = Context {
            role: self.role,
            link: column,
            links: &ids,
        };
        respond(msg, &mut self.table(), &context)
    }

    /// The mailbox of an exchange.
    fn mailbox(&mut self, id: FlowId) -> Option<&mut Mailbox> {
        [&mut self.change, &mut self.keys]
            .into_iter()
            .flatten()
            .find(|m| m.id == id)
    }

    /// Begins an exchange of ours, if it is its turn.
    fn begin(&mut self, kind: Exchange) -> Option<FlowId> {
        let id = self.flows.begin(kind).ok()?;
        self.open(kind, id);
        Some(id)
    }

    /// Makes the mailbox of an exchange.
    fn open(&mut self, kind: Exchange, id: FlowId) {
        let place = match kind {
            Exchange::Rkey => &mut self.keys,
            Exchange::AddLink | Exchange::DeleteLink => &mut self.change,
        };
        *place = Some(Mailbox { id, got: None });
    }

    /// Begins an exchange that the peer has asked for.
    fn start(&mut self, kind: Exchange, what: What) {
        if let Ok(id) = self.flows.begin_for_peer(kind) {
            self.open(kind, id);
            self.started = Some(Started { id, what });
        }
    }

    /// Ends an exchange, and begins what was parked.
    fn finish(&mut self, id: FlowId) {
        for place in [&mut self.change, &mut self.keys] {
            let _ = place.take_if(|mailbox| mailbox.id == id);
        }
        let (kind, what) = match self.flows.finish(id) {
            None => return,
            Some(Next::DeleteLink(m)) => {
                let over = self.others(None).next().map(|c| c.link.column());
                (Exchange::DeleteLink, What::Delete(m, over))
            }
            Some(Next::AddLink(_)) => {
                let what = match self.role {
                    Role::Server => What::Offer(None),
                    Role::Client => match self.take_parked() {
                        Some(offer) => What::Take(offer.text, offer.column),
                        None => return,
                    },
                };
                (Exchange::AddLink, what)
            }
        };
        if let Some(id) = self.begin(kind) {
            self.started = Some(Started { id, what });
        }
    }

    /// The server's offer that has waited for its turn, if the server still waits for the answer to it.
    fn take_parked(&mut self) -> Option<ParkedOffer> {
        let offer = self.parked_offer.take()?;
        let link = self.link(offer.column)?;
        let still = link.known_id() == offer.link && offer.until.left().is_some();
        still.then_some(offer)
    }

    /// What the work item has to go on with: what the peer began, else what is wanted here and has its turn.
    pub(super) fn next_change(&mut self) -> Option<Started> {
        if self.closed {
            return None;
        }
        if let Some(started) = self.started.take() {
            return Some(started);
        }
        if !self.want_delete.is_empty() {
            let id = self.begin(Exchange::DeleteLink)?;
            let what = self.want_delete.remove(0).ok()?;
            let what = What::Delete(what, None);
            return Some(Started { id, what });
        }
        if self.role == Role::Server && self.want_add {
            let id = self.begin(Exchange::AddLink)?;
            self.want_add = false;
            let what = What::Offer(None);
            return Some(Started { id, what });
        }
        None
    }

    /// A link has gone: who waits for something on it, or for the link itself, waits no longer.
    pub(super) fn link_gone(&mut self, column: usize) {
        let mut gone = [None; 2];
        for (place, id) in gone.iter_mut().zip(self.flows.link_gone(column)) {
            *place = Some(id);
        }
        if self.adding == Some(column) {
            if let Some(change) = &mut self.change {
                change.got = Some(Got::Nothing);
            }
        }
        for id in gone.into_iter().flatten() {
            if let Some(mailbox) = self.mailbox(id) {
                mailbox.got = Some(Got::Nothing);
            }
        }
    }
}

/// A copy of a message. Any context.
fn text(bytes: &[u8]) -> Option<Text> {
    let mut text = KVec::with_capacity(bytes.len(), GFP_ATOMIC).ok()?;
    text.extend_from_slice(bytes, GFP_ATOMIC).ok()?;
    Some(text)
}

impl LinkGroup {
    /// An LLC message has arrived. Softirq.
    pub(super) fn on_llc(self: &Arc<Self>, link: &Arc<Link>, message: &Message<'_>) {
        let mut whole: Text = KVec::new();
        let len = message.len().min(llc::MAX_LEN);
        if len > message.head().len() {
            // Without memory it is as if it were lost on the way.
            if whole.resize(len, 0, GFP_ATOMIC).is_err() {
                return;
            }
            let got = message.copy_to(&mut whole);
            whole.truncate(got);
        }
        let bytes = if whole.is_empty() {
            message.head()
        } else {
            &whole
        };
        let Ok(msg) = Llc::decode(bytes) else {
            pr_debug!("llc message of group {:#x} is malformed\n", self.id());
            return;
        };
        let mut state = self.llc.lock();
        if state.column(link).is_none() {
            return;
        }
        // Whatever becomes of the wish, which may have to wait.
        match (&msg.body, self.role()) {
            (Body::ReqAddLink(m), Role::Server) => {
                for gid in m.gids.iter() {
                    state.note_peer_gid(gid);
                }
            }
            // A client's wish in version 1.
            (Body::AddLink(m), Role::Server) if !msg.response => state.note_peer_gid(m.gid),
            _ => {}
        }
        match state.flows.arrived(&msg, link.column()) {
            Verdict::Deliver(id) => {
                if let Some(mailbox) = state.mailbox(id) {
                    mailbox.got = Some(text(bytes).map_or(Got::Nothing, Got::Message));
                }
                drop(state);
                self.llc_event.notify_all();
            }
            Verdict::Answer | Verdict::Terminate => {
                self.answer(state, link, &msg);
            }
            Verdict::RefuseForNow => {
                drop(state);
                self.act_on(link, refuse_for_now(&msg));
            }
            Verdict::Start(kind) => {
                let kept = || text(bytes).map(|text| (text, link.column()));
                let what = match (self.role(), &msg.body) {
                    (_, Body::DeleteLink(m)) => What::Delete(*m, Some(link.column())),
                    (Role::Server, Body::ReqAddLink(_)) => What::Offer(kept()),
                    (Role::Server, _) => What::Offer(None),
                    (Role::Client, _) => match kept() {
                        Some((text, column)) => What::Take(text, column),
                        // Without memory for it an offer is refused.
                        None => return self.answer(state, link, &msg),
                    },
                };
                state.start(kind, what);
                drop(state);
                self.look_after_links();
            }
            Verdict::Parked => {
                let given_up = match (self.role(), &msg.body) {
                    // The server has no other offer under way.
                    (Role::Client, Body::AddLink(_)) => state.give_up_added(),
                    (_, Body::DeleteLink(m)) => state.give_up_numbered(m.link_num),
                    _ => false,
                };
                if given_up {
                    self.llc_event.notify_all();
                }
                if let (Role::Client, Body::AddLink(_)) = (self.role(), &msg.body) {
                    state.parked_offer = text(bytes).map(|text| ParkedOffer {
                        text,
                        column: link.column(),
                        link: link.known_id(),
                        until: Deadline::after(PARKED_MS),
                    });
                    if state.parked_offer.is_none() {
                        self.answer(state, link, &msg);
                    }
                }
            }
            Verdict::Drop(why) => {
                drop(state);
                pr_debug!("llc message of group {:#x} dropped: {why:?}\n", self.id());
            }
        }
    }

    /// Answers a request as the core says. Any context.
    fn answer(self: &Arc<Self>, mut state: BhGuard<'_, LlcState>, link: &Arc<Link>, msg: &Llc<'_>) {
        let reply = state.reply_to(msg, link.column());
        drop(state);
        self.act_on(link, reply);
    }

    /// Does what the core answers. Any context.
    pub(super) fn act_on(self: &Arc<Self>, link: &Arc<Link>, reply: LlcReply) {
        match reply {
            LlcReply::Send(bytes) => {
                link.send_llc(&bytes);
            }
            LlcReply::Terminate { answer, orderly } => {
                if let Some(bytes) = answer {
                    link.send_llc(&bytes);
                }
                self.end(Reason::ByPeer { orderly });
            }
            LlcReply::Waiter(_) => {}
            LlcReply::Ignore(why) => {
                pr_debug!("llc message of group {:#x} ignored: {why:?}\n", self.id());
            }
        }
    }

    /// Stores the key and address of a peer's RMB on a link, as Accept or Confirm name them; says whether they are new.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_RTOK`] when there is no room or the link has gone.
    pub(crate) fn add_peer_rmb(&self, link: &Link, token: Rtoken) -> Result<bool, DeclineReason> {
        let mut state = self.llc.lock();
        if state.column(link).is_none() {
            return Err(DeclineReason::ERR_RTOK);
        }
        let mut table = state.table();
        let new = !table.holds(link.column(), token);
        table
            .add(link.column(), token)
            .map(|_| new)
            .map_err(|_| DeclineReason::ERR_RTOK)
    }

    /// Forgets what [`add_peer_rmb`](Self::add_peer_rmb) has stored anew for a handshake that came to nothing: the peer
    /// does not think that it is known here. Any context.
    pub(crate) fn remove_peer_rmb(&self, link: &Link, token: Rtoken) {
        let mut state = self.llc.lock();
        if state.column(link).is_some() {
            state.table().remove(link.column(), token);
        }
    }

    /// A connection that wrote by this key of the peer's has ended. Where a key belongs to one connection it is forgotten.
    /// Any context.
    pub(crate) fn leave_peer_rmb(&self, link: &Link, token: Rtoken) {
        if self.extensions().contains(Extensions::OWN_KEYS) {
            self.remove_peer_rmb(link, token);
        }
    }

    /// Whether a key needs no more than its place in Accept or Confirm, if it counts as known: a link that is added
    /// from here on finds it. Any context.
    pub(super) fn handshake_tells(&self) -> bool {
        let state = self.llc.lock();
        let changes = state.change.is_some() || state.parked_offer.is_some();
        let mut links = state.columns.iter().flatten().map(|column| &column.link);
        let quiet = match (links.next(), links.next()) {
            (Some(link), None) if !changes => {
                let ms = self.now_ms().saturating_sub(link.last_heard.load(Acquire));
                Some(u32::try_from(ms).unwrap_or(u32::MAX))
            }
            _ => None,
        };
        !needs_confirm(self.extensions(), quiet)
    }

    /// Waits for the turn of an exchange of ours, until `deadline` at most. In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `ENOTCONN` when the group ends.
    pub(super) fn begin_exchange(&self, kind: Exchange, deadline: Deadline) -> Result<FlowId> {
        let mut state = self.llc.lock();
        loop {
            if state.closed {
                return Err(gone());
            }
            if let Some(id) = state.begin(kind) {
                return Ok(id);
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
    }

    /// The same for the key of a connection: a link that does not come is not waited for as long as it might be.
    ///
    /// # Errors
    ///
    /// As [`begin_exchange`](Self::begin_exchange).
    pub(super) fn begin_pressing(&self, kind: Exchange, deadline: Deadline) -> Result<FlowId> {
        {
            let mut state = self.llc.lock();
            if state.closed {
                return Err(gone());
            }
            if let Some(id) = state.begin(kind) {
                return Ok(id);
            }
            if state.pressing == 0 {
                state.pressed_at = self.now_ms();
            }
            state.pressing = state.pressing.saturating_add(1);
        }
        self.llc_event.notify_all();
        let begun = self.begin_exchange(kind, deadline);
        let mut state = self.llc.lock();
        state.pressing = state.pressing.saturating_sub(1);
        begun
    }

    /// Says what an exchange waits for next; to be called before what provokes it is sent.
    pub(super) fn expect(&self, id: FlowId, awaited: Awaited) {
        self.llc.lock().flows.expect(id, awaited);
    }

    /// Waits for what an exchange needs. In a work item.
    pub(super) fn await_message(&self, id: FlowId, timeout_ms: u32) -> Outcome {
        self.await_pressed(id, timeout_ms, None)
    }

    /// The same, for `pressed_ms` at most from when a connection waits for the end of the exchange. In a work item.
    pub(super) fn await_pressed(
        &self,
        id: FlowId,
        timeout_ms: u32,
        pressed_ms: Option<u32>,
    ) -> Outcome {
        let deadline = Deadline::after(timeout_ms);
        let mut state = self.llc.lock();
        loop {
            match state.mailbox(id).and_then(|mailbox| mailbox.got.take()) {
                Some(Got::Message(text)) => return Outcome::Message(text),
                Some(Got::Nothing) => return Outcome::Nothing,
                None => {}
            }
            if state.closed {
                return Outcome::Ended;
            }
            let Some(mut left) = deadline.left() else {
                return Outcome::TimedOut;
            };
            if let (true, Some(most)) = (state.pressing > 0, pressed_ms) {
                let pressed = self.now_ms().saturating_sub(state.pressed_at);
                let rest = i64::from(most).saturating_sub(pressed);
                match u32::try_from(rest) {
                    Ok(rest) if rest > 0 => left = left.min(msecs_to_jiffies(rest).max(1)),
                    _ => return Outcome::Pressed,
                }
            }
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
    }

    /// Ends an exchange; what was parked begins, and others have their turn. Any context.
    pub(super) fn finish_exchange(self: &Arc<Self>, id: FlowId) {
        self.llc.lock().finish(id);
        self.llc_event.notify_all();
        self.look_after_links();
    }

    /// Tells the peer that the group ends.
    pub(super) fn announce_end(&self, link: &Arc<Link>, reason: Reason) {
        let Some(code) = reason.code() else {
            return;
        };
        let body = Body::DeleteLink(DeleteLink::everything(reason.orderly(), code));
        Self::request(link, body);
    }

    /// Sends a request of the ordinary length over a link; says whether it will be sent. Any context.
    pub(super) fn request(link: &Arc<Link>, body: Body<'_>) -> bool {
        Llc::request(link.group().version(), body)
            .encode_short()
            .is_ok_and(|bytes| link.send_llc(&bytes))
    }

    /// Sends an answer of the ordinary length over a link; says whether it will be sent. Any context.
    pub(super) fn response(link: &Arc<Link>, body: Body<'_>) -> bool {
        Llc::response(link.group().version(), body)
            .encode_short()
            .is_ok_and(|bytes| link.send_llc(&bytes))
    }

    /// Sends what the server asks, or what a client answers to that, over a link; says whether it will be sent. Any context.
    pub(super) fn ask_or_answer(link: &Arc<Link>, server: bool, body: Body<'_>) -> bool {
        if server {
            Self::request(link, body)
        } else {
            Self::response(link, body)
        }
    }

    /// Waits for what an exchange needs over the link `via`: for [`WAIT_MS`] since there was a sign of life on the link,
    /// until `limit` at most, and for `pressed_ms` at most from when a connection waits for the end of the exchange. In a
    /// work item.
    ///
    /// The message that asks, and the one that answers, stand behind all data that was posted before them; on a slow
    /// wire that takes its time, and says nothing of the peer.
    pub(super) fn await_answer(
        &self,
        id: FlowId,
        via: &Link,
        limit: Deadline,
        pressed_ms: Option<u32>,
    ) -> Outcome {
        loop {
            let before = via.signs_of_life();
            let left = limit.left_ms().clamp(WAIT_MS / 4, WAIT_MS);
            match self.await_pressed(id, left, pressed_ms) {
                Outcome::TimedOut if limit.left().is_some() && via.signs_of_life() != before => {}
                outcome => return outcome,
            }
        }
    }

    /// Looks whether the peer is there, on each link from which nothing has come for long, and whether a link is to be
    /// tried again. Called every second or so.
    pub(super) fn keep_alive(self: &Arc<Self>) {
        let retry = {
            let now = self.now_ms();
            let mut state = self.llc.lock();
            state.retry_at.take_if(|at| *at <= now).is_some()
        };
        if retry {
            self.want_link();
        }
        let idle_ms = self.ctx().settings().testlink_ms();
        for column in 0..LINK_SLOTS {
            let link = {
                let state = self.llc.lock();
                match state.columns.get(column) {
                    Some(Some(c)) if c.state == LinkState::Active => c.link.clone(),
                    _ => continue,
                }
            };
            let now = self.now_ms();
            let heard = link.last_heard.load(Acquire);
            let tested = link.test_sent.load(Acquire);
            let ago = |then: i64| u64::try_from(now.saturating_sub(then)).unwrap_or(0);
            let signs = Signs {
                heard: ago(heard),
                tested: (tested > heard).then(|| ago(tested)),
                stuck: link.send.lock().stuck_ms(now),
            };
            match judge_silence(signs, idle_ms) {
                Silence::Fine => {}
                Silence::Lost => link.broken(Cause::Silence),
                Silence::Test => link.ask_whether_there(now),
            }
        }
    }
}

impl Link {
    /// Asks the peer whether it is there; `now` on the group's clock. Any context.
    pub(super) fn ask_whether_there(self: &Arc<Self>, now: i64) {
        // Before it is sent: the answer may come at once, and must not look older than the question.
        self.test_sent.store(now, Release);
        LinkGroup::request(self, Body::TestLink(*b"smc-rs keepalive"));
    }

    /// What changes whenever something of the peer arrives, or something that was sent has arrived there.
    fn signs_of_life(&self) -> (i64, u32) {
        (self.last_heard.load(Acquire), self.send.lock().delivered())
    }
}
