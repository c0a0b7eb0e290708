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
mod rx;
mod tx;

use kernel::{
    impl_has_delayed_work,
    impl_has_work,
    new_delayed_work,
    new_mutex,
    new_work,
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
    workqueue::{
        DelayedWork,
        Work, //
    }, //
};

use crate::{
    kapi::{
        net::NetRef,
        sync::BhLock,
        work::{
            ModuleQueue,
            QueueRegistration, //
        }, //
    },
    net_ctx::{
        NetCtx,
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
            Params,
            Snapshot, //
        },
        cursor::RingSize,
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
        ConnSink,
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

/// The most bytes of data in one chain, so that the peer can read one part of the ring while the next is on its way.
const MAX_CHAIN: u32 = 32 * 1024;

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
    /// There is room to write.
    fn writable(&self);
    /// The state changed: closed by the peer, or over.
    fn state(&self);
    /// The connection has failed: the socket's error, once.
    fn failed(&self, error: Error);
}

/// What the socket brings into a connection.
pub(crate) struct Setup {
    /// The namespace of the socket.
    pub(crate) net: NetRef,
    /// The wanted size of the send ring in bytes.
    pub(crate) sndbuf: u32,
    /// The wanted size of the receive ring in bytes.
    pub(crate) rcvbuf: u32,
    /// Whom the connection wakes.
    pub(crate) waker: Arc<dyn Wake>,
}

/// The peer's receive ring.
#[derive(Clone, Copy)]
pub(crate) struct PeerRing {
    /// Key of the memory region.
    rkey: Rkey,
    /// Where the element starts.
    start: Vaddr,
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
            start: message.element()?,
            size: RingSize::new(message.rmbe_size.bytes())?,
            token: message.token,
        })
    }
}

/// What the core's lock guards (lock level 6).
struct Core {
    /// The cursors; nothing before the peer's ring is known.
    conn: Option<Conn>,
    /// What came before that: the peer may send as soon as it has sent its Confirm.
    early: Early,
    /// Close state.
    machine: Machine,
    /// The close machine is done: the connection goes when nothing of it is on its way any more.
    ended: bool,
    /// The application reads no more.
    read_shut: bool,
    /// How much was on its way when the orphan timer was armed: as long as that changes the peer is alive.
    waiting: u32,
    /// The connection itself, for its work items; gone when it leaves the table of its link group.
    me: Option<Arc<Connection>>,
    /// TCP_NODELAY is on: small data is not held back.
    nodelay: bool,
    /// Somebody found no room in the send ring, or data on its way, and wants to know when that changes.
    wants_room: bool,
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
    /// The peer's ring.
    peer: SetOnce<PeerRing>,
    /// The ring that the peer writes into.
    rmb: Rmb,
    /// The ring that is sent from.
    ring: SendRing,
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
    /// Leaves the link group from a context that may sleep.
    #[pin]
    finish_work: Work<Connection, 2>,
    /// The place in the link group. Last, so that it goes after the rings.
    membership: Membership,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for Connection { self.orphan_timer }
}

impl_has_work! {
    impl HasWork<Self, 2> for Connection { self.finish_work }
}

impl Connection {
    /// Makes a connection with rings of the wanted sizes, and puts it into the table of its link group.
    fn new(membership: Membership, setup: &Setup, first_contact: bool) -> Result<Arc<Self>> {
        let want = |bytes| RmbeSizeCode::for_socket_buffer_within(bytes, MAX_RING);
        let rmb = membership.new_rmb(want(setup.rcvbuf))?;
        let ring = membership.new_send_ring(want(setup.sndbuf))?;
        let waker = setup.waker.clone();
        let rings = RingCount::new(NetCtx::of(&setup.net)?, ring.bytes(), rmb.bytes());
        let connection = Arc::pin_init(
            pin_init!(Self {
                core <- new_bh_lock!(Core {
                    conn: None,
                    early: Early::new(),
                    machine: Machine::new(),
                    ended: false,
                    read_shut: false,
                    waiting: 0,
                    me: None,
                    nodelay: false,
                    wants_room: false,
                }, "Connection::core"),
                waker <- new_bh_lock!(Some(waker), "Connection::waker"),
                sender <- new_mutex!((), "Connection::sender"),
                receiver <- new_mutex!((), "Connection::receiver"),
                token: SetOnce::new(),
                peer: SetOnce::new(),
                rmb,
                ring,
                tx_bytes: Atomic::new(0),
                rx_bytes: Atomic::new(0),
                rings,
                first_contact,
                orphan_timer <- new_delayed_work!("smc_cdc::orphan"),
                finish_work <- new_work!("smc_cdc::finish"),
                membership,
            }),
            GFP_KERNEL,
        )?;
        // Before it is in the table: from then on the end of the link group may come, which looks for this.
        connection.core.lock().me = Some(connection.clone());
        match connection.group().attach(connection.clone()) {
            Ok(token) => {
                connection.token.populate(token);
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

    /// What the namespace of the connection keeps.
    fn ctx(&self) -> &NetCtx {
        &self.rings.ctx
    }

    /// Size of the send ring in bytes.
    pub(crate) fn send_ring(&self) -> u32 {
        self.ring.bytes()
    }

    /// Size of the peer's receive ring in bytes, 0 before it is known.
    pub(crate) fn peer_ring(&self) -> u32 {
        self.peer.copy().map_or(0, |peer| peer.size.get())
    }

    /// What an operator may know of the connection.
    pub(crate) fn info(&self) -> Info {
        let group = self.group();
        let (state, sent, cursors, shut) = {
            let core = self.core.lock();
            (
                core.machine.state(),
                core.conn.is_some(),
                core.conn.as_ref().map(Conn::snapshot),
                (core.read_shut, core.may_send().is_err()),
            )
        };
        Info {
            state,
            first_contact: self.first_contact,
            token: self.token().map_or(0, AlertToken::get),
            send_ring: self.ring.bytes(),
            receive_ring: self.rmb.bytes(),
            peer_ring: match (sent, self.peer.copy()) {
                (true, Some(peer)) => peer.size.get(),
                _ => 0,
            },
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
    /// Size of the send ring in bytes.
    send: u32,
    /// Size of the receive ring in bytes.
    receive: u32,
}

impl RingCount {
    /// Begins to count.
    fn new(ctx: Arc<NetCtx>, send: u32, receive: u32) -> Self {
        ctx.stats().ring_taken(Way::Send, send);
        ctx.stats().ring_taken(Way::Receive, receive);
        Self { ctx, send, receive }
    }
}

impl Drop for RingCount {
    fn drop(&mut self) {
        self.ctx.stats().ring_given(Way::Send, self.send);
        self.ctx.stats().ring_given(Way::Receive, self.receive);
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
    /// Size of the send ring in bytes.
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
}

/// A connection during its handshake: unless it becomes active it leaves the link group when it is dropped.
pub(crate) struct Draft {
    /// The connection.
    connection: Arc<Connection>,
    /// It became active.
    done: bool,
}

impl Draft {
    /// Makes a connection in a link group.
    pub(crate) fn new(membership: Membership, setup: &Setup, first_contact: bool) -> Result<Self> {
        Ok(Self {
            connection: Connection::new(membership, setup, first_contact)?,
            done: false,
        })
    }

    /// The link group.
    pub(crate) fn group(&self) -> &Arc<LinkGroup> {
        self.connection.group()
    }

    /// The receive ring.
    pub(crate) fn rmb(&self) -> &Rmb {
        &self.connection.rmb
    }

    /// An Accept or Confirm that describes the connection: all but the version 2 part.
    pub(crate) fn describe(&self, kind: Kind, first_contact: bool) -> AcceptConfirm {
        let connection = &*self.connection;
        let local = self.group().local();
        AcceptConfirm {
            kind,
            first_contact,
            peer_id: smc_ib::system_id(),
            gid: local.gid,
            mac: local.mac,
            qpn: local.qpn,
            rkey: connection.rmb.rkey(),
            rmbe_index: RmbeIndex::FIRST,
            token: connection.token().unwrap_or(AlertToken::from_peer(0)),
            rmbe_size: connection.rmb.size(),
            mtu: local.mtu,
            vaddr: connection.rmb.vaddr(),
            psn: local.psn,
            v2: None,
        }
    }

    /// Learns the peer's ring: from now on messages of the peer count.
    ///
    /// # Errors
    ///
    /// The reason to decline with when a size makes no sense or a message that came early was wrong.
    pub(crate) fn set_peer(&self, ring: PeerRing) -> Result<(), DeclineReason> {
        let connection = &self.connection;
        let size = |bytes| RingSize::new(bytes).ok_or(DeclineReason::INTERR);
        let params = Params {
            send_ring: size(connection.ring.bytes())?,
            peer_ring: ring.size,
            recv_ring: size(connection.rmb.bytes())?,
            peer_token: ring.token,
            update_limit: update_limit(connection.rmb.bytes()),
            max_chain: MAX_CHAIN,
        };
        connection.peer.populate(ring);
        connection.start(params).map_err(|_| DeclineReason::CNFERR)
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
            self.connection.finish();
        }
    }
}

impl ConnSink for Connection {
    fn on_cdc(&self, bytes: &[u8; cdc::LEN]) {
        self.receive_message(bytes);
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
