// SPDX-License-Identifier: GPL-2.0

//! The exchanges that tell the peer our keys, and withdraw them (RFC 7609, section 3.5.5.2).

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
};

use super::{
    flow::{
        Outcome,
        TURN_MS, //
    },
    gone,
    group::LinkGroup,
    link::Link,
    rmb::{
        Rmb,
        RmbMemory, //
    },
    Deadline, //
};
use crate::proto::{
    group::{
        judge_confirm_rkey,
        pick_link,
        Awaited,
        Exchange,
        FlowId,
        KeyAnswer,
        LINK_SLOTS,
        WAIT_MS, //
    },
    ids::Rkey,
    llc::{
        Body,
        ConfirmRkey,
        DeleteRkey,
        LinkRtoken,
        Llc,
        Opcode, //
    }, //
};

/// Keys that one DELETE_RKEY of the ordinary length names.
pub(super) const KEYS_AT_ONCE: usize = 8;

/// How long the peer may take to forget keys while others wait for their turn.
const WITHDRAW_MS: u32 = 4_000;

/// How often a key is told that the peer cannot take yet.
const MOST_TRIES: u32 = 12;

/// After that many tries spare keys are withdrawn: the peer's table may be full of them.
const TRIES_BEFORE_SPARES: u32 = 3;

/// Most doublings of the pause between two tries, which begins with a millisecond.
const MOST_DOUBLINGS: u32 = 9;

/// The links over which a key is not told itself.
type Others = [Option<Arc<Link>>; LINK_SLOTS];

/// How an exchange about a key has ended.
enum Told {
    /// The peer has answered.
    Answer(KeyAnswer),
    /// There is no answer because the link has gone over which it was told, or for want of memory: once more may do.
    Again,
}

impl LinkGroup {
    /// Tells the peer the key of an RMB and waits for its answer, which says whether it takes it: for every connection
    /// but the first of a group, where the handshake does not tell all. Our turn is waited for until `deadline` at most.
    /// In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` without an answer; `ENOTCONN` when the group ends.
    pub(crate) fn confirm_rkey(self: &Arc<Self>, rmb: &Rmb, deadline: Deadline) -> Result<bool> {
        // Whatever comes of it, the peer may know the key from here on.
        if rmb.memory().mark_known() || self.handshake_tells() {
            return Ok(true);
        }
        self.tell_key(rmb.memory(), Some(deadline))
    }

    /// Tells the peer a key and says whether it took it. One that it cannot take now is told again for a while. Spare
    /// keys make room for one that a connection waits for, and that until `needed` at most. In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` without an answer; `ENOTCONN` when the group ends.
    pub(super) fn tell_key(
        self: &Arc<Self>,
        memory: &Arc<RmbMemory>,
        needed: Option<Deadline>,
    ) -> Result<bool> {
        for tries in 0..MOST_TRIES {
            let turn = needed.unwrap_or_else(|| Deadline::after(TURN_MS));
            let id = match needed {
                Some(_) => self.begin_pressing(Exchange::Rkey, turn)?,
                None => self.begin_exchange(Exchange::Rkey, turn)?,
            };
            let told = self.tell_in_turn(id, memory, turn.later(WAIT_MS));
            self.finish_exchange(id);
            match told? {
                Told::Answer(KeyAnswer::Taken) => return Ok(true),
                Told::Answer(KeyAnswer::Refused) => return Ok(false),
                Told::Answer(KeyAnswer::Later) => {
                    if turn.left().is_none() {
                        return Ok(false);
                    }
                    if tries == TRIES_BEFORE_SPARES {
                        if needed.is_none() {
                            return Ok(false);
                        }
                        self.give_up_spares();
                        // What connections have let go of makes room as well, a moment later.
                        self.tidy_rings();
                    }
                    fsleep(Delta::from_millis(1 << tries.min(MOST_DOUBLINGS)));
                }
                Told::Again => {}
            }
        }
        Ok(false)
    }

    /// The link over which keys are told, and the other ones.
    fn links_for_keys(&self) -> Result<(Arc<Link>, Others)> {
        let state = self.llc.lock();
        let via = pick_link(&Self::usable(&state)).ok_or_else(gone)?;
        let mut others = [const { None }; LINK_SLOTS];
        let via = state.link(via).ok_or_else(gone)?;
        for (place, column) in others.iter_mut().zip(state.others(Some(&via))) {
            *place = Some(column.link.clone());
        }
        Ok((via, others))
    }

    /// Tells a key on all links and waits for the answer, until `limit` at most. It is our turn, so that no link comes
    /// meanwhile.
    fn tell_in_turn(
        self: &Arc<Self>,
        id: FlowId,
        memory: &Arc<RmbMemory>,
        limit: Deadline,
    ) -> Result<Told> {
        // A link may have come since the ring was made.
        self.validate(memory)?;
        let (via, others) = self.links_for_keys()?;
        let this = memory.token_on(&via).ok_or_else(gone)?;
        let mut request = ConfirmRkey::single(this.rkey, this.vaddr);
        let mut used = 0usize;
        for link in others.iter().flatten() {
            let (Some(token), Some(number)) = (memory.token_on(link), link.known_id()) else {
                continue;
            };
            if let Some(place) = request.other_links.get_mut(used) {
                *place = LinkRtoken {
                    link_num: number.get(),
                    rkey: token.rkey,
                    vaddr: token.vaddr,
                };
                used = used.saturating_add(1);
            }
        }
        request.others = u8::try_from(used)?;
        loop {
            let body = Body::ConfirmRkey(request);
            match self.ask(id, &via, Opcode::ConfirmRkey, body, limit)? {
                None => return Ok(Told::Again),
                Some(answer) => {
                    if let Ok(Llc {
                        body: Body::ConfirmRkey(m),
                        ..
                    }) = Llc::decode(&answer)
                    {
                        if let Some(verdict) = judge_confirm_rkey(&request, &m) {
                            return Ok(Told::Answer(verdict));
                        }
                    }
                }
            }
            // A late answer to an earlier question: the right one is still to come.
        }
    }

    /// Asks over a link and waits for the answer, until `limit` at most; nothing when the link has gone before that, or
    /// the answer was lost for want of memory.
    fn ask(
        self: &Arc<Self>,
        id: FlowId,
        via: &Arc<Link>,
        opcode: Opcode,
        body: Body<'_>,
        limit: Deadline,
    ) -> Result<Option<super::state::Text>> {
        let awaited = Awaited {
            opcode,
            response: true,
            link: Some(via.column()),
        };
        self.expect(id, awaited);
        if via.is_lost() || !Self::request(via, body) {
            return if self.is_alive() {
                Ok(None)
            } else {
                Err(gone())
            };
        }
        match self.await_answer(id, via, limit, None) {
            Outcome::Message(text) => Ok(Some(text)),
            Outcome::Nothing => Ok(None),
            Outcome::TimedOut | Outcome::Pressed => Err(ETIMEDOUT),
            Outcome::Ended => Err(gone()),
        }
    }

    /// Tells the peer to forget keys of RMBs and waits for its answer. In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `ENOTCONN` when the group ends.
    pub(super) fn withdraw_keys(self: &Arc<Self>, memories: &[Arc<RmbMemory>]) -> Result {
        for _ in 0..LINK_SLOTS {
            let id = self.begin_exchange(Exchange::Rkey, Deadline::after(TURN_MS))?;
            let answered = self.withdraw_in_turn(id, memories);
            self.finish_exchange(id);
            // The answer of version 2 does not name the keys. A late one in place of this one does no harm.
            if answered?.is_some() {
                return Ok(());
            }
        }
        Err(gone())
    }

    /// Withdraws keys over some link; nothing when that has gone before the answer. It is our turn.
    fn withdraw_in_turn(
        self: &Arc<Self>,
        id: FlowId,
        memories: &[Arc<RmbMemory>],
    ) -> Result<Option<super::state::Text>> {
        let (via, _) = self.links_for_keys()?;
        let mut keys = [Rkey(0); KEYS_AT_ONCE];
        let mut used = 0usize;
        for token in memories.iter().filter_map(|m| m.token_on(&via)) {
            if let Some(place) = keys.get_mut(used) {
                *place = token.rkey;
                used = used.saturating_add(1);
            }
        }
        let keys = keys.get(..used).ok_or(EINVAL)?;
        let body = Body::DeleteRkey(DeleteRkey::request(keys));
        let limit = Deadline::after(WITHDRAW_MS);
        self.ask(id, &via, Opcode::DeleteRkey, body, limit)
    }
}
