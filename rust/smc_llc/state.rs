// SPDX-License-Identifier: GPL-2.0

//! What the LLC layer of a group knows: which links there are, which exchange runs and what has come for it, and what is
//! wanted next.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    link::Link,
    Deadline, //
};
use crate::proto::{
    group::{
        is_failure,
        respond,
        retry_ms,
        Context,
        Exchange,
        FlowId,
        Flows,
        GroupType,
        LinkState,
        LlcReply,
        Next,
        RtokenEntry,
        RtokenTable,
        LINK_SLOTS,
        MAX_RTOKENS, //
    },
    ids::{
        Gid,
        LinkId,
        Role, //
    },
    llc::{
        ByteOrder,
        DeleteLink,
        Llc, //
    },
};

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
pub(super) enum Got {
    /// The message that it waits for.
    Message(Text),
    /// That does not come any more: the link has gone, or there was no memory to keep it.
    Nothing,
}

/// Where a work item waits for what an exchange needs.
pub(super) struct Mailbox {
    /// The exchange.
    id: FlowId,
    /// What has come.
    pub(super) got: Option<Got>,
}

/// An exchange that was begun and that a work item has to go on with.
pub(super) struct Started {
    /// The exchange.
    pub(super) id: FlowId,
    /// What it is.
    pub(super) what: What,
}

/// A server's offer of a link that waits for its turn.
pub(super) struct ParkedOffer {
    /// The message.
    pub(super) text: Text,
    /// Column of the link on which it came, and on which the answer is awaited.
    pub(super) column: usize,
    /// That link's number.
    pub(super) link: Option<LinkId>,
    /// Until when it can be answered in time.
    pub(super) until: Deadline,
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
    pub(super) flows: Flows,
    /// The mailbox of the exchange that changes links.
    change: Option<Mailbox>,
    /// The mailbox of the exchange that tells our keys.
    keys: Option<Mailbox>,
    /// Column of the link that is being added.
    pub(super) adding: Option<usize>,
    /// Connections that wait for their turn to tell a key.
    pub(super) pressing: u32,
    /// Since when there are such, on the group's clock.
    pub(super) pressed_at: i64,
    /// An exchange that waits for the work item.
    started: Option<Started>,
    /// A server's offer that waits for its turn.
    pub(super) parked_offer: Option<ParkedOffer>,
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
    pub(super) retry_at: Option<i64>,
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
    pub(super) fn give_up_numbered(&mut self, number: u8) -> bool {
        let added = self.adding.and_then(|n| self.columns.get(n)?.as_ref());
        let known = added.and_then(|column| column.link.known_id());
        known.is_some_and(|id| id.get() == number) && self.give_up_added()
    }

    /// The peer has given up the link that is being added, if there is one: nothing is to be waited for. Says whether
    /// somebody was waiting.
    pub(super) fn give_up_added(&mut self) -> bool {
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

    /// Whether links are being changed, or will be in a moment.
    pub(super) fn is_changing(&self) -> bool {
        self.change.is_some() || self.parked_offer.is_some()
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
    pub(super) fn mailbox(&mut self, id: FlowId) -> Option<&mut Mailbox> {
        [&mut self.change, &mut self.keys]
            .into_iter()
            .flatten()
            .find(|m| m.id == id)
    }

    /// Begins an exchange of ours, if it is its turn.
    pub(super) fn begin(&mut self, kind: Exchange) -> Option<FlowId> {
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
    pub(super) fn start(&mut self, kind: Exchange, what: What) {
        if let Ok(id) = self.flows.begin_for_peer(kind) {
            self.open(kind, id);
            self.started = Some(Started { id, what });
        }
    }

    /// Ends an exchange, and begins what was parked.
    pub(super) fn finish(&mut self, id: FlowId) {
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
