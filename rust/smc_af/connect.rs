// SPDX-License-Identifier: GPL-2.0

//! `bind(2)` and `connect(2)`, and the work item that brings a connect to its end.
//!
//! A connect always runs by itself: TCP's own, begun without waiting, then the handshake in the socket's work item. A
//! blocking caller only waits for the end of it, so that a signal or a time-out interrupts the wait and nothing else.

use core::net::SocketAddr;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Full,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::{
    kapi::net::{
        events,
        Address,
        Open,
        PeerName,
        Shutdown,
        Sock,
        SockRef,
        TcpSocket,
        TcpState, //
    },
    net_ctx::Role,
    proto::reason::DeclineReason,
    smc_cdc::{
        Connection,
        TcpEnd,
        Wake, //
    },
    smc_clc::{
        self,
        Outcome,
        Setup, //
    },
};

use super::{
    accept_queue::AcceptQueue,
    socket::SmcSock,
    state::{
        Mode,
        Report,
        State, //
    },
    waker::SockWaker,
    HANDSHAKES, //
};

/// Address families.
const AF_UNSPEC: u32 = 0;
/// See [`AF_UNSPEC`].
const AF_INET: u32 = 2;
/// See [`AF_UNSPEC`].
const AF_INET6: u32 = 10;

/// `bind(2)`.
pub(super) fn bind(sk: Open<'_, SmcSock>, addr: &Address<'_>) -> Result {
    let any = addr.is_any_v4().ok_or(EINVAL)?;
    match addr.family() {
        Some(AF_INET | AF_INET6) => (),
        // For the sake of old programs, as in TCP.
        Some(AF_UNSPEC) if any => (),
        _ => return Err(EAFNOSUPPORT),
    }
    let state = sk.state.lock();
    match *state {
        State::Init | State::Failed | State::Tcp { .. } => sk.attached()?.tcp.bind(addr),
        _ => Err(EINVAL),
    }
}

/// `connect(2)`.
pub(super) fn connect(sk: Open<'_, SmcSock>, addr: &Address<'_>, nonblocking: bool) -> Result {
    if addr.family() == Some(AF_UNSPEC) {
        return disconnect(sk, addr);
    }
    let mut state = sk.state.lock();
    match &mut *state {
        State::Init => {
            if let Some(why) = why_not(&sk, addr) {
                let tcp = &sk.attached()?.tcp;
                SmcSock::become_tcp(&sk, &mut state, tcp, why, Report::Done)?;
                sk.ctx
                    .fell_back(Role::Client, why, addr.socket_addr(), true);
                drop(state);
                return SmcSock::forward(sk, |tcp| tcp.connect(addr, nonblocking));
            }
            begin(&sk, &mut state, addr)?;
            if nonblocking {
                return Err(EINPROGRESS);
            }
        }
        State::Connecting { .. } => {
            if nonblocking {
                return Err(EALREADY);
            }
        }
        State::Failed => return report_failure(&sk, &mut state),
        State::Tcp { report } => {
            if core::mem::replace(report, Report::Done) == Report::Due {
                return Ok(());
            }
            drop(state);
            return SmcSock::forward(sk, |tcp| tcp.connect(addr, nonblocking));
        }
        State::Smc { report, .. } => {
            if core::mem::replace(report, Report::Done) == Report::Due {
                return Ok(());
            }
            return Err(EISCONN);
        }
        State::Listening { .. } => return Err(EISCONN),
        State::Closed => return Err(EINVAL),
    }
    drop(state);
    let mut patience = sk.write_patience(false);
    match sk.wait(&mut patience, false, || outcome(&sk)) {
        Ok(outcome) => outcome,
        // The time is over, but the connect goes on.
        Err(err) if err == EAGAIN => Err(EINPROGRESS),
        Err(err) => Err(err),
    }
}

/// Why a converted socket does not even try SMC: the reason and the peer's diagnosis.
fn why_not(sk: &SmcSock, addr: &Address<'_>) -> Option<(DeclineReason, u32)> {
    if !sk.converted {
        return None;
    }
    sk.ctx.tcp2smc().why_not_connect(addr.socket_addr()?)
}

/// `connect(2)` with an address of no family: forgets the connection, or stops listening.
///
/// A socket that was connected over RDMA goes on as one of TCP.
fn disconnect(sk: Open<'_, SmcSock>, addr: &Address<'_>) -> Result {
    let tcp = &sk.attached()?.tcp;
    let mut state = sk.state.lock();
    match &*state {
        State::Connecting { .. } => return Err(EALREADY),
        State::Failed => {
            drop(SmcSock::transition(&sk, &mut state, State::Init)?);
            // What the connect has left behind is forgotten as well.
            let _ = sk.take_err();
        }
        State::Listening { .. } => {
            if let State::Listening { queue, .. } =
                SmcSock::transition(&sk, &mut state, State::Init)?
            {
                queue.close();
            }
            tcp.forget_option();
        }
        State::Smc { conn, .. } => {
            let conn = conn.clone();
            SmcSock::fall_back(
                &sk,
                &mut state,
                tcp,
                DeclineReason::OPTUNSUPP,
                0,
                Report::Done,
            )?;
            conn.disconnect();
        }
        State::Init | State::Tcp { .. } => (),
        State::Closed => return Err(EINVAL),
    }
    drop(state);
    let outcome = SmcSock::forward(sk, |tcp| tcp.connect(addr, true));
    SmcSock::show_err(&sk, tcp);
    sk.wake_state();
    outcome
}

/// Begins to connect.
fn begin(sk: &Open<'_, SmcSock>, state: &mut State, addr: &Address<'_>) -> Result {
    match addr.family().ok_or(EINVAL)? {
        AF_INET | AF_INET6 => (),
        _ => return Err(EAFNOSUPPORT),
    }
    let tcp = sk.attached()?.tcp.clone();
    let waker = SockWaker::new()?;
    tcp.show_file(sk);
    // Without the option the connection goes by TCP.
    let _ = sk
        .ctx
        .want_option(sk.net())
        .and_then(|()| tcp.ask_on_connect());
    match tcp.connect(addr, true) {
        Ok(()) => (),
        Err(err) if err == EINPROGRESS => (),
        Err(err) => {
            tcp.forget_option();
            return Err(err);
        }
    }
    drop(SmcSock::transition(
        sk,
        state,
        State::Connecting { tcp, waker },
    )?);
    // What happened before the state changed was not noticed.
    look_once(sk, &sk.attached()?.tcp);
    Ok(())
}

/// Lets the work item look at a TCP socket that changed its state while nobody noticed. After a change of mode.
fn look_once(sk: &Sock<SmcSock>, tcp: &TcpSocket) {
    // ORDERING: The mode is stored before this looks at the TCP socket, and that changes its state before it wakes those
    // who look at the mode, with a full barrier in between: one of the two sees the other.
    sk.in_handshake.xchg(0, Full);
    if matches!(tcp.state(), TcpState::Open | TcpState::Closed) {
        sk.queue_work(&HANDSHAKES);
    }
}

/// What became of a connect; nothing while it goes on.
fn outcome(sk: &Open<'_, SmcSock>) -> Option<Result> {
    let mut state = sk.state.lock();
    match &mut *state {
        State::Connecting { .. } => None,
        State::Tcp { report } | State::Smc { report, .. } => {
            *report = Report::Done;
            Some(Ok(()))
        }
        State::Failed => Some(report_failure(sk, &mut state)),
        // Another call has reported the failure.
        State::Init | State::Listening { .. } | State::Closed => Some(Err(ECONNABORTED)),
    }
}

/// Says why a connect failed; the socket is ready for another one.
fn report_failure(sk: &Open<'_, SmcSock>, state: &mut State) -> Result {
    drop(SmcSock::transition(sk, state, State::Init)?);
    sk.take_err()?;
    Err(ECONNABORTED)
}

/// The socket's work item: something happened on its TCP socket.
pub(super) fn work(sk: &SockRef<SmcSock>) {
    /// What is to be done.
    enum Task {
        /// See if TCP has connected.
        Connect(Arc<TcpSocket>, Arc<SockWaker>),
        /// Take connections from the TCP listener.
        Fill(Arc<TcpSocket>, Arc<AcceptQueue>),
        /// See if one of the two connections has failed: the other one follows it.
        Watch(Arc<TcpSocket>, Arc<Connection>),
    }
    let task = match &*sk.state.lock() {
        State::Connecting { tcp, waker } => Task::Connect(tcp.clone(), waker.clone()),
        State::Listening { tcp, queue } => Task::Fill(tcp.clone(), queue.clone()),
        State::Smc { tcp, conn, .. } => Task::Watch(tcp.clone(), conn.clone()),
        _ => return,
    };
    match task {
        Task::Connect(tcp, waker) => drive(sk, &tcp, waker),
        Task::Fill(tcp, queue) => {
            let (sndbuf, rcvbuf) = sk.buffers();
            queue.fill(&tcp, (sndbuf, rcvbuf), sk.memcg().as_ref());
            queue.ripen();
        }
        // RFC 7609, section 4.8.2: a connection is aborted by a reset of its TCP connection. Where both sides have shut
        // it down, it ends without an error, maybe long before the connection over RDMA.
        Task::Watch(tcp, conn) => {
            if sk.failed.load(Acquire) != 0 {
                tcp.abort();
            } else if tcp.state() == TcpState::Closed && tcp.error() != 0 {
                if SmcSock::is_draining() {
                    // Both ends are here, and the operator ends both.
                    conn.abort();
                } else {
                    conn.tcp_was_reset();
                }
            }
        }
    }
}

/// Brings a connect to its end, if TCP has come to one.
fn drive(sk: &SockRef<SmcSock>, tcp: &Arc<TcpSocket>, waker: Arc<SockWaker>) {
    let result = match tcp.finish_connect() {
        Err(err) if err == EALREADY => return,
        // It was shut down, and TCP has forgotten that it was connecting.
        Err(err) if err == EINVAL => Err(ECONNABORTED),
        Err(err) => Err(err),
        Ok(()) => {
            sk.in_handshake.store(1, Relaxed);
            let peer = sk.converted.then(|| Peer::of(tcp)).flatten();
            let outcome = handshake(sk, tcp, &waker);
            match peer {
                Some(peer) => match learn(sk, tcp, &peer, outcome) {
                    Some(outcome) => outcome,
                    None => return,
                },
                None => outcome,
            }
        }
    };
    tcp.forget_option();
    finish(sk, tcp, &waker, result);
}

/// The other end of a connection, noted before the handshake: afterwards the connection may have gone.
struct Peer {
    /// Its address.
    addr: SocketAddr,
    /// The same as the kernel has it.
    name: PeerName,
}

impl Peer {
    /// The other end of `tcp`.
    fn of(tcp: &TcpSocket) -> Option<Self> {
        Some(Self {
            addr: tcp.peer_addr().ok()?,
            name: tcp.peer_name().ok()?,
        })
    }
}

/// Keeps in mind how a converted socket fared with its peer. Nothing comes back when it begins anew.
///
/// The program knows nothing of SMC: a peer that answered the option, but knows no handshake, must not make its
/// connect fail. There are servers and devices between that send back any option they are sent.
fn learn(
    sk: &SockRef<SmcSock>,
    tcp: &TcpSocket,
    peer: &Peer,
    outcome: Result<Outcome>,
) -> Option<Result<Outcome>> {
    let memory = sk.ctx.tcp2smc();
    match &outcome {
        Ok(Outcome::Smc(_)) => memory.forget(peer.addr),
        Ok(Outcome::Tcp {
            reason,
            peer_diagnosis,
        }) => memory.remember(peer.addr, *reason, *peer_diagnosis),
        Err(_) => {
            memory.suspect(peer.addr);
            // Under the lock, so that a close comes before this or finds the new connection.
            let state = sk.state.lock();
            if matches!(*state, State::Connecting { .. }) {
                tcp.forget_option();
                sk.in_handshake.store(0, Relaxed);
                if tcp.connect_again(&peer.name).is_ok() {
                    sk.queue_work(&HANDSHAKES);
                    return None;
                }
            }
        }
    }
    Some(outcome)
}

/// The handshake of a connection that TCP has made.
fn handshake(
    sk: &SockRef<SmcSock>,
    tcp: &Arc<TcpSocket>,
    waker: &Arc<SockWaker>,
) -> Result<Outcome> {
    if !tcp.peer_has_smc() {
        return Ok(Outcome::Tcp {
            reason: smc_clc::reason_without_option(tcp),
            peer_diagnosis: 0,
        });
    }
    let (sndbuf, rcvbuf) = sk.buffers();
    let wake: Arc<dyn Wake> = waker.clone();
    let setup = Setup {
        net: tcp.net(),
        sndbuf,
        rcvbuf,
        memcg: sk.memcg(),
        waker: wake,
    };
    smc_clc::client(tcp, &setup)
}

/// A connect is over; tells everybody.
fn finish(
    sk: &SockRef<SmcSock>,
    tcp: &Arc<TcpSocket>,
    waker: &Arc<SockWaker>,
    result: Result<Outcome>,
) {
    let failure = match result {
        Ok(Outcome::Smc(conn)) => {
            let mut state = sk.state.lock();
            let to = State::Smc {
                tcp: tcp.clone(),
                conn: conn.clone(),
                report: Report::Due,
            };
            let entered = SmcSock::transition(sk, &mut state, to);
            SmcSock::hand_options_to(&state);
            drop(state);
            if entered.is_err() {
                // The socket was closed meanwhile.
                end_tcp(tcp, conn.close());
                return;
            }
            SmcSock::show_rings(sk, &conn);
            waker.set(sk.clone());
            None
        }
        Ok(Outcome::Tcp {
            reason,
            peer_diagnosis,
        }) => {
            let mut state = sk.state.lock();
            // A closed socket stays closed.
            let _ = SmcSock::fall_back(sk, &mut state, tcp, reason, peer_diagnosis, Report::Due);
            drop(state);
            SmcSock::show_err(sk, tcp);
            None
        }
        Err(err) => Some(err),
    };
    if let Some(err) = failure {
        // The TCP socket must be ready for another connect.
        tcp.disconnect();
        let mut state = sk.state.lock();
        if sk.mode() == Mode::Connecting {
            sk.set_err(err.to_errno().saturating_neg());
        }
        // A closed socket stays closed.
        let _ = SmcSock::transition(sk, &mut state, State::Failed);
        drop(state);
        sk.wake_error();
    }
    // ORDERING: As in `look_once`.
    sk.in_handshake.xchg(0, Full);
    if sk.mode() == Mode::Smc && tcp.state() == TcpState::Closed {
        sk.queue_work(&HANDSHAKES);
    }
    sk.wake_state();
    sk.wake_async(events::OUT);
}

/// Ends a TCP connection as the connection over RDMA wants it.
pub(super) fn end_tcp(tcp: &TcpSocket, how: TcpEnd) {
    match how {
        TcpEnd::Shutdown => {
            // An error means that it has ended already.
            let _ = tcp.shutdown(Shutdown::Both);
        }
        TcpEnd::Reset => tcp.abort(),
    }
}
