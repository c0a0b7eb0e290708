// SPDX-License-Identifier: GPL-2.0

//! Connections: what is sent and received over a link group for one socket, and how that ends.
//!
//! A [`Connection`] has a send ring, a receive ring that the peer writes into, and the pure core [`Conn`] under a
//! spinlock. It belongs to the connection table of its link group, by its alert token, until [`finish`] takes it out;
//! the socket holds it too, and may go first: what is left to send is sent without it.
//!
//! ```text
//!   send() ─► send ring ─► plan ─► RDMA WRITE …, CDC ══► peer
//!   recv() ◄─ receive ring ◄═══════ RDMA WRITE …, CDC ══ peer
//! ```
//!
//! RFC 7609, sections 4.1 to 4.8.
//!
//! [`finish`]: Connection::finish

mod close;
mod growth;
mod moving;
mod rx;
mod tx;

use kernel::{
    impl_has_delayed_work,
    new_delayed_work,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex,
        SetOnce, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::DelayedWork, //
};

use crate::{
    kapi::{
        memcg::MemCg,
        net::NetRef,
        sync::BhLock,
        work::{
            ModuleQueue,
            QueueRegistration, //
        }, //
    },
    net_ctx::{
        Counter,
        NetCtx,
        RingEvent,
        Way, //
    },
    new_bh_lock,
    proto::{
        cdc,
        clc::{
            AcceptConfirm,
            Kind, //
        },
        close::{
            Machine,
            State, //
        },
        conn::{
            Conn,
            Early,
            Moving,
            Params,
            Short,
            Snapshot, //
        },
        cursor::RingSize,
        group::{
            Evacuation,
            Rtoken, //
        },
        ids::{
            AlertToken,
            Rkey,
            RmbeIndex,
            Vaddr, //
        },
        reason::DeclineReason,
        size::{
            update_limit,
            RmbeSizeCode, //
        }, //
    },
    smc_ib,
    smc_llc::{
        Binding,
        ConnSink,
        Link,
        LinkGroup,
        Membership,
        Rmb,
        SendRing, //
    },
};

pub(crate) use self::{
    close::TcpEnd,
    rx::RecvMode,
    tx::SendMode, //
};

/// The most bytes of data in one chain: of a large ring the peer can read one part while the next is on its way. Each
/// chain costs both sides a wake-up, a message and its acknowledgement, so that small ones do not pay.
const MAX_CHAIN: u32 = 64 * 1024;

/// The largest ring that is asked for: half of it has to be worth the memory.
const MAX_RING: RmbeSizeCode = RmbeSizeCode::from_nibble(5);

/// Work of connections that must not run in softirq.
static QUEUE: ModuleQueue = ModuleQueue::new();

/// What smc_cdc has registered; it goes after the link groups.
pub(crate) struct Registration {
    /// Empties and destroys the queue.
    _queue: QueueRegistration,
}

impl Registration {
    /// Makes the work queue.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            _queue: QUEUE.register(c"smc_cdc", crate::kapi::work::Kind::Unbound)?,
        })
    }
}

/// Whom a connection wakes: the socket that owns it. Called in softirq and from tasks; it must neither sleep nor call the
/// connection. All but `failed` are called with no lock held.
pub(crate) trait Wake: Send + Sync {
    /// Data, its end or urgent data can be read.
    fn readable(&self);
    /// Urgent data has arrived.
    fn urgent(&self);
    /// There is room to write.
    fn writable(&self);
    /// The state changed: closed by the peer, or over.
    fn state(&self);
    /// The connection has failed: the socket's error, once.
    fn failed(&self, error: Error);
}

/// What came of a call that copies from the application or to it.
pub(crate) struct Moved {
    /// So many bytes count.
    pub(crate) bytes: usize,
    /// Behind them was a page that cannot be used. What was copied of their piece does not count, but the call's vector
    /// has moved on: the call ends here, whether or not the page can be used by now.
    pub(crate) fault: bool,
}

impl Moved {
    /// Nothing.
    const NOTHING: Self = Self {
        bytes: 0,
        fault: false,
    };
}

/// What the socket brings into a connection.
pub(crate) struct Setup {
    /// The namespace of the socket.
    pub(crate) net: NetRef,
    /// The wanted size of the send ring in bytes.
    pub(crate) sndbuf: u32,
    /// The wanted size of the receive ring in bytes.
    pub(crate) rcvbuf: u32,
    /// To whose account the rings go.
    pub(crate) memcg: Option<MemCg>,
    /// Whom the connection wakes.
    pub(crate) waker: Arc<dyn Wake>,
}

/// The peer's receive ring, as it is reached over one link.
#[derive(Clone, Copy)]
pub(crate) struct PeerRing {
    /// Key of the memory region.
    rkey: Rkey,
    /// Where the memory region starts.
    vaddr: Vaddr,
    /// How far behind that the element starts.
    offset: u64,
    /// Its size.
    size: RingSize,
    /// The token that the peer wants to find in messages.
    token: AlertToken,
}

impl PeerRing {
    /// The ring that an Accept or Confirm describes; nothing when it does not fit into an address space.
    pub(crate) fn of(message: &AcceptConfirm) -> Option<Self> {
        Some(Self {
            rkey: message.rkey,
            vaddr: message.vaddr,
            offset: message.element()?.0.checked_sub(message.vaddr.0)?,
            size: RingSize::new(message.rmbe_size.bytes())?,
            token: message.token,
        })
    }

    /// Key and address of the memory region.
    fn region(&self) -> Rtoken {
        Rtoken {
            rkey: self.rkey,
            vaddr: self.vaddr,
        }
    }

    /// The same ring over another link.
    fn over(self, region: Rtoken) -> Self {
        Self {
            rkey: region.rkey,
            vaddr: region.vaddr,
            ..self
        }
    }

    /// The address of a place in the element; nothing when the peer's numbers do not fit into an address space.
    fn at(&self, place: u32) -> Option<Vaddr> {
        let start = self.vaddr.0.checked_add(self.offset)?;
        start.checked_add(u64::from(place)).map(Vaddr)
    }
}

/// What the core's lock guards (lock level 6).
struct Core {
    /// The cursors; nothing before the peer's ring is known.
    conn: Option<Conn>,
    /// The peer's ring over the present link; nothing where it has no key there.
    peer: Option<PeerRing>,
    /// The present link; nothing before the first one and after the last.
    bound: Option<Binding>,
    /// What came before the peer's ring was known: the peer may send as soon as it has sent its Confirm.
    early: Early,
    /// What came from a peer that changes links, before all had come that it sent on the old one.
    moving: Moving,
    /// Close state.
    machine: Machine,
    /// As what it is counted if this side gives the connection up.
    giving_up: Counter,
    /// The close machine is done: the connection goes when nothing of it is on its way any more.
    ended: bool,
    /// How much was on its way when the orphan timer was armed: as long as that changes the peer is alive.
    waiting: u32,
    /// The connection itself, for its work items; gone when it leaves the table of its link group.
    me: Option<Arc<Connection>>,
    /// TCP_NODELAY is on: small data is not held back.
    nodelay: bool,
    /// Somebody found no room in the send ring, or data on its way, and wants to know when that changes.
    wants_room: bool,
    /// The send ring in use, unless it is the first one.
    grown: Option<Arc<SendRing>>,
    /// When a larger send ring could not be had: it is asked for again a while later, or on another link.
    no_ring: Option<Instant<Monotonic>>,
    /// Something was written since somebody last looked whether the larger send ring is needed.
    sending: bool,
}

/// One SMC-R connection.
#[pin_data]
pub(crate) struct Connection {
    /// Cursors and state.
    #[pin]
    core: BhLock<Core>,
    /// Whom to wake; empty once the socket has gone. Taken inside the core's lock or alone, and held over a look only.
    #[pin]
    waker: BhLock<Option<Arc<dyn Wake>>>,
    /// One sender at a time (lock level 3).
    #[pin]
    sender: Mutex<()>,
    /// One receiver at a time (lock level 3).
    #[pin]
    receiver: Mutex<()>,
    /// Our token in the link group's table.
    token: SetOnce<AlertToken>,
    /// The ring that the peer writes into.
    rmb: Rmb,
    /// The ring that is sent from, as long as it is large enough.
    first: SendRing,
    /// How large a ring may become that is sent from.
    most: RmbeSizeCode,
    /// How large it was when it was last larger than the first, or how large it may become.
    send_bytes: Atomic<u32>,
    /// Payload bytes taken from the application.
    tx_bytes: Atomic<u64>,
    /// Payload bytes given to the application.
    rx_bytes: Atomic<u64>,
    /// Counts the rings as long as they are in use.
    rings: RingCount,
    /// Whether this connection made its link group.
    first_contact: bool,
    /// Ends an orphan whose peer never closes.
    #[pin]
    orphan_timer: DelayedWork<Connection, 1>,
    /// Sends what was held back for more to follow.
    #[pin]
    cork_timer: DelayedWork<Connection, 4>,
    /// Ends the wait for the rest that a peer has sent on its old link.
    #[pin]
    moving_timer: DelayedWork<Connection, 3>,
    /// Believes a reset of the TCP connection.
    #[pin]
    reset_timer: DelayedWork<Connection, 5>,
    /// The place in the link group. Last, so that it goes after the rings.
    membership: Membership,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Connection { self.orphan_timer }
    impl HasDelayedWork<Self, 3> for Connection { self.moving_timer }
    impl HasDelayedWork<Self, 4> for Connection { self.cork_timer }
    impl HasDelayedWork<Self, 5> for Connection { self.reset_timer }
}

impl Connection {
    /// Makes a connection with rings of the wanted sizes that uses `link`, and puts it into the table of its link group.
    fn new(
        membership: Membership,
        link: &Arc<Link>,
        setup: &Setup,
        first_contact: bool,
    ) -> Result<Arc<Self>> {
        let want = |bytes| RmbeSizeCode::for_socket_buffer_within(bytes, MAX_RING);
        let memcg = setup.memcg.as_ref();
        let rmb = membership.new_rmb(want(setup.rcvbuf), memcg)?;
        let first = membership.first_send_ring(link, memcg)?;
        let most = want(setup.sndbuf);
        let bound = membership.bind(link, &rmb, &first, None)?;
        let waker = setup.waker.clone();
        let rings = RingCount::new(NetCtx::of(&setup.net)?);
        rings.sized(most.bytes(), rmb.bytes());
        rings.take(Way::Send, first.bytes(), first.is_reused(), false);
        let degraded = rmb.bytes() < want(setup.rcvbuf).bytes();
        rings.take(Way::Receive, rmb.bytes(), rmb.is_reused(), degraded);
        let connection = Arc::pin_init(
            pin_init!(Self {
                core <- new_bh_lock!(Core {
                    conn: None,
                    peer: None,
                    bound: Some(bound),
                    early: Early::new(),
                    moving: Moving::new(),
                    machine: Machine::new(),
                    giving_up: Counter::ABORT_LOCAL,
                    ended: false,
                    waiting: 0,
                    me: None,
                    nodelay: false,
                    wants_room: false,
                    grown: None,
                    no_ring: None,
                    sending: false,
                }, "Connection::core"),
                waker <- new_bh_lock!(Some(waker), "Connection::waker"),
                sender <- new_mutex!((), "Connection::sender"),
                receiver <- new_mutex!((), "Connection::receiver"),
                token: SetOnce::new(),
                rmb,
                first,
                most,
                send_bytes: Atomic::new(most.bytes()),
                tx_bytes: Atomic::new(0),
                rx_bytes: Atomic::new(0),
                rings,
                first_contact,
                orphan_timer <- new_delayed_work!("smc_cdc::orphan"),
                cork_timer <- new_delayed_work!("smc_cdc::cork"),
                moving_timer <- new_delayed_work!("smc_cdc::moving"),
                reset_timer <- new_delayed_work!("smc_cdc::reset"),
                membership,
            }),
            GFP_KERNEL,
        )?;
        // Before it is in the table: from then on the end of the link group may come, which looks for this.
        connection.core.lock().me = Some(connection.clone());
        match connection.group().attach(connection.clone()) {
            Ok(token) => {
                connection.token.populate(token);
                // Whoever ends the link has seen the connection in the table, or is seen here.
                if link.is_lost() {
                    connection.unmap(link);
                    connection.leave_link(link, connection.group().evacuation());
                }
                Ok(connection)
            }
            Err(e) => {
                connection.finish();
                Err(e)
            }
        }
    }

    /// The link group.
    pub(crate) fn group(&self) -> &Arc<LinkGroup> {
        self.membership.group()
    }

    /// Our token, once it is in the table.
    fn token(&self) -> Option<AlertToken> {
        self.token.copy()
    }

    /// Tells the socket, if it is still there.
    fn wake(&self, what: impl FnOnce(&dyn Wake)) {
        let waker = self.waker.lock().clone();
        if let Some(waker) = waker {
            what(&*waker);
        }
    }

    /// Name of the RDMA device of its link, ended by a zero byte.
    pub(crate) fn device_name(&self) -> [u8; 64] {
        let core = self.core.lock();
        let link = core.bound.as_ref().map(|bound| bound.link().clone());
        drop(core);
        link.map_or([0; 64], |link| link.start().device_name())
    }

    /// What the namespace of the connection keeps.
    fn ctx(&self) -> &NetCtx {
        &self.rings.ctx
    }

    /// How large the send ring is in bytes when there is much to send.
    pub(crate) fn send_ring(&self) -> u32 {
        self.send_bytes.load(Relaxed)
    }

    /// Size of the peer's receive ring in bytes, 0 before it is known.
    pub(crate) fn peer_ring(&self) -> u32 {
        let core = self.core.lock();
        core.conn
            .as_ref()
            .map_or(0, |conn| conn.params().peer_ring.get())
    }

    /// What an operator may know of the connection.
    pub(crate) fn info(&self) -> Info {
        let group = self.group();
        let (state, peer_ring, link, cursors, shut) = {
            let core = self.core.lock();
            let peer = core.conn.as_ref().map(|conn| conn.params().peer_ring);
            let link = core.bound.as_ref().map(|bound| bound.link().clone());
            (
                core.machine.state(),
                peer,
                link,
                core.conn.as_ref().map(Conn::snapshot),
                (core.machine.is_read_shut(), core.may_send().is_err()),
            )
        };
        Info {
            state,
            link,
            first_contact: self.first_contact,
            token: self.token().map_or(0, AlertToken::get),
            send_ring: self.send_ring(),
            receive_ring: self.rmb.bytes(),
            peer_ring: peer_ring.map_or(0, RingSize::get),
            tx_bytes: self.tx_bytes.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            cursors,
            shut,
            group: group.clone(),
        }
    }
}

/// Counts the rings of a connection as being in use. It may be dropped in any context.
struct RingCount {
    /// Where it is counted.
    ctx: Arc<NetCtx>,
    /// Bytes of the send rings.
    send: Atomic<u32>,
    /// Bytes of the receive ring.
    receive: Atomic<u32>,
}

impl RingCount {
    /// Counts nothing yet.
    fn new(ctx: Arc<NetCtx>) -> Self {
        Self {
            ctx,
            send: Atomic::new(0),
            receive: Atomic::new(0),
        }
    }

    /// How large the rings may become.
    fn sized(&self, send: u32, receive: u32) {
        self.ctx.stats().ring_size(Way::Send, send);
        self.ctx.stats().ring_size(Way::Receive, receive);
    }

    /// The bytes of the rings of one way.
    fn of(&self, way: Way) -> &Atomic<u32> {
        match way {
            Way::Send => &self.send,
            Way::Receive => &self.receive,
        }
    }

    /// Counts a ring as given back.
    fn give(&self, way: Way, bytes: u32) {
        self.of(way).fetch_sub(bytes, Relaxed);
        self.ctx.stats().ring_given(way, bytes);
    }

    /// Counts a ring: where it came from, and whether it is smaller than was wanted.
    fn take(&self, way: Way, bytes: u32, reused: bool, degraded: bool) {
        self.of(way).fetch_add(bytes, Relaxed);
        self.ctx.stats().ring_taken(way, bytes);
        let origin = if reused {
            RingEvent::REUSED
        } else {
            RingEvent::ALLOCATED
        };
        self.ctx.stats().ring(way, origin);
        if degraded {
            self.ctx.stats().ring(way, RingEvent::DEGRADED);
        }
    }
}

impl Drop for RingCount {
    fn drop(&mut self) {
        for way in [Way::Send, Way::Receive] {
            self.give(way, self.of(way).load(Relaxed));
        }
    }
}

/// A snapshot for an operator.
pub(crate) struct Info {
    /// Close state.
    pub(crate) state: State,
    /// Whether the connection made its link group.
    pub(crate) first_contact: bool,
    /// Our alert token.
    pub(crate) token: u32,
    /// How large the send ring is in bytes when there is much to send.
    pub(crate) send_ring: u32,
    /// Size of the receive ring in bytes.
    pub(crate) receive_ring: u32,
    /// Size of the peer's receive ring in bytes.
    pub(crate) peer_ring: u32,
    /// Payload bytes taken from the application.
    pub(crate) tx_bytes: u64,
    /// Payload bytes given to the application.
    pub(crate) rx_bytes: u64,
    /// The cursors, once the peer's ring is known.
    pub(crate) cursors: Option<Snapshot>,
    /// Whether receiving and sending are over on this side.
    pub(crate) shut: (bool, bool),
    /// The link group.
    pub(crate) group: Arc<LinkGroup>,
    /// The link, while there is one.
    pub(crate) link: Option<Arc<Link>>,
}

/// A connection during its handshake: unless it becomes active it leaves the link group when it is dropped.
pub(crate) struct Draft {
    /// The connection.
    connection: Arc<Connection>,
    /// The link that it took first.
    link: Arc<Link>,
    /// The peer's ring was stored for it, and is known for nothing else.
    stored: Option<(Arc<Link>, Rtoken)>,
    /// It became active.
    done: bool,
}

impl Draft {
    /// Makes a connection in a link group, on one of its links.
    pub(crate) fn new(
        (membership, link): (Membership, Arc<Link>),
        setup: &Setup,
        first_contact: bool,
    ) -> Result<Self> {
        Ok(Self {
            connection: Connection::new(membership, &link, setup, first_contact)?,
            link,
            stored: None,
            done: false,
        })
    }

    /// The link that it took first.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The link group.
    pub(crate) fn group(&self) -> &Arc<LinkGroup> {
        self.connection.group()
    }

    /// The receive ring.
    pub(crate) fn rmb(&self) -> &Rmb {
        &self.connection.rmb
    }

    /// An Accept or Confirm that describes the connection, all but the version 2 part, and the link that it is about.
    ///
    /// # Errors
    ///
    /// The reason to decline with when there is no link any more.
    pub(crate) fn describe(
        &self,
        kind: Kind,
        first_contact: bool,
    ) -> Result<(AcceptConfirm, Arc<Link>), DeclineReason> {
        let connection = &*self.connection;
        let (link, rmb) = {
            let core = connection.core.lock();
            let bound = core.bound.as_ref().ok_or(DeclineReason::ERR_RDYLNK)?;
            (bound.link().clone(), bound.rmb())
        };
        let local = link.local();
        let message = AcceptConfirm {
            kind,
            first_contact,
            peer_id: smc_ib::system_id(),
            gid: local.gid,
            mac: local.mac,
            qpn: local.qpn,
            rkey: rmb.rkey,
            rmbe_index: RmbeIndex::FIRST,
            token: connection.token().unwrap_or(AlertToken::from_peer(0)),
            rmbe_size: connection.rmb.size(),
            mtu: local.mtu,
            vaddr: rmb.vaddr,
            psn: local.psn,
            v2: None,
        };
        Ok((message, link))
    }

    /// Stores the peer's ring, which its Accept or Confirm describes for `link`, with those of its group.
    ///
    /// # Errors
    ///
    /// The reason to decline with when there is no room or the link has gone.
    pub(crate) fn store_peer(
        &mut self,
        link: &Arc<Link>,
        ring: &PeerRing,
    ) -> Result<(), DeclineReason> {
        if self.group().add_peer_rmb(link, ring.region())? {
            self.stored = Some((link.clone(), ring.region()));
        }
        Ok(())
    }

    /// Knows the peer's ring, as it is reached over `link`: from now on messages of the peer count.
    ///
    /// # Errors
    ///
    /// The reason to decline with when a size makes no sense, a message that came early was wrong, or the connection has
    /// moved to where the peer has no key.
    pub(crate) fn set_peer(&self, link: &Link, ring: PeerRing) -> Result<(), DeclineReason> {
        let connection = &self.connection;
        let size = |bytes| RingSize::new(bytes).ok_or(DeclineReason::INTERR);
        let params = Params {
            send_ring: size(connection.first.bytes())?,
            peer_ring: ring.size,
            recv_ring: size(connection.rmb.bytes())?,
            peer_token: ring.token,
            update_limit: update_limit(connection.rmb.bytes()),
            max_chain: MAX_CHAIN,
        };
        connection.start(link, ring, params)
    }

    /// The handshake has ended well.
    pub(crate) fn activate(mut self) -> Arc<Connection> {
        self.done = true;
        self.connection.become_active();
        self.connection.clone()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            if let Some((link, token)) = self.stored.take() {
                self.group().remove_peer_rmb(&link, token);
            }
            self.connection.finish();
        }
    }
}

impl ConnSink for Connection {
    fn on_cdc(&self, bytes: &[u8; cdc::LEN], column: usize) {
        self.receive_message(bytes, column);
    }

    fn on_short(&self, short: Short, len: u32, column: usize) {
        self.receive_short(short, len, column);
    }

    fn on_unmap(&self, from: &Link) {
        self.unmap(from);
    }

    fn on_move(&self, from: &Arc<Link>, evacuation: Evacuation) {
        self.leave_link(from, evacuation);
    }

    fn on_rest(&self) {
        self.shrink();
    }

    fn on_tx_done(&self, cookie: u64, ok: bool) {
        self.sent(cookie, ok);
    }

    fn on_slot(&self) {
        self.push();
    }

    fn on_link_dead(&self) {
        self.link_died();
    }
}
