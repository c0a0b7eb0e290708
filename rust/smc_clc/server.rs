// SPDX-License-Identifier: GPL-2.0

//! The server's part of the handshake.

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
            Version,
            RELEASE, //
        },
        ids::{
            Eid,
            Mac,
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
    /// Its Ethernet address, which matters in version 1.
    mac: Mac,
    /// The version.
    version: Version,
    /// The common release of version 2.
    release: u8,
    /// The common enterprise id, in version 2.
    eid: Option<Eid>,
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
    let (chosen, start) = negotiate(tcp, setup, channel)?;
    let turn = smc_llc::Deadline::after(TURN_MS);
    let Place {
        draft,
        gate,
        accept,
        link,
        path,
    } = take_place(setup, &start, &chosen, turn)?;
    let group = draft.group().clone();
    channel.send(|out| accept.encode(&[], out))?;

    let message = match channel.receive(MessageType::Confirm) {
        Ok(message) => message,
        Err(stop) => {
            if matches!(stop, Stop::Declined(code) if DeclineReason::from_code(code).is_passing()) {
                // The client may have lost the link, and who comes next is to be spared that.
                group.doubt();
            }
            return Err(stop);
        }
    };
    let (confirm, gids) = AcceptConfirm::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let Some(path) = path else {
        return join_late(draft, &accept, &confirm).map_err(|stop| match stop {
            // With its Confirm the client has gone on to RDMA: it would not hear of TCP any more.
            Stop::Decline(_) => Stop::Fatal(ECONNABORTED),
            stop => stop,
        });
    };
    group.note_peer_gids(gids.iter());
    let confirmed = check_confirm(&accept, &confirm)?;
    let mut draft = draft;
    let ring = PeerRing::of(&confirm).ok_or(DeclineReason::CNFERR)?;
    draft.store_peer(&link, &ring)?;
    draft.set_peer(&link, ring)?;
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
        .connect(&link, &path, &peer)
        .map_err(|_| Stop::Decline(DeclineReason::ERR_RDYLNK))?;
    if let Err(reason) = first.confirm() {
        return Err(channel.peer_decline_or(reason));
    }
    drop(gate);
    Ok(draft.activate())
}

/// The rest of a handshake for a group that exists, after the client's Confirm.
fn join_late(
    mut draft: Draft,
    accept: &AcceptConfirm,
    confirm: &AcceptConfirm,
) -> Result<Arc<Connection>, Stop> {
    check_confirm(accept, confirm)?;
    let ring = PeerRing::of(confirm).ok_or(DeclineReason::CNFERR)?;
    // The client may have moved to another link meanwhile.
    let link = draft
        .group()
        .link_to(confirm.qpn, confirm.gid)
        .ok_or(DeclineReason::CNFERR)?;
    draft.store_peer(&link, &ring)?;
    draft.set_peer(&link, ring)?;
    Ok(draft.activate())
}

/// A place in a link group, and what the client is told of it.
struct Place {
    /// The connection.
    draft: Draft,
    /// The peer's gate, where the group is new: nobody else may decide about one until that is ready.
    gate: Option<smc_llc::Gate>,
    /// The Accept.
    accept: AcceptConfirm,
    /// The link that it names.
    link: Arc<smc_llc::Link>,
    /// The way to the peer, where the group is new.
    path: Option<smc_ib::Path>,
}

/// Why there is no place.
enum NoPlace {
    /// The handshake ends.
    Stop(Stop),
    /// The group that was found has just ended, or its peer does not answer: another one may do, or a new one.
    Again,
}

impl From<Stop> for NoPlace {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<DeclineReason> for NoPlace {
    fn from(reason: DeclineReason) -> Self {
        Self::Stop(reason.into())
    }
}

/// Finds a place in a link group to this client. As long as the client has been told of none, one whose links have just
/// died is no reason to do without.
fn take_place(
    setup: &Setup,
    start: &smc_ib::Approach,
    chosen: &Chosen,
    turn: smc_llc::Deadline,
) -> Result<Place, Stop> {
    loop {
        match try_place(setup, start, chosen, turn) {
            Ok(place) => return Ok(place),
            Err(NoPlace::Stop(stop)) => return Err(stop),
            Err(NoPlace::Again) if turn.left_ms() > 0 => {}
            Err(NoPlace::Again) => return Err(DeclineReason::ERR_RDYLNK.into()),
        }
    }
}

/// Tries to find such a place.
fn try_place(
    setup: &Setup,
    start: &smc_ib::Approach,
    chosen: &Chosen,
    turn: smc_llc::Deadline,
) -> Result<Place, NoPlace> {
    let gate = smc_llc::gate(Role::Server, &chosen.peer, turn)
        .map_err(|_| NoPlace::Stop(DeclineReason::INTERR.into()))?;
    let (draft, first_contact) = join(setup, start, chosen)?;
    // A place in a group that exists is taken: others need not wait for the rest.
    let gate = first_contact.then_some(gate);
    let group = draft.group();
    if !first_contact {
        match group.confirm_rkey(draft.rmb(), turn) {
            Ok(true) => {}
            Ok(false) if group.is_alive() => return Err(DeclineReason::ERR_REGBUF.into()),
            Ok(false) => return Err(NoPlace::Again),
            Err(error) => {
                if error == ETIMEDOUT {
                    group.doubt();
                }
                return Err(NoPlace::Again);
            }
        }
    }
    let path = match first_contact {
        true => Some(start.path(&*setup.net, chosen.peer.gid, chosen.mac)?),
        false => None,
    };
    // Only now: while the key was told the connection may have moved to another link.
    match describe(&draft, Kind::Accept, chosen.eid, path.as_ref()) {
        Ok((accept, link)) => Ok(Place {
            draft,
            gate,
            accept,
            link,
            path,
        }),
        Err(_) if !first_contact => Err(NoPlace::Again),
        Err(reason) => Err(reason.into()),
    }
}

/// Judges the client's offer: what is chosen, and where the way to the client begins.
// Not part of its caller's frame on the stack.
#[inline(never)]
fn negotiate(
    tcp: &TcpSocket,
    setup: &Setup,
    channel: &mut Channel<'_>,
) -> Result<(Chosen, smc_ib::Approach), Stop> {
    let message = channel.receive(MessageType::Proposal)?;
    let proposal = Proposal::decode(message).map_err(|_| Stop::Fatal(EPROTO))?;
    let found = ends(tcp).and_then(|ends| Means::new(setup, ends, proposal.offers_v1()));
    let chosen = found.and_then(|means| {
        let chosen = choose_for(&proposal, &means, setup)?;
        let start = means.into_start(chosen.version)?;
        Ok((chosen, start))
    });
    channel.version = proposal.decline_version();
    chosen
}

/// Chooses version, release, enterprise id and limits.
fn choose_for(proposal: &Proposal<'_>, means: &Means, setup: &Setup) -> Result<Chosen, Stop> {
    let ctx = context(setup)?;
    let v1 = match (&means.v1, &proposal.prefixes) {
        (Ok(start), Some(theirs)) => theirs.check(start.local(), start.subnets(&*setup.net)),
        // Nothing here can speak it.
        _ => Err(DeclineReason::VERSMISMAT),
    };
    let policy = ServerPolicy {
        v2: means.v2.as_ref().map(|_| ()).map_err(|reason| *reason),
        v1,
        release: RELEASE,
        limits: ctx.settings().limits(),
        extensions: ctx.settings().extensions(),
    };
    let id = proposal.peer_id;
    match choose(proposal, &policy, means.eids.iter())? {
        Choice::V1 => Ok(Chosen {
            peer: smc_llc::PeerKey {
                id,
                gid: proposal.gid,
            },
            mac: proposal.mac,
            version: Version::V1,
            release: 0,
            eid: None,
            limits: Limits::V1,
            extensions: Extensions::NONE,
        }),
        Choice::V2 {
            release,
            eid,
            limits,
            extensions,
        } => Ok(Chosen {
            // The C implementation leaves its id zero in a proposal of version 2 alone; the GID counts too.
            peer: smc_llc::PeerKey {
                id,
                gid: proposal
                    .v2
                    .as_ref()
                    .map(|ext| ext.gid)
                    .ok_or(DeclineReason::NOV2EXT)?,
            },
            mac: proposal.mac,
            version: Version::V2,
            release,
            eid: Some(eid),
            limits,
            extensions,
        }),
    }
}

/// Finds a link group to this client or makes one, and a place in it; says whether it was made.
fn join(
    setup: &Setup,
    start: &smc_ib::Approach,
    chosen: &Chosen,
) -> Result<(Draft, bool), NoPlace> {
    let want = smc_llc::Want {
        role: Role::Server,
        peer_id: chosen.peer.id,
        peer_gid: chosen.peer.gid,
        peer_mac: chosen.mac,
        version: chosen.version,
        eid: chosen.eid,
        peer_qpn: None,
        start,
    };
    let (place, first_contact) = match smc_llc::find(&want) {
        Some(place) => (place, false),
        None => {
            // How many links there may be does not depend on the devices of this moment: others may come.
            let limits = chosen.limits;
            let params = smc_llc::Params {
                role: Role::Server,
                peer_id: chosen.peer.id,
                version: chosen.version,
                eid: chosen.eid,
                release: chosen.release,
                max_conns: limits.max_conns,
                max_links: limits.max_links,
                extensions: chosen.extensions,
            };
            let place = smc_llc::create(start, params, context(setup)?)
                .map_err(|error| Stop::Decline(reason_of(error)))?;
            (place, true)
        }
    };
    let draft = Draft::new(place, setup, first_contact).map_err(|error| {
        if !first_contact && error == ENOTCONN {
            NoPlace::Again
        } else {
            NoPlace::Stop(Stop::Decline(reason_of(error)))
        }
    })?;
    Ok((draft, first_contact))
}
