// SPDX-License-Identifier: GPL-2.0

//! Link groups as a shell keeps them: it makes and ends queue pairs, carries messages and timers,
//! and otherwise does what the core says.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::clc;
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use super::verbs::{Back, Wr};
use super::world::{Ev, World};

/// How often a key is told again that the peer could not take.
pub const MOST_TRIES: u32 = 12;

/// One link.
pub struct Link {
    pub state: LinkState,
    /// Unknown on a client before CONFIRM LINK of the first link.
    pub id: Option<LinkId>,
    pub qp: usize,
    pub device: usize,
    pub peer: LinkPeer,
    /// It is the asymmetric one.
    pub spare: bool,
    pub heard: u64,
    pub tested: Option<u64>,
}

/// How far a group's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The first contact is under way.
    Forming,
    Active,
    /// Nothing is sent or awaited; queue pairs are being taken apart.
    Ending,
}

/// A link on its way.
pub struct Adding {
    pub id: FlowId,
    pub run: Addition,
    pub old: usize,
    pub new: usize,
    /// The socket of a first contact.
    pub first: Option<usize>,
    /// What the server has sent.
    pub sent: Option<AddLink<'static>>,
    pub becomes: GroupType,
    pub keys: Vec<MovedRtoken>,
    /// Version 1: the exchange of keys, and our next message in it.
    pub tokens: Option<TokenExchange>,
    pub prepared: Option<AddLinkCont>,
    pub stamp: u64,
}

impl Adding {
    /// Makes our next message with keys.
    pub fn prepare(&mut self) {
        let tokens = self.tokens.as_mut().unwrap();
        let next = &self.keys[usize::from(tokens.told())..];
        self.prepared = tokens.message(next);
    }
}

/// A link on its way out.
pub struct Deleting {
    pub id: FlowId,
    pub what: DeleteLink,
    pub col: Option<usize>,
    /// Server: over which link the client was asked. Client: on which link the request came.
    pub via: usize,
    pub stamp: u64,
}

/// The exchange that changes links.
#[allow(clippy::large_enum_variant, reason = "there is one for each group")]
pub enum Change {
    Add(Adding),
    Delete(Deleting),
}

/// Something about keys that waits for its turn.
#[derive(Clone, Debug)]
pub enum KeyJob {
    Tell { sock: usize, tries: u32 },
    Forget { rmbs: Vec<usize> },
}

/// The exchange that tells keys.
pub struct Telling {
    pub id: FlowId,
    pub job: KeyJob,
    pub via: usize,
    pub sent: Option<ConfirmRkey>,
    pub stamp: u64,
}

pub struct Group {
    pub role: Role,
    pub identity: Identity,
    pub version: llc::Version,
    pub life: Life,
    pub links: [Option<Link>; LINK_SLOTS],
    pub last_id: u8,
    pub flows: Flows,
    pub change: Option<Change>,
    pub telling: Option<Telling>,
    pub jobs: VecDeque<KeyJob>,
    /// Ends of links that we want, and whether we want a further link.
    pub want_delete: VecDeque<DeleteLink>,
    pub want_add: bool,
    /// The client of a first contact waits for an offer.
    pub owes_offer: bool,
    /// The message behind what the core has parked for a client.
    pub parked_add: Option<(Vec<u8>, usize)>,
    pub rows: Vec<RtokenEntry>,
    pub conns: BTreeMap<u32, usize>,
    pub tokens: TokenAllocator,
    pub members: u32,
    pub kind: GroupType,
    pub max_links: u8,
    pub max_conns: u8,
    pub rmbs: Vec<usize>,
    pub idle_since: u64,
    /// Something went wrong that excuses a time-out.
    pub disturbed: bool,
    stamp: u64,
}

impl Group {
    /// Nothing of it is left.
    pub fn is_gone(&self) -> bool {
        self.life == Life::Ending && self.links.iter().all(Option::is_none) && self.members == 0
    }

    pub fn describe(&self) -> String {
        let links: Vec<_> = self
            .links
            .iter()
            .map(|l| l.as_ref().map(|l| (l.state, l.id, l.qp, l.spare)))
            .collect();
        format!(
            "{:?} {:?} {:?} {:?} members {} conns {:?} jobs {} flows {:?} links {links:?} want {:?} {}",
            self.role,
            self.version,
            self.life,
            self.kind,
            self.members,
            self.conns,
            self.jobs.len(),
            self.flows,
            self.want_delete,
            self.want_add
        )
    }

    pub fn check_empty(&self) {
        assert!(
            self.conns.is_empty() && self.jobs.is_empty(),
            "{}",
            self.describe()
        );
        assert!(
            self.change.is_none() && self.telling.is_none(),
            "{}",
            self.describe()
        );
        assert!(self.flows.is_idle(), "{}", self.describe());
        assert!(self.rmbs.is_empty(), "buffers {:?}", self.rmbs);
    }

    pub fn is_active(&self, col: usize) -> bool {
        matches!(&self.links[col], Some(l) if l.state == LinkState::Active)
    }

    pub fn active(&self) -> impl Iterator<Item = usize> + '_ {
        (0..LINK_SLOTS).filter(|c| self.is_active(*c))
    }

    pub fn by_id(&self, id: u8) -> Option<usize> {
        (0..LINK_SLOTS).find(|c| {
            matches!(&self.links[*c], Some(l) if l.id.is_some_and(|i| i.get() == id)
                && l.state != LinkState::Ending)
        })
    }

    pub fn ids(&self) -> [Option<LinkId>; LINK_SLOTS] {
        std::array::from_fn(|c| self.links[c].as_ref().and_then(|l| l.id))
    }

    pub fn peers(&self) -> [LinkPeer; LINK_SLOTS] {
        std::array::from_fn(|c| match &self.links[c] {
            Some(l) => LinkPeer {
                active: l.state == LinkState::Active,
                ..l.peer
            },
            None => LinkPeer {
                active: false,
                gid: Gid::ZERO,
                mac: Mac::ZERO,
                qpn: Qpn::default(),
            },
        })
    }

    pub fn table(&mut self) -> RtokenTable<'_> {
        RtokenTable::new(&mut self.rows)
    }

    pub fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}

/// Longer than any message.
const BUFFER: usize = llc::MAX_LEN;

impl World {
    pub fn grp(&mut self, h: usize, g: usize) -> &mut Group {
        &mut self.hosts[h].groups[g]
    }

    /// Makes a group with its first link, whose queue pair can be named.
    pub fn new_group(
        &mut self,
        h: usize,
        role: Role,
        identity: Identity,
        limits: clc::Limits,
        device: usize,
    ) -> usize {
        let g = self.hosts[h].groups.len();
        let seed = self.rng.next() as u32;
        self.hosts[h].groups.push(Group {
            role,
            identity,
            version: match identity.version {
                clc::Version::V1 => llc::Version::V1,
                clc::Version::V2 => llc::Version::V2,
            },
            life: Life::Forming,
            links: [None, None, None],
            last_id: 0,
            flows: Flows::new(role),
            change: None,
            telling: None,
            jobs: VecDeque::new(),
            want_delete: VecDeque::new(),
            want_add: false,
            owes_offer: false,
            parked_add: None,
            rows: vec![RtokenEntry::EMPTY; self.plan.rows],
            conns: BTreeMap::new(),
            tokens: TokenAllocator::new(seed),
            members: 0,
            kind: GroupType::None,
            max_links: limits.max_links,
            max_conns: limits.max_conns,
            rmbs: vec![],
            idle_since: self.now,
            disturbed: false,
            stamp: 0,
        });
        let id = match role {
            Role::Server => Some(LinkId::FIRST),
            Role::Client => None,
        };
        self.new_link(h, g, 0, device, id);
        self.grp(h, g).last_id = 1;
        self.wind(h);
        g
    }

    /// Makes a link in a free column: a queue pair, and keys for all buffers.
    pub fn new_link(&mut self, h: usize, g: usize, col: usize, device: usize, id: Option<LinkId>) {
        let qp = self.verbs.new_qp(h, g, col);
        let now = self.now;
        self.grp(h, g).links[col] = Some(Link {
            state: LinkState::Unused,
            id,
            qp,
            device,
            peer: LinkPeer {
                active: false,
                gid: Gid::ZERO,
                mac: Mac::ZERO,
                qpn: Qpn::default(),
            },
            spare: false,
            heard: now,
            tested: None,
        });
        let _ = self.link_event(h, g, col, LinkEvent::Made);
        for rmb in self.grp(h, g).rmbs.clone() {
            self.verbs.map(rmb, qp);
        }
    }

    /// Names the peer's end of a link; says whether there is such an end.
    pub fn connect(&mut self, h: usize, g: usize, col: usize, peer: LinkPeer) -> bool {
        let link = self.grp(h, g).links[col].as_mut().unwrap();
        link.peer = peer;
        let qp = link.qp;
        let found = self.verbs.by_number(peer.qpn.get(), 1 - h);
        let q = &mut self.verbs.qps[qp];
        q.peer = found;
        q.receives = true;
        found.is_some()
    }

    pub fn qp(&self, h: usize, g: usize, col: usize) -> usize {
        self.hosts[h].groups[g].links[col].as_ref().unwrap().qp
    }

    /// Runs the machine of a link.
    pub fn link_event(&mut self, h: usize, g: usize, col: usize, event: LinkEvent) -> LinkActions {
        let link = self.hosts[h].groups[g].links[col].as_mut().unwrap();
        let from = link.state;
        let actions = link
            .state
            .on(event)
            .unwrap_or_else(|_| panic!("link {from:?} {event:?}"));
        self.reach.hit("link", from, event);
        if self.trace {
            eprintln!("           host {h} group {g} link {col}: {from:?} {event:?}");
        }
        if actions.clear {
            let q = link.qp;
            self.soon(200_000, Ev::Clear(q));
        }
        actions
    }

    /// Posts a message on a link.
    pub fn post(&mut self, h: usize, g: usize, col: usize, msg: Llc<'_>) {
        let mut out = [0; BUFFER];
        let n = msg.encode(&mut out).unwrap();
        self.post_bytes(h, g, col, &out[..n]);
    }

    fn post_bytes(&mut self, h: usize, g: usize, col: usize, bytes: &[u8]) {
        let Some(link) = &self.hosts[h].groups[g].links[col] else {
            return;
        };
        let q = link.qp;
        if link.state == LinkState::Ending || !self.verbs.qps[q].sends {
            return;
        }
        self.reach.hit(
            "said",
            self.hosts[h].groups[g].version,
            Llc::decode(bytes).unwrap().body.opcode(),
        );
        self.verbs.qps[q].sq.push_back(Wr {
            data: None,
            message: bytes.to_vec(),
            back: Back::Nobody,
        });
        self.kick(q);
    }

    pub fn request(&mut self, h: usize, g: usize, col: usize, body: Body<'_>) {
        let version = self.grp(h, g).version;
        self.post(h, g, col, Llc::request(version, body));
    }

    pub fn response(&mut self, h: usize, g: usize, col: usize, body: Body<'_>) {
        let version = self.grp(h, g).version;
        self.post(h, g, col, Llc::response(version, body));
    }

    /// An LLC message has come.
    pub fn on_llc(&mut self, h: usize, g: usize, col: usize, bytes: &[u8]) {
        if self.trace {
            eprintln!(
                "           host {h} group {g} link {col}: {:?}",
                Llc::decode(bytes)
            );
        }
        if self.grp(h, g).life == Life::Ending {
            return;
        }
        let Ok(msg) = Llc::decode(bytes) else {
            self.reach.hit("effect", "llc", "malformed");
            return;
        };
        let group = self.grp(h, g);
        let state = (
            group.role,
            group.flows.changing_links(),
            group.telling.is_some(),
        );
        let event = (msg.body.opcode(), msg.response);
        let verdict = group.flows.arrived(&msg, col);
        self.reach.hit("flow", state, event);
        match verdict {
            Verdict::Deliver(_) => self.reach.hit("verdict", "Deliver", ""),
            v => self.reach.hit("verdict", v, ""),
        }
        match verdict {
            Verdict::Deliver(id) => self.delivered(h, g, col, id, &msg),
            Verdict::Answer => self.answer(h, g, col, &msg),
            Verdict::RefuseForNow => match refuse_for_now(&msg) {
                LlcReply::Send(bytes) => self.post_bytes(h, g, col, &bytes),
                other => panic!("{other:?}"),
            },
            Verdict::Start(kind) => self.start_for_peer(h, g, col, kind, &msg),
            Verdict::Parked => {
                if matches!(msg.body, Body::AddLink(_)) {
                    self.grp(h, g).parked_add = Some((bytes.to_vec(), col));
                }
            }
            Verdict::Terminate => {
                self.answer(h, g, col, &msg);
                self.end_group(h, g, None, "the peer ends it");
            }
            Verdict::Drop(_) => {}
        }
    }

    /// Answers what needs no exchange.
    pub fn answer(&mut self, h: usize, g: usize, col: usize, msg: &Llc<'_>) {
        let group = self.grp(h, g);
        let ids = group.ids();
        let context = Context {
            role: group.role,
            link: col,
            links: &ids,
        };
        let reply = respond(msg, &mut RtokenTable::new(&mut group.rows), &context);
        let kind = match reply {
            LlcReply::Send(_) => "Send",
            LlcReply::Waiter(_) => "Waiter",
            LlcReply::Terminate { .. } => "Terminate",
            LlcReply::Ignore(_) => "Ignore",
        };
        self.reach.hit("reply", kind, msg.body.opcode());
        match reply {
            LlcReply::Send(bytes) => self.post_bytes(h, g, col, &bytes),
            LlcReply::Terminate { answer, .. } => {
                if let Some(bytes) = answer {
                    self.post_bytes(h, g, col, &bytes);
                }
            }
            LlcReply::Waiter(_) | LlcReply::Ignore(_) => {}
        }
    }

    /// What an exchange waited for.
    fn delivered(&mut self, h: usize, g: usize, col: usize, id: FlowId, msg: &Llc<'_>) {
        if self.grp(h, g).telling.as_ref().is_some_and(|t| t.id == id) {
            return self.key_answer(h, g, &msg.body);
        }
        match &self.grp(h, g).change {
            Some(Change::Add(a)) if a.id == id => self.add_message(h, g, col, &msg.body),
            Some(Change::Delete(d)) if d.id == id => self.delete_done(h, g),
            _ => panic!("nobody runs {id:?}"),
        }
    }

    fn start_for_peer(&mut self, h: usize, g: usize, col: usize, kind: Exchange, msg: &Llc<'_>) {
        let id = self.grp(h, g).flows.begin_for_peer(kind).unwrap();
        match &msg.body {
            Body::DeleteLink(m) => self.start_delete(h, g, id, *m, col, true),
            Body::AddLink(m) if self.grp(h, g).role == Role::Client => {
                self.take_offer(h, g, id, col, m);
            }
            Body::AddLink(_) => self.offer(h, g, id, None),
            Body::ReqAddLink(_) => self.offer(h, g, id, Some((col, msg))),
            other => panic!("{other:?}"),
        }
    }

    /// Ends an exchange and begins what was parked.
    pub fn finish(&mut self, h: usize, g: usize, id: FlowId) {
        let next = self.grp(h, g).flows.finish(id);
        self.begin_next(h, g, next);
    }

    /// Begins what was parked, or lets others have their turn.
    pub fn begin_next(&mut self, h: usize, g: usize, next: Option<Next>) {
        if let Some(next) = &next {
            let kind = match next {
                Next::AddLink(_) => "AddLink",
                Next::DeleteLink(_) => "DeleteLink",
            };
            let role = self.grp(h, g).role;
            self.reach.hit("next", role, kind);
        }
        if self.grp(h, g).life == Life::Active {
            match next {
                Some(Next::DeleteLink(m)) => {
                    let id = self.grp(h, g).flows.begin(Exchange::DeleteLink).unwrap();
                    let via = self.grp(h, g).active().next();
                    match via {
                        Some(via) => self.start_delete(h, g, id, m, via, true),
                        None => self.finish(h, g, id),
                    }
                    return;
                }
                Some(Next::AddLink(_)) => {
                    let id = self.grp(h, g).flows.begin(Exchange::AddLink).unwrap();
                    if self.grp(h, g).role == Role::Server {
                        return self.offer(h, g, id, None);
                    }
                    let (bytes, col) = self.grp(h, g).parked_add.take().unwrap();
                    let msg = Llc::decode(&bytes).unwrap();
                    match &msg.body {
                        Body::AddLink(m) if self.grp(h, g).is_active(col) => {
                            self.take_offer(h, g, id, col, m);
                        }
                        _ => self.finish(h, g, id),
                    }
                    return;
                }
                None => {}
            }
        }
        self.soon(5, Ev::Pump(h, g));
    }

    /// Begins what waits for its turn.
    pub fn pump(&mut self, h: usize, g: usize) {
        let group = self.grp(h, g);
        if group.life != Life::Active || !group.flows.is_idle() {
            return;
        }
        let Some(via) = group.active().next() else {
            return;
        };
        if let Some(m) = group.want_delete.pop_front() {
            let id = group.flows.begin(Exchange::DeleteLink).unwrap();
            return self.start_delete(h, g, id, m, via, false);
        }
        if std::mem::take(&mut group.want_add) {
            let id = group.flows.begin(Exchange::AddLink).unwrap();
            return self.offer(h, g, id, None);
        }
        if let Some(job) = group.jobs.pop_front() {
            self.tell(h, g, job);
        }
    }

    /// Waits for a message with its limit.
    pub fn arm(&mut self, h: usize, g: usize, id: FlowId, awaited: Awaited, ms: u32) -> u64 {
        let group = self.grp(h, g);
        assert!(group.flows.expect(id, awaited));
        let stamp = group.next_stamp();
        self.after_ms(ms, Ev::Flow(h, g, id, stamp));
        self.maybe_noise(h, g);
        stamp
    }

    pub fn flow_timeout(&mut self, h: usize, g: usize, id: FlowId, stamp: u64) {
        let group = self.grp(h, g);
        let telling = group
            .telling
            .as_ref()
            .is_some_and(|t| t.id == id && t.stamp == stamp);
        let changing = match &group.change {
            Some(Change::Add(a)) => a.id == id && a.stamp == stamp,
            Some(Change::Delete(d)) => d.id == id && d.stamp == stamp,
            None => false,
        };
        if !telling && !changing {
            return;
        }
        assert!(
            group.disturbed,
            "an answer did not come in an undisturbed group of host {h}: {}",
            group.describe()
        );
        self.give_up(h, g, id, AddEvent::TimedOut);
    }

    /// What an exchange awaited will not come.
    pub fn give_up(&mut self, h: usize, g: usize, id: FlowId, why: AddEvent) {
        self.reach.hit("effect", "exchange", why);
        let group = self.grp(h, g);
        if group.telling.as_ref().is_some_and(|t| t.id == id) {
            let t = group.telling.take().unwrap();
            // Over another link it may be told again.
            let again = why == AddEvent::LinkGone;
            match t.job {
                KeyJob::Tell { sock, tries } if again && tries < MOST_TRIES => {
                    self.grp(h, g).jobs.push_front(KeyJob::Tell {
                        sock,
                        tries: tries + 1,
                    });
                    self.finish(h, g, id);
                }
                KeyJob::Tell { sock, .. } => {
                    self.finish(h, g, id);
                    self.key_told(sock, false);
                }
                KeyJob::Forget { rmbs } => {
                    if again {
                        self.grp(h, g).jobs.push_front(KeyJob::Forget { rmbs });
                    } else {
                        self.forget(h, g, &rmbs);
                    }
                    self.finish(h, g, id);
                }
            }
            return;
        }
        match &self.grp(h, g).change {
            Some(Change::Add(a)) if a.id == id => self.add_event(h, g, why),
            Some(Change::Delete(d)) if d.id == id => self.delete_done(h, g),
            _ => {}
        }
    }

    /// The clock looks at a group.
    pub fn watch(&mut self, h: usize, g: usize) {
        let now = self.now;
        let group = self.grp(h, g);
        if group.life != Life::Active {
            return;
        }
        let idle = group.members == 0 && group.jobs.is_empty() && group.flows.is_idle();
        if !idle {
            group.idle_since = now;
        } else if now - group.idle_since >= u64::from(linger_ms(group.role, 10)) * 1000 {
            if !group.disturbed && self.peer_is_idle(h, g) {
                let group = self.grp(h, g);
                let left = group.table().used();
                assert_eq!(left, 0, "keys of the peer are left: {}", group.describe());
            }
            let all = DeleteLink::everything(true, DeleteLink::PROGRAM);
            return self.end_group(h, g, Some(all), "it is idle");
        }
        if self.grp(h, g).flows.is_idle() {
            self.check_keys(h, g);
        }
        for col in 0..LINK_SLOTS {
            let Some(link) = &mut self.grp(h, g).links[col] else {
                continue;
            };
            if link.state != LinkState::Active {
                continue;
            }
            let signs = Signs {
                heard: (now - link.heard) / 1000,
                tested: link.tested.map(|t| (now - t) / 1000),
                stuck: None,
            };
            let verdict = judge_silence(signs, 30_000);
            match verdict {
                Silence::Fine => {}
                Silence::Test => {
                    link.tested = Some(now);
                    let q = link.qp;
                    if self.rng.one_in(8) {
                        // A peer that is stuck does not answer.
                        self.disturb(q);
                    } else {
                        self.request(h, g, col, Body::TestLink(*b"is anybody there"));
                    }
                }
                Silence::Lost => {
                    assert!(self.grp(h, g).disturbed, "a test was not answered");
                    self.link_lost(h, g, col);
                }
            }
            self.reach.hit("effect", "silence", verdict);
        }
        self.pump(h, g);
    }
}
