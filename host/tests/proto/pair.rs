// SPDX-License-Identifier: GPL-2.0

//! Transfers between two connections: random, at the wraps, and all of them for tiny rings.

use std::cell::Cell;

use crate::common::{property, seed, Rng};
use crate::sim::{Pair, Setup, CLOSED, DONE};

/// A random pair: small rings, any start, few slots.
fn setup(rng: &mut Rng) -> Setup {
    let size = |rng: &mut Rng| {
        let most = [3, 17, 64, 300][rng.below(4) as usize];
        rng.range(1, most) as u32
    };
    let send = [size(rng), size(rng)];
    let recv = [size(rng), size(rng)];
    let start = match rng.below(4) {
        0 => 0,
        // Just before the wrap number of either element goes from 0xffff to 0.
        1 => (u64::from(recv[0]) << 16) - rng.range(1, 40).min(u64::from(recv[0])),
        2 => (u64::from(recv[1]) << 16) - rng.range(1, 40).min(u64::from(recv[1])),
        _ => rng.below(1 << 40),
    };
    Setup {
        send,
        recv,
        start,
        seq: [0, 0xfffa, 0x7ffd][rng.below(3) as usize],
        update_limit: rng.range(1, 40) as u32,
        max_chain: if rng.one_in(3) {
            rng.range(1, 50) as u32
        } else {
            0
        },
        slots: rng.range(1, 4) as usize,
        autocork: if rng.one_in(2) {
            rng.range(1, 100) as u32
        } else {
            0
        },
    }
}

/// One random run; returns the bytes moved.
fn run(rng: &mut Rng) -> u64 {
    let mut p = Pair::new(setup(rng));
    let most = rng.range(1, 60);
    for _ in 0..rng.range(20, 400) {
        let i = rng.below(2) as usize;
        match rng.below(8) {
            0 | 1 if !p.sides[i].writer_sleeps => {
                p.write(i, rng.range(1, most) as u32);
            }
            2 | 3 => {
                p.deliver(i);
            }
            4 => {
                p.complete(i);
            }
            5 | 6 if !p.sides[i].reader_sleeps => {
                p.read(i, rng.range(1, most) as u32);
            }
            7 => p.write_out(i),
            _ => {}
        }
        p.check();
    }
    p.settle();
    p.assert_all_arrived();

    // Both say that they are done, then close; the flags come after the last byte.
    for flags in [DONE, CLOSED] {
        for i in 0..2 {
            if flags.sending_done {
                p.sides[i].reader_sleeps = false;
                p.sides[i].writer_sleeps = false;
                p.write(i, rng.range(1, most) as u32);
            }
            p.close(i, flags);
        }
        if flags.closed {
            while p.deliver(0) | p.complete(0) | p.deliver(1) | p.complete(1) {}
        } else {
            p.settle();
            p.assert_all_arrived();
        }
        for s in &p.sides {
            assert!(s.peer.sending_done);
            assert_eq!(s.peer.closed, flags.closed);
        }
    }
    let moved = |i: usize| p.sides[i].written - p.sides[i].base;
    moved(0) + moved(1)
}

#[test]
fn random_transfers_arrive_whole_and_in_order() {
    let moved = Cell::new(0);
    property("random transfer", 4000, |rng| {
        moved.set(moved.get() + run(rng));
    });
    assert!(moved.get() > 500_000, "{moved:?}");
}

#[test]
fn every_order_of_events_in_tiny_rings_arrives() {
    for send in 1..=3 {
        for recv in 1..=3 {
            let p = Pair::new(Setup {
                send: [send, 1],
                recv: [1, recv],
                update_limit: 1,
                slots: 2,
                // The wrap number goes through zero in the middle.
                start: (u64::from(recv) << 16) - 2,
                ..Setup::default()
            });
            let mut runs = 0;
            explore(&p, 11, &mut runs);
            assert!(runs > 100, "{send} {recv}: {runs}");
        }
    }
}

/// Tries every event at every point; each branch must come to a good end.
fn explore(p: &Pair, depth: usize, runs: &mut u64) {
    *runs += 1;
    let mut end = p.clone();
    end.settle();
    end.assert_all_arrived();
    if depth == 0 {
        return;
    }
    for op in 0..7 {
        let mut q = p.clone();
        let acted = match op {
            0 => !q.sides[0].writer_sleeps && q.write(0, 1) > 0,
            1 => !q.sides[0].writer_sleeps && q.write(0, 3) > 1,
            2 => q.deliver(0),
            3 => q.complete(0),
            4 => !q.sides[1].reader_sleeps && q.read(1, 1) > 0,
            5 => q.deliver(1),
            _ => q.complete(1),
        };
        if acted {
            q.check();
            explore(&q, depth - 1, runs);
        }
    }
}

#[test]
fn a_stream_longer_than_all_laps_arrives() {
    // 16-byte elements: 65536 laps are 1 MiB, so the wrap number itself wraps thrice.
    let mut rng = Rng::new(seed());
    let mut p = Pair::new(Setup {
        send: [48, 16],
        recv: [16, 16],
        update_limit: 3,
        ..Setup::default()
    });
    while p.sides[0].written < 3 << 20 {
        p.sides[0].writer_sleeps = false;
        p.write(0, rng.range(1, 40) as u32);
        p.deliver(0);
        p.complete(0);
        p.read(1, rng.range(1, 16) as u32);
        p.deliver(1);
        p.complete(1);
    }
    p.sides[1].reader_sleeps = false;
    p.settle();
    p.assert_all_arrived();
}

#[test]
fn ring_sizes_of_real_connections_work() {
    let mut p = Pair::new(Setup {
        send: [65_536, 16_384],
        recv: [32_768, 131_072],
        update_limit: 6553,
        ..Setup::default()
    });
    let mut rng = Rng::new(seed());
    for _ in 0..400 {
        for i in 0..2 {
            p.sides[i].writer_sleeps = false;
            p.write(i, rng.range(1, 70_000) as u32);
            p.deliver(i);
            p.read(i, rng.range(1, 70_000) as u32);
            p.complete(i);
        }
    }
    for s in &mut p.sides {
        s.reader_sleeps = false;
    }
    p.settle();
    p.assert_all_arrived();
    assert!(p.sides[0].written > 1 << 20);
}

#[test]
fn closed_flag_waits_for_the_last_completion() {
    let mut p = Pair::new(Setup::default());
    p.write(0, 10);
    p.close(0, CLOSED);
    p.deliver(0);
    assert!(!p.sides[1].peer.closed);
    assert!(p.sides[0].chains.is_empty());
    p.complete(0);
    assert_eq!(p.sides[0].chains.len(), 1);
    p.deliver(0);
    assert!(p.sides[1].peer.closed);
    assert_eq!(p.read(1, 100), 10);
}

#[test]
fn done_flag_rides_with_the_last_byte() {
    let mut p = Pair::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    p.write(0, 12);
    p.close(0, DONE);
    p.deliver(0);
    assert!(!p.sides[1].peer.sending_done);
    assert_eq!(p.read(1, 8), 8);
    p.deliver(1);
    p.deliver(0);
    assert!(p.sides[1].peer.sending_done);
    assert_eq!(p.read(1, 8), 4);
}

#[test]
fn abort_overtakes_unsent_data_and_is_answered() {
    let mut p = Pair::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    p.write(0, 40);
    p.sides[0].conn.request_abort();
    p.push(0);
    p.deliver(0);
    p.deliver(0);
    assert!(p.sides[1].peer.abort);
    assert!(p.sides[0].conn.is_dead());
    assert_eq!(p.sides[0].conn.plan_tx(true), None);
    p.deliver(1);
    assert!(p.sides[0].peer.abort);
    while p.complete(0) | p.complete(1) | p.deliver(0) | p.deliver(1) {}
    assert_eq!(p.sides[0].conn.posted() + p.sides[1].conn.posted(), 0);
    assert!(p.sides[1].conn.is_dead());
}

#[test]
fn data_for_a_peer_that_has_closed_is_dropped_and_the_close_goes_out() {
    let mut p = Pair::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    p.write(0, 40);
    p.deliver(0);
    p.close(1, CLOSED);
    p.deliver(1);
    assert!(p.sides[0].peer.closed);
    p.close(0, CLOSED);
    while p.complete(0) | p.deliver(0) {}
    assert!(p.sides[1].peer.closed);
}

#[test]
fn killed_connection_plans_nothing() {
    let mut p = Pair::new(Setup::default());
    p.sides[0].conn.kill();
    p.write(0, 4);
    assert!(p.sides[0].chains.is_empty());
    assert!(!p.sides[0].conn.has_work());
    assert_eq!(p.sides[0].conn.begin_failover(), None);
}
