// SPDX-License-Identifier: GPL-2.0

//! What may happen to each machine of the core, and so has to happen in the simulator.

use std::collections::BTreeSet;

use crate::proto::close::{Event, Machine, State};
use crate::proto::group::*;
use crate::proto::ids::Role;
use crate::proto::llc::{Opcode, Version};
use crate::sim::Reach;

/// What is under way: our role, the exchange that changes links, whether keys are being told.
type Flowing = (Role, Option<Exchange>, bool);

/// An addition: our role, the version, whether it is the first link, and how far it is.
type Adding = (Role, Version, bool, Step);

/// Pairs and effects that ought to be reached and were not.
pub fn missing(reach: &Reach) -> Vec<String> {
    let mut out = vec![];
    let mut need = |machine: &'static str, state: &str, event: &str| {
        if reach.count(machine, state, event) == 0 {
            out.push(format!("{machine}: {state} {event}"));
        }
    };
    for (state, event) in close_pairs() {
        need("close", &state, &event);
    }
    for (state, event) in flow_pairs() {
        need("flow", &format!("{state:?}"), &format!("{event:?}"));
    }
    for (state, event) in addition_pairs() {
        need("addition", &format!("{state:?}"), event);
    }
    for state in LinkState::ALL {
        for event in LinkEvent::ALL {
            let mut s = state;
            if s.on(event).is_ok() {
                need("link", &format!("{state:?}"), &format!("{event:?}"));
            }
        }
    }
    for (state, events) in CONN {
        for event in events.split(", ") {
            need("conn", state, event);
        }
    }
    for (machine, state, events) in EFFECTS {
        for event in events.split(", ") {
            need(machine, state, event);
        }
    }
    out
}

/// Every state of a close machine with every event that fits it, found by trying all sequences,
/// without those that the life of a socket does not have.
fn close_pairs() -> BTreeSet<(String, String)> {
    let mut pairs = BTreeSet::new();
    let mut seen: Vec<Machine> = vec![];
    let mut todo = vec![Machine::new()];
    while let Some(m) = todo.pop() {
        if seen.contains(&m) {
            continue;
        }
        seen.push(m);
        for event in Event::ALL {
            let mut next = m;
            if next.transition(event).is_ok() {
                if why_not(m.state(), event).is_none() {
                    pairs.insert((format!("{:?}", m.state()), format!("{event:?}")));
                }
                todo.push(next);
            }
        }
    }
    pairs
}

/// Why something does not happen to a socket although the machine would take it.
fn why_not(state: State, event: Event) -> Option<&'static str> {
    use State::*;
    match (state, event) {
        (_, Event::AbortDone) if !matches!(state, PeerAbortWait | Closed) => {
            Some("it follows our own abort at once")
        }
        (Init | Listen, Event::LocalAbort | Event::Timeout) => {
            Some("a handshake is ended by its own timer and reason")
        }
        (Init | Listen, Event::Close { unread: true }) => Some("there is no data yet"),
        (Init | Closed, Event::FallbackEnded) => {
            Some("a fallback is established before, and closed after, its TCP connection ends")
        }
        (
            AppCloseWait1 | AppCloseWait2 | AppFinCloseWait | PeerCloseWait2 | PeerFinCloseWait,
            Event::PeerDone | Event::Data,
        )
        | (AppFinCloseWait, Event::PeerClosed) => Some("it is said once, and in this order"),
        (Init | Active | PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait, Event::Unheard) => {
            Some("the peer has not closed, or we have")
        }
        (AppCloseWait2, Event::Unheard) => {
            Some("a slot has to be missing at that very moment: see the tests of `endpoint`")
        }
        (PeerAbortWait | ProcessAbort | Closed, Event::Data | Event::Unheard) => {
            Some("nothing counts any more that comes")
        }
        (
            Active | AppCloseWait1 | AppCloseWait2 | AppFinCloseWait | ProcessAbort,
            Event::Timeout,
        ) => Some("no timer runs there, nor is one just being stopped"),
        _ => None,
    }
}

/// Every exchange that may be under way with every message.
fn flow_pairs() -> Vec<(Flowing, (Opcode, bool))> {
    let mut pairs = vec![];
    for role in [Role::Client, Role::Server] {
        for links in [None, Some(Exchange::AddLink), Some(Exchange::DeleteLink)] {
            for keys in [false, true] {
                // A server begins nothing while another exchange is under way.
                if role == Role::Server && links.is_some() && keys {
                    continue;
                }
                for opcode in OPCODES {
                    for response in [false, true] {
                        pairs.push(((role, links, keys), (opcode, response)));
                    }
                }
            }
        }
    }
    pairs
}

const OPCODES: [Opcode; 9] = [
    Opcode::ConfirmLink,
    Opcode::AddLink,
    Opcode::AddLinkCont,
    Opcode::DeleteLink,
    Opcode::ReqAddLink,
    Opcode::ConfirmRkey,
    Opcode::ConfirmRkeyCont,
    Opcode::TestLink,
    Opcode::DeleteRkey,
];

/// What may come at each step of an addition: role, version, whether it is a first contact, step.
/// Messages of other steps do not come so far: `Flows` sees to that.
fn addition_pairs() -> Vec<(Adding, &'static str)> {
    let mut pairs = vec![];
    let mut all = |state, events: &[&'static str]| {
        pairs.extend(events.iter().map(|e| (state, *e)));
        pairs.extend(["TimedOut", "LinkGone", "Failed"].map(|e| (state, e)));
    };
    for version in [Version::V1, Version::V2] {
        all(
            (Role::Server, version, false, Step::Offering),
            &["Accepted", "Refused"],
        );
        for role in [Role::Server, Role::Client] {
            all((role, version, false, Step::Confirming), &["Confirmed"]);
            all((role, version, true, Step::Confirming), &["Confirmed"]);
        }
    }
    for role in [Role::Server, Role::Client] {
        all(
            (role, Version::V1, false, Step::Keys),
            &["Keys", "KeysAgain"],
        );
    }
    pairs
}

/// Classes of states of a connection (`sock::class`), and what may happen there.
const CONN: &[(&str, &str)] = &[
    (
        "quiet",
        "write, grow, shrink, plan message, message, validation, read, no slot, \
               request done, request closed, request abort, failover, kill",
    ),
    (
        "unsent",
        "write, grow, write waits, plan data, plan message, message, validation, read, no slot, \
                mark urgent, request done, request closed, request abort, failover, kill",
    ),
    (
        "posted",
        "write, grow, write waits, plan data, plan message, hold, done, failed, message, \
                validation, read, no slot, mark urgent, request done, request closed, \
                request abort, failover, kill",
    ),
    (
        "blocked",
        "write, grow, write waits, plan message, done, failed, message, validation, read, \
                 no slot, mark urgent, request done, request closed, request abort, failover, kill",
    ),
    (
        "urgent",
        "write, grow, write waits, plan data, plan message, done, failed, message, validation, \
                read, no slot, request done, request closed, request abort, failover, kill",
    ),
    (
        "peer closed",
        "plan message, done, failed, message, validation, read, no slot, request done, \
                     request closed, request abort, failover, kill",
    ),
    (
        "closed",
        "plan message, done, failed, message, validation, read, no slot, request abort, \
                failover, kill",
    ),
    (
        "dead",
        "done, failed, message, validation, request abort, failover, kill",
    ),
];

/// Effects of the core, and what becomes of them.
const EFFECTS: &[(&str, &str, &str)] = &[
    ("effect", "received", "arrived, push, freed, urgent, urgent read, peer done, peer closed, peer abort"),
    ("effect", "done", "freed, push, drained, idle"),
    ("effect", "read", "push"),
    ("effect", "send", "Done, Closed, Abort"),
    ("effect", "tcp", "Shutdown, Reset"),
    ("effect", "data", "refused"),
    ("effect", "error", "Reset, Aborted"),
    ("effect", "timer", "Arm, Stop"),
    ("effect", "cdc", "early, early short, short, unknown token"),
    ("effect", "addition", "Linked, GivenUp"),
    ("effect", "exchange", "TimedOut, LinkGone, NewLinkGone"),
    ("effect", "key", "None, Some(Taken), Some(Later), Some(Refused)"),
    ("effect", "forget", "false, true"),
    ("effect", "silence", "Fine, Test, Lost"),
    ("effect", "gate", "waits"),
    ("effect", "group ends", "it is idle, the peer ends it, its last link is lost, \
                              its last link is ended, an operator ends it, its first contact failed"),
    ("verdict", "Deliver", ""),
    ("verdict", "Answer", ""),
    ("verdict", "RefuseForNow", ""),
    ("verdict", "Start(AddLink)", ""),
    ("verdict", "Start(DeleteLink)", ""),
    ("verdict", "Parked", ""),
    ("verdict", "Terminate", ""),
    ("verdict", "Drop(Unsolicited)", ""),
    ("verdict", "Drop(Duplicate)", ""),
    ("verdict", "Drop(WrongRole)", ""),
    ("verdict", "Drop(UnderWay)", ""),
    ("next", "Server", "AddLink, DeleteLink"),
    ("next", "Client", "AddLink, DeleteLink"),
    ("deletion", "Server", "Ask, Ignore, EndGroup"),
    ("deletion", "Client", "Answer, AnswerUnknown, EndGroup"),
    ("reply", "Send", "TestLink, ConfirmRkey, DeleteRkey, ReqAddLink"),
    ("reply", "Terminate", "DeleteLink"),
    ("type", "Single", ""),
    ("type", "Symmetric", ""),
    ("type", "AsymmetricLocal", ""),
    ("type", "AsymmetricPeer", ""),
    ("judge_request", "Ok(Symmetric)", ""),
    ("judge_request", "Ok(AsymmetricLocal)", ""),
    ("judge_request", "Ok(AsymmetricPeer)", ""),
    ("judge_request", "Err(1)", ""),
    ("judge_request", "Err(2)", ""),
    ("version", "V1", "0"),
    ("version", "V2", "0, 1"),
    // Every message of version 1 that two of ours need; CONFIRM RKEY CONTINUATION is for more
    // links than a group of ours has.
    ("said", "V1", "ConfirmLink, AddLink, AddLinkCont, DeleteLink, ConfirmRkey, TestLink, DeleteRkey"),
    ("said", "V2", "ConfirmLink, AddLink, DeleteLink, ReqAddLink, ConfirmRkey, TestLink, DeleteRkey"),
    ("decline", "both", ""),
    ("declined", "Smc", "TIMEOUT_CL"),
];
