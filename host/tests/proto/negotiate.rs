// SPDX-License-Identifier: GPL-2.0

//! What both sides agree on, and the reason on every path that ends in a Decline (RFC 7609,
//! appendices C.1, C.4 and C.6).

use crate::proto::clc::*;
use crate::proto::ids::*;
use crate::proto::reason::DeclineReason as Reason;
use crate::proto::size::RmbeSizeCode;

const PEER: PeerId = PeerId([1; 8]);

fn eid(name: &str) -> Eid {
    Eid::new(name.as_bytes()).unwrap()
}

fn limits(max_conns: u8, max_links: u8) -> Limits {
    Limits {
        max_conns,
        max_links,
    }
}

fn policy() -> ServerPolicy {
    ServerPolicy {
        extensions: Extensions::ALL,
        v2: Ok(()),
        v1: Err(Reason::NOSMCRDEV),
        release: 1,
        limits: limits(200, 1),
    }
}

/// Runs `choose` over a proposal with these properties.
fn choose_for(
    v1: bool,
    v2: Option<(u8, Limits, &[Eid])>,
    policy: &ServerPolicy,
    ueids: &[Eid],
) -> Result<Choice, Reason> {
    let p1 = ProposalV1 {
        gid: Gid([1; 16]),
        mac: Mac([2; 6]),
        v4_network: [10, 0, 0, 0],
        v4_len: 8,
        v6: &[],
    };
    let p2 = v2.map(|(release, limits, eids)| {
        (
            ProposalV2 {
                extensions: Extensions::NONE,
                gid: Gid::from_v4([10, 0, 0, 1]),
                release,
                limits,
            },
            eids.iter().copied(),
        )
    });
    let mut out = [0; MAX_PROPOSAL];
    let n = Proposal::encode(
        PEER,
        v1.then_some(&p1),
        p2.as_ref().map(|(p, e)| (p, e.clone())),
        &mut out,
    )
    .unwrap();
    choose(
        &Proposal::decode(&out[..n]).unwrap(),
        policy,
        ueids.iter().copied(),
    )
}

#[test]
fn server_takes_the_first_common_id_in_the_clients_order() {
    let theirs = [eid("X"), eid("B"), eid("A")];
    let ours = [eid("A"), eid("B")];
    let got = choose_for(false, Some((1, limits(255, 2), &theirs)), &policy(), &ours);
    assert_eq!(
        got,
        Ok(Choice::V2 {
            extensions: Extensions::NONE,
            release: 1,
            eid: eid("B"),
            limits: limits(200, 1)
        })
    );
}

#[test]
fn server_takes_the_lower_release_and_its_own_limits_below_release_1() {
    let ids = [eid("A")];
    let p = policy();
    let got = choose_for(false, Some((0, limits(0, 0), &ids)), &p, &ids);
    let want = |release, limits| {
        Ok(Choice::V2 {
            extensions: Extensions::NONE,
            release,
            eid: eid("A"),
            limits,
        })
    };
    assert_eq!(got, want(0, limits(200, 1)));
    let got = choose_for(false, Some((7, limits(255, 2), &ids)), &p, &ids);
    assert_eq!(got, want(1, limits(200, 1)));
    let mut old = p;
    old.release = 0;
    let got = choose_for(false, Some((1, limits(16, 2), &ids)), &old, &ids);
    assert_eq!(got, want(0, limits(200, 1)));
}

#[test]
fn server_declines_with_the_reason_that_fits() {
    let a = [eid("A")];
    let b = [eid("B")];
    let full = limits(255, 2);
    let base = policy();
    let with_v1 = ServerPolicy { v1: Ok(()), ..base };
    let far = ServerPolicy {
        v1: Err(Reason::DIFFPREFIX),
        ..base
    };
    let no_v2 = ServerPolicy {
        extensions: Extensions::ALL,
        v2: Err(Reason::NOROUTE),
        ..base
    };
    type Row<'a> = (
        &'static str,
        bool,
        Option<(u8, Limits, &'a [Eid])>,
        ServerPolicy,
        Result<(), Reason>,
    );
    let rows: &[Row<'_>] = &[
        (
            "no common id",
            false,
            Some((1, full, &b)),
            base,
            Err(Reason::NOUEID),
        ),
        (
            "no route",
            false,
            Some((1, full, &a)),
            no_v2,
            Err(Reason::NOROUTE),
        ),
        (
            "15 connections",
            false,
            Some((1, limits(15, 2), &a)),
            base,
            Err(Reason::MAXCONNERR),
        ),
        (
            "16 connections",
            false,
            Some((1, limits(16, 2), &a)),
            base,
            Ok(()),
        ),
        (
            "no link",
            false,
            Some((1, limits(255, 0), &a)),
            base,
            Err(Reason::MAXLINKERR),
        ),
        ("version 1 only", true, None, base, Err(Reason::NOSMCRDEV)),
        ("version 1 only, usable", true, None, with_v1, Ok(())),
        (
            "the first reason counts",
            true,
            Some((1, full, &b)),
            base,
            Err(Reason::NOUEID),
        ),
        (
            "another network, version 1 only",
            true,
            None,
            far,
            Err(Reason::DIFFPREFIX),
        ),
        (
            "another network goes before a foreign id",
            true,
            Some((1, full, &b)),
            far,
            Err(Reason::DIFFPREFIX),
        ),
        (
            "another network does not matter to version 2",
            true,
            Some((1, full, &a)),
            far,
            Ok(()),
        ),
        (
            "version 1 helps",
            true,
            Some((1, full, &b)),
            with_v1,
            Ok(()),
        ),
    ];
    for (what, v1, v2, policy, want) in rows {
        let got = choose_for(*v1, *v2, policy, &a);
        assert_eq!(got.map(|_| ()), *want, "{what}");
    }
    assert_eq!(
        choose_for(true, Some((1, full, &b)), &with_v1, &a),
        Ok(Choice::V1)
    );
    assert_eq!(
        choose_for(false, Some((1, full, &a)), &base, &[]),
        Err(Reason::NOUEID)
    );
}

#[test]
fn server_declines_a_proposal_of_smcd_alone() {
    let mut out = [0; MAX_PROPOSAL];
    let p1 = ProposalV1 {
        gid: Gid::ZERO,
        mac: Mac::ZERO,
        v4_network: [0; 4],
        v4_len: 0,
        v6: &[],
    };
    let n = Proposal::encode_v1(PEER, &p1, &mut out).unwrap();
    out[7] |= 1;
    let p = Proposal::decode(&out[..n]).unwrap();
    let got = choose(&p, &policy(), std::iter::once(Eid::DEFAULT));
    assert_eq!(got, Err(Reason::NOSMCDEV));
}

fn offer() -> Offer {
    Offer {
        extensions: Extensions::ALL,
        v1: false,
        v2: true,
        release: 1,
        limits: limits(255, 2),
        mtu: MtuCode::B2048,
    }
}

fn accept(first: Option<(u8, Limits)>) -> AcceptConfirm {
    AcceptConfirm {
        kind: Kind::Accept,
        first_contact: first.is_some(),
        peer_id: PEER,
        gid: Gid::from_v4([10, 0, 0, 2]),
        mac: Mac([1; 6]),
        qpn: Qpn::new(17).unwrap(),
        rkey: Rkey(5),
        rmbe_index: RmbeIndex::FIRST,
        token: AlertToken::from_peer(1),
        rmbe_size: RmbeSizeCode::DEFAULT,
        mtu: MtuCode::B1024,
        vaddr: Vaddr(0x1000),
        psn: Psn::truncate(1),
        v2: Some(V2Part {
            eid: eid("A"),
            first_contact: first.map(|(r, l)| FirstContact::new(true, r, Hostname::clean(b"h"), l)),
        }),
    }
}

fn check(offer: &Offer, accept: &AcceptConfirm) -> Result<Agreed, Reason> {
    check_accept(offer, [eid("B"), eid("A")].into_iter(), accept)
}

#[test]
fn client_takes_the_servers_choice() {
    let got = check(&offer(), &accept(Some((1, limits(128, 1))))).unwrap();
    assert_eq!(
        got,
        Agreed {
            extensions: Extensions::NONE,
            version: Version::V2,
            first_contact: true,
            release: Some(1),
            limits: limits(128, 1),
            mtu: MtuCode::B1024,
        }
    );
    // A release 0 server sends no limits.
    let got = check(&offer(), &accept(Some((0, limits(0, 0))))).unwrap();
    assert_eq!((got.release, got.limits), (Some(0), limits(255, 2)));
    // A further connection leaves all that to the link group.
    let got = check(&offer(), &accept(None)).unwrap();
    assert_eq!((got.release, got.mtu), (None, MtuCode::B2048));
}

#[test]
fn client_declines_with_the_reason_that_fits() {
    type Change = fn(&mut AcceptConfirm);
    let rows: &[(&str, Change, Reason)] = &[
        ("not an accept", |m| m.kind = Kind::Confirm, Reason::CNFERR),
        (
            "version 1 was not offered",
            |m| m.v2 = None,
            Reason::VERSMISMAT,
        ),
        (
            "foreign id",
            |m| m.v2.as_mut().unwrap().eid = eid("C"),
            Reason::NOUEID,
        ),
        ("higher release", |m| fce(m).release = 2, Reason::RELEASEERR),
        (
            "few connections",
            |m| fce(m).limits.max_conns = 15,
            Reason::MAXCONNERR,
        ),
        (
            "no link",
            |m| fce(m).limits.max_links = 0,
            Reason::MAXLINKERR,
        ),
        (
            "more links than offered",
            |m| fce(m).limits.max_links = 3,
            Reason::MAXLINKERR,
        ),
        (
            "reserved MTU 0",
            |m| m.mtu = MtuCode::from_nibble(0),
            Reason::CNFERR,
        ),
        (
            "reserved MTU 6",
            |m| m.mtu = MtuCode::from_nibble(6),
            Reason::CNFERR,
        ),
        (
            "special queue pair",
            |m| m.qpn = Qpn::new(1).unwrap(),
            Reason::CNFERR,
        ),
        (
            "multicast queue pair",
            |m| m.qpn = Qpn::truncate(u32::MAX),
            Reason::CNFERR,
        ),
        ("no GID", |m| m.gid = Gid::ZERO, Reason::CNFERR),
        (
            "element beyond memory",
            |m| m.vaddr = Vaddr(u64::MAX),
            Reason::CNFERR,
        ),
    ];
    for (what, change, want) in rows {
        let mut m = accept(Some((1, limits(128, 1))));
        change(&mut m);
        assert_eq!(check(&offer(), &m), Err(*want), "{what}");
    }
    let mut few = offer();
    few.limits.max_conns = 100;
    let got = check(&few, &accept(Some((1, limits(128, 1)))));
    assert_eq!(
        got,
        Err(Reason::MAXCONNERR),
        "more connections than offered"
    );
}

fn fce(m: &mut AcceptConfirm) -> &mut FirstContact {
    m.v2.as_mut().unwrap().first_contact.as_mut().unwrap()
}

#[test]
fn client_that_offered_version_1_goes_on_with_it() {
    let mut o = offer();
    o.v1 = true;
    let mut m = accept(Some((1, limits(128, 1))));
    m.v2 = None;
    let got = check(&o, &m).unwrap();
    assert_eq!((got.version, got.release), (Version::V1, None));
    // It negotiates no limits in the handshake, whatever is set here.
    assert_eq!(got.limits, Limits::V1);
    o.limits = limits(16, 1);
    assert_eq!(check(&o, &m).unwrap().limits, Limits::V1);
    // The Ethernet address of the Accept is the only way to the server, which a further connection has already.
    m.mac = Mac::ZERO;
    assert_eq!(check(&o, &m), Err(Reason::CNFERR));
    m.first_contact = false;
    assert_eq!(check(&o, &m).map(|a| a.version), Ok(Version::V1));
    o.v2 = false;
    let got = check(&o, &accept(Some((1, limits(128, 1)))));
    assert_eq!(got, Err(Reason::VERSMISMAT));
}

#[test]
fn reserved_mtu_of_a_further_connection_does_not_matter() {
    let mut m = accept(None);
    m.mtu = MtuCode::from_nibble(9);
    assert!(check(&offer(), &m).is_ok());
}

#[test]
fn server_checks_that_the_confirm_repeats_the_accept() {
    type Change = fn(&mut AcceptConfirm);
    let sent = accept(Some((1, limits(128, 1))));
    let mut good = sent;
    good.kind = Kind::Confirm;
    assert_eq!(
        check_confirm(&sent, &good),
        Ok(Confirmed {
            mtu: MtuCode::B1024
        })
    );
    let rows: &[(&str, Change, Reason)] = &[
        ("not a confirm", |m| m.kind = Kind::Accept, Reason::CNFERR),
        ("other version", |m| m.v2 = None, Reason::VERSMISMAT),
        (
            "other id",
            |m| m.v2.as_mut().unwrap().eid = eid("B"),
            Reason::CNFERR,
        ),
        ("other release", |m| fce(m).release = 0, Reason::RELEASEERR),
        (
            "other connections",
            |m| fce(m).limits.max_conns = 127,
            Reason::MAXCONNERR,
        ),
        (
            "other links",
            |m| fce(m).limits.max_links = 2,
            Reason::MAXLINKERR,
        ),
        (
            "no extension",
            |m| m.v2.as_mut().unwrap().first_contact = None,
            Reason::SYNCERR,
        ),
        (
            "reserved MTU",
            |m| m.mtu = MtuCode::from_nibble(15),
            Reason::CNFERR,
        ),
        (
            "no queue pair",
            |m| m.qpn = Qpn::new(0).unwrap(),
            Reason::CNFERR,
        ),
    ];
    for (what, change, want) in rows {
        let mut m = good;
        change(&mut m);
        assert_eq!(check_confirm(&sent, &m), Err(*want), "{what}");
    }
}

#[test]
fn version_1_confirm_may_leave_the_flag_out() {
    let mut sent = accept(Some((1, limits(128, 1))));
    sent.v2 = None;
    let mut confirm = sent;
    confirm.kind = Kind::Confirm;
    confirm.first_contact = false;
    assert!(check_confirm(&sent, &confirm).is_ok());
    confirm.mtu = MtuCode::from_nibble(0);
    assert_eq!(check_confirm(&sent, &confirm), Err(Reason::CNFERR));
}

#[test]
fn extensions_are_those_that_both_have() {
    let offered = |bytes: [u8; 8], release: u8| {
        let v2 = ProposalV2 {
            gid: Gid::from_v4([10, 0, 0, 1]),
            release,
            limits: limits(255, 2),
            extensions: Extensions::from_proposal(bytes),
        };
        let mut out = [0xff; MAX_PROPOSAL];
        let n = Proposal::encode_v2(PEER, &v2, [eid("A")].into_iter(), &mut out).unwrap();
        let proposal = Proposal::decode(&out[..n]).unwrap();
        match choose(&proposal, &policy(), [eid("A")].into_iter()).unwrap() {
            Choice::V2 { extensions, .. } => extensions,
            Choice::V1 => panic!("version 1 was not offered"),
        }
    };
    let ours = Extensions::ALL.to_proposal();
    assert_eq!(offered(ours, 1), Extensions::ALL);
    // Bits that only a later implementation knows are not chosen, and bytes behind them do not count.
    let mut more = ours;
    more[3] = 0xff;
    more[7] = 0xff;
    assert_eq!(offered(more, 1), Extensions::ALL);
    // Another vendor's options, none, and a release without room for them.
    let mut other = ours;
    other[0] ^= 1;
    assert_eq!(offered(other, 1), Extensions::NONE);
    assert_eq!(offered([0; 8], 1), Extensions::NONE);
    assert_eq!(offered(ours, 0), Extensions::NONE);
}

#[test]
fn extensions_are_agreed_by_accept_and_confirm() {
    let with = |kind, release, extensions| {
        let mut m = accept(Some((release, limits(128, 1))));
        m.kind = kind;
        *fce(&mut m) = fce(&mut m).with(extensions);
        // Over the wire.
        let mut out = [0; MAX_ACCEPT_CONFIRM];
        let gids: &[Gid] = if kind == Kind::Confirm { &[m.gid] } else { &[] };
        let n = m.encode(gids, &mut out).unwrap();
        AcceptConfirm::decode(&out[..n]).unwrap().0
    };
    let accept = |extensions| with(Kind::Accept, 1, extensions);
    let got = check(&offer(), &accept(Extensions::ALL)).unwrap();
    assert_eq!(got.extensions, Extensions::ALL);
    let got = check(&offer(), &accept(Extensions::NONE)).unwrap();
    assert_eq!(got.extensions, Extensions::NONE);
    let got = check(&offer(), &with(Kind::Accept, 0, Extensions::ALL)).unwrap();
    assert_eq!(got.extensions, Extensions::NONE, "no room for them");
    // The server takes what was not offered.
    let plain = Offer {
        extensions: Extensions::NONE,
        ..offer()
    };
    let got = check(&plain, &accept(Extensions::ALL));
    assert_eq!(got, Err(Reason::CNFERR));
    // The client confirms what it was told, neither more nor less.
    for (sent, confirmed) in [
        (Extensions::ALL, Extensions::ALL),
        (Extensions::ALL, Extensions::NONE),
        (Extensions::NONE, Extensions::ALL),
    ] {
        let got = check_confirm(&accept(sent), &with(Kind::Confirm, 1, confirmed));
        assert_eq!(got.is_ok(), sent == confirmed, "{sent:?} {confirmed:?}");
    }
}

#[test]
fn extensions_can_be_limited() {
    for bits in 0..=Extensions::ALL.bits() {
        let some = Extensions::ALL.limited_to(bits);
        assert_eq!(some.bits(), bits);
        assert_eq!(some.common(Extensions::ALL), some);
        assert_eq!(some.contains(Extensions::OWN_KEYS), bits & 1 != 0);
        assert_eq!(some.contains(Extensions::SHORT), bits & 2 != 0);
    }
    assert_eq!(Extensions::ALL.limited_to(u32::MAX), Extensions::ALL);
    assert_eq!(Extensions::ALL.limited_to(0xffff_ff00), Extensions::NONE);
}
