// SPDX-License-Identifier: GPL-2.0

//! What holds after every step, and at the end.

use crate::proto::close::State;
use crate::proto::group::{LINK_SLOTS, MAX_CONNS};
use crate::proto::ids::Role;

use super::group::Life;
use super::sock::Phase;
use super::world::{Ev, World};

impl World {
    /// What holds after every step, for those that the step concerned.
    pub fn check(&self, ev: Ev) {
        match ev {
            Ev::Deliver(q) | Ev::Complete(q) | Ev::Receive(q) => {
                let qp = &self.verbs.qps[q];
                assert!(qp.used <= self.plan.slots, "slots of {q}");
                self.check_group(qp.host, qp.group);
            }
            Ev::App(s)
            | Ev::Late(s)
            | Ev::Tcp(s)
            | Ev::Open(s)
            | Ev::Clc(s, _)
            | Ev::Orphan(s, _) => {
                self.check_sock(s);
                if let Some(g) = self.socks[s].group {
                    self.check_group(self.socks[s].host, g);
                }
            }
            Ev::Flow(h, g, ..) | Ev::Pump(h, g) | Ev::Emptied(h, g, _) => self.check_group(h, g),
            Ev::Notice(q) | Ev::Clear(q) | Ev::Noise(q) => {
                let qp = &self.verbs.qps[q];
                self.check_group(qp.host, qp.group);
            }
            Ev::Tick(_) | Ev::Trouble | Ev::Op(_) | Ev::Back(..) => {
                for s in 0..self.socks.len() {
                    self.check_sock(s);
                }
                for h in 0..2 {
                    for g in 0..self.hosts[h].groups.len() {
                        self.check_group(h, g);
                    }
                }
            }
        }
    }

    pub fn who_waits(&self) -> String {
        let mut out = format!("{:?}\n", self.plan);
        for s in &self.socks {
            if !s.is_over() {
                out += &format!("{}\n", s.describe());
            }
        }
        for (h, host) in self.hosts.iter().enumerate() {
            for (g, group) in host.groups.iter().enumerate() {
                if !group.is_gone() {
                    out += &format!("host {h} group {g}: {}\n", group.describe());
                }
            }
        }
        out
    }

    fn check_sock(&self, s: usize) {
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
        assert!(c.send_space() <= c.send_ring().get());
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

    fn check_group(&self, h: usize, g: usize) {
        let group = &self.hosts[h].groups[g];
        // A client gives a place back later than the server gives it to another connection.
        assert!(group.members <= 2 * u32::from(MAX_CONNS));
        assert!(
            group.conns.len() <= group.members as usize,
            "{}",
            group.describe()
        );
        if group.role == Role::Server {
            assert!(
                group.members <= u32::from(group.max_conns),
                "{}",
                group.describe()
            );
        }
        assert!(group.active().count() <= LINK_SLOTS);
        assert_eq!(
            group.change.is_some(),
            group.flows.changing_links().is_some(),
            "{}",
            group.describe()
        );
        assert_eq!(
            group.change.is_none() && group.telling.is_none(),
            group.flows.is_idle(),
            "{}",
            group.describe()
        );
        if group.life == Life::Active && group.active().next().is_none() {
            panic!("an active group without a link: {}", group.describe());
        }
        for (token, s) in &group.conns {
            let sock = &self.socks[*s];
            assert!(sock.group == Some(g) && sock.token == *token && !sock.released);
            if group.conns.len() < 20 {
                self.check_sock(*s);
            }
        }
    }

    /// In an undisturbed group each connection has the key of its peer on every link.
    pub fn check_keys(&mut self, h: usize, g: usize) {
        let group = self.grp(h, g);
        if group.disturbed {
            return;
        }
        let active: Vec<_> = group.active().collect();
        let socks: Vec<_> = group.conns.values().copied().collect();
        for s in socks {
            let sock = &self.socks[s];
            let (Some(row), None, Phase::Smc) = (sock.row, sock.excuse, sock.phase) else {
                continue;
            };
            for c in &active {
                assert!(
                    self.grp(h, g).table().get(row, *c).is_some()
                        || self.socks[s]
                            .conn
                            .as_ref()
                            .is_some_and(|c| c.peer_close().closed || c.sent_close().closed),
                    "no key of the peer on link {c}: {}",
                    self.socks[s].describe()
                );
            }
        }
    }

    /// Whether the other side of a group has no connection either, and has withdrawn all keys.
    pub fn peer_is_idle(&self, h: usize, g: usize) -> bool {
        let links = &self.hosts[h].groups[g].links;
        let peers = links
            .iter()
            .flatten()
            .filter_map(|l| self.verbs.qps[l.qp].peer);
        peers.into_iter().all(|q| {
            let qp = &self.verbs.qps[q];
            let group = &self.hosts[qp.host].groups[qp.group];
            group.members == 0 && group.jobs.is_empty() && group.telling.is_none()
        })
    }

    /// At the end everything has been given back, and every pair has come to a good end.
    pub fn check_end(&mut self) {
        for h in 0..2 {
            let host = &self.hosts[h];
            assert!(
                host.forming.is_none() && host.waiting.is_empty(),
                "gate of {h}"
            );
            for (g, group) in host.groups.iter().enumerate() {
                assert!(group.is_gone(), "host {h} group {g}: {}", group.describe());
                group.check_empty();
            }
        }
        for q in &self.verbs.qps {
            assert!(q.destroyed, "a queue pair is left");
            assert!(q.sq.is_empty() && q.cq.is_empty() && q.used == 0);
        }
        assert!(
            self.verbs.mrs.is_empty(),
            "keys are left: {:?}",
            self.verbs.mrs
        );
        for pair in 0..self.plan.conns {
            self.check_pair(pair);
        }
    }

    /// Both ends of a pair have come to a good end.
    fn check_pair(&mut self, pair: usize) {
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
        let calm = self.plan.is_calm() && self.plan.rude == 0;
        let common = (self.plan.v1[0] && self.plan.v1[1])
            || (self.plan.v2[0].is_some() && self.plan.v2[1].is_some());
        // A peer's table that is full is a reason too.
        let room = self.plan.rows >= self.plan.conns || self.plan.crowd;
        if calm && common && room {
            assert!(a.excuse.is_none(), "{}", both());
        }
        self.reach.hit("end", a.excuse.unwrap_or("good"), modes);
    }
}
