// SPDX-License-Identifier: GPL-2.0

//! What a namespace counts: connections, calls, bytes, ring sizes; each processor for itself.

use kernel::{
    num::casts::usize_as_u64,
    prelude::*, //
};

use crate::{
    kapi::percpu::Counters,
    proto::stats::{
        bucket,
        BUCKETS, //
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
    /// All of them.
    pub(crate) const ALL: [Self; RING_EVENTS] = [
        Self::SMALL_PEER,
        Self::SMALL,
        Self::FULL_PEER,
        Self::FULL,
        // A ring that was there already.
        Self(4),
        // A new ring.
        Self(5),
        // One smaller than was wanted.
        Self(6),
    ];
}

impl Counter {
    /// Connections that this end opened and that went by RDMA.
    pub(crate) const CLIENT: Self = Self(2 * PER_WAY);
    /// The same for connections that this end accepted.
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
    /// How many there are.
    const COUNT: usize = 2 * PER_WAY + 14;

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

    /// A handshake ended in a connection by RDMA.
    pub(crate) fn connected(&self, role: Role) {
        self.bump(match role {
            Role::Client => Counter::CLIENT,
            Role::Server => Counter::SERVER,
        });
    }

    /// A handshake ended the connection.
    pub(crate) fn handshake_failed(&self, role: Role) {
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
        self.bump(Counter::ring_size(way, bucket(u64::from(bytes))));
        self.0.add(Counter::in_use(way).0, u64::from(bytes));
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
