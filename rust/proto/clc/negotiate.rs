// SPDX-License-Identifier: GPL-2.0

//! What the two sides agree on: version, release, enterprise id and limits.

use super::{
    AcceptConfirm,
    Extensions,
    Kind,
    Limits,
    Proposal,
    Version,
    MIN_CONNS, //
};
use crate::proto::ids::{
    Eid,
    MtuCode, //
};
use crate::proto::reason::DeclineReason;

/// What the server could do for this proposal.
#[derive(Clone, Copy, Debug)]
pub struct ServerPolicy {
    /// Whether version 2 can be used, or why not (no device, no route, IPv6 …).
    pub v2: Result<(), DeclineReason>,
    /// Whether version 1 can be used, or why not (no device, other subnet, VLAN …).
    pub v1: Result<(), DeclineReason>,
    /// The highest release of version 2 that is spoken.
    pub release: u8,
    /// The server's own limits.
    pub limits: Limits,
    /// What the server can do beyond the standard.
    pub extensions: Extensions,
}

/// What the server chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Version 1.
    V1,
    /// Version 2.
    V2 {
        /// The common release.
        release: u8,
        /// The enterprise id, the first of the client's list that the server has too.
        eid: Eid,
        /// The smaller limits of both sides; the server's own below release 1.
        limits: Limits,
        /// What both can do beyond the standard.
        extensions: Extensions,
    },
}

/// Chooses version, release, enterprise id and limits for a proposal.
///
/// Version 2 is preferred. When nothing fits, the first reason found is the one to decline with, but that the two are on
/// different networks goes before all of version 2, as with the C implementation.
///
/// # Errors
///
/// Returns the diagnosis for the Decline.
pub fn choose<I>(
    proposal: &Proposal<'_>,
    policy: &ServerPolicy,
    ueids: I,
) -> Result<Choice, DeclineReason>
where
    I: Iterator<Item = Eid> + Clone,
{
    let mut first = None;
    if proposal.offers_v2() {
        match choose_v2(proposal, policy, ueids) {
            Ok(choice) => return Ok(choice),
            Err(reason) => first = Some(reason),
        }
    }
    if proposal.offers_v1() {
        match policy.v1 {
            Ok(()) => return Ok(Choice::V1),
            Err(DeclineReason::DIFFPREFIX) => first = Some(DeclineReason::DIFFPREFIX),
            Err(reason) => first = first.or(Some(reason)),
        }
    }
    Err(first.unwrap_or(DeclineReason::NOSMCDEV))
}

/// Tries version 2.
fn choose_v2<I>(
    proposal: &Proposal<'_>,
    policy: &ServerPolicy,
    ueids: I,
) -> Result<Choice, DeclineReason>
where
    I: Iterator<Item = Eid> + Clone,
{
    policy.v2?;
    let ext = proposal.v2.as_ref().ok_or(DeclineReason::NOV2EXT)?;
    let eid = ext
        .eids
        .iter()
        .find(|theirs| ueids.clone().any(|ours| ours == *theirs))
        .ok_or(DeclineReason::NOUEID)?;
    let release = policy.release.min(ext.release);
    let limits = if release == 0 {
        policy.limits
    } else {
        clamp_limits(policy.limits, ext.limits)?
    };
    Ok(Choice::V2 {
        release,
        eid,
        limits,
        extensions: policy.extensions.common(ext.extensions),
    })
}

/// The smaller of both limits.
///
/// # Errors
///
/// Refuses fewer than 16 connections and no link at all.
pub fn clamp_limits(ours: Limits, theirs: Limits) -> Result<Limits, DeclineReason> {
    let max_conns = ours.max_conns.min(theirs.max_conns);
    let max_links = ours.max_links.min(theirs.max_links);
    if max_conns < MIN_CONNS {
        return Err(DeclineReason::MAXCONNERR);
    }
    if max_links < 1 {
        return Err(DeclineReason::MAXLINKERR);
    }
    Ok(Limits {
        max_conns,
        max_links,
    })
}

/// What the client had proposed.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Version 1 was offered.
    pub v1: bool,
    /// Version 2 was offered.
    pub v2: bool,
    /// The release that was offered.
    pub release: u8,
    /// The limits that were offered.
    pub limits: Limits,
    /// What was offered beyond the standard.
    pub extensions: Extensions,
    /// The client's own path MTU.
    pub mtu: MtuCode,
}

/// What an Accept and the offer give together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The version both use.
    pub version: Version,
    /// Whether a new link group is to be made.
    pub first_contact: bool,
    /// The release, which only a first contact carries; otherwise that of the link group counts.
    pub release: Option<u8>,
    /// The limits of a new link group: those of the client where the release has none, [`Limits::V1`] in version 1.
    pub limits: Limits,
    /// What both do beyond the standard in a new link group.
    pub extensions: Extensions,
    /// The path MTU of a new link; both sides' smaller one. It goes into the Confirm.
    pub mtu: MtuCode,
}

/// Judges an Accept against what was offered.
///
/// # Errors
///
/// Returns the diagnosis for the Decline.
pub fn check_accept<I>(
    offer: &Offer,
    eids: I,
    accept: &AcceptConfirm,
) -> Result<Agreed, DeclineReason>
where
    I: Iterator<Item = Eid>,
{
    if accept.kind != Kind::Accept {
        return Err(DeclineReason::CNFERR);
    }
    let version = accept.version();
    let offered = match version {
        Version::V1 => offer.v1,
        Version::V2 => offer.v2,
    };
    if !offered {
        return Err(DeclineReason::VERSMISMAT);
    }
    let mut limits = match version {
        Version::V1 => Limits::V1,
        Version::V2 => offer.limits,
    };
    let mut release = None;
    let mut extensions = Extensions::NONE;
    if let Some(v2) = &accept.v2 {
        let mut eids = eids;
        if !eids.any(|e| e == v2.eid) {
            return Err(DeclineReason::NOUEID);
        }
        if let Some(fce) = &v2.first_contact {
            if fce.release > offer.release {
                return Err(DeclineReason::RELEASEERR);
            }
            if fce.release >= 1 {
                limits = accepted_limits(offer.limits, fce.limits)?;
            }
            if !offer.extensions.contains(fce.extensions) {
                return Err(DeclineReason::CNFERR);
            }
            extensions = fce.extensions;
            release = Some(fce.release);
        }
    }
    let mtu = common_checks(accept, offer.mtu)?;
    Ok(Agreed {
        version,
        first_contact: accept.first_contact,
        release,
        limits,
        extensions,
        mtu,
    })
}

/// A server may lower what was offered, within the legal range, and nothing else.
fn accepted_limits(offered: Limits, got: Limits) -> Result<Limits, DeclineReason> {
    if got.max_conns < MIN_CONNS || got.max_conns > offered.max_conns {
        return Err(DeclineReason::MAXCONNERR);
    }
    if got.max_links < 1 || got.max_links > offered.max_links {
        return Err(DeclineReason::MAXLINKERR);
    }
    Ok(got)
}

/// What a Confirm gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The path MTU of a new link.
    pub mtu: MtuCode,
}

/// Judges a Confirm against the Accept that was sent: release and limits must come back as they
/// were.
///
/// # Errors
///
/// Returns the diagnosis for the Decline.
pub fn check_confirm(
    sent: &AcceptConfirm,
    confirm: &AcceptConfirm,
) -> Result<Confirmed, DeclineReason> {
    if confirm.kind != Kind::Confirm {
        return Err(DeclineReason::CNFERR);
    }
    if sent.version() != confirm.version() {
        return Err(DeclineReason::VERSMISMAT);
    }
    if let (Some(ours), Some(theirs)) = (&sent.v2, &confirm.v2) {
        if ours.eid != theirs.eid {
            return Err(DeclineReason::CNFERR);
        }
        match (&ours.first_contact, &theirs.first_contact) {
            (None, None) => {}
            (Some(ours), Some(theirs)) => {
                if ours.release != theirs.release {
                    return Err(DeclineReason::RELEASEERR);
                }
                if ours.release >= 1 {
                    if ours.limits.max_conns != theirs.limits.max_conns {
                        return Err(DeclineReason::MAXCONNERR);
                    }
                    if ours.limits.max_links != theirs.limits.max_links {
                        return Err(DeclineReason::MAXLINKERR);
                    }
                }
                if ours.extensions != theirs.extensions {
                    return Err(DeclineReason::CNFERR);
                }
            }
            // One side makes a new link group, the other does not.
            _ => return Err(DeclineReason::SYNCERR),
        }
    }
    // In version 1 the flag is reserved in the Confirm, so ours decides (RFC 7609, appendix A.2.4).
    let mut judged = *confirm;
    judged.first_contact = sent.first_contact;
    let mtu = common_checks(&judged, sent.mtu)?;
    Ok(Confirmed { mtu })
}

/// What both messages must satisfy: usable numbers for the queue pair on a first contact, in version 1 an Ethernet
/// address, and an element that lies in an address space. Returns the common path MTU.
///
/// A reserved MTU code is a reason to decline (RFC 7609, appendix C.6), but only a first contact
/// uses the code.
fn common_checks(msg: &AcceptConfirm, own_mtu: MtuCode) -> Result<MtuCode, DeclineReason> {
    msg.element().ok_or(DeclineReason::CNFERR)?;
    if !msg.first_contact {
        return Ok(own_mtu);
    }
    if !msg.qpn.is_usable() || msg.gid.is_zero() {
        return Err(DeclineReason::CNFERR);
    }
    // Version 2 asks the network for the way. In version 1 there is no other.
    if msg.version() == Version::V1 && msg.mac.is_zero() {
        return Err(DeclineReason::CNFERR);
    }
    own_mtu.agree(msg.mtu).ok_or(DeclineReason::CNFERR)
}
