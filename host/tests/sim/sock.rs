// SPDX-License-Identifier: GPL-2.0

//! Sockets: the handshake, the connection with its close machine, and the application.

use std::collections::VecDeque;

use crate::proto::cdc::{ConnFlags, Message};
use crate::proto::clc::{
    self, AcceptConfirm, Decline, Header, Kind, Limits, MessageType, Proposal,
};
use crate::proto::close::{Actions, Event, Machine, Send, SocketError, State, Timer};
use crate::proto::conn::{Conn, DoneEffects, Early, Params, RxEffects, Urgent};
use crate::proto::cursor::{Pos, RingSize};
use crate::proto::group::{End, RtokenIndex, RtokenTable};
use crate::proto::ids::{AlertToken, Rkey};
use crate::proto::size::{self, RmbeSizeCode};
use crate::proto::DeclineReason;

use super::verbs::{Back, Wr};
use super::world::{Ev, World};

/// The timer for orphans.
const ORPHAN_MS: u32 = 60_000;

/// How long a CLC message may take.
const CLC_MS: u32 = 6_000;

/// What comes over TCP.
#[derive(Clone, Debug)]
pub enum Tcp {
    Clc(Vec<u8>),
    Fin,
    Rst,
}

/// How far a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected.
    Fresh,
    /// Server: the Proposal is awaited.
    Listening,
    /// Server: another first contact is under way.
    Gate,
    /// Client: the Accept is awaited.
    Proposed,
    /// The key of our buffer is being told.
    Telling,
    /// Server: the Confirm is awaited.
    Accepted,
    /// The first link is being confirmed.
    Linking,
    /// It uses RDMA.
    Smc,
    /// It has fallen back.
    Tcp,
    /// The connection failed.
    Failed,
}

/// How an application ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Writes all, shuts its direction, reads to the end, closes.
    Half,
    /// Writes all, reads to the end, closes.
    Wait,
    /// Writes all and closes, whatever comes.
    Close,
    /// Writes all and shuts both directions.
    Both,
    /// Gives up in the middle.
    Abort,
    /// Calls what it likes, also what makes no sense.
    Wild,
    /// Closes in the middle.
    Sudden,
}

/// Where a handshake is declined on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    ServerAtProposal,
    ClientAtAccept,
    ServerAtConfirm,
    ServerHangs,
    Both,
}

/// The application.
#[derive(Clone, Debug)]
pub struct App {
    pub to_write: u64,
    pub chunk: u64,
    pub ending: Ending,
    /// Bytes after which it ends suddenly.
    pub sudden: u64,
    pub ended: bool,
    pub eof: bool,
    pub writer_sleeps: bool,
    pub reader_sleeps: bool,
    pub scheduled: bool,
    pub urgent: bool,
    /// It sleeps for so long once, in microseconds.
    pub nap: u64,
    /// It does so after it has written all.
    pub late_nap: bool,
    /// It waits for nothing but its peer's end of the TCP connection.
    pub fin_sent: bool,
    pub fin_got: bool,
}

pub struct Sock {
    pub host: usize,
    pub pair: usize,
    pub peer: usize,
    pub client: bool,
    pub phase: Phase,
    pub machine: Machine,
    pub conn: Option<Conn>,
    pub early: Early,
    pub group: Option<usize>,
    pub token: u32,
    pub col: usize,
    pub row: Option<RtokenIndex>,
    /// The peer's key as Accept names it, and on which link.
    pub peer_key: Option<(usize, Rkey)>,
    pub rmb: Option<usize>,
    pub ring: Vec<u8>,
    pub code: RmbeSizeCode,
    /// The handshake: our device, what we sent, and what the peer's messages say.
    pub device: usize,
    pub first: bool,
    pub accept: Option<AcceptConfirm>,
    pub v2_part: Option<clc::V2Part>,
    pub confirm_bytes: Vec<u8>,
    pub proposal: Vec<u8>,
    pub refuse: Option<Refuse>,
    pub clc_stamp: u64,
    pub tcp: VecDeque<Tcp>,
    pub orphan: Option<u64>,
    stamp: u64,
    waiting: u32,
    pub finished: bool,
    pub released: bool,
    pub error: Option<SocketError>,
    /// Where the two streams start, and the first sequence number.
    pub starts: [u64; 2],
    pub seq: u16,
    pub written: u64,
    pub read: u64,
    pub was_smc: bool,
    pub app: App,
    /// Why this pair may lose data.
    pub excuse: Option<&'static str>,
}

/// The byte at a position of the stream of one side of a pair.
pub fn pattern(sock: usize, pos: u64) -> u8 {
    let x = (pos ^ ((sock as u64) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x.to_be_bytes()[0] ^ x.to_be_bytes()[3]
}

/// A class of states of a connection, for the account of what was reached.
pub fn class(c: &Conn) -> &'static str {
    if c.is_dead() {
        "dead"
    } else if c.sent_close().closed {
        "closed"
    } else if c.peer_close().closed {
        "peer closed"
    } else if c.urgent_outstanding() {
        "urgent"
    } else if c.window() == 0 {
        "blocked"
    } else if c.posted() > 0 {
        "posted"
    } else if c.unsent() > 0 {
        "unsent"
    } else {
        "quiet"
    }
}

impl Sock {
    /// Nothing of it is left but the account.
    pub fn is_over(&self) -> bool {
        self.machine.state() == State::Closed
            && !self.machine.is_open()
            && (self.group.is_none() || self.released)
            && self.orphan.is_none()
    }

    pub fn describe(&self) -> String {
        format!(
            "sock of pair {} host {} client {} {:?} {:?} open {} group {:?} col {} finished {} released {} \
             error {:?} written {} read {} starts {:?} app {:?} posted {:?} tcp {:?} excuse {:?} conn {:?}",
            self.pair,
            self.host,
            self.client,
            self.phase,
            self.machine.state(),
            self.machine.is_open(),
            self.group,
            self.col,
            self.finished,
            self.released,
            self.error,
            self.written,
            self.read,
            self.starts,
            self.app,
            self.conn.as_ref().map(Conn::posted),
            self.tcp,
            self.excuse,
            self.conn,
        )
    }

    /// The size of the rings of this connection.
    fn ring_len(code: RmbeSizeCode, scale: u32) -> u32 {
        code.bytes() >> scale
    }

    /// Where our stream starts, and the peer's.
    fn start(&self, ours: bool) -> u64 {
        self.starts[usize::from(self.client != ours)]
    }
}

impl World {
    /// Makes both sockets of a pair.
    pub fn make_pair(&mut self, pair: usize) {
        let plan = self.plan.clone();
        let rng = &mut self.rng;
        let opener = if plan.both_ways {
            rng.below(2) as usize
        } else {
            0
        };
        let code = |rng: &mut crate::common::Rng| RmbeSizeCode::from_nibble(rng.below(3) as u8);
        let codes = [code(rng), code(rng)];
        // The client's stream goes into the server's element.
        let wrap = |rng: &mut crate::common::Rng, into: RmbeSizeCode| {
            let len = u64::from(Sock::ring_len(into, plan.scale));
            if plan.near_wrap {
                (len << 16) - rng.range(1, len)
            } else {
                0
            }
        };
        let starts = [wrap(rng, codes[1]), wrap(rng, codes[0])];
        let seq = if rng.one_in(3) { 0xfffa } else { 0 };
        let rude = plan.rude > 0 && rng.one_in(plan.rude);
        let mut endings = [Ending::Half; 2];
        if rng.one_in(2) {
            endings[rng.below(2) as usize] = Ending::Wait;
        }
        if rude {
            for e in &mut endings {
                *e = [
                    Ending::Half,
                    Ending::Wait,
                    Ending::Close,
                    Ending::Both,
                    Ending::Abort,
                    Ending::Sudden,
                    Ending::Wild,
                ][rng.below(7) as usize];
            }
            if endings == [Ending::Wait; 2] {
                endings[0] = Ending::Close;
            }
        }
        let nap = match rng.below(20) {
            0..=5 if rude => rng.range(50_000_000, 200_000_000),
            6 if plan.sleepy => rng.range(33_000_000, 50_000_000),
            // All connections of a crowd are there at the same time.
            _ if plan.crowd => 2_000_000,
            _ => 0,
        };
        if plan.wild {
            endings = [0, 1].map(|_| {
                [Ending::Wild, Ending::Half, Ending::Both, Ending::Wait][rng.below(4) as usize]
            });
            if endings == [Ending::Wait; 2] {
                endings[0] = Ending::Wild;
            }
        }
        let late_nap = rude && rng.one_in(2);
        let napper = rng.below(2) as usize;
        let refuse = (plan.decline > 0 && rng.one_in(plan.decline)).then(|| {
            [
                Refuse::ServerAtProposal,
                Refuse::ClientAtAccept,
                Refuse::ServerAtConfirm,
                Refuse::ServerHangs,
                Refuse::Both,
            ][rng.below(5) as usize]
        });
        for side in 0..2 {
            let amount = |rng: &mut crate::common::Rng| match rng.below(4) {
                0 => 0,
                _ => rng.range(0, plan.bytes),
            };
            let to_write = amount(rng);
            let sock = Sock {
                host: if side == 0 { opener } else { 1 - opener },
                pair,
                peer: 2 * pair + 1 - side,
                client: side == 0,
                phase: Phase::Fresh,
                machine: Machine::new(),
                conn: None,
                early: Early::new(),
                group: None,
                token: 0,
                col: 0,
                row: None,
                peer_key: None,
                rmb: None,
                ring: vec![],
                code: codes[side],
                device: 0,
                first: false,
                accept: None,
                v2_part: None,
                confirm_bytes: vec![],
                proposal: vec![],
                refuse,
                clc_stamp: 0,
                tcp: VecDeque::new(),
                orphan: None,
                stamp: 0,
                waiting: 0,
                finished: false,
                released: false,
                error: None,
                starts,
                seq,
                written: starts[side],
                read: starts[1 - side],
                was_smc: false,
                app: App {
                    to_write,
                    chunk: rng.range(1, 60),
                    ending: endings[side],
                    sudden: if plan.crowd {
                        0
                    } else {
                        rng.range(0, plan.bytes)
                    },
                    ended: false,
                    eof: false,
                    writer_sleeps: false,
                    reader_sleeps: false,
                    scheduled: false,
                    urgent: rng.one_in(6),
                    nap: if side == napper || plan.crowd { nap } else { 0 },
                    late_nap,
                    fin_sent: false,
                    fin_got: false,
                },
                excuse: None,
            };
            self.socks.push(sock);
        }
        self.sum.conns += 1;
    }

    /// The pair may lose data from now on, and why.
    pub fn excuse(&mut self, s: usize, why: &'static str) {
        let peer = self.socks[s].peer;
        for s in [s, peer] {
            self.socks[s].excuse.get_or_insert(why);
        }
    }

    fn limits(&self, h: usize) -> Limits {
        Limits {
            max_conns: self.plan.max_conns[h],
            max_links: self.plan.max_links[h],
        }
    }

    /// Arms the timer of the handshake anew.
    fn arm_clc(&mut self, s: usize, ms: u32) {
        self.socks[s].stamp += 1;
        let stamp = self.socks[s].stamp;
        self.socks[s].clc_stamp = stamp;
        self.after_ms(ms, Ev::Clc(s, stamp));
    }

    fn stop_clc(&mut self, s: usize) {
        self.socks[s].clc_stamp = 0;
    }

    // The machine.

    /// Feeds the close machine and does what it says.
    pub fn event(&mut self, s: usize, event: Event) -> bool {
        let from = self.socks[s].machine.state();
        let Ok(o) = self.socks[s].machine.transition(event) else {
            let call = matches!(event, Event::ShutdownWrite | Event::ShutdownBoth { .. });
            assert!(call, "{from:?} {event:?} {}", self.socks[s].describe());
            return false;
        };
        self.reach.hit("close", from, event);
        self.act(s, o.actions);
        true
    }

    fn act(&mut self, s: usize, a: Actions) {
        let name = |x: &dyn std::fmt::Debug| format!("{x:?}");
        if let Some(send) = a.send {
            self.reach.hit("effect", "send", name(&send));
        }
        if let Some(tcp) = a.tcp {
            self.reach.hit("effect", "tcp", name(&tcp));
        }
        if let Some(error) = a.error {
            self.reach.hit("effect", "error", name(&error));
            let sock = &mut self.socks[s];
            sock.error.get_or_insert(error);
        }
        match a.timer {
            Some(Timer::Arm) => {
                self.reach.hit("effect", "timer", "Arm");
                if self.socks[s].orphan.is_some() && self.rng.one_in(8) {
                    // The one before was running out already.
                    self.soon(10, Ev::Late(s));
                }
                self.arm_orphan(s);
            }
            Some(Timer::Stop) => {
                self.reach.hit("effect", "timer", "Stop");
                self.socks[s].orphan = None;
                if self.rng.one_in(16) {
                    // It was running out already.
                    self.soon(10, Ev::Late(s));
                }
            }
            None => {}
        }
        if a.finish {
            assert!(!self.socks[s].finished, "finished twice");
            self.socks[s].finished = true;
        }
        if let (Some(send), Some(conn)) = (a.send, self.socks[s].conn.as_mut()) {
            let op = match send {
                Send::Done => "request done",
                Send::Closed => "request closed",
                Send::Abort => "request abort",
            };
            self.reach.hit("conn", class(conn), op);
            match send {
                Send::Done => conn.request_close(ConnFlags {
                    sending_done: true,
                    ..ConnFlags::default()
                }),
                Send::Closed => conn.request_close(ConnFlags {
                    closed: true,
                    ..ConnFlags::default()
                }),
                Send::Abort => conn.request_abort(),
            }
            self.push(s);
        }
        match a.tcp {
            Some(crate::proto::close::Tcp::Shutdown) => self.tcp_send(s, Tcp::Fin),
            Some(crate::proto::close::Tcp::Reset) => self.tcp_send(s, Tcp::Rst),
            None => {}
        }
        if a.wake {
            self.wake(s, true, true);
        }
        self.release_if_over(s);
    }

    fn arm_orphan(&mut self, s: usize) {
        let sock = &mut self.socks[s];
        sock.waiting = sock.conn.as_ref().map_or(0, Conn::unfinished);
        sock.stamp += 1;
        let stamp = sock.stamp;
        sock.orphan = Some(stamp);
        self.after_ms(ORPHAN_MS, Ev::Orphan(s, stamp));
    }

    /// The peer of an orphan has been silent for long.
    pub fn orphan_timeout(&mut self, s: usize, stamp: u64) {
        if self.socks[s].orphan != Some(stamp) {
            return;
        }
        self.socks[s].orphan = None;
        let left = self.socks[s].conn.as_ref().map_or(0, Conn::unfinished);
        if left < self.socks[s].waiting {
            return self.arm_orphan(s);
        }
        assert!(
            self.socks[s].excuse.is_some(),
            "an orphan waits for ever: {}\n{}",
            self.socks[s].describe(),
            self.socks[self.socks[s].peer].describe()
        );
        self.event(s, Event::Timeout);
    }

    /// A timer that was being stopped has run out.
    pub fn late_timeout(&mut self, s: usize) {
        self.event(s, Event::Timeout);
    }

    /// Gives the connection back once it is over and nothing is on its way.
    pub fn release_if_over(&mut self, s: usize) {
        let sock = &self.socks[s];
        let over = sock.finished
            && sock.phase == Phase::Smc
            && !sock.released
            && sock.conn.as_ref().is_none_or(Conn::is_settled);
        if over && sock.group.is_some() {
            self.release(s);
        }
    }

    /// The connection leaves its group.
    fn release(&mut self, s: usize) {
        let sock = &mut self.socks[s];
        let Some(g) = sock.group else {
            return;
        };
        if sock.released {
            return;
        }
        sock.released = true;
        sock.orphan = None;
        let h = sock.host;
        let token = sock.token;
        let clean = sock.error.is_none()
            && sock.conn.as_ref().is_some_and(|c| {
                c.peer_close().closed && c.sent_close().closed && !c.peer_close().abort
            });
        if let Some(rmb) = sock.rmb {
            self.verbs.rmbs[rmb].clean = clean;
            self.retire(h, g, rmb);
        }
        let now = self.now;
        let group = self.grp(h, g);
        group.conns.remove(&token);
        group.members -= 1;
        group.idle_since = now;
    }

    // Sending and receiving.

    /// Plans and posts what is due as long as there are slots.
    pub fn push(&mut self, s: usize) {
        for posted in 0.. {
            assert!(
                posted < 100_000,
                "plans without end: {}",
                self.socks[s].describe()
            );
            let sock = &mut self.socks[s];
            let (h, col) = (sock.host, sock.col);
            let (Some(g), false) = (sock.group, sock.released) else {
                return;
            };
            let Some(conn) = sock.conn.as_mut() else {
                return;
            };
            if !conn.has_work() {
                return;
            }
            let Some(link) = &self.hosts[h].groups[g].links[col] else {
                return;
            };
            let q = link.qp;
            let qp = &mut self.verbs.qps[q];
            if qp.destroyed || !qp.sends {
                return;
            }
            if qp.used >= self.plan.slots {
                if !qp.pending.contains(&s) {
                    qp.pending.push_back(s);
                }
                self.reach.hit("conn", class(conn), "no slot");
                return;
            }
            let key = sock.row.and_then(|r| {
                let table = RtokenTable::new(&mut self.hosts[h].groups[g].rows);
                table.get(r, col)
            });
            if key.is_none() && conn.unsent() > 0 && !conn.peer_close().any() {
                // The peer has given its buffer up already.
                assert!(
                    sock.excuse.is_some(),
                    "no key of the peer: {}",
                    sock.describe()
                );
                if sock.machine.state() != State::PeerAbortWait {
                    self.reach.hit("effect", "key", "withdrawn");
                    self.event(s, Event::LocalAbort);
                    return;
                }
            }
            let data = key.is_some() && !conn.should_hold(false, self.plan.autocork);
            let before = class(conn);
            let Some(plan) = conn.plan_tx(data) else {
                self.reach.hit("conn", before, "hold");
                return;
            };
            let what = if plan.data_len() > 0 {
                "plan data"
            } else {
                "plan message"
            };
            self.reach.hit("conn", before, what);
            self.check_plan(s, &plan);
            let (key, base) = key.map_or((0, 0), |t| (t.rkey.0, t.vaddr.0));
            self.post_plan(s, q, plan, key, base);
        }
    }

    fn post_plan(
        &mut self,
        s: usize,
        q: usize,
        plan: crate::proto::conn::TxPlan,
        key: u32,
        base: u64,
    ) {
        self.verbs.qps[q].used += 1;
        let data = (plan.data_len() > 0).then_some((s, plan, key, base));
        self.verbs.qps[q].sq.push_back(Wr {
            data,
            message: plan.cdc.encode().to_vec(),
            back: Back::Plan {
                sock: s,
                cookie: plan.token.to_cookie(),
            },
        });
        self.kick(q);
    }

    fn check_plan(&self, s: usize, plan: &crate::proto::conn::TxPlan) {
        let conn = self.socks[s].conn.as_ref().unwrap();
        let p = conn.params();
        for w in plan.writes() {
            assert!(
                w.len > 0 && w.local + w.len <= p.send_ring.get(),
                "{plan:?}"
            );
            assert!(w.remote + w.len <= p.peer_ring.get(), "{plan:?}");
        }
        assert!(plan.cdc.prod.count < p.peer_ring.get());
        assert!(plan.cdc.cons.count < p.recv_ring.get());
    }

    /// A chain has come back.
    pub fn plan_done(&mut self, s: usize, cookie: u64, ok: bool) {
        let Some(conn) = self.socks[s].conn.as_mut() else {
            return;
        };
        let token = conn.token_of(cookie);
        self.reach
            .hit("conn", class(conn), if ok { "done" } else { "failed" });
        let fx: DoneEffects = if ok {
            conn.tx_done(token)
        } else {
            conn.tx_failed(token)
        };
        for (on, name) in [
            (fx.freed > 0, "freed"),
            (fx.push, "push"),
            (fx.drained, "drained"),
            (fx.idle, "idle"),
        ] {
            if on {
                self.reach.hit("effect", "done", name);
            }
        }
        if fx.push {
            self.push(s);
        }
        if fx.freed > 0 {
            self.wake(s, false, true);
        }
        self.release_if_over(s);
    }

    /// A message of the peer has come.
    pub fn on_cdc(&mut self, s: usize, msg: &Message) {
        let sock = &mut self.socks[s];
        let Some(conn) = sock.conn.as_mut() else {
            sock.early.keep(msg);
            self.reach.hit("effect", "cdc", "early");
            return;
        };
        let op = if msg.prod_flags.failover_validation {
            "validation"
        } else {
            "message"
        };
        self.reach.hit("conn", class(conn), op);
        let before = conn.clone();
        match conn.on_cdc(msg) {
            Ok(fx) => self.received(s, fx),
            Err(v) => {
                assert_eq!(*conn, before, "a refused message changed the connection");
                panic!(
                    "the peer broke a rule: {v:?} {msg:?} {}",
                    self.socks[s].describe()
                );
            }
        }
    }

    fn received(&mut self, s: usize, fx: RxEffects) {
        for (on, name) in [
            (fx.arrived > 0, "arrived"),
            (fx.push, "push"),
            (fx.urgent_read, "urgent read"),
            (fx.urgent.is_some(), "urgent"),
            (fx.close.sending_done, "peer done"),
            (fx.close.closed, "peer closed"),
            (fx.close.abort, "peer abort"),
            (fx.stale, "stale"),
        ] {
            if on {
                self.reach.hit("effect", "received", name);
            }
        }
        if fx.stale {
            return;
        }
        let mut push = fx.push || fx.close.any();
        let sock = &mut self.socks[s];
        if let Some(Urgent::Present { offset }) = fx.urgent {
            let byte = self.verbs.rmbs[sock.rmb.unwrap()].bytes[offset as usize];
            push |= sock.conn.as_mut().unwrap().urgent_arrived(byte);
        }
        let close = fx.close;
        for (set, event) in [
            (close.sending_done && !close.abort, Event::PeerDone),
            (close.closed && !close.abort, Event::PeerClosed),
            (close.abort, Event::PeerAbort),
        ] {
            if set {
                self.event(s, event);
            }
        }
        self.wake(s, fx.arrived > 0 || fx.urgent.is_some(), fx.urgent_read);
        if push {
            self.push(s);
        }
        self.release_if_over(s);
    }

    /// The connection moves to another link.
    pub fn move_conn(&mut self, s: usize, to: usize) {
        let (h, g) = (self.socks[s].host, self.socks[s].group.unwrap());
        self.socks[s].col = to;
        let Some(conn) = self.socks[s].conn.as_mut() else {
            return;
        };
        self.sum.failovers += 1;
        self.reach.hit("conn", class(conn), "failover");
        let first = conn.begin_failover();
        if let Some(msg) = first {
            let q = self.hosts[h].groups[g].links[to].as_ref().unwrap().qp;
            self.verbs.qps[q].sq.push_back(Wr {
                data: None,
                message: msg.encode().to_vec(),
                back: Back::Nobody,
            });
            self.kick(q);
            self.push(s);
        }
    }

    /// The peer has no buffer on any other link.
    pub fn cannot_move(&mut self, s: usize) {
        self.excuse(s, "no key on another link");
        self.reach.hit("effect", "key", "missing on another link");
        match self.socks[s].phase {
            Phase::Smc if self.socks[s].machine.state() != State::Closed => {
                self.event(s, Event::LocalAbort);
            }
            Phase::Smc => {}
            _ => self.fatal(s),
        }
    }

    /// The group of a connection has ended.
    pub fn link_died(&mut self, s: usize) {
        self.excuse(s, "its group ended");
        match self.socks[s].phase {
            Phase::Smc => {
                if let Some(conn) = self.socks[s].conn.as_mut() {
                    self.reach.hit("conn", class(conn), "kill");
                    conn.kill();
                }
                self.event(s, Event::LocalAbort);
                self.event(s, Event::AbortDone);
                self.wake(s, true, true);
                self.release_if_over(s);
            }
            Phase::Telling => self.decline(s, DeclineReason::ERR_REGBUF),
            Phase::Accepted if self.socks[s].first => self.decline(s, DeclineReason::ERR_RDYLNK),
            Phase::Accepted => self.fatal(s),
            _ => {}
        }
    }

    // The application.

    /// Wakes whoever sleeps.
    pub fn wake(&mut self, s: usize, reader: bool, writer: bool) {
        let app = &mut self.socks[s].app;
        let mut up = false;
        if reader && app.reader_sleeps {
            app.reader_sleeps = false;
            up = true;
        }
        if writer && app.writer_sleeps {
            app.writer_sleeps = false;
            up = true;
        }
        if up {
            self.schedule(s);
        }
    }

    /// The application runs soon.
    pub fn schedule(&mut self, s: usize) {
        let app = &mut self.socks[s].app;
        if !app.scheduled {
            app.scheduled = true;
            self.soon(self.plan.delays.think, Ev::App(s));
        }
    }

    pub fn app(&mut self, s: usize) {
        self.socks[s].app.scheduled = false;
        match self.socks[s].phase {
            Phase::Smc => self.app_smc(s),
            Phase::Tcp => self.app_tcp(s),
            Phase::Failed if self.socks[s].machine.is_open() => {
                self.event(s, Event::Close { unread: false });
            }
            Phase::Fresh | Phase::Failed => {}
            // It does not wait for the end of the handshake.
            _ if self.socks[s].app.ending == Ending::Sudden => self.give_up_early(s),
            _ => {}
        }
    }

    /// A fallen back connection: both end it.
    fn app_tcp(&mut self, s: usize) {
        if !self.socks[s].app.fin_sent {
            self.socks[s].app.fin_sent = true;
            self.tcp_send(s, Tcp::Fin);
        }
        if self.socks[s].app.fin_got && self.socks[s].machine.is_open() {
            self.event(s, Event::FallbackEnded);
            self.event(s, Event::Close { unread: false });
        }
    }

    fn app_smc(&mut self, s: usize) {
        if !self.socks[s].machine.is_open() {
            return;
        }
        let sock = &self.socks[s];
        let wild = sock.app.ending == Ending::Wild;
        if sock.error.is_some() || sock.machine.state().is_over() {
            if wild && self.rng.one_in(2) {
                self.wild_call(s);
                return self.schedule(s);
            }
            return self.close(s);
        }
        let start = sock.start(true);
        let sent = sock.written - start;
        let so_far = sent.max(sock.read - sock.start(false));
        let app = &sock.app;
        match app.ending {
            Ending::Abort if so_far >= app.sudden => {
                self.excuse(s, "an application gave up");
                self.event(s, Event::LocalAbort);
                return self.schedule(s);
            }
            Ending::Sudden if so_far >= app.sudden => {
                self.excuse(s, "an application closed suddenly");
                return self.close(s);
            }
            _ => {}
        }
        let tired = if app.late_nap {
            app.ended
        } else {
            so_far >= app.sudden.min(app.to_write)
        };
        if app.nap > 0 && tired {
            let nap = std::mem::take(&mut self.socks[s].app.nap);
            if nap >= 50_000_000 {
                self.excuse(s, "an application slept for long");
            }
            // Nothing wakes it.
            self.socks[s].app.scheduled = true;
            return self.at(self.now + nap, Ev::App(s));
        }
        if wild && self.rng.one_in(6) {
            self.wild_call(s);
            return self.schedule(s);
        }
        let mut busy = self.app_write(s);
        busy |= self.app_read(s);
        let sock = &self.socks[s];
        let all = sock.written - start >= sock.app.to_write || !self.may_write(s);
        if all && !sock.app.ended {
            self.socks[s].app.ended = true;
            busy = true;
            match self.socks[s].app.ending {
                Ending::Half => {
                    self.event(s, Event::ShutdownWrite);
                }
                Ending::Close => {
                    self.excuse(s, "an application closed without reading");
                    return self.close(s);
                }
                Ending::Both => {
                    self.excuse(s, "an application shut both directions");
                    let unread = self.unread(s);
                    self.event(s, Event::ShutdownBoth { unread });
                }
                Ending::Abort | Ending::Sudden => {
                    self.excuse(s, "an application ended early");
                    return self.close(s);
                }
                Ending::Wild => self.excuse(s, "an application is wild"),
                Ending::Wait => {}
            }
        }
        let wild_end = wild && self.socks[s].app.ended;
        if self.socks[s].app.ended && self.socks[s].app.eof && !(wild && self.rng.one_in(2)) {
            return self.close(s);
        }
        if wild_end {
            self.wild_call(s);
            if self.rng.one_in(12) {
                return self.close(s);
            }
            return self.schedule(s);
        }
        if self.socks[s].error.is_some() || self.socks[s].machine.state().is_over() {
            busy = true;
        }
        if busy {
            self.schedule(s);
        }
    }

    /// Any call at any time.
    fn wild_call(&mut self, s: usize) {
        self.excuse(s, "an application is wild");
        let unread = self.unread(s);
        match self.rng.below(14) {
            0..=4 => {
                self.event(s, Event::ShutdownWrite);
            }
            5..=8 => {
                self.event(s, Event::ShutdownBoth { unread });
                if self.rng.one_in(2) {
                    self.close(s);
                }
            }
            9 => {
                self.event(s, Event::LocalAbort);
            }
            10 => self.close(s),
            _ => {}
        }
    }

    fn may_write(&self, s: usize) -> bool {
        let sock = &self.socks[s];
        let conn = sock.conn.as_ref().unwrap();
        let peer = conn.peer_close();
        !conn.is_dead() && !peer.closed && !peer.abort && sock.machine.state().may_send()
    }

    fn unread(&self, s: usize) -> bool {
        self.socks[s]
            .conn
            .as_ref()
            .is_some_and(|c| c.readable_len() > 0)
    }

    fn app_write(&mut self, s: usize) -> bool {
        let start = self.socks[s].start(true);
        let left = self.socks[s]
            .app
            .to_write
            .saturating_sub(self.socks[s].written - start);
        if left == 0
            || !self.may_write(s)
            || self.socks[s].app.writer_sleeps
            || self.socks[s].app.ended
        {
            return false;
        }
        let want = self.rng.range(1, self.socks[s].app.chunk).min(left) as u32;
        let urgent = self.socks[s].app.urgent && self.rng.one_in(4);
        let sock = &mut self.socks[s];
        let conn = sock.conn.as_mut().unwrap();
        if urgent && conn.urgent_outstanding() {
            sock.app.writer_sleeps = true;
            return false;
        }
        let ranges = conn.reserve_write(want);
        let mut at = sock.written;
        for r in ranges.iter() {
            for b in &mut sock.ring[r.offset as usize..(r.offset + r.len) as usize] {
                *b = pattern(s, at);
                at += 1;
            }
        }
        if ranges.total() == 0 {
            sock.app.writer_sleeps = true;
            self.reach.hit("conn", class(conn), "write waits");
            return false;
        }
        self.reach.hit("conn", class(conn), "write");
        conn.commit_write(ranges.total()).unwrap();
        sock.written = at;
        self.sum.bytes += u64::from(ranges.total());
        if urgent && ranges.total() == want {
            self.reach.hit("conn", class(conn), "mark urgent");
            conn.mark_urgent().unwrap();
        }
        self.push(s);
        true
    }

    fn app_read(&mut self, s: usize) -> bool {
        if self.socks[s].app.eof || self.socks[s].app.reader_sleeps {
            return false;
        }
        let most = self.rng.range(1, self.socks[s].app.chunk);
        let sock = &mut self.socks[s];
        let peer = sock.peer;
        let conn = sock.conn.as_mut().unwrap();
        let bytes = &self.verbs.rmbs[sock.rmb.unwrap()].bytes;
        let mut got = 0u32;
        // Urgent bytes are read where they stand.
        for r in conn.readable().iter() {
            for b in &bytes[r.offset as usize..(r.offset + r.len) as usize] {
                if u64::from(got) >= most {
                    break;
                }
                assert_eq!(
                    *b,
                    pattern(peer, sock.read),
                    "byte {} of socket {s}",
                    sock.read
                );
                sock.read += 1;
                got += 1;
            }
        }
        if got > 0 {
            self.reach.hit("conn", class(conn), "read");
            let push = conn.consume(got).unwrap().push;
            if push {
                self.reach.hit("effect", "read", "push");
                self.push(s);
            }
            return true;
        }
        let close = conn.peer_close();
        let ended = close.sending_done || close.closed || conn.is_dead();
        if ended {
            sock.app.eof = true;
            return true;
        }
        sock.app.reader_sleeps = true;
        false
    }

    fn close(&mut self, s: usize) {
        if self.socks[s].machine.is_open() {
            let unread = self.unread(s);
            if unread && self.socks[s].error.is_none() {
                self.excuse(s, "an application closed over unread data");
            }
            self.socks[s].app.ended = true;
            self.event(s, Event::Close { unread });
        }
    }

    // TCP.

    pub fn tcp_arrives(&mut self, s: usize) {
        let Some(what) = self.socks[s].tcp.pop_front() else {
            return;
        };
        match what {
            Tcp::Clc(bytes) => self.on_clc(s, &bytes),
            Tcp::Fin => {
                self.socks[s].app.fin_got = true;
                if self.socks[s].phase == Phase::Tcp {
                    self.schedule(s);
                }
            }
            Tcp::Rst => {
                self.excuse(s, "the TCP connection was reset");
                match self.socks[s].phase {
                    Phase::Smc => {
                        // RFC 7609, section 4.8.2.
                        if self.socks[s].machine.state() != State::Closed {
                            self.event(s, Event::PeerAbort);
                        }
                    }
                    Phase::Tcp => {
                        self.socks[s].app.fin_got = true;
                        self.schedule(s);
                    }
                    Phase::Failed => {}
                    _ => self.fail(s, false),
                }
            }
        }
    }

    // The handshake; the decisions are in `shake`.

    /// The connection is established.
    pub fn established(&mut self, s: usize) {
        self.stop_clc(s);
        self.socks[s].phase = Phase::Smc;
        self.socks[s].was_smc = true;
        self.sum.smc += 1;
        if self.socks[s].machine.state() != State::Closed {
            self.event(s, Event::Established);
        }
        self.schedule(s);
    }

    /// The application closes before the handshake is over.
    fn give_up_early(&mut self, s: usize) {
        self.excuse(s, "an application did not wait for the handshake");
        self.event(s, Event::Close { unread: false });
        self.fail(s, true);
    }

    /// Goes on with TCP, and tells the peer so.
    pub fn decline(&mut self, s: usize, reason: DeclineReason) {
        self.reach
            .hit("decline", self.socks[s].phase, reason.name());
        let h = self.socks[s].host;
        let id = self.hosts[h].peer_id;
        let mut out = [0; 64];
        let n = Decline::new(clc::Version::V2, id, reason)
            .encode(&mut out)
            .unwrap();
        self.tcp_send(s, Tcp::Clc(out[..n].to_vec()));
        self.fall_back(s);
    }

    /// Goes on with TCP.
    fn fall_back(&mut self, s: usize) {
        self.excuse(s, "fell back");
        self.leave_handshake(s);
        let touched = self.socks[s].machine.state() != State::Init;
        if touched {
            // The peer believes in RDMA already: this cannot go on.
            return self.fail(s, true);
        }
        self.socks[s].phase = Phase::Tcp;
        self.event(s, Event::Established);
        self.schedule(s);
    }

    /// Ends the connection; the peer is told.
    pub fn fatal(&mut self, s: usize) {
        self.fail(s, true);
    }

    fn fail(&mut self, s: usize, tell: bool) {
        self.excuse(s, "the handshake failed");
        self.leave_handshake(s);
        if tell {
            self.tcp_send(s, Tcp::Rst);
        }
        self.socks[s].phase = Phase::Failed;
        if self.socks[s].machine.state() != State::Closed {
            self.event(s, Event::HandshakeFailed);
        }
        self.schedule(s);
    }

    /// Gives back what a handshake had taken.
    fn leave_handshake(&mut self, s: usize) {
        self.stop_clc(s);
        let h = self.socks[s].host;
        self.hosts[h].waiting.retain(|w| *w != s);
        let phase = self.socks[s].phase;
        self.socks[s].phase = Phase::Failed;
        let Some(g) = self.socks[s].group else {
            return;
        };
        if self.socks[s].released || phase == Phase::Smc {
            return;
        }
        if let Some(conn) = self.socks[s].conn.as_mut() {
            conn.kill();
        }
        if let Some((col, key)) = self.socks[s].peer_key {
            // The server may have withdrawn it before its Accept came.
            self.grp(h, g).table().delete(col, key);
        }
        let forming = self.socks[s].first;
        self.grp(h, g)
            .jobs
            .retain(|j| !matches!(j, super::group::KeyJob::Tell { sock, .. } if *sock == s));
        self.release(s);
        if forming {
            self.end_group(h, g, None, "its first contact failed");
        }
        if self.hosts[h].forming == Some(g) && forming {
            self.open_gate(h);
        }
    }

    pub fn clc_timeout(&mut self, s: usize, stamp: u64) {
        if self.socks[s].clc_stamp != stamp {
            return;
        }
        assert!(
            !self.plan.trouble.is_empty() || self.socks[s].excuse.is_some(),
            "a handshake waits for ever: {}",
            self.socks[s].describe()
        );
        self.reach.hit("effect", "handshake", "timed out");
        self.fail(s, true);
    }

    /// A first contact has ended.
    pub fn first_contact_over(&mut self, s: usize, end: End) {
        let h = self.socks[s].host;
        match end {
            End::Linked if self.socks[s].phase == Phase::Linking => {
                self.socks[s].first = false;
                self.established(s);
            }
            End::GivenUp if self.socks[s].phase == Phase::Linking => {
                self.decline(s, DeclineReason::TIMEOUT_CL);
            }
            _ => {}
        }
        if self.hosts[h].forming == self.socks[s].group && self.hosts[h].forming.is_some() {
            self.open_gate(h);
        }
    }

    /// Puts what is known of the peer's buffer into a connection.
    pub fn start_conn(&mut self, s: usize, peer: &AcceptConfirm) {
        let scale = self.plan.scale;
        let sock = &mut self.socks[s];
        let ring = |code: RmbeSizeCode| RingSize::new(Sock::ring_len(code, scale)).unwrap();
        let recv = ring(sock.code);
        let send = ring(sock.code);
        let mut conn = Conn::new(Params {
            send_ring: send,
            peer_ring: ring(peer.rmbe_size),
            recv_ring: recv,
            peer_token: peer.token,
            update_limit: size::update_limit(recv.get()),
            max_chain: self.plan.max_chain,
        });
        let (out, inc) = (sock.start(true), sock.start(false));
        conn.start_at(Pos::new(out), Pos::new(inc), sock.seq, sock.seq);
        conn.set_oob_inline(true);
        sock.ring = vec![0; send.get() as usize];
        let mut early = std::mem::take(&mut sock.early);
        let fx = conn.on_early(&mut early).unwrap();
        sock.conn = Some(conn);
        self.received(s, fx);
    }

    /// A place in a group.
    pub fn join(&mut self, s: usize, g: usize, col: usize) {
        let h = self.socks[s].host;
        let group = self.grp(h, g);
        group.members += 1;
        let members = u64::from(group.members);
        let used = group.conns.len();
        let token = (0..=used)
            .map(|_| group.tokens.next_token().get())
            .find(|t| !group.conns.contains_key(t))
            .expect("more tokens than connections");
        group.conns.insert(token, s);
        let len = Sock::ring_len(self.socks[s].code, self.plan.scale) as usize;
        let rmb = self.verbs.new_rmb(len);
        self.grp(h, g).rmbs.push(rmb);
        for c in 0..3 {
            let group = &self.hosts[h].groups[g];
            if let Some(l) = &group.links[c] {
                if l.state != crate::proto::group::LinkState::Ending {
                    let q = l.qp;
                    self.verbs.map(rmb, q);
                }
            }
        }
        let sock = &mut self.socks[s];
        sock.group = Some(g);
        sock.col = col;
        sock.token = token;
        sock.rmb = Some(rmb);
        self.sum.most_in_group = self.sum.most_in_group.max(members);
    }

    /// What both of our messages say of us.
    pub fn describe_us(&mut self, s: usize, kind: Kind, first: bool) -> AcceptConfirm {
        let sock = &self.socks[s];
        let (h, g, col) = (sock.host, sock.group.unwrap(), sock.col);
        let link = self.hosts[h].groups[g].links[col].as_ref().unwrap();
        let device = &self.hosts[h].devices[link.device];
        let rmb = sock.rmb.unwrap();
        let (key, vaddr) = self.verbs.rmbs[rmb].keys[col].unwrap();
        self.verbs.rmbs[rmb].known = true;
        AcceptConfirm {
            kind,
            first_contact: first,
            peer_id: self.hosts[h].peer_id,
            gid: device.gid,
            mac: device.mac,
            qpn: crate::proto::ids::Qpn::truncate(self.verbs.qpn(link.qp)),
            rkey: crate::proto::ids::Rkey(key),
            rmbe_index: crate::proto::ids::RmbeIndex::FIRST,
            token: AlertToken::new(self.socks[s].token).unwrap(),
            rmbe_size: self.socks[s].code,
            mtu: crate::proto::ids::MtuCode::B1024,
            vaddr: crate::proto::ids::Vaddr(vaddr),
            psn: crate::proto::ids::Psn::truncate(1),
            v2: None,
        }
    }

    // What holds.

    pub fn check_sock(&self, s: usize) {
        let sock = &self.socks[s];
        let waits = sock.machine.state().waits_for_peer()
            && (!sock.machine.is_open() || sock.machine.state() == State::PeerAbortWait);
        let timed = sock.orphan.is_some() || sock.released || sock.phase != Phase::Smc;
        assert!(
            !waits || timed,
            "waits for its peer without a timer: {}",
            sock.describe()
        );
        let Some(c) = &sock.conn else {
            return;
        };
        if let (Phase::Smc, Some(g), None) = (sock.phase, sock.group, sock.excuse) {
            // What is due is done, or somebody has it on a list.
            let idle = c.posted() == 0 && c.has_work() && !sock.released;
            let listed = self.hosts[sock.host].groups[g].links[sock.col]
                .as_ref()
                .is_none_or(|l| self.verbs.qps[l.qp].pending.contains(&s));
            assert!(
                !idle || listed,
                "work is due and nobody does it: {}",
                sock.describe()
            );
        }
        let p = c.params();
        assert!(c.send_space() <= p.send_ring.get());
        assert!(
            c.unsent() <= c.unfinished() || c.peer_close().closed,
            "{}",
            sock.describe()
        );
        assert!(c.window() <= p.peer_ring.get());
        assert!(c.readable_len() <= p.recv_ring.get());
        assert!(
            sock.read <= self.socks[sock.peer].written,
            "{}",
            sock.describe()
        );
        assert!(c.posted() as usize <= 2 * self.plan.slots + 64);
    }

    /// Both ends of a pair have come to a good end.
    pub fn check_pair(&mut self, pair: usize) {
        let (a, b) = (&self.socks[2 * pair], &self.socks[2 * pair + 1]);
        let both = || format!("{}\n{}", a.describe(), b.describe());
        for s in [a, b] {
            assert!(s.is_over(), "is left: {}", both());
            if let Some(c) = &s.conn {
                assert_eq!(c.posted(), 0, "{}", both());
            }
        }
        let modes = (a.was_smc, b.was_smc);
        if modes == (true, false) {
            assert!(a.error.is_some() || a.excuse.is_some(), "{}", both());
        }
        if a.excuse.is_none() {
            assert_eq!(modes, (true, true), "{}", both());
            for (s, o) in [(a, b), (b, a)] {
                assert!(s.error.is_none() && s.app.eof, "{}", both());
                assert_eq!(s.read, o.written, "{}", both());
                assert_eq!(o.written - o.start(true), o.app.to_write, "{}", both());
            }
        }
        if modes == (true, true) {
            for (s, o) in [(a, b), (b, a)] {
                // Whoever read to a good end has everything, or the other side knows better.
                let theirs = o.conn.as_ref().unwrap();
                let good = s.error.is_none() && o.error.is_none() && !theirs.sent_close().abort;
                // What was not sent when the reader closed is dropped, and the writer knows.
                if s.app.eof && good && theirs.is_drained() {
                    assert_eq!(s.read, o.written, "{}", both());
                }
            }
        }
        let calm = self.plan.trouble.is_empty() && self.plan.decline == 0 && self.plan.rude == 0;
        let common = (self.plan.v1[0] && self.plan.v1[1])
            || (self.plan.v2[0].is_some() && self.plan.v2[1].is_some());
        // A peer's table that is full is a reason too.
        let room = self.plan.rows >= self.plan.conns || self.plan.crowd;
        if calm && common && room && !self.plan.noise {
            assert!(a.excuse.is_none(), "{}", both());
        }
        self.reach.hit("end", a.excuse.unwrap_or("good"), modes);
    }

    /// The kind of a CLC message.
    pub fn kind_of(bytes: &[u8]) -> MessageType {
        let head: [u8; 8] = bytes[..8].try_into().unwrap();
        let header = Header::decode(&head).unwrap();
        assert_eq!(header.len(), bytes.len());
        header.kind
    }

    /// Sends a Proposal.
    pub fn propose(&mut self, s: usize) {
        let h = self.socks[s].host;
        let device = &self.hosts[h].devices[self.socks[s].device];
        let v1 = clc::ProposalV1 {
            gid: device.gid,
            mac: device.mac,
            v4_network: [10, 0, 0, 0],
            v4_len: 8,
            v6: &[],
        };
        let v2 = self.plan.v2[h].map(|release| clc::ProposalV2 {
            gid: device.gid,
            release,
            limits: self.limits(h),
        });
        let eids = [crate::proto::ids::Eid::DEFAULT];
        let mut out = [0; clc::MAX_PROPOSAL];
        let id = self.hosts[h].peer_id;
        let n = match (&v2, self.plan.v1[h]) {
            (None, _) => Proposal::encode_v1(id, &v1, &mut out).unwrap(),
            (Some(v2), one) => Proposal::encode(
                id,
                one.then_some(&v1),
                Some((v2, eids.iter().copied())),
                &mut out,
            )
            .unwrap(),
        };
        self.tcp_send(s, Tcp::Clc(out[..n].to_vec()));
        self.socks[s].phase = Phase::Proposed;
        self.arm_clc(s, CLC_MS);
    }

    /// The server waits for it.
    pub fn await_proposal(&mut self, s: usize) {
        self.socks[s].phase = Phase::Listening;
        self.arm_clc(s, CLC_MS);
    }

    pub fn await_confirm(&mut self, s: usize) {
        self.socks[s].phase = Phase::Accepted;
        self.arm_clc(s, CLC_MS);
    }

    /// The peer declines.
    pub fn declined(&mut self, s: usize) {
        match self.socks[s].phase {
            // Both have declined.
            Phase::Tcp => self.reach.hit("decline", "both", ""),
            Phase::Failed => {}
            Phase::Smc => {
                self.excuse(s, "the peer declined late");
                if self.socks[s].machine.state() != State::Closed {
                    self.event(s, Event::LocalAbort);
                }
            }
            _ => self.fall_back(s),
        }
    }

    pub fn limits_of(&self, h: usize) -> Limits {
        self.limits(h)
    }

    pub fn clear_clc(&mut self, s: usize) {
        self.stop_clc(s);
    }
}
