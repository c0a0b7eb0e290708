// SPDX-License-Identifier: GPL-2.0

//! Where RFC 7609 and Linux write a message in different ways: a vector of either form, and what
//! comes of both. `README.md` lists the choices.

use crate::proto::cdc::Message;
use crate::proto::clc::{
    check_accept, check_confirm, AcceptConfirm, Extensions, Limits, Offer, PrefixArea, Proposal,
    Subnet,
};
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{demux, Body, ConfirmRkey, Demux, Llc, Version};
use crate::proto::DeclineReason;

use crate::common::vector;
use crate::sim::{Pair, Setup};

fn accept_or_confirm(name: &str) -> AcceptConfirm {
    AcceptConfirm::decode(&vector(name)).unwrap().0
}

/// What a client that offers version 1 says to an Accept.
fn judged(name: &str) -> Result<MtuCode, DeclineReason> {
    let offer = Offer {
        extensions: Extensions::NONE,
        v1: true,
        v2: false,
        release: 0,
        limits: Limits::default(),
        mtu: MtuCode::B4096,
    };
    check_accept(&offer, [].into_iter(), &accept_or_confirm(name)).map(|agreed| agreed.mtu)
}

fn confirm_rkey(name: &str) -> (bool, ConfirmRkey) {
    let bytes = vector(name);
    let m = Llc::decode(&bytes).unwrap();
    match m.body {
        Body::ConfirmRkey(body) => (m.response, body),
        other => panic!("{other:?}"),
    }
}

#[test]
fn buffers_with_an_eyecatcher_are_declined() {
    for (name, want) in [
        ("llc_confirm_link_v1", Ok(2)),
        ("llc_confirm_link_v1_rfc", Err(DeclineReason::RMBE_EC)),
    ] {
        let bytes = vector(name);
        let Body::ConfirmLink(m) = Llc::decode(&bytes).unwrap().body else {
            panic!("{name}")
        };
        let got = judge_confirm_link(&m, None, 2).map(|agreed| agreed.max_links);
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn elements_may_be_larger_than_the_rfc_has_them() {
    for (name, bytes) in [("accept_v1", 64 << 10), ("accept_v1_large", 1 << 20)] {
        assert_eq!(judged(name), Ok(MtuCode::B1024), "{name}");
        assert_eq!(accept_or_confirm(name).rmbe_size.bytes(), bytes, "{name}");
    }
}

#[test]
fn reserved_mtu_is_declined_as_the_rfc_has_it() {
    assert_eq!(judged("accept_v1"), Ok(MtuCode::B1024));
    assert!(judged("accept_v1_mtu").is_err());
}

#[test]
fn confirm_of_version_1_is_taken_with_and_without_the_first_contact_flag() {
    let accept = accept_or_confirm("accept_v1");
    for (name, flag) in [("confirm_v1", true), ("confirm_v1_rfc", false)] {
        let confirm = accept_or_confirm(name);
        assert_eq!(confirm.first_contact, flag);
        let got = check_confirm(&accept, &confirm).unwrap();
        assert_eq!(got.mtu, MtuCode::B1024, "{name}");
    }
    // What is sent has it.
    let mut out = [0; 68];
    let ours = accept_or_confirm("confirm_v1");
    assert_eq!(ours.encode(&[], &mut out), Ok(68));
    assert_eq!(out[..], vector("confirm_v1")[..]);
}

/// Whether a server in the subnet of the vectors takes a client for one of its network.
fn is_near(area: &PrefixArea<'_>) -> bool {
    let own = [192, 168, 1, 7].into();
    area.check(own, Subnet::new(own, 24).into_iter()).is_ok()
}

#[test]
fn proposal_names_the_number_of_the_subnet_not_its_mask() {
    for (name, found) in [("proposal_v1_ipv4", true), ("proposal_v1_ipv4_mask", false)] {
        let bytes = vector(name);
        let area = Proposal::decode(&bytes).unwrap().prefixes.unwrap();
        assert_eq!(is_near(&area), found, "{name}");
    }
}

#[test]
fn any_offset_of_the_prefixes_is_skipped_as_the_rfc_has_it() {
    for name in ["proposal_v1_ipv4", "proposal_v1_offset"] {
        let bytes = vector(name);
        let area = Proposal::decode(&bytes).unwrap().prefixes.unwrap();
        assert!(is_near(&area), "{name}");
    }
}

#[test]
fn validation_after_a_change_of_links_counts_by_its_number_alone() {
    for name in ["cdc_validation", "cdc_validation_rfc"] {
        for (received, good) in [(5, true), (6, true), (4, false)] {
            let mut p = Pair::new(Setup {
                seq: received,
                ..Setup::default()
            });
            let m = Message::decode(&vector(name)).unwrap();
            let before = p.sides[1].conn.snapshot();
            let got = p.sides[1].conn.on_cdc(&m);
            assert_eq!(got.is_ok(), good, "{name} after {received}");
            if let Ok(fx) = got {
                assert!(fx.arrived == 0 && !fx.close.any(), "{name}");
            }
            assert_eq!(p.sides[1].conn.snapshot(), before, "{name}");
        }
    }
    // What is sent has nothing else in it, but for the token.
    let mut p = Pair::new(Setup {
        seq: 5,
        ..Setup::default()
    });
    let mut m = p.sides[0].conn.begin_failover().unwrap();
    m.token = AlertToken::from_peer(0xcafe_babe);
    assert_eq!(m.encode()[..], vector("cdc_validation")[..]);
}

#[test]
fn refusal_of_a_key_is_for_now_or_for_good() {
    let (_, sent) = confirm_rkey("llc_confirm_rkey");
    for (name, want) in [
        ("llc_confirm_rkey_later", KeyAnswer::Later),
        ("llc_confirm_rkey_refused", KeyAnswer::Refused),
    ] {
        let (response, answer) = confirm_rkey(name);
        assert!(response);
        assert_eq!(judge_confirm_rkey(&sent, &answer), Some(want), "{name}");
    }
}

/// RFC 7609 has a client tell a key again that met a change of links (section 3.5.5.3.1); Linux gives its connection up.
#[test]
fn a_key_that_meets_a_change_of_links_is_taken_from_who_would_not_tell_it_again() {
    for (os, agreed, want) in [
        (OsType::ZOS, Extensions::NONE, Verdict::RefuseForNow),
        (OsType::AIX, Extensions::NONE, Verdict::RefuseForNow),
        (OsType::default(), Extensions::NONE, Verdict::RefuseForNow),
        (OsType::LINUX, Extensions::NONE, Verdict::Answer),
        // This implementation does.
        (OsType::LINUX, Extensions::OWN_KEYS, Verdict::RefuseForNow),
        (OsType::LINUX, Extensions::ALL, Verdict::RefuseForNow),
    ] {
        for kind in [Exchange::AddLink, Exchange::DeleteLink] {
            let mut flows = Flows::new(Role::Server);
            flows.set_peer_tells_again(tells_again(os, agreed));
            let change = flows.begin(kind).unwrap();
            let key = Llc::request(Version::V2, Body::ConfirmRkey(ConfirmRkey::default()));
            assert_eq!(flows.arrived(&key, 0), want, "{os:?} {agreed:?} {kind:?}");
            assert_eq!(flows.finish(change), None);
            assert_eq!(flows.arrived(&key, 0), Verdict::Answer);
        }
    }
}

#[test]
fn unknown_kinds_of_messages_are_dropped_whatever_their_top_bits_say() {
    for (name, must) in [("llc_unknown_00", true), ("llc_unknown_10", false)] {
        let bytes = vector(name);
        assert_eq!(demux(bytes[0]), Demux::Unknown { must }, "{name}");
        assert!(Llc::decode(&bytes).is_err(), "{name}");
    }
}

#[test]
fn layout_of_add_link_is_that_of_linux() {
    let [linux, rfc] = ["llc_add_link_v1", "llc_add_link_v1_rfc"].map(|name| {
        let bytes = vector(name);
        match Llc::decode(&bytes).unwrap().body {
            Body::AddLink(m) => (m.gid, m.qpn, m.mtu),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!((linux.1.get(), linux.2), (0x777, MtuCode::B1024));
    // Two bytes earlier everything means something else.
    assert!(rfc.0 != linux.0 && rfc.1 != linux.1 && rfc.2 != linux.2);
}
