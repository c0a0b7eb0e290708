// SPDX-License-Identifier: GPL-2.0

//! What an operator sees of the sockets of a namespace.

use core::net::SocketAddr;

use kernel::sync::atomic::Relaxed;

use crate::{
    kapi::net::{
        NetNs,
        Sock,
        SockRef,
        TcpSocket,
        TcpState, //
    },
    smc_cdc::Info,
};

use super::{
    socket::{
        SmcSock,
        TYPES, //
    },
    state::{
        Mode,
        State, //
    },
};

/// State number of a listener.
const LISTENING: u8 = 10;

/// What is known of a socket.
pub(crate) struct Described {
    /// Its state, in the tools' numbers.
    pub(crate) state: u8,
    /// Whether it is one of TCP.
    pub(crate) is_tcp: bool,
    /// What was shut down: 1 for receiving, 2 for sending.
    pub(crate) shutdown: u8,
    /// Its address.
    pub(crate) local: Option<SocketAddr>,
    /// The peer's.
    pub(crate) peer: Option<SocketAddr>,
    /// The interface that it is bound to.
    pub(crate) interface: u32,
    /// Why it is one of TCP.
    pub(crate) reason: u32,
    /// The diagnosis in the peer's Decline.
    pub(crate) peer_diagnosis: u32,
    /// The connection by RDMA.
    pub(crate) conn: Option<Info>,
}

/// The socket of a namespace that was made next after the one with this number, and its number.
pub(crate) fn socket_after(net: &NetNs, number: u64) -> Option<(u64, SockRef<SmcSock>)> {
    TYPES.list()?.after(net, number)
}

impl Described {
    /// Looks at a socket. May sleep.
    pub(crate) fn of(sk: &Sock<SmcSock>) -> Self {
        let conn = match &*sk.state.lock() {
            State::Smc { conn, .. } => Some(conn.clone()),
            _ => None,
        };
        let conn = conn.map(|conn| conn.info());
        // The TCP socket is not kept any longer than this looks at it: it must not be closed here.
        let inner = sk.inner.lock();
        let tcp = inner.as_deref();
        let is_tcp = sk.mode() == Mode::Tcp;
        let mut state = sk.state_number();
        let mut shutdown = sk.shutdown_mask();
        if let Some(info) = &conn {
            state = info.state.number();
            let (receive, send) = info.shut;
            shutdown |= u8::from(receive) | (u8::from(send) << 1);
        } else if let (true, Some(tcp)) = (is_tcp, tcp) {
            shutdown |= tcp.shutdown_mask();
            if tcp.state() == TcpState::Listening {
                state = LISTENING;
            }
        }
        Self {
            state,
            is_tcp,
            shutdown,
            local: tcp.and_then(|tcp| tcp.local_addr().ok()),
            peer: tcp.and_then(|tcp| tcp.peer_addr().ok()),
            interface: tcp.map_or(0, TcpSocket::bound_interface),
            reason: sk.reason.load(Relaxed),
            peer_diagnosis: sk.peer_diagnosis.load(Relaxed),
            conn,
        }
    }
}
