// SPDX-License-Identifier: GPL-2.0

//! Connections of the core: what they send and receive, how they move to another link and how they
//! die with their group.

use crate::proto::cdc::Message;
use crate::proto::clc::AcceptConfirm;
use crate::proto::close::{Event, State};
use crate::proto::conn::{Conn, DoneEffects, Params, RxEffects, Short, TxPlan, Urgent};
use crate::proto::cursor::{Pos, RingSize};
use crate::proto::group::RtokenTable;
use crate::proto::size::{self, RmbeSizeCode};
use crate::proto::DeclineReason;

use super::sock::{Phase, Sock};
use super::verbs::{Back, Wr};
use super::world::World;

/// How many times larger the second send ring is than the first.
const LARGER: usize = 4;

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

impl World {
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
        if self.plan.slots % 2 == 0 {
            conn.allow_short();
        }
        let size = send.get() as usize;
        sock.rings = [vec![0; size], vec![0; size * LARGER]];
        let mut early = std::mem::take(&mut sock.early);
        let fx = conn.on_early(&mut early).unwrap();
        sock.conn = Some(conn);
        self.received(s, fx);
    }

    /// Plans and posts what is due as long as there are slots.
    pub fn push(&mut self, s: usize) {
        for posted in 0.. {
            assert!(
                posted < 100_000,
                "plans without end: {}",
                self.socks[s].describe()
            );
            let unheard = self.socks[s].conn.as_ref().is_some_and(Conn::is_unheard);
            if unheard && !self.socks[s].released {
                self.excuse(s, "there were data for a peer that had closed");
                self.event(s, Event::Unheard);
            }
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

    fn post_plan(&mut self, s: usize, q: usize, plan: TxPlan, key: u32, base: u64) {
        self.verbs.qps[q].used += 1;
        let ring = self.socks[s].ring_of(&plan);
        let data = (plan.data_len() > 0).then_some((s, ring, plan, key, base));
        let mut message = plan.cdc.encode().to_vec();
        if let Some(short) = plan.short {
            // What the write itself says, behind the message for which it stands.
            message.extend(short.to_bits().to_be_bytes());
            let last = plan.writes().last().expect("a write");
            message.extend(last.len.to_be_bytes());
        }
        self.verbs.qps[q].sq.push_back(Wr {
            data,
            message,
            back: Back::Plan {
                sock: s,
                cookie: plan.token.to_cookie(),
            },
        });
        self.kick(q);
    }

    fn check_plan(&self, s: usize, plan: &TxPlan) {
        let conn = self.socks[s].conn.as_ref().unwrap();
        let p = conn.params();
        let sock = &self.socks[s];
        let size = sock.rings[sock.ring_of(plan)].len();
        for w in plan.writes() {
            assert!(w.len > 0 && (w.local + w.len) as usize <= size, "{plan:?}");
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

    /// A short message of the peer has come, in place of `msg`.
    pub fn on_short(&mut self, s: usize, bits: u32, len: u32, msg: &Message) {
        let short = Short::from_bits(bits);
        assert_eq!(short.token, msg.token.low_half());
        let sock = &mut self.socks[s];
        let Some(conn) = sock.conn.as_ref() else {
            sock.early.keep_short(short, len);
            self.reach.hit("effect", "cdc", "early short");
            return;
        };
        if conn.is_given_up() {
            return self.on_cdc(s, msg);
        }
        let made = conn.short_message(short, len).unwrap();
        let mut want = Message {
            token: made.token,
            ..*msg
        };
        // It has opened the window meanwhile, or sees that it is closed.
        want.prod_flags.write_blocked &= made.prod_flags.write_blocked;
        assert_eq!(made, want);
        self.reach.hit("effect", "cdc", "short");
        self.on_cdc(s, &made);
    }

    fn received(&mut self, s: usize, fx: RxEffects) {
        for (on, name) in [
            (fx.arrived > 0, "arrived"),
            (fx.push, "push"),
            (fx.freed > 0, "freed"),
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
        sock.news = fx.arrived;
        for (set, event) in [
            (fx.arrived > 0 && !close.abort, Event::Data),
            (close.sending_done && !close.abort, Event::PeerDone),
            (close.closed && !close.abort, Event::PeerClosed),
            (close.abort, Event::PeerAbort),
        ] {
            if set {
                self.event(s, event);
            }
        }
        let room = fx.freed > 0 || fx.urgent_read;
        self.wake(s, fx.arrived > 0 || fx.urgent.is_some(), room);
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
            _ => self.fail(s, true),
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
            Phase::Accepted => self.fail(s, true),
            _ => {}
        }
    }
}
