// SPDX-License-Identifier: GPL-2.0

//! What the peer's CONFIRM LINK, and its answers about our keys, are worth.

use crate::proto::ids::LinkId;
use crate::proto::llc::{
    ConfirmLink,
    ConfirmRkey, //
};
use crate::proto::reason::DeclineReason;

/// What CONFIRM LINK gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAgreed {
    /// The number of the link, which the server gives.
    pub id: LinkId,
    /// How many links the group may have.
    pub max_links: u8,
}

/// Judges a CONFIRM LINK or its answer.
///
/// `expected` is the number of the link where it is known already: always but for a client on a
/// first contact. `max_links` is our own limit; the smaller one counts, and zero means that the
/// peer agrees to ours (RFC 7609, appendix A.3.1). Where the handshake has negotiated the limits
/// both sides say the same.
///
/// # Errors
///
/// The reason to give a first contact up with; a further link is given up without one.
pub fn judge_confirm_link(
    m: &ConfirmLink,
    expected: Option<LinkId>,
    max_links: u8,
) -> Result<LinkAgreed, DeclineReason> {
    if !m.no_eyecatcher {
        return Err(DeclineReason::RMBE_EC);
    }
    let id = LinkId::new(m.link_num).ok_or(DeclineReason::INTERR)?;
    if expected.is_some_and(|e| e != id) {
        return Err(DeclineReason::INTERR);
    }
    let max_links = match m.max_links {
        0 => max_links,
        theirs => theirs.min(max_links),
    };
    Ok(LinkAgreed { id, max_links })
}

/// What an answer to CONFIRM RKEY says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAnswer {
    /// The peer has the key.
    Taken,
    /// It could not take it now: links are being changed, or it has no room. Tell it again, with
    /// the links there are then.
    Later,
    /// It does not take it.
    Refused,
}

/// Judges an answer to CONFIRM RKEY; nothing for a late answer to an earlier question.
pub fn judge_confirm_rkey(sent: &ConfirmRkey, answer: &ConfirmRkey) -> Option<KeyAnswer> {
    if answer.this_link.rkey != sent.this_link.rkey {
        return None;
    }
    Some(match (answer.negative, answer.retry) {
        (false, _) => KeyAnswer::Taken,
        (true, true) => KeyAnswer::Later,
        (true, false) => KeyAnswer::Refused,
    })
}
