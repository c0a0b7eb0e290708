// SPDX-License-Identifier: GPL-2.0

//! How a handshake waits and ends: its timer, the TCP connection, success, fallback and failure.

use crate::proto::clc::{self, Decline};
use crate::proto::close::{Event, State};
use crate::proto::group::End;
use crate::proto::DeclineReason;

use super::group::KeyJob;
use super::sock::{Phase, Tcp};
use super::world::{Ev, World};

/// How long a CLC message may take.
pub const CLC_MS: u32 = 6_000;

impl World {
    /// Arms the timer of the handshake anew.
    pub fn arm_clc(&mut self, s: usize, ms: u32) {
        self.socks[s].stamp += 1;
        let stamp = self.socks[s].stamp;
        self.socks[s].clc_stamp = stamp;
        self.after_ms(ms, Ev::Clc(s, stamp));
    }

    pub fn stop_clc(&mut self, s: usize) {
        self.socks[s].clc_stamp = 0;
    }

    pub fn clc_timeout(&mut self, s: usize, stamp: u64) {
        if self.socks[s].clc_stamp != stamp {
            return;
        }
        assert!(
            !self.plan.is_calm() || self.socks[s].excuse.is_some(),
            "a handshake waits for ever: {}",
            self.socks[s].describe()
        );
        self.reach.hit("effect", "handshake", "timed out");
        self.fail(s, true);
    }

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

    /// The server waits for it.
    pub fn await_proposal(&mut self, s: usize) {
        self.socks[s].phase = Phase::Listening;
        self.arm_clc(s, CLC_MS);
    }

    pub fn await_confirm(&mut self, s: usize) {
        self.socks[s].phase = Phase::Accepted;
        self.arm_clc(s, CLC_MS);
    }

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

    /// The application closes before the handshake is over.
    pub fn give_up_early(&mut self, s: usize) {
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

    pub fn fail(&mut self, s: usize, tell: bool) {
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
            .retain(|j| !matches!(j, KeyJob::Tell { sock, .. } if *sock == s));
        self.release(s);
        if forming {
            self.end_group(h, g, None, "its first contact failed");
        }
        if self.hosts[h].forming == Some(g) && forming {
            self.open_gate(h);
        }
    }
}
