// SPDX-License-Identifier: GPL-2.0

//! The LLC layer of a group: what arrives on its links, and the turns of exchanges. What it knows is in `state`.
//!
//! What arrives is judged in softirq by the protocol core. What it can answer at once it answers there, so that a TEST
//! LINK never waits behind anything. What belongs to an exchange goes to its mailbox, where a work item waits for it with
//! a limit; what begins an exchange is left for the work item in `change`.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Release, //
        },
        Arc, //
    },
    time::msecs_to_jiffies, //
};

use super::{
    gone,
    group::{
        LinkGroup,
        Reason, //
    },
    link::Link,
    loss::Cause,
    state::{
        Got,
        LlcState,
        ParkedOffer,
        Text,
        What, //
    },
    Deadline, //
};
use crate::{
    kapi::{
        rdma::Message,
        sync::BhGuard, //
    },
    proto::{
        clc::Extensions,
        group::{
            judge_silence,
            needs_confirm,
            refuse_for_now,
            Awaited,
            Exchange,
            FlowId,
            LinkState,
            LlcReply,
            Rtoken,
            Signs,
            Silence,
            Verdict,
            LINK_SLOTS,
            WAIT_MS, //
        },
        ids::Role,
        llc::{
            self,
            Body,
            DeleteLink,
            Llc, //
        },
        DeclineReason, //
    },
};

/// How long an exchange waits for those before it: longer than adding a link takes.
pub(super) const TURN_MS: u32 = 10_000;

/// How long a server's offer may wait for its turn: the server waits for two seconds for the answer, and finding the way to
/// its device may take the rest.
const PARKED_MS: u32 = 400;

/// How a wait has ended.
pub(super) enum Outcome {
    /// The message has come.
    Message(Text),
    /// It does not come any more, because the link has gone or for want of memory: another question may be answered.
    Nothing,
    /// It has not come in time.
    TimedOut,
    /// It has not come, and a connection waits for the end of the exchange.
    Pressed,
    /// The group ends.
    Ended,
}

/// A copy of a message. Any context.
fn text(bytes: &[u8]) -> Option<Text> {
    let mut text = KVec::with_capacity(bytes.len(), GFP_ATOMIC).ok()?;
    text.extend_from_slice(bytes, GFP_ATOMIC).ok()?;
    Some(text)
}
impl LinkGroup {
    /// An LLC message has arrived. Softirq.
    pub(super) fn on_llc(self: &Arc<Self>, link: &Arc<Link>, message: &Message<'_>) {
        let mut whole: Text = KVec::new();
        let len = message.len().min(llc::MAX_LEN);
        if len > message.head().len() {
            // Without memory it is as if it were lost on the way.
            if whole.resize(len, 0, GFP_ATOMIC).is_err() {
                return;
            }
            let got = message.copy_to(&mut whole);
            whole.truncate(got);
        }
        let bytes = if whole.is_empty() {
            message.head()
        } else {
            &whole
        };
        let Ok(msg) = Llc::decode(bytes) else {
            pr_debug!("llc message of group {:#x} is malformed\n", self.id());
            return;
        };
        let mut state = self.llc.lock();
        if state.column(link).is_none() {
            return;
        }
        // Whatever becomes of the wish, which may have to wait.
        match (&msg.body, self.role()) {
            (Body::ReqAddLink(m), Role::Server) => {
                for gid in m.gids.iter() {
                    state.note_peer_gid(gid);
                }
            }
            // A client's wish in version 1.
            (Body::AddLink(m), Role::Server) if !msg.response => state.note_peer_gid(m.gid),
            _ => {}
        }
        match state.flows.arrived(&msg, link.column()) {
            Verdict::Deliver(id) => {
                if let Some(mailbox) = state.mailbox(id) {
                    mailbox.got = Some(text(bytes).map_or(Got::Nothing, Got::Message));
                }
                drop(state);
                self.llc_event.notify_all();
            }
            Verdict::Answer | Verdict::Terminate => {
                self.answer(state, link, &msg);
            }
            Verdict::RefuseForNow => {
                drop(state);
                self.act_on(link, refuse_for_now(&msg));
            }
            Verdict::Start(kind) => {
                let kept = || text(bytes).map(|text| (text, link.column()));
                let what = match (self.role(), &msg.body) {
                    (_, Body::DeleteLink(m)) => What::Delete(*m, Some(link.column())),
                    (Role::Server, Body::ReqAddLink(_)) => What::Offer(kept()),
                    (Role::Server, _) => What::Offer(None),
                    (Role::Client, _) => match kept() {
                        Some((text, column)) => What::Take(text, column),
                        // Without memory for it an offer is refused.
                        None => return self.answer(state, link, &msg),
                    },
                };
                state.start(kind, what);
                drop(state);
                self.look_after_links();
            }
            Verdict::Parked => {
                let given_up = match (self.role(), &msg.body) {
                    // The server has no other offer under way.
                    (Role::Client, Body::AddLink(_)) => state.give_up_added(),
                    (_, Body::DeleteLink(m)) => state.give_up_numbered(m.link_num),
                    _ => false,
                };
                if given_up {
                    self.llc_event.notify_all();
                }
                if let (Role::Client, Body::AddLink(_)) = (self.role(), &msg.body) {
                    state.parked_offer = text(bytes).map(|text| ParkedOffer {
                        text,
                        column: link.column(),
                        link: link.known_id(),
                        until: Deadline::after(PARKED_MS),
                    });
                    if state.parked_offer.is_none() {
                        self.answer(state, link, &msg);
                    }
                }
            }
            Verdict::Drop(why) => {
                drop(state);
                pr_debug!("llc message of group {:#x} dropped: {why:?}\n", self.id());
            }
        }
    }

    /// Answers a request as the core says. Any context.
    fn answer(self: &Arc<Self>, mut state: BhGuard<'_, LlcState>, link: &Arc<Link>, msg: &Llc<'_>) {
        let reply = state.reply_to(msg, link.column());
        drop(state);
        self.act_on(link, reply);
    }

    /// Does what the core answers. Any context.
    pub(super) fn act_on(self: &Arc<Self>, link: &Arc<Link>, reply: LlcReply) {
        match reply {
            LlcReply::Send(bytes) => {
                link.send_llc(&bytes);
            }
            LlcReply::Terminate { answer, orderly } => {
                if let Some(bytes) = answer {
                    link.send_llc(&bytes);
                }
                self.end(Reason::ByPeer { orderly });
            }
            LlcReply::Waiter(_) => {}
            LlcReply::Ignore(why) => {
                pr_debug!("llc message of group {:#x} ignored: {why:?}\n", self.id());
            }
        }
    }

    /// Stores the key and address of a peer's RMB on a link, as Accept or Confirm name them; says whether they are new.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::ERR_RTOK`] when there is no room or the link has gone.
    pub(crate) fn add_peer_rmb(&self, link: &Link, token: Rtoken) -> Result<bool, DeclineReason> {
        let mut state = self.llc.lock();
        if state.column(link).is_none() {
            return Err(DeclineReason::ERR_RTOK);
        }
        let mut table = state.table();
        let new = !table.holds(link.column(), token);
        table
            .add(link.column(), token)
            .map(|_| new)
            .map_err(|_| DeclineReason::ERR_RTOK)
    }

    /// Forgets what [`add_peer_rmb`](Self::add_peer_rmb) has stored anew for a handshake that came to nothing: the peer
    /// does not think that it is known here. Any context.
    pub(crate) fn remove_peer_rmb(&self, link: &Link, token: Rtoken) {
        let mut state = self.llc.lock();
        if state.column(link).is_some() {
            state.table().remove(link.column(), token);
        }
    }

    /// A connection that wrote by this key of the peer's has ended. Where a key belongs to one connection it is forgotten.
    /// Any context.
    pub(crate) fn leave_peer_rmb(&self, link: &Link, token: Rtoken) {
        if self.extensions().contains(Extensions::OWN_KEYS) {
            self.remove_peer_rmb(link, token);
        }
    }

    /// Whether a key needs no more than its place in Accept or Confirm, if it counts as known: a link that is added
    /// from here on finds it. Any context.
    pub(super) fn handshake_tells(&self) -> bool {
        let state = self.llc.lock();
        let changes = state.is_changing();
        let mut links = state.columns.iter().flatten().map(|column| &column.link);
        let quiet = match (links.next(), links.next()) {
            (Some(link), None) if !changes => {
                let ms = self.now_ms().saturating_sub(link.last_heard.load(Acquire));
                Some(u32::try_from(ms).unwrap_or(u32::MAX))
            }
            _ => None,
        };
        !needs_confirm(self.extensions(), quiet)
    }

    /// Waits for the turn of an exchange of ours, until `deadline` at most. In a work item.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `ENOTCONN` when the group ends.
    pub(super) fn begin_exchange(&self, kind: Exchange, deadline: Deadline) -> Result<FlowId> {
        let mut state = self.llc.lock();
        loop {
            if state.is_closed() {
                return Err(gone());
            }
            if let Some(id) = state.begin(kind) {
                return Ok(id);
            }
            let left = deadline.left().ok_or(ETIMEDOUT)?;
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
    }

    /// The same for the key of a connection: a link that does not come is not waited for as long as it might be.
    ///
    /// # Errors
    ///
    /// As [`begin_exchange`](Self::begin_exchange).
    pub(super) fn begin_pressing(&self, kind: Exchange, deadline: Deadline) -> Result<FlowId> {
        {
            let mut state = self.llc.lock();
            if state.is_closed() {
                return Err(gone());
            }
            if let Some(id) = state.begin(kind) {
                return Ok(id);
            }
            if state.pressing == 0 {
                state.pressed_at = self.now_ms();
            }
            state.pressing = state.pressing.saturating_add(1);
        }
        self.llc_event.notify_all();
        let begun = self.begin_exchange(kind, deadline);
        let mut state = self.llc.lock();
        state.pressing = state.pressing.saturating_sub(1);
        begun
    }

    /// Says what an exchange waits for next; to be called before what provokes it is sent.
    pub(super) fn expect(&self, id: FlowId, awaited: Awaited) {
        self.llc.lock().flows.expect(id, awaited);
    }

    /// Waits for what an exchange needs. In a work item.
    pub(super) fn await_message(&self, id: FlowId, timeout_ms: u32) -> Outcome {
        self.await_pressed(id, timeout_ms, None)
    }

    /// The same, for `pressed_ms` at most from when a connection waits for the end of the exchange. In a work item.
    pub(super) fn await_pressed(
        &self,
        id: FlowId,
        timeout_ms: u32,
        pressed_ms: Option<u32>,
    ) -> Outcome {
        let deadline = Deadline::after(timeout_ms);
        let mut state = self.llc.lock();
        loop {
            match state.mailbox(id).and_then(|mailbox| mailbox.got.take()) {
                Some(Got::Message(text)) => return Outcome::Message(text),
                Some(Got::Nothing) => return Outcome::Nothing,
                None => {}
            }
            if state.is_closed() {
                return Outcome::Ended;
            }
            let Some(mut left) = deadline.left() else {
                return Outcome::TimedOut;
            };
            if let (true, Some(most)) = (state.pressing > 0, pressed_ms) {
                let pressed = self.now_ms().saturating_sub(state.pressed_at);
                let rest = i64::from(most).saturating_sub(pressed);
                match u32::try_from(rest) {
                    Ok(rest) if rest > 0 => left = left.min(msecs_to_jiffies(rest).max(1)),
                    _ => return Outcome::Pressed,
                }
            }
            let _ = self.llc_event.wait_interruptible_timeout(&mut state, left);
        }
    }

    /// Ends an exchange; what was parked begins, and others have their turn. Any context.
    pub(super) fn finish_exchange(self: &Arc<Self>, id: FlowId) {
        self.llc.lock().finish(id);
        self.llc_event.notify_all();
        self.look_after_links();
    }

    /// Tells the peer that the group ends.
    pub(super) fn announce_end(&self, link: &Arc<Link>, reason: Reason) {
        let Some(code) = reason.code() else {
            return;
        };
        let body = Body::DeleteLink(DeleteLink::everything(reason.orderly(), code));
        Self::request(link, body);
    }

    /// Sends a request of the ordinary length over a link; says whether it will be sent. Any context.
    pub(super) fn request(link: &Arc<Link>, body: Body<'_>) -> bool {
        Llc::request(link.group().version(), body)
            .encode_short()
            .is_ok_and(|bytes| link.send_llc(&bytes))
    }

    /// Sends an answer of the ordinary length over a link; says whether it will be sent. Any context.
    pub(super) fn response(link: &Arc<Link>, body: Body<'_>) -> bool {
        Llc::response(link.group().version(), body)
            .encode_short()
            .is_ok_and(|bytes| link.send_llc(&bytes))
    }

    /// Sends what the server asks, or what a client answers to that, over a link; says whether it will be sent. Any context.
    pub(super) fn ask_or_answer(link: &Arc<Link>, server: bool, body: Body<'_>) -> bool {
        if server {
            Self::request(link, body)
        } else {
            Self::response(link, body)
        }
    }

    /// Waits for what an exchange needs over the link `via`: for [`WAIT_MS`] since there was a sign of life on the link,
    /// until `limit` at most, and for `pressed_ms` at most from when a connection waits for the end of the exchange. In a
    /// work item.
    ///
    /// The message that asks, and the one that answers, stand behind all data that was posted before them; on a slow
    /// wire that takes its time, and says nothing of the peer.
    pub(super) fn await_answer(
        &self,
        id: FlowId,
        via: &Link,
        limit: Deadline,
        pressed_ms: Option<u32>,
    ) -> Outcome {
        loop {
            let before = via.signs_of_life();
            let left = limit.left_ms().clamp(WAIT_MS / 4, WAIT_MS);
            match self.await_pressed(id, left, pressed_ms) {
                Outcome::TimedOut if limit.left().is_some() && via.signs_of_life() != before => {}
                outcome => return outcome,
            }
        }
    }

    /// Looks whether the peer is there, on each link from which nothing has come for long, and whether a link is to be
    /// tried again. Called every second or so.
    pub(super) fn keep_alive(self: &Arc<Self>) {
        let retry = {
            let now = self.now_ms();
            let mut state = self.llc.lock();
            state.retry_at.take_if(|at| *at <= now).is_some()
        };
        if retry {
            self.want_link();
        }
        let idle_ms = self.ctx().settings().testlink_ms();
        for column in 0..LINK_SLOTS {
            let link = {
                let state = self.llc.lock();
                match state.columns.get(column) {
                    Some(Some(c)) if c.state == LinkState::Active => c.link.clone(),
                    _ => continue,
                }
            };
            let now = self.now_ms();
            let heard = link.last_heard.load(Acquire);
            let tested = link.test_sent.load(Acquire);
            let ago = |then: i64| u64::try_from(now.saturating_sub(then)).unwrap_or(0);
            let signs = Signs {
                heard: ago(heard),
                tested: (tested > heard).then(|| ago(tested)),
                stuck: link.send.lock().stuck_ms(now),
            };
            match judge_silence(signs, idle_ms) {
                Silence::Fine => {}
                Silence::Lost => link.broken(Cause::Silence),
                Silence::Test => link.ask_whether_there(now),
            }
        }
    }
}

impl Link {
    /// Asks the peer whether it is there; `now` on the group's clock. Any context.
    pub(super) fn ask_whether_there(self: &Arc<Self>, now: i64) {
        // Before it is sent: the answer may come at once, and must not look older than the question.
        self.test_sent.store(now, Release);
        LinkGroup::request(self, Body::TestLink(*b"smc-rs keepalive"));
    }

    /// What changes whenever something of the peer arrives, or something that was sent has arrived there.
    fn signs_of_life(&self) -> (i64, u32) {
        (self.last_heard.load(Acquire), self.send.lock().delivered())
    }
}
