// SPDX-License-Identifier: GPL-2.0

//! Link groups: the queue pairs between this host and a peer, what keeps them alive, and the memory that is shared
//! over them.
//!
//! ```text
//!   registry ──▶ LinkGroup ── send queue (slots, queue pair) ──▶ the wire
//!      ▲            │  │ └──── rings: RMBs with their keys, send rings
//!    find, gate     │  └────── LLC: questions, answers, the peer's keys
//!      │            └───────── table: alert token → ConnSink (a connection, in the room above)
//!   Membership (one for each connection)
//! ```
//!
//! A handshake takes the [`gate`] of its peer, looks for a group with [`find`] or makes one with [`create`], and gets a
//! [`Membership`]. Through it the connection makes its rings, attaches itself under an alert token, takes slots and
//! posts. When the last membership is dropped the group lingers for some seconds and goes.
//!
//! # How a group ends
//!
//! Whatever happens (the last connection left long ago, the peer said so, the link broke, the device goes, the module
//! goes), the group's end is a work item that runs once: it stops new chains, tells the peer where that is possible,
//! takes the queue pair out of the send queue so that nobody can post, waits for what was posted, destroys the queue
//! pair (all that is bounded, to little more than a second),
//! takes the keys and mappings of all rings, and only then tells every connection. The memory of the rings stays until
//! the connections let go of it. So the end waits for no application, and after it no completion can arrive.

mod flow;
mod group;
mod inspect;
mod registry;
mod ring;
mod send;
mod table;

pub(crate) use group::{
    LinkGroup,
    Params,
    PeerLink, //
};
pub(crate) use inspect::{
    is_critical,
    links_on, //
};
pub(crate) use registry::{
    create,
    find,
    gate,
    Membership,
    PeerKey,
    Registration,
    Want, //
};
pub(crate) use ring::{
    Rmb,
    SendRing, //
};
pub(crate) use send::{
    TxSlot,
    Write, //
};
pub(crate) use table::ConnSink;

use kernel::{
    prelude::*,
    time::{
        msecs_to_jiffies,
        Instant,
        Jiffies,
        Monotonic, //
    },
};

/// A moment until which something may take.
#[derive(Clone, Copy)]
struct Deadline {
    /// When the time began to run.
    start: Instant<Monotonic>,
    /// How long it runs.
    limit_ms: u32,
}

impl Deadline {
    /// `limit_ms` from now.
    fn after(limit_ms: u32) -> Self {
        Self {
            start: Instant::now(),
            limit_ms,
        }
    }

    /// What is left in milliseconds; 0 when it is over.
    fn left_ms(&self) -> u32 {
        let elapsed = u32::try_from(self.start.elapsed().as_millis()).unwrap_or(u32::MAX);
        self.limit_ms.saturating_sub(elapsed)
    }

    /// What is left in jiffies, at least one; nothing when it is over.
    fn left(&self) -> Option<Jiffies> {
        match self.left_ms() {
            0 => None,
            ms => Some(msecs_to_jiffies(ms).max(1)),
        }
    }
}

/// Any failure of memory or device while a group works, as an error number for those above.
fn gone() -> Error {
    ENOTCONN
}
