// SPDX-License-Identifier: GPL-2.0

//! What a link answers to the LLC messages that need no flow of their own.
//!
//! This covers a group with a single link: it tells its keys, takes the peer's, echoes tests,
//! ends when told to, and refuses further links.

use super::rtoken::{
    Rtoken,
    RtokenTable, //
};
use crate::proto::ids::{
    LinkId,
    Role, //
};
use crate::proto::llc::{
    AddLink,
    Body,
    ConfirmRkey,
    DeleteLink,
    DeleteRkey,
    Llc,
    Opcode,
    ReqAddLink,
    Version,
    LEN, //
};

/// What the answer depends on.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Our side.
    pub role: Role,
    /// Column of the link that carried the message in the token table.
    pub link: usize,
    /// Number of each link by its column; `None` for a column without a link.
    pub links: &'a [Option<LinkId>],
}

/// Why a message has no consequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The sender's side never sends this.
    WrongRole,
    /// A message of a flow that is not supported here.
    Unsupported,
    /// The answer could not be written.
    Encoding,
}

/// What follows from a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LlcReply {
    /// Send these bytes on the link that carried the message.
    Send([u8; LEN]),
    /// It answers a request of ours, or belongs to a handshake that waits for it: hand it to
    /// whoever waits for this kind, or drop it when nobody does.
    Waiter(Opcode),
    /// The link group ends: send these bytes if there are any, then terminate it.
    Terminate {
        /// The answer to the peer.
        answer: Option<[u8; LEN]>,
        /// The peer ended it in good order.
        orderly: bool,
    },
    /// Count it and do nothing.
    Ignore(Ignored),
}

/// Answers a message; the token table is changed as the message says.
pub fn respond(msg: &Llc<'_>, table: &mut RtokenTable<'_>, ctx: &Context<'_>) -> LlcReply {
    if msg.response {
        return LlcReply::Waiter(msg.body.opcode());
    }
    let version = msg.version;
    match &msg.body {
        Body::TestLink(data) => send(version, Body::TestLink(*data)),
        Body::ConfirmRkey(m) => {
            let answer = confirm_rkey(m, table, ctx);
            send(version, Body::ConfirmRkey(answer))
        }
        Body::DeleteRkey(m) => {
            let answer = delete_rkey(m, version, table, ctx);
            send(version, Body::DeleteRkey(answer))
        }
        Body::DeleteLink(m) => delete_link(m, version, ctx),
        // The server starts (RFC 7609, section 3.5.1.5), so the client's handshake waits for the
        // request itself.
        Body::ConfirmLink(_) => match ctx.role {
            Role::Client => LlcReply::Waiter(Opcode::ConfirmLink),
            Role::Server => LlcReply::Ignore(Ignored::WrongRole),
        },
        Body::AddLink(m) => match ctx.role {
            Role::Client => send(version, Body::AddLink(m.rejection(AddLink::NO_ALT_PATH))),
            // From a client it is information that needs no answer (RFC 7609, 3.5.5.3).
            Role::Server => LlcReply::Ignore(Ignored::Unsupported),
        },
        Body::ReqAddLink(_) => match ctx.role {
            // The response flag alone is the refusal. The list is not sent back, so that the
            // answer has the ordinary length.
            Role::Server => send(version, Body::ReqAddLink(ReqAddLink::default())),
            Role::Client => LlcReply::Ignore(Ignored::WrongRole),
        },
        Body::AddLinkCont(_) | Body::ConfirmRkeyCont(_) => LlcReply::Ignore(Ignored::Unsupported),
    }
}

/// The answer to a CONFIRM RKEY that meets a change of links: tell it again afterwards (RFC 7609,
/// section 3.5.5.3). Nothing is stored.
pub fn refuse_for_now(msg: &Llc<'_>) -> LlcReply {
    match &msg.body {
        Body::ConfirmRkey(m) if !msg.response => {
            let answer = ConfirmRkey {
                negative: true,
                retry: true,
                ..*m
            };
            send(msg.version, Body::ConfirmRkey(answer))
        }
        _ => LlcReply::Ignore(Ignored::Unsupported),
    }
}

/// Writes an answer.
fn send(version: Version, body: Body<'_>) -> LlcReply {
    match Llc::response(version, body).encode_short() {
        Ok(bytes) => LlcReply::Send(bytes),
        Err(_) => LlcReply::Ignore(Ignored::Encoding),
    }
}

/// Stores a buffer of the peer (RFC 7609, section 3.5.5.2.1). A message that cannot be stored
/// whole is not stored at all.
fn confirm_rkey(m: &ConfirmRkey, table: &mut RtokenTable<'_>, ctx: &Context<'_>) -> ConfirmRkey {
    let mut answer = *m;
    answer.negative = false;
    answer.retry = false;
    let this = Rtoken {
        rkey: m.this_link.rkey,
        vaddr: m.this_link.vaddr,
    };
    let fits = usize::from(m.others) <= m.other_links.len();
    let stored = fits.then(|| table.add(ctx.link, this));
    match stored {
        Some(Ok(index)) => {
            for t in m.valid_others() {
                // Links we do not know (any more) are passed over.
                let column = ctx
                    .links
                    .iter()
                    .position(|l| l.is_some_and(|id| id.get() == t.link_num));
                if let Some(column) = column {
                    let token = Rtoken {
                        rkey: t.rkey,
                        vaddr: t.vaddr,
                    };
                    let _ = table.set(index, column, token);
                }
            }
        }
        _ => {
            answer.negative = true;
            answer.retry = true;
        }
    }
    answer
}

/// Forgets buffers of the peer. Unknown keys give a negative answer and no other consequence
/// (RFC 7609, section 3.5.5.2.2 and appendix A.3.7).
fn delete_rkey<'a>(
    m: &DeleteRkey<'a>,
    version: Version,
    table: &mut RtokenTable<'_>,
    ctx: &Context<'_>,
) -> DeleteRkey<'a> {
    let mut answer = *m;
    let mut mask = 0u8;
    let mut bit = 0x80u8;
    let mut unknown = 0u8;
    for rkey in m.rkeys.iter() {
        if !table.delete(ctx.link, rkey) {
            mask |= bit;
            unknown = unknown.saturating_add(1);
        }
        bit >>= 1;
    }
    answer.negative = unknown > 0;
    match version {
        Version::V1 => answer.errors = mask,
        Version::V2 => {
            answer.errors = unknown;
            // The answer has the ordinary length and lists nothing.
            answer.rkeys = Default::default();
        }
    }
    answer
}

/// The peer ends a link or the group (RFC 7609, section 3.5.4).
fn delete_link(m: &DeleteLink, version: Version, ctx: &Context<'_>) -> LlcReply {
    let known = m.all
        || ctx
            .links
            .iter()
            .any(|l| l.is_some_and(|id| id.get() == m.link_num));
    let answer = |reason: u32| DeleteLink { reason, ..*m };
    let bytes = |response: bool, body: DeleteLink| {
        let body = Body::DeleteLink(body);
        Llc {
            version,
            response,
            body,
        }
        .encode_short()
        .ok()
    };
    match ctx.role {
        Role::Client if known => LlcReply::Terminate {
            answer: bytes(true, answer(0)),
            orderly: m.orderly,
        },
        Role::Client => match bytes(true, answer(DeleteLink::UNKNOWN_LINK)) {
            Some(b) => LlcReply::Send(b),
            None => LlcReply::Ignore(Ignored::Encoding),
        },
        // A client's request is a notification, answered by a request of the server
        // (RFC 7609, appendix A.3.4). With one link the whole group ends.
        Role::Server if known => LlcReply::Terminate {
            answer: bytes(false, *m),
            orderly: m.orderly,
        },
        Role::Server => LlcReply::Ignore(Ignored::Unsupported),
    }
}
