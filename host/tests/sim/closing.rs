// SPDX-License-Identifier: GPL-2.0

//! The close machine of a socket, its timer, and its place in a group.

use crate::proto::cdc::ConnFlags;
use crate::proto::close::{self, Actions, Event, Send, Timer};
use crate::proto::conn::Conn;
use crate::proto::group::LinkState;

use super::conn::class;
use super::sock::{Phase, Sock, Tcp};
use super::world::{Ev, World};

/// The timer for orphans.
const ORPHAN_MS: u32 = 60_000;

impl World {
    /// Feeds the close machine and does what it says.
    pub fn event(&mut self, s: usize, event: Event) -> bool {
        let from = self.socks[s].machine.state();
        let Ok(o) = self.socks[s].machine.transition(event) else {
            let call = matches!(
                event,
                Event::ShutdownRead | Event::ShutdownWrite | Event::ShutdownBoth
            );
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
        if a.refuse {
            self.reach.hit("effect", "data", "refused");
            let sock = &mut self.socks[s];
            sock.conn.as_mut().unwrap().refuse(sock.news);
            self.excuse(s, "data came for nobody");
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
            Some(close::Tcp::Shutdown) => self.tcp_send(s, Tcp::Fin),
            Some(close::Tcp::Reset) => self.tcp_send(s, Tcp::Rst),
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
                if l.state != LinkState::Ending {
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
    pub fn release(&mut self, s: usize) {
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
}
