// SPDX-License-Identifier: GPL-2.0

//! Messages from the wire (`host/capture`): the C implementation, on machine 10.88.0.1, and this
//! module, on 10.88.0.2, in connections of which enough is known to say what each field means.

use crate::proto::cdc::Message;
use crate::proto::clc::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, Body, Llc};
use crate::proto::reason::DeclineReason;

use crate::common::vector;
use crate::sim;

/// The two senders, with the last byte of their addresses.
const C: (&str, u8) = ("c", 1);
const OURS: (&str, u8) = ("ours", 2);
const SENDERS: [(&str, u8); 2] = [C, OURS];

fn captured(sender: (&str, u8), kind: &str) -> Vec<u8> {
    vector(&format!("captured_{}_{kind}", sender.0))
}

fn other(sender: (&str, u8)) -> (&'static str, u8) {
    if sender == C {
        OURS
    } else {
        C
    }
}

fn gid(sender: (&str, u8)) -> Gid {
    Gid::from_v4([10, 88, 0, sender.1])
}

fn accept_or_confirm(sender: (&str, u8), kind: &str) -> AcceptConfirm {
    AcceptConfirm::decode(&captured(sender, kind)).unwrap().0
}

fn llc(bytes: &[u8]) -> Llc<'_> {
    let m = Llc::decode(bytes).unwrap();
    assert_eq!(m.version, llc::Version::V2);
    m
}

#[test]
fn proposals_offer_version_2_and_their_own_device() {
    for s in SENDERS {
        let bytes = captured(s, "clc_proposal");
        let p = Proposal::decode(&bytes).unwrap();
        assert!(p.offers_v2(), "{s:?}");
        let ext = p.v2.unwrap();
        assert_eq!((ext.gid, ext.release), (gid(s), 1), "{s:?}");
        let eids: Vec<Eid> = ext.eids.iter().collect();
        assert_eq!(eids, [Eid::DEFAULT], "{s:?}");
        assert!(ext.limits.max_conns >= MIN_CONNS, "{s:?}");
    }
    let bytes = captured(OURS, "clc_proposal");
    let ours = Proposal::decode(&bytes).unwrap();
    // There is no device for version 1, and one link.
    assert!(!ours.offers_v1());
    assert_eq!(ours.v2.unwrap().limits.max_links, 1);
}

#[test]
fn handshake_messages_agree_with_each_other() {
    for server in SENDERS {
        let client = other(server);
        let accept = accept_or_confirm(server, "clc_accept_first");
        let confirm = accept_or_confirm(client, "clc_confirm_first");
        assert!(accept.first_contact && confirm.first_contact);
        for (m, who, kind) in [
            (&accept, server, Kind::Accept),
            (&confirm, client, Kind::Confirm),
        ] {
            assert_eq!(m.kind, kind);
            assert_eq!(m.gid, gid(who));
            assert_eq!(m.v2.unwrap().eid, Eid::DEFAULT);
            assert!(m.qpn.is_usable() && m.element().is_some());
            let fce = m.extension().unwrap();
            assert_eq!((fce.release, fce.os, fce.direct), (1, OsType::LINUX, true));
            assert_eq!(fce.limits.max_links, 1);
            assert_eq!(fce.hostname.name().len(), 1, "machines a and b");
        }
        assert!(check_confirm(&accept, &confirm).is_ok());
        let offer = Offer {
            extensions: Extensions::NONE,
            v1: false,
            v2: true,
            release: 1,
            limits: Limits {
                max_conns: 255,
                max_links: 2,
            },
            mtu: confirm.mtu,
        };
        let agreed = check_accept(&offer, [Eid::DEFAULT].into_iter(), &accept).unwrap();
        assert!(agreed.first_contact && agreed.release == Some(1));

        // The next connection is on the same queue pairs, with tokens of its own.
        let next_accept = accept_or_confirm(server, "clc_accept_next");
        let next_confirm = accept_or_confirm(client, "clc_confirm_next");
        assert_eq!(next_accept.qpn, accept.qpn);
        assert_eq!(next_confirm.qpn, confirm.qpn);
        assert_ne!(next_accept.token, accept.token);
        assert_ne!(next_confirm.token, confirm.token);
        assert!(!next_accept.first_contact && next_accept.extension().is_none());
        assert!(check_confirm(&next_accept, &next_confirm).is_ok());
    }
}

#[test]
fn confirm_link_names_what_the_handshake_named() {
    for server in SENDERS {
        let client = other(server);
        let request = captured(server, "llc_confirm_link_request");
        let answer = captured(client, "llc_confirm_link_answer");
        let (request, answer) = (llc(&request), llc(&answer));
        assert!(!request.response && answer.response);
        let (Body::ConfirmLink(r), Body::ConfirmLink(a)) = (request.body, answer.body) else {
            panic!("{request:?} {answer:?}");
        };
        let accept = accept_or_confirm(server, "clc_accept_first");
        let confirm = accept_or_confirm(client, "clc_confirm_first");
        assert_eq!((r.qpn, r.gid, r.mac), (accept.qpn, accept.gid, accept.mac));
        assert_eq!(
            (a.qpn, a.gid, a.mac),
            (confirm.qpn, confirm.gid, confirm.mac)
        );
        assert_eq!(a.link_num, r.link_num);
        assert!(r.no_eyecatcher && a.no_eyecatcher && r.link_num != 0);
    }
}

#[test]
fn confirm_rkey_tells_a_ring_and_is_echoed() {
    for s in SENDERS {
        let request = captured(s, "llc_confirm_rkey_request");
        let answer = captured(s, "llc_confirm_rkey_answer");
        let (request, answer) = (llc(&request), llc(&answer));
        let (Body::ConfirmRkey(r), Body::ConfirmRkey(a)) = (request.body, answer.body) else {
            panic!("{request:?} {answer:?}");
        };
        assert!(!request.response && answer.response);
        assert_eq!((r.others, a.others), (0, 0), "{s:?}: one link");
        assert!(!r.negative && !a.negative && r.this_link.rkey != Rkey(0));
    }
}

#[test]
fn cdc_messages_name_the_receivers_token_and_what_was_sent() {
    // The first connection: machine b is the client and sends 5000 bytes, a answers with 7000.
    let accept = accept_or_confirm(C, "clc_accept_first");
    let confirm = accept_or_confirm(OURS, "clc_confirm_first");
    for (s, token, bytes, ring) in [
        (OURS, accept.token, 5000, accept.rmbe_size.bytes()),
        (C, confirm.token, 7000, confirm.rmbe_size.bytes()),
    ] {
        let m = Message::decode(&captured(s, "cdc_data")).unwrap();
        assert_eq!((m.token, m.prod.wrap), (token, 0), "{s:?}");
        assert!((1..=bytes).contains(&m.prod.count), "{s:?} {m:?}");
        assert!(m.seq >= 1 && !m.conn_flags.closed);
        // A connection takes it.
        let mut c = sim::conn(ring, ring, ring, ring / 10, 0);
        if s == C {
            // It may have confirmed our bytes with it.
            c.commit_write(5000).unwrap();
            let _ = c.plan_tx(true).unwrap();
        }
        assert_eq!(c.on_cdc(&m).unwrap().arrived, m.prod.count, "{s:?}");

        let urgent = Message::decode(&captured(s, "cdc_urgent")).unwrap();
        assert!(urgent.prod_flags.urgent_present && urgent.prod_flags.urgent_pending);
        let done = Message::decode(&captured(s, "cdc_done")).unwrap();
        assert!(done.conn_flags.sending_done && !done.conn_flags.closed && !done.conn_flags.abort);
        let closed = Message::decode(&captured(s, "cdc_closed")).unwrap();
        assert!(closed.conn_flags.closed && !closed.conn_flags.abort);
    }
}

#[test]
fn declines_say_why() {
    // No enterprise id is in common. C then looks for a device for version 1, and names that.
    for (s, reason) in [(C, DeclineReason::NOSMCDEV), (OURS, DeclineReason::NOUEID)] {
        let m = Decline::decode(&captured(s, "clc_decline")).unwrap();
        assert_eq!(m.version, Version::V2);
        assert_eq!((m.reason, m.out_of_sync), (reason, false), "{s:?}");
        assert_eq!(m.os, OsType::LINUX);
    }
}

#[test]
fn what_this_module_sent_is_what_the_core_writes() {
    let mut out = [0; MAX_MESSAGE];
    for kind in [
        "accept_first",
        "accept_next",
        "confirm_first",
        "confirm_next",
    ] {
        let bytes = captured(OURS, &format!("clc_{kind}"));
        let (m, gids) = AcceptConfirm::decode(&bytes).unwrap();
        let list: Vec<Gid> = gids.iter().collect();
        let n = m.encode(&list, &mut out).unwrap();
        assert_eq!(out[..n], bytes, "{kind}");
    }
    for kind in [
        "llc_confirm_link_request",
        "llc_confirm_link_answer",
        "llc_confirm_rkey_request",
    ] {
        let bytes = captured(OURS, kind);
        assert_eq!(llc(&bytes).encode_short().unwrap()[..], bytes, "{kind}");
    }
    for kind in ["data", "urgent", "done", "closed"] {
        let bytes = captured(OURS, &format!("cdc_{kind}"));
        assert_eq!(
            Message::decode(&bytes).unwrap().encode()[..],
            bytes,
            "{kind}"
        );
    }
}
