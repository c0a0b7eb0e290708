// SPDX-License-Identifier: GPL-2.0

//! A link group: how it begins, who belongs to it, and how it ends.

use kernel::{
    impl_has_work, new_condvar, new_mutex, new_work,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        Mutex,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};

use super::{
    gone,
    link::Link,
    loss::Cause,
    registry,
    ring::Rings,
    state::{
        Column,
        LlcState,
        PEER_GIDS, //
    },
    table::{
        ConnSink,
        Table, //
    },
    Deadline, //
};
use crate::{
    kapi::{
        event::Event,
        sync::BhLock, //
    },
    net_ctx::NetCtx,
    new_bh_lock,
    proto::{
        clc,
        group::{
            find_link,
            is_superseded,
            pick_link,
            tells_again,
            Candidate,
            Identity,
            LinkPeer,
            Usable,
            Wanted,
            LINK_SLOTS,
            MAX_CONNS, //
        },
        ids::{
            AlertToken,
            Eid,
            Gid,
            Hostname,
            LinkId,
            Mac,
            OsType,
            PeerId,
            Qpn,
            Role, //
        },
        llc::DeleteLink, //
    },
    smc_ib::{
        self,
        Start, //
    },
};

/// How long the announcement of the end may take to reach the peer: the chains before it go first.
const ANNOUNCE_MS: u32 = 600;

/// How long a group that ends listens on: until the peer has said nothing for that long,
const QUIET_MS: i64 = 200;

/// and at most that long.
const FAREWELL_MS: u32 = 800;

/// The first contact is not finished.
const LIFE_NEW: i32 = 0;
/// Connections may join.
const LIFE_ACTIVE: i32 = 1;
/// It ends.
const LIFE_ENDING: i32 = 2;

/// What a new group is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    /// Our side.
    pub(crate) role: Role,
    /// The peer's stack instance.
    pub(crate) peer_id: PeerId,
    /// Version of the handshake, and of the messages on its links.
    pub(crate) version: clc::Version,
    /// The enterprise id that both chose in version 2.
    pub(crate) eid: Option<Eid>,
    /// Release of version 2.
    pub(crate) release: u8,
    /// Connections of the group.
    pub(crate) max_conns: u8,
    /// Links of the group.
    pub(crate) max_links: u8,
    /// What both sides do beyond the standard.
    pub(crate) extensions: clc::Extensions,
}

/// What a peer's host says of itself at the first contact, for tools.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerHost {
    /// Its operating system.
    pub(crate) os: OsType,
    /// Its name.
    pub(crate) name: Hostname,
}

/// Why a group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is not needed any more, or its first contact failed.
    Program,
    /// The module goes.
    Operator,
    /// The link broke, or its port or device has gone.
    LostPath,
    /// The peer broke the protocol.
    Violation,
    /// The peer said so.
    ByPeer {
        /// In good order.
        orderly: bool,
    },
}

impl Reason {
    /// As a number, for an atomic.
    fn number(self) -> i32 {
        match self {
            Self::Program => 0,
            Self::Operator => 1,
            Self::LostPath => 2,
            Self::Violation => 3,
            Self::ByPeer { orderly: true } => 4,
            Self::ByPeer { orderly: false } => 5,
        }
    }

    /// From its number.
    fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Program,
            1 => Self::Operator,
            3 => Self::Violation,
            4 => Self::ByPeer { orderly: true },
            5 => Self::ByPeer { orderly: false },
            _ => Self::LostPath,
        }
    }

    /// The code for the peer, if it has to be told.
    pub(super) fn code(self) -> Option<u32> {
        match self {
            Self::Program => Some(DeleteLink::PROGRAM),
            Self::Operator => Some(DeleteLink::OPERATOR),
            Self::LostPath => Some(DeleteLink::LOST_PATH),
            Self::Violation => Some(DeleteLink::VIOLATION),
            Self::ByPeer { .. } => None,
        }
    }

    /// Whether the end is in good order.
    pub(super) fn orderly(self) -> bool {
        self == Self::Program
    }
}

/// A link group.
///
/// # Locking
///
/// `rings` is level 4, `conns` and `llc` level 5 (docs/locking.md). Callbacks of connections are called without any of
/// them.
#[pin_data]
pub(crate) struct LinkGroup {
    /// Number of the group on this host; its low byte is zero.
    id: u32,
    /// What it was made for.
    params: Params,
    /// The namespace's settings.
    ctx: Arc<NetCtx>,
    /// Its first contact was over and well.
    was_active: Atomic<bool>,
    /// VLAN of its links.
    vlan: Option<u16>,
    /// What the peer's host has said of itself.
    peer_host: SetOnce<PeerHost>,
    /// Time zero of the group's clock.
    born: Instant<Monotonic>,
    /// One of the `LIFE_` constants.
    life: Atomic<i32>,
    /// Why it ends.
    reason: Atomic<i32>,
    /// Connections that belong to it, or are about to.
    members: Atomic<i32>,
    /// When the last of them left, on the group's clock.
    idle_since: Atomic<i64>,
    /// Rings that connections have let go of since somebody looked.
    pub(super) returned: Atomic<i32>,
    /// Send rings of connections that have more than their first one.
    pub(super) grown: Atomic<i32>,
    /// The clock has ticked since somebody looked after rings.
    pub(super) ticked: Atomic<bool>,
    /// The memory of rings that no connection uses is to be given back.
    pub(super) relief: Atomic<bool>,
    /// Rings of the connections.
    #[pin]
    pub(super) rings: Mutex<Rings>,
    /// Connections by token.
    #[pin]
    conns: BhLock<Table>,
    /// State of the LLC layer, and the links.
    #[pin]
    pub(super) llc: BhLock<LlcState>,
    /// Something in `llc` has changed.
    #[pin]
    pub(super) llc_event: CondVar,
    /// It has ended: nothing of it is left on a device.
    #[pin]
    ended: Event,
    /// Ends it.
    #[pin]
    end_work: Work<LinkGroup, { LinkGroup::END }>,
    /// Looks after rings.
    #[pin]
    tidy_work: Work<LinkGroup, { LinkGroup::TIDY }>,
    /// Adds and ends links by exchanges with the peer.
    #[pin]
    change_work: Work<LinkGroup, { LinkGroup::CHANGE }>,
    /// Ends links that are lost.
    #[pin]
    loss_work: Work<LinkGroup, { LinkGroup::LOSS }>,
    /// Moves the connections of links that are lost.
    #[pin]
    move_work: Work<LinkGroup, { LinkGroup::MOVE }>,
}

impl_has_work! {
    impl HasWork<Self, { LinkGroup::END }> for LinkGroup { self.end_work }
    impl HasWork<Self, { LinkGroup::TIDY }> for LinkGroup { self.tidy_work }
    impl HasWork<Self, { LinkGroup::CHANGE }> for LinkGroup { self.change_work }
    impl HasWork<Self, { LinkGroup::LOSS }> for LinkGroup { self.loss_work }
    impl HasWork<Self, { LinkGroup::MOVE }> for LinkGroup { self.move_work }
}

impl WorkItem<{ LinkGroup::END }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.take_apart();
    }
}

impl WorkItem<{ LinkGroup::TIDY }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.tidy();
    }
}

impl WorkItem<{ LinkGroup::CHANGE }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.change_links();
    }
}

impl WorkItem<{ LinkGroup::LOSS }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.end_lost_links();
    }
}

impl WorkItem<{ LinkGroup::MOVE }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.leave_lost_links();
    }
}

impl LinkGroup {
    /// Number of the work that ends a group.
    pub(super) const END: u64 = 1;

    /// Number of the work that looks after rings.
    pub(super) const TIDY: u64 = 2;

    /// Number of the work that adds and ends links.
    pub(super) const CHANGE: u64 = 3;

    /// Number of the work that ends lost links.
    pub(super) const LOSS: u64 = 4;

    /// Number of the work that moves their connections.
    pub(super) const MOVE: u64 = 5;

    /// Makes a group with its first link, which begins at `start` and has a queue pair in state INIT. May sleep.
    pub(super) fn new(
        id: u32,
        start: &Start,
        params: Params,
        ctx: Arc<NetCtx>,
    ) -> Result<(Arc<Self>, Arc<Link>)> {
        let table = Table::new()?;
        let llc = LlcState::new(params.role, params.max_links)?;
        let group = Arc::pin_init(
            pin_init!(Self {
                id,
                params,
                ctx,
                was_active: Atomic::new(false),
                vlan: start.vlan(),
                peer_host: SetOnce::new(),
                born: Instant::now(),
                life: Atomic::new(LIFE_NEW),
                reason: Atomic::new(0),
                members: Atomic::new(0),
                idle_since: Atomic::new(0),
                returned: Atomic::new(0),
                grown: Atomic::new(0),
                ticked: Atomic::new(false),
                relief: Atomic::new(false),
                rings <- new_mutex!(Rings::new(), "smc_llc::rings"),
                conns <- new_bh_lock!(table, "smc_llc::conns"),
                llc <- new_bh_lock!(llc, "smc_llc::llc"),
                llc_event <- new_condvar!("smc_llc::llc_event"),
                ended <- Event::new(),
                end_work <- new_work!("LinkGroup::end_work"),
                tidy_work <- new_work!("LinkGroup::tidy_work"),
                change_work <- new_work!("LinkGroup::change_work"),
                loss_work <- new_work!("LinkGroup::loss_work"),
                move_work <- new_work!("LinkGroup::move_work"),
            }),
            GFP_KERNEL,
        )?;
        // The server numbers the links; a client learns the number.
        let link_id = match params.role {
            Role::Server => Some(LinkId::FIRST),
            Role::Client => None,
        };
        let link = group.new_link(start, link_id)?;
        Ok((group, link))
    }

    /// Number of the group on this host.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Our side.
    pub(crate) fn role(&self) -> Role {
        self.params.role
    }

    /// Version that both speak.
    pub(crate) fn version(&self) -> clc::Version {
        self.params.version
    }

    /// Release of version 2 that both speak; 0 in version 1.
    pub(crate) fn release(&self) -> u8 {
        self.params.release
    }

    /// What both sides do beyond the standard.
    pub(super) fn extensions(&self) -> clc::Extensions {
        self.params.extensions
    }

    /// What it was made for.
    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    /// What the namespace keeps.
    pub(super) fn ctx(&self) -> &NetCtx {
        &self.ctx
    }

    /// VLAN of its links.
    pub(super) fn vlan(&self) -> Option<u16> {
        self.vlan
    }

    /// What the peer's host has said of itself.
    pub(super) fn peer_host(&self) -> PeerHost {
        self.peer_host.copy().unwrap_or_default()
    }

    /// Takes note of what the peer's host says of itself.
    pub(crate) fn set_peer_host(&self, host: PeerHost) {
        let again = tells_again(host.os, self.extensions());
        self.llc.lock().set_peer_tells_again(again);
        self.peer_host.populate(host);
    }

    /// Connections of the group, finished or not.
    pub(crate) fn conns(&self) -> u32 {
        u32::try_from(self.members.load(Relaxed)).unwrap_or(0)
    }

    /// Whether it can be used: its first contact goes on, or is over and well.
    pub(crate) fn is_alive(&self) -> bool {
        self.life.load(Acquire) < LIFE_ENDING
    }

    /// Whether connections may join, as far as its state goes.
    pub(super) fn is_active(&self) -> bool {
        self.life.load(Acquire) == LIFE_ACTIVE
    }

    /// Milliseconds on the group's clock.
    pub(super) fn now_ms(&self) -> i64 {
        self.born.elapsed().as_millis()
    }

    /// First contact is over, as the peer has answered over the queue pair: connections may join.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends.
    pub(super) fn activate(&self, link: &Link) -> Result {
        // Before anybody can find this group by that number.
        registry::end_superseded(link);
        self.life
            .cmpxchg(LIFE_NEW, LIFE_ACTIVE, Full)
            .map_err(|_| gone())?;
        self.was_active.store(true, Release);
        Ok(())
    }

    /// Whether its first contact was over and well.
    pub(super) fn was_active(&self) -> bool {
        self.was_active.load(Acquire)
    }

    /// Every link that is not being taken off the tables.
    pub(super) fn links(&self) -> impl Iterator<Item = Arc<Link>> + use<'_> {
        (0..LINK_SLOTS).filter_map(|column| self.llc.lock().link(column))
    }

    /// The links when connections choose.
    pub(super) fn usable(state: &LlcState) -> [Usable; LINK_SLOTS] {
        let mut usable = [Usable {
            active: false,
            spare: false,
            conns: 0,
        }; LINK_SLOTS];
        for (place, column) in usable.iter_mut().zip(&state.columns) {
            let Some(column) = column else {
                continue;
            };
            *place = Usable {
                active: column.carries(),
                spare: column.spare,
                conns: u32::try_from(column.link.conns.load(Relaxed)).unwrap_or(0),
            };
        }
        usable
    }

    /// The link that a connection takes which the matching rule lets join, if it does.
    ///
    /// One link has to begin at `start`, which shows that the group belongs to the connection's namespace. On a server it
    /// is the one that the rule looks at; then whatever link is best is taken. A client takes the one that the server
    /// named.
    pub(super) fn find(&self, start: &Start, wanted: &Wanted) -> Option<Arc<Link>> {
        let mut state = self.llc.lock();
        let server = wanted.identity.role == Role::Server;
        // A client obeys the server, who decides.
        let begins = |column: &Column| {
            column.carries()
                && column.link.start().same(start)
                && !(server && column.link.is_doubted())
        };
        if !state.columns.iter().flatten().any(begins) {
            return None;
        }
        let mut peers = [LinkPeer {
            active: false,
            gid: Gid::ZERO,
            mac: Mac::ZERO,
            qpn: Qpn::truncate(0),
        }; LINK_SLOTS];
        for (place, column) in peers.iter_mut().zip(&state.columns) {
            let Some(column) = column else {
                continue;
            };
            if let Some(peer) = column.link.peer() {
                *place = LinkPeer {
                    active: match wanted.identity.role {
                        Role::Client => column.carries(),
                        Role::Server => begins(column),
                    },
                    gid: peer.gid,
                    mac: peer.mac,
                    qpn: peer.qpn,
                };
            }
        }
        let candidate = Candidate {
            identity: Identity {
                role: self.params.role,
                version: self.params.version,
                peer_id: self.params.peer_id,
                eid: self.params.eid,
                vlan: self.vlan,
            },
            ending: !self.is_active(),
            conns: u8::try_from(self.members.load(Acquire)).unwrap_or(u8::MAX),
            max_conns: self.params.max_conns,
            rtoken_free: state.has_room(),
            links: &peers,
        };
        let found = find_link(&candidate, wanted)?;
        let column = match self.params.role {
            Role::Client => found,
            Role::Server => pick_link(&Self::usable(&state))?,
        };
        state.link(column)
    }

    /// The peer's side of the group seems not to be what it is here: no connection is led to it before something of the
    /// peer is heard on the link. Not on anybody's mere word is it given up.
    pub(crate) fn doubt(&self) {
        for link in self.links().filter(|link| link.can_send()) {
            link.doubt();
        }
    }

    /// Keeps GIDs of the peer in mind, which tell where a further link can go.
    pub(crate) fn note_peer_gids(&self, gids: impl Iterator<Item = Gid>) {
        let mut state = self.llc.lock();
        for gid in gids {
            state.note_peer_gid(gid);
        }
    }

    /// GIDs of this host for the group's links: those of the links, and of the device that a further one would take.
    pub(crate) fn own_gids(&self, start: &Start, near: Gid) -> [Option<Gid>; PEER_GIDS] {
        let other = smc_ib::find_alternate(start, near, |_| false);
        [Some(start.gid()), other.map(|other| other.gid())]
    }

    /// The link to a queue pair of the peer, as its Confirm names it.
    pub(crate) fn link_to(&self, qpn: Qpn, gid: Gid) -> Option<Arc<Link>> {
        self.links()
            .find(|link| link.peer().is_some_and(|p| p.qpn == qpn && p.gid == gid))
    }

    /// Gives up the links whose peer uses the number of its queue pair anew, for `newcomer`.
    pub(super) fn end_superseded(&self, newcomer: &Link) {
        let Some(peer) = newcomer.peer() else {
            return;
        };
        for link in self.links() {
            let Some(old) = link.peer() else {
                continue;
            };
            let known = LinkPeer {
                active: true,
                gid: old.gid,
                mac: old.mac,
                qpn: old.qpn,
            };
            if !link.is(newcomer)
                && link.start().same(newcomer.start())
                && is_superseded(&known, peer.gid, peer.qpn)
            {
                pr_info!(
                    "a link of group {:#x} ends: its peer uses queue pair {:#x} anew\n",
                    self.id,
                    peer.qpn.get()
                );
                // Nothing may be told the peer: it would reach the new queue pair.
                link.broken(Cause::Superseded);
            }
        }
    }

    /// Counts one more connection. The registry is locked.
    pub(super) fn join(&self) {
        self.members.add(1, Relaxed);
    }

    /// Counts one connection less. Any context.
    pub(super) fn leave(self: &Arc<Self>) {
        self.idle_since.store(self.now_ms(), Relaxed);
        if self.members.fetch_sub(1, Full) == 1 && self.life.load(Acquire) == LIFE_NEW {
            // The first contact failed: nobody will ever join.
            self.end(Reason::Program);
        }
    }

    /// Whether it has had no connection for `linger_ms`. The registry is locked.
    pub(super) fn is_idle(&self, linger_ms: i64) -> bool {
        self.members.load(Acquire) == 0
            && self.now_ms().saturating_sub(self.idle_since.load(Relaxed)) >= linger_ms
    }

    /// Enters a connection into the table and gives it a token.
    ///
    /// From here until [`detach`](Self::detach) the sink is told what concerns it.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group has ended; `EMFILE` when the table is full.
    pub(crate) fn attach(&self, sink: Arc<dyn ConnSink>) -> Result<AlertToken> {
        self.conns.lock().attach(sink)
    }

    /// Takes a connection out of the table. No call to its sink begins after this. Any context.
    pub(crate) fn detach(&self, token: AlertToken) {
        let sink = self.conns.lock().detach(token);
        drop(sink);
    }

    /// The connection of a token. Any context.
    pub(super) fn conn(&self, token: AlertToken) -> Option<Arc<dyn ConnSink>> {
        self.conns.lock().get(token)
    }

    /// The connection whose token has this low half. Any context.
    pub(super) fn conn_of_short(&self, low: u16) -> Option<Arc<dyn ConnSink>> {
        self.conns.lock().get_short(low)
    }

    /// The connections, one after the other: while one is looked at others may come and go.
    pub(super) fn each_conn(&self) -> impl Iterator<Item = Arc<dyn ConnSink>> + use<'_> {
        (0..usize::from(MAX_CONNS)).filter_map(|place| self.conns.lock().at(place))
    }

    /// Begins the end of the group, once: a work item does the rest. Any context.
    pub(crate) fn end(self: &Arc<Self>, reason: Reason) {
        let mut life = self.life.load(Acquire);
        loop {
            if life >= LIFE_ENDING {
                return;
            }
            match self.life.cmpxchg(life, LIFE_ENDING, Full) {
                Ok(_) => break,
                Err(now) => life = now,
            }
        }
        self.reason.store(reason.number(), Release);
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::END }>(self.clone());
    }

    /// Lets a work item add and end links. Any context.
    pub(super) fn look_after_links(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::CHANGE }>(self.clone());
    }

    /// Lets a work item end lost links. Any context.
    pub(super) fn look_after_losses(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::LOSS }>(self.clone());
    }

    /// Waits until the group has ended, for at most `timeout_ms`; says whether it has.
    pub(super) fn wait_ended(&self, timeout_ms: u32) -> bool {
        self.ended.wait_ms(timeout_ms)
    }

    /// Whether this side ends the group: what the peer says of connections does not matter any more.
    pub(super) fn is_given_up(&self) -> bool {
        !self.is_alive()
            && !matches!(
                Reason::from_number(self.reason.load(Acquire)),
                Reason::ByPeer { .. }
            )
    }

    /// Tells the peer that the group ends, over `link`, and keeps the queue pair for what it still says: a server
    /// answers the announcement with one of its own, and either side aborts connections. It does not matter here, but
    /// the peer's device wants it acknowledged: one that repeats for long would keep the peer waiting.
    fn say_farewell(self: &Arc<Self>, link: &Arc<Link>, reason: Reason) {
        self.announce_end(link, reason);
        link.flush_llc(ANNOUNCE_MS);
        let deadline = Deadline::after(FAREWELL_MS);
        // A device that goes hears nothing, and who broke the protocol need not be waited for.
        while reason != Reason::Violation
            && !link.start().device().is_going()
            && deadline.left().is_some()
        {
            fsleep(Delta::from_millis(QUIET_MS));
            if self.now_ms().saturating_sub(link.last_heard.load(Acquire)) >= QUIET_MS {
                break;
            }
        }
    }

    /// Ends the group, as told in the documentation of this room. Runs once, in a work item.
    fn take_apart(self: &Arc<Self>) {
        let reason = Reason::from_number(self.reason.load(Acquire));
        self.tell_group_down(reason);
        self.log_end(reason);
        self.llc.lock().close();
        self.llc_event.notify_all();
        for link in self.links() {
            link.send.lock().stop();
        }
        // Over one that works, best one that the end does not come from.
        let over = self
            .links()
            .filter(|link| !link.has_failed() && link.can_send())
            .min_by_key(|link| link.is_lost());
        if let Some(link) = over {
            self.say_farewell(&link, reason);
        }
        for link in self.links() {
            link.take_apart();
        }
        loop {
            let next = self.conns.lock().close_next();
            match next {
                Some(sink) => sink.on_link_dead(),
                None => break,
            }
        }
        for link in self.links() {
            self.release_link(&link);
        }
        self.take_apart_rings();
        for link in self.links() {
            self.forget_link(&link);
        }
        registry::forget(self);
        pr_debug!("link group {:#x} has ended: {reason:?}\n", self.id);
        self.ended.set();
    }
}
