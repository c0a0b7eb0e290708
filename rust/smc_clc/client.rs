// SPDX-License-Identifier: GPL-2.0

//! The client's part of the handshake.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    channel::Channel,
    context,
    describe,
    ends,
    note_peer,
    reason_of,
    Means,
    Setup,
    Stop,
    TURN_MS, //
};
use crate::{
    kapi::net::TcpSocket,
    proto::{
        clc::{
            check_accept,
            AcceptConfirm,
            Agreed,
            Extensions,
            Kind,
            Limits,
            MessageType,
            Offer,
            OfferedSubnets,
            Proposal,
            ProposalV2,
            Version,
            RELEASE, //
        },
        ids::Role,
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
    let Offered {
        start,
        accept,
        agreed,
    } = negotiate(tcp, setup, channel)?;
    let path = match agreed.first_contact {
        true => Some(start.path(&*setup.net, accept.gid, accept.mac)?),
        false => None,
    };
    if let (Some(path), Some(extension)) = (&path, accept.extension()) {
        if path.direct() && !extension.direct {
            return Err(DeclineReason::NOINDIRECT.into());
        }
    }

    let key = smc_llc::PeerKey {
        id: accept.peer_id,
        gid: accept.gid,
    };
    let turn = smc_llc::Deadline::after(TURN_MS);
    let gate = smc_llc::gate(Role::Client, &key, turn)
        .map_err(|_| Stop::Decline(DeclineReason::INTERR))?;
    let eid = accept.v2.as_ref().map(|part| part.eid);
    let mut draft = join(setup, &start, &accept, &agreed)?;
    // A place in a group that exists is taken: others need not wait for the rest.
    let gate = agreed.first_contact.then_some(gate);
    let group = draft.group().clone();
    let link = draft.link().clone();
    let ring = PeerRing::of(&accept).ok_or(DeclineReason::CNFERR)?;
    // The group that the server means may end while we join: then it is one no more that both have.
    let in_step = |reason: DeclineReason| match &*group {
        group if agreed.first_contact || group.is_alive() => reason,
        _ => DeclineReason::SYNCERR,
    };
    draft.store_peer(&link, &ring).map_err(in_step)?;
    let first = if let Some(path) = &path {
        note_peer(&group, &accept);
        let peer = smc_llc::PeerLink {
            qpn: accept.qpn,
            psn: accept.psn,
            gid: accept.gid,
            mac: accept.mac,
            mtu: agreed.mtu,
        };
        let first = group.connect(&link, path, &peer);
        Some(first.map_err(|_| Stop::Decline(DeclineReason::ERR_RDYLNK))?)
    } else {
        match group.confirm_rkey(draft.rmb(), turn) {
            Ok(true) => None,
            told => {
                if told.is_err() {
                    // Without an answer the link may be dead. Being out of step is another matter: a C server ends the
                    // group when it hears that.
                    group.doubt();
                }
                return Err(in_step(DeclineReason::ERR_REGBUF).into());
            }
        }
    };
    draft.set_peer(&link, ring).map_err(in_step)?;

    let (mut confirm, _) = describe(&draft, Kind::Confirm, eid, path.as_ref()).map_err(in_step)?;
    confirm.mtu = agreed.mtu;
    let mut listed = KVec::new();
    if agreed.first_contact && agreed.version == Version::V2 {
        // The server learns from the list whether it helps to offer a further link.
        for gid in group.own_gids(&start, accept.gid).into_iter().flatten() {
            listed
                .push(gid, GFP_KERNEL)
                .map_err(|_| DeclineReason::MEM)?;
        }
    }
    channel.send(|out| confirm.encode(&listed, out))?;
    if let Some(first) = first {
        channel.late = true;
        if let Err(reason) = first.confirm() {
            return Err(channel.peer_decline_or(reason));
        }
    }
    drop(gate);
    Ok(draft.activate())
}

/// What the server has answered to our offer.
struct Offered {
    /// Where the way to the server begins.
    start: smc_ib::Approach,
    /// Its answer.
    accept: AcceptConfirm,
    /// What that means.
    agreed: Agreed,
}

/// Offers what this side has, and judges what the server makes of it.
// Not part of its caller's frame on the stack.
#[inline(never)]
fn negotiate(tcp: &TcpSocket, setup: &Setup, channel: &mut Channel<'_>) -> Result<Offered, Stop> {
    let means = Means::new(setup, ends(tcp)?, true)?;
    let ctx = context(setup)?;
    let limits = ctx.settings().limits();
    let extensions = ctx.settings().extensions();
    let v1 = propose(setup, &means, (limits, extensions), channel)?;

    let message = channel.receive(MessageType::Accept)?;
    let (accept, _) = AcceptConfirm::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    channel.version = accept.version();
    let start = means.start(accept.version());
    let offer = Offer {
        v1,
        v2: means.v2.is_ok(),
        release: RELEASE,
        limits,
        extensions,
        mtu: start.map_err(|_| DeclineReason::VERSMISMAT)?.mtu(),
    };
    let agreed = check_accept(&offer, means.eids.iter(), &accept)?;
    Ok(Offered {
        start: means.into_start(agreed.version)?,
        accept,
        agreed,
    })
}

/// Offers what this side has; says whether version 1 is part of that.
fn propose(
    setup: &Setup,
    means: &Means,
    (limits, extensions): (Limits, Extensions),
    channel: &mut Channel<'_>,
) -> Result<bool, Stop> {
    let start = means.v1.as_ref().ok();
    let subnets =
        start.and_then(|start| OfferedSubnets::new(start.local(), start.subnets(&*setup.net)));
    let v1 = match (start, &subnets) {
        (Some(start), Some(subnets)) => Some(subnets.proposal(start.gid(), start.mac())),
        _ => None,
    };
    let v2 = means.v2.as_ref().map(|start| ProposalV2 {
        gid: start.gid(),
        release: RELEASE,
        limits,
        extensions,
    });
    let id = smc_ib::system_id();
    let ids = means.eids.iter();
    match (&v1, &v2) {
        (v1, Ok(v2)) => {
            channel.send(|out| Proposal::encode(id, v1.as_ref(), Some((v2, ids)), out))?;
        }
        // Exactly what RFC 7609 has.
        (Some(v1), Err(_)) => channel.send(|out| Proposal::encode_v1(id, v1, out))?,
        (None, Err(reason)) => return Err((**reason).into()),
    }
    Ok(v1.is_some())
}

/// Makes the link group, or finds the one that the server means, and a place in it.
fn join(
    setup: &Setup,
    start: &smc_ib::Approach,
    accept: &AcceptConfirm,
    agreed: &Agreed,
) -> Result<Draft, Stop> {
    let eid = accept.v2.as_ref().map(|part| part.eid);
    let place = if agreed.first_contact {
        let params = smc_llc::Params {
            role: Role::Client,
            peer_id: accept.peer_id,
            version: agreed.version,
            eid,
            release: agreed.release.unwrap_or(0),
            max_conns: agreed.limits.max_conns,
            max_links: agreed.limits.max_links,
            extensions: agreed.extensions,
        };
        let ctx = context(setup)?;
        smc_llc::create(start, params, ctx).map_err(|error| Stop::Decline(reason_of(error)))?
    } else {
        let want = smc_llc::Want {
            role: Role::Client,
            peer_id: accept.peer_id,
            peer_gid: accept.gid,
            peer_mac: accept.mac,
            version: agreed.version,
            eid,
            peer_qpn: Some(accept.qpn),
            start,
        };
        smc_llc::find(&want).ok_or(DeclineReason::SYNCERR)?
    };
    Draft::new(place, setup, agreed.first_contact).map_err(|error| {
        if error == ENOTCONN && !agreed.first_contact {
            // It has just ended.
            DeclineReason::SYNCERR.into()
        } else {
            Stop::Decline(reason_of(error))
        }
    })
}
