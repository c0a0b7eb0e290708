// SPDX-License-Identifier: GPL-2.0

//! The handshake over the TCP connection. For now every connection goes on by TCP.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::net::{
        NetRef,
        TcpSocket, //
    },
    proto::reason::DeclineReason,
    smc_cdc::{
        Connection,
        Wake, //
    },
};

/// How a handshake ended when the TCP connection can still be used.
pub(crate) enum Outcome {
    /// The connection goes on by RDMA.
    #[expect(dead_code)]
    Smc(Arc<Connection>),
    /// The connection goes on by TCP.
    Tcp {
        /// Why.
        reason: DeclineReason,
        /// The diagnosis in the peer's Decline, 0 without one.
        peer_diagnosis: u32,
    },
}

/// What the socket brings into a handshake.
#[expect(dead_code)]
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

/// The handshake of the end that connected.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn client(_tcp: &TcpSocket, _setup: &Setup) -> Result<Outcome> {
    Ok(Outcome::Tcp {
        reason: DeclineReason::NOSMCRDEV,
        peer_diagnosis: 0,
    })
}

/// The handshake of the end that accepted.
///
/// # Errors
///
/// The connection is lost.
pub(crate) fn server(_tcp: &TcpSocket, _setup: &Setup) -> Result<Outcome> {
    Ok(Outcome::Tcp {
        reason: DeclineReason::NOSMCRDEV,
        peer_diagnosis: 0,
    })
}
