// SPDX-License-Identifier: GPL-2.0

//! Link groups: the queue pairs between this host and a peer, what keeps them alive, and the memory that is shared
//! over them.
//!
//! ```text
//!   registry ──▶ LinkGroup ── links: send queue (slots, queue pair) ──▶ the wire
//!      ▲            │  │ └──── rings: RMBs with a key for each link, send rings
//!    find, gate     │  └────── LLC: exchanges, the peer's keys
//!      │            └───────── table: alert token → ConnSink (a connection, in the room above)
//!   Membership (one for each connection), Binding (to the link that it uses)
//! ```
//!
//! A handshake takes the [`gate`] of its peer, looks for a group with [`find`] or makes one with [`create`], and gets a
//! [`Membership`]. Through it the connection makes its rings, binds them to a link, attaches itself under an alert token,
//! takes slots of the link and posts. When the last membership is dropped the group lingers for some seconds and goes.
//!
//! # Links that come and go
//!
//! A group begins with one link; the server adds a second one over other devices where there are such, at once or when
//! one is found (`change`). A link that is lost is taken apart first: nothing of it arrives any more, and nothing of it
//! stays on its device. Then each of its connections takes another link, with a message that tells the peer what had been
//! delivered, and sends again what had not (`loss`). A group whose last link is lost ends.
//!
//! # How a group ends
//!
//! Whatever happens (the last connection left long ago, the peer said so, the last link was lost, the module goes), the
//! group's end is a work item that runs once: it stops new chains, tells the peer where that is possible, takes the queue
//! pairs out of the send queues so that nobody can post, puts them into the error state and waits for what was posted (all
//! that is bounded, to little more than a second), and only then tells every connection. At last it destroys the queue
//! pairs, which some devices take seconds for, and takes the keys and mappings of all rings. The memory of the rings stays
//! until the connections let go of it. So the end waits for no application, and after it no completion can arrive.

mod change;
mod continuation;
mod flow;
mod group;
mod inspect;
mod keys;
mod link;
mod loss;
mod registrar;
mod registry;
mod ring;
mod rmb;
mod send;
mod state;
mod table;
mod tell;

pub(crate) use group::{
    LinkGroup,
    Params,
    PeerHost, //
};
pub(crate) use inspect::{
    group_from,
    is_critical,
    links_on,
    LinkFacts, //
};
pub(crate) use link::{
    Link,
    PeerLink, //
};
pub(crate) use loss::Refuge;
pub(crate) use registry::{
    create,
    find,
    gate,
    Gate,
    Membership,
    PeerKey,
    Registration,
    Want, //
};
pub(crate) use ring::{
    Binding,
    SendRing, //
};
pub(crate) use rmb::Rmb;
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

/// Steps in which something is waited for that is known to come.
const WAIT_STEP_MS: u32 = 1000;

/// A moment until which something may take.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    /// When the time began to run.
    start: Instant<Monotonic>,
    /// How long it runs.
    limit_ms: u32,
}

impl Deadline {
    /// `limit_ms` from now.
    pub(crate) fn after(limit_ms: u32) -> Self {
        Self {
            start: Instant::now(),
            limit_ms,
        }
    }

    /// The moment so much later.
    fn later(self, ms: u32) -> Self {
        Self {
            limit_ms: self.limit_ms.saturating_add(ms),
            ..self
        }
    }

    /// What is left in milliseconds; 0 when it is over.
    pub(crate) fn left_ms(&self) -> u32 {
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
