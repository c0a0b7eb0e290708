// SPDX-License-Identifier: GPL-2.0

//! What a seed makes of a run: versions, devices, sizes, delays, and what goes wrong.

use super::ops::Op;
use crate::common::Rng;

/// How long things take, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// From posting to arrival.
    pub wire: u64,
    /// From arrival to the completion at the sender.
    pub completion: u64,
    /// From arrival to processing at the receiver.
    pub receive: u64,
    /// One way of the TCP connection.
    pub tcp: u64,
    /// Between two calls of an application.
    pub think: u64,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// What host 0 and 1 speak: version 1, version 2 with this release.
    pub v1: [bool; 2],
    pub v2: [Option<u8>; 2],
    /// Devices of each host.
    pub devices: [usize; 2],
    pub max_links: [u8; 2],
    pub max_conns: [u8; 2],
    /// Connections; of a crowd all are there at the same time, more than a group may have.
    pub conns: usize,
    pub crowd: bool,
    /// Some connections are opened by host 1.
    pub both_ways: bool,
    /// Ring sizes are those of the wire shifted right by this.
    pub scale: u32,
    /// Bytes per direction, at most.
    pub bytes: u64,
    pub delays: Delays,
    /// Rows of the table of the peer's keys.
    pub rows: usize,
    /// Slots of a send queue.
    pub slots: usize,
    pub max_chain: u32,
    pub autocork: u32,
    /// Times at which something goes wrong.
    pub trouble: Vec<u64>,
    /// What a written list says, with its times.
    pub ops: Vec<(u64, Op)>,
    /// Messages are duplicated, or come without being asked for.
    pub noise: bool,
    /// One in so many connections is ended rudely; 0 for none.
    pub rude: u64,
    /// One in so many handshakes is declined by a side; 0 for none.
    pub decline: u64,
    /// Within how many microseconds the connections are opened.
    pub opening: u64,
    /// Applications call what they like.
    pub wild: bool,
    /// Some applications pause for longer than a link may be silent.
    pub sleepy: bool,
    /// Streams start just before their cursors wrap.
    pub near_wrap: bool,
}

impl Plan {
    /// No handshake has to wait for long: nothing goes wrong with links or messages, and nobody
    /// declines, or hangs while others wait.
    pub fn is_calm(&self) -> bool {
        self.trouble.is_empty() && self.ops.is_empty() && !self.noise && self.decline == 0
    }

    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0051_4d5e_ed00);
        let rng = &mut rng;
        let crowd = seed % 64 == 7;
        let wild = seed % 8 == 5;
        let stress = crowd || wild || seed % 8 == 3;
        let calm = rng.one_in(4) && !wild;
        let mut v1 = [true; 2];
        let mut v2 = [Some(1); 2];
        match rng.below(12) {
            0..=3 => v2 = [None; 2],
            4 => v2 = [Some(1), None],
            5 => v2 = [Some(rng.below(2) as u8), Some(rng.below(2) as u8)],
            6 => v1 = [rng.one_in(2), false],
            _ => v1 = [false; 2],
        }
        let slow = rng.one_in(3) && !stress;
        let most = if slow { 20_000 } else { 60 };
        let late = if rng.one_in(4) { 10 } else { 1 };
        let delays = Delays {
            wire: rng.range(1, most),
            completion: rng.range(1, most * late),
            receive: rng.range(1, most),
            tcp: rng.range(10, 10 + most * 2),
            think: rng.range(1, most * 4),
        };
        let conns = if crowd {
            rng.range(262, 300) as usize
        } else if stress {
            rng.range(8, 40) as usize
        } else {
            rng.range(1, 6) as usize
        };
        let opening = if crowd {
            400_000
        } else {
            rng.range(1, 200_000)
        };
        let mut trouble = vec![];
        if !calm {
            for _ in 0..rng.range(1, if crowd { 4 } else { 12 }) {
                trouble.push(match rng.below(4) {
                    0 => rng.below(20_000_000),
                    1 => rng.below(opening + 100_000),
                    _ => rng.below(opening + 60 * delays.think),
                });
            }
        }
        Self {
            seed,
            v1,
            v2,
            devices: [1 + rng.below(2) as usize, 1 + rng.below(2) as usize],
            max_links: [1 + !rng.one_in(6) as u8, 1 + !rng.one_in(6) as u8],
            max_conns: if crowd {
                [255; 2]
            } else {
                [rng.range(16, 255) as u8, 255]
            },
            conns,
            crowd,
            both_ways: rng.one_in(4) && !crowd,
            scale: if crowd { 9 } else { rng.range(7, 11) as u32 },
            bytes: if crowd { 60 } else { rng.range(1, 1500) },
            delays,
            rows: if rng.one_in(10) && !crowd { 20 } else { 255 },
            slots: rng.range(2, 16) as usize,
            max_chain: [0, 0, 7, 20][rng.below(4) as usize],
            autocork: [0, 0, 16][rng.below(3) as usize],
            trouble,
            ops: vec![],
            noise: !calm && rng.one_in(2),
            rude: match (calm, wild) {
                (true, _) => 0,
                (_, true) => 1,
                _ => rng.range(2, 12),
            },
            decline: if calm { 0 } else { rng.range(4, 30) },
            opening,
            wild,
            sleepy: rng.one_in(6),
            near_wrap: rng.one_in(3),
        }
    }
}
