// SPDX-License-Identifier: GPL-2.0

//! Matching of link groups, the token table, and what a link answers.

use crate::proto::clc::{Extensions, Version as ClcVersion};
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use crate::messages::{add_link, confirm_link};

fn identity(role: Role) -> Identity {
    Identity {
        role,
        version: ClcVersion::V2,
        peer_id: PeerId::ZERO,
        eid: Some(Eid::DEFAULT),
        vlan: None,
    }
}

fn peer(n: u8, active: bool) -> LinkPeer {
    LinkPeer {
        active,
        gid: Gid::from_v4([10, 0, 0, n]),
        mac: Mac([n; 6]),
        qpn: Qpn::new(u32::from(n) + 16).unwrap(),
    }
}

#[test]
fn link_whose_queue_pair_number_is_used_anew_is_superseded() {
    for link in [peer(1, false), peer(2, true)] {
        assert!(is_superseded(&link, link.gid, link.qpn));
        // The same number of another device, and another number of the same one, are somebody else's.
        assert!(!is_superseded(&link, peer(3, true).gid, link.qpn));
        assert!(!is_superseded(&link, link.gid, peer(3, true).qpn));
    }
}

#[test]
fn moved_connection_finds_its_peers_buffer_on_the_other_link() {
    let token = |n: u32| Rtoken {
        rkey: Rkey(n),
        vaddr: Vaddr(u64::from(n) << 20),
    };
    let mut rows = [RtokenEntry::EMPTY; 3];
    let mut t = RtokenTable::new(&mut rows);
    let one = t.add(0, token(1)).unwrap();
    t.set(one, 1, token(11)).unwrap();
    t.add(0, token(2)).unwrap();

    assert!(t.holds(0, token(1)) && t.holds(1, token(11)) && t.holds(0, token(2)));
    assert_eq!(t.translate(0, token(1), 1), Some(token(11)));
    assert_eq!(t.translate(1, token(11), 0), Some(token(1)));
    assert_eq!(t.translate(0, token(1), 0), Some(token(1)));
    // The peer has not told where the second one is on the other link, nor anything of a third one.
    assert_eq!(t.translate(0, token(2), 1), None);
    assert_eq!(t.translate(0, token(1), 2), None);
    assert_eq!(t.translate(0, token(3), 1), None);
    assert_eq!(t.translate(LINK_SLOTS, token(1), 0), None);
    // The key alone is not enough: it may have been given to another buffer.
    let other = Rtoken {
        vaddr: Vaddr(5),
        ..token(1)
    };
    assert!(!t.holds(0, other));
    assert_eq!(t.translate(0, other, 1), None);
    // Nor does it take that one away.
    assert!(!t.remove(0, other));
    assert!(t.remove(0, token(1)));
    assert!(!t.holds(0, token(1)) && !t.holds(1, token(11)) && t.holds(0, token(2)));
    assert!(!t.remove(0, token(1)));
    assert_eq!(t.used(), 1);
}

#[test]
fn link_that_fails_is_tried_again_less_and_less_often() {
    let pauses: Vec<_> = (0..10).map(|n| retry_ms(n) / 1000).collect();
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 128, 128, 128]);
    assert_eq!(retry_ms(u32::MAX), retry_ms(8));
}

#[test]
fn a_link_that_soon_dies_of_its_path_counts_as_one_that_did_not_come() {
    for (lived, by_path, want) in [
        (0, true, true),
        (9_999, true, true),
        (10_000, true, false),
        (u32::MAX, true, false),
        (0, false, false),
        (9_999, false, false),
    ] {
        assert_eq!(is_failure(lived, by_path), want, "{lived} {by_path}");
    }
}

#[test]
fn further_link_takes_a_device_of_its_own_and_rather_a_near_one() {
    let far = Alternate {
        used: false,
        near: false,
    };
    let near = Alternate { near: true, ..far };
    let used = Alternate { used: true, ..near };
    let cases: [(&[Alternate], Option<usize>); 7] = [
        (&[], None),
        (&[used], None),
        (&[far], Some(0)),
        (&[used, far], Some(1)),
        (&[far, near], Some(1)),
        (&[far, used, near, near], Some(2)),
        (&[far, far], Some(0)),
    ];
    for (ports, want) in cases {
        assert_eq!(pick_alternate(ports), want, "{ports:?}");
    }
}

#[test]
fn connection_joins_the_group_that_matches() {
    let links = [peer(1, false), peer(2, true), peer(3, true)];
    let group = |role| Candidate {
        identity: identity(role),
        ending: false,
        conns: 5,
        max_conns: 6,
        rtoken_free: true,
        links: &links,
    };
    let want = |role| Wanted {
        identity: identity(role),
        gid: links[2].gid,
        mac: Mac::ZERO,
        qpn: Some(links[2].qpn),
    };
    let server = want(Role::Server);
    let client = want(Role::Client);
    let (gs, gc) = (group(Role::Server), group(Role::Client));
    assert_eq!(find_link(&gs, &server), Some(2));
    assert_eq!(find_link(&gc, &client), Some(2));

    // Room is the server's decision.
    let full = |g| Candidate { conns: 6, ..g };
    assert_eq!(find_link(&full(gs), &server), None);
    assert_eq!(find_link(&full(gc), &client), Some(2));
    let no_row = |g| Candidate {
        rtoken_free: false,
        ..g
    };
    assert_eq!(find_link(&no_row(gs), &server), None);
    assert_eq!(find_link(&no_row(gc), &client), Some(2));

    // The client needs the queue pair that the server named.
    let mut other = client;
    other.qpn = Some(links[1].qpn);
    assert_eq!(find_link(&gc, &other), None);
    other.qpn = None;
    assert_eq!(find_link(&gc, &other), None);

    // Neither an ending group nor an inactive link nor another address.
    let ending = Candidate { ending: true, ..gs };
    assert_eq!(find_link(&ending, &server), None);
    let mut inactive = server;
    inactive.gid = links[0].gid;
    assert_eq!(find_link(&gs, &inactive), None);
    let mut stranger = server;
    stranger.gid = Gid::ZERO;
    assert_eq!(find_link(&gs, &stranger), None);

    // Anything else in the identity keeps them apart.
    type Change = fn(&mut Identity);
    let changes: [(&str, Change); 5] = [
        ("role", |i| i.role = Role::Client),
        ("peer", |i| i.peer_id = PeerId([1; 8])),
        ("eid", |i| i.eid = Some(Eid::new(b"OTHER").unwrap())),
        ("vlan", |i| i.vlan = Some(0)),
        ("version", |i| i.version = ClcVersion::V1),
    ];
    for (what, change) in changes {
        let mut w = server;
        change(&mut w.identity);
        assert_eq!(find_link(&gs, &w), None, "{what}");
    }
}

#[test]
fn version_1_compares_the_mac() {
    let links = [peer(1, true)];
    let mut id = identity(Role::Server);
    id.version = ClcVersion::V1;
    id.eid = None;
    let group = Candidate {
        identity: id,
        ending: false,
        conns: 0,
        max_conns: MAX_CONNS,
        rtoken_free: true,
        links: &links,
    };
    let mut w = Wanted {
        identity: id,
        gid: links[0].gid,
        mac: links[0].mac,
        qpn: None,
    };
    assert_eq!(find_link(&group, &w), Some(0));
    w.mac = Mac::ZERO;
    assert_eq!(find_link(&group, &w), None);
}

#[test]
fn tokens_and_link_ids_skip_zero_and_what_is_in_use() {
    let mut t = TokenAllocator::new(u32::MAX - 1);
    let got: Vec<u32> = (0..3).map(|_| t.next_token().get()).collect();
    assert_eq!(got, [u32::MAX, 1, 2]);

    let id = |n| LinkId::new(n).unwrap();
    let next = |last, used: &[u8]| {
        let used: Vec<LinkId> = used.iter().map(|n| id(*n)).collect();
        next_link_id(last, used.iter().copied()).map(LinkId::get)
    };
    assert_eq!(next(0, &[]), Some(1));
    assert_eq!(next(255, &[1, 2]), Some(3));
    assert_eq!(next(1, &[2]), Some(3));
    let all: Vec<u8> = (1..=255).collect();
    assert_eq!(next(9, &all), None);
    assert_eq!(next(9, &all[..254]), Some(255));
}

fn token(n: u32) -> Rtoken {
    Rtoken {
        rkey: Rkey(n),
        vaddr: Vaddr(u64::from(n) << 12),
    }
}

#[test]
fn token_table_keeps_one_row_per_buffer() {
    let mut rows = [RtokenEntry::EMPTY; 3];
    let mut t = RtokenTable::new(&mut rows);
    let a = t.add(0, token(1)).unwrap();
    assert_eq!(t.add(0, token(1)), Ok(a));
    let b = t.add(0, token(2)).unwrap();
    assert!(a != b && a.get() == 0);
    assert_eq!((t.used(), t.has_room()), (2, true));
    t.set(a, 1, token(11)).unwrap();
    assert_eq!(t.get(a, 1), Some(token(11)));
    assert_eq!(t.find(1, Rkey(11)), Some(a));
    assert_eq!(t.find(0, Rkey(11)), None);
    assert_eq!(t.get(a, 2), None);
    assert_eq!(t.get(a, 3), None);
    assert_eq!(t.set(a, 3, token(1)), Err(TableFull));

    // The same key with another address is a new buffer.
    let moved = Rtoken {
        vaddr: Vaddr(9),
        ..token(1)
    };
    assert_eq!(t.add(0, moved), Ok(a));
    assert_eq!((t.get(a, 0), t.get(a, 1)), (Some(moved), None));

    let c = t.add(0, token(3)).unwrap();
    assert_eq!(t.add(0, token(4)), Err(TableFull));
    assert!(!t.has_room());
    assert!(t.delete(0, Rkey(3)));
    assert!(!t.delete(0, Rkey(3)));
    assert!(!t.delete(2, Rkey(2)));
    assert_eq!(t.add(0, token(4)), Ok(c));
}

#[test]
fn token_table_follows_links() {
    let mut rows = [RtokenEntry::EMPTY; MAX_RTOKENS];
    let mut t = RtokenTable::new(&mut rows);
    let all: Vec<RtokenIndex> = (0..255).map(|n| t.add(0, token(n)).unwrap()).collect();
    let moved = |n: u32| MovedRtoken {
        reference: Rkey(n),
        rkey: Rkey(n + 1000),
        vaddr: Vaddr(1),
    };
    for n in 0..255 {
        assert!(t.add_moved(0, 1, &moved(n)));
    }
    assert!(!t.add_moved(0, 1, &moved(255)));
    assert_eq!(t.get(all[7], 1).unwrap().rkey, Rkey(1007));
    t.drop_link(0);
    assert_eq!(t.used(), 255);
    assert_eq!(t.get(all[7], 0), None);
    assert!(t.delete(1, Rkey(1007)));
    assert_eq!(t.used(), 254);
    t.drop_link(1);
    assert_eq!(t.used(), 0);
    t.drop_link(9);
}

#[test]
fn token_table_learns_of_a_further_link_before_the_handshake_is_over() {
    let mut rows = [RtokenEntry::EMPTY; 2];
    let mut t = RtokenTable::new(&mut rows);
    let moved = MovedRtoken {
        reference: Rkey(1),
        rkey: Rkey(11),
        vaddr: Vaddr(0x11),
    };
    let there = Rtoken {
        rkey: Rkey(11),
        vaddr: Vaddr(0x11),
    };
    assert!(t.add_moved_early(0, 1, &moved));
    assert_eq!(t.used(), 1);
    // Where nothing may be written before the handshake tells the address.
    assert!(!t.holds(0, token(1)));
    assert_eq!(t.translate(0, token(1), 1), None);
    let row = t.add(0, token(1)).unwrap();
    assert_eq!(t.used(), 1, "the same row");
    assert_eq!(t.translate(0, token(1), 1), Some(there));
    // One that is known needs no row of its own, and a full table takes no further one.
    assert!(t.add_moved_early(0, 2, &moved));
    assert_eq!((t.get(row, 2), t.used()), (Some(there), 1));
    let second = MovedRtoken {
        reference: Rkey(2),
        ..moved
    };
    assert!(t.add_moved_early(0, 1, &second));
    let third = MovedRtoken {
        reference: Rkey(3),
        ..moved
    };
    assert!(!t.add_moved_early(0, 1, &third));
    // The handshake came to nothing: the owner withdraws the key.
    assert!(t.delete(0, Rkey(2)));
    assert_eq!(t.used(), 1);
}

#[test]
fn own_keys_need_an_exchange_where_the_handshake_cannot_tell_all() {
    let all = Extensions::ALL;
    for (agreed, quiet, want) in [
        (Extensions::NONE, Some(0), true),
        (Extensions::NONE, None, true),
        (all, Some(0), false),
        (all, Some(FRESH_MS), false),
        (all, Some(FRESH_MS + 1), true),
        (all, None, true),
    ] {
        assert_eq!(needs_confirm(agreed, quiet), want, "{agreed:?} {quiet:?}");
    }
    for (agreed, last_word, want) in [
        (Extensions::NONE, true, true),
        (Extensions::NONE, false, true),
        (all, true, false),
        (all, false, true),
    ] {
        assert_eq!(
            needs_delete(agreed, last_word),
            want,
            "{agreed:?} {last_word}"
        );
    }
}

const LINKS: [Option<LinkId>; 2] = [LinkId::new(1), LinkId::new(2)];

fn ask(role: Role, rows: &mut [RtokenEntry], msg: Llc<'_>) -> LlcReply {
    let ctx = Context {
        role,
        link: 0,
        links: &LINKS,
    };
    // Through the wire, as it would come.
    let mut bytes = [0; MAX_LEN];
    let n = msg.encode(&mut bytes).unwrap();
    let msg = Llc::decode(&bytes[..n]).unwrap();
    respond(&msg, &mut RtokenTable::new(rows), &ctx)
}

fn sent(reply: &LlcReply) -> Llc<'_> {
    match reply {
        LlcReply::Send(b)
        | LlcReply::Terminate {
            answer: Some(b), ..
        } => Llc::decode(b).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_link_is_echoed() {
    for (version, role) in [
        (llc::Version::V1, Role::Client),
        (llc::Version::V2, Role::Server),
    ] {
        let body = Body::TestLink([7; 16]);
        let r = ask(role, &mut [], Llc::request(version, body));
        assert_eq!(sent(&r), Llc::response(version, body));
    }
}

#[test]
fn confirm_rkey_is_stored_and_echoed() {
    let mut rows = [RtokenEntry::EMPTY; 2];
    let mut m = ConfirmRkey::single(Rkey(5), Vaddr(0x5000));
    m.others = 2;
    m.other_links = [
        LinkRtoken {
            link_num: 2,
            rkey: Rkey(6),
            vaddr: Vaddr(0x6000),
        },
        LinkRtoken {
            link_num: 77,
            rkey: Rkey(7),
            vaddr: Vaddr(0x7000),
        },
    ];
    let req = |m| Llc::request(llc::Version::V2, Body::ConfirmRkey(m));
    let r = ask(Role::Client, &mut rows, req(m));
    assert_eq!(
        sent(&r),
        Llc::response(llc::Version::V2, Body::ConfirmRkey(m))
    );
    let t = RtokenTable::new(&mut rows);
    let i = t.find(0, Rkey(5)).unwrap();
    assert_eq!(t.get(i, 1).unwrap().vaddr, Vaddr(0x6000));
    assert_eq!(t.used(), 1);

    // More links than one message holds, and a full table: negative, to be tried again.
    let negative = |r: &LlcReply| {
        let Body::ConfirmRkey(a) = sent(r).body else {
            panic!()
        };
        (a.negative, a.retry)
    };
    let mut many = m;
    many.others = 3;
    let r = ask(Role::Client, &mut rows, req(many));
    assert_eq!(negative(&r), (true, true));
    for n in 10..12 {
        let r = ask(
            Role::Server,
            &mut rows,
            req(ConfirmRkey::single(Rkey(n), Vaddr(1))),
        );
        assert_eq!(negative(&r), (n == 11, n == 11));
    }
}

#[test]
fn delete_rkey_forgets_and_names_the_unknown() {
    let mut rows = [RtokenEntry::EMPTY; 4];
    for n in [1, 3] {
        RtokenTable::new(&mut rows).add(0, token(n)).unwrap();
    }
    let keys = [1, 2, 3, 4].map(Rkey);
    let req = |v| Llc::request(v, Body::DeleteRkey(DeleteRkey::request(&keys)));
    let r = ask(Role::Client, &mut rows, req(llc::Version::V1));
    let Body::DeleteRkey(a) = sent(&r).body else {
        panic!()
    };
    assert_eq!((a.negative, a.errors, a.rkeys.len()), (true, 0x50, 4));
    assert_eq!(RtokenTable::new(&mut rows).used(), 0);

    let many: Vec<Rkey> = (0..255).map(Rkey).collect();
    RtokenTable::new(&mut rows).add(0, token(9)).unwrap();
    let msg = Llc::request(
        llc::Version::V2,
        Body::DeleteRkey(DeleteRkey::request(&many)),
    );
    let r = ask(Role::Server, &mut rows, msg);
    let Body::DeleteRkey(a) = sent(&r).body else {
        panic!()
    };
    assert_eq!((a.negative, a.errors, a.rkeys.len()), (true, 254, 0));

    RtokenTable::new(&mut rows).add(0, token(9)).unwrap();
    let one = [Rkey(9)];
    let msg = Llc::request(
        llc::Version::V2,
        Body::DeleteRkey(DeleteRkey::request(&one)),
    );
    let r = ask(Role::Server, &mut rows, msg);
    let Body::DeleteRkey(a) = sent(&r).body else {
        panic!()
    };
    assert_eq!((a.negative, a.errors, a.count), (false, 0, 1));
}

#[test]
fn delete_link_ends_the_group_in_the_role_of_each_side() {
    let v = llc::Version::V2;
    let req = |m| Llc::request(v, Body::DeleteLink(m));
    let all = DeleteLink::everything(true, DeleteLink::PROGRAM);
    let one = DeleteLink {
        link_num: 1,
        all: false,
        orderly: false,
        reason: DeleteLink::LOST_PATH,
    };
    let unknown = DeleteLink { link_num: 9, ..one };

    for m in [all, one] {
        let r = ask(Role::Client, &mut [], req(m));
        assert!(matches!(r, LlcReply::Terminate { orderly, .. } if orderly == m.orderly));
        let answer = DeleteLink { reason: 0, ..m };
        assert_eq!(sent(&r), Llc::response(v, Body::DeleteLink(answer)));
        let r = ask(Role::Server, &mut [], req(m));
        assert!(matches!(r, LlcReply::Terminate { .. }));
        assert_eq!(sent(&r), req(m));
    }
    let r = ask(Role::Client, &mut [], req(unknown));
    let answer = DeleteLink {
        reason: DeleteLink::UNKNOWN_LINK,
        ..unknown
    };
    assert_eq!(sent(&r), Llc::response(v, Body::DeleteLink(answer)));
    assert!(matches!(r, LlcReply::Send(_)));
    let r = ask(Role::Server, &mut [], req(unknown));
    assert_eq!(r, LlcReply::Ignore(Ignored::Unsupported));
}

#[test]
fn further_links_are_refused_politely() {
    let add = AddLink {
        ext: Some(Extension::default()),
        ..add_link()
    };
    let req = Llc::request(llc::Version::V2, Body::AddLink(add));
    let r = ask(Role::Client, &mut [], req);
    let m = sent(&r);
    let Body::AddLink(a) = m.body else { panic!() };
    assert!(m.response && a.rejected && a.ext.is_none());
    assert_eq!(a.qpn, add.qpn);
    let r = ask(Role::Server, &mut [], req);
    assert_eq!(r, LlcReply::Ignore(Ignored::Unsupported));

    let gids = [Gid::from_v4([10, 0, 0, 9]); 20];
    let req = Llc::request(
        llc::Version::V2,
        Body::ReqAddLink(ReqAddLink {
            gids: Gids::new(&gids),
        }),
    );
    let r = ask(Role::Server, &mut [], req);
    assert!(sent(&r).response);
    let r = ask(Role::Client, &mut [], req);
    assert_eq!(r, LlcReply::Ignore(Ignored::WrongRole));
}

#[test]
fn answers_go_to_whoever_waits() {
    let v = llc::Version::V1;
    let c = confirm_link(1);
    let bodies = [
        Body::ConfirmLink(c),
        Body::TestLink([0; 16]),
        Body::ConfirmRkey(ConfirmRkey::default()),
        Body::DeleteRkey(DeleteRkey::default()),
        Body::DeleteLink(DeleteLink::everything(false, 0)),
        Body::AddLinkCont(AddLinkCont::default()),
    ];
    for role in [Role::Client, Role::Server] {
        for body in bodies {
            let r = ask(role, &mut [], Llc::response(v, body));
            assert_eq!(r, LlcReply::Waiter(body.opcode()));
        }
    }
    // The client's handshake waits for the request itself.
    let req = Llc::request(v, Body::ConfirmLink(c));
    assert_eq!(
        ask(Role::Client, &mut [], req),
        LlcReply::Waiter(Opcode::ConfirmLink)
    );
    assert_eq!(
        ask(Role::Server, &mut [], req),
        LlcReply::Ignore(Ignored::WrongRole)
    );
    for body in [
        Body::AddLinkCont(AddLinkCont::default()),
        Body::ConfirmRkeyCont(ConfirmRkeyCont::default()),
    ] {
        assert_eq!(
            ask(Role::Client, &mut [], Llc::request(v, body)),
            LlcReply::Ignore(Ignored::Unsupported)
        );
    }
}
