// SPDX-License-Identifier: GPL-2.0

//! The socket: its data, and which room of this one answers each system call.

use kernel::{
    ffi::c_int,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        new_mutex,
        Arc,
        Mutex,
        SetOnce, //
    },
};

use crate::{
    kapi::{
        net::{
            events,
            Address,
            Family,
            Name,
            NetNs,
            Open,
            OptionIn,
            OptionOut,
            Origin,
            PollTable,
            RecvMsg,
            SendMsg,
            Shutdown,
            Sock,
            SockRef,
            SocketOps,
            SocketTypes,
            Splice,
            TcpSocket,
            TcpState,
            WakeHook, //
        },
        trace, //
    },
    net_ctx::{
        Counter,
        NetCtx,
        Role,
        Shown,
        SocketCount, //
    },
    proto::reason::DeclineReason,
    smc_cdc::Connection,
};

use super::{
    accept_queue::{
        Child,
        Way, //
    },
    state::{
        Mode,
        Report,
        State, //
    },
    HANDSHAKES, //
};

/// The socket types of the module.
pub(super) static TYPES: SocketTypes<SmcSock> = SocketTypes::new();

/// The data of a socket.
#[pin_data]
pub(crate) struct SmcSock {
    /// What `state` says, for a look without the lock.
    mode: Atomic<u32>,
    /// The state. Lock level 2.
    #[pin]
    pub(super) state: Mutex<State>,
    /// Why the connection goes by TCP, 0 while it does not.
    pub(super) reason: Atomic<u32>,
    /// The diagnosis in the peer's Decline.
    pub(super) peer_diagnosis: Atomic<u32>,
    /// The error of the TCP socket that the outer one shows, 0 when it shows none of it.
    shown_err: Atomic<i32>,
    /// Whether a handshake goes on, which looks after the TCP socket itself.
    pub(super) in_handshake: Atomic<u32>,
    /// Whether the connection over RDMA has failed, so that the TCP connection has to be reset.
    pub(super) failed: Atomic<u32>,
    /// Whether this listener limits the handshakes in progress.
    pub(super) limit_hs: Atomic<u32>,
    /// For how many seconds at most a connection waits for its first bytes before it is accepted (TCP_DEFER_ACCEPT).
    pub(super) defer_s: Atomic<u32>,
    /// Whether the program asked for a socket of TCP.
    pub(super) converted: bool,
    /// Whether TCP_CORK is on.
    pub(super) corked: Atomic<u32>,
    /// What the namespace keeps.
    pub(super) ctx: Arc<NetCtx>,
    /// The TCP socket, as long as the descriptor lives, for those who list sockets. Nothing is taken inside.
    #[pin]
    pub(super) inner: Mutex<Option<Arc<TcpSocket>>>,
    /// Counts the socket there.
    _count: SocketCount,
}

/// What lives as long as the descriptor. The fields go in this order.
pub(crate) struct Attached {
    /// Tells the socket what happens on the TCP socket.
    _hook: Pin<KBox<WakeHook<SmcSock>>>,
    /// The connection, once a call has looked for it.
    pub(super) conn: SetOnce<Arc<Connection>>,
    /// The TCP socket.
    pub(super) tcp: Arc<TcpSocket>,
}

impl SmcSock {
    /// Data in `state`.
    fn with_state(
        ctx: Arc<NetCtx>,
        mode: Mode,
        state: State,
        origin: Origin,
    ) -> impl PinInit<Self, Error> {
        let limit = u32::from(ctx.settings().limit_smc_hs());
        try_pin_init!(Self {
            mode: Atomic::new(mode.number()),
            state <- new_mutex!(state, "SmcSock::state"),
            reason: Atomic::new(0),
            peer_diagnosis: Atomic::new(0),
            shown_err: Atomic::new(0),
            in_handshake: Atomic::new(0),
            failed: Atomic::new(0),
            limit_hs: Atomic::new(limit),
            defer_s: Atomic::new(0),
            converted: origin == Origin::Converted,
            corked: Atomic::new(0),
            inner <- new_mutex!(None, "SmcSock::inner"),
            _count: ctx.count_socket(),
            ctx,
        })
    }

    /// Whether the operator wants the module to get empty.
    pub(super) fn is_draining() -> bool {
        NetCtx::of(NetNs::initial()).is_ok_and(|ctx| ctx.settings().drain())
    }

    /// What the socket is doing.
    ///
    /// It may do something else a moment later, except that a socket never leaves [`Mode::Tcp`] before it is closed,
    /// and [`Mode::Smc`] only for that one.
    pub(super) fn mode(&self) -> Mode {
        // ORDERING: Pairs with the release in `set_mode`: who sees the mode sees what the state holds.
        Mode::from_number(self.mode.load(Acquire))
    }

    /// Stores what the socket is doing. Called by `transition` alone, under the state's lock.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode.number(), Release);
    }

    /// The connection goes on by TCP.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the socket is closed by now.
    pub(super) fn fall_back(
        sk: &Sock<Self>,
        state: &mut State,
        tcp: &TcpSocket,
        reason: DeclineReason,
        peer_diagnosis: u32,
        report: Report,
    ) -> Result {
        Self::become_tcp(sk, state, tcp, (reason, peer_diagnosis), report)?;
        let peer = tcp.peer_addr().ok();
        sk.ctx
            .fell_back(Role::Client, (reason, peer_diagnosis), peer, false);
        Ok(())
    }

    /// The socket goes on as one of TCP, for the reason and with the peer's diagnosis in `why`.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the socket is closed by now.
    pub(super) fn become_tcp(
        sk: &Sock<Self>,
        state: &mut State,
        tcp: &TcpSocket,
        (reason, peer_diagnosis): (DeclineReason, u32),
        report: Report,
    ) -> Result {
        sk.reason.store(reason.code(), Relaxed);
        sk.peer_diagnosis.store(peer_diagnosis, Relaxed);
        trace::fallback(sk, tcp, reason.code());
        drop(Self::transition(sk, state, State::Tcp { report })?);
        sk.mirror(tcp, true);
        Self::hand_ways_to(sk, tcp);
        Ok(())
    }

    /// From now on the application reads from and writes to `tcp`, which does so in the ways that were set. May sleep.
    fn hand_ways_to(sk: &Sock<Self>, tcp: &TcpSocket) {
        sk.hand_peek_offset_to(tcp);
        sk.hand_rcvlowat_to(tcp);
        if sk.corked.load(Relaxed) != 0 {
            tcp.set_cork(true);
        }
    }

    /// The connection follows what is set on the TCP socket. The state is locked, so that no later setting is undone.
    pub(super) fn hand_options_to(state: &State) {
        if let State::Smc { tcp, conn, .. } = state {
            conn.set_nodelay(tcp.has_nodelay());
            conn.set_oob_inline(tcp.has_oob_inline());
        }
    }

    /// The socket reports the sizes of the rings that it got.
    pub(super) fn show_rings(sk: &Sock<Self>, conn: &Connection) {
        let info = conn.info();
        sk.set_buffers(info.send_ring, info.receive_ring);
    }

    /// The outer socket shows the error that waits on the TCP socket, for `SO_ERROR`. Any context.
    pub(super) fn show_err(sk: &Sock<Self>, tcp: &TcpSocket) {
        let errno = tcp.error();
        if errno != 0 {
            sk.set_err(errno);
            sk.shown_err.store(errno, Relaxed);
        }
    }

    /// Makes the two sockets agree again after one of them has given its error away.
    pub(super) fn agree_on_err(sk: &Sock<Self>, tcp: &TcpSocket) {
        if sk.shown_err.load(Relaxed) == 0 {
            return;
        }
        if sk.err() == 0 {
            // SO_ERROR took it.
            tcp.take_error();
            sk.shown_err.store(0, Relaxed);
        } else if tcp.error() == 0 {
            // A call on the TCP socket returned it: whatever is taken here was said already.
            let _ = sk.take_err();
            sk.shown_err.store(0, Relaxed);
        }
    }

    /// Does `call` on the TCP socket, and keeps the two sockets' errors in agreement.
    pub(super) fn forward<R>(
        sk: Open<'_, Self>,
        call: impl FnOnce(&TcpSocket) -> Result<R>,
    ) -> Result<R> {
        let tcp = &sk.attached()?.tcp;
        Self::agree_on_err(&sk, tcp);
        let outcome = call(tcp);
        Self::agree_on_err(&sk, tcp);
        if sk.mode() == Mode::Tcp {
            sk.follow(tcp);
        }
        outcome
    }
}

impl SocketOps for SmcSock {
    fn types() -> &'static SocketTypes<Self> {
        &TYPES
    }

    type Attached = Attached;
    type Pending = Child;

    fn may_create(_net: &NetNs) -> Result {
        if Self::is_draining() {
            return Err(ESHUTDOWN);
        }
        Ok(())
    }

    fn init(net: &NetNs, _family: Family, origin: Origin) -> impl PinInit<Self, Error> {
        let ctx = NetCtx::of(net);
        pin_init::pin_init_scope(move || {
            Ok(Self::with_state(ctx?, Mode::Init, State::Init, origin))
        })
    }

    fn attach(sk: &Sock<Self>) -> Result<Attached> {
        let tcp = Arc::new(TcpSocket::new(sk.net(), sk.family())?, GFP_KERNEL)?;
        sk.set_state_number(2);
        let settings = sk.ctx.settings();
        sk.set_buffers(settings.wmem(), settings.rmem());
        let hook = WakeHook::new(sk.hold(), tcp.clone())?;
        *sk.inner.lock() = Some(tcp.clone());
        Ok(Attached {
            _hook: hook,
            conn: SetOnce::new(),
            tcp,
        })
    }

    fn init_child(net: &NetNs, pending: &Child) -> impl PinInit<Self, Error> {
        let ctx = NetCtx::of(net);
        let (mode, state, reason, diagnosis) = match pending.way() {
            Way::Tcp {
                reason,
                peer_diagnosis,
            } => (
                Mode::Tcp,
                Ok(State::Tcp {
                    report: Report::Done,
                }),
                reason.map_or(0, DeclineReason::code),
                *peer_diagnosis,
            ),
            Way::Smc { conn, .. } => (
                Mode::Smc,
                pending
                    .tcp()
                    .map(|tcp| State::Smc {
                        tcp: tcp.clone(),
                        conn: conn.clone(),
                        report: Report::Done,
                    })
                    .ok_or(ECONNABORTED),
                0,
                0,
            ),
        };
        pin_init::pin_init_scope(move || {
            // What follows of a conversion concerns connects and listeners.
            let sock = Self::with_state(ctx?, mode, state?, Origin::Program);
            Ok(sock.pin_chain(move |sock| {
                sock.reason.store(reason, Relaxed);
                sock.peer_diagnosis.store(diagnosis, Relaxed);
                Ok(())
            }))
        })
    }

    fn attach_child(sk: &Sock<Self>, mut pending: Child) -> Result<Attached> {
        let tcp = pending.tcp().ok_or(ECONNABORTED)?.clone();
        let hook = WakeHook::new(sk.hold(), tcp.clone())?;
        tcp.show_file(sk);
        sk.set_state_number(1);
        sk.mirror(&tcp, true);
        sk.corked.store(u32::from(pending.is_corked()), Relaxed);
        Self::hand_options_to(&sk.state.lock());
        Self::show_err(sk, &tcp);
        if let Way::Smc { conn, waker } = pending.way() {
            Self::show_rings(sk, conn);
            waker.set(sk.hold());
            // What happened to the TCP connection before it was watched was not noticed.
            if tcp.state() == TcpState::Closed {
                sk.queue_work(&HANDSHAKES);
            }
        } else {
            let reason = sk.reason.load(Relaxed);
            if reason != 0 {
                trace::fallback(sk, &tcp, reason);
            }
            Self::hand_ways_to(sk, &tcp);
        }
        *sk.inner.lock() = Some(tcp.clone());
        // From here on the connection is not reset with `pending`.
        let _ = pending.take_tcp();
        Ok(Attached {
            _hook: hook,
            conn: SetOnce::new(),
            tcp,
        })
    }

    fn release(sk: Open<'_, Self>) {
        super::close::release(sk);
    }

    fn detached(sk: &Sock<Self>) {
        let inner = sk.inner.lock().take();
        drop(inner);
    }

    fn bind(sk: Open<'_, Self>, addr: &Address<'_>) -> Result {
        super::connect::bind(sk, addr)
    }

    fn connect(sk: Open<'_, Self>, addr: &Address<'_>, nonblocking: bool) -> Result {
        super::connect::connect(sk, addr, nonblocking)
    }

    fn listen(sk: Open<'_, Self>, backlog: c_int) -> Result {
        super::listen::listen(sk, backlog)
    }

    fn accept(sk: Open<'_, Self>, nonblocking: bool) -> Result<Child> {
        super::listen::accept(sk, nonblocking)
    }

    fn getname(sk: Open<'_, Self>, name: &mut Name<'_>, which: c_int) -> Result<c_int> {
        let tcp = &sk.attached()?.tcp;
        match (which, sk.mode()) {
            (1, Mode::Connecting) => Err(ENOTCONN),
            // The TCP connection may be closed before this one is.
            (1, Mode::Smc) if !Self::connection(&sk)?.is_closed() => tcp.name(name, 2),
            (1, Mode::Smc) => Err(ENOTCONN),
            _ => tcp.name(name, which),
        }
    }

    fn poll(sk: Open<'_, Self>, table: &PollTable<'_>) -> u32 {
        super::poll::poll(sk, table)
    }

    fn ioctl(sk: Open<'_, Self>, cmd: u32, arg: usize, compat: bool) -> Result<c_int> {
        super::sockopt::ioctl(sk, cmd, arg, compat)
    }

    fn shutdown(sk: Open<'_, Self>, how: Shutdown) -> Result {
        super::close::shutdown(sk, how)
    }

    fn set_option(sk: Open<'_, Self>, level: c_int, name: c_int, value: &OptionIn<'_>) -> Result {
        super::sockopt::set(sk, level, name, value)
    }

    fn get_option(
        sk: Open<'_, Self>,
        level: c_int,
        name: c_int,
        out: &mut OptionOut<'_>,
    ) -> Result {
        super::sockopt::get(sk, level, name, out)
    }

    fn sendmsg(sk: Open<'_, Self>, msg: &mut SendMsg<'_>) -> Result<usize> {
        super::data::sendmsg(sk, msg)
    }

    fn recvmsg(sk: Open<'_, Self>, msg: &mut RecvMsg<'_>) -> Result<usize> {
        super::data::recvmsg(sk, msg)
    }

    fn splice_read(sk: Open<'_, Self>, splice: &mut Splice<'_>) -> Result<usize> {
        if sk.mode() == Mode::Smc {
            sk.ctx.stats().bump(Counter::SPLICE);
        }
        match sk.mode() {
            Mode::Tcp => Self::forward(sk, |tcp| tcp.splice_read(splice)),
            _ => splice.by_copy(),
        }
    }

    fn show(sk: Open<'_, Self>, to: &SeqFile) {
        let what = match sk.mode() {
            Mode::Init | Mode::Failed => "unconnected",
            Mode::Connecting => "connecting",
            Mode::Listening => "listener",
            Mode::Tcp => "tcp",
            Mode::Smc => "smc-r",
            Mode::Closed => "closed",
        };
        seq_print!(to, "smc:\t{what}\n");
        if let Ok(attached) = sk.attached() {
            if let Ok(addr) = attached.tcp.local_addr() {
                seq_print!(to, "smc-local:\t{}\n", Shown(addr));
            }
            if let Ok(addr) = attached.tcp.peer_addr() {
                seq_print!(to, "smc-peer:\t{}\n", Shown(addr));
            }
        }
    }

    fn splice_eof(sk: Open<'_, Self>) {
        match (sk.mode(), sk.attached()) {
            (Mode::Tcp, Ok(attached)) => attached.tcp.splice_eof(),
            (Mode::Smc, Ok(_)) => {
                if let Ok(conn) = Self::connection(&sk) {
                    conn.push();
                }
            }
            _ => (),
        }
    }

    fn tcp(sk: Open<'_, Self>) -> Result<Arc<TcpSocket>> {
        Ok(sk.attached()?.tcp.clone())
    }

    fn on_tcp_event(sk: &SockRef<Self>, tcp: &TcpSocket, happened: u32) {
        match sk.mode() {
            // What it means for the connection is looked at when the handshake is over.
            Mode::Connecting if sk.in_handshake.load(Relaxed) != 0 => (),
            Mode::Listening if tcp.state() == TcpState::Listening => super::listen::arrived(sk),
            Mode::Connecting | Mode::Listening => sk.queue_work(&HANDSHAKES),
            Mode::Tcp => {
                if happened & events::ERR != 0 {
                    Self::show_err(sk, tcp);
                }
                sk.wake_async(happened);
            }
            // The peer resets it to abort the connection; its end alone means nothing.
            Mode::Smc if tcp.state() == TcpState::Closed => sk.queue_work(&HANDSHAKES),
            Mode::Init | Mode::Failed | Mode::Smc | Mode::Closed => (),
        }
    }

    fn work(sk: &SockRef<Self>) {
        super::connect::work(sk);
    }
}
