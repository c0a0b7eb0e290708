// SPDX-License-Identifier: GPL-2.0

//! Link changes in the middle of transfers (RFC 7609, section 4.6).

use std::cell::Cell;

use crate::proto::cdc::{ConnFlags, Message, ProdFlags};
use crate::proto::conn::{
    ConnViolation, Early, Moving, RxEffects, Short, ShortSorted, Sorted, TxToken,
};
use crate::proto::cursor::{Cursor, Pos};
use crate::proto::ids::AlertToken;

use crate::common::{property, Rng};
use crate::sim::{conn, Pair, Setup, CLOSED, DONE};

/// The links of a pair: each side may lose its link and move on at its own time.
struct Links {
    pair: Pair,
    /// The side still posts to a dead link: nothing it posts arrives.
    down: [bool; 2],
    /// Validation messages on the new link that have not arrived, always ahead of all chains.
    validation: [Option<Message>; 2],
    /// Completions of the dead link that come late, with their outcome.
    late: [Vec<(TxToken, bool)>; 2],
}

impl Links {
    fn new(setup: Setup) -> Self {
        Self {
            pair: Pair::new(setup),
            down: [false; 2],
            validation: [None, None],
            late: [vec![], vec![]],
        }
    }

    fn deliver(&mut self, i: usize) -> bool {
        if let Some(m) = self.validation[i].take() {
            let _ = self.pair.receive(1 - i, &m);
            return true;
        }
        !self.down[i] && self.pair.deliver(i)
    }

    fn complete(&mut self, i: usize) -> bool {
        !self.down[i] && self.pair.complete(i)
    }

    /// The link dies: some chains still get through, for some of them the acknowledgement is
    /// lost, and a write may have been carried out without its message.
    fn fail(&mut self, rng: &mut Rng) {
        for i in 0..2 {
            if self.down[i] || self.validation[i].is_some() {
                continue;
            }
            for _ in 0..rng.below(3) {
                self.deliver(i);
            }
        }
        for i in 0..2 {
            if !self.down[i] && self.validation[i].is_none() {
                if rng.one_in(2) {
                    self.pair.write_out(i);
                }
                self.down[i] = true;
            }
        }
    }

    /// A side learns of it and moves its connection to another link.
    fn change(&mut self, i: usize, rng: &mut Rng) {
        if !self.down[i] {
            return;
        }
        self.down[i] = false;
        let s = &mut self.pair.sides[i];
        // In order: what completed, then what was flushed.
        let good = rng.below(s.completions.len() as u64 + 1) as usize;
        let mut old: Vec<(TxToken, bool)> = s
            .completions
            .drain(..)
            .enumerate()
            .map(|(n, t)| (t, n < good))
            .collect();
        old.extend(s.chains.drain(..).map(|p| (p.token, false)));
        // Some of them come only after the change.
        let early = rng.below(old.len() as u64 + 1) as usize;
        let late = old.split_off(early);
        for (token, ok) in old {
            self.outcome(i, token, ok);
        }
        // What the early outcomes made it post went to the dead link too.
        let s = &mut self.pair.sides[i];
        let mut late = late;
        late.extend(s.chains.drain(..).map(|p| (p.token, false)));
        self.late[i].extend(late);
        self.validation[i] = s.conn.begin_failover();
        self.pair.push(i);
    }

    fn outcome(&mut self, i: usize, token: TxToken, ok: bool) {
        let conn = &mut self.pair.sides[i].conn;
        let fx = if ok {
            conn.tx_done(token)
        } else {
            conn.tx_failed(token)
        };
        self.pair.after_completion(i, fx);
    }

    /// One late completion of a dead link comes in.
    fn late(&mut self, i: usize) -> bool {
        if self.late[i].is_empty() {
            return false;
        }
        let (token, ok) = self.late[i].remove(0);
        self.outcome(i, token, ok);
        true
    }

    fn settle(&mut self, rng: &mut Rng) {
        loop {
            let mut moved = false;
            for i in 0..2 {
                self.change(i, rng);
                moved |= self.deliver(i);
                moved |= self.complete(i);
                moved |= self.late(i);
                if !self.pair.sides[i].reader_sleeps {
                    moved |= self.pair.read(i, u32::MAX) > 0;
                }
            }
            if !moved && !self.down[0] && !self.down[1] {
                break;
            }
        }
        self.pair.check();
        self.pair.assert_all_arrived();
    }
}

fn run(rng: &mut Rng) -> u64 {
    let size = |rng: &mut Rng| rng.range(1, 40) as u32;
    let recv = [size(rng), size(rng)];
    let setup = Setup {
        send: [size(rng), size(rng)],
        recv,
        start: [
            0,
            (u64::from(recv[0]) << 16) - 5,
            (u64::from(recv[1]) << 16) - 5,
        ][rng.below(3) as usize],
        seq: [0, 0xfff0][rng.below(2) as usize],
        update_limit: rng.range(1, 20) as u32,
        max_chain: [0, 3][rng.below(2) as usize],
        slots: rng.range(1, 5) as usize,
        autocork: [0, 20][rng.below(2) as usize],
    };
    let mut l = Links::new(setup);
    let mut done = [false; 2];
    let mut changes = 0;
    for _ in 0..rng.range(30, 300) {
        let i = rng.below(2) as usize;
        match rng.below(24) {
            0..=5 if !l.pair.sides[i].writer_sleeps && !done[i] => {
                l.pair.write(i, rng.range(1, 30) as u32);
            }
            6..=10 => {
                l.deliver(i);
            }
            11..=14 => {
                l.complete(i);
            }
            15..=18 if !l.pair.sides[i].reader_sleeps => {
                l.pair.read(i, rng.range(1, 30) as u32);
            }
            19 => {
                l.late(i);
            }
            20 => {
                changes += 1;
                l.fail(rng);
            }
            21 | 22 => l.change(i, rng),
            // A half-closed side still has to repeat what was lost.
            23 if !done[i] && rng.one_in(4) => {
                done[i] = true;
                l.pair.close(i, DONE);
            }
            _ => {}
        }
        for s in &l.pair.sides {
            assert_eq!(s.violation, None);
        }
    }
    l.settle(rng);
    for (i, done) in done.into_iter().enumerate() {
        assert_eq!(l.pair.sides[1 - i].peer.sending_done, done);
    }
    // The last word is repeated too when the link dies with it.
    for i in 0..2 {
        l.pair.close(i, CLOSED);
        if rng.one_in(2) {
            changes += 1;
            l.fail(rng);
        }
    }
    l.settle(rng);
    for s in &l.pair.sides {
        assert!(s.peer.closed);
    }
    changes
}

#[test]
fn transfers_survive_any_number_of_link_changes() {
    let changes = Cell::new(0);
    property("link change", 6000, |rng| {
        changes.set(changes.get() + run(rng));
    });
    assert!(changes.get() > 20_000, "{changes:?}");
}

#[test]
fn validation_carries_the_last_completed_number_and_nothing_else() {
    let mut p = Pair::new(Setup::default());
    p.write(0, 4);
    p.write(0, 4);
    p.deliver(0);
    p.complete(0);
    let m = p.sides[0].conn.begin_failover().unwrap();
    let bytes = m.encode();
    assert_eq!(bytes[2..4], [0, 1]);
    assert_eq!(bytes[4..8], [0, 0, 0, 7]);
    assert_eq!(bytes[8..24], [0; 16]);
    assert_eq!(bytes[24..26], [0x08, 0]);
    // It used up no number: the repeated data has the next one after the last planned.
    let plan = p.sides[0].conn.plan_tx(true).unwrap();
    assert_eq!(plan.cdc.seq, 3);
    assert_eq!(plan.data_len(), 4);
    assert_eq!(plan.writes()[0].local, 4);
}

#[test]
fn validation_for_an_aborted_connection_is_no_lie() {
    let mut p = Pair::new(Setup::default());
    p.sides[0].conn.request_abort();
    p.push(0);
    // Data arrives that nobody wants any more; then its sender changes links.
    p.write(1, 4);
    p.deliver(1);
    p.complete(1);
    let m = p.sides[1].conn.begin_failover().unwrap();
    assert_eq!(m.seq, 1);
    let _ = p.receive(0, &m);
    assert_eq!(p.sides[0].violation, None);
}

#[test]
fn validation_that_lies_behind_is_fine() {
    for (sent, received, ok) in [
        (5, 5, true),
        (4, 5, true),
        (6, 5, false),
        (0xffff, 0, true),
        (0, 0xffff, false),
        (0x8005, 5, true),
        (0x8004, 5, false),
    ] {
        let mut p = Pair::new(Setup {
            seq: received,
            ..Setup::default()
        });
        let mut m = p.sides[0].conn.begin_failover().unwrap();
        m.seq = sent;
        let before = p.sides[1].conn.snapshot();
        let got = p.sides[1].conn.on_cdc(&m).is_ok();
        assert_eq!(got, ok, "{sent:#x} {received:#x}");
        assert_eq!(p.sides[1].conn.snapshot(), before);
    }
}

/// The columns of the links on which messages come.
const OLD: usize = 0;
const NEW: usize = 1;

/// What a sender posts that changes links after so many chains have been acknowledged: those chains, the message that
/// validates, and what it repeats and adds.
fn change_of_links(acknowledged: usize) -> (Pair, Vec<Message>, Message, Vec<Message>) {
    let mut p = Pair::new(Setup {
        max_chain: 4,
        ..Setup::default()
    });
    p.write(0, 12);
    let chains: Vec<_> = p.sides[0].chains.drain(..).collect();
    assert_eq!(chains.len(), 3);
    for plan in chains.iter().take(acknowledged) {
        let _ = p.sides[0].conn.tx_done(plan.token);
    }
    let validation = p.sides[0].conn.begin_failover().unwrap();
    let again: Vec<_> = std::iter::from_fn(|| p.sides[0].conn.plan_tx(true))
        .map(|plan| plan.cdc)
        .collect();
    let sent = chains.iter().map(|plan| plan.cdc).collect();
    (p, sent, validation, again)
}

#[test]
fn messages_of_the_new_link_wait_for_the_rest_of_the_old_one() {
    // All orders of two completion queues.
    for acknowledged in 0..=3usize {
        for order in 0..64u32 {
            let (p, sent, validation, again) = change_of_links(acknowledged);
            let mut conn = p.sides[1].conn.clone();
            let mut moving = Moving::new();
            // More may have arrived than has been acknowledged.
            let mut old = sent.iter().peekable();
            let mut new = std::iter::once(&validation).chain(&again).peekable();
            let mut arrived = 0;
            let mut step = 0;
            while old.peek().is_some() || new.peek().is_some() {
                let from_old = new.peek().is_none()
                    || (old.peek().is_some() && (order >> (step % 6)) & 1 == 1);
                step += 1;
                let (msg, link) = if from_old {
                    (old.next().unwrap(), OLD)
                } else {
                    (new.next().unwrap(), NEW)
                };
                match moving.sort(&conn, msg, link) {
                    Sorted::Take => arrived += conn.on_cdc(msg).unwrap().arrived,
                    Sorted::Late => {
                        assert_eq!(link, OLD);
                        arrived += conn.on_late(msg).unwrap().arrived;
                    }
                    Sorted::Wait => assert!(msg.prod_flags.failover_validation),
                    Sorted::Kept => assert_eq!(link, NEW),
                }
                if moving.is_due(&conn) {
                    arrived += conn.on_moved(&mut moving).unwrap().arrived;
                }
            }
            assert_eq!(arrived, 12, "{acknowledged} {order:#b}");
            // The peer has caught up: from now on nothing may lie behind.
            let mut behind = *again.last().unwrap_or(&sent[2]);
            behind.seq = behind.seq.wrapping_add(1);
            behind.prod = sent[0].prod;
            if again.is_empty() {
                continue;
            }
            let e = conn.on_cdc(&behind).unwrap_err();
            assert_eq!(e, ConnViolation::ProducedTooMuch);
            assert_eq!(conn.on_moved(&mut moving).unwrap(), RxEffects::default());
        }
    }
}

#[test]
fn data_is_lost_when_the_rest_of_the_old_link_does_not_come() {
    let (p, sent, validation, again) = change_of_links(3);
    let mut conn = p.sides[1].conn.clone();
    let mut moving = Moving::new();
    // Two of three chains have arrived.
    for msg in &sent[..2] {
        assert_eq!(moving.sort(&conn, msg, OLD), Sorted::Take);
        let _ = conn.on_cdc(msg).unwrap();
    }
    assert_eq!(moving.sort(&conn, &validation, NEW), Sorted::Wait);
    for msg in &again {
        assert_eq!(moving.sort(&conn, msg, NEW), Sorted::Kept);
    }
    assert!(!moving.is_due(&conn));
    let before = conn.snapshot();
    assert_eq!(conn.on_moved(&mut moving), Err(ConnViolation::DataLost));
    assert_eq!(conn.snapshot(), before);
    // That is said once.
    assert!(!moving.is_due(&conn));
    assert_eq!(moving.sort(&conn, &sent[2], OLD), Sorted::Late);
}

#[test]
fn nothing_waits_for_a_connection_that_was_aborted() {
    let (p, _, validation, _) = change_of_links(3);
    let mut conn = p.sides[1].conn.clone();
    conn.kill();
    let mut moving = Moving::new();
    assert_eq!(moving.sort(&conn, &validation, NEW), Sorted::Take);
    let _ = conn.on_cdc(&validation).unwrap();
}

#[test]
fn cursors_may_lie_behind_only_after_the_peer_has_moved() {
    let mut p = Pair::new(Setup {
        max_chain: 4,
        ..Setup::default()
    });
    p.write(0, 12);
    while p.deliver(0) {}
    // Nothing completed, so everything is repeated.
    let validation = p.sides[0].conn.begin_failover().unwrap();
    let repeated = p.sides[0].conn.plan_tx(true).unwrap();
    assert_eq!(repeated.cdc.prod.count, 4);

    let mut q = p.clone();
    let e = q.sides[1].conn.on_cdc(&repeated.cdc).unwrap_err();
    assert_eq!(e, ConnViolation::ProducedTooMuch);

    let _ = p.receive(1, &validation);
    let fx = p.receive(1, &repeated.cdc);
    assert_eq!(fx.arrived, 0);
    // Once it has caught up, going back is an error again.
    let rest: Vec<_> = std::iter::from_fn(|| p.sides[0].conn.plan_tx(true)).collect();
    for plan in &rest {
        let _ = p.receive(1, &plan.cdc);
    }
    let mut old = repeated.cdc;
    old.seq = rest.last().unwrap().cdc.seq.wrapping_add(1);
    let e = p.sides[1].conn.on_cdc(&old).unwrap_err();
    assert_eq!(e, ConnViolation::ProducedTooMuch);
}

#[test]
fn bytes_the_peer_has_read_are_not_repeated() {
    let mut p = Pair::new(Setup {
        update_limit: 1,
        recv: [64, 16],
        ..Setup::default()
    });
    p.write(0, 16);
    p.deliver(0);
    p.read(1, 12);
    p.deliver(1);
    // The completion never came, but the peer's cursor did.
    let _ = p.sides[0].conn.begin_failover();
    let plan = p.sides[0].conn.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 4);
    assert_eq!(plan.writes()[0].remote, 12);
}

#[test]
fn message_is_due_after_a_change_even_without_data() {
    let mut p = Pair::new(Setup::default());
    let _ = p.sides[0].conn.begin_failover().unwrap();
    let plan = p.sides[0].conn.plan_tx(true).unwrap();
    assert_eq!(plan.data_len(), 0);
}

#[test]
fn done_flag_is_repeated_with_the_last_byte_only() {
    let mut p = Pair::new(Setup {
        max_chain: 4,
        ..Setup::default()
    });
    p.write(0, 12);
    p.close(0, DONE);
    let _ = p.sides[0].conn.begin_failover();
    let flags: Vec<bool> = std::iter::from_fn(|| p.sides[0].conn.plan_tx(true))
        .map(|plan| plan.cdc.conn_flags.sending_done)
        .collect();
    assert_eq!(flags, [false, false, true]);
}

#[test]
fn last_word_that_was_lost_keeps_the_connection_until_it_is_repeated() {
    let mut p = Pair::new(Setup::default());
    p.close(1, CLOSED);
    p.deliver(1);
    p.complete(1);
    p.close(0, CLOSED);
    let plan = p.sides[0].chains.pop_front().unwrap();
    assert!(!p.sides[0].conn.is_settled());
    // The link dies with the message.
    let _ = p.sides[0].conn.tx_failed(plan.token);
    assert_eq!(p.sides[0].conn.posted(), 0);
    assert!(!p.sides[0].conn.is_settled());
    let mut killed = p.sides[0].conn.clone();
    killed.kill();
    assert!(killed.is_settled());
    let m = p.sides[0].conn.begin_failover().unwrap();
    let _ = p.receive(1, &m);
    p.push(0);
    p.deliver(0);
    assert!(p.sides[1].peer.closed);
    p.complete(0);
    assert!(p.sides[0].conn.is_settled());
    // What fails late on the link that was left has been repeated already.
    let _ = p.sides[0].conn.tx_failed(plan.token);
    assert!(p.sides[0].conn.is_settled());
}

/// Short messages count from the one before, which only a sender knows that has not changed links.
#[test]
fn short_messages_are_sent_where_both_know_the_one_before() {
    let mut p = Pair::new(Setup::default());
    let short = |p: &Pair, side: usize| p.sides[side].chains.back().expect("a chain").short;
    p.write(0, 3);
    assert_eq!(short(&p, 0).map(|s| s.read), Some(0), "the first one");
    p.deliver(0);
    p.complete(0);
    p.read(1, 3);
    p.write(1, 2);
    assert_eq!(short(&p, 1).map(|s| (s.token, s.read)), Some((7, 3)));
    p.deliver(1);
    p.complete(1);
    p.write(0, 1);
    assert_eq!(short(&p, 0).map(|s| s.read), Some(0));
    p.deliver(0);
    p.complete(0);
    // Two writes because a ring ends.
    p.read(1, 1);
    p.write(0, 50);
    p.settle();
    p.write(0, 20);
    assert_eq!(p.sides[0].chains.back().expect("a chain").writes().len(), 2);
    assert_eq!(short(&p, 0).map(|s| s.wrapped), Some(true));
    p.deliver(0);
    p.complete(0);
    // A flag, a message alone.
    p.sides[0].conn.request_close(ConnFlags {
        sending_done: true,
        ..ConnFlags::default()
    });
    p.push(0);
    assert_eq!(short(&p, 0), None, "a flag");
    p.deliver(0);
    p.complete(0);
    // After a change of links for good.
    let _ = p.sides[1].conn.begin_failover().unwrap();
    p.write(1, 2);
    assert_eq!(short(&p, 1), None, "after a change of links");
}

#[test]
fn short_messages_are_refused_where_there_must_not_be_any() {
    let short = Short {
        token: 7,
        wrapped: false,
        read: 0,
    };
    let plain = conn(64, 64, 64, 8, 0);
    assert_eq!(
        plain.short_message(short, 1),
        Err(ConnViolation::ShortUnwanted)
    );
    let mut agreed = plain.clone();
    agreed.allow_short();
    assert_eq!(
        agreed.short_message(short, 65),
        Err(ConnViolation::ProducedTooMuch)
    );
    // The message that it stands for is checked like any other.
    let ahead = agreed.short_message(Short { read: 1, ..short }, 1).unwrap();
    assert_eq!(agreed.on_cdc(&ahead), Err(ConnViolation::ConsumedTooMuch));
    let first = agreed.short_message(short, 64).unwrap();
    assert_eq!(agreed.on_cdc(&first).map(|fx| fx.arrived), Ok(64));
    let more = agreed.short_message(short, 1).unwrap();
    assert_eq!(agreed.on_cdc(&more), Err(ConnViolation::ProducedTooMuch));
    for bits in [0, 1, 0xffff_0001, u32::MAX] {
        assert_eq!(Short::from_bits(bits).to_bits(), bits);
    }
    // The peer changes from link 0 to link 1.
    let mut moving = Moving::new();
    assert_eq!(moving.sort_short(0, 9), ShortSorted::Take);
    // A device repeats the end of a write.
    assert_eq!(moving.sort_short(0, 0), ShortSorted::Ignore);
    let validation = |seq| Message {
        seq,
        token: AlertToken::from_peer(7),
        prod: Cursor::default(),
        cons: Cursor::default(),
        prod_flags: ProdFlags {
            failover_validation: true,
            ..ProdFlags::default()
        },
        conn_flags: ConnFlags::default(),
    };
    // What it names is still to come on the old one.
    assert_eq!(moving.sort(&agreed, &validation(2), 1), Sorted::Wait);
    assert_eq!(moving.sort_short(0, 9), ShortSorted::Take);
    assert_eq!(moving.sort_short(1, 9), ShortSorted::Wrong);
    let mut moving = Moving::new();
    assert_eq!(moving.sort(&agreed, &validation(1), 1), Sorted::Take);
    assert_eq!(moving.sort_short(0, 9), ShortSorted::Ignore);
    assert_eq!(moving.sort_short(1, 9), ShortSorted::Wrong);
}

/// The window is closed: the receiver sees that by itself, unless it has opened it meanwhile.
#[test]
fn short_messages_leave_out_that_the_window_is_closed() {
    let mut p = Pair::new(Setup::default());
    p.write(0, 64);
    let plan = p.sides[0].chains.back().copied().expect("a chain");
    assert!(plan.cdc.prod_flags.write_blocked && plan.short.is_some());
    let mut side = conn(64, 64, 64, 8, 0);
    side.allow_short();
    let all = Short {
        token: 7,
        wrapped: false,
        read: 0,
    };
    let made = side.short_message(all, 64).unwrap();
    assert!(made.prod_flags.write_blocked);
    assert!(
        !side
            .short_message(all, 63)
            .unwrap()
            .prod_flags
            .write_blocked
    );
}

/// What comes before the peer's ring is known counts as it would have later.
#[test]
fn short_messages_that_come_early_are_kept() {
    let short = Short {
        token: 7,
        wrapped: false,
        read: 0,
    };
    let whole = |seq, prod| Message {
        seq,
        token: AlertToken::from_peer(7),
        prod: Cursor {
            wrap: 0,
            count: prod,
        },
        cons: Cursor::default(),
        prod_flags: ProdFlags::default(),
        conn_flags: ConnFlags::default(),
    };
    let validation = |seq| Message {
        prod_flags: ProdFlags {
            failover_validation: true,
            ..ProdFlags::default()
        },
        ..whole(seq, 0)
    };
    let start = |early: &mut Early| {
        let mut c = conn(64, 64, 64, 8, 0);
        c.allow_short();
        let fx = c.on_early(early);
        (fx.map(|fx| fx.arrived), c)
    };
    // Two short ones, then one that says it all, then another short one.
    let mut early = Early::new();
    early.keep_short(short, 3);
    early.keep_short(short, 2);
    let (fx, mut c) = start(&mut { early });
    assert_eq!((fx, c.readable_len()), (Ok(5), 5));
    assert_eq!(c.on_cdc(&whole(3, 6)).map(|fx| fx.arrived), Ok(1));
    early.keep(&whole(3, 6));
    early.keep_short(short, 4);
    let (fx, mut c) = start(&mut { early });
    assert_eq!((fx, c.readable_len()), (Ok(10), 10));
    assert!(c.on_cdc(&whole(4, 6)).is_err());
    assert_eq!(c.on_cdc(&whole(5, 11)).map(|fx| fx.arrived), Ok(1));
    // The peer has changed links and knows of five messages: the fifth comes late, a sixth is repeated.
    early.keep(&validation(5));
    early.keep_short(short, 1);
    early.keep_short(short, 9);
    let (fx, mut c) = start(&mut { early });
    assert_eq!((fx, c.readable_len()), (Ok(11), 11));
    assert_eq!(c.on_cdc(&whole(6, 20)).map(|fx| fx.arrived), Ok(9));
    // One that it knows of is missing.
    let mut early = Early::new();
    early.keep_short(short, 1);
    early.keep(&validation(2));
    assert_eq!(start(&mut early).0, Err(ConnViolation::DataLost));
    // The ring begins anew, behind a message that says where it was.
    let wrapped = Short {
        wrapped: true,
        ..short
    };
    let mut early = Early::new();
    early.keep(&whole(1, 60));
    early.keep_short(short, 1);
    early.keep_short(wrapped, 2);
    early.keep_short(short, 3);
    let (fx, c) = start(&mut early);
    assert_eq!(
        (fx, c.readable_len()),
        (Err(ConnViolation::ProducedTooMuch), 60)
    );
    let mut early = Early::new();
    early.keep_short(short, 3);
    early.keep_short(wrapped, 2);
    early.keep_short(short, 1);
    let mut c = conn(64, 64, 64, 8, 0);
    c.start_at(Pos::new(60), Pos::new(60), 0, 0);
    c.allow_short();
    assert_eq!(c.on_early(&mut { early }).map(|fx| fx.arrived), Ok(7));
    // It ended before, and it cannot do so twice.
    let mut over = early;
    over.keep_short(wrapped, 1);
    assert_eq!(start(&mut over).0, Err(ConnViolation::ProducedTooMuch));
    let mut early = Early::new();
    early.keep_short(short, 4);
    early.keep_short(wrapped, 1);
    let mut c = conn(64, 64, 64, 8, 0);
    c.start_at(Pos::new(60), Pos::new(60), 0, 0);
    c.allow_short();
    assert_eq!(
        c.on_early(&mut early).map(|fx| fx.arrived),
        Err(ConnViolation::ProducedTooMuch)
    );
    // More than the ring, more than was sent to it, more than can be told from old ones, and where none was agreed on.
    let mut early = Early::new();
    early.keep_short(short, 60);
    early.keep_short(short, 5);
    assert_eq!(start(&mut early).0, Err(ConnViolation::ProducedTooMuch));
    early.keep_short(Short { read: 1, ..short }, 1);
    assert_eq!(start(&mut early).0, Err(ConnViolation::ConsumedTooMuch));
    for _ in 0..0x8000 {
        early.keep_short(short, 0);
    }
    assert_eq!(start(&mut early).0, Err(ConnViolation::ProducedTooMuch));
    early.keep_short(short, 1);
    let fx = conn(64, 64, 64, 8, 0).on_early(&mut early);
    assert_eq!(fx, Err(ConnViolation::ShortUnwanted));
}
