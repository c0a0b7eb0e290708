// SPDX-License-Identifier: GPL-2.0

//! The server's part of the handshake.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    approach,
    channel::Channel,
    describe,
    eids,
    note_peer,
    reason_of,
    server_limits,
    Setup,
    Stop,
    LIMITS,
    TURN_MS, //
};
use crate::{
    kapi::net::TcpSocket,
    proto::{
        clc::{
            check_confirm,
            choose,
            AcceptConfirm,
            Choice,
            Extensions,
            Kind,
            Limits,
            MessageType,
            Proposal,
            ServerPolicy,
            RELEASE, //
        },
        ids::{
            Eid,
            Gid,
            PeerId,
            Role, //
        },
        reason::DeclineReason, //
    },
    smc_cdc::{
        Connection,
        Draft,
        PeerRing, //
    },
    smc_ib,
    smc_llc, //
};

/// What the server takes from a Proposal and its own choice.
struct Chosen {
    /// Who the client is.
    peer: smc_llc::PeerKey,
    /// The common release of version 2.
    release: u8,
    /// The common enterprise id.
    eid: Eid,
    /// The common limits.
    limits: Limits,
    /// What both can do beyond the standard.
    extensions: Extensions,
}

/// The handshake; [`server`](super::server) says what it leads to.
pub(super) fn handshake(
    tcp: &TcpSocket,
    setup: &Setup,
    channel: &mut Channel<'_>,
) -> Result<Arc<Connection>, Stop> {
    let message = channel.receive(MessageType::Proposal)?;
    let proposal = Proposal::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let start = approach(tcp, setup);
    let chosen = choose_for(&proposal, &start, setup);
    channel.version = proposal.decline_version();
    let chosen = chosen?;
    let start = start?;

    let turn = smc_llc::Deadline::after(TURN_MS);
    let gate = smc_llc::gate(Role::Server, &chosen.peer, turn)
        .map_err(|_| Stop::Decline(DeclineReason::INTERR))?;
    let (mut draft, first_contact) = join(setup, &start, &chosen)?;
    // A place in a group that exists is taken: others need not wait for the rest.
    let gate = first_contact.then_some(gate);
    let group = draft.group().clone();
    if !first_contact {
        group.confirm_rkey(draft.rmb(), turn)?;
    }
    let path = match first_contact {
        true => Some(start.path(&*setup.net)?),
        false => None,
    };
    let extension = path.as_ref().map(|path| super::first_contact(path, &group));
    // Only now: while the key was told the connection may have moved to another link.
    let (accept, link) = describe(&draft, Kind::Accept, chosen.eid, extension)?;
    channel.send(|out| accept.encode(&[], out))?;

    let message = channel.receive(MessageType::Confirm)?;
    let (confirm, _) = AcceptConfirm::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let confirmed = check_confirm(&accept, &confirm)?;
    let ring = PeerRing::of(&confirm).ok_or(DeclineReason::CNFERR)?;
    let link = if first_contact {
        link
    } else {
        // The client may have moved to another link meanwhile.
        group
            .link_to(confirm.qpn, confirm.gid)
            .ok_or(DeclineReason::CNFERR)?
    };
    draft.store_peer(&link, &ring)?;
    draft.set_peer(&link, ring)?;
    if let Some(path) = &path {
        channel.late = true;
        note_peer(&group, &confirm);
        let peer = smc_llc::PeerLink {
            qpn: confirm.qpn,
            psn: confirm.psn,
            gid: confirm.gid,
            mac: confirm.mac,
            mtu: confirmed.mtu,
        };
        let first = group
            .connect(&link, path, &peer)
            .map_err(|_| Stop::Decline(DeclineReason::ERR_RDYLNK))?;
        if let Err(reason) = first.confirm() {
            return Err(channel.peer_decline_or(reason));
        }
    }
    drop(gate);
    Ok(draft.activate())
}

/// Chooses version, release, enterprise id and limits.
fn choose_for(
    proposal: &Proposal<'_>,
    start: &Result<smc_ib::Approach, Stop>,
    setup: &Setup,
) -> Result<Chosen, Stop> {
    let eids = eids(setup)?;
    let usable = match start {
        Ok(_) => Ok(()),
        Err(Stop::Decline(reason)) => Err(*reason),
        Err(_) => Err(DeclineReason::NOSMCRDEV),
    };
    let policy = ServerPolicy {
        v2: usable,
        v1: Err(DeclineReason::VERSMISMAT),
        release: RELEASE,
        limits: LIMITS,
        extensions: Extensions::ALL,
    };
    match choose(proposal, &policy, eids.iter())? {
        Choice::V2 {
            release,
            eid,
            limits,
            extensions,
        } => Ok(Chosen {
            peer: peer_key(proposal)?,
            release,
            eid,
            limits,
            extensions,
        }),
        Choice::V1 => Err(DeclineReason::MODEUNSUPP.into()),
    }
}

/// Who the client is. The C implementation leaves its id zero in a proposal of version 2 alone; the GID counts too.
fn peer_key(proposal: &Proposal<'_>) -> Result<smc_llc::PeerKey, Stop> {
    let id: PeerId = proposal.peer_id;
    let gid: Gid = proposal
        .v2
        .as_ref()
        .map(|ext| ext.gid)
        .ok_or(DeclineReason::NOV2EXT)?;
    Ok(smc_llc::PeerKey { id, gid })
}

/// Finds a link group to this client or makes one, and a place in it; says whether it was made.
fn join(setup: &Setup, start: &smc_ib::Approach, chosen: &Chosen) -> Result<(Draft, bool), Stop> {
    let want = smc_llc::Want {
        role: Role::Server,
        peer_id: chosen.peer.id,
        peer_gid: chosen.peer.gid,
        eid: chosen.eid,
        peer_qpn: None,
        start,
    };
    let (place, first_contact) = match smc_llc::find(&want) {
        Some(place) => (place, false),
        None => {
            let limits = server_limits(start, chosen.limits);
            let params = smc_llc::Params {
                role: Role::Server,
                peer_id: chosen.peer.id,
                eid: chosen.eid,
                release: chosen.release,
                max_conns: limits.max_conns,
                max_links: limits.max_links,
                extensions: chosen.extensions,
            };
            let place =
                smc_llc::create(start, params).map_err(|error| Stop::Decline(reason_of(error)))?;
            (place, true)
        }
    };
    let draft =
        Draft::new(place, setup, first_contact).map_err(|error| Stop::Decline(reason_of(error)))?;
    Ok((draft, first_contact))
}
