// SPDX-License-Identifier: GPL-2.0

//! Links that come into a group: first contacts, and the exchanges that add a link.

use crate::proto::clc;
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use super::group::{Adding, Change, Life};
use super::world::World;

impl World {
    /// The messages of the first link are awaited from now on.
    pub fn first_contact(&mut self, h: usize, g: usize, sock: usize) {
        let group = self.grp(h, g);
        let id = group.flows.begin(Exchange::AddLink).unwrap();
        let (run, order) = Addition::first_contact(group.role, group.version);
        let stamp = group.next_stamp();
        group.change = Some(Change::Add(Adding {
            id,
            run,
            old: 0,
            new: 0,
            first: Some(sock),
            sent: None,
            becomes: GroupType::Single,
            keys: vec![],
            tokens: None,
            prepared: None,
            stamp,
        }));
        self.obey(h, g, order);
    }

    /// What a side knows when a further link is to be made, and the device it would take.
    fn add_context(&self, h: usize, g: usize) -> Option<(AddContext, usize, usize)> {
        let group = &self.hosts[h].groups[g];
        let first = group
            .active()
            .find(|c| !group.links[*c].as_ref().unwrap().spare)?;
        let base = group.links[first].as_ref().unwrap();
        let devices = &self.hosts[h].devices;
        let other = (0..devices.len()).find(|d| *d != base.device && devices[*d].up);
        // The client has listed its devices in the handshake, and again with each wish.
        let peer_alternate = self.hosts[1 - h]
            .devices
            .iter()
            .any(|d| d.up && d.gid != base.peer.gid);
        let context = AddContext {
            group: group.kind,
            own_alternate: other.is_some(),
            peer_alternate,
            peer_gid: base.peer.gid,
            peer_mac: base.peer.mac,
            compare_mac: group.identity.version == clc::Version::V1,
            max_links: group.max_links,
            free_slot: group.links.iter().any(Option::is_none),
        };
        Some((context, other.unwrap_or(base.device), first))
    }

    /// The server offers a link if that would help; a wish is refused otherwise.
    pub fn offer(&mut self, h: usize, g: usize, id: FlowId, wish: Option<(usize, &Llc<'_>)>) {
        // A client of a first contact waits for an offer, even where it will refuse it.
        let owed = std::mem::take(&mut self.grp(h, g).owes_offer);
        let found = self.add_context(h, g).filter(|(c, ..)| {
            c.may_offer(Role::Server)
                || owed && c.group == GroupType::Single && c.max_links > 1 && c.free_slot
        });
        let Some((context, device, old)) = found else {
            if let Some((col, msg)) = wish {
                self.answer(h, g, col, msg);
            }
            return self.finish(h, g, id);
        };
        let group = self.grp(h, g);
        let new = (0..LINK_SLOTS).find(|c| group.links[*c].is_none()).unwrap();
        let used: Vec<_> = group.ids().into_iter().flatten().collect();
        let link = next_link_id(group.last_id, used.iter().copied()).unwrap();
        group.last_id = link.get();
        self.new_link(h, g, new, device, Some(link));
        let sent = self.end_of(h, g, new, context.compare_mac);
        let keys = self.moved(h, g, old, new);
        let tokens = TokenExchange::new(Role::Server, link, keys.len() as u8);
        let (run, order) = Addition::offer(self.grp(h, g).version);
        let stamp = self.grp(h, g).next_stamp();
        self.grp(h, g).change = Some(Change::Add(Adding {
            id,
            run,
            old,
            new,
            first: None,
            sent: Some(sent),
            becomes: GroupType::None,
            tokens: Some(tokens),
            prepared: None,
            keys,
            stamp,
        }));
        self.obey(h, g, order);
    }

    /// Our end of a link as ADD LINK describes it.
    fn end_of(&self, h: usize, g: usize, col: usize, _v1: bool) -> AddLink<'static> {
        let link = self.hosts[h].groups[g].links[col].as_ref().unwrap();
        let device = &self.hosts[h].devices[link.device];
        AddLink {
            mac: device.mac,
            gid: device.gid,
            qpn: Qpn::truncate(self.verbs.qpn(link.qp)),
            link_num: link.id.map_or(0, LinkId::get),
            mtu: MtuCode::B1024,
            psn: Psn::truncate(7),
            rejected: false,
            reject_reason: 0,
            ext: None,
        }
    }

    /// Our keys on a new link: those that the peer may have, and the one that is being told. Its
    /// table has room for no more than one message carries; what is withdrawn next comes last.
    fn moved(&self, h: usize, g: usize, old: usize, new: usize) -> Vec<MovedRtoken> {
        let key = |rmb: usize, col: usize| self.verbs.rmbs[rmb].keys[col];
        let mut rmbs = self.hosts[h].groups[g].rmbs.clone();
        rmbs.retain(|r| self.verbs.rmbs[*r].known);
        rmbs.sort_by_key(|r| self.verbs.rmbs[*r].retired);
        rmbs.into_iter()
            .filter_map(|r| {
                let (reference, _) = key(r, old)?;
                let (rkey, vaddr) = key(r, new)?;
                Some(MovedRtoken {
                    reference: Rkey(reference),
                    rkey: Rkey(rkey),
                    vaddr: Vaddr(vaddr),
                })
            })
            .take(MAX_RTOKENS)
            .collect()
    }

    /// The client takes a server's offer or refuses it.
    pub fn take_offer(&mut self, h: usize, g: usize, id: FlowId, col: usize, m: &AddLink<'_>) {
        let known = self.grp(h, g).by_id(m.link_num).is_some();
        let judged = match self.add_context(h, g) {
            Some((context, device, _)) if !known && self.grp(h, g).life == Life::Active => {
                context.judge_request(m).map(|becomes| (becomes, device))
            }
            _ => Err(AddLink::NO_ALT_PATH),
        };
        self.reach.hit("judge_request", judged.map(|(t, _)| t), "");
        let (becomes, device) = match judged {
            Ok(found) => found,
            Err(reason) => {
                self.response(h, g, col, Body::AddLink(m.rejection(reason)));
                return self.finish(h, g, id);
            }
        };
        let group = self.grp(h, g);
        let new = (0..LINK_SLOTS).find(|c| group.links[*c].is_none()).unwrap();
        self.new_link(h, g, new, device, LinkId::new(m.link_num));
        let peer = LinkPeer {
            active: false,
            gid: m.gid,
            mac: m.mac,
            qpn: m.qpn,
        };
        self.connect(h, g, new, peer);
        if let Some(ext) = &m.ext {
            for t in ext.rtokens.iter() {
                self.grp(h, g).table().add_moved(col, new, &t);
            }
        }
        let keys = self.moved(h, g, col, new);
        let link = LinkId::new(m.link_num).unwrap();
        let tokens = TokenExchange::new(Role::Client, link, keys.len() as u8);
        let (run, order) = Addition::accept(self.grp(h, g).version);
        let stamp = self.grp(h, g).next_stamp();
        self.grp(h, g).change = Some(Change::Add(Adding {
            id,
            run,
            old: col,
            new,
            first: None,
            sent: None,
            becomes,
            tokens: Some(tokens),
            prepared: None,
            keys,
            stamp,
        }));
        self.obey(h, g, order);
    }

    /// A message that an addition waited for.
    pub fn add_message(&mut self, h: usize, g: usize, _col: usize, body: &Body<'_>) {
        let Some(Change::Add(a)) = &self.grp(h, g).change else {
            return;
        };
        let (old, new) = (a.old, a.new);
        let event = match body {
            Body::AddLink(m) => self.offer_answered(h, g, old, new, m),
            Body::AddLinkCont(m) => self.keys_came(h, g, old, new, m),
            Body::ConfirmLink(m) => {
                let group = self.grp(h, g);
                let link = group.links[new].as_mut().unwrap();
                match judge_confirm_link(m, link.id, group.max_links) {
                    Ok(agreed) => {
                        link.id = Some(agreed.id);
                        group.max_links = agreed.max_links;
                        let qp = link.qp;
                        self.verbs.qps[qp].sends = true;
                        AddEvent::Confirmed
                    }
                    Err(_) => AddEvent::Failed,
                }
            }
            other => panic!("{other:?}"),
        };
        self.add_event(h, g, event);
    }

    /// Keys of the peer have come in version 1.
    fn keys_came(
        &mut self,
        h: usize,
        g: usize,
        old: usize,
        new: usize,
        m: &AddLinkCont,
    ) -> AddEvent {
        let group = self.grp(h, g);
        let Some(Change::Add(a)) = &mut group.change else {
            return AddEvent::Failed;
        };
        let mut table = RtokenTable::new(&mut group.rows);
        match a.tokens.as_mut().unwrap().arrived(m, &mut table, old, new) {
            Ok(Told::Keys { .. }) => {}
            Ok(Told::Again) => return AddEvent::KeysAgain,
            Err(_) => return AddEvent::Failed,
        }
        if a.run.role() == Role::Client {
            a.prepare();
        }
        AddEvent::Keys {
            more: a.tokens.as_ref().unwrap().turn() != Turn::Done,
        }
    }

    /// The client's answer to an offer.
    fn offer_answered(
        &mut self,
        h: usize,
        g: usize,
        old: usize,
        new: usize,
        m: &AddLink<'_>,
    ) -> AddEvent {
        let Some((context, ..)) = self.add_context(h, g) else {
            return AddEvent::Refused;
        };
        let Some(Change::Add(a)) = &mut self.grp(h, g).change else {
            return AddEvent::Failed;
        };
        let Some((becomes, _)) = context.judge_response(a.sent.as_ref().unwrap(), m) else {
            return AddEvent::Refused;
        };
        a.becomes = becomes;
        let peer = LinkPeer {
            active: false,
            gid: m.gid,
            mac: m.mac,
            qpn: m.qpn,
        };
        if !self.connect(h, g, new, peer) {
            return AddEvent::OutOfReach;
        }
        let qp = self.qp(h, g, new);
        self.verbs.qps[qp].sends = true;
        if let Some(ext) = &m.ext {
            for t in ext.rtokens.iter() {
                self.grp(h, g).table().add_moved(old, new, &t);
            }
        }
        AddEvent::Accepted
    }

    /// Runs an addition.
    pub fn add_event(&mut self, h: usize, g: usize, event: AddEvent) {
        let group = self.grp(h, g);
        let version = group.version;
        let Some(Change::Add(a)) = &mut group.change else {
            return;
        };
        let from = (a.run.role(), version, a.first.is_some(), a.run.step());
        let order = a.run.on(event);
        let name = match event {
            AddEvent::Keys { .. } => "Keys".to_owned(),
            e => format!("{e:?}"),
        };
        self.reach.hit("addition", from, name);
        let group = self.grp(h, g);
        assert!(
            order.end != Some(End::GivenUp) || event == AddEvent::Refused || group.disturbed,
            "a link was given up without need: {from:?} {event:?} {}",
            group.describe()
        );
        self.obey(h, g, order);
    }

    /// Does what an addition asks for.
    fn obey(&mut self, h: usize, g: usize, order: Order) {
        let Some(Change::Add(a)) = &self.grp(h, g).change else {
            return;
        };
        let (id, old, new) = (a.id, a.old, a.new);
        if order.end == Some(End::Linked) {
            self.linked(h, g);
        }
        if let Some(wait) = order.wait {
            let stamp = self.arm(h, g, id, wait.awaited(old, new), wait.limit_ms);
            if let Some(Change::Add(a)) = &mut self.grp(h, g).change {
                a.stamp = stamp;
            }
        }
        if let Some((what, via)) = order.say {
            let col = match via {
                Via::Old => old,
                Via::New => new,
            };
            self.say(h, g, what, col, new);
        }
        if let Some(end) = order.end {
            self.reach.hit("effect", "addition", end);
            let Some(Change::Add(a)) = self.grp(h, g).change.take() else {
                return;
            };
            if end == End::GivenUp && self.grp(h, g).links[new].is_some() {
                let _ = self.link_event(h, g, new, LinkEvent::GivenUp);
            }
            self.finish(h, g, id);
            if let Some(sock) = a.first {
                self.first_contact_over(sock, end);
            }
        }
    }

    /// Sends a message of an addition.
    fn say(&mut self, h: usize, g: usize, what: Say, col: usize, new: usize) {
        let group = &self.hosts[h].groups[g];
        let server = group.role == Role::Server;
        let Some(Change::Add(a)) = &group.change else {
            return;
        };
        let keys = a.keys.clone();
        match what {
            Say::AddLink => {
                let mut m = self.end_of(h, g, new, true);
                if self.grp(h, g).version == llc::Version::V2 {
                    m.ext = Some(Extension {
                        direct: true,
                        client_gid: Gid::ZERO,
                        rtokens: MovedRtokens::new(&keys),
                        order: llc::ByteOrder::Network,
                    });
                }
                let body = Body::AddLink(m);
                if server {
                    self.request(h, g, col, body);
                } else {
                    self.response(h, g, col, body);
                }
            }
            Say::Keys => {
                let Some(Change::Add(a)) = &mut self.grp(h, g).change else {
                    return;
                };
                if server {
                    a.prepare();
                }
                let body = Body::AddLinkCont(a.prepared.take().unwrap());
                if server {
                    self.request(h, g, col, body);
                } else {
                    self.response(h, g, col, body);
                }
            }
            Say::Confirm => {
                let group = self.grp(h, g);
                let link = group.links[col].as_ref().unwrap();
                let (qp, device, id) = (link.qp, link.device, link.id.unwrap());
                let (max_links, max_conns) = (group.max_links, group.max_conns);
                let device = &self.hosts[h].devices[device];
                let body = Body::ConfirmLink(ConfirmLink {
                    mac: device.mac,
                    gid: device.gid,
                    qpn: Qpn::truncate(self.verbs.qpn(qp)),
                    link_num: id.get(),
                    user_id: LinkUserId::from_number(qp as u32),
                    max_links,
                    max_conns,
                    no_eyecatcher: true,
                });
                if server {
                    self.request(h, g, col, body);
                } else {
                    self.response(h, g, col, body);
                }
            }
            Say::Delete => {
                let col = if self.grp(h, g).is_active(col) {
                    Some(col)
                } else {
                    self.grp(h, g).active().next()
                };
                let link = self.grp(h, g).links[new].as_ref();
                if let (Some(id), Some(col)) = (link.and_then(|l| l.id), col) {
                    let body = Body::DeleteLink(DeleteLink {
                        link_num: id.get(),
                        all: false,
                        orderly: false,
                        reason: DeleteLink::LOST_PATH,
                    });
                    self.request(h, g, col, body);
                }
            }
        }
    }

    /// A link has been confirmed.
    fn linked(&mut self, h: usize, g: usize) {
        let Some(Change::Add(a)) = &self.grp(h, g).change else {
            return;
        };
        let (new, becomes, first) = (a.new, a.becomes, a.first.is_some());
        let _ = self.link_event(h, g, new, LinkEvent::Confirmed);
        self.reach.hit("type", becomes, "");
        self.check_keys(h, g);
        let now = self.now;
        let group = self.grp(h, g);
        group.links[new].as_mut().unwrap().heard = now;
        if first {
            group.life = Life::Active;
        }
        let mut old_spare = None;
        if becomes == GroupType::Symmetric {
            old_spare = (0..LINK_SLOTS).find(
                |c| matches!(&group.links[*c], Some(l) if l.spare && l.state == LinkState::Active),
            );
        }
        group.kind = becomes;
        group.links[new].as_mut().unwrap().spare = becomes.is_asymmetric();
        if group.role == Role::Server {
            if let Some(col) = old_spare {
                let id = group.links[col].as_ref().unwrap().id.unwrap();
                group.want_delete.push_back(DeleteLink {
                    link_num: id.get(),
                    all: false,
                    orderly: true,
                    reason: DeleteLink::NO_ASYMMETRIC,
                });
            }
            // Further links follow the first at once.
            group.want_add |= first;
            group.owes_offer |= first;
        }
    }
}
