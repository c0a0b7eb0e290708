// SPDX-License-Identifier: GPL-2.0

//! The CLC handshake of both roles, with the bytes of the messages.

use crate::proto::clc::{
    self, check_accept, check_confirm, choose, AcceptConfirm, Choice, Decline, FirstContact,
    Header, Kind, Limits, MessageType, Offer, Proposal, ServerPolicy, V2Part,
};
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::DeclineReason;

use super::app::Ending;
use super::group::{KeyJob, Life};
use super::phases::CLC_MS;
use super::sock::{Phase, Refuse, Tcp};
use super::world::{Ev, World};

impl World {
    /// A client connects; TCP has done its part.
    pub fn open(&mut self, s: usize) {
        let peer = self.socks[s].peer;
        let h = self.socks[s].host;
        self.await_proposal(peer);
        for s in [s, peer] {
            if self.socks[s].app.ending == Ending::Sudden {
                self.schedule(s);
            }
        }
        let up = |w: &World, h: usize| {
            let first = match w.plan.crowd {
                true => 0,
                false => w.socks[s].pair % w.hosts[h].devices.len(),
            };
            (0..w.hosts[h].devices.len())
                .map(|d| (d + first) % w.hosts[h].devices.len())
                .find(|d| w.hosts[h].devices[*d].up)
        };
        let Some(device) = up(self, h) else {
            return self.decline(s, DeclineReason::NOSMCRDEV);
        };
        self.socks[s].device = device;
        if !self.plan.v1[h] && self.plan.v2[h].is_none() {
            return self.decline(s, DeclineReason::NOSMCDEV);
        }
        self.propose(s);
    }

    /// Sends a Proposal.
    fn propose(&mut self, s: usize) {
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
            extensions: clc::Extensions::NONE,
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

    /// The kind of a CLC message.
    fn kind_of(bytes: &[u8]) -> MessageType {
        let head: [u8; 8] = bytes[..8].try_into().unwrap();
        let header = Header::decode(&head).unwrap();
        assert_eq!(header.len(), bytes.len());
        header.kind
    }

    /// A CLC message has come.
    pub fn on_clc(&mut self, s: usize, bytes: &[u8]) {
        let kind = Self::kind_of(bytes);
        if kind == MessageType::Decline {
            let d = Decline::decode(bytes).unwrap();
            self.reach
                .hit("declined", self.socks[s].phase, d.reason.name());
            return self.declined(s);
        }
        match (self.socks[s].phase, kind) {
            (Phase::Listening, MessageType::Proposal) => self.on_proposal(s, bytes),
            (Phase::Proposed, MessageType::Accept) => self.on_accept(s, bytes),
            (Phase::Accepted, MessageType::Confirm) => self.on_confirm(s, bytes),
            // Whoever declined or failed reads no more of the handshake.
            (Phase::Tcp | Phase::Failed, _) => {}
            (phase, kind) => panic!("{kind:?} in {phase:?}"),
        }
    }

    fn on_proposal(&mut self, s: usize, bytes: &[u8]) {
        self.stop_clc(s);
        self.socks[s].proposal = bytes.to_vec();
        if self.socks[s].refuse == Some(Refuse::ServerAtProposal) {
            return self.decline(s, DeclineReason::IPSEC);
        }
        self.server_join(s);
    }

    /// The server finds a group for a connection or makes one.
    fn server_join(&mut self, s: usize) {
        let h = self.socks[s].host;
        let bytes = self.socks[s].proposal.clone();
        let proposal = Proposal::decode(&bytes).unwrap();
        let devices = &self.hosts[h].devices;
        let up = (0..devices.len()).find(|d| devices[*d].up);
        let usable = up.ok_or(DeclineReason::NOSMCRDEV);
        let no = DeclineReason::MODEUNSUPP;
        let policy = ServerPolicy {
            extensions: clc::Extensions::NONE,
            v2: usable.and(self.plan.v2[h].map(|_| ()).ok_or(no)),
            v1: usable.and(self.plan.v1[h].then_some(()).ok_or(no)),
            release: self.plan.v2[h].unwrap_or(0),
            limits: self.limits(h),
        };
        let choice = match choose(&proposal, &policy, [Eid::DEFAULT].into_iter()) {
            Ok(c) => c,
            Err(reason) => return self.decline(s, reason),
        };
        let own = self.limits(h);
        let (version, release, eid, limits, gid) = match choice {
            Choice::V1 => (
                clc::Version::V1,
                0,
                None,
                Limits {
                    max_links: own.max_links,
                    ..Limits::V1
                },
                proposal.gid,
            ),
            Choice::V2 {
                release,
                eid,
                limits,
                ..
            } => {
                let gid = proposal.v2.as_ref().unwrap().gid;
                (clc::Version::V2, release, Some(eid), limits, gid)
            }
        };
        self.reach.hit("version", version, release);
        let identity = Identity {
            role: Role::Server,
            version,
            peer_id: proposal.peer_id,
            eid,
            vlan: None,
        };
        let wanted = Wanted {
            identity,
            gid,
            mac: proposal.mac,
            qpn: None,
        };
        let found = self.find_group(h, &wanted);
        let v2 = |first: bool, fce: FirstContact| {
            eid.map(|eid| V2Part {
                eid,
                first_contact: first.then_some(fce),
            })
        };
        let fce = FirstContact::new(true, release, Hostname::clean(b"simulated"), limits);
        if let Some((g, _)) = found {
            let col = pick_link(&self.usable(h, g)).unwrap();
            self.join(s, g, col);
            self.socks[s].v2_part = v2(false, fce);
            self.socks[s].phase = Phase::Telling;
            self.grp(h, g)
                .jobs
                .push_back(KeyJob::Tell { sock: s, tries: 0 });
            self.soon(5, Ev::Pump(h, g));
            return;
        }
        if self.hosts[h].forming.is_some() {
            self.socks[s].phase = Phase::Gate;
            self.hosts[h].waiting.push_back(s);
            self.reach.hit("effect", "gate", "waits");
            return;
        }
        let g = self.new_group(h, Role::Server, identity, limits, up.unwrap());
        self.hosts[h].forming = Some(g);
        self.socks[s].first = true;
        self.join(s, g, 0);
        self.socks[s].v2_part = v2(true, fce);
        self.send_accept(s);
    }

    /// A group that a connection may join, and the link that matched.
    fn find_group(&mut self, h: usize, wanted: &Wanted) -> Option<(usize, usize)> {
        for g in 0..self.hosts[h].groups.len() {
            let group = self.grp(h, g);
            let peers = group.peers();
            let candidate = Candidate {
                identity: group.identity,
                ending: group.life == Life::Ending,
                conns: u8::try_from(group.members).unwrap_or(u8::MAX),
                max_conns: group.max_conns,
                rtoken_free: group.table().has_room(),
                links: &peers,
            };
            if let Some(col) = find_link(&candidate, wanted) {
                return Some((g, col));
            }
        }
        None
    }

    fn send_accept(&mut self, s: usize) {
        // Not sooner: the connection may have come to another link while its key was told.
        let mut accept = self.describe_us(s, Kind::Accept, self.socks[s].first);
        accept.v2 = self.socks[s].v2_part;
        self.socks[s].accept = Some(accept);
        let mut out = [0; clc::MAX_ACCEPT_CONFIRM];
        let n = accept.encode(&[], &mut out).unwrap();
        self.tcp_send(s, Tcp::Clc(out[..n].to_vec()));
        self.await_confirm(s);
    }

    /// What both of our messages say of us.
    fn describe_us(&mut self, s: usize, kind: Kind, first: bool) -> AcceptConfirm {
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

    fn on_accept(&mut self, s: usize, bytes: &[u8]) {
        self.stop_clc(s);
        let h = self.socks[s].host;
        let (accept, _) = AcceptConfirm::decode(bytes).unwrap();
        let offer = Offer {
            extensions: clc::Extensions::NONE,
            v1: self.plan.v1[h],
            v2: self.plan.v2[h].is_some(),
            release: self.plan.v2[h].unwrap_or(0),
            limits: self.limits(h),
            mtu: MtuCode::B1024,
        };
        let agreed = match check_accept(&offer, [Eid::DEFAULT].into_iter(), &accept) {
            Ok(a) => a,
            Err(reason) => return self.decline(s, reason),
        };
        if self.socks[s].refuse == Some(Refuse::ClientAtAccept) {
            return self.decline(s, DeclineReason::MEM);
        }
        let identity = Identity {
            role: Role::Client,
            version: agreed.version,
            peer_id: accept.peer_id,
            eid: accept.v2.as_ref().map(|v| v.eid),
            vlan: None,
        };
        let peer = LinkPeer {
            active: false,
            gid: accept.gid,
            mac: accept.mac,
            qpn: accept.qpn,
        };
        let (g, col) = if agreed.first_contact {
            let limits = match agreed.version {
                // A single link is more than the RFC allows, and CONFIRM LINK has to find that out.
                clc::Version::V1 => Limits {
                    max_links: self.limits(h).max_links,
                    ..agreed.limits
                },
                clc::Version::V2 => agreed.limits,
            };
            let device = self.socks[s].device;
            let g = self.new_group(h, Role::Client, identity, limits, device);
            self.socks[s].first = true;
            (g, 0)
        } else {
            let wanted = Wanted {
                identity,
                gid: accept.gid,
                mac: accept.mac,
                qpn: Some(accept.qpn),
            };
            match self.find_group(h, &wanted) {
                Some(found) => found,
                None => return self.decline(s, DeclineReason::SYNCERR),
            }
        };
        self.join(s, g, col);
        if agreed.first_contact {
            self.connect(h, g, col, peer);
        }
        let token = Rtoken {
            rkey: accept.rkey,
            vaddr: accept.vaddr,
        };
        let row = match self.grp(h, g).table().add(col, token) {
            Ok(row) => row,
            Err(TableFull) => return self.decline(s, DeclineReason::ERR_RTOK),
        };
        self.socks[s].row = Some(row);
        self.socks[s].peer_key = Some((col, accept.rkey));
        let mut confirm = self.describe_us(s, Kind::Confirm, agreed.first_contact);
        confirm.mtu = agreed.mtu;
        confirm.v2 = accept.v2.as_ref().map(|v| V2Part {
            eid: v.eid,
            first_contact: agreed.first_contact.then(|| {
                let release = agreed.release.unwrap_or(0);
                FirstContact::new(true, release, Hostname::clean(b"simulated"), agreed.limits)
            }),
        });
        let device = &self.hosts[h].devices[self.socks[s].device];
        let listed = [device.gid];
        let gids: &[_] = if agreed.first_contact && confirm.v2.is_some() {
            &listed
        } else {
            &[]
        };
        let mut out = [0; clc::MAX_ACCEPT_CONFIRM];
        let n = confirm.encode(gids, &mut out).unwrap();
        self.socks[s].confirm_bytes = out[..n].to_vec();
        self.start_conn(s, &accept);
        if agreed.first_contact {
            self.socks[s].phase = Phase::Linking;
            self.first_contact(h, g, s);
            self.tcp_send(s, Tcp::Clc(out[..n].to_vec()));
            if self.socks[s].refuse == Some(Refuse::Both) {
                self.decline(s, DeclineReason::ERR_RDYLNK);
            }
        } else {
            self.socks[s].phase = Phase::Telling;
            self.grp(h, g)
                .jobs
                .push_back(KeyJob::Tell { sock: s, tries: 0 });
            self.soon(5, Ev::Pump(h, g));
        }
    }

    /// The peer has our key, or will not have it.
    pub fn key_told(&mut self, s: usize, ok: bool) {
        if self.socks[s].phase != Phase::Telling {
            return;
        }
        if !ok {
            return self.decline(s, DeclineReason::ERR_REGBUF);
        }
        if !self.socks[s].client {
            return self.send_accept(s);
        }
        let bytes = self.socks[s].confirm_bytes.clone();
        self.tcp_send(s, Tcp::Clc(bytes));
        self.established(s);
    }

    fn on_confirm(&mut self, s: usize, bytes: &[u8]) {
        self.stop_clc(s);
        let h = self.socks[s].host;
        let first = self.socks[s].first;
        let (confirm, _) = AcceptConfirm::decode(bytes).unwrap();
        let accept = self.socks[s].accept.unwrap();
        if let Err(reason) = check_confirm(&accept, &confirm) {
            panic!("{reason:?}");
        }
        let planned = matches!(
            self.socks[s].refuse,
            Some(Refuse::ServerAtConfirm | Refuse::Both)
        );
        if planned && first {
            return self.decline(s, DeclineReason::ERR_REGBUF);
        }
        if self.socks[s].refuse == Some(Refuse::ServerHangs) && first {
            // The client runs out of patience first.
            let peer = self.socks[s].peer;
            let (ph, pg) = (self.socks[peer].host, self.socks[peer].group.unwrap());
            self.grp(ph, pg).disturbed = true;
            return self.await_confirm(s);
        }
        let g = self.socks[s].group.unwrap();
        let token = Rtoken {
            rkey: confirm.rkey,
            vaddr: confirm.vaddr,
        };
        let col = self.socks[s].col;
        let row = if first {
            self.grp(h, g).table().add(col, token).ok()
        } else {
            // The client has told it on all links; the one that Accept named may have gone since.
            (0..LINK_SLOTS).find_map(|c| {
                let table = self.grp(h, g).table();
                let row = table.find(c, token.rkey)?;
                (table.get(row, c) == Some(token) && table.get(row, col).is_some()).then_some(row)
            })
        };
        let Some(row) = row else {
            // The client goes on with RDMA already.
            return self.fail(s, true);
        };
        self.socks[s].row = Some(row);
        self.start_conn(s, &confirm);
        if planned && !first {
            // The client believes in RDMA already.
            return self.fail(s, true);
        }
        if !first {
            return self.established(s);
        }
        let peer = LinkPeer {
            active: false,
            gid: confirm.gid,
            mac: confirm.mac,
            qpn: confirm.qpn,
        };
        self.socks[s].phase = Phase::Linking;
        self.connect(h, g, 0, peer);
        let q = self.grp(h, g).links[0].as_ref().unwrap().qp;
        self.verbs.qps[q].sends = true;
        self.first_contact(h, g, s);
    }

    /// The first contact is over: the next may begin, or join.
    pub fn open_gate(&mut self, h: usize) {
        self.hosts[h].forming = None;
        let waiting = std::mem::take(&mut self.hosts[h].waiting);
        for s in waiting {
            if self.socks[s].phase == Phase::Gate {
                self.server_join(s);
            }
        }
    }
}
