// SPDX-License-Identifier: GPL-2.0

//! LLC messages: those of the peer and their answers, and the flows that begin here.
//!
//! Requests of the peer are answered in softirq, where they arrive: that takes no longer than the protocol core needs to
//! decide, and a TEST LINK can never wait behind anything. A flow that begins here sends a request and waits for the
//! answer with a limit; there is one at a time.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};

use super::{
    gone,
    group::{
        LinkGroup,
        Reason, //
    },
    ring::Rmb,
    Deadline, //
};
use crate::proto::{
    group::{
        judge_confirm_link,
        judge_confirm_rkey,
        judge_silence,
        respond,
        Context,
        KeyAnswer,
        LlcReply,
        Rtoken,
        RtokenEntry,
        RtokenTable,
        Silence,
        MAX_RTOKENS,
        WAIT_FIRST_LINK_MS,
        WAIT_MS, //
    },
    ids::{
        LinkId,
        Rkey,
        Vaddr, //
    },
    llc::{
        self,
        Body,
        ConfirmLink,
        ConfirmRkey,
        DeleteLink,
        DeleteRkey,
        Llc,
        Opcode,
        Version, //
    },
    DeclineReason, //
};

/// Keys that one DELETE_RKEY of the ordinary length names.
pub(super) const KEYS_AT_ONCE: usize = 8;

/// The column of the only link in the table of the peer's keys.
const LINK: usize = 0;

/// How long a flow waits for those before it.
const TURN_MS: u32 = 6000;

/// State of the LLC layer of a group; its lock is of level 5 and never held with another of that level.
pub(super) struct LlcState {
    /// Memory of the table of the peer's keys.
    rows: KVec<RtokenEntry>,
    /// A flow that begins here is going on.
    busy: bool,
    /// What it waits for.
    expect: Option<Opcode>,
    /// What it got.
    answer: Option<[u8; llc::LEN]>,
    /// The server's CONFIRM_LINK, which may arrive before anybody waits for it.
    confirm_link: Option<[u8; llc::LEN]>,
    /// The group ends: nothing more is sent or awaited.
    closed: bool,
}

impl LlcState {
    /// The state of a new group.
    pub(super) fn new() -> Result<Self> {
        let mut rows = KVec::with_capacity(MAX_RTOKENS, GFP_KERNEL)?;
        for _ in 0..MAX_RTOKENS {
            rows.push(RtokenEntry::EMPTY, GFP_KERNEL)?;
        }
        Ok(Self {
            rows,
            busy: false,
            expect: None,
            answer: None,
            confirm_link: None,
            closed: false,
        })
    }

    /// Whether another key of the peer can be stored.
    pub(super) fn has_room(&mut self) -> bool {
        RtokenTable::new(&mut self.rows).has_room()
    }

    /// Ends every wait.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }
}

impl LinkGroup {
    /// An LLC message has arrived; `head` is all of it but the tail of an overlong one. Softirq.
    pub(super) fn on_llc(self: &Arc<Self>, head: &[u8]) {
        let Ok(msg) = Llc::decode(head) else {
            pr_debug!("llc message of group {:#x} is malformed\n", self.id());
            return;
        };
        let ids = [self.known_link_id()];
        let context = Context {
            role: self.role(),
            link: LINK,
            links: &ids,
        };
        let mut state = self.llc.lock();
        let reply = respond(&msg, &mut RtokenTable::new(&mut state.rows), &context);
        match reply {
            LlcReply::Waiter(kind) => {
                let bytes = head.first_chunk::<{ llc::LEN }>().copied();
                if kind == Opcode::ConfirmLink && !msg.response {
                    state.confirm_link = bytes;
                } else if state.expect == Some(kind) {
                    state.answer = bytes;
                }
                drop(state);
                self.llc_event.notify_all();
            }
            LlcReply::Send(bytes) => {
                drop(state);
                self.send_llc(&bytes);
            }
            LlcReply::Terminate { answer, orderly } => {
                drop(state);
                if let Some(bytes) = answer {
                    self.send_llc(&bytes);
                }
                pr_debug!("peer ends group {:#x} (orderly: {orderly})\n", self.id());
                self.end(Reason::ByPeer);
            }
            LlcReply::Ignore(why) => {
                drop(state);
                pr_debug!("llc message of group {:#x} ignored: {why:?}\n", self.id());
            }
        }
    }

    /// Stores the key and address of a peer's RMB, as Accept or Confirm name them.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_RTOK`] when there is no room.
    pub(crate) fn add_peer_rmb(&self, rkey: Rkey, vaddr: Vaddr) -> Result<(), DeclineReason> {
        let mut state = self.llc.lock();
        RtokenTable::new(&mut state.rows)
            .add(LINK, Rtoken { rkey, vaddr })
            .map(|_| ())
            .map_err(|_| DeclineReason::ERR_RTOK)
    }

    /// Waits for the turn of a flow.
    fn begin_flow(&self, expect: Opcode) -> Result {
        let deadline = Deadline::after(TURN_MS);
        let mut state = self.llc.lock();
        while state.busy {
            if state.closed {
                return Err(gone());
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
        if state.closed {
            return Err(gone());
        }
        state.busy = true;
        state.expect = Some(expect);
        state.answer = None;
        Ok(())
    }

    /// Ends a flow.
    fn end_flow(&self) {
        let mut state = self.llc.lock();
        state.busy = false;
        state.expect = None;
        state.answer = None;
        drop(state);
        self.llc_event.notify_all();
    }

    /// Waits until `take` finds something in the state.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `ENOTCONN` when the group ends.
    fn await_llc<T>(
        &self,
        timeout_ms: u32,
        mut take: impl FnMut(&mut LlcState) -> Option<T>,
    ) -> Result<T> {
        let deadline = Deadline::after(timeout_ms);
        let mut state = self.llc.lock();
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(found);
            }
            if state.closed {
                return Err(gone());
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
    }

    /// A whole flow: sends a request and gives every answer of the same kind to `check`, until that takes one. In a
    /// work item.
    ///
    /// An answer that `check` refuses is a late one to an earlier request.
    fn ask<T>(
        self: &Arc<Self>,
        body: Body<'_>,
        mut check: impl FnMut(&Body<'_>) -> Option<T>,
    ) -> Result<T> {
        let request = Llc::request(Version::V2, body)
            .encode_short()
            .map_err(|_| EINVAL)?;
        self.begin_flow(body.opcode())?;
        let result = if self.send_llc(&request) {
            self.await_llc(WAIT_MS, |state| {
                let bytes = state.answer.take()?;
                let answer = Llc::decode(&bytes).ok()?;
                check(&answer.body)
            })
        } else {
            Err(gone())
        };
        self.end_flow();
        result
    }

    /// What CONFIRM_LINK says of this side.
    fn confirm_link_body(&self, link: LinkId) -> ConfirmLink {
        let local = self.local();
        ConfirmLink {
            mac: local.mac,
            gid: local.gid,
            qpn: local.qpn,
            link_num: link.get(),
            user_id: self.link_user_id(),
            max_links: self.params().max_links,
            max_conns: self.params().max_conns,
            no_eyecatcher: true,
        }
    }

    /// Server, first contact, after [`connect`](Self::connect): begins to send, and confirms the link with the peer. In
    /// a work item; takes at most some seconds.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_RDYLNK`], [`DeclineReason::ERR_REGBUF`]; [`DeclineReason::TIMEOUT_CL`] without an answer;
    /// [`DeclineReason::RMBE_EC`] when the peer uses eyecatchers.
    pub(crate) fn server_confirm_link(self: &Arc<Self>) -> Result<(), DeclineReason> {
        self.begin_sending()
            .map_err(|_| DeclineReason::ERR_RDYLNK)?;
        self.validate_early()
            .map_err(|_| DeclineReason::ERR_REGBUF)?;
        let body = self.confirm_link_body(self.link_id());
        let answer = self
            .ask(Body::ConfirmLink(body), |answer| match answer {
                Body::ConfirmLink(m) => Some(*m),
                _ => None,
            })
            .map_err(|_| DeclineReason::TIMEOUT_CL)?;
        judge_confirm_link(&answer, Some(self.link_id()), self.params().max_links)?;
        self.activate().map_err(|_| DeclineReason::TIMEOUT_CL)
    }

    /// Client, first contact, after [`connect`](Self::connect) and after Confirm was sent: waits for the server's
    /// CONFIRM_LINK, begins to send, and answers. In a work item; takes at most some seconds.
    ///
    /// # Errors
    ///
    /// As [`server_confirm_link`](Self::server_confirm_link).
    pub(crate) fn client_confirm_link(self: &Arc<Self>) -> Result<(), DeclineReason> {
        let bytes = self
            .await_llc(WAIT_FIRST_LINK_MS, |state| state.confirm_link.take())
            .map_err(|_| DeclineReason::TIMEOUT_CL)?;
        let Ok(Llc {
            version,
            body: Body::ConfirmLink(request),
            ..
        }) = Llc::decode(&bytes)
        else {
            return Err(DeclineReason::INTERR);
        };
        let link = judge_confirm_link(&request, None, self.params().max_links)?.id;
        self.set_link_id(link);
        self.begin_sending()
            .map_err(|_| DeclineReason::ERR_RDYLNK)?;
        self.validate_early()
            .map_err(|_| DeclineReason::ERR_REGBUF)?;
        let answer = Llc::response(version, Body::ConfirmLink(self.confirm_link_body(link)))
            .encode_short()
            .map_err(|_| DeclineReason::INTERR)?;
        // Active before the answer leaves: the server may name this group for another connection as soon as it has it.
        self.activate().map_err(|_| DeclineReason::TIMEOUT_CL)?;
        if !self.send_llc(&answer) {
            return Err(DeclineReason::TIMEOUT_CL);
        }
        Ok(())
    }

    /// Tells the peer the key of an RMB and waits for its answer: for every connection but the first of a group. In a
    /// work item.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_REGBUF`] when the peer does not take it or does not answer.
    pub(crate) fn confirm_rkey(self: &Arc<Self>, rmb: &Rmb) -> Result<(), DeclineReason> {
        // Whatever comes of it, the peer may know the key from here on.
        if self.mark_known(rmb) {
            return Ok(());
        }
        let mut taken = self.tell_key(rmb.rkey(), rmb.vaddr());
        if let Ok(false) = taken {
            // The peer's table is full: it may hold keys that wait for a connection.
            self.give_up_spares();
            taken = self.tell_key(rmb.rkey(), rmb.vaddr());
        }
        match taken {
            Ok(true) => Ok(()),
            _ => Err(DeclineReason::ERR_REGBUF),
        }
    }

    /// Tells the peer a key, waits for its answer, and says whether it took the key. In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` without an answer; `ENOTCONN` when the group ends.
    pub(super) fn tell_key(self: &Arc<Self>, rkey: Rkey, vaddr: Vaddr) -> Result<bool> {
        let request = ConfirmRkey::single(rkey, vaddr);
        self.ask(Body::ConfirmRkey(request), |answer| match answer {
            Body::ConfirmRkey(m) => {
                judge_confirm_rkey(&request, m).map(|verdict| verdict == KeyAnswer::Taken)
            }
            _ => None,
        })
    }

    /// Tells the peer to forget keys and waits for its answer. In a work item.
    pub(super) fn delete_rkeys(self: &Arc<Self>, keys: &[Rkey]) -> Result {
        self.ask(
            Body::DeleteRkey(DeleteRkey::request(keys)),
            |answer| match answer {
                // The answer of version 2 does not name the keys. A late one in place of this one does no harm.
                Body::DeleteRkey(_) => Some(()),
                _ => None,
            },
        )
    }

    /// Tells the peer that the group ends, if that can be told.
    pub(super) fn announce_end(self: &Arc<Self>, reason: Reason) {
        let Some(code) = reason.code() else {
            return;
        };
        let body = Body::DeleteLink(DeleteLink::everything(reason.orderly(), code));
        if let Ok(bytes) = Llc::request(Version::V2, body).encode_short() {
            self.send_llc(&bytes);
        }
    }

    /// Looks whether the peer is there, when nothing has come from it for long. Called every second or so.
    pub(super) fn keep_alive(self: &Arc<Self>) {
        let now = self.now_ms();
        let heard = self.last_heard.load(Acquire);
        let tested = self.test_sent.load(Acquire);
        let ago = |then: i64| u64::try_from(now.saturating_sub(then)).unwrap_or(0);
        match judge_silence(ago(heard), (tested > heard).then(|| ago(tested))) {
            Silence::Fine => return,
            Silence::Lost => {
                pr_debug!("peer of group {:#x} does not answer\n", self.id());
                self.end(Reason::LostPath);
                return;
            }
            Silence::Test => {}
        }
        let body = Body::TestLink(*b"smc-rs keepalive");
        if let Ok(bytes) = Llc::request(Version::V2, body).encode_short() {
            // Before it is sent: the answer may come at once, and must not look older than the question.
            self.test_sent.store(now, Release);
            self.send_llc(&bytes);
        }
    }

    /// Notes that the peer has been heard of. Softirq.
    pub(super) fn heard(&self) {
        self.last_heard.store(self.now_ms(), Relaxed);
    }
}
