// SPDX-License-Identifier: GPL-2.0

//! What a namespace has counted.

use kernel::prelude::*;

use crate::{
    kapi::netlink::{
        genl::Dump,
        Attrs, //
    },
    net_ctx::{
        Counter,
        Fallbacks,
        NetCtx,
        RingEvent,
        Role,
        Stats,
        Way, //
    },
    proto::{
        reason::DeclineReason,
        stats::BUCKETS, //
    },
};

use super::system::{
    command::{
        GET_FBACK_STATS,
        GET_PEER_STATS,
        GET_STATS, //
    },
    once, //
};

/// Attribute around counters.
const STATS: u16 = 7;
/// Attribute around connections that went on by TCP.
const FBACK_STATS: u16 = 8;
/// Attribute around a peer; not known to the tools of other implementations.
const PEER_STATS: u16 = 64;
/// Fills gaps in the nests of this file.
const PAD: u16 = 0;

/// Attributes within [`STATS`].
mod top {
    /// SMC-D.
    pub(super) const SMCD_TECH: u16 = 1;
    /// SMC-R.
    pub(super) const SMCR_TECH: u16 = 2;
    /// Handshakes of the client that broke the connection.
    pub(super) const CLNT_HS_ERR_CNT: u16 = 3;
    /// The same of the server.
    pub(super) const SRV_HS_ERR_CNT: u16 = 4;
    /// Counters that other implementations lack.
    pub(super) const SMC_RS: u16 = 64;
}

/// Attributes of SMC-D and of SMC-R.
mod tech {
    /// Sizes of send rings.
    pub(super) const TX_RMB_SIZE: u16 = 1;
    /// Sizes of receive rings.
    pub(super) const RX_RMB_SIZE: u16 = 2;
    /// Sizes of sends.
    pub(super) const TXPLOAD_SIZE: u16 = 3;
    /// Sizes of receives.
    pub(super) const RXPLOAD_SIZE: u16 = 4;
    /// What happened to send rings.
    pub(super) const TX_RMB_STATS: u16 = 5;
    /// What happened to receive rings.
    pub(super) const RX_RMB_STATS: u16 = 6;
    /// Connections of the client by version 1.
    pub(super) const CLNT_V1_SUCC: u16 = 7;
    /// And by version 2.
    pub(super) const CLNT_V2_SUCC: u16 = 8;
    /// Connections of the server by version 1.
    pub(super) const SRV_V1_SUCC: u16 = 9;
    /// And by version 2.
    pub(super) const SRV_V2_SUCC: u16 = 10;
    /// Pages sent by reference.
    pub(super) const SENDPAGE_CNT: u16 = 11;
    /// Splices from sockets.
    pub(super) const SPLICE_CNT: u16 = 12;
    /// TCP_CORK.
    pub(super) const CORK_CNT: u16 = 13;
    /// TCP_NODELAY.
    pub(super) const NDLY_CNT: u16 = 14;
    /// Urgent bytes.
    pub(super) const URG_DATA_CNT: u16 = 15;
    /// Bytes received.
    pub(super) const RX_BYTES: u16 = 16;
    /// Bytes sent.
    pub(super) const TX_BYTES: u16 = 17;
    /// Calls that received.
    pub(super) const RX_CNT: u16 = 18;
    /// Calls that sent.
    pub(super) const TX_CNT: u16 = 19;
    /// Bytes of receive rings in use.
    pub(super) const RX_RMB_USAGE: u16 = 20;
    /// Bytes of send rings in use.
    pub(super) const TX_RMB_USAGE: u16 = 21;
}

/// Attributes within [`FBACK_STATS`].
mod fback {
    /// Which end: 1 the server, 0 the client.
    pub(super) const SIDE: u16 = 1;
    /// All connections of the server that went on by TCP.
    pub(super) const SRV_CNT: u16 = 2;
    /// The same of the client.
    pub(super) const CLNT_CNT: u16 = 3;
    /// A reason.
    pub(super) const RSN_CODE: u16 = 4;
    /// How often it occurred, in 16 bits.
    pub(super) const RSN_CNT: u16 = 5;
    /// How often it occurred; not known to the tools of other implementations.
    pub(super) const RSN_CNT64: u16 = 64;
}

/// Attributes within [`PEER_STATS`].
mod peer {
    /// Address: 4 or 16 bytes as on the wire.
    pub(super) const ADDR: u16 = 1;
    /// Connections by RDMA that this host opened.
    pub(super) const CLNT_SMC: u16 = 2;
    /// And those that it accepted.
    pub(super) const SRV_SMC: u16 = 3;
    /// Connections of the client that went on by TCP.
    pub(super) const CLNT_TCP: u16 = 4;
    /// The same of the server.
    pub(super) const SRV_TCP: u16 = 5;
    /// Why the last one of those did.
    pub(super) const LAST_REASON: u16 = 6;
}

/// Lists the counters.
pub(super) fn dump(dump: &mut Dump<'_>) -> Result {
    once(dump, |dump| {
        let ctx = NetCtx::of(dump.net())?;
        let counters = ctx.stats();
        dump.message(GET_STATS, |message| {
            message.nest(STATS, |to| {
                to.nest(top::SMCD_TECH, |to| technology(to, |_| 0))?;
                to.nest(top::SMCR_TECH, |to| {
                    technology(to, |counter| counters.total(counter))
                })?;
                let total = |counter| Stats::total(counters, counter);
                to.u64(top::CLNT_HS_ERR_CNT, total(Counter::CLIENT_ERROR), PAD)?;
                to.u64(top::SRV_HS_ERR_CNT, total(Counter::SERVER_ERROR), PAD)?;
                to.nest(top::SMC_RS, |to| numbered(to, Counter::own().map(total)))
            })
        })
    })
}

/// The counters of SMC-D or SMC-R.
fn technology(to: &mut Attrs<'_>, total: impl Fn(Counter) -> u64) -> Result {
    for (way, sizes, payload, events) in [
        (
            Way::Send,
            tech::TX_RMB_SIZE,
            tech::TXPLOAD_SIZE,
            tech::TX_RMB_STATS,
        ),
        (
            Way::Receive,
            tech::RX_RMB_SIZE,
            tech::RXPLOAD_SIZE,
            tech::RX_RMB_STATS,
        ),
    ] {
        to.nest(sizes, |to| {
            numbered(to, (0..BUCKETS).map(|n| total(Counter::ring_size(way, n))))
        })?;
        to.nest(payload, |to| {
            numbered(to, (0..BUCKETS).map(|n| total(Counter::payload(way, n))))
        })?;
        to.nest(events, |to| {
            let events = RingEvent::ALL.iter();
            numbered(to, events.map(|event| total(Counter::ring(way, *event))))
        })?;
    }
    for (kind, value) in [
        (tech::CLNT_V1_SUCC, total(Counter::CLIENT_V1)),
        (tech::CLNT_V2_SUCC, total(Counter::CLIENT)),
        (tech::SRV_V1_SUCC, total(Counter::SERVER_V1)),
        (tech::SRV_V2_SUCC, total(Counter::SERVER)),
        // The kernel has no such call any more.
        (tech::SENDPAGE_CNT, 0),
        (tech::SPLICE_CNT, total(Counter::SPLICE)),
        (tech::CORK_CNT, total(Counter::CORK)),
        (tech::NDLY_CNT, total(Counter::NODELAY)),
        (tech::URG_DATA_CNT, total(Counter::URGENT)),
        (tech::RX_BYTES, total(Counter::bytes(Way::Receive))),
        (tech::TX_BYTES, total(Counter::bytes(Way::Send))),
        (tech::RX_CNT, total(Counter::calls(Way::Receive))),
        (tech::TX_CNT, total(Counter::calls(Way::Send))),
    ] {
        to.u64(kind, value, PAD)?;
    }
    to.uint(tech::RX_RMB_USAGE, total(Counter::in_use(Way::Receive)))?;
    to.uint(tech::TX_RMB_USAGE, total(Counter::in_use(Way::Send)))
}

/// Counters as attributes from 1 on.
fn numbered(to: &mut Attrs<'_>, values: impl Iterator<Item = u64>) -> Result {
    for (kind, value) in (1..).zip(values) {
        to.u64(kind, value, PAD)?;
    }
    Ok(())
}

/// A code that no reason has: it stands for those without a name.
const OTHER: DeclineReason = DeclineReason::from_code(0);

/// All rows of the table of fallbacks: each reason for the server, then each for the client.
fn rows() -> impl Iterator<Item = (Role, DeclineReason)> {
    [Role::Server, Role::Client].into_iter().flat_map(|role| {
        DeclineReason::all()
            .chain_one(OTHER)
            .map(move |reason| (role, reason))
    })
}

/// An iterator with one more at its end; the kernel's own `chain` has another meaning for iterators.
trait ChainOne: Iterator + Sized {
    /// The iterator, then `last`.
    fn chain_one(self, last: Self::Item) -> impl Iterator<Item = Self::Item>;
}

impl<I: Iterator> ChainOne for I {
    fn chain_one(self, last: I::Item) -> impl Iterator<Item = I::Item> {
        Iterator::chain(self, core::iter::once(last))
    }
}

/// All connections of a role that went on by TCP.
fn sum(fallbacks: &Fallbacks, role: Role) -> u64 {
    rows()
        .filter(|(r, _)| *r == role)
        .map(|(_, reason)| fallbacks.total(role, reason))
        .fold(0, u64::saturating_add)
}

/// Lists the reasons that have occurred, for each role.
pub(super) fn dump_fallbacks(dump: &mut Dump<'_>) -> Result {
    let ctx = NetCtx::of(dump.net())?;
    let fallbacks = ctx.fallbacks();
    let [start, _] = dump.position();
    let skip = usize::try_from(start)?;
    for (at, (role, reason)) in (start..).zip(rows().skip(skip)) {
        let count = fallbacks.total(role, reason);
        if count > 0 {
            dump.message(GET_FBACK_STATS, |message| {
                message.nest(FBACK_STATS, |to| {
                    to.u8(fback::SIDE, u8::from(role == Role::Server))?;
                    to.u64(fback::SRV_CNT, sum(fallbacks, Role::Server), PAD)?;
                    to.u64(fback::CLNT_CNT, sum(fallbacks, Role::Client), PAD)?;
                    to.u32(fback::RSN_CODE, reason.code())?;
                    to.u16(fback::RSN_CNT, u16::try_from(count).unwrap_or(u16::MAX))?;
                    to.u64(fback::RSN_CNT64, count, PAD)
                })
            })?;
        }
        dump.set_position([at.saturating_add(1), 0]);
    }
    Ok(())
}

/// Lists the peers that there were of late.
pub(super) fn dump_peers(dump: &mut Dump<'_>) -> Result {
    let ctx = NetCtx::of(dump.net())?;
    let [mut at, _] = dump.position();
    while let Some(peer) = ctx.peers().at(usize::try_from(at)?) {
        dump.message(GET_PEER_STATS, |message| {
            message.nest(PEER_STATS, |to| {
                to.ip(peer::ADDR, peer.address)?;
                let [client_smc, server_smc] = peer.smc;
                let [client_tcp, server_tcp] = peer.tcp;
                to.u64(peer::CLNT_SMC, client_smc, PAD)?;
                to.u64(peer::SRV_SMC, server_smc, PAD)?;
                to.u64(peer::CLNT_TCP, client_tcp, PAD)?;
                to.u64(peer::SRV_TCP, server_tcp, PAD)?;
                to.u32(
                    peer::LAST_REASON,
                    peer.last_reason.map_or(0, DeclineReason::code),
                )
            })
        })?;
        at = at.saturating_add(1);
        dump.set_position([at, 0]);
    }
    Ok(())
}
