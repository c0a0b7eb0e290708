// SPDX-License-Identifier: GPL-2.0

//! What a namespace counts: connections, calls, bytes, ring sizes; each processor for itself.

use kernel::{
    num::casts::usize_as_u64,
    prelude::*, //
};

use crate::{
    kapi::percpu::Counters,
    proto::{
        clc::Version,
        stats::{
            bucket,
            BUCKETS, //
        }, //
    },
};

use super::Role;

/// The number of a counter.
#[derive(Clone, Copy)]
pub(crate) struct Counter(usize);

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the application to the peer.
    Send,
    /// From the peer to the application.
    Receive,
}

/// How many counters of its own a way has besides sizes.
const RING_EVENTS: usize = 7;

/// How many counters a way has: ring sizes, payload sizes, events.
const PER_WAY: usize = 2 * BUCKETS + RING_EVENTS;

/// What happens to rings, in the order in which tools list it.
#[derive(Clone, Copy)]
pub(crate) struct RingEvent(usize);

impl RingEvent {
    /// More was to be sent at once than the peer's ring holds.
    pub(crate) const SMALL_PEER: Self = Self(0);
    /// More was to be sent or received at once than our ring holds.
    pub(crate) const SMALL: Self = Self(1);
    /// There was no room in the peer's ring.
    pub(crate) const FULL_PEER: Self = Self(2);
    /// There was no room in our ring.
    pub(crate) const FULL: Self = Self(3);
    /// A connection got a ring that was there already.
    pub(crate) const REUSED: Self = Self(4);
    /// A connection got a new ring.
    pub(crate) const ALLOCATED: Self = Self(5);
    /// A connection got a smaller ring than it wanted.
    pub(crate) const DEGRADED: Self = Self(6);
    /// All of them.
    pub(crate) const ALL: [Self; RING_EVENTS] = [
        Self::SMALL_PEER,
        Self::SMALL,
        Self::FULL_PEER,
        Self::FULL,
        Self::REUSED,
        Self::ALLOCATED,
        Self::DEGRADED,
    ];
}

impl Counter {
    /// Connections that this end opened and that went by RDMA, of version 2.
    pub(crate) const CLIENT: Self = Self(2 * PER_WAY);
    /// The same of version 2 for connections that this end accepted.
    pub(crate) const SERVER: Self = Self(2 * PER_WAY + 1);
    /// Splices from sockets.
    pub(crate) const SPLICE: Self = Self(2 * PER_WAY + 2);
    /// TCP_CORK turned on.
    pub(crate) const CORK: Self = Self(2 * PER_WAY + 3);
    /// TCP_NODELAY turned on.
    pub(crate) const NODELAY: Self = Self(2 * PER_WAY + 4);
    /// Urgent bytes sent.
    pub(crate) const URGENT: Self = Self(2 * PER_WAY + 5);
    /// Handshakes of the client that broke the connection.
    pub(crate) const CLIENT_ERROR: Self = Self(2 * PER_WAY + 6);
    /// Handshakes of the server that broke the connection.
    pub(crate) const SERVER_ERROR: Self = Self(2 * PER_WAY + 7);
    /// Bytes, one counter for each way.
    const BYTES: usize = 2 * PER_WAY + 8;
    /// Calls, one for each way.
    const CALLS: usize = 2 * PER_WAY + 10;
    /// Bytes of rings in use, one for each way.
    const IN_USE: usize = 2 * PER_WAY + 12;
    /// Connections that the peer aborted.
    pub(crate) const ABORT_PEER: Self = Self(Self::OWN);
    /// Connections that ended with their link group.
    pub(crate) const ABORT_LINK: Self = Self(Self::OWN + 1);
    /// Connections that ended because the peer broke a rule of the protocol.
    pub(crate) const ABORT_VIOLATION: Self = Self(Self::OWN + 2);
    /// Connections that were given up here: by the application, the operator, or without a way to move them.
    pub(crate) const ABORT_LOCAL: Self = Self(Self::OWN + 3);
    /// Connections that were closed with data unread.
    pub(crate) const ABORT_UNREAD: Self = Self(Self::OWN + 4);
    /// Closed connections whose peer did not answer.
    pub(crate) const ABORT_TIMEOUT: Self = Self(Self::OWN + 5);
    /// Handshakes whose peer did not answer.
    pub(crate) const HANDSHAKE_TIMEOUT: Self = Self(Self::OWN + 6);
    /// How often the hooks that write the TCP option were registered.
    pub(crate) const HOOKS_ADDED: Self = Self(Self::OWN + 7);
    /// And how often they were removed.
    pub(crate) const HOOKS_REMOVED: Self = Self(Self::OWN + 8);
    /// Link groups that came to work.
    pub(crate) const GROUPS_UP: Self = Self(Self::OWN + 9);
    /// And those of them that ended.
    pub(crate) const GROUPS_DOWN: Self = Self(Self::OWN + 10);
    /// Links that came to work.
    pub(crate) const LINKS_UP: Self = Self(Self::OWN + 11);
    /// And those of them that ended.
    pub(crate) const LINKS_DOWN: Self = Self(Self::OWN + 12);
    /// Connections that left a link for another.
    pub(crate) const CONNS_MOVED: Self = Self(Self::OWN + 13);
    /// Connections of version 1 that this end opened.
    pub(crate) const CLIENT_V1: Self = Self(2 * PER_WAY + 14);
    /// And those that it accepted.
    pub(crate) const SERVER_V1: Self = Self(2 * PER_WAY + 15);
    /// The first counter that other implementations lack.
    const OWN: usize = 2 * PER_WAY + 16;
    /// How many of those there are.
    const OWN_COUNT: usize = 14;
    /// How many there are in all.
    const COUNT: usize = Self::OWN + Self::OWN_COUNT;

    /// The counters that other implementations lack, in order.
    pub(crate) fn own() -> impl Iterator<Item = Self> {
        (Self::OWN..Self::COUNT).map(Self)
    }

    /// Bytes that went a way.
    pub(crate) fn bytes(way: Way) -> Self {
        Self(Self::BYTES.saturating_add(way.index()))
    }

    /// Calls that sent or received.
    pub(crate) fn calls(way: Way) -> Self {
        Self(Self::CALLS.saturating_add(way.index()))
    }

    /// Bytes of rings in use.
    pub(crate) fn in_use(way: Way) -> Self {
        Self(Self::IN_USE.saturating_add(way.index()))
    }

    /// Rings of a size class.
    pub(crate) fn ring_size(way: Way, class: usize) -> Self {
        Self(way.first().saturating_add(class))
    }

    /// Calls of a size class.
    pub(crate) fn payload(way: Way, class: usize) -> Self {
        Self(way.first().saturating_add(BUCKETS).saturating_add(class))
    }

    /// What happened to rings.
    pub(crate) fn ring(way: Way, event: RingEvent) -> Self {
        let first = way.first().saturating_add(2 * BUCKETS);
        Self(first.saturating_add(event.0))
    }
}

impl Way {
    /// Its place among counters that both have.
    fn index(self) -> usize {
        match self {
            Self::Send => 0,
            Self::Receive => 1,
        }
    }

    /// Its first counter.
    fn first(self) -> usize {
        self.index().saturating_mul(PER_WAY)
    }
}

/// The counters of a namespace.
pub(crate) struct Stats(Counters);

impl Stats {
    /// All zero.
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Counters::new(Counter::COUNT)?))
    }

    /// Counts one. Any context.
    pub(crate) fn bump(&self, counter: Counter) {
        self.0.add(counter.0, 1);
    }

    /// Counts several. Any context.
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        self.0.add(counter.0, by);
    }

    /// A handshake ended in a connection by RDMA.
    pub(super) fn connected(&self, role: Role, version: Version) {
        self.bump(match (role, version) {
            (Role::Client, Version::V1) => Counter::CLIENT_V1,
            (Role::Client, Version::V2) => Counter::CLIENT,
            (Role::Server, Version::V1) => Counter::SERVER_V1,
            (Role::Server, Version::V2) => Counter::SERVER,
        });
    }

    /// A handshake ended the connection, with an error.
    pub(crate) fn handshake_failed(&self, role: Role, error: Error) {
        if error == ETIMEDOUT {
            self.bump(Counter::HANDSHAKE_TIMEOUT);
        }
        self.bump(match role {
            Role::Client => Counter::CLIENT_ERROR,
            Role::Server => Counter::SERVER_ERROR,
        });
    }

    /// A call sent or received so many bytes; nothing if it failed.
    pub(crate) fn call(&self, way: Way, moved: Option<usize>) {
        self.bump(Counter::calls(way));
        if let Some(bytes) = moved {
            let bytes = usize_as_u64(bytes);
            self.0.add(Counter::bytes(way).0, bytes);
            self.bump(Counter::payload(way, bucket(bytes)));
        }
    }

    /// Something happened to a ring.
    pub(crate) fn ring(&self, way: Way, event: RingEvent) {
        self.bump(Counter::ring(way, event));
    }

    /// A connection got a ring.
    pub(crate) fn ring_taken(&self, way: Way, bytes: u32) {
        self.0.add(Counter::in_use(way).0, u64::from(bytes));
    }

    /// A connection was made whose ring is, or may become, so large.
    pub(crate) fn ring_size(&self, way: Way, bytes: u32) {
        self.bump(Counter::ring_size(way, bucket(u64::from(bytes))));
    }

    /// A connection gave a ring back.
    pub(crate) fn ring_given(&self, way: Way, bytes: u32) {
        // The total wraps to what it is without.
        self.0
            .add(Counter::in_use(way).0, u64::from(bytes).wrapping_neg());
    }

    /// What was counted.
    pub(crate) fn total(&self, counter: Counter) -> u64 {
        self.0.total(counter.0)
    }
}
