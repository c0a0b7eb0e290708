// SPDX-License-Identifier: GPL-2.0

//! The states of a socket, and the one place where it passes from one to another.
//!
//! ```text
//!            connect           handshake agreed
//!   Init ──────────► Connecting ───────────────► Smc
//!    │ ▲                │ │
//!    │ └── connect ─ Failed◄┘ TCP or the handshake failed
//!    │  again           │
//!    │ listen           └─ no handshake, or a decline ─► Tcp
//!    ▼
//!   Listening                     close: every state ─► Closed
//!                                 connect(AF_UNSPEC): Smc ─► Tcp
//! ```

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::net::{
        Open,
        Sock,
        TcpSocket, //
    },
    smc_cdc::Connection,
};

use super::{
    accept_queue::AcceptQueue,
    socket::SmcSock,
    waker::SockWaker, //
};

/// What a socket is doing, for a look without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Fresh.
    Init,
    /// TCP connects, or the handshake runs.
    Connecting,
    /// A connect failed, and `connect(2)` has not said so yet.
    Failed,
    /// Waits for connections.
    Listening,
    /// Everything goes to the TCP socket.
    Tcp,
    /// Data goes by RDMA.
    Smc,
    /// Closed.
    Closed,
}

impl Mode {
    /// The number under which it is stored.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Init => 0,
            Self::Connecting => 1,
            Self::Failed => 2,
            Self::Listening => 3,
            Self::Tcp => 4,
            Self::Smc => 5,
            Self::Closed => 6,
        }
    }

    /// The opposite of [`number`](Self::number).
    pub(super) const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Init,
            1 => Self::Connecting,
            2 => Self::Failed,
            3 => Self::Listening,
            4 => Self::Tcp,
            5 => Self::Smc,
            _ => Self::Closed,
        }
    }

    /// The state number that the kernel's tools know.
    const fn sk_state(self) -> u8 {
        match self {
            Self::Init | Self::Connecting | Self::Failed => 2,
            Self::Listening => 10,
            Self::Tcp | Self::Smc => 1,
            Self::Closed => 7,
        }
    }
}

/// Whether `connect(2)` has reported the end of its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The next `connect(2)` does so.
    Due,
    /// It has, or there was nothing to report.
    Done,
}

/// The state of a socket, with what belongs to it.
pub(super) enum State {
    /// See [`Mode::Init`].
    Init,
    /// See [`Mode::Connecting`].
    Connecting {
        /// The TCP socket.
        tcp: Arc<TcpSocket>,
        /// Whom the connection will wake.
        waker: Arc<SockWaker>,
    },
    /// See [`Mode::Failed`].
    Failed,
    /// See [`Mode::Listening`].
    Listening {
        /// The TCP socket.
        tcp: Arc<TcpSocket>,
        /// Connections for `accept(2)`.
        queue: Arc<AcceptQueue>,
    },
    /// See [`Mode::Tcp`].
    Tcp {
        /// Of the connect that led here.
        report: Report,
    },
    /// See [`Mode::Smc`].
    Smc {
        /// The TCP socket.
        tcp: Arc<TcpSocket>,
        /// The connection.
        conn: Arc<Connection>,
        /// Of the connect that led here.
        report: Report,
    },
    /// See [`Mode::Closed`].
    Closed,
}

impl State {
    /// What the socket is doing.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Init => Mode::Init,
            Self::Connecting { .. } => Mode::Connecting,
            Self::Failed => Mode::Failed,
            Self::Listening { .. } => Mode::Listening,
            Self::Tcp { .. } => Mode::Tcp,
            Self::Smc { .. } => Mode::Smc,
            Self::Closed => Mode::Closed,
        }
    }

    /// Whether a socket may pass from here to `to`.
    fn may_become(&self, to: Mode) -> bool {
        matches!(
            (self.mode(), to),
            (_, Mode::Closed)
                | (Mode::Init, Mode::Connecting | Mode::Listening | Mode::Tcp)
                | (Mode::Connecting, Mode::Tcp | Mode::Smc | Mode::Failed)
                | (Mode::Failed | Mode::Listening, Mode::Init)
                | (Mode::Smc, Mode::Tcp)
        )
    }
}

impl SmcSock {
    /// Passes to another state and gives back the old one.
    ///
    /// # Errors
    ///
    /// `EINVAL` when there is no such passage; nothing has changed then.
    #[must_use = "the old state may own a connection"]
    pub(super) fn transition(sk: &Sock<Self>, state: &mut State, to: State) -> Result<State> {
        let mode = to.mode();
        if !state.may_become(mode) {
            return Err(EINVAL);
        }
        let old = core::mem::replace(state, to);
        sk.set_mode(mode);
        sk.set_state_number(mode.sk_state());
        Ok(old)
    }

    /// The connection of a socket in mode [`Mode::Smc`].
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when it has none.
    pub(super) fn connection<'a>(sk: &Open<'a, Self>) -> Result<&'a Arc<Connection>> {
        let attached = sk.attached()?;
        if let Some(conn) = attached.conn.as_ref() {
            return Ok(conn);
        }
        let found = match &*sk.state.lock() {
            State::Smc { conn, .. } => conn.clone(),
            _ => return Err(ENOTCONN),
        };
        // Another call may do so at the same time, with the same connection.
        attached.conn.populate(found);
        attached.conn.as_ref().ok_or(EAGAIN)
    }
}
