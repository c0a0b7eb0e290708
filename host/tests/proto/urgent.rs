// SPDX-License-Identifier: GPL-2.0

//! Urgent data in both directions (RFC 7609, sections 4.7.5 and 4.7.6).

use crate::proto::conn::{OutOfRange, UrgentError};

use crate::common::{property, Rng};
use crate::sim::{pattern, Pair, Setup};

/// Side 0 sends `n` bytes whose last one is urgent.
fn send_urgent(p: &mut Pair, n: u32) {
    let c = &mut p.sides[0].conn;
    assert_eq!(c.reserve_write(n).total(), n);
    // The simulator writes and pushes in one step; the mark must come in between.
    let at = p.sides[0].written;
    for r in p.sides[0].conn.reserve_write(n).iter() {
        for k in 0..r.len {
            let pos = at
                + u64::from(k)
                + if r.offset == 0 {
                    u64::from(n - r.len)
                } else {
                    0
                };
            p.sides[0].ring[(r.offset + k) as usize] = pattern(0, pos);
        }
    }
    p.sides[0].conn.commit_write(n).unwrap();
    p.sides[0].conn.mark_urgent().unwrap();
    p.sides[0].written += u64::from(n);
    p.push(0);
}

#[test]
fn urgent_byte_is_given_out_apart_from_the_data() {
    let mut p = Pair::new(Setup::default());
    send_urgent(&mut p, 5);
    let plan = p.sides[0].chains[0];
    assert!(plan.cdc.prod_flags.urgent_pending && plan.cdc.prod_flags.urgent_present);
    p.deliver(0);
    let c = &mut p.sides[1].conn;
    assert!(c.urgent_valid() && !c.at_mark());
    assert_eq!(c.readable_len(), 4);
    assert!(c.is_mark_ahead());
    assert_eq!(c.take_urgent(true), Ok(pattern(0, 4)));
    assert_eq!(c.take_urgent(false), Ok(pattern(0, 4)));
    assert_eq!(c.take_urgent(false), Err(UrgentError::None));
    assert_eq!(p.read(1, 100), 4);
    let c = &p.sides[1].conn;
    assert!(c.at_mark() && !c.is_mark_ahead());
    assert_eq!(c.readable_len(), 0);
    // The sender learns that all of it was read and may go on.
    p.deliver(1);
    assert!(!p.sides[0].conn.urgent_outstanding());
}

#[test]
fn reading_passes_over_an_urgent_byte_that_nobody_took() {
    let mut p = Pair::new(Setup::default());
    send_urgent(&mut p, 3);
    p.deliver(0);
    p.sides[1].read = 0;
    assert_eq!(p.read(1, 10), 2);
    p.deliver(1);
    p.sides[1].read = 3;
    p.write(0, 4);
    p.deliver(0);
    assert!(p.sides[1].conn.at_mark());
    assert_eq!(p.read(1, 10), 4);
    assert!(!p.sides[1].conn.at_mark());
    // It is gone.
    assert!(!p.sides[1].conn.urgent_valid());
    assert_eq!(p.sides[1].conn.take_urgent(false), Err(UrgentError::None));
}

#[test]
fn a_call_that_finds_nothing_leaves_the_mark() {
    let mut p = Pair::new(Setup::default());
    send_urgent(&mut p, 1);
    p.deliver(0);
    let c = &mut p.sides[1].conn;
    assert!(c.at_mark() && c.urgent_valid());
    c.leave_mark();
    assert!(!c.at_mark() && !c.urgent_valid());
    assert_eq!(c.take_urgent(true), Err(UrgentError::None));
    // The peer learns nothing else of it than that it was read.
    p.deliver(1);
    assert!(!p.sides[0].conn.urgent_outstanding());
    // One that is part of the data is none that could be left: it is read.
    p.sides[1].conn.set_oob_inline(true);
    p.sides[1].read = 1;
    send_urgent(&mut p, 1);
    p.deliver(0);
    p.sides[1].conn.leave_mark();
    assert!(p.sides[1].conn.at_mark() && p.sides[1].conn.urgent_valid());
    assert_eq!(p.read(1, 2), 1);
}

#[test]
fn inline_urgent_byte_is_ordinary_data() {
    let mut p = Pair::new(Setup::default());
    p.sides[1].conn.set_oob_inline(true);
    send_urgent(&mut p, 3);
    p.deliver(0);
    let c = &mut p.sides[1].conn;
    assert_eq!(c.readable_len(), 3);
    assert_eq!(c.take_urgent(false), Err(UrgentError::None));
    assert_eq!(p.read(1, 2), 2);
    assert!(p.sides[1].conn.at_mark());
    assert_eq!(p.read(1, 2), 1);
    assert!(!p.sides[1].conn.urgent_valid());
    p.deliver(1);
    assert!(!p.sides[0].conn.urgent_outstanding());
}

#[test]
fn bytes_before_an_inline_urgent_byte_are_counted() {
    let mut p = Pair::new(Setup::default());
    p.sides[1].conn.set_oob_inline(true);
    send_urgent(&mut p, 3);
    p.deliver(0);
    assert_eq!(p.sides[1].conn.before_inline_mark(), Some(2));
    assert_eq!(p.read(1, 1), 1);
    assert_eq!(p.sides[1].conn.before_inline_mark(), Some(1));
    assert_eq!(p.read(1, 1), 1);
    // From the mark on it is read like any other byte.
    assert!(p.sides[1].conn.at_mark());
    assert_eq!(p.sides[1].conn.before_inline_mark(), None);
    assert_eq!(p.read(1, 1), 1);
    assert_eq!(p.sides[1].conn.before_inline_mark(), None);
    p.sides[1].conn.set_oob_inline(false);
    assert_eq!(p.sides[1].conn.before_inline_mark(), None);
}

#[test]
fn nothing_behind_the_urgent_byte_is_sent_before_it_is_read() {
    let mut p = Pair::new(Setup::default());
    send_urgent(&mut p, 3);
    p.write(0, 8);
    assert_eq!(p.sides[0].conn.unsent(), 8);
    assert_eq!(p.sides[0].conn.mark_urgent(), Err(OutOfRange));
    p.deliver(0);
    p.complete(0);
    assert_eq!(p.sides[0].conn.unsent(), 8);
    p.read(1, 10);
    let plan = p.sides[1].chains[0];
    assert_eq!(plan.cdc.cons.count, 3);
    p.deliver(1);
    assert_eq!(p.sides[0].conn.unsent(), 0);
    let plan = p.sides[0].chains[0];
    assert!(!plan.cdc.prod_flags.urgent_pending && !plan.cdc.prod_flags.urgent_present);
}

#[test]
fn urgent_data_is_announced_through_a_closed_window() {
    let mut p = Pair::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    p.write(0, 8);
    p.deliver(0);
    p.complete(0);
    send_urgent(&mut p, 4);
    let plan = p.sides[0].chains[0];
    assert_eq!(plan.data_len(), 0);
    let f = plan.cdc.prod_flags;
    assert!(f.write_blocked && f.urgent_pending && !f.urgent_present);
    p.deliver(0);
    let c = &mut p.sides[1].conn;
    assert_eq!(c.take_urgent(false), Err(UrgentError::NotYet));
    assert!(!c.urgent_valid());
    p.read(1, 8);
    p.deliver(1);
    p.deliver(0);
    assert!(p.sides[1].conn.urgent_valid());
}

#[test]
fn urgent_byte_at_the_end_of_the_ring_is_found() {
    let mut p = Pair::new(Setup {
        recv: [64, 8],
        ..Setup::default()
    });
    // The producer cursor is 0 in the next lap, the byte the last of this one.
    send_urgent(&mut p, 8);
    let fx_offset = p.sides[0].chains[0].cdc.prod;
    assert_eq!((fx_offset.wrap, fx_offset.count), (1, 0));
    p.deliver(0);
    assert_eq!(p.sides[1].conn.take_urgent(true), Ok(pattern(0, 7)));
    assert_eq!(p.read(1, 100), 7);
    p.deliver(1);
    assert!(!p.sides[0].conn.urgent_outstanding());
}

#[test]
fn lone_urgent_byte_is_confirmed_without_a_read() {
    let mut p = Pair::new(Setup::default());
    send_urgent(&mut p, 1);
    p.deliver(0);
    let c = &p.sides[1].conn;
    assert!(c.at_mark() && c.urgent_valid());
    assert_eq!(c.readable_len(), 0);
    p.deliver(1);
    assert!(!p.sides[0].conn.urgent_outstanding());
}

#[test]
fn urgent_mark_needs_data() {
    let mut p = Pair::new(Setup::default());
    assert_eq!(p.sides[0].conn.mark_urgent(), Err(OutOfRange));
    assert_eq!(p.sides[1].conn.take_urgent(false), Err(UrgentError::None));
    assert!(!p.sides[1].conn.urgent_arrived(1));
}

/// Urgent and ordinary data in random order; the reader sees every byte but the urgent ones.
fn run(rng: &mut Rng) {
    let mut p = Pair::new(Setup {
        send: [rng.range(8, 30) as u32, 8],
        recv: [8, rng.range(1, 30) as u32],
        update_limit: rng.range(1, 20) as u32,
        slots: rng.range(1, 3) as usize,
        ..Setup::default()
    });
    let inline = rng.one_in(3);
    p.sides[1].conn.set_oob_inline(inline);
    let mut marks = vec![];
    for _ in 0..rng.range(10, 200) {
        match rng.below(8) {
            0 => {
                p.write(0, rng.range(1, 9) as u32);
            }
            1 => {
                let n = rng.range(1, 8) as u32;
                let c = &p.sides[0].conn;
                if !c.urgent_outstanding() && c.send_space() >= n {
                    send_urgent(&mut p, n);
                    marks.push(p.sides[0].written - 1);
                }
            }
            2 | 3 => {
                p.deliver(0);
            }
            4 => {
                p.complete(0);
                p.complete(1);
            }
            5 => {
                p.deliver(1);
            }
            6 => read(&mut p, rng.range(1, 9) as u32, &marks, inline),
            _ => {
                if let Ok(byte) = p.sides[1].conn.take_urgent(false) {
                    assert!(marks.iter().any(|m| pattern(0, *m) == byte));
                }
            }
        }
    }
    loop {
        let mut moved = p.deliver(0) | p.deliver(1) | p.complete(0) | p.complete(1);
        if p.sides[1].conn.readable().total() > 0 {
            read(&mut p, 100, &marks, inline);
            moved = true;
        }
        if !moved {
            break;
        }
    }
    skip(&mut p, &marks, inline);
    assert_eq!(p.sides[1].read, p.sides[0].written);
    assert!(!p.sides[0].conn.urgent_outstanding());
    assert!(p.sides[0].conn.is_drained());
}

/// Steps the reader's position over urgent bytes that are kept apart.
fn skip(p: &mut Pair, marks: &[u64], inline: bool) {
    while !inline && marks.contains(&p.sides[1].read) {
        p.sides[1].read += 1;
    }
}

/// Reads what is there; a read ends in front of the urgent byte.
fn read(p: &mut Pair, n: u32, marks: &[u64], inline: bool) {
    skip(p, marks, inline);
    let at = p.sides[1].read;
    let got = u64::from(p.read(1, n));
    if !inline {
        assert!(marks.iter().all(|m| *m < at || *m >= at + got));
    }
}

#[test]
fn random_urgent_data_never_disturbs_the_stream() {
    property("urgent data", 3000, run);
}
