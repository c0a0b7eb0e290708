// SPDX-License-Identifier: GPL-2.0

//! Peers that connections of converted sockets went to by TCP: another attempt is made only after a while.

use core::net::{
    IpAddr,
    SocketAddr, //
};

use kernel::{
    num::casts::u32_as_usize,
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::{
    kapi::random,
    proto::reason::DeclineReason, //
};

/// How many peers that share a place by their hash are kept.
const WAYS: usize = 4;

/// How many places there are, as a power of two.
const PLACES_LOG2: u32 = 8;

/// One peer.
#[derive(Clone, Copy)]
struct Peer {
    /// Its address, as one of IPv6.
    ip: [u8; 16],
    /// Its port.
    port: u16,
    /// Why the connection went by TCP.
    reason: DeclineReason,
    /// The peer's diagnosis.
    diagnosis: u32,
    /// It is only suspected, and gets another attempt.
    suspected: bool,
    /// Until when it is kept, in milliseconds of the table's clock; 0 for nobody.
    until_ms: i64,
}

impl Peer {
    /// Nobody.
    const NONE: Self = Self {
        ip: [0; 16],
        port: 0,
        reason: DeclineReason::PEERNOSMC,
        diagnosis: 0,
        suspected: false,
        until_ms: 0,
    };
}

/// The peers of a namespace.
pub(super) struct Peers {
    /// Sets of [`WAYS`]; empty until the first peer comes.
    table: KVec<Peer>,
    /// Time zero of the clock.
    born: Instant<Monotonic>,
    /// Mixed into the hash.
    seed: u32,
}

impl Peers {
    /// Nobody yet.
    pub(super) fn new() -> Self {
        Self {
            table: KVec::new(),
            born: Instant::now(),
            seed: random::random_u32(),
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        for peer in self.table.iter_mut() {
            *peer = Peer::NONE;
        }
    }

    /// Why the last connection to a peer went by TCP, if that was not long ago.
    pub(super) fn find(&mut self, peer: SocketAddr) -> Option<(DeclineReason, u32)> {
        let now = self.now_ms();
        let key = key(peer);
        let found = self
            .set(key)
            .iter()
            .find(|p| (p.ip, p.port) == key && p.until_ms > now && !p.suspected)?;
        Some((found.reason, found.diagnosis))
    }

    /// Keeps a peer in mind, in place of the one that would be forgotten first if need be. One that is not `certain` to
    /// have no SMC is found from the second time on.
    pub(super) fn put(
        &mut self,
        peer: SocketAddr,
        (reason, diagnosis): (DeclineReason, u32),
        certain: bool,
        seconds: u32,
    ) -> Result {
        if self.table.is_empty() {
            let size = WAYS << PLACES_LOG2;
            self.table.resize(size, Peer::NONE, GFP_KERNEL)?;
        }
        let now = self.now_ms();
        let until_ms = now.saturating_add(i64::from(seconds).saturating_mul(1_000));
        let key = key(peer);
        let set = self.set(key);
        let at = set.iter().position(|p| (p.ip, p.port) == key);
        let place = match at {
            Some(at) => set.get_mut(at),
            None => set.iter_mut().min_by_key(|p| p.until_ms),
        };
        if let Some(place) = place {
            let known = at.is_some() && place.until_ms > now;
            *place = Peer {
                ip: key.0,
                port: key.1,
                reason,
                diagnosis,
                suspected: !certain && !known,
                until_ms,
            };
        }
        Ok(())
    }

    /// Forgets a peer.
    pub(super) fn remove(&mut self, peer: SocketAddr) {
        let key = key(peer);
        for p in self.set(key) {
            if (p.ip, p.port) == key {
                *p = Peer::NONE;
            }
        }
    }

    /// The clock.
    fn now_ms(&self) -> i64 {
        self.born.elapsed().as_millis()
    }

    /// Where a peer may be; empty before there is a table.
    fn set(&mut self, (ip, port): ([u8; 16], u16)) -> &mut [Peer] {
        // FNV-1a, begun with the seed.
        let mix = |hash: u32, part: u32| (hash ^ part).wrapping_mul(0x0100_0193);
        let hash = mix(self.seed, u32::from(port));
        let hash = ip
            .iter()
            .fold(hash, |hash, byte| mix(hash, u32::from(*byte)));
        // The upper bits are mixed best.
        let first = u32_as_usize(hash >> (u32::BITS - PLACES_LOG2)).saturating_mul(WAYS);
        self.table
            .get_mut(first..first.saturating_add(WAYS))
            .unwrap_or(&mut [])
    }
}

/// By what a peer is known.
fn key(peer: SocketAddr) -> ([u8; 16], u16) {
    let ip = match peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    (ip.octets(), peer.port())
}
