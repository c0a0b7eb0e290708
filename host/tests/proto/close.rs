// SPDX-License-Identifier: GPL-2.0

//! The state machine of a socket: every state with every event, written down.

use crate::proto::close::{State as S, *};

use crate::common::written_down;

/// A way into each state, with what distinguishes machines in the same state.
fn ways() -> Vec<(&'static str, Vec<Event>)> {
    use Event::*;
    let unread = false;
    vec![
        ("INIT", vec![]),
        ("LISTEN", vec![Listen]),
        ("ACTIVE", vec![Established]),
        // After shutdown(WR): the descriptor is open, `closed` was not sent.
        ("PCW1 shut", vec![Established, ShutdownWrite]),
        ("PCW1 deaf", vec![Established, ShutdownRead, ShutdownWrite]),
        ("PCW1 shut both", vec![Established, ShutdownBoth]),
        ("PCW1 closed", vec![Established, Close { unread }]),
        ("PCW2 shut", vec![Established, ShutdownWrite, PeerDone]),
        ("PCW2 shut both", vec![Established, ShutdownBoth, PeerDone]),
        ("PCW2 closed", vec![Established, Close { unread }, PeerDone]),
        ("ACW1 done", vec![Established, PeerDone]),
        ("ACW1 closed", vec![Established, PeerClosed]),
        ("ACW2 done", vec![Established, PeerDone, ShutdownWrite]),
        ("ACW2 closed", vec![Established, PeerClosed, ShutdownWrite]),
        ("AFCW shut", vec![Established, ShutdownWrite, PeerClosed]),
        (
            "AFCW shut both",
            vec![Established, ShutdownBoth, PeerClosed],
        ),
        ("PFCW open", vec![Established, PeerDone, ShutdownBoth]),
        ("PFCW closed", vec![Established, PeerDone, Close { unread }]),
        ("PABW open", vec![Established, LocalAbort]),
        ("PABW closed", vec![Established, Close { unread: true }]),
        ("PRAB", vec![Established, PeerAbort]),
        (
            "CLOSED open",
            vec![Established, PeerAbort, Close { unread }],
        ),
    ]
}

fn machine(events: &[Event]) -> Machine {
    let mut m = Machine::new();
    for e in events {
        let _ = m.transition(*e).unwrap();
    }
    m
}

fn short(s: S) -> &'static str {
    match s {
        S::Active => "ACTIVE",
        S::Init => "INIT",
        S::Closed => "CLOSED",
        S::Listen => "LISTEN",
        S::PeerCloseWait1 => "PCW1",
        S::PeerCloseWait2 => "PCW2",
        S::AppCloseWait1 => "ACW1",
        S::AppCloseWait2 => "ACW2",
        S::AppFinCloseWait => "AFCW",
        S::PeerFinCloseWait => "PFCW",
        S::PeerAbortWait => "PABW",
        S::ProcessAbort => "PRAB",
    }
}

/// One line per result: next state, then what is to be done.
fn show(r: Result<Outcome, InvalidTransition>) -> String {
    let Ok(o) = r else {
        return "invalid".into();
    };
    let a = o.actions;
    let mut out = short(o.state).to_string();
    if let Some(s) = a.send {
        out += match s {
            Send::Done => " done",
            Send::Closed => " closed",
            Send::Abort => " abort",
        };
    }
    if let Some(e) = a.error {
        out += match e {
            SocketError::Reset => " ECONNRESET",
            SocketError::Aborted => " ECONNABORTED",
            SocketError::Pipe => " EPIPE",
        };
    }
    if a.refuse {
        out += " refuse";
    }
    if let Some(t) = a.tcp {
        out += match t {
            Tcp::Shutdown => " tcp-shutdown",
            Tcp::Reset => " tcp-reset",
        };
    }
    if let Some(t) = a.timer {
        out += match t {
            Timer::Arm => " arm",
            Timer::Stop => " stop",
        };
    }
    if a.wake {
        out += " wake";
    }
    if a.finish {
        out += " finish";
    }
    out
}

/// The whole matrix as text.
fn matrix() -> String {
    let mut out = String::new();
    for (name, way) in ways() {
        for event in Event::ALL {
            let mut m = machine(&way);
            let before = m;
            let r = m.transition(event);
            if r.is_err() {
                assert_eq!(m, before, "{name} {event:?}: refused but changed");
            }
            let event = format!("{event:?}").replace("unread: ", "");
            out += &format!("{name:15} {event:24} {}\n", show(r));
        }
    }
    out
}

#[test]
fn matrix_is_as_written_down() {
    written_down("close", &matrix());
}

#[test]
fn every_state_has_a_way_into_it() {
    let reached: Vec<S> = ways().iter().map(|(_, w)| machine(w).state()).collect();
    for s in S::ALL {
        assert!(reached.contains(&s), "{s:?}");
    }
}

#[test]
fn state_numbers_are_those_of_the_diagnosis_interface() {
    let numbers: Vec<u8> = S::ALL.iter().map(|s| s.number()).collect();
    assert_eq!(numbers, [1, 2, 7, 10, 20, 21, 22, 23, 24, 25, 26, 27]);
    for n in 0..=255 {
        let s = S::from_number(n);
        assert_eq!(s.map(S::number), numbers.contains(&n).then_some(n));
    }
}

/// Follows every sequence of events up to `depth` and judges each step.
fn explore(m: Machine, timer: bool, finished: bool, depth: usize, seen: &mut usize) {
    for event in Event::ALL {
        let mut next = m;
        let Ok(o) = next.transition(event) else {
            continue;
        };
        *seen += 1;
        let a = o.actions;
        let timer = match a.timer {
            Some(Timer::Arm) => true,
            Some(Timer::Stop) => {
                assert!(timer, "{m:?} {event:?}: stopped a timer that was not armed");
                false
            }
            None => timer && event != Event::Timeout,
        };
        assert!(!(finished && a.finish), "{m:?} {event:?}: finished twice");
        let finished = finished || a.finish;
        assert_eq!(finished, o.state == S::Closed, "{m:?} {event:?}");
        // Nobody waits for a peer for ever without a descriptor or after an abort.
        let bounded = !next.is_open() || o.state == S::PeerAbortWait;
        if o.state.waits_for_peer() && bounded && event != Event::Timeout {
            assert!(timer, "{m:?} {event:?}: no timer");
        }
        if o.state == S::Closed {
            assert!(!timer, "{m:?} {event:?}: timer in CLOSED");
        }
        if m.state() == S::Closed {
            assert_eq!(o.state, S::Closed);
        }
        if depth > 1 {
            explore(next, timer, finished, depth - 1, seen);
        }
    }
}

#[test]
fn every_sequence_of_events_ends_once_and_waits_bounded() {
    let mut seen = 0;
    explore(Machine::new(), false, false, 5, &mut seen);
    assert!(seen > 100_000, "{seen}");
}

#[test]
fn sending_is_allowed_in_two_states() {
    let may: Vec<S> = S::ALL.into_iter().filter(|s| s.may_send()).collect();
    assert_eq!(may, [S::Active, S::AppCloseWait1]);
}

#[test]
fn machine_answers_what_its_users_ask() {
    // May the application send, does the peer have to act, is all over; has the peer ended its data, has it closed; is
    // the descriptor open, is reading shut.
    let answers = [
        ("INIT", "- - -  - -  open -"),
        ("LISTEN", "- - -  - -  open -"),
        ("ACTIVE", "send - -  - -  open -"),
        ("PCW1 shut", "- wait -  - -  open -"),
        ("PCW1 deaf", "- wait -  - -  open deaf"),
        ("PCW1 shut both", "- wait -  - -  open deaf"),
        ("PCW1 closed", "- wait -  - -  - -"),
        ("PCW2 shut", "- wait -  done -  open -"),
        ("PCW2 shut both", "- wait -  done -  open deaf"),
        ("PCW2 closed", "- wait -  done -  - -"),
        ("ACW1 done", "send - -  done -  open -"),
        ("ACW1 closed", "send - -  done closed  open -"),
        ("ACW2 done", "- - -  done -  open -"),
        ("ACW2 closed", "- - -  done closed  open -"),
        ("AFCW shut", "- - -  done closed  open -"),
        ("AFCW shut both", "- - -  done closed  open deaf"),
        ("PFCW open", "- wait -  done -  open deaf"),
        ("PFCW closed", "- wait -  done -  - -"),
        ("PABW open", "- wait over  - -  open -"),
        ("PABW closed", "- wait over  - -  - -"),
        ("PRAB", "- - over  - -  open -"),
        ("CLOSED open", "- - over  - -  - -"),
    ];
    let ways = ways();
    assert_eq!(answers.len(), ways.len());
    for ((name, want), (way, events)) in answers.iter().zip(ways) {
        assert_eq!(*name, way);
        let m = machine(&events);
        let word = |yes, word| if yes { word } else { "-" };
        let got = format!(
            "{} {} {}  {} {}  {} {}",
            word(m.state().may_send(), "send"),
            word(m.state().waits_for_peer(), "wait"),
            word(m.state().is_over(), "over"),
            word(m.peer_done(), "done"),
            word(m.peer_closed(), "closed"),
            word(m.is_open(), "open"),
            word(m.is_read_shut(), "deaf"),
        );
        assert_eq!(got, *want, "{name}");
    }
}
