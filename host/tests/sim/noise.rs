// SPDX-License-Identifier: GPL-2.0

//! Messages that nobody asked for, or that no longer matter.

use crate::proto::group::{AddEvent, LinkState};
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use super::group::Change;
use super::world::{Ev, World};

impl World {
    /// Now and then there is noise while an exchange waits.
    pub fn maybe_noise(&mut self, h: usize, g: usize) {
        if !self.plan.noise {
            return;
        }
        let group = &self.hosts[h].groups[g];
        let (new, often) = match &group.change {
            Some(Change::Add(a)) => (Some(a.new), false),
            Some(Change::Delete(_)) => (None, true),
            None => (None, false),
        };
        if !often && !self.rng.one_in(3) {
            return;
        }
        let old = group.active().next();
        let col = if self.rng.one_in(4) {
            new.or(old)
        } else {
            old.or(new)
        };
        if let Some(col) = col {
            if let Some(link) = &self.hosts[h].groups[g].links[col] {
                let q = link.qp;
                self.soon(self.plan.delays.wire, Ev::Noise(q));
            }
        }
    }

    /// The peer says what nobody asked for, or what no longer matters.
    pub fn noise(&mut self, q: usize) {
        let (h, g, col) = {
            let qp = &self.verbs.qps[q];
            (qp.host, qp.group, qp.col)
        };
        let Some(link) = &self.hosts[h].groups[g].links[col] else {
            return;
        };
        if link.state == LinkState::Ending || link.qp != q {
            return;
        }
        let fresh = link.state == LinkState::Activating;
        if fresh && self.rng.one_in(3) {
            // Our side cannot go on.
            self.disturb(q);
            self.add_event(h, g, AddEvent::Failed);
            return;
        }
        let group = &self.hosts[h].groups[g];
        let version = group.version;
        let nowhere = Qpn::truncate(0xff_0000);
        let unknown = 200;
        let keys = [Rkey(0xdead_0000)];
        let last_id = group.last_id;
        let most = match group.change {
            _ if fresh => 1,
            Some(Change::Delete(_)) => 24,
            _ => 6,
        };
        for _ in 0..self.rng.range(1, most) {
            let add = AddLink {
                mac: Mac([9; 6]),
                gid: Gid::from_v4([10, 9, 9, 9]),
                qpn: nowhere,
                link_num: if self.rng.one_in(2) { unknown } else { last_id },
                mtu: MtuCode::from_nibble(self.rng.below(7) as u8),
                psn: Psn::truncate(0),
                rejected: self.rng.one_in(2),
                reject_reason: AddLink::NO_ALT_PATH,
                ext: None,
            };
            let confirm = ConfirmLink {
                mac: Mac([9; 6]),
                gid: Gid::from_v4([10, 9, 9, 9]),
                qpn: nowhere,
                link_num: unknown,
                user_id: LinkUserId::from_number(9),
                max_links: 2,
                max_conns: 255,
                no_eyecatcher: !fresh,
            };
            let delete = DeleteLink {
                link_num: unknown,
                all: false,
                orderly: self.rng.one_in(2),
                reason: DeleteLink::LOST_PATH,
            };
            let mut key = ConfirmRkey::single(Rkey(0xdead_0001), Vaddr(1 << 20));
            key.negative = self.rng.one_in(2);
            key.retry = self.rng.one_in(2);
            let response = self.rng.one_in(2);
            let asked = self.hosts[h].groups[g]
                .telling
                .as_ref()
                .and_then(|t| t.sent);
            if let (Some(sent), true) = (asked, response && self.rng.one_in(2)) {
                // A refusal that the peer did not mean.
                key = sent;
                key.negative = true;
                key.retry = self.rng.one_in(2);
            }
            let body = match self.rng.below(9) * u64::from(!fresh) {
                0 => Body::ConfirmLink(confirm),
                1 => Body::AddLink(add),
                2 => Body::AddLinkCont(AddLinkCont {
                    link_num: unknown,
                    remaining: self.rng.byte(),
                    rtokens: Default::default(),
                }),
                3 => Body::DeleteLink(delete),
                4 => Body::ReqAddLink(ReqAddLink::default()),
                5 => Body::ConfirmRkey(key),
                6 => Body::ConfirmRkeyCont(ConfirmRkeyCont::default()),
                7 => Body::TestLink(*b"nobody asked for"),
                _ => Body::DeleteRkey(DeleteRkey::request(&keys)),
            };
            let version = match &body {
                Body::ReqAddLink(_) => llc::Version::V2,
                Body::AddLinkCont(_) | Body::ConfirmRkeyCont(_) => llc::Version::V1,
                _ => version,
            };
            let msg = Llc {
                version,
                response,
                body,
            };
            let bytes = msg.encode_short().unwrap();
            self.disturb(q);
            self.reach.hit("effect", "noise", msg.body.opcode());
            self.message(q, &bytes);
            if self.verbs.qps[q].destroyed || self.hosts[h].groups[g].links[col].is_none() {
                return;
            }
        }
    }
}
