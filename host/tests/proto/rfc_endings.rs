// SPDX-License-Identifier: GPL-2.0

//! How connections end and how they move to another link, message by message between two hosts:
//! RFC 7609, sections 4.8.1, 4.8.2 and 4.6. The numbers of the steps are those of the RFC.

use crate::proto::cdc::ConnFlags;
use crate::proto::close::{Event, State, Tcp};
use crate::proto::conn::ConnViolation;

use crate::endpoint::{quiet, World};
use crate::sim::{Pair, Setup, CLOSED, DONE};

/// The host that ends the connection first, and its peer.
const A: usize = 0;
const B: usize = 1;

const NONE: ConnFlags = ConnFlags {
    sending_done: false,
    closed: false,
    abort: false,
};
const DONE_AND_CLOSED: ConnFlags = ConnFlags {
    closed: true,
    ..DONE
};

/// The next message of a host: how many bytes stand before it, and its flags.
fn next(w: &World, host: usize) -> Option<(u32, ConnFlags)> {
    let plan = w.pair.sides[host].chains.front()?;
    Some((plan.data_len(), plan.cdc.conn_flags))
}

/// The next message of a host, which is this one, arrives.
fn arrives(w: &mut World, host: usize, bytes: u32, flags: ConnFlags) {
    assert_eq!(next(w, host), Some((bytes, flags)));
    assert!(w.deliver(host));
    w.follow_up();
}

/// It completes at its sender.
fn completes(w: &mut World, host: usize) {
    assert!(w.complete(host));
    w.follow_up();
}

fn states(w: &World) -> [State; 2] {
    [A, B].map(|host| w.socks[host].machine.state())
}

/// The end of a connection that was ended in good order.
fn both_are_over(w: &mut World) {
    while w.complete(A) | w.complete(B) {
        w.follow_up();
    }
    assert_eq!(states(w), [State::Closed; 2]);
    for (s, side) in w.socks.iter().zip(&w.pair.sides) {
        assert!(s.released && !s.timer);
        assert!(side.chains.is_empty() && side.conn.posted() == 0);
    }
}

/// RFC 7609, section 4.8.1, steps 3A, 4A, 4C and 3C.
#[test]
fn close_waits_for_its_data_and_then_says_so() {
    let mut w = quiet();
    w.write(A, 40);
    // 3A: data is still to be written, so the close is pending; the application goes on.
    w.close(A);
    assert_eq!(states(&w), [State::PeerCloseWait1, State::Active]);
    arrives(&mut w, A, 40, NONE);
    assert_eq!(next(&w, A), None);
    completes(&mut w, A);
    arrives(&mut w, A, 0, CLOSED);
    // 4A: receivers are told once they have read everything.
    assert_eq!(states(&w), [State::PeerCloseWait1, State::AppCloseWait1]);
    assert!(w.read(B, 40) && !w.socks[B].eof);
    assert!(!w.read(B, 40) && w.socks[B].eof);
    // 4C: the cursor is told, then the flag; the peer has closed already.
    arrives(&mut w, B, 0, NONE);
    w.close(B);
    assert_eq!(states(&w), [State::PeerCloseWait1, State::Closed]);
    // 3C: and so has the application here.
    arrives(&mut w, B, 0, CLOSED);
    both_are_over(&mut w);
    assert!(w.socks.iter().all(|s| !s.failed));
    // The TCP connection is ended by its own protocol.
    assert!(w.socks.iter().all(|s| s.tcp == Some(Tcp::Shutdown)));
}

/// Steps 3A, 4A, 4B, 3B, 4C, 3D and 4D.
#[test]
fn shutdown_of_both_directions_one_after_the_other() {
    let mut w = quiet();
    // 3A by shutdown for writing: the last byte and the flag may go together.
    w.write(A, 10);
    w.event(A, Event::ShutdownWrite);
    arrives(&mut w, A, 10, NONE);
    completes(&mut w, A);
    arrives(&mut w, A, 0, DONE);
    assert_eq!(states(&w), [State::PeerCloseWait1, State::AppCloseWait1]);
    completes(&mut w, A);
    // The other direction still carries data.
    assert!(w.read(B, 10));
    w.write(B, 30);
    arrives(&mut w, B, 30, NONE);
    completes(&mut w, B);
    assert!(w.read(A, 30));
    // 4B and 3B.
    w.event(B, Event::ShutdownWrite);
    assert_eq!(states(&w)[B], State::AppCloseWait2);
    arrives(&mut w, B, 0, DONE);
    completes(&mut w, B);
    assert_eq!(states(&w)[A], State::PeerCloseWait2);
    assert!(!w.read(A, 1) && w.socks[A].eof);
    // 4C: the peer has not closed yet.
    w.close(B);
    assert_eq!(states(&w)[B], State::PeerFinCloseWait);
    arrives(&mut w, B, 0, DONE_AND_CLOSED);
    // 3D: nor has the application there; once it does the message goes out.
    assert_eq!(states(&w)[A], State::AppFinCloseWait);
    assert_eq!(next(&w, A), None);
    w.close(A);
    assert_eq!(states(&w), [State::Closed, State::PeerFinCloseWait]);
    // 4D.
    arrives(&mut w, A, 0, DONE_AND_CLOSED);
    both_are_over(&mut w);
    assert!(w.socks.iter().all(|s| !s.failed));
}

/// Both take path 3.
#[test]
fn both_close_at_the_same_time() {
    let mut w = quiet();
    w.close(A);
    w.close(B);
    assert_eq!(states(&w), [State::PeerCloseWait1; 2]);
    arrives(&mut w, A, 0, CLOSED);
    assert_eq!(states(&w), [State::PeerCloseWait1, State::Closed]);
    arrives(&mut w, B, 0, CLOSED);
    both_are_over(&mut w);
    assert!(w.socks.iter().all(|s| !s.failed));
}

/// The timer that the end of section 4.8.1 asks for: TCP is reset, and nothing is written into
/// the peer's element any more.
#[test]
fn peer_that_does_not_close_is_given_up() {
    let mut w = quiet();
    w.close(A);
    arrives(&mut w, A, 0, CLOSED);
    completes(&mut w, A);
    w.write(B, 20);
    assert!(w.socks[A].timer);
    w.event(A, Event::Timeout);
    assert_eq!(states(&w)[A], State::Closed);
    assert_eq!(w.socks[A].tcp, Some(Tcp::Reset));
    while let Some((bytes, _)) = next(&w, A) {
        assert_eq!(bytes, 0);
        assert!(w.deliver(A));
        completes(&mut w, A);
    }
    assert!(w.socks[A].released);
}

/// Step 3A, with data that nobody has read: section 4.8.2.
#[test]
fn close_over_unread_data_is_an_abort() {
    let mut w = quiet();
    w.write(B, 20);
    arrives(&mut w, B, 20, NONE);
    w.close(A);
    assert_eq!(states(&w), [State::PeerAbortWait, State::Active]);
    let (bytes, flags) = next(&w, A).unwrap();
    assert!(bytes == 0 && flags.abort && !flags.closed);
    assert_eq!(w.socks[A].tcp, Some(Tcp::Reset));
}

/// RFC 7609, section 4.8.2, steps 1A, 2A, 2B and 1B.
#[test]
fn abort_is_answered_by_an_abort() {
    let mut w = quiet();
    w.write(A, 20);
    w.write(B, 30);
    w.event(A, Event::LocalAbort);
    // 1A: the flag goes out, calls fail, TCP is reset, a timer runs.
    assert_eq!(states(&w)[A], State::PeerAbortWait);
    assert!(w.socks[A].failed && w.socks[A].timer);
    assert_eq!(w.socks[A].tcp, Some(Tcp::Reset));
    // Whatever else arrives in this state is ignored.
    arrives(&mut w, B, 30, NONE);
    assert!(!w.read(A, 30));
    assert_eq!(states(&w)[A], State::PeerAbortWait);
    // What was posted before is on its way.
    arrives(&mut w, A, 20, NONE);
    let (bytes, flags) = next(&w, A).unwrap();
    assert!(bytes == 0 && flags.abort);
    assert!(w.deliver(A));
    w.follow_up();
    // 2A: the application learns of it, data on its way is purged. 2B: the answer.
    assert_eq!(states(&w)[B], State::ProcessAbort);
    assert!(w.socks[B].failed && !w.read(B, 20));
    let (bytes, flags) = next(&w, B).unwrap();
    assert!(bytes == 0 && flags.abort);
    // 1B.
    assert!(w.deliver(B));
    w.follow_up();
    assert_eq!(states(&w)[A], State::Closed);
    assert!(!w.socks[A].timer);
    // The passive side keeps its state until the application closes.
    w.close(B);
    w.close(A);
    both_are_over(&mut w);
}

/// Both take path 1.
#[test]
fn both_abort_at_the_same_time() {
    let mut w = quiet();
    w.event(A, Event::LocalAbort);
    w.event(B, Event::LocalAbort);
    assert_eq!(states(&w), [State::PeerAbortWait; 2]);
    for host in [A, B] {
        assert!(next(&w, host).unwrap().1.abort);
        assert!(w.deliver(host));
        w.follow_up();
    }
    w.close(A);
    w.close(B);
    both_are_over(&mut w);
}

/// A host that stays in PeerAbortWait for too long gives the element back.
#[test]
fn abort_that_is_not_answered_ends_by_the_timer() {
    let mut w = quiet();
    w.event(A, Event::LocalAbort);
    assert!(w.socks[A].timer);
    assert!(w.pair.sides[A].chains.pop_front().is_some());
    w.event(A, Event::Timeout);
    assert_eq!(states(&w)[A], State::Closed);
}

/// The TCP connection was reset and no flag has come: the end of section 4.8.2.
#[test]
fn reset_of_the_tcp_connection_is_an_abort() {
    let mut w = quiet();
    w.event(B, Event::PeerAbort);
    assert!(w.socks[B].failed);
    arrives(
        &mut w,
        B,
        0,
        ConnFlags {
            abort: true,
            ..NONE
        },
    );
    assert!(w.socks[A].failed);
}

/// RFC 7609, section 4.8.3: no link is left.
#[test]
fn last_link_is_lost() {
    let mut w = quiet();
    w.write(A, 20);
    w.kill();
    for s in &w.socks {
        assert!(s.failed);
        assert_eq!(s.tcp, Some(Tcp::Reset));
    }
    w.settle([false; 2]);
    w.close(A);
    w.close(B);
    both_are_over(&mut w);
}

/// Three writes of host A with the sequence numbers 1 to 3: the first is acknowledged, the second
/// has arrived although its acknowledgement is lost, the third is lost.
fn three_writes() -> Pair {
    let mut p = Pair::new(Setup::default());
    for _ in 0..3 {
        assert_eq!(p.write(A, 10), 10);
    }
    assert!(p.deliver(A) && p.complete(A) && p.deliver(A));
    assert_eq!(p.sides[A].chains[0].cdc.seq, 3);
    p
}

/// RFC 7609, section 4.6: SS is 1 and SR is 2, so that nothing is lost. What failed goes out
/// again, with new data and a number beyond the last one that failed.
#[test]
fn writes_that_failed_are_repeated_on_the_new_link() {
    let mut p = three_writes();
    let validation = p.sides[A].conn.begin_failover().unwrap();
    assert!(validation.prod_flags.failover_validation);
    assert_eq!(validation.seq, 1);
    // The other direction stays where it is.
    assert_eq!(p.write(B, 5), 5);
    assert!(!p.sides[B].chains[0].cdc.prod_flags.failover_validation);
    // What was posted on the old link fails.
    for plan in std::mem::take(&mut p.sides[A].chains) {
        let _ = p.sides[A].conn.tx_failed(plan.token);
    }
    let late = p.sides[A].completions.pop_front().unwrap();
    let _ = p.sides[A].conn.tx_failed(late);
    // No reply is expected.
    let fx = p.receive(B, &validation);
    assert!(!fx.push && fx.arrived == 0);
    assert_eq!(p.sides[B].violation, None);
    assert_eq!(p.write(A, 10), 10);
    let again = p.sides[A].chains[0];
    assert_eq!((again.cdc.seq, again.data_len()), (4, 30));
    assert_eq!((again.writes()[0].remote, again.cdc.prod.count), (10, 40));
    p.sides[A].writer_sleeps = false;
    p.settle();
    p.assert_all_arrived();
}

/// SS is 2 and SR is 1: data is lost for ever, and the connection is reset.
#[test]
fn write_that_was_acknowledged_but_not_received_resets_the_connection() {
    let mut p = Pair::new(Setup::default());
    p.write(A, 10);
    p.write(A, 10);
    assert!(p.deliver(A) && p.complete(A));
    // The device has acknowledged the second, and its host has never seen it.
    let lost = p.sides[A].chains.pop_front().unwrap();
    let _ = p.sides[A].conn.tx_done(lost.token);
    let validation = p.sides[A].conn.begin_failover().unwrap();
    assert_eq!(validation.seq, 2);
    let _ = p.receive(B, &validation);
    assert_eq!(p.sides[B].violation, Some(ConnViolation::DataLost));
    assert!(p.sides[B].chains[0].cdc.conn_flags.abort);
}
