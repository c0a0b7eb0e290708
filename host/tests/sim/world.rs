// SPDX-License-Identifier: GPL-2.0

//! The clock, the events, and the two hosts.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::close::{Event, Machine};
use crate::proto::group::FlowId;
use crate::proto::ids::{Gid, Mac, PeerId, Role};

use super::group::Group;
use super::ops::Op;
use super::plan::Plan;
use super::reach::Reach;
use super::sock::{Sock, Tcp};
use super::verbs::Verbs;
use crate::common::Rng;

/// Something that happens at its time.
#[derive(Clone, Copy, Debug)]
pub enum Ev {
    /// The device of a queue pair carries out its next work request.
    Deliver(usize),
    /// A host takes the next completion of a queue pair.
    Complete(usize),
    /// A host takes the next message that came on a queue pair.
    Receive(usize),
    /// The next thing arrives on the TCP connection of a socket.
    Tcp(usize),
    /// What an exchange awaited has not come.
    Flow(usize, usize, FlowId, u64),
    /// Key or link exchanges may begin.
    Pump(usize, usize),
    /// A client has taken its connections off a link that the server ends.
    Emptied(usize, usize, FlowId),
    /// The timer for orphans.
    Orphan(usize, u64),
    /// The same, although it was stopped.
    Late(usize),
    /// The timer of the handshake.
    Clc(usize, u64),
    /// The application of a socket runs.
    App(usize),
    /// A socket connects.
    Open(usize),
    /// A host learns that a link is broken.
    Notice(usize),
    /// The queue pair of a link that has ended is gone.
    Clear(usize),
    /// The clock of a host that watches over its groups.
    Tick(usize),
    /// Something goes wrong.
    Trouble,
    /// What a written list says.
    Op(Op),
    /// Messages come that nobody asked for.
    Noise(usize),
    /// A device comes back.
    Back(usize, usize),
}

/// A device of a host.
pub struct Device {
    pub gid: Gid,
    pub mac: Mac,
    pub up: bool,
}

pub struct Host {
    pub peer_id: PeerId,
    pub devices: Vec<Device>,
    pub groups: Vec<Group>,
    /// Server: the group whose first contact is under way, and who waits for that.
    pub forming: Option<usize>,
    pub waiting: VecDeque<usize>,
    pub ticking: bool,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    pub events: u64,
    pub conns: u64,
    pub most_in_group: u64,
    pub server_groups: u64,
    pub smc: u64,
    pub failovers: u64,
    pub bytes: u64,
}

pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    /// Microseconds.
    pub now: u64,
    queue: BTreeMap<(u64, u64), Ev>,
    order: u64,
    pub verbs: Verbs,
    pub hosts: [Host; 2],
    pub socks: Vec<Sock>,
    pub reach: Reach,
    pub sum: Summary,
    pub trace: bool,
}

/// No run may take longer than this, in microseconds; every wait in it is bounded by less.
const HORIZON: u64 = 900_000_000;

/// Nor have more events.
const MOST_EVENTS: u64 = 3_000_000;

impl World {
    pub fn new(plan: Plan) -> Self {
        let host = |h: usize| Host {
            peer_id: PeerId::new([0, h as u8 + 1], Mac([2, 0, 0, 0, h as u8, 0])),
            devices: (0..plan.devices[h])
                .map(|d| Device {
                    gid: Gid::from_v4([10, 0, h as u8, d as u8 + 1]),
                    mac: Mac([2, 0, 0, 0, h as u8, d as u8 + 1]),
                    up: true,
                })
                .collect(),
            groups: vec![],
            forming: None,
            waiting: VecDeque::new(),
            ticking: false,
        };
        let mut w = Self {
            rng: Rng::new(plan.seed),
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            verbs: Verbs::default(),
            hosts: [host(0), host(1)],
            socks: vec![],
            reach: Reach::default(),
            sum: Summary::default(),
            trace: std::env::var_os("SMC_TRACE").is_some(),
            plan,
        };
        for pair in 0..w.plan.conns {
            w.make_pair(pair);
            let at = w.rng.below(w.plan.opening);
            w.at(at, Ev::Open(2 * pair));
        }
        w.listener();
        for at in w.plan.trouble.clone() {
            w.at(at, Ev::Trouble);
        }
        for (at, op) in w.plan.ops.clone() {
            w.at(at, Ev::Op(op));
        }
        w
    }

    /// A listening socket lives beside the connections.
    fn listener(&mut self) {
        let mut machine = Machine::new();
        for event in [Event::Listen, Event::Listen, Event::Close { unread: false }] {
            self.reach.hit("close", machine.state(), event);
            let _ = machine.transition(event).unwrap();
        }
    }

    /// At a time.
    pub fn at(&mut self, time: u64, ev: Ev) {
        self.order += 1;
        self.queue.insert((time.max(self.now), self.order), ev);
    }

    /// After about that long.
    pub fn soon(&mut self, most: u64, ev: Ev) {
        let after = self.rng.range(1, most.max(1));
        self.at(self.now + after, ev);
    }

    /// After exactly that long.
    pub fn after_ms(&mut self, ms: u32, ev: Ev) {
        self.at(self.now + u64::from(ms) * 1000, ev);
    }

    /// What it did, and what it reached.
    pub fn account(mut self) -> (Summary, Reach) {
        // A run with two hosts that both listen counts the groups of one.
        self.sum.server_groups = self
            .hosts
            .iter()
            .map(|h| h.groups.iter().filter(|g| g.role == Role::Server).count() as u64)
            .max()
            .unwrap_or(0);
        (self.sum, self.reach)
    }

    /// Runs to the end and checks that nothing is left.
    pub fn run(&mut self) {
        while let Some(((time, _), ev)) = self.queue.pop_first() {
            self.now = time;
            if !matches!(ev, Ev::Tick(_)) {
                self.sum.events += 1;
            }
            if self.trace {
                eprintln!("{time:>10} {ev:?}");
            }
            assert!(
                time < HORIZON && self.sum.events < MOST_EVENTS,
                "somebody waits for ever: {}",
                self.who_waits()
            );
            self.handle(ev);
            self.check(ev);
        }
        self.check_end();
    }

    fn handle(&mut self, ev: Ev) {
        match ev {
            Ev::Deliver(q) => self.deliver(q),
            Ev::Complete(q) => self.complete(q),
            Ev::Receive(q) => self.receive(q),
            Ev::Tcp(s) => self.tcp_arrives(s),
            Ev::Flow(h, g, id, stamp) => self.flow_timeout(h, g, id, stamp),
            Ev::Pump(h, g) => self.pump(h, g),
            Ev::Emptied(h, g, id) => self.emptied(h, g, id),
            Ev::Orphan(s, stamp) => self.orphan_timeout(s, stamp),
            Ev::Late(s) => self.late_timeout(s),
            Ev::Clc(s, stamp) => self.clc_timeout(s, stamp),
            Ev::App(s) => self.app(s),
            Ev::Open(s) => self.open(s),
            Ev::Notice(q) => self.notice(q),
            Ev::Clear(q) => self.clear(q),
            Ev::Tick(h) => self.tick(h),
            Ev::Trouble => self.trouble(),
            Ev::Op(op) => self.operate(op),
            Ev::Noise(q) => self.noise(q),
            Ev::Back(h, d) => self.device_back(h, d),
        }
    }

    /// Sends something over the TCP connection of a socket.
    pub fn tcp_send(&mut self, from: usize, what: Tcp) {
        let to = self.socks[from].peer;
        self.socks[to].tcp.push_back(what);
        // Each thing has its own event and the first comes first, so the order is kept.
        self.soon(self.plan.delays.tcp, Ev::Tcp(to));
    }

    /// The clock of a host goes as long as it has groups.
    pub fn wind(&mut self, h: usize) {
        if !self.hosts[h].ticking {
            self.hosts[h].ticking = true;
            self.at(self.now + 1_000_000, Ev::Tick(h));
        }
    }

    fn tick(&mut self, h: usize) {
        self.hosts[h].ticking = false;
        let mut more = false;
        for g in 0..self.hosts[h].groups.len() {
            self.watch(h, g);
            more |= !self.hosts[h].groups[g].is_gone();
        }
        if more {
            self.wind(h);
        }
    }
}
