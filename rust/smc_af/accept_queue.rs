// SPDX-License-Identifier: GPL-2.0

//! Connections that have arrived at a listener: those in a handshake, and those that wait for `accept(2)`.
//!
//! Each is taken from the TCP listener by a work item of its own, which is queued when it arrives, and what was left
//! there by the listener's work item. One that does not speak SMC goes straight to those that wait; of the others each
//! has its handshake in a work item of its own, which is that one where there is one. Together they are no more than the
//! backlog.

use kernel::{
    alloc::kvec::PushError,
    impl_has_delayed_work, new_delayed_work,
    num::casts::u32_as_usize,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    workqueue::{
        new_work,
        DelayedWork,
        Work,
        WorkItem, //
    },
};

use crate::{
    kapi::{
        memcg::MemCg,
        net::{
            option::LISTENER_LIMIT,
            Shutdown,
            SockRef,
            TcpSocket,
            WakeHook, //
        },
        work::cancel_delayed, //
    },
    net_ctx::{
        NetCtx,
        Role, //
    },
    proto::reason::DeclineReason,
    smc_cdc::{
        Connection,
        Wake, //
    },
    smc_clc::{
        self,
        Outcome,
        Setup, //
    },
};

use super::{
    socket::SmcSock,
    waker::SockWaker,
    HANDSHAKES, //
};

/// How long after the TCP listener could not give a connection it is asked again.
const RETRY: Delta = Delta::from_millis(50);

/// After so many milliseconds a handshake no longer takes the place of another connection: its peer may be silent, and that
/// is nothing to others.
const LATE_MS: u32 = 500;

/// So many of them at most.
const MOST_LATE: usize = 128;

/// How an accepted connection goes on.
pub(super) enum Way {
    /// By TCP.
    Tcp {
        /// Why; nothing when the listener itself is one of TCP.
        reason: Option<DeclineReason>,
        /// The diagnosis in the peer's Decline.
        peer_diagnosis: u32,
    },
    /// By RDMA.
    Smc {
        /// The connection.
        conn: Arc<Connection>,
        /// Whom it wakes.
        waker: Arc<SockWaker>,
    },
}

/// A connection that waits for `accept(2)`.
///
/// One that is dropped instead is reset.
pub(crate) struct Child {
    /// Its TCP socket, until it is accepted.
    tcp: Option<Arc<TcpSocket>>,
    /// How it goes on.
    way: Way,
    /// Whether TCP_CORK is on at its listener.
    corked: bool,
}

impl Child {
    /// A connection.
    pub(super) fn new(tcp: Arc<TcpSocket>, way: Way) -> Self {
        Self {
            tcp: Some(tcp),
            way,
            corked: false,
        }
    }

    /// The connection with what its listener does not have set on the TCP socket.
    pub(super) fn corked(mut self, corked: bool) -> Self {
        self.corked = corked;
        self
    }

    /// Whether TCP_CORK is on.
    pub(super) fn is_corked(&self) -> bool {
        self.corked
    }

    /// Its TCP socket, if it was not taken.
    pub(super) fn tcp(&self) -> Option<&Arc<TcpSocket>> {
        self.tcp.as_ref()
    }

    /// How it goes on.
    pub(super) fn way(&self) -> &Way {
        &self.way
    }

    /// Takes the TCP socket: the connection is accepted.
    pub(super) fn take_tcp(&mut self) -> Option<Arc<TcpSocket>> {
        self.tcp.take()
    }
}

impl Child {
    /// Whether the application would find bytes, their end or an error.
    fn has_news(&self) -> bool {
        match &self.way {
            Way::Smc { conn, .. } => {
                let ready = conn.ready();
                ready.unread > 0 || ready.urgent || ready.read_hangup || ready.hangup
            }
            Way::Tcp { .. } => self.tcp.as_ref().is_none_or(|tcp| !tcp.is_silent()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(tcp) = self.tcp.take() else {
            return;
        };
        if let Way::Smc { conn, .. } = &self.way {
            conn.disconnect();
        }
        // Nobody will read: the peer is told so, as TCP does.
        tcp.abort();
    }
}

/// First in, first out, in constant time on average: newcomers are stacked, and the stack is turned over when those
/// who came before have gone.
struct Fifo<T> {
    /// Newcomers, the last one on top.
    new: KVec<T>,
    /// The others, the first one on top.
    old: KVec<T>,
}

impl<T> Fifo<T> {
    /// An empty one.
    const fn new() -> Self {
        Self {
            new: KVec::new(),
            old: KVec::new(),
        }
    }

    /// How many there are.
    fn len(&self) -> usize {
        self.new.len().saturating_add(self.old.len())
    }

    /// Adds one at the end; gives it back when there is no memory.
    fn push(&mut self, item: T) -> Result<(), T> {
        if self.new.reserve(1, GFP_KERNEL).is_err() {
            return Err(item);
        }
        self.new
            .push_within_capacity(item)
            .map_err(|PushError(item)| item)
    }

    /// Takes the first.
    fn pop(&mut self) -> Result<Option<T>> {
        if self.old.is_empty() {
            self.old.reserve(self.new.len(), GFP_KERNEL)?;
            while let Some(item) = self.new.pop() {
                self.old.push(item, GFP_KERNEL)?;
            }
        }
        Ok(self.old.pop())
    }
}

/// A connection that waits for its first bytes, for a listener that wants it so (TCP_DEFER_ACCEPT).
struct Deferred {
    /// The connection.
    child: Child,
    /// Tells the listener what happens on its TCP socket.
    _hook: Pin<KBox<WakeHook<SmcSock>>>,
    /// Since when it waits.
    since: Instant<Monotonic>,
    /// How long it waits at most.
    most_s: u32,
}

impl Deferred {
    /// How long it still waits.
    fn left_ms(&self) -> u32 {
        let waited = u32::try_from(self.since.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.most_s.saturating_mul(1000).saturating_sub(waited)
    }

    /// Whether it has waited long enough.
    fn is_ripe(&self) -> bool {
        self.left_ms() == 0 || self.child.has_news()
    }
}

/// What came of a look at the TCP listener.
pub(super) enum Taken {
    /// A connection that needs a handshake.
    Handshake(Arc<Handshake>),
    /// A connection that needs none, or was lost.
    Other,
    /// No connection, or there is no room.
    Nothing,
}

/// What the queue's lock guards.
struct Queue {
    /// Those that wait for `accept(2)`.
    ready: Fifo<Child>,
    /// Those in a handshake.
    handshakes: KVec<Arc<Handshake>>,
    /// Those that wait for their first bytes.
    deferred: KVec<Deferred>,
    /// How many are just being taken from the TCP listener.
    coming: usize,
    /// How many connections there may be, less one, as TCP counts.
    backlog: usize,
    /// Whether the TCP listener may have more, for which there was no room.
    stalled: bool,
    /// The listener is gone.
    closed: bool,
    /// The listener, to be woken; nothing when it is gone.
    sk: Option<SockRef<SmcSock>>,
    /// Its TCP socket; nothing when it is gone.
    listener: Option<Arc<TcpSocket>>,
    /// Whether the handshakes in progress are limited (SMC_LIMIT_HS).
    limited: bool,
    /// For how many seconds at most a connection waits for its first bytes.
    defer_s: u32,
}

impl Queue {
    /// Has the listener take connections by TCP alone while it has as many handshakes as it may.
    fn limit(&self) {
        if let Some(listener) = &self.listener {
            let enough = self.handshakes.len() >= u32_as_usize(LISTENER_LIMIT);
            listener.limit_option(self.limited, enough);
        }
    }
}

/// The connections of one listener.
#[pin_data]
pub(super) struct AcceptQueue {
    /// The connections.
    #[pin]
    queue: Mutex<Queue>,
    /// Looks after those that have waited for their first bytes long enough.
    #[pin]
    timer: DelayedWork<AcceptQueue, 1>,
    /// What the listener's namespace keeps.
    ctx: Arc<NetCtx>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self, 1> for AcceptQueue { self.timer }
}

impl AcceptQueue {
    /// The queue of `sk`.
    pub(super) fn new(
        sk: SockRef<SmcSock>,
        listener: Arc<TcpSocket>,
        ctx: Arc<NetCtx>,
        backlog: usize,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queue <- new_mutex!(Queue {
                    ready: Fifo::new(),
                    handshakes: KVec::new(),
                    deferred: KVec::new(),
                    coming: 0,
                    backlog,
                    stalled: false,
                    closed: false,
                    sk: Some(sk),
                    listener: Some(listener),
                    limited: false,
                    defer_s: 0,
                }, "AcceptQueue::queue"),
                timer <- new_delayed_work!("smc_af::defer"),
                ctx,
            }),
            GFP_KERNEL,
        )
    }

    /// Changes how many connections there may be.
    pub(super) fn set_backlog(&self, backlog: usize) {
        self.queue.lock().backlog = backlog;
    }

    /// Says whether the handshakes in progress are limited.
    pub(super) fn set_limited(&self, limited: bool) {
        let mut queue = self.queue.lock();
        queue.limited = limited;
        queue.limit();
    }

    /// Says for how many seconds at most a connection waits for its first bytes, 0 for not at all.
    pub(super) fn set_deferring(&self, most_s: u32) {
        self.queue.lock().defer_s = most_s;
    }

    /// Whether `accept(2)` would find a connection.
    pub(super) fn is_ready(&self) -> bool {
        self.queue.lock().ready.len() > 0
    }

    /// Takes the connection that has waited longest.
    pub(super) fn pop(&self) -> Result<Option<Child>> {
        let mut queue = self.queue.lock();
        let child = queue.ready.pop()?;
        if child.is_some() && core::mem::take(&mut queue.stalled) {
            if let Some(sk) = &queue.sk {
                sk.queue_work(&HANDSHAKES);
            }
        }
        Ok(child)
    }

    /// Takes from the TCP listener all that there is room for. Connections get send and receive rings of the wanted sizes
    /// on the account of `memcg`. Called from the listener's work item alone.
    pub(super) fn fill(
        self: &Arc<Self>,
        listener: &TcpSocket,
        sizes: (u32, u32),
        memcg: Option<&MemCg>,
    ) {
        loop {
            match self.take_one(listener, sizes, memcg) {
                Taken::Handshake(handshake) => {
                    HANDSHAKES.enqueue(handshake);
                }
                Taken::Nothing => return,
                Taken::Other => {}
            }
        }
    }

    /// Takes one connection from the TCP listener, if one is there and there is room. In a work item.
    pub(super) fn take_one(
        self: &Arc<Self>,
        listener: &TcpSocket,
        sizes: (u32, u32),
        memcg: Option<&MemCg>,
    ) -> Taken {
        if !self.has_room() {
            return Taken::Nothing;
        }
        let accepted = listener.accept();
        let taken = match accepted {
            Ok(tcp) => match self.admit(tcp, sizes, memcg.cloned()) {
                Ok(Some(handshake)) => Taken::Handshake(handshake),
                Ok(None) => Taken::Other,
                Err(err) => {
                    pr_debug!("a connection could not be admitted: {:?}\n", err);
                    Taken::Other
                }
            },
            Err(err) if err == EAGAIN || err == EINVAL => Taken::Nothing,
            // A connection that was lost on the way is not the listener's end.
            Err(err) if err == ECONNABORTED => Taken::Other,
            Err(_) => {
                // There was no memory: the connection stays where it is, and nobody would say so once more.
                fsleep(RETRY);
                self.fill_again();
                Taken::Nothing
            }
        };
        let mut queue = self.queue.lock();
        queue.coming = queue.coming.saturating_sub(1);
        if let (Some(sk), true) = (&queue.sk, queue.stalled) {
            // It was counted twice for a moment, or came to nothing: there may be room for another one.
            sk.queue_work(&HANDSHAKES);
        }
        taken
    }

    /// Has the listener's work item run once more.
    fn fill_again(&self) {
        if let Some(sk) = &self.queue.lock().sk {
            sk.queue_work(&HANDSHAKES);
        }
    }

    /// Whether another connection may come, which is counted then; if not, notes that one may be waiting.
    fn has_room(self: &Arc<Self>) -> bool {
        let mut queue = self.queue.lock();
        let here = queue
            .ready
            .len()
            .saturating_add(queue.handshakes.len())
            .saturating_add(queue.deferred.len())
            .saturating_add(queue.coming);
        // They are looked at only where they are in the way.
        let late = if here > queue.backlog {
            queue.handshakes.iter().filter(|h| h.is_late()).count()
        } else {
            0
        };
        queue.stalled = here.saturating_sub(late.min(MOST_LATE)) > queue.backlog;
        let room = !queue.stalled && !queue.closed;
        if room {
            queue.coming = queue.coming.saturating_add(1);
        } else if !queue.closed && late < queue.handshakes.len() {
            // Under the lock, and not when the listener has gone: nobody would stop the timer.
            let soon = msecs_to_jiffies(LATE_MS);
            HANDSHAKES.enqueue_delayed::<AcceptQueue, 1>(self.clone(), soon);
        }
        room
    }

    /// Sends a new connection on its way, with the handshake that it needs, if it does. Dropping it resets it.
    fn admit(
        self: &Arc<Self>,
        tcp: TcpSocket,
        (sndbuf, rcvbuf): (u32, u32),
        memcg: Option<MemCg>,
    ) -> Result<Option<Arc<Handshake>>> {
        let tcp = Arc::new(tcp, GFP_KERNEL)?;
        if !tcp.peer_has_smc() {
            let way = Way::Tcp {
                reason: Some(smc_clc::reason_without_option(&tcp)),
                peer_diagnosis: 0,
            };
            self.ready(Child::new(tcp, way));
            return Ok(None);
        }
        let waker = SockWaker::new()?;
        let wake: Arc<dyn Wake> = waker.clone();
        let setup = Setup {
            net: tcp.net(),
            sndbuf,
            rcvbuf,
            memcg,
            waker: wake,
        };
        let handshake = Arc::pin_init(
            pin_init!(Handshake {
                work <- new_work!("smc_handshake"),
                queue: self.clone(),
                tcp,
                setup,
                waker,
                since: Instant::now(),
            }),
            GFP_KERNEL,
        )?;
        {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(EINVAL);
            }
            queue.handshakes.push(handshake.clone(), GFP_KERNEL)?;
            queue.limit();
        }
        Ok(Some(handshake))
    }

    /// Hands a connection to `accept(2)`; resets it when the listener has gone or there is no memory.
    fn ready(&self, child: Child) {
        child.record(&self.ctx);
        let refused = {
            let mut queue = self.queue.lock();
            let taken = if queue.closed {
                Err(child)
            } else {
                queue.ready.push(child)
            };
            if let (Ok(()), Some(sk)) = (&taken, &queue.sk) {
                sk.wake_readable();
            }
            taken
        };
        // It is reset outside the lock.
        drop(refused);
    }

    /// Hands a connection to `accept(2)`, now or with its first bytes, as the listener wants it.
    fn deliver(self: &Arc<Self>, child: Child) {
        if let Some(child) = self.defer(child) {
            self.ready(child);
        }
    }

    /// Lets a connection wait for its first bytes; gives back one that need not or cannot wait.
    fn defer(self: &Arc<Self>, child: Child) -> Option<Child> {
        let (most_s, sk) = {
            let queue = self.queue.lock();
            (queue.defer_s, queue.sk.clone())
        };
        let (Some(sk), Some(tcp)) = (sk, child.tcp.clone()) else {
            return Some(child);
        };
        if most_s == 0 || child.has_news() {
            return Some(child);
        }
        let Ok(hook) = WakeHook::new(sk.clone(), tcp) else {
            return Some(child);
        };
        if let Way::Smc { waker, .. } = &child.way {
            waker.set_listener(sk.clone());
        }
        {
            let mut queue = self.queue.lock();
            if queue.closed || queue.deferred.reserve(1, GFP_KERNEL).is_err() {
                return Some(child);
            }
            let deferred = Deferred {
                child,
                _hook: hook,
                since: Instant::now(),
                most_s,
            };
            if let Err(PushError(deferred)) = queue.deferred.push_within_capacity(deferred) {
                return Some(deferred.child);
            }
        }
        // What came before it was watched was not noticed.
        sk.queue_work(&HANDSHAKES);
        None
    }

    /// Hands those to `accept(2)` that have waited for their first bytes long enough. Called from the listener's work
    /// item alone.
    pub(super) fn ripen(self: &Arc<Self>) {
        while let Some(ripe) = self.take_ripe() {
            self.ready(ripe.child);
        }
    }

    /// Takes one that has waited long enough; without any, sees to it that the next one is looked after in time.
    fn take_ripe(self: &Arc<Self>) -> Option<Deferred> {
        let mut queue = self.queue.lock();
        if let Some(place) = queue.deferred.iter().position(Deferred::is_ripe) {
            return queue.deferred.remove(place).ok();
        }
        // Under the lock, and not when the listener has gone: nobody would stop the timer.
        if let (Some(left), false) = (
            queue.deferred.iter().map(Deferred::left_ms).min(),
            queue.closed,
        ) {
            let left = if queue.stalled {
                left.min(LATE_MS)
            } else {
                left
            };
            cancel_delayed::<AcceptQueue, 1>(self);
            HANDSHAKES.enqueue_delayed::<AcceptQueue, 1>(self.clone(), msecs_to_jiffies(left));
        }
        None
    }

    /// A handshake is over.
    fn finish(self: &Arc<Self>, handshake: &Arc<Handshake>, outcome: Result<Outcome>) {
        let child = match outcome {
            Ok(Outcome::Smc(conn)) => Some(Way::Smc {
                conn,
                waker: handshake.waker.clone(),
            }),
            Ok(Outcome::Tcp {
                reason,
                peer_diagnosis,
            }) => Some(Way::Tcp {
                reason: Some(reason),
                peer_diagnosis,
            }),
            Err(_) => None,
        };
        {
            let mut queue = self.queue.lock();
            let place = queue
                .handshakes
                .iter()
                .position(|other| Arc::ptr_eq(other, handshake));
            if let Some(place) = place {
                // It is still referred to by the caller.
                let _ = queue.handshakes.remove(place);
                queue.limit();
            }
        }
        match child {
            Some(way) => self.deliver(Child::new(handshake.tcp.clone(), way)),
            None => handshake.tcp.abort(),
        }
        let queue = self.queue.lock();
        if queue.stalled {
            if let Some(sk) = &queue.sk {
                sk.queue_work(&HANDSHAKES);
            }
        }
    }

    /// The listener goes: all its connections are reset.
    pub(super) fn close(self: &Arc<Self>) {
        let (ready, deferred, handshakes, sk, listener) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            cancel_delayed::<AcceptQueue, 1>(self);
            (
                core::mem::replace(&mut queue.ready, Fifo::new()),
                core::mem::take(&mut queue.deferred),
                core::mem::take(&mut queue.handshakes),
                queue.sk.take(),
                queue.listener.take(),
            )
        };
        // Outside the lock, as connections are closed here.
        drop(ready);
        drop(deferred);
        for handshake in handshakes {
            // This ends whatever the handshake waits for.
            let _ = handshake.tcp.shutdown(Shutdown::Both);
        }
        drop(sk);
        drop(listener);
    }
}

impl WorkItem<1> for AcceptQueue {
    type Pointer = Arc<Self>;

    /// One has waited for its first bytes long enough.
    fn run(this: Arc<Self>) {
        this.fill_again();
    }
}

/// The handshake of one connection.
#[pin_data]
pub(super) struct Handshake {
    /// Runs it.
    #[pin]
    work: Work<Self>,
    /// Where the connection goes afterwards.
    queue: Arc<AcceptQueue>,
    /// The connection.
    tcp: Arc<TcpSocket>,
    /// What the listener brings in.
    setup: Setup,
    /// Whom the connection will wake.
    waker: Arc<SockWaker>,
    /// Since when it goes on.
    since: Instant<Monotonic>,
}

impl Handshake {
    /// Whether it takes so long that its place is another connection's.
    fn is_late(&self) -> bool {
        self.since.elapsed() >= Delta::from_millis(i64::from(LATE_MS))
    }
}

kernel::impl_has_work! {
    impl HasWork<Self> for Handshake { self.work }
}

impl WorkItem for Handshake {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.carry_out();
    }
}

impl Handshake {
    /// Has the handshake, and hands the connection on. In a work item.
    pub(super) fn carry_out(self: &Arc<Self>) {
        let outcome = smc_clc::server(&self.tcp, &self.setup);
        self.tcp.forget_option();
        self.queue.finish(self, outcome);
    }
}

impl Child {
    /// Counts the connection if it fell back.
    fn record(&self, ctx: &NetCtx) {
        if let Way::Tcp {
            reason: Some(reason),
            peer_diagnosis,
        } = self.way
        {
            let peer = self.tcp.as_ref().and_then(|tcp| tcp.peer_addr().ok());
            ctx.fell_back(Role::Server, (reason, peer_diagnosis), peer, false);
        }
    }
}
