// SPDX-License-Identifier: GPL-2.0

//! How work requests and messages travel between the two hosts, and how a path breaks.

use crate::proto::cdc;
use crate::proto::group::{LinkEvent, LinkState};
use crate::proto::llc::{demux, Demux};

use super::verbs::Back;
use super::world::{Ev, World};

/// How long a device tries before it gives a work request up, at most.
const RETRIES_US: u64 = 400_000;

impl World {
    /// The device goes on with a send queue.
    pub fn kick(&mut self, q: usize) {
        let qp = &mut self.verbs.qps[q];
        if !qp.sq.is_empty() && !qp.delivering {
            qp.delivering = true;
            self.soon(self.plan.delays.wire, Ev::Deliver(q));
        }
    }

    fn kick_completions(&mut self, q: usize) {
        let qp = &mut self.verbs.qps[q];
        if !qp.cq.is_empty() && !qp.completing {
            qp.completing = true;
            self.soon(self.plan.delays.completion, Ev::Complete(q));
        }
    }

    fn kick_receives(&mut self, q: usize) {
        let qp = &mut self.verbs.qps[q];
        if !qp.rq.is_empty() && !qp.receiving {
            qp.receiving = true;
            self.soon(self.plan.delays.receive, Ev::Receive(q));
        }
    }

    /// Whether nothing that is sent on a queue pair arrives.
    fn is_cut(&self, q: usize) -> bool {
        let qp = &self.verbs.qps[q];
        let Some(peer) = qp.peer else {
            return true;
        };
        let peer = &self.verbs.qps[peer];
        qp.broken || peer.broken || peer.destroyed || peer.peer.is_some_and(|p| p != q)
    }

    pub fn deliver(&mut self, q: usize) {
        self.verbs.qps[q].delivering = false;
        if self.verbs.qps[q].destroyed {
            return;
        }
        if self.is_cut(q) {
            self.flush(q);
            if !self.verbs.qps[q].completing {
                self.verbs.qps[q].completing = true;
                self.soon(RETRIES_US, Ev::Complete(q));
            }
            return;
        }
        self.carry_out(q);
        self.kick(q);
    }

    /// What was posted on a link that still works is waited for.
    pub fn drain(&mut self, q: usize) {
        while !self.verbs.qps[q].sq.is_empty() && !self.is_cut(q) {
            self.carry_out(q);
        }
    }

    /// The device carries out its next work request.
    fn carry_out(&mut self, q: usize) {
        let Some(wr) = self.verbs.qps[q].sq.pop_front() else {
            return;
        };
        let peer = self.verbs.qps[q].peer.unwrap();
        assert!(self.verbs.qps[peer].receives, "the receiver is not ready");
        if let Some((sock, ring, plan, key, base)) = wr.data {
            self.write_out(peer, (sock, ring), &plan, key, base);
        }
        self.verbs.qps[peer].rq.push_back(wr.message.clone());
        if self.plan.noise && demux(wr.message[0]) != Demux::Cdc && self.rng.one_in(6) {
            // The peer says it twice.
            self.reach.hit("effect", "noise", "duplicate");
            self.verbs.qps[peer].rq.push_back(wr.message);
        }
        self.verbs.qps[q].cq.push_back((wr.back, true));
        self.kick_receives(peer);
        self.kick_completions(q);
    }

    /// The writes of a chain are carried out.
    fn write_out(
        &mut self,
        peer: usize,
        (sock, ring): (usize, usize),
        plan: &crate::proto::conn::TxPlan,
        key: u32,
        base: u64,
    ) {
        for w in plan.writes() {
            let from = w.local as usize..(w.local + w.len) as usize;
            let bytes = self.socks[sock].rings[ring][from].to_vec();
            if let Err(e) = self
                .verbs
                .write(peer, key, base + u64::from(w.remote), &bytes)
            {
                panic!("{e}; {}", self.socks[sock].describe());
            }
        }
    }

    /// All that was posted fails.
    pub fn flush(&mut self, q: usize) {
        let qp = &mut self.verbs.qps[q];
        for wr in qp.sq.drain(..) {
            qp.cq.push_back((wr.back, false));
        }
    }

    pub fn complete(&mut self, q: usize) {
        self.verbs.qps[q].completing = false;
        let Some((back, ok)) = self.verbs.qps[q].cq.pop_front() else {
            return;
        };
        self.completed(q, back, ok);
        if !ok {
            self.notice(q);
        }
        self.kick_completions(q);
    }

    /// A completion has been taken.
    pub fn completed(&mut self, q: usize, back: Back, ok: bool) {
        if let Back::Plan { sock, cookie } = back {
            self.verbs.qps[q].used -= 1;
            self.plan_done(sock, cookie, ok);
        }
        while self.verbs.qps[q].used < self.plan.slots {
            let Some(s) = self.verbs.qps[q].pending.pop_front() else {
                return;
            };
            self.push(s);
        }
    }

    pub fn receive(&mut self, q: usize) {
        self.verbs.qps[q].receiving = false;
        let Some(bytes) = self.verbs.qps[q].rq.pop_front() else {
            return;
        };
        if self.plan.noise && demux(bytes[0]) != Demux::Cdc && self.rng.one_in(120) {
            // A peer that does not answer.
            self.reach.hit("effect", "noise", "lost");
            self.disturb(q);
        } else {
            self.message(q, &bytes);
        }
        self.kick_receives(q);
    }

    /// A message is taken in.
    pub fn message(&mut self, q: usize, bytes: &[u8]) {
        let (h, g, col) = {
            let qp = &self.verbs.qps[q];
            (qp.host, qp.group, qp.col)
        };
        let now = self.now;
        if let Some(link) = &mut self.grp(h, g).links[col] {
            link.heard = now;
            link.tested = None;
        }
        match demux(bytes[0]) {
            Demux::Llc(_) => self.on_llc(h, g, col, bytes),
            Demux::Cdc => {
                let msg = cdc::Message::decode(bytes).unwrap();
                if msg.prod_flags.failover_validation {
                    // What came on other links came before.
                    for other in 0..3 {
                        let Some(link) = &self.grp(h, g).links[other] else {
                            continue;
                        };
                        let o = link.qp;
                        if o == q {
                            continue;
                        }
                        while let Some(bytes) = self.verbs.qps[o].rq.pop_front() {
                            self.message(o, &bytes);
                        }
                    }
                }
                match self.grp(h, g).conns.get(&msg.token.get()).copied() {
                    Some(s) => match bytes.get(cdc::LEN..) {
                        Some(&[a, b, c, d, e, f, g, h]) => {
                            let (bits, len) = ([a, b, c, d], [e, f, g, h]);
                            let (bits, len) = (u32::from_be_bytes(bits), u32::from_be_bytes(len));
                            self.on_short(s, bits, len, &msg);
                        }
                        _ => self.on_cdc(s, &msg),
                    },
                    None => self.reach.hit("effect", "cdc", "unknown token"),
                }
            }
            Demux::Unknown { .. } => self.reach.hit("effect", "message", "unknown"),
        }
    }

    /// A host learns that its end of a link is broken.
    pub fn notice(&mut self, q: usize) {
        let (h, g, col) = {
            let qp = &self.verbs.qps[q];
            (qp.host, qp.group, qp.col)
        };
        match &self.grp(h, g).links[col] {
            Some(l) if l.qp == q && l.state == LinkState::Ending => {
                let _ = self.link_event(h, g, col, LinkEvent::Lost);
            }
            Some(l) if l.qp == q => self.link_lost(h, g, col),
            _ => {}
        }
    }

    /// The path between two queue pairs breaks: for some of what arrived the acknowledgement is
    /// lost, and of the next chain only the writes may have been carried out.
    pub fn break_path(&mut self, q: usize, noticed: [bool; 2]) {
        let ends = [Some(q), self.verbs.qps[q].peer];
        for (q, noticed) in ends.into_iter().zip(noticed) {
            let Some(q) = q else {
                continue;
            };
            self.disturb(q);
            if self.verbs.qps[q].destroyed || self.verbs.qps[q].broken {
                continue;
            }
            if self.rng.one_in(2) && !self.is_cut(q) {
                let data = self.verbs.qps[q].sq.front().and_then(|wr| wr.data);
                if let (Some((sock, ring, plan, key, base)), Some(peer)) =
                    (data, self.verbs.qps[q].peer)
                {
                    self.write_out(peer, (sock, ring), &plan, key, base);
                }
            }
            let good = self.rng.below(self.verbs.qps[q].cq.len() as u64 + 1) as usize;
            for (_, ok) in self.verbs.qps[q].cq.iter_mut().skip(good) {
                *ok = false;
            }
            if noticed {
                self.soon(50_000, Ev::Notice(q));
            }
        }
        self.verbs.qps[q].broken = true;
        self.reach.hit("effect", "path", "broken");
    }
}
