// SPDX-License-Identifier: GPL-2.0

//! LLC exchanges: order, what meets what, duplicates, lost links; and how links lie between devices.

use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use crate::common::property;
use crate::messages::{add_link, confirm_link, delete, one_of_each, version};

const V: llc::Version = llc::Version::V1;

/// One body of each kind; exchanges do not know which links there are, so that one number is like
/// any other.
fn bodies() -> Vec<Body<'static>> {
    let each = one_of_each().into_iter();
    each.filter(|(name, _)| *name != "DELETE LINK 9")
        .map(|(_, body)| body)
        .collect()
}

fn awaits(opcode: Opcode, response: bool, link: Option<usize>) -> Awaited {
    Awaited {
        opcode,
        response,
        link,
    }
}

fn request(f: &mut Flows, body: Body<'_>) -> Verdict {
    f.arrived(&Llc::request(version(&body), body), 0)
}

fn response(f: &mut Flows, body: Body<'_>) -> Verdict {
    f.arrived(&Llc::response(version(&body), body), 0)
}

/// What is under way, as a row of the matrix.
fn situations(role: Role) -> Vec<(&'static str, Flows)> {
    let mut out = vec![("idle", Flows::new(role))];
    for (name, kind) in [
        ("keys", Exchange::Rkey),
        ("add", Exchange::AddLink),
        ("delete", Exchange::DeleteLink),
    ] {
        let mut f = Flows::new(role);
        f.begin(kind).unwrap();
        out.push((name, f));
    }
    out
}

#[test]
fn requests_meet_every_situation_as_written_down() {
    use Dropped::*;
    use Verdict::*;
    let add = Start(Exchange::AddLink);
    let del = Start(Exchange::DeleteLink);
    // In the order of `bodies`: CONFIRM LINK, ADD LINK, its continuation, DELETE LINK of one link
    // and of all, REQ ADD LINK, CONFIRM RKEY, its continuation, TEST LINK, DELETE RKEY.
    let (un, wr, uw) = (Drop(Unsolicited), Drop(WrongRole), Drop(UnderWay));
    let t = Terminate;
    let rows: [(Role, &str, [Verdict; 10]); 8] = [
        (
            Role::Server,
            "idle",
            [wr, add, un, del, t, add, Answer, un, Answer, Answer],
        ),
        // 3.5.5.3.3: wishes of the client wait; its keys do not collide with ours.
        (
            Role::Server,
            "keys",
            [
                wr, Parked, un, Parked, t, Parked, Answer, un, Answer, Answer,
            ],
        ),
        // 3.5.5.3.1.
        (
            Role::Server,
            "add",
            [wr, uw, un, Parked, t, uw, RefuseForNow, un, Answer, Answer],
        ),
        // 3.5.5.3.2.
        (
            Role::Server,
            "delete",
            [
                wr,
                Parked,
                un,
                Parked,
                t,
                Parked,
                RefuseForNow,
                un,
                Answer,
                Answer,
            ],
        ),
        (
            Role::Client,
            "idle",
            [un, add, un, del, t, wr, Answer, un, Answer, Answer],
        ),
        // 3.5.5.3.3: the server's change goes on, our keys will be refused.
        (
            Role::Client,
            "keys",
            [un, add, un, del, t, wr, Answer, un, Answer, Answer],
        ),
        (
            Role::Client,
            "add",
            [un, Parked, un, Parked, t, wr, Answer, un, Answer, Answer],
        ),
        (
            Role::Client,
            "delete",
            [un, Parked, un, Parked, t, wr, Answer, un, Answer, Answer],
        ),
    ];
    for (role, name, want) in rows {
        let (_, flows) = situations(role)
            .into_iter()
            .find(|(n, _)| *n == name)
            .unwrap();
        for (body, want) in bodies().into_iter().zip(want) {
            let got = request(&mut flows.clone(), body);
            assert_eq!(got, want, "{role:?} {name} {:?}", body.opcode());
        }
    }
}

#[test]
fn answers_that_nobody_awaits_are_dropped_in_every_situation() {
    for role in [Role::Server, Role::Client] {
        for (name, flows) in situations(role) {
            for body in bodies() {
                let mut f = flows;
                let got = response(&mut f, body);
                assert_eq!(
                    got,
                    Verdict::Drop(Dropped::Unsolicited),
                    "{role:?} {name} {body:?}"
                );
                assert_eq!(f, flows);
            }
        }
    }
}

#[test]
fn awaited_answer_is_delivered_once() {
    let mut f = Flows::new(Role::Server);
    let id = f.begin(Exchange::Rkey).unwrap();
    assert!(f.expect(id, awaits(Opcode::ConfirmRkey, true, Some(0))));
    let body = Body::ConfirmRkey(ConfirmRkey::default());
    // Another kind, and the same kind on another link.
    assert_eq!(
        response(&mut f, Body::DeleteRkey(DeleteRkey::default())),
        Verdict::Drop(Dropped::Unsolicited)
    );
    assert_eq!(
        f.arrived(&Llc::response(V, body), 1),
        Verdict::Drop(Dropped::Unsolicited)
    );
    assert_eq!(response(&mut f, body), Verdict::Deliver(id));
    assert_eq!(response(&mut f, body), Verdict::Drop(Dropped::Duplicate));
    // A request of the same kind is the peer's own.
    assert_eq!(request(&mut f, body), Verdict::Answer);
    assert_eq!(f.finish(id), None);
    assert_eq!(response(&mut f, body), Verdict::Drop(Dropped::Unsolicited));
    // A late end of an old exchange touches nothing.
    let next = f.begin(Exchange::Rkey).unwrap();
    assert_eq!(f.finish(id), None);
    assert!(!f.is_idle());
    assert!(!f.expect(id, awaits(Opcode::ConfirmRkey, true, None)));
    assert_eq!(f.finish(next), None);
    assert!(f.is_idle());
}

#[test]
fn exchanges_of_one_side_exclude_each_other() {
    for first in [Exchange::Rkey, Exchange::AddLink, Exchange::DeleteLink] {
        for second in [Exchange::Rkey, Exchange::AddLink, Exchange::DeleteLink] {
            let mut f = Flows::new(Role::Server);
            f.begin(first).unwrap();
            assert_eq!(f.begin(second), Err(Busy), "{first:?} {second:?}");
            let crossed = f.begin_for_peer(second);
            let want = first == Exchange::Rkey && second != Exchange::Rkey;
            assert_eq!(crossed.is_ok(), want, "{first:?} {second:?}");
        }
    }
}

#[test]
fn whole_add_link_exchange_of_both_sides() {
    // Server and client in lockstep, version 1, with one continuation message each.
    let mut s = Flows::new(Role::Server);
    let mut c = Flows::new(Role::Client);
    let sid = s.begin(Exchange::AddLink).unwrap();
    assert!(s.expect(sid, awaits(Opcode::AddLink, true, Some(0))));
    let add = Body::AddLink(add_link());
    assert_eq!(request(&mut c, add), Verdict::Start(Exchange::AddLink));
    let cid = c.begin_for_peer(Exchange::AddLink).unwrap();
    assert!(c.expect(cid, awaits(Opcode::AddLinkCont, false, Some(0))));
    assert_eq!(response(&mut s, add), Verdict::Deliver(sid));

    let cont = Body::AddLinkCont(AddLinkCont::default());
    assert!(s.expect(sid, awaits(Opcode::AddLinkCont, true, Some(0))));
    assert_eq!(request(&mut c, cont), Verdict::Deliver(cid));
    assert!(c.expect(cid, awaits(Opcode::ConfirmLink, false, Some(1))));
    assert_eq!(response(&mut s, cont), Verdict::Deliver(sid));

    // CONFIRM LINK flows on the new link, and only there.
    let confirm = Body::ConfirmLink(confirm_link(2));
    assert!(s.expect(sid, awaits(Opcode::ConfirmLink, true, Some(1))));
    assert_eq!(
        c.arrived(&Llc::request(V, confirm), 0),
        Verdict::Drop(Dropped::Unsolicited)
    );
    assert_eq!(
        c.arrived(&Llc::request(V, confirm), 1),
        Verdict::Deliver(cid)
    );
    assert_eq!(
        s.arrived(&Llc::response(V, confirm), 1),
        Verdict::Deliver(sid)
    );
    assert_eq!((s.finish(sid), c.finish(cid)), (None, None));
    assert!(s.is_idle() && c.is_idle());
}

#[test]
fn parked_wishes_come_back_deletions_first() {
    let mut f = Flows::new(Role::Server);
    let id = f.begin(Exchange::DeleteLink).unwrap();
    let gids = [Gid::from_v4([1, 2, 3, 4]), Gid::ZERO];
    let want = ReqAddLink {
        gids: Gids::new(&gids),
    };
    assert_eq!(request(&mut f, Body::ReqAddLink(want)), Verdict::Parked);
    for n in 1..=3 {
        assert_eq!(
            request(&mut f, Body::DeleteLink(delete(n))),
            Verdict::Parked
        );
    }
    assert_eq!(
        request(&mut f, Body::DeleteLink(delete(2))),
        Verdict::Drop(Dropped::Duplicate)
    );
    assert_eq!(
        request(&mut f, Body::DeleteLink(delete(4))),
        Verdict::Drop(Dropped::Unsolicited)
    );
    let mut id = id;
    for n in 1..=3 {
        assert_eq!(f.finish(id), Some(Next::DeleteLink(delete(n))));
        id = f.begin(Exchange::DeleteLink).unwrap();
    }
    assert_eq!(f.finish(id), Some(Next::AddLink(Some(gids[0]))));
    assert!(f.is_idle());
    assert_eq!(f.changing_links(), None);
}

#[test]
fn offer_right_after_a_link_was_confirmed_is_taken_up() {
    // For the server the addition is over with the client's answer, which may be at work on its end for a moment more.
    let mut c = Flows::new(Role::Client);
    let id = c.begin(Exchange::AddLink).unwrap();
    assert!(c.expect(id, awaits(Opcode::ConfirmLink, false, Some(0))));
    let confirm = Body::ConfirmLink(confirm_link(1));
    assert_eq!(request(&mut c, confirm), Verdict::Deliver(id));
    let offer = Body::AddLink(add_link());
    assert_eq!(request(&mut c, offer), Verdict::Parked);
    assert_eq!(c.finish(id), Some(Next::AddLink(None)));
    assert!(c.begin(Exchange::AddLink).is_ok());
}

#[test]
fn exchanges_on_a_lost_link_are_named() {
    let mut f = Flows::new(Role::Server);
    let id = f.begin(Exchange::AddLink).unwrap();
    assert_eq!(f.link_gone(0).count(), 0);
    assert!(f.expect(id, awaits(Opcode::AddLink, true, Some(0))));
    assert_eq!(f.link_gone(1).count(), 0);
    assert_eq!(f.link_gone(0).collect::<Vec<_>>(), [id]);
}

#[test]
fn random_messages_never_leave_an_exchange_stuck() {
    property("LLC exchanges", 5000, |rng| {
        let role = [Role::Server, Role::Client][rng.below(2) as usize];
        let mut f = Flows::new(role);
        let mut running: Vec<FlowId> = vec![];
        let kinds = [Exchange::Rkey, Exchange::AddLink, Exchange::DeleteLink];
        for _ in 0..rng.range(5, 60) {
            match rng.below(4) {
                0 => {
                    if let Ok(id) = f.begin(kinds[rng.below(3) as usize]) {
                        running.push(id);
                    }
                }
                1 if !running.is_empty() => {
                    let id = running.remove(rng.below(running.len() as u64) as usize);
                    let mut next = f.finish(id);
                    // What comes back can begin at once.
                    while let Some(n) = next {
                        let kind = match n {
                            Next::AddLink(_) => Exchange::AddLink,
                            Next::DeleteLink(_) => Exchange::DeleteLink,
                        };
                        let id = f.begin(kind).unwrap();
                        next = f.finish(id);
                    }
                }
                _ => {
                    let all = bodies();
                    let body = all[rng.below(all.len() as u64) as usize];
                    if let Some(id) = running.first() {
                        let link = [None, Some(0)][rng.below(2) as usize];
                        f.expect(*id, awaits(body.opcode(), rng.one_in(2), link));
                    }
                    let v = if rng.one_in(2) {
                        request(&mut f, body)
                    } else {
                        response(&mut f, body)
                    };
                    match v {
                        Verdict::Start(kind) => running.push(f.begin_for_peer(kind).unwrap()),
                        Verdict::Deliver(id) => assert!(running.contains(&id)),
                        _ => {}
                    }
                }
            }
            assert_eq!(f.is_idle(), running.is_empty());
            assert!(running.len() <= 2);
        }
    });
}

fn context() -> AddContext {
    AddContext {
        group: GroupType::Single,
        own_alternate: true,
        peer_alternate: false,
        peer_gid: Gid::from_v4([10, 0, 0, 1]),
        peer_mac: Mac([1; 6]),
        compare_mac: false,
        max_links: 2,
        free_slot: true,
    }
}

#[test]
fn new_link_makes_the_group_symmetric_or_asymmetric() {
    // Own second device, peer's second device, type now → type then.
    use GroupType::{AsymmetricLocal, AsymmetricPeer, Single, Symmetric};
    let rows = [
        (true, true, Single, Some(Symmetric)),
        (true, false, Single, Some(AsymmetricPeer)),
        (false, true, Single, Some(AsymmetricLocal)),
        (false, false, Single, None),
        (true, true, AsymmetricLocal, Some(Symmetric)),
        (true, true, AsymmetricPeer, Some(Symmetric)),
        (true, false, AsymmetricLocal, None),
        (false, true, AsymmetricPeer, None),
    ];
    for (own, peer, group, want) in rows {
        let ctx = AddContext {
            group,
            own_alternate: own,
            ..context()
        };
        let mut m = add_link();
        if !peer {
            m.gid = ctx.peer_gid;
        }
        let got = ctx.judge_request(&m);
        assert_eq!(
            got,
            want.ok_or(AddLink::NO_ALT_PATH),
            "{own} {peer} {group:?}"
        );
        let got = ctx.judge_response(&add_link(), &m);
        assert_eq!(got, want.map(|t| (t, MtuCode::B1024)));
    }
}

#[test]
fn version_1_compares_the_mac_too() {
    let ctx = AddContext {
        compare_mac: true,
        ..context()
    };
    let mut m = add_link();
    m.gid = ctx.peer_gid;
    assert_eq!(ctx.judge_request(&m), Ok(GroupType::Symmetric));
    m.mac = ctx.peer_mac;
    assert_eq!(ctx.judge_request(&m), Ok(GroupType::AsymmetricPeer));
}

#[test]
fn client_rejects_what_cannot_become_a_link() {
    type Change = fn(&mut AddContext, &mut AddLink<'static>);
    let rows: [(&str, Change, u8); 6] = [
        (
            "MTU 0",
            |_, m| m.mtu = MtuCode::from_nibble(0),
            AddLink::INVALID_MTU,
        ),
        (
            "MTU 6",
            |_, m| m.mtu = MtuCode::from_nibble(6),
            AddLink::INVALID_MTU,
        ),
        (
            "one link agreed",
            |c, _| c.max_links = 1,
            AddLink::NO_ALT_PATH,
        ),
        ("no room", |c, _| c.free_slot = false, AddLink::NO_ALT_PATH),
        ("no number", |_, m| m.link_num = 0, AddLink::NO_ALT_PATH),
        (
            "no queue pair",
            |_, m| m.qpn = Qpn::default(),
            AddLink::NO_ALT_PATH,
        ),
    ];
    for (what, change, want) in rows {
        let (mut c, mut m) = (context(), add_link());
        change(&mut c, &mut m);
        assert_eq!(c.judge_request(&m), Err(want), "{what}");
    }
}

#[test]
fn server_gives_a_link_up_when_the_answer_does_not_fit() {
    type Change = fn(&mut AddLink<'static>);
    let rows: [(&str, Change); 4] = [
        ("rejected", |m| m.rejected = true),
        ("another link", |m| m.link_num = 3),
        ("no queue pair", |m| m.qpn = Qpn::default()),
        ("reserved MTU", |m| m.mtu = MtuCode::from_nibble(9)),
    ];
    let sent = add_link();
    for (what, change) in rows {
        let mut m = sent;
        change(&mut m);
        assert_eq!(context().judge_response(&sent, &m), None, "{what}");
    }
    let mut m = sent;
    m.mtu = MtuCode::B256;
    let got = context().judge_response(&sent, &m);
    assert_eq!(got, Some((GroupType::Symmetric, MtuCode::B256)));
}

#[test]
fn an_offer_that_comes_back_is_no_answer() {
    let sent = add_link();
    assert!(AddContext::is_echo(&sent, &sent));
    let rejection = sent.rejection(AddLink::NO_ALT_PATH);
    assert!(!AddContext::is_echo(&sent, &rejection));
    // The numbers of queue pairs of two devices may be the same.
    let mut m = sent;
    m.gid = context().peer_gid;
    assert!(!AddContext::is_echo(&sent, &m));
}

#[test]
fn server_offers_a_link_where_one_is_missing() {
    // Type now, own second device, the peer's → whether the server offers, whether a client asks.
    use GroupType::*;
    for (group, own, peer, want, asks) in [
        (Single, true, true, true, true),
        (Single, true, false, true, true),
        (Single, false, true, true, false),
        // A link beside the first one would be refused.
        (Single, false, false, false, false),
        (Symmetric, true, true, false, false),
        (AsymmetricLocal, true, false, true, true),
        (AsymmetricLocal, false, true, false, false),
        (AsymmetricPeer, true, true, true, false),
        // A second asymmetric link would be refused.
        (AsymmetricPeer, true, false, false, false),
        (AsymmetricPeer, false, true, false, false),
        (None, true, true, false, false),
    ] {
        let ctx = AddContext {
            group,
            own_alternate: own,
            peer_alternate: peer,
            ..context()
        };
        let row = format!("{group:?} {own} {peer}");
        assert_eq!(ctx.may_offer(Role::Server), want, "{row}");
        assert_eq!(ctx.may_ask(Role::Client), asks, "{row}");
        assert!(!ctx.may_offer(Role::Client));
        assert!(!ctx.may_ask(Role::Server));
        assert!(!AddContext {
            max_links: 1,
            ..ctx
        }
        .may_offer(Role::Server));
        assert!(!AddContext {
            free_slot: false,
            ..ctx
        }
        .may_offer(Role::Server));
    }
}

#[test]
fn group_types_have_their_numbers_words_and_ends() {
    use GroupType::*;
    let all = [None, Single, Symmetric, AsymmetricPeer, AsymmetricLocal];
    for (n, t) in all.into_iter().enumerate() {
        assert_eq!(usize::from(t.number()), n);
        assert_eq!(t.after_delete(0), None);
        assert_eq!(t.after_delete(1), Single);
        assert_eq!(t.after_delete(2), t);
    }
    assert_eq!(all.map(|t| t.name())[3], "ASYMMETRIC_PEER");
    assert_eq!(all.map(|t| t.name().len()), [4, 6, 9, 15, 16]);
}

#[test]
fn connections_go_to_the_link_with_the_fewest_and_to_spare_ones_last() {
    let link = |active, spare, conns| Usable {
        active,
        spare,
        conns,
    };
    let links = [
        link(true, false, 5),
        link(true, true, 0),
        link(true, false, 4),
        link(false, false, 0),
    ];
    assert_eq!(pick_link(&links), Some(2));
    assert_eq!(pick_other(&links, 2), Some(0));
    assert_eq!(pick_link(&links[..2]), Some(0));
    assert_eq!(pick_other(&links[..2], 0), Some(1));
    assert_eq!(pick_other(&links[..1], 0), None);
    assert_eq!(pick_link(&links[3..]), None);
    assert_eq!(pick_link(&[]), None);
    // Equal: the first.
    assert_eq!(pick_link(&[link(true, false, 1); 2]), Some(0));
}
