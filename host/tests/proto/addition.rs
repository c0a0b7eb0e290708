// SPDX-License-Identifier: GPL-2.0

//! How links come, go and are judged: every step with every event, written down.

use crate::proto::cdc::{ConnFlags, Message, ProdFlags};
use crate::proto::conn::{ConnViolation, Early};
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{ConfirmLink, ConfirmRkey, Opcode, Version};
use crate::proto::DeclineReason;

use crate::sim;

/// What an order says, in short.
fn short(o: Order) -> String {
    let mut out = vec![];
    if let Some((say, via)) = o.say {
        out.push(format!("say {say:?} {via:?}"));
    }
    if let Some(w) = o.wait {
        let kind = if w.response { "answer" } else { "request" };
        out.push(format!(
            "await {:?} {kind} {:?} {}",
            w.opcode, w.via, w.limit_ms
        ));
        if let Some(ms) = w.pressed_ms {
            out.push(format!("{ms} if pressed"));
        }
    }
    if let Some(end) = o.end {
        out.push(format!("{end:?}"));
    }
    out.join(", ")
}

/// An addition at each of its steps.
fn situations() -> Vec<(&'static str, Addition)> {
    let offer = |v| Addition::offer(v).0;
    let accept = |v| Addition::accept(v).0;
    let after = |mut a: Addition, events: &[AddEvent]| {
        for e in events {
            let _ = a.on(*e);
        }
        a
    };
    let keys = AddEvent::Keys { more: true };
    let none = AddEvent::Keys { more: false };
    vec![
        ("server v1 offering", offer(Version::V1)),
        (
            "server v1 keys",
            after(offer(Version::V1), &[AddEvent::Accepted]),
        ),
        (
            "server v1 confirming",
            after(offer(Version::V1), &[AddEvent::Accepted, keys, none]),
        ),
        ("server v2 offering", offer(Version::V2)),
        (
            "server v2 confirming",
            after(offer(Version::V2), &[AddEvent::Accepted]),
        ),
        (
            "server first",
            Addition::first_contact(Role::Server, Version::V2).0,
        ),
        ("client v1 keys", accept(Version::V1)),
        (
            "client v1 confirming",
            after(accept(Version::V1), &[keys, none]),
        ),
        ("client v2 confirming", accept(Version::V2)),
        (
            "client first",
            Addition::first_contact(Role::Client, Version::V2).0,
        ),
        ("over", after(offer(Version::V2), &[AddEvent::Refused])),
        (
            "server linked",
            after(
                offer(Version::V2),
                &[AddEvent::Accepted, AddEvent::Confirmed],
            ),
        ),
        (
            "client linked",
            after(accept(Version::V2), &[AddEvent::Confirmed]),
        ),
        (
            "first linked",
            after(
                Addition::first_contact(Role::Server, Version::V2).0,
                &[AddEvent::Confirmed],
            ),
        ),
    ]
}

#[test]
fn every_event_at_every_step_of_an_addition() {
    use AddEvent::*;
    let events = [
        Accepted,
        Refused,
        Keys { more: true },
        Keys { more: false },
        KeysAgain,
        Confirmed,
        TimedOut,
        LinkGone,
        Failed,
        OutOfReach,
    ];
    let gone = "GivenUp";
    let told = "say Delete Old, GivenUp";
    let s_keys = "say Keys Old, await AddLinkCont answer Old 2000";
    let s_wait = "await AddLinkCont answer Old 2000";
    let s_conf = "say Confirm New, await ConfirmLink answer New 5000, 1000 if pressed";
    let c_keys = "say Keys Old, await AddLinkCont request Old 2000";
    let c_wait = "await AddLinkCont request Old 2000";
    let c_last = "say Keys Old, await ConfirmLink request New 5000";
    let c_link = "say Confirm New, Linked";
    let offering = |yes| [yes, gone, gone, gone, gone, gone, gone, gone, gone, told];
    let confirming = |no, yes| [no, no, no, no, no, yes, no, no, no, no];
    // The peer believes in the link, which goes just then.
    let linked = |lost| ["", "", "", "", "", "", "", lost, "", ""];
    // In the order of `events`.
    let rows: [(&str, [&str; 10]); 14] = [
        ("server v1 offering", offering(s_keys)),
        (
            "server v1 keys",
            [
                gone, gone, s_keys, s_conf, s_wait, gone, gone, gone, gone, gone,
            ],
        ),
        ("server v1 confirming", confirming(told, "Linked")),
        ("server v2 offering", offering(s_conf)),
        ("server v2 confirming", confirming(told, "Linked")),
        ("server first", confirming(gone, "Linked")),
        (
            "client v1 keys",
            [
                gone, gone, c_keys, c_last, c_wait, gone, gone, gone, gone, gone,
            ],
        ),
        ("client v1 confirming", confirming(told, c_link)),
        ("client v2 confirming", confirming(told, c_link)),
        ("client first", confirming(gone, c_link)),
        ("over", [""; 10]),
        ("server linked", linked(told)),
        ("client linked", linked(told)),
        ("first linked", linked(gone)),
    ];
    assert_eq!(situations().len(), rows.len());
    for ((name, at), (row, want)) in situations().into_iter().zip(rows) {
        assert_eq!(name, row);
        for (event, want) in events.into_iter().zip(want) {
            assert_eq!(short(at.clone().on(event)), want, "{name} {event:?}");
        }
    }
}

#[test]
fn first_orders_of_an_addition() {
    let rows = [
        (
            Addition::offer(Version::V1).1,
            "say AddLink Old, await AddLink answer Old 2000",
        ),
        (
            Addition::accept(Version::V1).1,
            "say AddLink Old, await AddLinkCont request Old 2000",
        ),
        (
            Addition::accept(Version::V2).1,
            "say AddLink Old, await ConfirmLink request New 5000",
        ),
        (
            Addition::first_contact(Role::Server, Version::V1).1,
            "say Confirm New, await ConfirmLink answer New 2000",
        ),
        (
            Addition::first_contact(Role::Client, Version::V1).1,
            "await ConfirmLink request New 4000",
        ),
    ];
    for (order, want) in rows {
        assert_eq!(short(order), want);
    }
}

#[test]
fn keys_that_come_twice_are_answered_once() {
    let (mut c, _) = Addition::accept(Version::V1);
    for more in [true, true, false] {
        assert_eq!(
            short(c.on(AddEvent::KeysAgain)),
            "await AddLinkCont request Old 2000"
        );
        assert_eq!(
            c.on(AddEvent::Keys { more }).say,
            Some((Say::Keys, Via::Old))
        );
    }
    assert_eq!(c.step(), Step::Confirming);
}

#[test]
fn a_peer_that_says_the_same_for_ever_is_given_up() {
    let (mut s, _) = Addition::offer(Version::V1);
    let _ = s.on(AddEvent::Accepted);
    assert_eq!(s.on(AddEvent::KeysAgain).end, None);
    assert_eq!(s.on(AddEvent::KeysAgain).end, Some(End::GivenUp));
    assert_eq!(s.step(), Step::Over);
}

#[test]
fn what_is_awaited_names_the_link() {
    let (_, order) = Addition::offer(Version::V2);
    let wait = order.wait.unwrap();
    let want = Awaited {
        opcode: Opcode::AddLink,
        response: true,
        link: Some(2),
    };
    assert_eq!(wait.awaited(2, 1), want);
    let (_, order) = Addition::first_contact(Role::Server, Version::V2);
    assert_eq!(order.wait.unwrap().awaited(2, 1).link, Some(1));
}

#[test]
fn every_event_in_every_state_of_a_link() {
    use LinkState::*;
    let x = "wrong";
    // Made, Confirmed, GivenUp, Lost, Deleted, Cleared.
    let rows = [
        (Unused, ["Activating", x, x, x, x, x]),
        (
            Activating,
            [
                x,
                "Active",
                "Ending clear",
                "Ending clear",
                "Ending clear",
                x,
            ],
        ),
        (
            Active,
            [
                x,
                x,
                x,
                "Ending evacuate report clear",
                "Ending evacuate clear",
                x,
            ],
        ),
        (Ending, [x, x, "Ending", "Ending", "Ending", "Unused"]),
    ];
    assert_eq!(rows.map(|(s, _)| s), LinkState::ALL);
    for (state, want) in rows {
        for (event, want) in LinkEvent::ALL.into_iter().zip(want) {
            let mut s = state;
            let got = match s.on(event) {
                Err(WrongLinkState) => {
                    assert_eq!(s, state);
                    x.to_owned()
                }
                Ok(a) => {
                    let mut out = format!("{s:?}");
                    for (on, name) in [
                        (a.evacuate, "evacuate"),
                        (a.report, "report"),
                        (a.clear, "clear"),
                    ] {
                        if on {
                            out = format!("{out} {name}");
                        }
                    }
                    out
                }
            };
            assert_eq!(got, want, "{state:?} {event:?}");
        }
    }
    assert_eq!(LinkState::default(), Unused);
    assert_eq!(
        LinkState::ALL.map(LinkState::number),
        [None, Some(2), Some(3), None]
    );
}

#[test]
fn requests_to_end_a_link_are_judged_by_role() {
    for others in 0..3 {
        assert_eq!(judge_delete(Role::Server, false, others), Deletion::Ignore);
        assert_eq!(
            judge_delete(Role::Client, false, others),
            Deletion::AnswerUnknown
        );
    }
    for (others, server, client) in [
        (0, Deletion::EndGroup, Deletion::EndGroup),
        (1, Deletion::Ask, Deletion::Answer),
        (2, Deletion::Ask, Deletion::Answer),
    ] {
        assert_eq!(judge_delete(Role::Server, true, others), server);
        assert_eq!(judge_delete(Role::Client, true, others), client);
    }
}

#[test]
fn silence_is_tested_and_then_ends_the_link() {
    let late = TEST_ANSWER_MS + 1;
    for (heard, tested, stuck, idle, want) in [
        (0, None, None, 30_000, Silence::Fine),
        (29_999, None, None, 30_000, Silence::Fine),
        (30_000, None, None, 30_000, Silence::Test),
        (999, None, None, 1_000, Silence::Fine),
        (1_000, None, None, 1_000, Silence::Test),
        (30_000, Some(0), None, 30_000, Silence::Fine),
        (90_000, Some(TEST_ANSWER_MS), None, 30_000, Silence::Fine),
        (90_000, Some(late), None, 30_000, Silence::Lost),
        // Never asked by the clock; a question for another reason is judged all the same.
        (u64::MAX, None, None, 0, Silence::Fine),
        (90_000, Some(late), None, 0, Silence::Lost),
        // The question waits behind data, some of which arrives.
        (30_000, None, Some(10), 30_000, Silence::Test),
        (
            90_000,
            Some(50_000),
            Some(TEST_ANSWER_MS),
            30_000,
            Silence::Fine,
        ),
        (90_000, Some(50_000), Some(late), 30_000, Silence::Lost),
        // What arrived before the question says nothing of it.
        (
            90_000,
            Some(TEST_ANSWER_MS),
            Some(50_000),
            30_000,
            Silence::Fine,
        ),
        (90_000, Some(late), Some(50_000), 30_000, Silence::Lost),
        // Nothing arrives, whatever the peer says meanwhile, and whether it is asked or not.
        (0, None, Some(STUCK_MS), 30_000, Silence::Fine),
        (0, None, Some(STUCK_MS + 1), 30_000, Silence::Lost),
        (0, None, Some(STUCK_MS + 1), 0, Silence::Lost),
        (0, Some(1), Some(STUCK_MS + 1), 0, Silence::Lost),
    ] {
        let signs = Signs {
            heard,
            tested,
            stuck,
        };
        let got = judge_silence(signs, idle);
        assert_eq!(got, want, "{signs:?} {idle}");
    }
    // The server decides who joins, so it must be the first to end an idle group.
    for seconds in [0, 1, 10, 86_400] {
        assert_eq!(linger_ms(Role::Server, seconds), seconds * 1_000);
        assert!(linger_ms(Role::Client, seconds) >= linger_ms(Role::Server, seconds) + 6_000);
    }
    assert_eq!(linger_ms(Role::Client, u32::MAX), u32::MAX);
}

#[test]
fn confirm_link_is_judged() {
    let m = ConfirmLink {
        mac: Mac::ZERO,
        gid: Gid::ZERO,
        qpn: Qpn::default(),
        link_num: 3,
        user_id: LinkUserId::default(),
        max_links: 2,
        max_conns: 255,
        no_eyecatcher: true,
    };
    let id = LinkId::new(3).unwrap();
    let agreed = |max_links| Ok(LinkAgreed { id, max_links });
    assert_eq!(judge_confirm_link(&m, None, 3), agreed(2));
    assert_eq!(judge_confirm_link(&m, Some(id), 1), agreed(1));
    assert_eq!(
        judge_confirm_link(&ConfirmLink { max_links: 0, ..m }, None, 3),
        agreed(3)
    );
    assert_eq!(
        judge_confirm_link(&m, LinkId::new(4), 3),
        Err(DeclineReason::INTERR)
    );
    assert_eq!(
        judge_confirm_link(&ConfirmLink { link_num: 0, ..m }, None, 3),
        Err(DeclineReason::INTERR)
    );
    let eyecatcher = ConfirmLink {
        no_eyecatcher: false,
        ..m
    };
    assert_eq!(
        judge_confirm_link(&eyecatcher, None, 3),
        Err(DeclineReason::RMBE_EC)
    );
}

#[test]
fn answers_about_keys_are_judged() {
    let sent = ConfirmRkey::single(Rkey(5), Vaddr(7));
    for (negative, retry, want) in [
        (false, false, KeyAnswer::Taken),
        (false, true, KeyAnswer::Taken),
        (true, true, KeyAnswer::Later),
        (true, false, KeyAnswer::Refused),
    ] {
        let answer = ConfirmRkey {
            negative,
            retry,
            ..sent
        };
        assert_eq!(judge_confirm_rkey(&sent, &answer), Some(want));
    }
    let late = ConfirmRkey::single(Rkey(4), Vaddr(7));
    assert_eq!(judge_confirm_rkey(&sent, &late), None);
}

/// A message of a peer with a ring of 64 bytes.
fn message(seq: u16, count: u32) -> Message {
    Message {
        seq,
        token: AlertToken::new(7).unwrap(),
        prod: crate::proto::cursor::Cursor { wrap: 0, count },
        cons: Default::default(),
        prod_flags: ProdFlags::default(),
        conn_flags: ConnFlags::default(),
    }
}

#[test]
fn early_messages_add_up() {
    let mut early = Early::new();
    let mut first = message(1, 4);
    first.conn_flags.sending_done = true;
    early.keep(&first);
    early.keep(&message(2, 6));
    let mut conn = sim::conn(64, 64, 64, 6, 0);
    let fx = conn.on_early(&mut early).unwrap();
    assert_eq!(fx.arrived, 6);
    assert!(fx.close.sending_done);
    // It is taken in once.
    assert_eq!(early, Early::new());
    assert_eq!(conn.on_early(&mut early).unwrap().arrived, 0);
}

#[test]
fn early_validation_moves_no_cursor_but_is_judged() {
    let mut validation = message(2, 0);
    validation.prod_flags.failover_validation = true;
    for (last, ok) in [(1, false), (2, true), (3, true)] {
        let mut early = Early::new();
        early.keep(&message(last, 6));
        early.keep(&validation);
        let mut conn = sim::conn(64, 64, 64, 6, 0);
        match conn.on_early(&mut early) {
            Ok(fx) => {
                assert!(ok);
                assert_eq!(fx.arrived, 6);
                assert_eq!(conn.readable_len(), 6);
                // The peer may repeat what it had sent.
                assert!(conn.on_cdc(&message(4, 3)).is_ok());
            }
            Err(v) => {
                assert!(!ok);
                assert_eq!(v, ConnViolation::DataLost);
            }
        }
    }
}

#[test]
fn a_key_is_refused_for_now_without_being_stored() {
    use crate::proto::llc::{Body, Llc};
    let m = ConfirmRkey::single(Rkey(5), Vaddr(7));
    let LlcReply::Send(bytes) = refuse_for_now(&Llc::request(Version::V1, Body::ConfirmRkey(m)))
    else {
        panic!();
    };
    let answer = Llc::decode(&bytes).unwrap();
    assert!(answer.response);
    let Body::ConfirmRkey(a) = answer.body else {
        panic!();
    };
    assert_eq!(judge_confirm_rkey(&m, &a), Some(KeyAnswer::Later));
    for msg in [
        Llc::response(Version::V1, Body::ConfirmRkey(m)),
        Llc::request(Version::V1, Body::TestLink([0; 16])),
    ] {
        assert_eq!(refuse_for_now(&msg), LlcReply::Ignore(Ignored::Unsupported));
    }
}
