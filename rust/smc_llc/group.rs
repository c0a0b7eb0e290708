// SPDX-License-Identifier: GPL-2.0

//! A link group with its one link: how it begins, what it consists of, and how it ends.

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
        Mutex, //
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
    flow::LlcState,
    gone,
    registry,
    ring::Rings,
    send::{
        SendQueue,
        CHAIN_SLOTS,
        SINGLE_SLOTS, //
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
        random,
        rdma::{
            Init,
            Pd,
            Qp,
            QpConfig,
            QpEvents,
            RemoteEnd,
            Rtr, //
        },
        sync::BhLock,
    },
    new_bh_lock,
    proto::{
        cdc, clc,
        group::{
            Candidate,
            Identity,
            LinkPeer, //
        },
        ids::{
            AlertToken,
            Eid,
            Gid,
            LinkId,
            LinkUserId,
            Mac,
            MtuCode,
            PeerId,
            Psn,
            Qpn,
            Role, //
        },
        llc::{
            demux,
            DeleteLink,
            Demux, //
        },
    },
    smc_ib::Path,
};

/// Receive buffers of a link: one for every connection that may send at the same time.
const RECV_SLOTS: usize = 256;

/// Bytes of a receive buffer: a message, and what is looked at of a longer one.
const RECV_LEN: usize = 128;

/// How long what was posted may take to come back when a group ends. Nothing depends on it but that chains which were
/// under way are reported one by one: the end is as safe without.
const DRAIN_MS: u32 = 500;

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
    /// The peer's GID.
    pub(crate) peer_gid: Gid,
    /// The enterprise id that both chose.
    pub(crate) eid: Eid,
    /// Release of version 2.
    pub(crate) release: u8,
    /// Connections of the group.
    pub(crate) max_conns: u8,
    /// Links of the group.
    pub(crate) max_links: u8,
}

/// What the peer has to know of our end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalLink {
    /// Queue pair number.
    pub(crate) qpn: Qpn,
    /// First packet sequence number.
    pub(crate) psn: Psn,
    /// GID.
    pub(crate) gid: Gid,
    /// Ethernet address.
    pub(crate) mac: Mac,
    /// Path MTU of our port.
    pub(crate) mtu: MtuCode,
}

/// What we have to know of the peer's end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLink {
    /// Queue pair number.
    pub(crate) qpn: Qpn,
    /// First packet sequence number.
    pub(crate) psn: Psn,
    /// GID.
    pub(crate) gid: Gid,
    /// Ethernet address.
    pub(crate) mac: Mac,
    /// Path MTU that both agreed on.
    pub(crate) mtu: MtuCode,
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
    ByPeer,
}

impl Reason {
    /// As a number, for an atomic.
    fn number(self) -> i32 {
        match self {
            Self::Program => 0,
            Self::Operator => 1,
            Self::LostPath => 2,
            Self::Violation => 3,
            Self::ByPeer => 4,
        }
    }

    /// From its number.
    fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Program,
            1 => Self::Operator,
            3 => Self::Violation,
            4 => Self::ByPeer,
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
            Self::ByPeer => None,
        }
    }

    /// Whether the end is in good order.
    pub(super) fn orderly(self) -> bool {
        self == Self::Program
    }
}

/// The parts of the hardware that only sleeping code touches; the lock around it is level 3.
struct Hardware {
    /// The protection domain, until it is taken apart.
    domain: Option<Arc<Pd>>,
    /// The queue pair while it cannot send; afterwards it is in the send queue.
    qp: Stage,
}

/// The queue pair before it can send.
enum Stage {
    /// Not here: not made yet, in the send queue, or gone.
    None,
    /// Does not know the peer.
    Init(Qp<Events, Init>),
    /// Receives.
    Receiving(Qp<Events, Rtr>),
}

/// A link group.
///
/// # Locking
///
/// `hardware` is level 3, `rings` level 4, `conns` and `llc` level 5, `send` level 7 (docs/locking.md). Callbacks of
/// connections are called without any of them.
#[pin_data]
pub(crate) struct LinkGroup {
    /// Number of the group on this host; its low byte is zero.
    id: u32,
    /// What it was made for.
    params: Params,
    /// Our end of the way to the peer.
    path: Path,
    /// Our first packet sequence number.
    psn: Psn,
    /// Time zero of the group's clock.
    born: Instant<Monotonic>,
    /// Our queue pair number.
    qpn: Atomic<u32>,
    /// The peer's queue pair number; 0 before it is known.
    peer_qpn: Atomic<u32>,
    /// Number of the link, given by the server; 0 before it is known.
    link_id: Atomic<i32>,
    /// Most pieces that a range of a send ring may have.
    max_pieces: Atomic<i32>,
    /// One of the `LIFE_` constants.
    life: Atomic<i32>,
    /// Why it ends.
    reason: Atomic<i32>,
    /// The queue pair has failed: nothing can be told the peer.
    failed: Atomic<bool>,
    /// Connections that belong to it, or are about to.
    members: Atomic<i32>,
    /// When the last of them left, on the group's clock.
    idle_since: Atomic<i64>,
    /// When the peer was last heard of.
    pub(super) last_heard: Atomic<i64>,
    /// When the peer was last asked whether it is there.
    pub(super) test_sent: Atomic<i64>,
    /// Rings that connections have let go of since somebody looked.
    pub(super) returned: Atomic<i32>,
    /// Hardware objects.
    #[pin]
    hardware: Mutex<Hardware>,
    /// Rings of the connections.
    #[pin]
    pub(super) rings: Mutex<Rings>,
    /// Connections by token.
    #[pin]
    conns: BhLock<Table>,
    /// State of the LLC layer.
    #[pin]
    pub(super) llc: BhLock<LlcState>,
    /// Something in `llc` has changed.
    #[pin]
    pub(super) llc_event: CondVar,
    /// Slots and the sending queue pair.
    #[pin]
    pub(super) send: BhLock<SendQueue>,
    /// A slot that is not for a chain has been used, or the queue was closed.
    #[pin]
    pub(super) queue_event: CondVar,
    /// It has ended: nothing of it is left on the device.
    #[pin]
    ended: Event,
    /// Ends it.
    #[pin]
    end_work: Work<LinkGroup, { LinkGroup::END }>,
    /// Looks after rings.
    #[pin]
    tidy_work: Work<LinkGroup, { LinkGroup::TIDY }>,
    /// Offers slots.
    #[pin]
    serve_work: Work<LinkGroup, { LinkGroup::SERVE }>,
}

impl_has_work! {
    impl HasWork<Self, { LinkGroup::END }> for LinkGroup { self.end_work }
    impl HasWork<Self, { LinkGroup::TIDY }> for LinkGroup { self.tidy_work }
    impl HasWork<Self, { LinkGroup::SERVE }> for LinkGroup { self.serve_work }
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

impl WorkItem<{ LinkGroup::SERVE }> for LinkGroup {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.serve_pending();
    }
}

/// What the queue pair of a group reports to.
///
/// It is a reference in a circle: group, queue pair, group. The end of the group breaks it, and every group ends.
pub(super) struct Events(Arc<LinkGroup>);

impl QpEvents for Events {
    fn received(&self, head: &[u8], len: usize) {
        let group = &self.0;
        group.heard();
        let Some(first) = head.first() else {
            return;
        };
        match demux(*first) {
            Demux::Cdc if group.is_given_up() => {}
            Demux::Cdc => {
                let Some(bytes) = head.first_chunk::<{ cdc::LEN }>() else {
                    return;
                };
                if len < cdc::LEN {
                    return;
                }
                if let Some(sink) = cdc::Message::decode(bytes)
                    .ok()
                    .and_then(|m| group.conn(m.token))
                {
                    sink.on_cdc(bytes);
                }
            }
            Demux::Llc(_) => group.on_llc(head),
            Demux::Unknown { .. } => {
                pr_debug!("unknown message of group {:#x}\n", group.id);
            }
        }
    }

    fn sent(&self, slot: usize, ok: bool) {
        self.0.on_sent(slot, ok);
    }

    fn broken(&self) {
        self.0.broken();
    }
}

impl LinkGroup {
    /// Number of the work that ends a group.
    pub(super) const END: u64 = 1;

    /// Number of the work that looks after rings.
    pub(super) const TIDY: u64 = 2;

    /// Number of the work that offers slots.
    pub(super) const SERVE: u64 = 3;

    /// Makes a group with a queue pair in state INIT. May sleep.
    pub(super) fn new(id: u32, path: &Path, params: Params) -> Result<Arc<Self>> {
        let device = path.device().enter().ok_or(ENODEV)?;
        let pd = Pd::new(&device)?;
        let table = Table::new()?;
        let llc = LlcState::new()?;
        let queue = SendQueue::new()?;
        let path = path.clone();
        let port = path.port();
        // The server numbers the links; a client learns the number.
        let link_id = match params.role {
            Role::Server => 1,
            Role::Client => 0,
        };
        let group = Arc::pin_init(
            pin_init!(Self {
                id,
                params,
                path,
                psn: Psn::truncate(random::random_u32()),
                born: Instant::now(),
                qpn: Atomic::new(0),
                peer_qpn: Atomic::new(0),
                link_id: Atomic::new(link_id),
                max_pieces: Atomic::new(1),
                life: Atomic::new(LIFE_NEW),
                reason: Atomic::new(0),
                failed: Atomic::new(false),
                members: Atomic::new(0),
                idle_since: Atomic::new(0),
                last_heard: Atomic::new(0),
                test_sent: Atomic::new(0),
                returned: Atomic::new(0),
                hardware <- new_mutex!(
                    Hardware {
                        domain: None,
                        qp: Stage::None,
                    },
                    "smc_llc::hardware"
                ),
                rings <- new_mutex!(Rings::new(), "smc_llc::rings"),
                conns <- new_bh_lock!(table, "smc_llc::conns"),
                llc <- new_bh_lock!(llc, "smc_llc::llc"),
                llc_event <- new_condvar!("smc_llc::llc_event"),
                send <- new_bh_lock!(queue, "smc_llc::send"),
                queue_event <- new_condvar!("smc_llc::queue_event"),
                ended <- Event::new(),
                end_work <- new_work!("LinkGroup::end_work"),
                tidy_work <- new_work!("LinkGroup::tidy_work"),
                serve_work <- new_work!("LinkGroup::serve_work"),
            }),
            GFP_KERNEL,
        )?;
        let config = QpConfig {
            chain_slots: CHAIN_SLOTS,
            single_slots: SINGLE_SLOTS,
            recv_slots: RECV_SLOTS,
            recv_len: RECV_LEN,
            port,
        };
        let qp = Qp::new(&pd, config, Events(group.clone()))?;
        group.qpn.store(qp.qpn(), Relaxed);
        group
            .max_pieces
            .store(i32::try_from(qp.max_pieces()).unwrap_or(1), Relaxed);
        {
            let mut hardware = group.hardware.lock();
            hardware.domain = Some(pd);
            hardware.qp = Stage::Init(qp);
        }
        Ok(group)
    }

    /// Number of the group on this host.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Our side.
    pub(crate) fn role(&self) -> Role {
        self.params.role
    }

    /// Release of version 2 that both speak.
    pub(crate) fn release(&self) -> u8 {
        self.params.release
    }

    /// What it was made for.
    pub(super) fn params(&self) -> &Params {
        &self.params
    }

    /// Our end of the way to the peer.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of the link, if it is known already.
    pub(super) fn known_link_id(&self) -> Option<LinkId> {
        let number = u8::try_from(self.link_id.load(Relaxed)).ok()?;
        LinkId::new(number)
    }

    /// Number of the link; 1 where the server has not given it yet.
    pub(crate) fn link_id(&self) -> LinkId {
        self.known_link_id().unwrap_or(LinkId::FIRST)
    }

    /// Takes the number that the server gives the link.
    pub(super) fn set_link_id(&self, id: LinkId) {
        self.link_id.store(i32::from(id.get()), Relaxed);
    }

    /// Our id of the link, for tools.
    pub(crate) fn link_user_id(&self) -> LinkUserId {
        let number = self.id.wrapping_add(u32::from(self.link_id().get()));
        LinkUserId::from_number(number)
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

    /// Our end of the link.
    pub(crate) fn local(&self) -> LocalLink {
        LocalLink {
            qpn: Qpn::truncate(self.qpn.load(Relaxed)),
            psn: self.psn,
            gid: self.path.gid(),
            mac: self.path.mac(),
            mtu: self.path.mtu(),
        }
    }

    /// Milliseconds on the group's clock.
    pub(super) fn now_ms(&self) -> i64 {
        self.born.elapsed().as_millis()
    }

    /// Most pieces that a range of a send ring may have.
    pub(super) fn max_pieces(&self) -> usize {
        usize::try_from(self.max_pieces.load(Relaxed)).unwrap_or(1)
    }

    /// The protection domain.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group has ended.
    pub(super) fn domain(&self) -> Result<Arc<Pd>> {
        self.hardware.lock().domain.clone().ok_or_else(gone)
    }

    /// Whether the queue pair can send.
    pub(super) fn can_send(&self) -> bool {
        self.send.lock().qp.is_some()
    }

    /// First contact: ties the queue pair to the peer's, which it can receive from then on. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group ends, or is tied already; what the device says.
    pub(crate) fn connect(&self, peer: &PeerLink) -> Result {
        let mut hardware = self.hardware.lock();
        let Stage::Init(qp) = core::mem::replace(&mut hardware.qp, Stage::None) else {
            return Err(gone());
        };
        let mtu = self.path.mtu().agree(peer.mtu).ok_or(EINVAL)?;
        let end = RemoteEnd {
            qpn: peer.qpn.get(),
            psn: peer.psn.get(),
            gid: peer.gid.0,
            mac: self.path.destination(peer.mac).0,
            mtu: mtu.get(),
            sgid_index: self.path.gid_index(),
            hop_limit: self.path.hop_limit(),
        };
        hardware.qp = Stage::Receiving(qp.into_rtr(&end)?);
        self.peer_qpn.store(peer.qpn.get(), Release);
        Ok(())
    }

    /// First contact: lets the queue pair send. May sleep.
    pub(super) fn begin_sending(&self) -> Result {
        let mut hardware = self.hardware.lock();
        let Stage::Receiving(qp) = core::mem::replace(&mut hardware.qp, Stage::None) else {
            return Err(gone());
        };
        let qp = qp.into_rts(self.psn.get())?;
        self.send.lock().qp = Some(qp);
        Ok(())
    }

    /// First contact is over, as the peer has answered over the queue pair: connections may join.
    pub(super) fn activate(&self) -> Result {
        // Before anybody can find this group by that number.
        registry::end_superseded(self);
        self.life
            .cmpxchg(LIFE_NEW, LIFE_ACTIVE, Full)
            .map_err(|_| gone())?;
        self.heard();
        Ok(())
    }

    /// The peer's queue pair, once it is known.
    pub(super) fn peer_qpn(&self) -> Qpn {
        Qpn::truncate(self.peer_qpn.load(Acquire))
    }

    /// The peer's GID.
    pub(crate) fn peer_gid(&self) -> Gid {
        self.params.peer_gid
    }

    /// The group as the matching rule sees it, handed to `f`.
    pub(super) fn with_candidate<T>(&self, f: impl FnOnce(&Candidate<'_>) -> T) -> T {
        let rtoken_free = self.llc.lock().has_room();
        let links = [LinkPeer {
            active: self.life.load(Acquire) == LIFE_ACTIVE,
            gid: self.params.peer_gid,
            mac: Mac::ZERO,
            qpn: self.peer_qpn(),
        }];
        f(&Candidate {
            identity: Identity {
                role: self.params.role,
                version: clc::Version::V2,
                peer_id: self.params.peer_id,
                eid: Some(self.params.eid),
                vlan: self.path.vlan(),
            },
            ending: !self.is_alive(),
            conns: u8::try_from(self.members.load(Acquire)).unwrap_or(u8::MAX),
            max_conns: self.params.max_conns,
            rtoken_free,
            links: &links,
        })
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

    /// Lets a work item offer free slots. Any context.
    pub(super) fn serve_later(self: &Arc<Self>) {
        registry::QUEUE.enqueue::<LinkGroup, { LinkGroup::SERVE }>(self.clone());
    }

    /// The queue pair has failed. Any context.
    pub(super) fn broken(self: &Arc<Self>) {
        if !self.failed.xchg(true, Full) {
            self.end(Reason::LostPath);
        }
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

    /// Waits until the group has ended, for at most `timeout_ms`; says whether it has.
    pub(super) fn wait_ended(&self, timeout_ms: u32) -> bool {
        self.ended.wait_ms(timeout_ms)
    }

    /// Whether this side ends the group: what the peer says of connections does not matter any more.
    fn is_given_up(&self) -> bool {
        !self.is_alive() && Reason::from_number(self.reason.load(Acquire)) != Reason::ByPeer
    }

    /// Keeps the queue pair for what the peer still says: a server answers the announcement with one of its own, and
    /// either side aborts connections. It does not matter here, but the peer's device wants it acknowledged, and one
    /// that repeats without end (rxe with a retry count of 7) would keep the peer waiting for ever.
    fn hear_out(&self, reason: Reason) {
        let deadline = Deadline::after(FAREWELL_MS);
        // A device that goes hears nothing, and who broke the protocol need not be waited for.
        while reason != Reason::Violation
            && !self.path.device().is_going()
            && deadline.left().is_some()
        {
            fsleep(Delta::from_millis(QUIET_MS));
            if self.now_ms().saturating_sub(self.last_heard.load(Acquire)) >= QUIET_MS {
                break;
            }
        }
    }

    /// Ends the group, as told in the documentation of this room. Runs once, in a work item.
    fn take_apart(self: &Arc<Self>) {
        let reason = Reason::from_number(self.reason.load(Acquire));
        self.llc.lock().close();
        self.llc_event.notify_all();
        self.send.lock().stop();
        if !self.failed.load(Acquire) {
            self.announce_end(reason);
            self.flush_llc(ANNOUNCE_MS);
            self.hear_out(reason);
        }

        let sending = {
            let mut queue = self.send.lock();
            queue.close();
            queue.qp.take()
        };
        self.queue_event.notify_all();
        let (stage, domain) = {
            let mut hardware = self.hardware.lock();
            (
                core::mem::replace(&mut hardware.qp, Stage::None),
                hardware.domain.take(),
            )
        };
        // It may have begun to send between the two.
        let late = self.send.lock().qp.take();
        let mut closing = sending.or(late).map(Qp::into_closing);
        match stage {
            Stage::Init(qp) => closing = Some(qp.into_closing()),
            Stage::Receiving(qp) => closing = Some(qp.into_closing()),
            Stage::None => {}
        }
        if let Some(mut closing) = closing {
            if !closing.wait(DRAIN_MS) {
                pr_warn!(
                    "link group {:#x} ends before its work requests came back\n",
                    self.id
                );
            }
        }
        self.take_apart_rings();
        drop(domain);
        loop {
            let next = self.conns.lock().close_next();
            match next {
                Some(sink) => sink.on_link_dead(),
                None => break,
            }
        }
        registry::forget(self);
        pr_debug!("link group {:#x} has ended: {reason:?}\n", self.id);
        self.ended.set();
    }
}
