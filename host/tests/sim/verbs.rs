// SPDX-License-Identifier: GPL-2.0

//! Queue pairs and memory: what two reliable connected devices do, with late completions, lost
//! acknowledgements and broken paths.
//!
//! A chain is carried out in one step at the receiver, in the order of posting; its completion
//! comes later and may say failure although the chain arrived, when the path broke in between.
//! Writes copy from the sender's ring at that moment, so a ring that is freed too early shows.

use std::collections::{HashMap, VecDeque};

use crate::proto::conn::TxPlan;

/// A work request that the device has not carried out.
pub struct Wr {
    /// The connection whose bytes are written, its send ring, and the key and address of the peer's element.
    pub data: Option<(usize, usize, TxPlan, u32, u64)>,
    /// The message behind the writes.
    pub message: Vec<u8>,
    /// To whom the completion goes.
    pub back: Back,
}

/// Whose completion it is.
#[derive(Clone, Copy, Debug)]
pub enum Back {
    /// A plan of a connection.
    Plan { sock: usize, cookie: u64 },
    /// Nobody asks.
    Nobody,
}

/// One end of a link.
#[derive(Default)]
pub struct Qp {
    pub host: usize,
    pub group: usize,
    pub col: usize,
    /// The other end, once both have named each other.
    pub peer: Option<usize>,
    /// It may receive; it may send.
    pub receives: bool,
    pub sends: bool,
    /// It is gone; nothing arrives and nothing completes any more.
    pub destroyed: bool,
    /// Nothing gets through.
    pub broken: bool,
    pub sq: VecDeque<Wr>,
    pub cq: VecDeque<(Back, bool)>,
    pub rq: VecDeque<Vec<u8>>,
    /// Which of its three events are on their way.
    pub delivering: bool,
    pub completing: bool,
    pub receiving: bool,
    /// Connections that wait for a slot, in order.
    pub pending: VecDeque<usize>,
    /// Plans posted whose completion has not been taken.
    pub used: usize,
}

/// A receive buffer of a host.
pub struct Rmb {
    pub bytes: Vec<u8>,
    /// Key and address for each column of its group.
    pub keys: [Option<(u32, u64)>; 3],
    /// The connection has ended in good order: nobody may write here any more.
    pub clean: bool,
    /// Its connection has gone.
    pub retired: bool,
    /// The peer may know its key.
    pub known: bool,
}

/// All devices of both hosts.
#[derive(Default)]
pub struct Verbs {
    pub qps: Vec<Qp>,
    pub rmbs: Vec<Rmb>,
    /// Key to buffer and queue pair.
    pub mrs: HashMap<u32, (usize, usize)>,
    last_key: u32,
}

/// The number of the first queue pair.
const FIRST_QPN: u32 = 0x100;

impl Verbs {
    pub fn new_qp(&mut self, host: usize, group: usize, col: usize) -> usize {
        self.qps.push(Qp {
            host,
            group,
            col,
            ..Qp::default()
        });
        self.qps.len() - 1
    }

    pub fn qpn(&self, qp: usize) -> u32 {
        FIRST_QPN + qp as u32
    }

    /// The queue pair of a number, if the other host made it and it was not destroyed.
    pub fn by_number(&self, qpn: u32, host: usize) -> Option<usize> {
        let qp = qpn.checked_sub(FIRST_QPN)? as usize;
        let found = self.qps.get(qp)?;
        (found.host == host && !found.destroyed).then_some(qp)
    }

    pub fn new_rmb(&mut self, len: usize) -> usize {
        self.rmbs.push(Rmb {
            bytes: vec![0; len],
            keys: [None; 3],
            clean: false,
            retired: false,
            known: false,
        });
        self.rmbs.len() - 1
    }

    /// Gives a buffer a key on a queue pair.
    pub fn map(&mut self, rmb: usize, qp: usize) -> (u32, u64) {
        self.last_key += 1;
        let key = self.last_key;
        let vaddr = ((rmb as u64 + 1) << 24) | ((qp as u64) << 8);
        self.mrs.insert(key, (rmb, qp));
        let col = self.qps[qp].col;
        self.rmbs[rmb].keys[col] = Some((key, vaddr));
        (key, vaddr)
    }

    /// Takes the key of a buffer on a column.
    pub fn unmap(&mut self, rmb: usize, col: usize) {
        if let Some((key, _)) = self.rmbs[rmb].keys[col].take() {
            self.mrs.remove(&key);
        }
    }

    /// The receiver's device carries out a write; it refuses what does not name memory of the
    /// queue pair.
    pub fn write(&mut self, qp: usize, key: u32, addr: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(&(rmb, owner)) = self.mrs.get(&key) else {
            return Err(format!("no memory has key {key:#x}"));
        };
        if owner != qp {
            return Err(format!("key {key:#x} belongs to another link"));
        }
        let r = &mut self.rmbs[rmb];
        let col = self.qps[qp].col;
        let base = r.keys[col].expect("mapped").1;
        let at = addr.checked_sub(base).ok_or("address below the buffer")? as usize;
        let end = at + bytes.len();
        if end > r.bytes.len() {
            return Err(format!("write of {at}..{end} into {}", r.bytes.len()));
        }
        if r.clean {
            return Err(
                "write into the buffer of a connection that has ended in good order".into(),
            );
        }
        r.bytes[at..end].copy_from_slice(bytes);
        Ok(())
    }
}
