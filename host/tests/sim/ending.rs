// SPDX-License-Identifier: GPL-2.0

//! Links that leave a group, lost or by an exchange, and the end of a group.

use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::*;

use super::group::{Adding, Change, Deleting, KeyJob, Life};
use super::world::{Ev, World};

impl World {
    /// Begins the end of a link; `asked` tells whether the peer wants it.
    pub fn start_delete(
        &mut self,
        h: usize,
        g: usize,
        id: FlowId,
        m: DeleteLink,
        via: usize,
        asked: bool,
    ) {
        let group = self.grp(h, g);
        let role = group.role;
        let col = group.by_id(m.link_num);
        let adding = match &group.change {
            Some(Change::Add(a)) => Some(a.new),
            _ => None,
        };
        assert!(adding.is_none());
        let others = group.active().filter(|c| Some(*c) != col).count();
        // What we want to end ourselves may be gone here, but not at the peer.
        let known = col.is_some() || !asked;
        let verdict = judge_delete(role, known, others);
        self.reach.hit("deletion", role, verdict);
        match verdict {
            Deletion::Ignore => self.finish(h, g, id),
            Deletion::AnswerUnknown => {
                let body = Body::DeleteLink(DeleteLink {
                    reason: DeleteLink::UNKNOWN_LINK,
                    ..m
                });
                self.response(h, g, via, body);
                self.finish(h, g, id);
            }
            Deletion::EndGroup => {
                self.finish(h, g, id);
                let all = DeleteLink::everything(m.orderly, m.reason);
                self.end_group(h, g, Some(all), "its last link is ended");
            }
            Deletion::Ask => {
                // The link stays usable for LLC messages.
                if let Some(col) = col {
                    self.evacuate(h, g, col);
                }
                if self.grp(h, g).life != Life::Active {
                    return self.finish(h, g, id);
                }
                let other = self.grp(h, g).active().find(|c| Some(*c) != col).unwrap();
                let awaited = Awaited {
                    opcode: Opcode::DeleteLink,
                    response: true,
                    link: Some(other),
                };
                let stamp = self.arm(h, g, id, awaited, WAIT_MS);
                self.grp(h, g).change = Some(Change::Delete(Deleting {
                    id,
                    what: m,
                    col,
                    via: other,
                    stamp,
                }));
                self.request(h, g, other, Body::DeleteLink(m));
            }
            Deletion::Answer => {
                self.evacuate(h, g, col.unwrap());
                let stamp = self.grp(h, g).next_stamp();
                self.grp(h, g).change = Some(Change::Delete(Deleting {
                    id,
                    what: m,
                    col,
                    via,
                    stamp,
                }));
                let most = if self.rng.one_in(3) { 200_000 } else { 1000 };
                self.soon(most, Ev::Emptied(h, g, id));
                self.maybe_noise(h, g);
            }
        }
    }

    /// The client answers and ends the link.
    pub fn emptied(&mut self, h: usize, g: usize, id: FlowId) {
        let group = self.grp(h, g);
        let Some(Change::Delete(d)) = &group.change else {
            return;
        };
        if d.id != id {
            return;
        }
        let (what, via, col) = (d.what, d.via, d.col);
        let over = if group.is_active(via) {
            Some(via)
        } else {
            group.active().find(|c| Some(*c) != col)
        };
        if let Some(over) = over {
            let body = Body::DeleteLink(DeleteLink { reason: 0, ..what });
            self.response(h, g, over, body);
        }
        self.delete_done(h, g);
    }

    /// The exchange that ends a link is over.
    pub fn delete_done(&mut self, h: usize, g: usize) {
        let Some(Change::Delete(d)) = self.grp(h, g).change.take() else {
            return;
        };
        let mut ended = None;
        if let Some(col) = d.col {
            let current = self.grp(h, g).by_id(d.what.link_num);
            if current == Some(col) {
                ended = Some(col);
                // A connection may have come to it meanwhile.
                let actions = self.link_event(h, g, col, LinkEvent::Deleted);
                if actions.evacuate {
                    self.evacuate(h, g, col);
                }
                self.after_loss(h, g);
            }
        }
        self.finish(h, g, d.id);
        if let Some(col) = ended {
            self.nothing_comes(h, g, col);
        }
    }

    /// A host has noticed that a link is lost.
    pub fn link_lost(&mut self, h: usize, g: usize, col: usize) {
        let q = self.qp(h, g, col);
        self.disturb(q);
        self.verbs.qps[q].broken = true;
        let id = self.grp(h, g).links[col].as_ref().unwrap().id;
        let actions = self.link_event(h, g, col, LinkEvent::Lost);
        let group = self.grp(h, g);
        let running = group.change.is_some();
        match group.life {
            Life::Ending => return,
            // The handshake has not come so far yet.
            Life::Forming if !running => {
                return self.end_group(h, g, None, "its last link is lost");
            }
            Life::Forming | Life::Active => {}
        }
        if actions.evacuate {
            self.evacuate(h, g, col);
            self.after_loss(h, g);
            if self.grp(h, g).life == Life::Ending {
                return;
            }
        }
        // The link that is being added is not always the one on which the next message comes.
        if let Some(Change::Add(a)) = &self.grp(h, g).change {
            if a.new == col {
                self.reach.hit("effect", "exchange", "NewLinkGone");
                self.add_event(h, g, AddEvent::LinkGone);
            }
        }
        self.nothing_comes(h, g, col);
        if self.grp(h, g).life == Life::Ending {
            return;
        }
        if let (true, Some(id)) = (actions.report, id) {
            let m = DeleteLink {
                link_num: id.get(),
                all: false,
                orderly: false,
                reason: DeleteLink::LOST_PATH,
            };
            self.want_gone(h, g, m);
        }
    }

    /// A side wants a link to end: the server sees to it, the client asks for it.
    pub fn want_gone(&mut self, h: usize, g: usize, m: DeleteLink) {
        let group = self.grp(h, g);
        match group.role {
            Role::Server => {
                group.want_delete.push_back(m);
                self.soon(5, Ev::Pump(h, g));
            }
            Role::Client => {
                let over = group.active().next();
                if let Some(over) = over {
                    self.request(h, g, over, Body::DeleteLink(m));
                }
            }
        }
    }

    /// Exchanges that wait for a message on a link that has ended wait no longer.
    fn nothing_comes(&mut self, h: usize, g: usize, col: usize) {
        let gone: Vec<_> = self.grp(h, g).flows.link_gone(col).collect();
        for id in gone {
            self.give_up(h, g, id, AddEvent::LinkGone);
        }
    }

    /// The number of active links has changed.
    fn after_loss(&mut self, h: usize, g: usize) {
        let group = self.grp(h, g);
        if group.life == Life::Ending {
            return;
        }
        let left = group.active().count();
        group.kind = group.kind.after_delete(left);
        if left == 0 {
            return self.end_group(h, g, None, "its last link is lost");
        }
        if left == 1 {
            // What remains is the only one, whatever it was.
            let col = group.active().next().unwrap();
            group.links[col].as_mut().unwrap().spare = false;
        }
        if group.role == Role::Server {
            group.want_add |= left == 1;
        }
        self.soon(1000, Ev::Pump(h, g));
    }

    /// Moves all connections of a link to another; without one nothing happens.
    fn evacuate(&mut self, h: usize, g: usize, col: usize) {
        // Nothing of the old link may arrive behind the first message on the new one.
        let q = self.qp(h, g, col);
        self.drain(q);
        let socks: Vec<_> = self.grp(h, g).conns.values().copied().collect();
        for s in socks {
            if self.socks[s].col != col {
                continue;
            }
            let mut usable = self.usable(h, g);
            // Once a side has closed the peer may have withdrawn its key; messages need none.
            let sock = &self.socks[s];
            let writes = sock
                .conn
                .as_ref()
                .is_none_or(|c| !c.peer_close().closed && !c.sent_close().closed);
            if let Some(row) = sock.row.filter(|_| writes) {
                // The peer may have left a link that looks good from here, but not for no reason.
                for (c, link) in usable.iter_mut().enumerate() {
                    let known = self.grp(h, g).table().get(row, c).is_some();
                    assert!(
                        known
                            || !link.active
                            || self.grp(h, g).disturbed
                            || self.socks[s].excuse.is_some(),
                        "no key of the peer on link {c}: {}",
                        self.socks[s].describe()
                    );
                    link.active &= known;
                }
            }
            match pick_other(&usable, col) {
                Some(to) => self.move_conn(s, to),
                None if self.grp(h, g).active().any(|c| c != col) => self.cannot_move(s),
                // The group ends.
                None => {}
            }
        }
    }

    /// The links when connections choose.
    pub fn usable(&self, h: usize, g: usize) -> [Usable; LINK_SLOTS] {
        let group = &self.hosts[h].groups[g];
        std::array::from_fn(|c| Usable {
            active: group.is_active(c),
            spare: group.links[c].as_ref().is_some_and(|l| l.spare),
            conns: group
                .conns
                .values()
                .filter(|s| self.socks[**s].col == c)
                .count() as u32,
        })
    }

    /// Excuses time-outs in a group and in that of its peer.
    pub fn disturb(&mut self, q: usize) {
        let (h, g) = (self.verbs.qps[q].host, self.verbs.qps[q].group);
        let links = &self.hosts[h].groups[g].links;
        let mut ends: Vec<_> = links.iter().flatten().map(|l| l.qp).collect();
        ends.push(q);
        for q in ends {
            for end in [Some(q), self.verbs.qps[q].peer].into_iter().flatten() {
                let (h, g) = (self.verbs.qps[end].host, self.verbs.qps[end].group);
                self.grp(h, g).disturbed = true;
            }
        }
    }

    /// Ends a group, telling the peer if that is wanted.
    pub fn end_group(&mut self, h: usize, g: usize, tell: Option<DeleteLink>, why: &'static str) {
        let group = self.grp(h, g);
        if group.life == Life::Ending {
            return;
        }
        let over = group.active().next();
        if let (Some(m), Some(col)) = (tell, over) {
            self.request(h, g, col, Body::DeleteLink(m));
        }
        self.reach.hit("effect", "group ends", why);
        let group = self.grp(h, g);
        group.life = Life::Ending;
        if let Some(Change::Add(Adding { first: Some(s), .. })) = group.change.take() {
            self.first_contact_over(s, End::GivenUp);
        }
        let group = self.grp(h, g);
        group.flows = Flows::new(group.role);
        let mut jobs: Vec<_> = group.jobs.drain(..).collect();
        jobs.extend(group.telling.take().map(|t| t.job));
        group.want_delete.clear();
        group.want_add = false;
        let conns: Vec<_> = group.conns.values().copied().collect();
        for q in group
            .links
            .iter()
            .flatten()
            .map(|l| l.qp)
            .collect::<Vec<_>>()
        {
            self.disturb(q);
        }
        for col in 0..LINK_SLOTS {
            if self.grp(h, g).links[col].is_some() {
                let _ = self.link_event(h, g, col, LinkEvent::Deleted);
            }
        }
        for s in conns {
            self.link_died(s);
        }
        for job in jobs {
            match job {
                KeyJob::Tell { sock, .. } => self.key_told(sock, false),
                KeyJob::Forget { rmbs } => self.forget(h, g, &rmbs),
            }
        }
        if self.hosts[h].forming == Some(g) {
            self.open_gate(h);
        }
    }

    /// The queue pair of a link is destroyed: what was posted comes back, nothing more arrives.
    pub fn clear(&mut self, q: usize) {
        let (h, g, col) = {
            let qp = &self.verbs.qps[q];
            (qp.host, qp.group, qp.col)
        };
        // What has arrived is taken in first.
        while let Some(bytes) = self.verbs.qps[q].rq.pop_front() {
            self.message(q, &bytes);
        }
        self.verbs.qps[q].destroyed = true;
        self.flush(q);
        while let Some((back, ok)) = self.verbs.qps[q].cq.pop_front() {
            self.completed(q, back, ok);
        }
        let pending = std::mem::take(&mut self.verbs.qps[q].pending);
        for rmb in self.grp(h, g).rmbs.clone() {
            self.verbs.unmap(rmb, col);
        }
        let mut stale: Vec<u32> = vec![];
        stale.extend(
            self.verbs
                .mrs
                .iter()
                .filter(|(_, (_, owner))| *owner == q)
                .map(|(k, _)| *k),
        );
        for key in stale {
            self.verbs.mrs.remove(&key);
        }
        self.grp(h, g).table().drop_link(col);
        let _ = self.link_event(h, g, col, LinkEvent::Cleared);
        self.grp(h, g).links[col] = None;
        for s in pending {
            self.push(s);
        }
        self.soon(5, Ev::Pump(h, g));
    }
}
