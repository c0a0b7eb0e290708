// SPDX-License-Identifier: GPL-2.0

//! Two connections joined by simulated RDMA memory.
//!
//! A chain is carried out when the test says so: its writes copy from the sender's ring at that
//! moment, as a device would, so a ring that is freed too early shows as wrong bytes. Its message
//! then goes to the peer through its 44 bytes, and its completion waits until the test takes it.
//! Nothing is planned unless an effect asked for it, so a missing wake-up shows as a standstill.

use std::collections::VecDeque;

use crate::proto::cdc::{ConnFlags, Message};
use crate::proto::conn::{
    Conn, ConnViolation, DoneEffects, Params, PeerClose, RxEffects, TxPlan, TxToken, Urgent,
};
use crate::proto::cursor::{Pos, RingSize};
use crate::proto::ids::AlertToken;

/// The byte at a position of the stream of one side.
pub fn pattern(side: usize, pos: u64) -> u8 {
    let x = (pos ^ ((side as u64) << 60)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x.to_be_bytes()[0] ^ x.to_be_bytes()[3]
}

/// What the end of a direction sends, and that of a connection.
pub const DONE: ConnFlags = ConnFlags {
    sending_done: true,
    closed: false,
    abort: false,
};
pub const CLOSED: ConnFlags = ConnFlags {
    sending_done: false,
    closed: true,
    abort: false,
};

/// One end.
#[derive(Clone, Debug)]
pub struct Side {
    pub conn: Conn,
    /// Send ring.
    pub ring: Vec<u8>,
    /// Element the peer writes into.
    pub rmb: Vec<u8>,
    /// Bytes the application wrote and read.
    pub written: u64,
    pub read: u64,
    /// Bytes that have come.
    pub arrived: u64,
    /// Where the streams started.
    pub base: u64,
    /// Posted chains that the device has not carried out.
    pub chains: VecDeque<TxPlan>,
    /// Carried out; the completion has not been taken.
    pub completions: VecDeque<TxToken>,
    /// A plan was wanted but no slot was free.
    pub pending: bool,
    /// Sleeping writers and readers.
    pub writer_sleeps: bool,
    pub reader_sleeps: bool,
    /// Close flags seen.
    pub peer: PeerClose,
    /// A rule that the peer broke.
    pub violation: Option<ConnViolation>,
}

/// How a pair is made.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Send ring and element of each side.
    pub send: [u32; 2],
    pub recv: [u32; 2],
    /// Bytes before the first one, to come close to a wrap.
    pub start: u64,
    pub seq: u16,
    pub update_limit: u32,
    pub max_chain: u32,
    pub slots: usize,
    pub autocork: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            send: [64; 2],
            recv: [64; 2],
            start: 0,
            seq: 0,
            update_limit: 6,
            max_chain: 0,
            slots: 4,
            autocork: 0,
        }
    }
}

/// Both ends.
#[derive(Clone, Debug)]
pub struct Pair {
    pub setup: Setup,
    pub sides: [Side; 2],
}

pub fn ring(n: u32) -> RingSize {
    RingSize::new(n).unwrap()
}

pub fn conn(send: u32, peer: u32, recv: u32, update_limit: u32, max_chain: u32) -> Conn {
    Conn::new(Params {
        send_ring: ring(send),
        peer_ring: ring(peer),
        recv_ring: ring(recv),
        peer_token: AlertToken::new(7).unwrap(),
        update_limit,
        max_chain,
    })
}

impl Pair {
    pub fn new(setup: Setup) -> Self {
        let side = |i: usize| {
            let (send, recv, peer) = (setup.send[i], setup.recv[i], setup.recv[1 - i]);
            let mut conn = conn(send, peer, recv, setup.update_limit, setup.max_chain);
            let at = Pos::new(setup.start);
            conn.start_at(at, at, setup.seq, setup.seq);
            conn.allow_short();
            Side {
                conn,
                ring: vec![0; send as usize],
                rmb: vec![0; recv as usize],
                written: setup.start,
                read: setup.start,
                arrived: 0,
                base: setup.start,
                chains: VecDeque::new(),
                completions: VecDeque::new(),
                pending: false,
                writer_sleeps: false,
                reader_sleeps: false,
                peer: PeerClose::default(),
                violation: None,
            }
        };
        Self {
            setup,
            sides: [side(0), side(1)],
        }
    }

    /// The application writes up to `n` bytes; returns how many went in.
    pub fn write(&mut self, i: usize, n: u32) -> u32 {
        let s = &mut self.sides[i];
        let ranges = s.conn.reserve_write(n);
        let mut at = s.written;
        for r in ranges.iter() {
            for b in &mut s.ring[r.offset as usize..(r.offset + r.len) as usize] {
                *b = pattern(i, at);
                at += 1;
            }
        }
        s.conn.commit_write(ranges.total()).unwrap();
        s.written = at;
        if ranges.total() == 0 {
            s.writer_sleeps = true;
        } else {
            self.push(i);
        }
        ranges.total()
    }

    /// Plans what is due as long as there are slots.
    pub fn push(&mut self, i: usize) {
        loop {
            let s = &mut self.sides[i];
            let data = !s.conn.should_hold(false, self.setup.autocork);
            if s.chains.len() + s.completions.len() >= self.setup.slots {
                s.pending |= s.conn.has_work();
                return;
            }
            let Some(plan) = s.conn.plan_tx(data) else {
                return;
            };
            self.check_plan(i, &plan);
            self.sides[i].chains.push_back(plan);
        }
    }

    fn check_plan(&self, i: usize, plan: &TxPlan) {
        let (send, peer) = (self.setup.send[i], self.setup.recv[1 - i]);
        for w in plan.writes() {
            assert!(w.len > 0, "{plan:?}");
            assert!(w.local + w.len <= send, "{plan:?}");
            assert!(w.remote + w.len <= peer, "{plan:?}");
        }
        assert!(plan.cdc.prod.count < peer);
        assert!(plan.cdc.cons.count < self.setup.recv[i]);
    }

    /// The device carries out the writes of the first chain, not its message.
    pub fn write_out(&mut self, i: usize) {
        let Some(plan) = self.sides[i].chains.front().copied() else {
            return;
        };
        self.copy(i, &plan);
    }

    fn copy(&mut self, i: usize, plan: &TxPlan) {
        for w in plan.writes() {
            let from = w.local as usize..(w.local + w.len) as usize;
            let bytes = self.sides[i].ring[from].to_vec();
            let to = w.remote as usize..(w.remote + w.len) as usize;
            self.sides[1 - i].rmb[to].copy_from_slice(&bytes);
        }
    }

    /// The device carries out the first chain; its message reaches the peer.
    pub fn deliver(&mut self, i: usize) -> bool {
        let Some(plan) = self.sides[i].chains.pop_front() else {
            return false;
        };
        self.copy(i, &plan);
        self.sides[i].completions.push_back(plan.token);
        if let Some(short) = plan.short {
            // It stands for the very message.
            let conn = &self.sides[1 - i].conn;
            let last = plan.writes().last().expect("a write");
            let made = conn.short_message(short, last.len);
            if let (Ok(made), false) = (&made, conn.is_given_up()) {
                let mut want = Message {
                    token: made.token,
                    ..plan.cdc
                };
                // That the window is closed is what the receiver knows of it.
                want.prod_flags.write_blocked = made.prod_flags.write_blocked;
                assert_eq!(*made, want, "{plan:?}");
            }
            assert!(made.is_ok() || conn.is_given_up(), "{made:?} {plan:?}");
        }
        let _ = self.receive(1 - i, &plan.cdc);
        true
    }

    /// A message reaches a side.
    pub fn receive(&mut self, i: usize, msg: &Message) -> RxEffects {
        let msg = Message::decode(&msg.encode()).unwrap();
        let s = &mut self.sides[i];
        let before = s.conn.clone();
        let fx = match s.conn.on_cdc(&msg) {
            Ok(fx) => fx,
            Err(v) => {
                assert_eq!(s.conn, before, "a refused message changed the connection");
                s.violation = Some(v);
                s.conn.request_abort();
                self.push(i);
                return RxEffects::default();
            }
        };
        if let Some(Urgent::Present { offset }) = fx.urgent {
            let byte = s.rmb[offset as usize];
            if s.conn.urgent_arrived(byte) {
                self.push(i);
            }
        }
        let s = &mut self.sides[i];
        s.arrived += u64::from(fx.arrived);
        if fx.arrived > 0 || fx.close.any() {
            s.reader_sleeps = false;
        }
        if fx.close.any() || fx.urgent_read || fx.freed > 0 {
            s.writer_sleeps = false;
        }
        s.peer.sending_done |= fx.close.sending_done;
        s.peer.closed |= fx.close.closed;
        s.peer.abort |= fx.close.abort;
        if fx.push {
            self.push(i);
        }
        fx
    }

    /// The oldest completion is taken.
    pub fn complete(&mut self, i: usize) -> bool {
        let Some(token) = self.sides[i].completions.pop_front() else {
            return false;
        };
        let fx = self.sides[i].conn.tx_done(token);
        self.after_completion(i, fx);
        true
    }

    pub fn after_completion(&mut self, i: usize, fx: DoneEffects) {
        let s = &mut self.sides[i];
        if fx.freed > 0 {
            s.writer_sleeps = false;
        }
        let was_pending = std::mem::take(&mut s.pending);
        if fx.push || was_pending {
            self.push(i);
        }
    }

    /// The application reads up to `n` bytes; returns how many came.
    pub fn read(&mut self, i: usize, n: u32) -> u32 {
        let s = &mut self.sides[i];
        let mut left = n;
        let mut got = 0;
        for r in s.conn.readable().iter() {
            let len = r.len.min(left);
            for b in &s.rmb[r.offset as usize..(r.offset + len) as usize] {
                assert_eq!(*b, pattern(1 - i, s.read), "byte {} of side {i}", s.read);
                s.read += 1;
            }
            left -= len;
            got += len;
        }
        if got == 0 {
            s.reader_sleeps = true;
            return 0;
        }
        let fx = s.conn.consume(got).unwrap();
        if fx.push {
            self.push(i);
        }
        got
    }

    pub fn close(&mut self, i: usize, flags: ConnFlags) {
        self.sides[i].conn.request_close(flags);
        self.push(i);
    }

    /// The device finishes everything, and the applications read what comes, until nothing
    /// moves any more. Neither sleeps through an event nor is woken without one.
    pub fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in 0..2 {
                moved |= self.deliver(i);
                moved |= self.complete(i);
                if !self.sides[i].reader_sleeps {
                    moved |= self.read(i, u32::MAX) > 0;
                }
            }
            self.check();
            if !moved {
                return;
            }
        }
    }

    /// What holds at any moment.
    pub fn check(&self) {
        for i in 0..2 {
            let s = &self.sides[i];
            let c = &s.conn;
            assert!(c.send_space() <= self.setup.send[i]);
            assert!(c.unsent() <= c.unfinished());
            assert!(c.window() <= self.setup.recv[1 - i]);
            assert!(c.readable_len() <= self.setup.recv[i]);
            assert!(s.read <= self.sides[1 - i].written);
            assert_eq!(
                c.posted() as usize,
                s.chains.len() + s.completions.len(),
                "side {i}"
            );
            assert_eq!(s.violation, None, "side {i}");
        }
    }

    /// Everything that was written has been read, and nothing is left over.
    pub fn assert_all_arrived(&self) {
        for i in 0..2 {
            let (a, b) = (&self.sides[i], &self.sides[1 - i]);
            assert_eq!(b.read, a.written, "side {i} stands still: {:?}", self);
            assert_eq!(a.conn.unfinished(), 0);
            assert_eq!(a.conn.send_space(), self.setup.send[i]);
            assert!(a.conn.is_drained());
            assert_eq!(a.conn.posted(), 0);
        }
    }
}
