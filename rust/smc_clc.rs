// SPDX-License-Identifier: GPL-2.0

//! The CLC handshake: what the two ends agree on over the TCP connection before the first byte of data.
//!
//! ```text
//!  client                              server
//!    │ ── Proposal ─────────────────────► │   what the client has
//!    │ ◄───────────────────────── Accept ─│   what the server chose, its queue pair and receive ring
//!    │ ── Confirm ──────────────────────► │   the client's queue pair and receive ring
//!    │ ◄═══ CONFIRM LINK, first contact ══│   over the new queue pair
//! ```
//!
//! The client offers version 2, version 1 (RFC 7609 itself) or both, as far as it has what they need; the server takes
//! version 2 where it can. Version 1 needs RoCE v1 GIDs and a subnet in common.
//!
//! Either side may send a Decline instead of its message; both then go on with TCP. A handshake runs in a work item
//! and holds no lock but the gate of its peer, which keeps a second first contact with the same peer back. Every wait
//! is bounded.
//!
//! RFC 7609, sections 3.5.1 and 3.5.2 and appendix A.2.

mod channel;
mod client;
mod server;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use self::channel::Channel;
use crate::{
    kapi::{
        net::TcpSocket,
        rdma::Ends,
        uts::host_name, //
    },
    net_ctx::{
        EidList,
        NetCtx,
        Role, //
    },
    proto::{
        clc::{
            AcceptConfirm,
            FirstContact,
            Kind,
            Limits,
            V2Part,
            Version, //
        },
        ids::{
            Eid,
            Hostname, //
        },
        reason::DeclineReason, //
    },
    smc_cdc::{
        Connection,
        Draft, //
    },
    smc_ib,
    smc_llc::{
        Link,
        LinkGroup,
        PeerHost, //
    },
};

pub(crate) use crate::smc_cdc::Setup;

/// How long a message of the peer is waited for (RFC 7609, appendix C.5 leaves it open; the C implementation waits as
/// long).
const WAIT_MS: u32 = 6_000;

/// How long a handshake waits for its turn among others with the same peer. With the time in which the peer answers an
/// LLC message it is less than [`WAIT_MS`]: where too many come at once a Decline reaches a peer that still listens, and
/// they go on by TCP.
const TURN_MS: u32 = 3_500;

/// How long a Decline of the peer is waited for when the link could not be confirmed.
const WAIT_DECLINE_MS: u32 = 1_000;

/// How a handshake ended when the TCP connection can still be used.
pub(crate) enum Outcome {
    /// The connection goes on by RDMA.
    Smc(Arc<Connection>),
    /// The connection goes on by TCP.
    Tcp {
        /// Why.
        reason: DeclineReason,
        /// The diagnosis in the peer's Decline, 0 without one.
        peer_diagnosis: u32,
    },
}

/// What the socket's namespace keeps.
fn context(setup: &Setup) -> Result<Arc<NetCtx>, Stop> {
    NetCtx::of(&setup.net).map_err(Stop::Fatal)
}

/// Why a handshake stopped.
enum Stop {
    /// The TCP connection is of no use any more.
    Fatal(Error),
    /// The peer declined with this diagnosis.
    Declined(u32),
    /// This side declines.
    Decline(DeclineReason),
}

impl From<DeclineReason> for Stop {
    fn from(reason: DeclineReason) -> Self {
        Self::Decline(reason)
    }
}

/// The reason to decline with when a kernel call failed.
fn reason_of(error: Error) -> DeclineReason {
    if error == ENOMEM {
        DeclineReason::MEM
    } else if error == ENODEV {
        DeclineReason::NOSMCRDEV
    } else if error == ENOTCONN {
        DeclineReason::ERR_RDYLNK
    } else {
        DeclineReason::INTERR
    }
}

/// Runs the handshake of a connecting socket whose peer answered with the SMC option.
///
/// # Errors
///
/// The connect fails with the error: the peer broke the protocol, fell silent or went away in the middle.
pub(crate) fn client(tcp: &TcpSocket, setup: &Setup) -> Result<Outcome> {
    run(tcp, setup, Role::Client, client::handshake)
}

/// Runs the handshake of a child of a listening socket whose peer sent the SMC option.
///
/// # Errors
///
/// The child is dropped: the peer broke the protocol, fell silent or went away in the middle.
pub(crate) fn server(tcp: &TcpSocket, setup: &Setup) -> Result<Outcome> {
    run(tcp, setup, Role::Server, server::handshake)
}

/// One side's part of the handshake.
type Side = fn(&TcpSocket, &Setup, &mut Channel<'_>) -> Result<Arc<Connection>, Stop>;

/// Turns the end of a handshake into its outcome, and tells the peer if this side declines.
fn run(tcp: &TcpSocket, setup: &Setup, role: Role, handshake: Side) -> Result<Outcome> {
    let mut channel = Channel::new(tcp)?;
    let ctx = NetCtx::of(&setup.net)?;
    let (reason, peer_diagnosis) = match handshake(tcp, setup, &mut channel) {
        Ok(connection) => {
            let version = connection.group().version();
            ctx.connected(role, version, tcp.peer_addr().ok());
            return Ok(Outcome::Smc(connection));
        }
        Err(Stop::Fatal(error)) => {
            ctx.stats().handshake_failed(role, error);
            return Err(error);
        }
        Err(Stop::Declined(peer_diagnosis)) => (DeclineReason::PEERDECL, peer_diagnosis),
        Err(Stop::Decline(reason)) => {
            channel.decline(reason)?;
            (reason, 0)
        }
    };
    tcp.ack_like_new();
    Ok(Outcome::Tcp {
        reason,
        peer_diagnosis,
    })
}

/// Why a connection goes by TCP that did not carry the SMC option both ways.
pub(crate) fn reason_without_option(tcp: &TcpSocket) -> DeclineReason {
    if tcp.has_xfrm_policy() {
        DeclineReason::IPSEC
    } else {
        DeclineReason::PEERNOSMC
    }
}

/// The two ends of the connection, or why it cannot go by SMC-R, which goes round IPsec.
fn ends(tcp: &TcpSocket) -> Result<Ends, Stop> {
    if tcp.has_xfrm_policy() {
        return Err(DeclineReason::IPSEC.into());
    }
    let local = tcp.local_addr().map_err(Stop::Fatal)?;
    // Only one that has been reset meanwhile has no peer.
    let peer = tcp.peer_addr().map_err(|_| Stop::Fatal(ECONNRESET))?;
    Ok(Ends::new(&local, &peer).ok_or(DeclineReason::NOSMCRDEV)?)
}

/// What this side has for each version.
struct Means {
    /// The enterprise ids of the namespace: a built-in one at first, so that two hosts need no configuration.
    eids: EidList,
    /// Where the way to the peer begins in version 2, which is off without an id, or why there is none.
    v2: Result<smc_ib::Approach, DeclineReason>,
    /// The same in version 1.
    v1: Result<smc_ib::Approach, DeclineReason>,
}

impl Means {
    /// Looks what there is for a connection; at version 1 only if it is `wanted`.
    // Not part of its caller's frame on the stack.
    #[inline(never)]
    fn new(setup: &Setup, ends: Ends, v1_wanted: bool) -> Result<Self, Stop> {
        let eids = context(setup)?.eids().list();
        let id = eids.iter().next().ok_or(DeclineReason::NOUEID);
        Ok(Self {
            v2: smc_ib::approach(&setup.net, ends).and_then(|start| id.map(|_| start)),
            v1: match v1_wanted {
                true => smc_ib::approach_v1(&setup.net, ends),
                false => Err(DeclineReason::VERSMISMAT),
            },
            eids,
        })
    }

    /// Where the way to the peer begins in a version.
    fn start(&self, version: Version) -> Result<&smc_ib::Approach, DeclineReason> {
        let start = match version {
            Version::V1 => &self.v1,
            Version::V2 => &self.v2,
        };
        start.as_ref().map_err(|reason| *reason)
    }

    /// The same, without the rest.
    fn into_start(self, version: Version) -> Result<smc_ib::Approach, DeclineReason> {
        match version {
            Version::V1 => self.v1,
            Version::V2 => self.v2,
        }
    }
}

/// What a first contact says of this host besides.
fn first_contact(path: &smc_ib::Path, group: &LinkGroup) -> FirstContact {
    let name = Hostname::clean(host_name().as_bytes());
    let agreed = group.params();
    let limits = Limits {
        max_conns: agreed.max_conns,
        max_links: agreed.max_links,
    };
    FirstContact::new(path.direct(), agreed.release, name, limits).with(agreed.extensions)
}

/// What the peer's host has said of itself, for tools.
fn note_peer(group: &LinkGroup, message: &AcceptConfirm) {
    if let Some(extension) = message.extension() {
        group.set_peer_host(PeerHost {
            os: extension.os,
            name: extension.hostname,
        });
    }
}

/// The Accept or the Confirm that says what `draft` has, and the link that it is about; with the way to the peer it is a
/// first contact, and with an enterprise id a message of version 2.
fn describe(
    draft: &Draft,
    kind: Kind,
    eid: Option<Eid>,
    path: Option<&smc_ib::Path>,
) -> Result<(AcceptConfirm, Arc<Link>), DeclineReason> {
    let (mut message, link) = draft.describe(kind, path.is_some())?;
    message.v2 = eid.map(|eid| V2Part {
        eid,
        first_contact: path.map(|path| first_contact(path, draft.group())),
    });
    Ok((message, link))
}
