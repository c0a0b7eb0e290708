// SPDX-License-Identifier: GPL-2.0

//! What a peer may claim, and when updates and flags go out.

use crate::proto::cdc::{ConnFlags, Message, ProdFlags};
use crate::proto::conn::{Conn, ConnViolation, OutOfRange, Snapshot};
use crate::proto::cursor::{Cursor, Pos};
use crate::proto::ids::AlertToken;

use crate::common::property;
use crate::sim::{conn, Pair, Setup, DONE};

const SEND: u32 = 32;
const PEER: u32 = 16;
const RECV: u32 = 24;

fn fresh() -> Conn {
    conn(SEND, PEER, RECV, 3, 0)
}

fn msg(seq: u16, prod: u64, cons: u64) -> Message {
    Message {
        seq,
        token: AlertToken::new(1).unwrap(),
        prod: Pos::new(prod).cursor(crate::sim::ring(RECV)),
        cons: Pos::new(cons).cursor(crate::sim::ring(PEER)),
        prod_flags: ProdFlags::default(),
        conn_flags: ConnFlags::default(),
    }
}

/// Takes a message that must be refused and leaves the connection as it was.
fn refused(c: &mut Conn, m: &Message) -> ConnViolation {
    let before = c.clone();
    let e = c.on_cdc(m).unwrap_err();
    assert_eq!(*c, before);
    e
}

#[test]
fn producer_may_fill_the_element_and_no_more() {
    for n in 0..=RECV {
        let mut c = fresh();
        let fx = c.on_cdc(&msg(1, n.into(), 0)).unwrap();
        assert_eq!((fx.arrived, c.readable_len()), (n, n));
    }
    for n in RECV + 1..3 * RECV {
        let mut c = fresh();
        let e = refused(&mut c, &msg(1, n.into(), 0));
        assert_eq!(e, ConnViolation::ProducedTooMuch, "{n}");
    }
}

#[test]
fn wrap_with_count_zero_cannot_be_claimed_again_and_again() {
    // The known attack: every message claims one more lap.
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, RECV.into(), 0)).unwrap();
    for lap in 2..100 {
        let e = refused(&mut c, &msg(lap, u64::from(lap) * u64::from(RECV), 0));
        assert_eq!(e, ConnViolation::ProducedTooMuch);
    }
    assert_eq!(c.readable_len(), RECV);
}

#[test]
fn reading_gives_the_peer_no_space_before_it_was_told() {
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, RECV.into(), 0)).unwrap();
    assert_eq!(c.consume(RECV), Ok(c_push()));
    // The update is not out yet, so the peer cannot know.
    let more = msg(2, u64::from(RECV) + 1, 0);
    assert_eq!(refused(&mut c, &more), ConnViolation::ProducedTooMuch);
    let plan = c.plan_tx(true).unwrap();
    assert_eq!(plan.cdc.cons, Cursor { wrap: 1, count: 0 });
    assert_eq!(c.on_cdc(&more).unwrap().arrived, 1);
}

fn c_push() -> crate::proto::conn::Consumed {
    crate::proto::conn::Consumed { push: true }
}

#[test]
fn consumer_may_confirm_what_was_sent_and_no_more() {
    let mut c = fresh();
    assert_eq!(
        refused(&mut c, &msg(1, 0, 1)),
        ConnViolation::ConsumedTooMuch
    );
    c.commit_write(10).unwrap();
    // Written but not sent.
    assert_eq!(
        refused(&mut c, &msg(1, 0, 1)),
        ConnViolation::ConsumedTooMuch
    );
    let plan = c.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 10);
    assert_eq!(
        refused(&mut c, &msg(1, 0, 11)),
        ConnViolation::ConsumedTooMuch
    );
    let _ = c.on_cdc(&msg(1, 0, 10)).unwrap();
    assert_eq!(c.window(), PEER);
}

#[test]
fn cursors_that_lie_behind_are_refused() {
    let mut c = fresh();
    c.commit_write(10).unwrap();
    let _ = c.plan_tx(true).unwrap();
    let _ = c.on_cdc(&msg(1, 5, 5)).unwrap();
    assert_eq!(
        refused(&mut c, &msg(2, 4, 5)),
        ConnViolation::ProducedTooMuch
    );
    assert_eq!(
        refused(&mut c, &msg(2, 5, 4)),
        ConnViolation::ConsumedTooMuch
    );
    // The same again is fine, also with the same number.
    assert_eq!(c.on_cdc(&msg(1, 5, 5)).unwrap().arrived, 0);
    assert_eq!(c.on_cdc(&msg(2, 5, 5)).unwrap().arrived, 0);
}

#[test]
fn counts_must_lie_in_their_ring() {
    for (ring, is_prod) in [(RECV, true), (PEER, false)] {
        for count in [ring, ring + 1, u32::MAX] {
            let mut c = fresh();
            let mut m = msg(1, 0, 0);
            let cursor = Cursor { wrap: 0, count };
            if is_prod {
                m.prod = cursor;
            } else {
                m.cons = cursor;
            }
            assert_eq!(refused(&mut c, &m), ConnViolation::CountOutsideRing);
        }
    }
}

#[test]
fn every_cursor_of_a_small_ring_is_judged_right() {
    // All wraps near the present one and all counts, against unbounded arithmetic.
    let start = (u64::from(RECV) << 16) - 10;
    for read in [0u32, 5, 24] {
        let mut c = fresh();
        c.start_at(Pos::ZERO, Pos::new(start), 0, 0);
        let _ = c.on_cdc(&msg(1, start + u64::from(read), 0)).unwrap();
        let _ = c.consume(read).unwrap();
        let told = c.plan_tx(true).is_some();
        let limit = start + u64::from(RECV) + if told { u64::from(read) } else { 0 };
        for ahead in 0..4 * u64::from(RECV) {
            let pos = start + u64::from(read) + ahead;
            let mut d = c.clone();
            let ok = d.on_cdc(&msg(2, pos, 0)).is_ok();
            assert_eq!(ok, pos <= limit, "{read} {ahead}");
        }
    }
}

#[test]
fn old_messages_are_ignored() {
    let mut c = fresh();
    c.start_at(Pos::ZERO, Pos::ZERO, 0, 0xfffe);
    let _ = c.on_cdc(&msg(1, 5, 0)).unwrap();
    for seq in [0, 0xffff, 0xfffe, 0x8001] {
        let fx = c.on_cdc(&msg(seq, 20, 0)).unwrap();
        assert!(fx.stale, "{seq}");
        assert_eq!(c.readable_len(), 5);
    }
    assert!(!c.on_cdc(&msg(0x8000, 6, 0)).unwrap().stale);
    assert_eq!(c.readable_len(), 6);
}

#[test]
fn first_message_has_number_1_and_65535_is_followed_by_0() {
    let mut c = fresh();
    c.commit_write(1).unwrap();
    assert_eq!(c.plan_tx(true).unwrap().cdc.seq, 1);
    c.start_at(Pos::ZERO, Pos::ZERO, 0xfffe, 0);
    for want in [0xffff, 0, 1] {
        c.commit_write(1).unwrap();
        assert_eq!(c.plan_tx(true).unwrap().cdc.seq, want);
    }
}

#[test]
fn what_was_written_is_known_after_an_end_in_order_alone() {
    let closed = |abort| ConnFlags {
        closed: true,
        abort,
        ..ConnFlags::default()
    };
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, 7, 0)).unwrap();
    assert_eq!(c.written_by_peer(), u32::MAX);
    let mut last = msg(2, 9, 0);
    last.conn_flags = closed(false);
    let mut aborted = c.clone();
    let _ = c.on_cdc(&last).unwrap();
    assert_eq!(c.written_by_peer(), 9);
    // What has come for nobody does not count as arrived, but is there.
    c.refuse(2);
    assert_eq!(c.written_by_peer(), u32::MAX);
    last.conn_flags = closed(true);
    let _ = aborted.on_cdc(&last).unwrap();
    assert_eq!(aborted.written_by_peer(), u32::MAX);
}

#[test]
fn callers_cannot_take_more_than_there_is() {
    let mut c = fresh();
    assert_eq!(c.commit_write(SEND + 1), Err(OutOfRange));
    assert_eq!(c.consume(1), Err(OutOfRange));
    c.commit_write(SEND).unwrap();
    assert_eq!(c.commit_write(1), Err(OutOfRange));
    assert_eq!(c.reserve_write(5).total(), 0);
    assert_eq!(c.send_space(), 0);
    assert!(c.consume(0).is_ok());
}

#[test]
fn window_updates_follow_their_rule() {
    // RFC 7609, section 4.5.1: ring, told window, gain, blocked → update. The limit is a tenth.
    let rows: &[(u32, u32, u32, bool, bool, bool, &str)] = &[
        // arrived, read, …, flags: blocked, requested → due
        (
            40,
            40,
            100,
            false,
            false,
            false,
            "example a: the window is still wide",
        ),
        (
            70,
            1,
            100,
            false,
            false,
            false,
            "example b: the gain is small",
        ),
        (
            70,
            69,
            100,
            false,
            false,
            true,
            "example c: a narrow window and much gain",
        ),
        (
            50,
            10,
            100,
            false,
            false,
            true,
            "window exactly half, gain exactly a tenth",
        ),
        (49, 49, 100, false, false, false, "window above half"),
        (50, 9, 100, false, false, false, "gain below a tenth"),
        (
            100,
            9,
            100,
            true,
            false,
            false,
            "blocked, but little gain and more to read",
        ),
        (100, 10, 100, true, false, true, "blocked, enough gain"),
        (5, 5, 100, true, false, true, "blocked and all is read"),
        (5, 1, 100, false, true, true, "requested"),
        (5, 0, 100, false, true, false, "requested, nothing read"),
    ];
    for (arrived, read, ring, blocked, requested, want, what) in rows {
        let mut c = conn(16, PEER, *ring, ring / 10, 0);
        let mut m = msg(1, 0, 0);
        m.prod = Pos::new(u64::from(*arrived)).cursor(crate::sim::ring(*ring));
        m.prod_flags.write_blocked = *blocked;
        m.prod_flags.update_requested = *requested;
        let _ = c.on_cdc(&m).unwrap();
        let got = c.consume(*read).unwrap().push;
        assert_eq!(got, *want, "{what}");
        assert_eq!(c.plan_tx(true).is_some(), *want, "{what}");
    }
}

#[test]
fn request_for_an_update_is_answered_at_once() {
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, 5, 0)).unwrap();
    assert_eq!(c.consume(2).map(|f| f.push), Ok(false));
    let mut m = msg(2, 5, 0);
    m.prod_flags.update_requested = true;
    assert!(c.on_cdc(&m).unwrap().push);
    assert_eq!(c.plan_tx(true).unwrap().cdc.cons.count, 2);
}

#[test]
fn every_message_carries_the_newest_consumer_cursor() {
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, 5, 0)).unwrap();
    let _ = c.consume(2).unwrap();
    c.commit_write(1).unwrap();
    assert_eq!(c.plan_tx(true).unwrap().cdc.cons.count, 2);
    let _ = c.consume(3).unwrap();
    c.commit_write(1).unwrap();
    assert_eq!(c.plan_tx(true).unwrap().cdc.cons.count, 5);
}

#[test]
fn message_says_blocked_exactly_when_the_window_is_closed() {
    let mut c = fresh();
    c.commit_write(PEER - 1).unwrap();
    assert!(!c.plan_tx(true).unwrap().cdc.prod_flags.write_blocked);
    c.commit_write(5).unwrap();
    let plan = c.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 1);
    assert!(plan.cdc.prod_flags.write_blocked);
    assert_eq!(c.plan_tx(true), None);
    assert!(c.on_cdc(&msg(1, 0, 2)).unwrap().push);
    let plan = c.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 2);
    assert!(plan.cdc.prod_flags.write_blocked);
    let _ = c.on_cdc(&msg(2, 0, 18)).unwrap();
    let plan = c.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 2);
    assert!(!plan.cdc.prod_flags.write_blocked);
}

#[test]
fn chains_split_where_either_ring_wraps() {
    // Send ring 32 from 30 on, element 16 from 14 on: three writes for 12 bytes when the wraps
    // lie at different bytes.
    let mut c = conn(20, 16, 16, 1, 0);
    c.start_at(Pos::new(14), Pos::ZERO, 0, 0);
    c.commit_write(12).unwrap();
    let plan = c.plan_tx(true).unwrap();
    let got: Vec<_> = plan
        .writes()
        .iter()
        .map(|w| (w.local, w.remote, w.len))
        .collect();
    assert_eq!(got, [(14, 14, 2), (16, 0, 4), (0, 4, 6)]);
    assert_eq!(plan.cdc.prod, Cursor { wrap: 1, count: 10 });
}

#[test]
fn chain_is_limited_by_the_device() {
    let mut c = conn(64, 64, 16, 1, 10);
    c.commit_write(25).unwrap();
    let mut lens = vec![];
    while let Some(p) = c.plan_tx(true) {
        lens.push(p.data_len());
    }
    assert_eq!(lens, [10, 10, 5]);
}

#[test]
fn held_data_goes_with_the_last_completion() {
    let mut p = Pair::new(Setup {
        autocork: 32,
        ..Setup::default()
    });
    p.write(0, 4);
    p.write(0, 4);
    p.write(0, 4);
    // The first went out at once, the others wait.
    assert_eq!(p.sides[0].chains.len(), 1);
    assert_eq!(p.sides[0].conn.unsent(), 8);
    p.deliver(0);
    p.complete(0);
    assert_eq!(p.sides[0].conn.unsent(), 0);
    // More than the limit does not wait.
    p.write(0, 40);
    assert_eq!(p.sides[0].conn.unsent(), 0);
}

#[test]
fn corked_data_waits_while_the_ring_has_space() {
    let mut c = fresh();
    c.commit_write(SEND - 1).unwrap();
    assert!(c.should_hold(true, 0));
    assert!(!c.should_hold(false, 0));
    c.commit_write(1).unwrap();
    assert!(!c.should_hold(true, 0));
    // A close does not wait for the application to uncork.
    let mut c = fresh();
    c.commit_write(1).unwrap();
    c.request_close(DONE);
    assert!(!c.should_hold(true, 0));
}

#[test]
fn consumer_update_goes_out_while_data_is_held() {
    let mut c = fresh();
    c.commit_write(4).unwrap();
    let _ = c.on_cdc(&msg(1, RECV.into(), 0)).unwrap();
    assert!(c.consume(RECV).unwrap().push);
    let plan = c.plan_tx(false).unwrap();
    assert_eq!(plan.data_len(), 0);
    assert_eq!(plan.cdc.prod, Cursor::default());
    assert_eq!(c.plan_tx(false), None);
    assert_eq!(c.unsent(), 4);
}

#[test]
fn failed_chain_frees_nothing() {
    let mut c = fresh();
    c.commit_write(4).unwrap();
    let plan = c.plan_tx(true).unwrap();
    let fx = c.tx_failed(plan.token);
    assert!(fx.idle && fx.freed == 0 && !fx.drained);
    assert_eq!((c.unfinished(), c.posted()), (4, 0));
}

#[test]
fn aborted_connection_ignores_data_but_sees_close_flags() {
    let mut c = fresh();
    c.request_abort();
    let plan = c.plan_tx(true).unwrap();
    assert!(plan.cdc.conn_flags.abort);
    let mut m = msg(1, 999, 999);
    m.conn_flags.abort = true;
    let fx = c.on_cdc(&m).unwrap();
    assert!(fx.close.abort && fx.arrived == 0 && !fx.push);
    assert!(!c.on_cdc(&m).unwrap().close.any());
}

#[test]
fn snapshot_has_the_layout_of_the_diagnosis_interface() {
    let cursor = |wrap, count| Cursor { wrap, count };
    let snapshot = Snapshot {
        rx_prod: cursor(1, 2),
        rx_cons: cursor(3, 4),
        tx_prod: cursor(5, 6),
        tx_cons: cursor(7, 8),
        tx_prep: cursor(9, 10),
        tx_sent: cursor(11, 12),
        tx_fin: cursor(0x0d0e, 0x0f10_1112),
        tx_prod_flags: ProdFlags::from_byte(0x80),
        tx_conn_flags: ConnFlags::from_byte(0x40),
        rx_prod_flags: ProdFlags::from_byte(0x20),
        rx_conn_flags: ConnFlags::from_byte(0x80),
    };
    let bytes = snapshot.diag_bytes();
    let at = |n: usize| {
        assert_eq!(bytes[n..n + 2], [0, 0]);
        let wrap = u16::from_ne_bytes([bytes[n + 2], bytes[n + 3]]);
        let count = [bytes[n + 4], bytes[n + 5], bytes[n + 6], bytes[n + 7]];
        (wrap, u32::from_ne_bytes(count))
    };
    assert_eq!(
        [at(0), at(8), at(16), at(24)],
        [(1, 2), (3, 4), (5, 6), (7, 8)]
    );
    assert_eq!(bytes[32..36], [0x20, 0x80, 0x80, 0x40]);
    assert_eq!(
        [at(36), at(44), at(52)],
        [(9, 10), (11, 12), (0x0d0e, 0x0f10_1112)]
    );
}

#[test]
fn snapshot_shows_all_cursors() {
    let mut c = fresh();
    let _ = c.on_cdc(&msg(1, 20, 0)).unwrap();
    let _ = c.consume(7).unwrap();
    c.commit_write(30).unwrap();
    let plan = c.plan_tx(true).unwrap();
    let _ = c.tx_done(plan.token);
    let _ = c.on_cdc(&msg(2, 20, 3)).unwrap();
    let s = c.snapshot();
    let counts = [
        s.rx_prod, s.rx_cons, s.tx_prod, s.tx_cons, s.tx_prep, s.tx_sent, s.tx_fin,
    ]
    .map(|c| (c.wrap, c.count));
    assert_eq!(
        counts,
        [(0, 20), (0, 7), (1, 0), (0, 3), (0, 30), (0, 16), (0, 16)]
    );
    assert!(!s.tx_conn_flags.any() && !s.rx_conn_flags.any());
    assert_eq!(c.params().max_chain, 0);
}

#[test]
fn random_messages_never_upset_a_connection() {
    property("hostile messages", 300, |rng| {
        let mut p = Pair::new(Setup {
            send: [rng.range(1, 40) as u32, 8],
            recv: [rng.range(1, 40) as u32, 8],
            ..Setup::default()
        });
        for _ in 0..200 {
            p.write(0, rng.range(1, 10) as u32);
            p.deliver(0);
            p.complete(0);
            let [a, b, ..] = rng.next().to_le_bytes();
            let m = Message {
                seq: rng.below(1 << 16) as u16,
                token: AlertToken::from_peer(0),
                prod: Cursor {
                    wrap: rng.below(3) as u16,
                    count: rng.below(50) as u32,
                },
                cons: Cursor {
                    wrap: rng.below(3) as u16,
                    count: rng.below(9) as u32,
                },
                prod_flags: ProdFlags::from_byte(a),
                conn_flags: ConnFlags::from_byte(if rng.one_in(20) { b } else { 0 }),
            };
            let c = &mut p.sides[0].conn;
            let before = c.clone();
            match c.on_cdc(&m) {
                Ok(_) => {
                    assert!(c.readable_len() <= c.params().recv_ring.get());
                    assert!(c.window() <= 8);
                    let n = c.readable().total();
                    let n = rng.range(0, n.into()) as u32;
                    let _ = c.consume(n).unwrap();
                }
                Err(_) => assert_eq!(*c, before),
            }
        }
    });
}

#[test]
fn token_goes_through_a_number_and_comes_back() {
    // Positions beyond 4 GiB, with the low half of the end below that of what has completed.
    let start = (7 << 32) - 20;
    let mut c = conn(64, 64, 16, 1, 16);
    c.start_at(Pos::new(start), Pos::ZERO, 0xffff, 0);
    c.commit_write(40).unwrap();
    let plans: Vec<_> = std::iter::from_fn(|| c.plan_tx(true)).collect();
    assert_eq!(plans.len(), 3);
    for plan in &plans {
        let token = c.token_of(plan.token.to_cookie());
        assert_eq!(token, plan.token);
        assert_eq!(c.tx_done(token).freed, plan.data_len());
    }
    assert!(c.is_drained());
    // A token of an old link is recognised as such, whatever has completed since.
    let _ = c.begin_failover();
    let old = c.token_of(plans[0].token.to_cookie());
    assert_eq!(c.tx_done(old).freed, 0);
    assert!(c.is_drained());
}

#[test]
fn nothing_is_written_to_a_peer_that_has_closed() {
    let mut c = fresh();
    c.commit_write(SEND).unwrap();
    assert_eq!(c.plan_tx(true).unwrap().data_len(), PEER);
    // The peer has read all, which opens the window, and closes with the same message.
    let mut m = msg(1, 0, PEER.into());
    m.conn_flags.closed = true;
    let fx = c.on_cdc(&m).unwrap();
    assert!(fx.close.closed && !fx.push);
    assert_eq!((c.window(), c.unsent()), (PEER, SEND - PEER));
    assert_eq!(c.plan_tx(true), None);
}

#[test]
fn the_end_of_the_data_is_news_once() {
    let mut c = fresh();
    let close = |c: &mut Conn, seq: u16, done: bool, closed: bool, abort: bool| {
        let mut m = msg(seq, 0, 0);
        m.conn_flags.sending_done = done;
        m.conn_flags.closed = closed;
        m.conn_flags.abort = abort;
        let fx = c.on_cdc(&m).unwrap();
        c.is_first_close(fx.close)
    };
    assert!(!close(&mut c, 1, false, false, false));
    assert!(close(&mut c, 2, true, false, false));
    assert!(!close(&mut c, 3, true, false, false));
    assert!(!close(&mut c, 4, true, true, false));
    assert!(!close(&mut c, 5, false, false, true));
    // All at once is one end.
    assert!(close(&mut fresh(), 1, true, true, false));
}
