// SPDX-License-Identifier: GPL-2.0

//! What goes wrong: paths break, devices go, operators end links and groups.

use crate::proto::group::LinkState;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use super::group::Life;
use super::world::{Ev, World};

/// What can go wrong with a link.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// Its path breaks; whether its end and the other one notice at once.
    Path([bool; 2]),
    /// Its device goes and comes back.
    Device,
    /// An operator ends it.
    EndLink,
    /// One of the hosts would like a further link.
    Wish,
    /// The peer says what nobody asked for.
    Noise,
    /// An operator ends its group.
    EndGroup,
    /// Two links are lost at once, or the same one twice.
    TwoPaths,
    /// It is ended while another one is lost, which the client knows first.
    EndAndBreak,
}

impl World {
    /// Queue pairs to which something can happen.
    pub fn alive(&self) -> Vec<usize> {
        (0..self.verbs.qps.len())
            .filter(|q| {
                let qp = &self.verbs.qps[*q];
                !qp.destroyed
                    && !qp.broken
                    && self.hosts[qp.host].groups[qp.group].life != Life::Ending
            })
            .collect()
    }

    /// Something goes wrong somewhere.
    pub fn trouble(&mut self) {
        let alive = self.alive();
        if alive.is_empty() {
            return;
        }
        let q = alive[self.rng.below(alive.len() as u64) as usize];
        let what = match self.rng.below(16) {
            0..=4 => Trouble::Path([self.rng.one_in(2), self.rng.one_in(2)]),
            5 | 6 => Trouble::Device,
            7 | 8 => Trouble::EndLink,
            10 | 11 if self.plan.noise => Trouble::Noise,
            12 if self.rng.one_in(3) => Trouble::EndGroup,
            13 => Trouble::TwoPaths,
            14 => Trouble::EndAndBreak,
            _ => Trouble::Wish,
        };
        self.go_wrong(q, what);
    }

    /// Something goes wrong with a link.
    pub fn go_wrong(&mut self, q: usize, what: Trouble) {
        let (h, g, col) = {
            let qp = &self.verbs.qps[q];
            (qp.host, qp.group, qp.col)
        };
        match what {
            Trouble::Path(noticed) => self.break_path(q, noticed),
            Trouble::Device => {
                let d = self.hosts[h].groups[g].links[col]
                    .as_ref()
                    .map(|l| l.device);
                if let Some(d) = d.filter(|d| self.hosts[h].devices[*d].up) {
                    self.device_goes(h, d);
                }
            }
            Trouble::EndLink => self.operator_ends_link(h, g, col),
            Trouble::Wish => self.ask_for_link(h, g),
            Trouble::Noise => self.noise(q),
            Trouble::EndGroup => self.operator_ends_group(h, g),
            Trouble::TwoPaths => {
                let alive = self.alive();
                self.break_path(q, [true, true]);
                let q = alive[self.rng.below(alive.len() as u64) as usize];
                self.break_path(q, [true, false]);
            }
            Trouble::EndAndBreak => {
                self.operator_ends_link(h, g, col);
                let links = &self.hosts[h].groups[g].links;
                let other = links.iter().flatten().find(|l| l.qp != q).map(|l| l.qp);
                if let Some(o) = other {
                    let client = self.hosts[h].groups[g].role == Role::Client;
                    self.break_path(o, [false, false]);
                    let ends = [Some(o), self.verbs.qps[o].peer];
                    if let Some(end) = ends[usize::from(!client)] {
                        self.soon(100, Ev::Notice(end));
                    }
                }
            }
        }
    }

    fn device_goes(&mut self, h: usize, d: usize) {
        self.hosts[h].devices[d].up = false;
        for g in 0..self.hosts[h].groups.len() {
            for col in 0..3 {
                let q = match &self.hosts[h].groups[g].links[col] {
                    Some(l) if l.device == d => l.qp,
                    _ => continue,
                };
                let far = self.rng.one_in(2);
                self.break_path(q, [true, far]);
            }
        }
        self.soon(3_000_000, Ev::Back(h, d));
    }

    /// A device comes back: its host sees to a further link, or asks for one.
    pub fn device_back(&mut self, h: usize, d: usize) {
        self.hosts[h].devices[d].up = true;
        for g in 0..self.hosts[h].groups.len() {
            self.ask_for_link(h, g);
        }
    }

    /// An operator ends one link.
    fn operator_ends_link(&mut self, h: usize, g: usize, col: usize) {
        let group = self.grp(h, g);
        let active = group.active().count();
        let Some(link) = &group.links[col] else {
            return;
        };
        let (Some(id), LinkState::Active) = (link.id, link.state) else {
            return;
        };
        let m = DeleteLink {
            link_num: id.get(),
            all: false,
            orderly: true,
            reason: DeleteLink::OPERATOR,
        };
        if active < 2 {
            return;
        }
        self.reach.hit("effect", "operator", "ends a link");
        self.want_gone(h, g, m);
    }

    /// An operator ends a group.
    fn operator_ends_group(&mut self, h: usize, g: usize) {
        if self.grp(h, g).life == Life::Active {
            let m = DeleteLink::everything(self.rng.one_in(2), DeleteLink::OPERATOR);
            self.end_group(h, g, Some(m), "an operator ends it");
        }
    }

    /// A side would like a further link: the server tries, the client asks.
    fn ask_for_link(&mut self, h: usize, g: usize) {
        let group = self.grp(h, g);
        if group.life != Life::Active {
            return;
        }
        self.reach
            .hit("effect", "wish", self.hosts[h].groups[g].role);
        let group = self.grp(h, g);
        let version = group.version;
        match group.role {
            Role::Server => {
                group.want_add = true;
                self.soon(5, Ev::Pump(h, g));
            }
            Role::Client => {
                let Some(via) = group.active().next() else {
                    return;
                };
                let gids: Vec<Gid> = self.hosts[h].devices.iter().map(|d| d.gid).collect();
                match version {
                    llc::Version::V2 => {
                        let body = Body::ReqAddLink(ReqAddLink {
                            gids: Gids::new(&gids),
                        });
                        self.post(h, g, via, Llc::request(version, body));
                    }
                    // In version 1 a client's ADD LINK names only its other device.
                    llc::Version::V1 => {
                        let device = &self.hosts[h].devices[0];
                        let body = Body::AddLink(AddLink::wish(device.gid, device.mac));
                        self.post(h, g, via, Llc::request(version, body));
                    }
                }
            }
        }
    }
}
