// SPDX-License-Identifier: GPL-2.0

//! The keys of the rings on a further link in version 1, whose ADD LINK has no room for them: ADD LINK CONTINUATION, in
//! turns (RFC 7609, sections 3.5.1.6.3 and 3.5.5.2.3).

use super::{
    link::Link,
    state::LlcState, //
};
use crate::proto::{
    group::{
        AddEvent,
        TokenExchange,
        Told,
        Turn, //
    },
    ids::{
        LinkId,
        Role, //
    },
    llc::{
        AddLinkCont,
        MovedRtoken, //
    },
};

/// The keys on their way to and fro.
pub(super) struct Continuation {
    /// Our side.
    role: Role,
    /// Whose turn it is, and what remains.
    turns: TokenExchange,
    /// Client: the answer to what has come last.
    answer: Option<AddLinkCont>,
}

impl Continuation {
    /// Before the first message about the new link `link`; `keys` are ours on it.
    pub(super) fn new(role: Role, link: LinkId, keys: &[MovedRtoken]) -> Self {
        // There are no more than a peer's table has rows.
        let count = u8::try_from(keys.len()).unwrap_or(u8::MAX);
        Self {
            role,
            turns: TokenExchange::new(role, link, count),
            answer: None,
        }
    }

    /// Takes in a message of the peer: its keys on the link `new`, by those that are known on `old`.
    pub(super) fn arrived(
        &mut self,
        state: &mut LlcState,
        m: &AddLinkCont,
        (old, new): (&Link, &Link),
        keys: &[MovedRtoken],
    ) -> AddEvent {
        let mut table = state.table();
        match self
            .turns
            .arrived(m, &mut table, old.column(), new.column())
        {
            // What names no ring that is known is not used by anybody here.
            Ok(Told::Keys { .. }) => {}
            Ok(Told::Again) => return AddEvent::KeysAgain,
            Err(_) => return AddEvent::Failed,
        }
        if self.role == Role::Client {
            self.answer = self.next(keys);
        }
        AddEvent::Keys {
            more: self.turns.turn() != Turn::Done,
        }
    }

    /// The message that is to be sent.
    pub(super) fn message(&mut self, keys: &[MovedRtoken]) -> Option<AddLinkCont> {
        match self.role {
            Role::Client => self.answer.take(),
            Role::Server => self.next(keys),
        }
    }

    /// The next keys of ours.
    fn next(&mut self, keys: &[MovedRtoken]) -> Option<AddLinkCont> {
        let told = usize::from(self.turns.told());
        self.turns.message(keys.get(told..).unwrap_or(&[]))
    }
}
