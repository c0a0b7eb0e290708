// SPDX-License-Identifier: GPL-2.0

//! The server's part of the handshake.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    channel::Channel,
    describe,
    eids,
    path_to_peer,
    reason_of,
    Setup,
    Stop,
    LIMITS,
    WAIT_MS, //
};
use crate::{
    kapi::net::TcpSocket,
    proto::{
        clc::{
            check_confirm,
            choose,
            AcceptConfirm,
            Choice,
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
}

/// The handshake; [`server`](super::server) says what it leads to.
pub(super) fn handshake(
    tcp: &TcpSocket,
    setup: &Setup,
    channel: &mut Channel<'_>,
) -> Result<Arc<Connection>, Stop> {
    let message = channel.receive(MessageType::Proposal)?;
    let proposal = Proposal::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let path = path_to_peer(tcp, setup);
    let chosen = choose_for(&proposal, &path, setup);
    channel.version = proposal.decline_version();
    let chosen = chosen?;
    let path = path?;

    let gate = smc_llc::gate(Role::Server, &chosen.peer, WAIT_MS)
        .map_err(|_| Stop::Decline(DeclineReason::INTERR))?;
    let (draft, first_contact) = join(setup, &path, &chosen)?;
    // A place in a group that exists is taken: others need not wait for the rest.
    let gate = first_contact.then_some(gate);
    let group = draft.group();
    if !first_contact {
        group.confirm_rkey(draft.rmb())?;
    }
    let extension =
        first_contact.then(|| super::first_contact(&path, chosen.release, chosen.limits));
    let accept = describe(&draft, Kind::Accept, chosen.eid, extension);
    channel.send(|out| accept.encode(&[], out))?;

    let message = channel.receive(MessageType::Confirm)?;
    let (confirm, _) = AcceptConfirm::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let confirmed = check_confirm(&accept, &confirm)?;
    let ring = PeerRing::of(&confirm).ok_or(DeclineReason::CNFERR)?;
    group.add_peer_rmb(confirm.rkey, confirm.vaddr)?;
    draft.set_peer(ring)?;
    if first_contact {
        channel.late = true;
        group
            .connect(&smc_llc::PeerLink {
                qpn: confirm.qpn,
                psn: confirm.psn,
                gid: confirm.gid,
                mac: confirm.mac,
                mtu: confirmed.mtu,
            })
            .map_err(|_| Stop::Decline(DeclineReason::ERR_RDYLNK))?;
        if let Err(reason) = group.server_confirm_link() {
            return Err(channel.peer_decline_or(reason));
        }
    }
    drop(gate);
    Ok(draft.activate())
}

/// Chooses version, release, enterprise id and limits.
fn choose_for(
    proposal: &Proposal<'_>,
    path: &Result<smc_ib::Path, Stop>,
    setup: &Setup,
) -> Result<Chosen, Stop> {
    let eids = eids(setup)?;
    let usable = match path {
        Ok(_) => Ok(()),
        Err(Stop::Decline(reason)) => Err(*reason),
        Err(_) => Err(DeclineReason::NOSMCRDEV),
    };
    let policy = ServerPolicy {
        v2: usable,
        v1: Err(DeclineReason::VERSMISMAT),
        release: RELEASE,
        limits: LIMITS,
    };
    match choose(proposal, &policy, eids.iter())? {
        Choice::V2 {
            release,
            eid,
            limits,
        } => Ok(Chosen {
            peer: peer_key(proposal)?,
            release,
            eid,
            limits,
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
fn join(setup: &Setup, path: &smc_ib::Path, chosen: &Chosen) -> Result<(Draft, bool), Stop> {
    let want = smc_llc::Want {
        role: Role::Server,
        peer_id: chosen.peer.id,
        peer_gid: chosen.peer.gid,
        eid: chosen.eid,
        peer_qpn: None,
        path,
    };
    let (membership, first_contact) = match smc_llc::find(&want) {
        Some(membership) => (membership, false),
        None => {
            let params = smc_llc::Params {
                role: Role::Server,
                peer_id: chosen.peer.id,
                peer_gid: chosen.peer.gid,
                eid: chosen.eid,
                release: chosen.release,
                max_conns: chosen.limits.max_conns,
                max_links: chosen.limits.max_links,
            };
            let membership =
                smc_llc::create(path, params).map_err(|error| Stop::Decline(reason_of(error)))?;
            (membership, true)
        }
    };
    let draft = Draft::new(membership, setup, first_contact)
        .map_err(|error| Stop::Decline(reason_of(error)))?;
    Ok((draft, first_contact))
}
