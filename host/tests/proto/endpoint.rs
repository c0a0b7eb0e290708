// SPDX-License-Identifier: GPL-2.0

//! Connection and state machine together, used as the socket layer uses them: two applications
//! write, read, shut and close at any moment, links die, peers fall silent.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::proto::close::{Actions, Event, Machine, Send, State, Tcp, Timer};

use crate::common::{property, Rng};
use crate::sim::{Pair, Setup, CLOSED, DONE};

/// What stands beside a connection in the socket layer.
pub struct Socket {
    pub machine: Machine,
    pub timer: bool,
    /// `finish` was asked for.
    finished: bool,
    /// The connection is gone: its token finds nothing.
    pub released: bool,
    /// An error was set on the socket.
    pub failed: bool,
    /// What was done to the TCP connection.
    pub tcp: Option<Tcp>,
    /// The application has read to the end.
    pub eof: bool,
    /// Which close flags of the peer have become events.
    seen: [bool; 3],
    /// Bytes of the peer that have become events, and those of the last one.
    came: u64,
    news: u32,
}

pub struct World {
    pub pair: Pair,
    pub socks: [Socket; 2],
    /// The link group is gone: nothing arrives, everything is flushed.
    link_dead: bool,
    steps: u64,
}

thread_local! {
    /// State and event pairs that were reached.
    static REACHED: RefCell<BTreeSet<(u8, String)>> = const { RefCell::new(BTreeSet::new()) };
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let sock = || Socket {
            machine: Machine::new(),
            timer: false,
            finished: false,
            released: false,
            failed: false,
            tcp: None,
            eof: false,
            seen: [false; 3],
            came: 0,
            news: 0,
        };
        let mut w = Self {
            pair: Pair::new(setup),
            socks: [sock(), sock()],
            link_dead: false,
            steps: 0,
        };
        w.event(0, Event::Established);
        w.event(1, Event::Established);
        w
    }

    /// Feeds the machine and does what it says; an application's call may be refused.
    pub fn event(&mut self, i: usize, event: Event) {
        let from = self.socks[i].machine.state();
        let Ok(o) = self.socks[i].machine.transition(event) else {
            let call = matches!(
                event,
                Event::ShutdownRead | Event::ShutdownWrite | Event::ShutdownBoth
            );
            assert!(call, "{from:?} {event:?}");
            return;
        };
        REACHED.with_borrow_mut(|r| r.insert((from.number(), format!("{event:?}"))));
        self.act(i, o.actions);
    }

    fn act(&mut self, i: usize, a: Actions) {
        let s = &mut self.socks[i];
        match a.timer {
            Some(Timer::Arm) => s.timer = true,
            Some(Timer::Stop) => s.timer = false,
            None => {}
        }
        s.failed |= a.error.is_some();
        if a.refuse {
            self.pair.sides[i].conn.refuse(s.news);
        }
        s.tcp = a.tcp.or(s.tcp);
        assert!(!(s.finished && a.finish), "finished twice");
        s.finished |= a.finish;
        let conn = &mut self.pair.sides[i].conn;
        match a.send {
            Some(Send::Done) => conn.request_close(DONE),
            Some(Send::Closed) => conn.request_close(CLOSED),
            Some(Send::Abort) => conn.request_abort(),
            None => {}
        }
        if a.wake {
            self.pair.sides[i].reader_sleeps = false;
            self.pair.sides[i].writer_sleeps = false;
        }
        if a.send.is_some() {
            self.pair.push(i);
        }
    }

    /// What the socket layer does after anything that may have changed a connection.
    pub fn follow_up(&mut self) {
        for i in 0..2 {
            let p = self.pair.sides[i].peer;
            let s = &mut self.socks[i];
            let came = self.pair.sides[i].arrived;
            s.news = (came - s.came) as u32;
            s.came = came;
            if s.news > 0 && !p.abort {
                self.event(i, Event::Data);
            }
            let flags = [
                (0, p.abort, Event::PeerAbort),
                (1, p.sending_done, Event::PeerDone),
                (2, p.closed, Event::PeerClosed),
            ];
            for (n, on, event) in flags {
                // An abort makes the others pointless.
                let moot = n > 0 && self.socks[i].seen[0];
                if on && !self.socks[i].seen[n] && !moot {
                    self.socks[i].seen[n] = true;
                    self.event(i, event);
                }
            }
            if self.pair.sides[i].conn.is_unheard() {
                self.event(i, Event::Unheard);
            }
            let conn = &self.pair.sides[i].conn;
            let idle = conn.posted() == 0;
            let s = &self.socks[i];
            if s.machine.state() == State::PeerAbortWait && conn.is_dead() && idle {
                self.event(i, Event::AbortDone);
            }
            let conn = &self.pair.sides[i].conn;
            let s = &mut self.socks[i];
            if s.finished && !s.released && conn.is_settled() {
                s.released = true;
            }
        }
    }

    pub fn deliver(&mut self, i: usize) -> bool {
        let gone = self.socks[1 - i].released;
        if gone || self.link_dead {
            let Some(plan) = self.pair.sides[i].chains.pop_front() else {
                return false;
            };
            if self.link_dead {
                let fx = self.pair.sides[i].conn.tx_failed(plan.token);
                self.pair.after_completion(i, fx);
            } else {
                // Carried out; the token finds nobody.
                self.pair.sides[i].completions.push_back(plan.token);
            }
            return true;
        }
        self.pair.deliver(i)
    }

    pub fn complete(&mut self, i: usize) -> bool {
        self.pair.complete(i)
    }

    pub fn write(&mut self, i: usize, n: u32) {
        let open = self.socks[i].machine.is_open();
        let peer = self.pair.sides[i].conn.peer_close();
        let may = self.socks[i].machine.state().may_send() && !peer.abort;
        if open && may && !self.pair.sides[i].writer_sleeps {
            self.pair.write(i, n);
        }
    }

    pub fn read(&mut self, i: usize, n: u32) -> bool {
        let s = &self.socks[i];
        if !s.machine.is_open() || s.eof || s.failed || self.pair.sides[i].reader_sleeps {
            return false;
        }
        if self.pair.read(i, n) > 0 {
            return true;
        }
        let p = self.pair.sides[i].peer;
        if p.sending_done || p.closed {
            self.socks[i].eof = true;
        }
        false
    }

    pub fn close(&mut self, i: usize) {
        if self.socks[i].machine.is_open() {
            let unread = self.pair.sides[i].conn.readable_len() > 0;
            self.event(i, Event::Close { unread });
        }
    }

    /// The link group dies; both sides hear of it.
    pub fn kill(&mut self) {
        self.link_dead = true;
        for i in 0..2 {
            if self.socks[i].released {
                continue;
            }
            self.pair.sides[i].conn.kill();
            for token in std::mem::take(&mut self.pair.sides[i].completions) {
                let _ = self.pair.sides[i].conn.tx_failed(token);
            }
            self.event(i, Event::LocalAbort);
        }
    }

    /// One thing happens.
    fn step(&mut self, rng: &mut Rng) {
        self.steps += 1;
        let i = rng.below(2) as usize;
        match rng.below(40) {
            0..=7 => self.write(i, rng.range(1, 20) as u32),
            8..=15 => {
                self.read(i, rng.range(1, 20) as u32);
            }
            16..=27 => {
                self.deliver(i);
            }
            28..=35 => {
                self.complete(i);
            }
            36 if rng.one_in(4) => self.event(i, Event::ShutdownWrite),
            37 if rng.one_in(16) => self.event(i, Event::ShutdownRead),
            37 if rng.one_in(8) => {
                self.event(i, Event::ShutdownBoth);
            }
            38 if rng.one_in(8) => self.close(i),
            39 if rng.one_in(20) => match rng.below(3) {
                0 => self.kill(),
                _ => self.event(i, Event::LocalAbort),
            },
            _ => {}
        }
        self.follow_up();
    }

    /// Everything that can happen without the applications happens.
    pub fn settle(&mut self, reading: [bool; 2]) {
        loop {
            let mut moved = false;
            for (i, reads) in reading.into_iter().enumerate() {
                moved |= self.deliver(i) | self.complete(i);
                self.follow_up();
                if reads {
                    moved |= self.read(i, u32::MAX);
                    self.follow_up();
                }
            }
            if !moved {
                return;
            }
        }
    }
}

fn run(rng: &mut Rng) {
    let size = |rng: &mut Rng| rng.range(1, 40) as u32;
    let mut w = World::new(Setup {
        send: [size(rng), size(rng)],
        recv: [size(rng), size(rng)],
        update_limit: rng.range(1, 20) as u32,
        slots: rng.range(1, 4) as usize,
        autocork: [0, 20][rng.below(2) as usize],
        ..Setup::default()
    });
    for _ in 0..rng.range(50, 500) {
        w.step(rng);
    }
    // The applications read to the end, or do not, and close in some order.
    let reading = [!rng.one_in(4), !rng.one_in(4)];
    w.settle(reading);
    let first = rng.below(2) as usize;
    let clean = |w: &World| w.socks.iter().all(|s| !s.failed) && !w.link_dead;
    for i in [first, 1 - first] {
        if rng.one_in(2) {
            w.event(i, Event::ShutdownWrite);
            w.settle(reading);
        }
        // Whoever has read to the end of a peer that sent all it had has everything.
        let (me, other) = (&w.socks[i], &w.pair.sides[1 - i]);
        if clean(&w) && me.eof && other.conn.is_drained() {
            assert_eq!(w.pair.sides[i].read, other.written);
        }
        w.close(i);
        w.settle(reading);
    }
    // Only time can help those whose peer does not answer.
    for _ in 0..2 {
        for i in 0..2 {
            if w.socks[i].timer {
                w.socks[i].timer = false;
                w.event(i, Event::Timeout);
                w.settle(reading);
            }
        }
    }
    for (s, side) in w.socks.iter().zip(&w.pair.sides) {
        assert_eq!(s.machine.state(), State::Closed, "{side:?}");
        assert!(s.finished && s.released && !s.timer, "{side:?}");
        assert_eq!(side.conn.posted(), 0);
    }
}

#[test]
fn sockets_end_whatever_their_applications_do() {
    property("sockets", 6000, run);
    let reached = REACHED.with_borrow(|r| r.len());
    assert!(reached > 60, "{reached} pairs of state and event");
}

/// Two sockets with everything delivered at once.
pub fn quiet() -> World {
    World::new(Setup::default())
}

#[test]
fn close_after_writing_delivers_everything_first() {
    let mut w = quiet();
    w.write(0, 50);
    w.close(0);
    assert_eq!(w.socks[0].machine.state(), State::PeerCloseWait1);
    w.settle([true, true]);
    assert_eq!(w.pair.sides[1].read, 50);
    assert!(w.socks[1].eof);
    w.close(1);
    w.settle([true, true]);
    assert!(w.socks.iter().all(|s| s.released));
}

#[test]
fn close_waits_in_the_background_for_a_reader_that_is_slow() {
    let mut w = World::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    w.write(0, 50);
    w.close(0);
    w.settle([true, false]);
    assert!(!w.pair.sides[1].peer.closed);
    w.settle([true, true]);
    assert_eq!(w.pair.sides[1].read, 50);
    assert!(w.pair.sides[1].peer.closed);
}

#[test]
fn close_over_unread_data_resets_both() {
    let mut w = quiet();
    w.write(0, 5);
    w.deliver(0);
    w.close(1);
    w.settle([true, true]);
    assert!(w.socks[0].failed);
    assert_eq!(w.socks[0].machine.state(), State::ProcessAbort);
    assert!(w.socks[1].released);
    w.close(0);
    w.settle([true, true]);
    assert!(w.socks[0].released);
}

#[test]
fn data_that_come_after_the_close_reset_their_sender() {
    let mut w = quiet();
    w.close(0);
    w.write(1, 5);
    w.settle([true, true]);
    assert!(w.socks[1].failed);
    assert_eq!(w.socks[1].machine.state(), State::ProcessAbort);
    assert!(w.socks[0].released);
    w.close(1);
    w.settle([true, true]);
    assert!(w.socks[1].released);
}

#[test]
fn data_for_a_peer_that_has_closed_are_an_end() {
    let mut w = quiet();
    w.close(1);
    w.settle([true, true]);
    // Writing nothing is no reason.
    w.follow_up();
    assert!(!w.socks[0].failed);
    w.write(0, 5);
    w.settle([true, true]);
    assert!(w.socks[0].failed && w.socks[0].machine.state().is_over());
    assert!(w.socks[0].eof);
    w.close(0);
    w.settle([true, true]);
    assert!(w.socks.iter().all(|s| s.released));
}

#[test]
fn data_that_waited_for_a_slot_while_the_peer_closed_are_an_end() {
    let mut w = World::new(Setup {
        slots: 1,
        ..Setup::default()
    });
    w.event(1, Event::ShutdownWrite);
    w.settle([true, true]);
    w.write(0, 5);
    w.write(0, 5);
    w.event(0, Event::ShutdownWrite);
    assert_eq!(w.socks[0].machine.state(), State::AppCloseWait2);
    w.close(1);
    while w.deliver(1) | w.complete(1) {
        w.follow_up();
    }
    assert!(w.socks[0].failed && w.socks[0].machine.state().is_over());
    w.close(0);
    w.settle([true, true]);
    assert!(w.socks.iter().all(|s| s.released));
}

#[test]
fn data_that_nobody_will_read_reset_both() {
    for reading_first in [true, false] {
        let mut w = quiet();
        let mut shut = [Event::ShutdownRead, Event::ShutdownWrite];
        if !reading_first {
            shut.reverse();
        }
        w.event(0, shut[0]);
        w.write(1, 5);
        w.settle([false, true]);
        // There is somebody yet: who shut reading may send, and who sends no more may read.
        assert!(w.socks.iter().all(|s| !s.failed));
        w.event(0, shut[1]);
        w.settle([false, true]);
        assert!(w.socks.iter().all(|s| !s.failed));
        w.write(1, 5);
        w.settle([false, true]);
        assert!(w
            .socks
            .iter()
            .all(|s| s.failed && s.machine.state().is_over()));
        w.close(0);
        w.close(1);
        w.settle([true, true]);
        assert!(w.socks.iter().all(|s| s.released && !s.timer));
    }
}

#[test]
fn both_close_at_once() {
    let mut w = quiet();
    w.close(0);
    w.close(1);
    w.settle([true, true]);
    assert!(w.socks.iter().all(|s| s.released && !s.timer && !s.failed));
}

#[test]
fn half_closed_connection_carries_data_the_other_way() {
    let mut w = quiet();
    w.event(0, Event::ShutdownWrite);
    w.settle([true, true]);
    assert!(w.socks[1].eof);
    w.write(1, 40);
    w.settle([true, true]);
    assert_eq!(w.pair.sides[0].read, 40);
    w.close(1);
    w.settle([true, true]);
    assert!(w.socks[0].eof);
    assert_eq!(w.socks[0].machine.state(), State::AppFinCloseWait);
    w.close(0);
    w.settle([true, true]);
    assert!(w.socks.iter().all(|s| s.released && !s.failed));
}

#[test]
fn peer_that_never_reads_is_reset_by_the_timer() {
    let mut w = World::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    w.write(0, 50);
    w.close(0);
    w.settle([false, false]);
    assert!(w.socks[0].timer && !w.socks[0].released);
    w.socks[0].timer = false;
    w.event(0, Event::Timeout);
    w.settle([false, false]);
    assert!(w.socks[0].released);
    assert_eq!(w.socks[1].machine.state(), State::ProcessAbort);
}
