// SPDX-License-Identifier: GPL-2.0

//! Runs by a written list of operations: the first bytes say what kind of run it is, the others
//! what happens, when and to whom. A fuzzer writes such lists.

use crate::proto::close::Event;
use crate::proto::llc::demux;
use crate::proto::llc::Demux;

use super::plan::{Delays, Plan};
use super::sock::{Phase, Tcp};
use super::trouble::Trouble;
use super::world::World;

/// Something that a list says; the number chooses the queue pair or the socket.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Something goes wrong with a link.
    Trouble(u8, Trouble),
    /// The next message that has come to a queue pair is lost, if it is one of LLC.
    Lose(u8),
    /// It comes twice.
    Twice(u8),
    /// An application calls.
    Call(u8, Call),
    /// Somebody on the way resets the TCP connection.
    Reset(u8),
}

/// What an application can call at any time.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    ShutdownRead,
    ShutdownWrite,
    ShutdownBoth,
    Abort,
    Close,
}

/// The first bytes, and those of an operation.
const HEAD: usize = 14;
const OP: usize = 4;

/// Operations, and the time of the last one in microseconds, at most.
const MOST_OPS: usize = 64;
const LATEST: u64 = 30_000_000;

impl Op {
    fn read([what, who, a, b]: [u8; OP]) -> (u64, Self) {
        let noticed = [what & 0x10 != 0, what & 0x20 != 0];
        let op = match what & 0x0f {
            0 => Self::Trouble(who, Trouble::Path(noticed)),
            1 => Self::Trouble(who, Trouble::Device),
            2 => Self::Trouble(who, Trouble::EndLink),
            3 => Self::Trouble(who, Trouble::Wish),
            4 => Self::Trouble(who, Trouble::Noise),
            5 => Self::Trouble(who, Trouble::EndGroup),
            6 => Self::Trouble(who, Trouble::TwoPaths),
            7 => Self::Trouble(who, Trouble::EndAndBreak),
            8 => Self::Lose(who),
            9 => Self::Twice(who),
            10 => Self::Call(who, Call::ShutdownWrite),
            11 => Self::Call(who, Call::ShutdownBoth),
            12 => Self::Call(who, Call::Abort),
            13 => Self::Call(who, Call::Close),
            14 => Self::Reset(who),
            _ => Self::Call(who, Call::ShutdownRead),
        };
        // Twelve bits and how far they are shifted: from a microsecond to minutes.
        let later = u64::from(u16::from_be_bytes([a & 0x0f, b])) << (a >> 4);
        (later, op)
    }
}

impl Plan {
    /// The plan that is written down in some bytes; those that are missing are zero.
    pub fn written(data: &[u8]) -> Self {
        let (head, ops) = data.split_at(data.len().min(HEAD));
        let mut h = [0; HEAD];
        h[..head.len()].copy_from_slice(head);
        let [version, shape, many, sizes, bytes, wire, completion, receive, tcp, think, queues, rude, opening, seed] =
            h;
        let bit = |n: u8, bit: u8| n & (1 << bit) != 0;
        let release = |n: u8| [None, Some(0), Some(1)][usize::from(n % 3)];
        let slow = bit(many, 3);
        let wild = bit(many, 4) && !slow;
        let delay =
            |n: u8, most: u64| 1 + u64::from(n) * if slow { most / 256 } else { most / 6000 };
        let mut at = 0;
        let ops = ops
            .chunks_exact(OP)
            .take(MOST_OPS)
            .map(|bytes| {
                let (later, op) = Op::read(bytes.try_into().unwrap());
                at = LATEST.min(at + later);
                (at, op)
            })
            .collect();
        Self {
            seed: seed.into(),
            v1: [bit(version, 0), bit(version, 1)],
            v2: [release(version >> 2), release((version >> 2) / 3)],
            devices: [
                1 + usize::from(bit(shape, 0)),
                1 + usize::from(bit(shape, 1)),
            ],
            max_links: [1 + u8::from(bit(shape, 2)), 1 + u8::from(bit(shape, 3))],
            max_conns: [if bit(shape, 4) { 16 } else { 255 }, 255],
            conns: 1 + usize::from(many & 7),
            crowd: false,
            both_ways: bit(shape, 5),
            scale: 7 + u32::from(sizes % 5),
            bytes: 1 + u64::from(bytes) * 6,
            delays: Delays {
                wire: delay(wire, 20_000),
                completion: delay(completion, 200_000),
                receive: delay(receive, 20_000),
                tcp: 10 + delay(tcp, 40_000),
                think: delay(think, 80_000),
            },
            rows: if bit(shape, 6) { 20 } else { 255 },
            slots: 2 + usize::from(queues & 0x0f),
            max_chain: [0, 0, 7, 20][usize::from((queues >> 4) & 3)],
            autocork: if bit(queues, 6) { 16 } else { 0 },
            trouble: vec![],
            ops,
            noise: bit(shape, 7),
            rude: if wild { 1 } else { u64::from(rude & 0x0f) },
            decline: 2 * u64::from(rude >> 4),
            opening: 1 + u64::from(opening) * 800,
            wild,
            sleepy: bit(many, 5),
            near_wrap: bit(many, 6),
        }
    }
}

impl World {
    /// Does what a list says.
    pub fn operate(&mut self, op: Op) {
        match op {
            Op::Trouble(who, what) => {
                let alive = self.alive();
                if !alive.is_empty() {
                    self.go_wrong(alive[usize::from(who) % alive.len()], what);
                }
            }
            Op::Lose(who) => {
                if let Some(q) = self.has_llc(who) {
                    self.verbs.qps[q].rq.pop_front();
                    self.disturb(q);
                }
            }
            Op::Twice(who) => {
                if let Some(q) = self.has_llc(who) {
                    let rq = &mut self.verbs.qps[q].rq;
                    rq.push_front(rq[0].clone());
                }
            }
            Op::Call(who, call) => self.call(usize::from(who) % self.socks.len(), call),
            Op::Reset(who) => {
                let s = usize::from(who) % self.socks.len();
                if self.socks[s].phase != Phase::Fresh {
                    self.excuse(s, "the TCP connection was reset");
                    let peer = self.socks[s].peer;
                    self.tcp_send(s, Tcp::Rst);
                    self.tcp_send(peer, Tcp::Rst);
                }
            }
        }
    }

    /// A queue pair on which an LLC message waits.
    fn has_llc(&self, who: u8) -> Option<usize> {
        let alive = self.alive();
        let all = alive
            .iter()
            .cycle()
            .skip(usize::from(who))
            .take(alive.len());
        all.copied().find(|q| {
            let first = self.verbs.qps[*q].rq.front();
            first.is_some_and(|m| matches!(demux(m[0]), Demux::Llc(_)))
        })
    }

    /// An application calls at this moment, whatever it was about to do.
    fn call(&mut self, s: usize, call: Call) {
        if !self.socks[s].machine.is_open() {
            return;
        }
        match self.socks[s].phase {
            Phase::Smc => {}
            // What it would do next comes to the same.
            Phase::Fresh | Phase::Tcp | Phase::Failed => return,
            _ if matches!(call, Call::Abort | Call::Close) => return self.give_up_early(s),
            _ => return,
        }
        self.excuse(s, "an application called at any time");
        match call {
            Call::ShutdownRead => {
                self.event(s, Event::ShutdownRead);
            }
            Call::ShutdownWrite => {
                self.event(s, Event::ShutdownWrite);
            }
            Call::ShutdownBoth => {
                self.event(s, Event::ShutdownBoth);
            }
            Call::Abort => {
                self.event(s, Event::LocalAbort);
            }
            Call::Close => self.close(s),
        }
        self.schedule(s);
    }
}
