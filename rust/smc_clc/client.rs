// SPDX-License-Identifier: GPL-2.0

//! The client's part of the handshake.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    channel::Channel,
    describe,
    eids,
    first_contact,
    note_peer,
    path_to_peer,
    reason_of,
    Setup,
    Stop,
    LIMITS,
    TURN_MS, //
};
use crate::{
    kapi::net::TcpSocket,
    proto::{
        clc::{
            check_accept,
            AcceptConfirm,
            Agreed,
            Kind,
            MessageType,
            Offer,
            Proposal,
            ProposalV2,
            RELEASE, //
        },
        ids::{
            Eid,
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

/// The handshake; [`client`](super::client) says what it leads to.
pub(super) fn handshake(
    tcp: &TcpSocket,
    setup: &Setup,
    channel: &mut Channel<'_>,
) -> Result<Arc<Connection>, Stop> {
    let path = path_to_peer(tcp, setup)?;
    let eids = eids(setup)?;
    let offer = Offer {
        v1: false,
        v2: true,
        release: RELEASE,
        limits: LIMITS,
        mtu: path.mtu(),
    };
    let proposal = ProposalV2 {
        gid: path.gid(),
        release: RELEASE,
        limits: LIMITS,
    };
    channel.send(|out| Proposal::encode_v2(smc_ib::system_id(), &proposal, eids.iter(), out))?;

    let message = channel.receive(MessageType::Accept)?;
    let (accept, _) = AcceptConfirm::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    channel.version = accept.version();
    let agreed = check_accept(&offer, eids.iter(), &accept)?;
    if accept.extension().is_some_and(|ext| !ext.direct) && path.direct() {
        return Err(DeclineReason::NOINDIRECT.into());
    }

    let key = smc_llc::PeerKey {
        id: accept.peer_id,
        gid: accept.gid,
    };
    let turn = smc_llc::Deadline::after(TURN_MS);
    let gate = smc_llc::gate(Role::Client, &key, turn)
        .map_err(|_| Stop::Decline(DeclineReason::INTERR))?;
    let eid = accept
        .v2
        .as_ref()
        .map(|part| part.eid)
        .ok_or(DeclineReason::VERSMISMAT)?;
    let mut draft = join(setup, &path, &accept, eid, &agreed)?;
    // A place in a group that exists is taken: others need not wait for the rest.
    let gate = agreed.first_contact.then_some(gate);
    let group = draft.group().clone();
    let link = draft.link().clone();
    let ring = PeerRing::of(&accept).ok_or(DeclineReason::CNFERR)?;
    draft.store_peer(&link, &ring)?;
    let first = if agreed.first_contact {
        note_peer(&group, &accept);
        let peer = smc_llc::PeerLink {
            qpn: accept.qpn,
            psn: accept.psn,
            gid: accept.gid,
            mac: accept.mac,
            mtu: agreed.mtu,
        };
        let first = group.connect(&link, &path, &peer);
        Some(first.map_err(|_| Stop::Decline(DeclineReason::ERR_RDYLNK))?)
    } else {
        group.confirm_rkey(draft.rmb(), turn)?;
        None
    };
    draft.set_peer(&link, ring)?;

    let extension = agreed
        .first_contact
        .then(|| first_contact(&path, agreed.release.unwrap_or(0), agreed.limits));
    let (mut confirm, _) = describe(&draft, Kind::Confirm, eid, extension)?;
    confirm.mtu = agreed.mtu;
    let listed = [path.gid()];
    let gids: &[_] = if agreed.first_contact { &listed } else { &[] };
    channel.send(|out| confirm.encode(gids, out))?;
    if let Some(first) = first {
        channel.late = true;
        if let Err(reason) = first.confirm() {
            return Err(channel.peer_decline_or(reason));
        }
    }
    drop(gate);
    Ok(draft.activate())
}

/// Makes the link group, or finds the one that the server means, and a place in it.
fn join(
    setup: &Setup,
    path: &smc_ib::Path,
    accept: &AcceptConfirm,
    eid: Eid,
    agreed: &Agreed,
) -> Result<Draft, Stop> {
    let place = if agreed.first_contact {
        let params = smc_llc::Params {
            role: Role::Client,
            peer_id: accept.peer_id,
            eid,
            release: agreed.release.unwrap_or(0),
            max_conns: agreed.limits.max_conns,
            max_links: agreed.limits.max_links,
        };
        smc_llc::create(path, params).map_err(|error| Stop::Decline(reason_of(error)))?
    } else {
        let want = smc_llc::Want {
            role: Role::Client,
            peer_id: accept.peer_id,
            peer_gid: accept.gid,
            eid,
            peer_qpn: Some(accept.qpn),
            start: path,
        };
        smc_llc::find(&want).ok_or(DeclineReason::SYNCERR)?
    };
    Draft::new(place, setup, agreed.first_contact).map_err(|error| Stop::Decline(reason_of(error)))
}
