// SPDX-License-Identifier: GPL-2.0

//! The exchange of keys that a further link needs in version 1 (RFC 7609, sections 3.5.1.6.3 and
//! 3.5.5.2.3, appendix A.3.3).
//!
//! ADD LINK of version 1 has no room for keys, so ADD LINK CONTINUATION messages follow it, two
//! keys in each: requests of the server and answers of the client in turn, until both have told
//! all. A side that has told all sends empty ones.

use super::flow::Awaited;
use super::rtoken::RtokenTable;
use crate::proto::ids::{
    LinkId,
    Role, //
};
use crate::proto::llc::{
    AddLinkCont,
    MovedRtoken,
    Opcode, //
};

/// How many keys one message carries.
pub const TOKENS_PER_MESSAGE: u8 = 2;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Ours: call [`TokenExchange::message`].
    Send,
    /// The peer's: give its message to [`TokenExchange::arrived`].
    Await,
    /// Nobody's: both have told all.
    Done,
}

/// What a message of the peer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Told {
    /// Keys, or none; what names a buffer that is known is stored.
    Keys {
        /// How many named none.
        unknown: u8,
    },
    /// The same as before; nothing has changed.
    Again,
}

/// Why the exchange cannot go on: the link is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is not the peer's turn.
    OutOfTurn,
    /// The message is about another link.
    OtherLink,
    /// More keys remain than the message before has left.
    Count,
}

/// The exchange on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenExchange {
    /// Our side.
    role: Role,
    /// The new link.
    link: LinkId,
    /// Keys of ours that have been told.
    told: u8,
    /// Keys of ours that remain.
    ours: u8,
    /// Keys of the peer that remain; unknown before its first message.
    theirs: Option<u8>,
    /// The peer's last message, to recognise it when it comes again.
    last: Option<AddLinkCont>,
    /// Whose turn it is.
    turn: Turn,
}

impl TokenExchange {
    /// Before the first message; `ours` is how many buffers we have to tell of.
    pub const fn new(role: Role, link: LinkId, ours: u8) -> Self {
        Self {
            role,
            link,
            told: 0,
            ours,
            theirs: None,
            last: None,
            turn: match role {
                Role::Server => Turn::Send,
                Role::Client => Turn::Await,
            },
        }
    }

    /// Whose turn it is.
    pub const fn turn(&self) -> Turn {
        self.turn
    }

    /// How many keys of ours have been told: the next one to give to [`TokenExchange::message`].
    pub const fn told(&self) -> u8 {
        self.told
    }

    /// What to give to [`super::Flows::expect`] before the message is sent: the peer's next one,
    /// or nothing when it was the last. The messages use the link in column `link`.
    pub fn awaited(&self, link: usize) -> Option<Awaited> {
        (self.turn == Turn::Await).then_some(Awaited {
            opcode: Opcode::AddLinkCont,
            response: self.role == Role::Server,
            link: Some(link),
        })
    }

    /// The next message of ours; `next` are the keys from [`TokenExchange::told`] on, at least
    /// two unless there are no more. When there are fewer than were announced, since a buffer has
    /// gone meanwhile, the count says so.
    ///
    /// Nothing when it is not our turn.
    pub fn message(&mut self, next: &[MovedRtoken]) -> Option<AddLinkCont> {
        if self.turn != Turn::Send {
            return None;
        }
        let want = self.ours.min(TOKENS_PER_MESSAGE);
        let mut m = AddLinkCont {
            link_num: self.link.get(),
            ..AddLinkCont::default()
        };
        let mut have: u8 = 0;
        for (slot, token) in m.rtokens.iter_mut().zip(next).take(usize::from(want)) {
            *slot = *token;
            have = have.saturating_add(1);
        }
        if have < want {
            self.ours = have;
        }
        m.remaining = self.ours;
        self.ours = self.ours.saturating_sub(have);
        self.told = self.told.saturating_add(have);
        // The client has the last word, and by then knows how much the server still has.
        self.turn = match self.role {
            Role::Client if self.is_over() => Turn::Done,
            _ => Turn::Await,
        };
        Some(m)
    }

    /// Takes in a message of the peer and stores its keys: `from` is the column of the link that
    /// carried it, `new` that of the new link.
    ///
    /// A peer may announce fewer than before, as the C implementation does when a buffer has
    /// gone; it never may announce more.
    ///
    /// # Errors
    ///
    /// Says what is wrong with it; nothing has changed.
    pub fn arrived(
        &mut self,
        m: &AddLinkCont,
        table: &mut RtokenTable<'_>,
        from: usize,
        new: usize,
    ) -> Result<Told, TokenError> {
        if m.link_num != self.link.get() {
            return Err(TokenError::OtherLink);
        }
        let more = self.theirs.is_some_and(|left| m.remaining > left);
        // An empty one that comes again cannot be told from the next empty one, and does no harm.
        if self.last == Some(*m) && (more || self.turn != Turn::Await) {
            return Ok(Told::Again);
        }
        if self.turn != Turn::Await {
            return Err(TokenError::OutOfTurn);
        }
        if more {
            return Err(TokenError::Count);
        }
        let mut unknown: u8 = 0;
        for token in m.valid() {
            if !table.add_moved(from, new, token) {
                unknown = unknown.saturating_add(1);
            }
        }
        self.last = Some(*m);
        self.theirs = Some(m.remaining.saturating_sub(TOKENS_PER_MESSAGE));
        // The client answers every request, also the last one.
        self.turn = match self.role {
            Role::Server if self.is_over() => Turn::Done,
            _ => Turn::Send,
        };
        Ok(Told::Keys { unknown })
    }

    /// Whether both have told all.
    fn is_over(&self) -> bool {
        self.ours == 0 && self.theirs == Some(0)
    }
}
