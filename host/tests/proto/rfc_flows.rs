// SPDX-License-Identifier: GPL-2.0

//! The data flows of RFC 7609, section 4.7, message by message with the values it shows.
//!
//! The RFC's elements have 10,000 bytes of which the first four are not used, so its cursors run
//! from 4 to 9,999. Here an element starts with its first byte; 9,996 bytes and cursors that are
//! four less are the same flow.

use crate::proto::cdc::Message;

use crate::sim::{Pair, Setup};

/// Usable bytes of an element.
const USABLE: u32 = 9_996;

/// Bytes that the RFC's element has in front.
const SKIP: u32 = 4;

/// Host A is side 0, host B side 1. `cursor` and `wrap` are where host A starts to write.
fn hosts(cursor: u32, wrap: u64) -> Pair {
    Pair::new(Setup {
        send: [20_000; 2],
        recv: [USABLE; 2],
        start: wrap * u64::from(USABLE) + u64::from(cursor - SKIP),
        update_limit: USABLE / 10,
        ..Setup::default()
    })
}

/// The writes of the next chain of a host as the RFC prints them, first and last byte.
fn writes(p: &Pair, host: usize) -> Vec<(u32, u32)> {
    let plan = p.sides[host].chains.front().expect("a chain");
    plan.writes()
        .iter()
        .map(|w| (w.remote + SKIP, w.remote + w.len - 1 + SKIP))
        .collect()
}

/// The next message of a host.
fn cdc(p: &Pair, host: usize) -> Message {
    p.sides[host].chains.front().expect("a chain").cdc
}

/// Producer cursor with its wrap number as the RFC prints them.
fn prod(m: &Message) -> (u32, u16) {
    (m.prod.count + SKIP, m.prod.wrap)
}

/// Consumer cursor likewise.
fn cons(m: &Message) -> (u32, u16) {
    (m.cons.count + SKIP, m.cons.wrap)
}

/// Flags of the producer: blocked, urgent pending, urgent present.
fn flags(m: &Message) -> (bool, bool, bool) {
    let f = m.prod_flags;
    (f.write_blocked, f.urgent_pending, f.urgent_present)
}

/// Nobody has anything to send.
fn silent(p: &Pair) {
    for s in &p.sides {
        assert!(s.chains.is_empty(), "{:?}", s.chains);
    }
}

/// The chain of a host arrives and completes.
fn arrive(p: &mut Pair, host: usize) {
    assert!(p.deliver(host));
    assert!(p.complete(host));
}

/// Host A writes and marks the last byte as urgent.
fn send_urgent(p: &mut Pair, n: u32) {
    let a = &mut p.sides[0];
    for r in a.conn.reserve_write(n).iter() {
        for k in r.offset..r.offset + r.len {
            a.ring[k as usize] = crate::sim::pattern(0, a.written);
            a.written += 1;
        }
    }
    a.conn.commit_write(n).unwrap();
    a.conn.mark_urgent().unwrap();
    p.push(0);
}

/// RFC 7609, section 4.7.1.
#[test]
fn scenario_1_send_with_an_open_window() {
    let mut p = hosts(4, 0);
    assert_eq!(p.write(0, 1000), 1000);
    assert_eq!(writes(&p, 0), [(4, 1003)]);
    let m = cdc(&p, 0);
    assert_eq!(
        (m.seq, prod(&m), flags(&m)),
        (1, (1004, 0), (false, false, false))
    );
    arrive(&mut p, 0);
    assert_eq!(p.read(1, 10_000), 1000);
    // The window is 8,996 of 10,000: no update.
    silent(&p);
    assert_eq!(p.sides[0].conn.window(), USABLE - 1000);
}

/// RFC 7609, section 4.7.2.
#[test]
fn scenario_2_send_and_receive_with_an_open_window() {
    let mut p = hosts(4, 0);
    p.write(0, 1000);
    assert_eq!(writes(&p, 0), [(4, 1003)]);
    arrive(&mut p, 0);
    p.read(1, 10_000);
    silent(&p);
    p.write(1, 500);
    assert_eq!(writes(&p, 1), [(4, 503)]);
    // The answer carries the consumer cursor. (The text gives 503 for the producer cursor, which
    // is the last byte; the next one is 504.)
    let m = cdc(&p, 1);
    assert_eq!((prod(&m), cons(&m)), ((504, 0), (1004, 0)));
    arrive(&mut p, 1);
    assert_eq!(p.sides[0].conn.window(), USABLE);
}

/// RFC 7609, section 4.7.3.
#[test]
fn scenario_3_send_with_a_constrained_window() {
    let mut p = hosts(4, 0);
    p.write(0, 3000);
    assert_eq!(writes(&p, 0), [(4, 3003)]);
    assert_eq!(prod(&cdc(&p, 0)), (3004, 0));
    arrive(&mut p, 0);
    assert_eq!(p.read(1, 10_000), 3000);
    silent(&p);
    p.write(0, 4000);
    assert_eq!(writes(&p, 0), [(3004, 7003)]);
    assert_eq!(prod(&cdc(&p, 0)), (7004, 0));
    arrive(&mut p, 0);
    assert_eq!(p.read(1, 10_000), 4000);
    // The sender knows of 3,000 bytes, less than half, and gains more than a tenth.
    let m = cdc(&p, 1);
    assert_eq!(p.sides[1].chains[0].data_len(), 0);
    assert_eq!(cons(&m), (7004, 0));
}

/// RFC 7609, section 4.7.4.
#[test]
fn scenario_4_large_send_with_full_window_writes() {
    let mut p = hosts(1004, 1);
    assert_eq!(p.write(0, 20_000), 20_000);
    for wrap in [2, 3] {
        // Steps 1 to 3 and 5 to 7; a third write where the send ring wraps is ours.
        let w = writes(&p, 0);
        assert_eq!((w[0].0, w[w.len() - 1].1), (1004, 1003));
        assert!(w.contains(&(4, 1003)) || w.iter().any(|r| r.0 == 4));
        let m = cdc(&p, 0);
        assert_eq!((prod(&m), flags(&m).0), ((1004, wrap), true));
        arrive(&mut p, 0);
        assert_eq!(p.read(1, 10_000), USABLE);
        // Steps 4 and 8.
        let m = cdc(&p, 1);
        assert_eq!(cons(&m), (1004, wrap));
        arrive(&mut p, 1);
    }
    // The final 8 bytes.
    assert_eq!(writes(&p, 0), [(1004, 1011)]);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m).0), ((1012, 3), false));
    arrive(&mut p, 0);
    assert_eq!(p.read(1, 10_000), 8);
    silent(&p);
}

/// RFC 7609, section 4.7.5.
#[test]
fn scenario_5_urgent_data_with_an_open_window() {
    let mut p = hosts(1000, 1);
    p.sides[1].conn.set_oob_inline(true);
    send_urgent(&mut p, 500);
    p.write(0, 1000);
    assert_eq!(writes(&p, 0), [(1000, 1499)]);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m)), ((1500, 1), (false, true, true)));
    arrive(&mut p, 0);
    assert!(p.sides[1].conn.urgent_valid());
    // The normal data waits for the answer.
    assert!(p.sides[0].chains.is_empty());
    assert_eq!(p.read(1, 10_000), 500);
    // The update comes whatever the window is.
    assert_eq!(cons(&cdc(&p, 1)), (1500, 1));
    arrive(&mut p, 1);
    assert_eq!(writes(&p, 0), [(1500, 2499)]);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m)), ((2500, 1), (false, false, false)));
    arrive(&mut p, 0);
    assert_eq!(p.read(1, 10_000), 1000);
    silent(&p);
}

/// RFC 7609, section 4.7.6.
#[test]
fn scenario_6_urgent_data_with_a_closed_window() {
    // The element is full: written in the lap before.
    let mut p = hosts(1000, 1);
    p.sides[1].conn.set_oob_inline(true);
    assert_eq!(p.write(0, USABLE), USABLE);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m)), ((1000, 2), (true, false, false)));
    arrive(&mut p, 0);

    send_urgent(&mut p, 500);
    p.write(0, 1000);
    // Step 1: the announcement goes out alone.
    let plan = p.sides[0].chains[0];
    assert_eq!(plan.data_len(), 0);
    assert_eq!(
        (prod(&plan.cdc), flags(&plan.cdc)),
        ((1000, 2), (true, true, false))
    );
    arrive(&mut p, 0);
    silent(&p);
    // Step 2: the application reads a whole window.
    assert_eq!(p.read(1, 10_000), USABLE);
    assert_eq!(cons(&cdc(&p, 1)), (1000, 2));
    arrive(&mut p, 1);
    // Steps 3 and 4.
    assert_eq!(writes(&p, 0), [(1000, 1499)]);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m)), ((1500, 2), (false, true, true)));
    arrive(&mut p, 0);
    // Step 5.
    assert_eq!(p.read(1, 10_000), 500);
    assert_eq!(cons(&cdc(&p, 1)), (1500, 2));
    arrive(&mut p, 1);
    // Steps 6 and 7.
    assert_eq!(writes(&p, 0), [(1500, 2499)]);
    let m = cdc(&p, 0);
    assert_eq!((prod(&m), flags(&m)), ((2500, 2), (false, false, false)));
}
