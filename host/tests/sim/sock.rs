// SPDX-License-Identifier: GPL-2.0

//! Sockets: what belongs to one, and how the two of a pair are made.

use std::collections::VecDeque;

use crate::proto::clc::{self, AcceptConfirm, Limits};
use crate::proto::close::{Machine, SocketError, State};
use crate::proto::conn::{Conn, Early, TxPlan};
use crate::proto::group::RtokenIndex;
use crate::proto::ids::Rkey;
use crate::proto::size::RmbeSizeCode;

use super::app::{App, Ending};
use super::world::World;
use crate::common::Rng;

/// What comes over TCP.
#[derive(Clone, Debug)]
pub enum Tcp {
    Clc(Vec<u8>),
    Fin,
    Rst,
}

/// How far a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not connected.
    Fresh,
    /// Server: the Proposal is awaited.
    Listening,
    /// Server: another first contact is under way.
    Gate,
    /// Client: the Accept is awaited.
    Proposed,
    /// The key of our buffer is being told.
    Telling,
    /// Server: the Confirm is awaited.
    Accepted,
    /// The first link is being confirmed.
    Linking,
    /// It uses RDMA.
    Smc,
    /// It has fallen back.
    Tcp,
    /// The connection failed.
    Failed,
}

/// Where a handshake is declined on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuse {
    ServerAtProposal,
    ClientAtAccept,
    ServerAtConfirm,
    ServerHangs,
    Both,
}

pub struct Sock {
    pub host: usize,
    pub pair: usize,
    pub peer: usize,
    pub client: bool,
    pub phase: Phase,
    pub machine: Machine,
    pub conn: Option<Conn>,
    pub early: Early,
    pub group: Option<usize>,
    pub token: u32,
    pub col: usize,
    pub row: Option<RtokenIndex>,
    /// The peer's key as Accept names it, and on which link.
    pub peer_key: Option<(usize, Rkey)>,
    pub rmb: Option<usize>,
    /// The send rings: the small one, and the larger one.
    pub rings: [Vec<u8>; 2],
    /// Which of them is the present one.
    pub ring_now: usize,
    pub code: RmbeSizeCode,
    /// The handshake: our device, what we sent, and what the peer's messages say.
    pub device: usize,
    pub first: bool,
    pub accept: Option<AcceptConfirm>,
    pub v2_part: Option<clc::V2Part>,
    pub confirm_bytes: Vec<u8>,
    pub proposal: Vec<u8>,
    pub refuse: Option<Refuse>,
    pub clc_stamp: u64,
    pub tcp: VecDeque<Tcp>,
    pub orphan: Option<u64>,
    /// Bytes that came with the last message.
    pub news: u32,
    /// Numbers its timers; what was unfinished when the one for orphans was armed.
    pub stamp: u64,
    pub waiting: u32,
    pub finished: bool,
    pub released: bool,
    pub error: Option<SocketError>,
    /// Where the two streams start, and the first sequence number.
    pub starts: [u64; 2],
    pub seq: u16,
    pub written: u64,
    pub read: u64,
    pub was_smc: bool,
    pub app: App,
    /// Why this pair may lose data.
    pub excuse: Option<&'static str>,
}

impl Sock {
    /// In which send ring the bytes of a new plan lie.
    pub fn ring_of(&self, plan: &TxPlan) -> usize {
        if plan.from_before {
            1 - self.ring_now
        } else {
            self.ring_now
        }
    }

    /// Nothing of it is left but the account.
    pub fn is_over(&self) -> bool {
        self.machine.state() == State::Closed
            && !self.machine.is_open()
            && (self.group.is_none() || self.released)
            && self.orphan.is_none()
    }

    pub fn describe(&self) -> String {
        format!(
            "sock of pair {} host {} client {} {:?} {:?} open {} group {:?} col {} finished {} released {} \
             error {:?} written {} read {} starts {:?} app {:?} posted {:?} tcp {:?} excuse {:?} conn {:?}",
            self.pair,
            self.host,
            self.client,
            self.phase,
            self.machine.state(),
            self.machine.is_open(),
            self.group,
            self.col,
            self.finished,
            self.released,
            self.error,
            self.written,
            self.read,
            self.starts,
            self.app,
            self.conn.as_ref().map(Conn::posted),
            self.tcp,
            self.excuse,
            self.conn,
        )
    }

    /// The size of the rings of this connection.
    pub fn ring_len(code: RmbeSizeCode, scale: u32) -> u32 {
        code.bytes() >> scale
    }

    /// Where our stream starts, and the peer's.
    pub fn start(&self, ours: bool) -> u64 {
        self.starts[usize::from(self.client != ours)]
    }
}

impl World {
    /// Makes both sockets of a pair.
    pub fn make_pair(&mut self, pair: usize) {
        let plan = self.plan.clone();
        let rng = &mut self.rng;
        let opener = if plan.both_ways {
            rng.below(2) as usize
        } else {
            0
        };
        let code = |rng: &mut Rng| RmbeSizeCode::from_nibble(rng.below(3) as u8);
        let codes = [code(rng), code(rng)];
        // The client's stream goes into the server's element.
        let wrap = |rng: &mut Rng, into: RmbeSizeCode| {
            let len = u64::from(Sock::ring_len(into, plan.scale));
            if plan.near_wrap {
                (len << 16) - rng.range(1, len)
            } else {
                0
            }
        };
        let starts = [wrap(rng, codes[1]), wrap(rng, codes[0])];
        let seq = if rng.one_in(3) { 0xfffa } else { 0 };
        let rude = plan.rude > 0 && rng.one_in(plan.rude);
        let mut endings = [Ending::Half; 2];
        if rng.one_in(2) {
            endings[rng.below(2) as usize] = Ending::Wait;
        }
        if rude {
            for e in &mut endings {
                *e = [
                    Ending::Half,
                    Ending::Wait,
                    Ending::Close,
                    Ending::Both,
                    Ending::Abort,
                    Ending::Sudden,
                    Ending::Wild,
                ][rng.below(7) as usize];
            }
            if endings == [Ending::Wait; 2] {
                endings[0] = Ending::Close;
            }
        }
        let nap = match rng.below(20) {
            0..=5 if rude => rng.range(50_000_000, 200_000_000),
            6 if plan.sleepy => rng.range(33_000_000, 50_000_000),
            // All connections of a crowd are there at the same time.
            _ if plan.crowd => 2_000_000,
            _ => 0,
        };
        if plan.wild {
            endings = [0, 1].map(|_| {
                [Ending::Wild, Ending::Half, Ending::Both, Ending::Wait][rng.below(4) as usize]
            });
            if endings == [Ending::Wait; 2] {
                endings[0] = Ending::Wild;
            }
        }
        let late_nap = rude && rng.one_in(2);
        let napper = rng.below(2) as usize;
        let refuse = (plan.decline > 0 && rng.one_in(plan.decline)).then(|| {
            [
                Refuse::ServerAtProposal,
                Refuse::ClientAtAccept,
                Refuse::ServerAtConfirm,
                Refuse::ServerHangs,
                Refuse::Both,
            ][rng.below(5) as usize]
        });
        for side in 0..2 {
            let amount = |rng: &mut Rng| match rng.below(4) {
                0 => 0,
                _ => rng.range(0, plan.bytes),
            };
            let to_write = amount(rng);
            let sock = Sock {
                host: if side == 0 { opener } else { 1 - opener },
                pair,
                peer: 2 * pair + 1 - side,
                client: side == 0,
                phase: Phase::Fresh,
                machine: Machine::new(),
                conn: None,
                early: Early::new(),
                group: None,
                token: 0,
                col: 0,
                row: None,
                peer_key: None,
                rmb: None,
                rings: [vec![], vec![]],
                ring_now: 0,
                code: codes[side],
                device: 0,
                first: false,
                accept: None,
                v2_part: None,
                confirm_bytes: vec![],
                proposal: vec![],
                refuse,
                clc_stamp: 0,
                tcp: VecDeque::new(),
                orphan: None,
                news: 0,
                stamp: 0,
                waiting: 0,
                finished: false,
                released: false,
                error: None,
                starts,
                seq,
                written: starts[side],
                read: starts[1 - side],
                was_smc: false,
                app: App {
                    to_write,
                    chunk: rng.range(1, 60),
                    ending: endings[side],
                    sudden: if plan.crowd {
                        0
                    } else {
                        rng.range(0, plan.bytes)
                    },
                    ended: false,
                    eof: false,
                    writer_sleeps: false,
                    reader_sleeps: false,
                    scheduled: false,
                    urgent: rng.one_in(6),
                    nap: if side == napper || plan.crowd { nap } else { 0 },
                    late_nap,
                    fin_sent: false,
                    fin_got: false,
                },
                excuse: None,
            };
            self.socks.push(sock);
        }
        self.sum.conns += 1;
    }

    /// The pair may lose data from now on, and why.
    pub fn excuse(&mut self, s: usize, why: &'static str) {
        let peer = self.socks[s].peer;
        for s in [s, peer] {
            self.socks[s].excuse.get_or_insert(why);
        }
    }

    pub fn limits(&self, h: usize) -> Limits {
        Limits {
            max_conns: self.plan.max_conns[h],
            max_links: self.plan.max_links[h],
        }
    }
}
