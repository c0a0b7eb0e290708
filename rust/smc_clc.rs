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

use crate::{
    proto::{
        clc::Limits,
        ids::Eid,
        reason::DeclineReason, //
    },
    smc_cdc::Connection,
};

pub(crate) use self::{
    client::client,
    server::server, //
};
pub(crate) use crate::smc_cdc::Setup;

/// How long a message of the peer is waited for (RFC 7609 leaves it open; the C implementation waits as long).
const WAIT_MS: u32 = 6_000;

/// How long a Decline of the peer is waited for when the link could not be confirmed.
const WAIT_DECLINE_MS: u32 = 1_000;

/// What a link group may hold. There is one link: with more a peer would wait for an ADD LINK that never comes.
const LIMITS: Limits = Limits {
    max_conns: 255,
    max_links: 1,
};

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

/// The enterprise ids of this host: the built-in one, so that two hosts need no configuration.
fn eids() -> impl Iterator<Item = Eid> + Clone {
    core::iter::once(Eid::DEFAULT)
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
    } else {
        DeclineReason::INTERR
    }
}

/// Turns the end of a handshake into its outcome, and tells the peer if this side declines.
fn conclude(
    channel: &mut channel::Channel<'_>,
    result: Result<Arc<Connection>, Stop>,
) -> Result<Outcome> {
    match result {
        Ok(connection) => Ok(Outcome::Smc(connection)),
        Err(Stop::Fatal(error)) => Err(error),
        Err(Stop::Declined(peer_diagnosis)) => Ok(Outcome::Tcp {
            reason: DeclineReason::PEERDECL,
            peer_diagnosis,
        }),
        Err(Stop::Decline(reason)) => {
            channel.decline(reason)?;
            Ok(Outcome::Tcp {
                reason,
                peer_diagnosis: 0,
            })
        }
    }
}
