// SPDX-License-Identifier: GPL-2.0

//! A connection changes its send ring between two bytes of the stream.

use crate::proto::cdc::{ConnFlags, Message, ProdFlags};
use crate::proto::conn::{Conn, OutOfRange, TxPlan};
use crate::proto::cursor::Pos;
use crate::proto::ids::AlertToken;

use crate::sim::{conn, ring};

const SMALL: u32 = 8;
const LARGE: u32 = 32;
const PEER: u32 = 64;
const RECV: u32 = 16;

/// With a small ring, and `n` bytes written.
fn written(n: u32) -> Conn {
    let mut c = conn(SMALL, PEER, RECV, 3, 0);
    c.commit_write(n).unwrap();
    c
}

/// Ring, places there and lengths of what a plan writes.
fn places(plan: &TxPlan) -> (bool, Vec<(u32, u32)>) {
    let writes = plan.writes().iter().map(|w| (w.local, w.len)).collect();
    (plan.from_before, writes)
}

/// The peer has read up to here.
fn read_by_peer(c: &mut Conn, seq: u16, cons: u64) -> u32 {
    let message = Message {
        seq,
        token: AlertToken::new(1).unwrap(),
        prod: Pos::ZERO.cursor(ring(RECV)),
        cons: Pos::new(cons).cursor(ring(PEER)),
        prod_flags: ProdFlags::default(),
        conn_flags: ConnFlags::default(),
    };
    c.on_cdc(&message).unwrap().freed
}

#[test]
fn what_was_written_stays_where_it_is() {
    let mut c = written(6);
    assert_eq!(c.send_space(), 2);
    c.switch_ring(ring(LARGE)).unwrap();
    // All of the new one is free.
    assert_eq!((c.send_space(), c.unfinished()), (LARGE, 6));
    let parts: Vec<_> = c
        .reserve_write(LARGE)
        .iter()
        .map(|r| (r.offset, r.len))
        .collect();
    assert_eq!(parts, [(6, 26), (0, 6)]);
    c.commit_write(LARGE).unwrap();
    assert_eq!((c.send_space(), c.unsent()), (0, LARGE + 6));
    // No chain crosses the place.
    let first = c.plan_tx(true).unwrap();
    assert_eq!(places(&first), (true, vec![(0, 6)]));
    let second = c.plan_tx(true).unwrap();
    assert_eq!(places(&second), (false, vec![(6, 26), (0, 6)]));
    let _ = c.tx_done(first.token);
    assert!(!c.keeps_ring_before());
    assert_eq!(c.send_space(), 0);
    let _ = c.tx_done(second.token);
    assert!(c.is_drained());
    assert_eq!(c.send_space(), LARGE);
}

#[test]
fn what_goes_round_the_end_of_the_old_ring_is_found_there() {
    let mut c = written(6);
    let plan = c.plan_tx(true).unwrap();
    let _ = c.tx_done(plan.token);
    c.commit_write(5).unwrap();
    c.switch_ring(ring(LARGE)).unwrap();
    c.commit_write(2).unwrap();
    let old = c.plan_tx(true).unwrap();
    assert_eq!(places(&old), (true, vec![(6, 2), (0, 3)]));
    assert_eq!(places(&c.plan_tx(true).unwrap()), (false, vec![(11, 2)]));
}

#[test]
fn there_is_no_third_ring() {
    let mut c = written(3);
    c.switch_ring(ring(LARGE)).unwrap();
    let before = c.clone();
    assert_eq!(c.switch_ring(ring(SMALL)), Err(OutOfRange));
    assert_eq!(c, before);
    let plan = c.plan_tx(true).unwrap();
    assert!(c.keeps_ring_before());
    let _ = c.tx_done(plan.token);
    c.switch_ring(ring(SMALL)).unwrap();
    assert_eq!(c.send_space(), SMALL);
}

#[test]
fn what_the_peer_has_read_is_kept_in_neither() {
    let mut c = written(8);
    c.switch_ring(ring(LARGE)).unwrap();
    c.commit_write(10).unwrap();
    let _ = (c.plan_tx(true).unwrap(), c.plan_tx(true).unwrap());
    assert_eq!(read_by_peer(&mut c, 1, 5), 5);
    assert!(c.keeps_ring_before());
    assert_eq!((c.send_space(), c.unfinished()), (LARGE - 10, 13));
    assert_eq!(read_by_peer(&mut c, 2, 12), 7);
    assert!(!c.keeps_ring_before());
    assert_eq!((c.send_space(), c.unfinished()), (LARGE - 6, 6));
}

#[test]
fn a_change_of_links_repeats_both() {
    let mut c = written(8);
    c.switch_ring(ring(LARGE)).unwrap();
    c.commit_write(4).unwrap();
    let (a, b) = (c.plan_tx(true).unwrap(), c.plan_tx(true).unwrap());
    let _ = (c.tx_failed(a.token), c.tx_failed(b.token));
    c.begin_failover().unwrap();
    assert_eq!(places(&c.plan_tx(true).unwrap()), (true, vec![(0, 8)]));
    assert_eq!(places(&c.plan_tx(true).unwrap()), (false, vec![(8, 4)]));
}

#[test]
fn a_ring_that_is_changed_with_nothing_in_it_is_gone_at_once() {
    let mut c = written(8);
    let plan = c.plan_tx(true).unwrap();
    let _ = c.tx_done(plan.token);
    c.switch_ring(ring(LARGE)).unwrap();
    assert!(!c.keeps_ring_before());
    assert_eq!(c.send_ring().get(), LARGE);
    c.commit_write(1).unwrap();
    assert_eq!(places(&c.plan_tx(true).unwrap()), (false, vec![(8, 1)]));
}
