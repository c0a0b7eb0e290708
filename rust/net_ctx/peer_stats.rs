// SPDX-License-Identifier: GPL-2.0

//! How many connections a namespace has had with each peer, by RDMA and by TCP.

use core::net::IpAddr;

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

use crate::proto::reason::DeclineReason;

use super::Role;

/// How many peers are remembered; one more takes the place of that which was silent for longest.
const MAX_PEERS: usize = 256;

/// What is known of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCount {
    /// Its address.
    pub(crate) address: IpAddr,
    /// Connections by RDMA: those opened here, and those accepted.
    pub(crate) smc: [u64; 2],
    /// The same for those that went on by TCP.
    pub(crate) tcp: [u64; 2],
    /// Why the last one of those did.
    pub(crate) last_reason: Option<DeclineReason>,
    /// When there was the latest one of any kind, in connections of the namespace.
    seen: u64,
}

/// The peers of a namespace.
#[pin_data]
pub(crate) struct PeerStats {
    /// Each at its place until another one takes that, and the number of connections so far.
    #[pin]
    peers: Mutex<(KVec<PeerCount>, u64)>,
}

/// Where a role is counted.
fn place(role: Role) -> usize {
    match role {
        Role::Client => 0,
        Role::Server => 1,
    }
}

impl PeerStats {
    /// None yet.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            peers <- new_mutex!((KVec::new(), 0), "PeerStats::peers"),
        })
    }

    /// Counts a connection: one by RDMA, or one that went on by TCP for a reason. Without memory for a new peer it is not
    /// counted.
    pub(super) fn count(&self, role: Role, peer: IpAddr, reason: Option<DeclineReason>) {
        let address = peer.to_canonical();
        let mut guard = self.peers.lock();
        let (peers, clock) = &mut *guard;
        *clock = clock.saturating_add(1);
        let new = PeerCount {
            address,
            smc: [0; 2],
            tcp: [0; 2],
            last_reason: None,
            seen: *clock,
        };
        let known = peers.iter().position(|p| p.address == address);
        let at = match known {
            Some(at) => at,
            None if peers.len() < MAX_PEERS => {
                if peers.push(new, GFP_KERNEL).is_err() {
                    return;
                }
                peers.len().saturating_sub(1)
            }
            None => {
                let oldest = peers.iter().enumerate().min_by_key(|(_, p)| p.seen);
                let at = oldest.map_or(0, |(at, _)| at);
                if let Some(place) = peers.get_mut(at) {
                    *place = new;
                }
                at
            }
        };
        let Some(peer) = peers.get_mut(at) else {
            return;
        };
        peer.seen = *clock;
        let counts = match reason {
            None => &mut peer.smc,
            Some(_) => {
                peer.last_reason = reason;
                &mut peer.tcp
            }
        };
        if let Some(count) = counts.get_mut(place(role)) {
            *count = count.saturating_add(1);
        }
    }

    /// The peer at a place, counted from 0; nothing behind the last.
    pub(crate) fn at(&self, place: usize) -> Option<PeerCount> {
        self.peers.lock().0.get(place).copied()
    }
}
