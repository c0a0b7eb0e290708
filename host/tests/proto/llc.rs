// SPDX-License-Identifier: GPL-2.0

//! LLC messages against vectors, truncation, corruption and reserved bits.

use crate::proto::error::{DecodeError, EncodeError, Why};
use crate::proto::ids::*;
use crate::proto::llc::*;

use crate::common::{ignores_reserved, property, refuses_truncations, survives_corruption, vector};

const GID_A: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
const GID_B: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 1, 1]);
const GID_V1: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0, 2]);

const MOVED: [MovedRtoken; 2] = [
    MovedRtoken {
        reference: Rkey(0x11),
        rkey: Rkey(0x21),
        vaddr: Vaddr(0x10_0000),
    },
    MovedRtoken {
        reference: Rkey(0x12),
        rkey: Rkey(0x22),
        vaddr: Vaddr(0x20_0000),
    },
];

const GIDS: [Gid; 2] = [GID_A, GID_B];
const RKEYS: [Rkey; 4] = [Rkey(1), Rkey(2), Rkey(3), Rkey(4)];

fn token(link_num: u8, n: u32) -> LinkRtoken {
    LinkRtoken {
        link_num,
        rkey: Rkey(n * 0x1111_1111),
        vaddr: Vaddr(u64::from(n) * 0x11_1000),
    }
}

fn confirm_link() -> ConfirmLink {
    ConfirmLink {
        mac: Mac([2, 0, 0, 0, 0x0a, 1]),
        gid: GID_A,
        qpn: Qpn::new(0x123).unwrap(),
        link_num: 1,
        user_id: LinkUserId([0, 0, 1, 1]),
        max_links: 2,
        max_conns: 255,
        no_eyecatcher: true,
    }
}

fn add_link() -> AddLink<'static> {
    AddLink {
        mac: Mac([2, 0, 0, 0, 0x0b, 2]),
        gid: GID_V1,
        qpn: Qpn::new(0x777).unwrap(),
        link_num: 2,
        mtu: MtuCode::B1024,
        psn: Psn::truncate(0xbeef),
        rejected: false,
        reject_reason: 0,
        ext: None,
    }
}

#[test]
fn a_wish_of_version_1_names_the_device_alone() {
    let wish = AddLink::wish(GID_V1, Mac([2, 0, 0, 0, 0x0b, 2]));
    let bytes = Llc::request(Version::V1, Body::AddLink(wish))
        .encode_short()
        .unwrap();
    let mut want = [0; 44];
    want[..4].copy_from_slice(&[2, 44, 0, 0]);
    want[4..10].copy_from_slice(&[2, 0, 0, 0, 0x0b, 2]);
    want[12..28].copy_from_slice(&GID_V1.0);
    assert_eq!(bytes, want);
}

/// Every vector with what it says; `true` where writing gives the same bytes.
fn table() -> Vec<(&'static str, Llc<'static>, bool)> {
    let v1 = Version::V1;
    let v2 = Version::V2;
    let mut c2 = confirm_link();
    c2.max_links = 1;
    c2.max_conns = 128;
    let keys = ConfirmRkey {
        this_link: token(0, 1),
        others: 1,
        other_links: [token(2, 2), LinkRtoken::default()],
        negative: false,
        retry: false,
    };
    let refused = ConfirmRkey {
        negative: true,
        ..keys
    };
    let later = ConfirmRkey {
        retry: true,
        ..refused
    };
    let eyecatcher = ConfirmLink {
        max_conns: 0,
        no_eyecatcher: false,
        ..confirm_link()
    };
    let mut a2 = add_link();
    a2.gid = Gid::from_v4([10, 0, 1, 2]);
    a2.ext = Some(Extension {
        direct: true,
        client_gid: GID_B,
        rtokens: MovedRtokens::new(&MOVED),
        order: ByteOrder::Network,
    });
    let delete = DeleteRkey {
        rkeys: Rkeys::new(&RKEYS),
        count: 4,
        negative: true,
        errors: 0x50,
    };
    vec![
        (
            "llc_confirm_link_v1",
            Llc::request(v1, Body::ConfirmLink(confirm_link())),
            true,
        ),
        (
            "llc_confirm_link_v1_rfc",
            Llc::request(v1, Body::ConfirmLink(eyecatcher)),
            true,
        ),
        // The vector has a host-endian length.
        (
            "llc_confirm_link_v2",
            Llc::response(v2, Body::ConfirmLink(c2)),
            false,
        ),
        (
            "llc_add_link_v1",
            Llc::request(v1, Body::AddLink(add_link())),
            true,
        ),
        (
            "llc_add_link_reject_v1",
            Llc::response(
                v1,
                Body::AddLink(add_link().rejection(AddLink::NO_ALT_PATH)),
            ),
            true,
        ),
        (
            "llc_add_link_v2",
            Llc::request(v2, Body::AddLink(a2)),
            false,
        ),
        (
            "llc_add_link_cont",
            Llc::request(
                v1,
                Body::AddLinkCont(AddLinkCont {
                    link_num: 2,
                    remaining: 3,
                    rtokens: MOVED,
                }),
            ),
            true,
        ),
        (
            "llc_delete_link",
            Llc::request(
                v1,
                Body::DeleteLink(DeleteLink::everything(true, DeleteLink::PROGRAM)),
            ),
            true,
        ),
        (
            "llc_req_add_link",
            Llc::request(
                v2,
                Body::ReqAddLink(ReqAddLink {
                    gids: Gids::new(&GIDS),
                }),
            ),
            true,
        ),
        (
            "llc_confirm_rkey",
            Llc::request(v1, Body::ConfirmRkey(keys)),
            true,
        ),
        (
            "llc_confirm_rkey_later",
            Llc::response(v1, Body::ConfirmRkey(later)),
            true,
        ),
        (
            "llc_confirm_rkey_refused",
            Llc::response(v1, Body::ConfirmRkey(refused)),
            true,
        ),
        (
            "llc_confirm_rkey_cont",
            Llc::request(
                v1,
                Body::ConfirmRkeyCont(ConfirmRkeyCont {
                    remaining: 3,
                    rtokens: [token(3, 3), token(4, 4), token(5, 5)],
                    negative: false,
                }),
            ),
            true,
        ),
        (
            "llc_test_link",
            Llc::request(
                v1,
                Body::TestLink([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
            ),
            true,
        ),
        (
            "llc_delete_rkey",
            Llc::response(v1, Body::DeleteRkey(delete)),
            true,
        ),
    ]
}

#[test]
fn messages_are_read_and_written() {
    for (name, msg, same) in table() {
        let bytes = vector(name);
        assert_eq!(Llc::decode(&bytes).unwrap(), msg, "{name}");
        let mut out = [0xff; MAX_LEN];
        let n = msg.encode(&mut out).unwrap();
        assert_eq!(n, bytes.len(), "{name}");
        if same {
            assert_eq!(out[..n], bytes[..], "{name}");
        }
        assert_eq!(Llc::decode(&out[..n]).unwrap(), msg, "{name}");
    }
}

#[test]
fn first_byte_sorts_a_received_message() {
    for b in 0..=255u8 {
        let want = match b {
            0xfe => Demux::Cdc,
            1..=4 | 6..=9 => Demux::Llc(Version::V1),
            0x21 | 0x22 | 0x24..=0x27 | 0x29 => Demux::Llc(Version::V2),
            _ => Demux::Unknown { must: b < 0x40 },
        };
        assert_eq!(demux(b), want, "{b:#04x}");
        let mut bytes = [0; 44];
        bytes[0] = b;
        bytes[1] = 44;
        assert_eq!(
            Llc::decode(&bytes).is_ok(),
            matches!(want, Demux::Llc(_)),
            "{b:#04x}"
        );
    }
}

#[test]
fn messages_shorter_than_44_bytes_are_refused() {
    for (name, _, _) in table() {
        let bytes = vector(name);
        refuses_truncations(&bytes[..44], |b| match Llc::decode(b) {
            Ok(m) => Ok(format!("{m:?}")),
            Err(e) => Err(e),
        });
    }
}

#[test]
fn long_messages_are_bounded_by_what_arrived() {
    // ADD LINK: tokens that did not arrive whole are not read.
    let bytes = vector("llc_add_link_v2");
    for n in 44..=bytes.len() {
        match Llc::decode(&bytes[..n]) {
            Ok(Llc {
                body: Body::AddLink(m),
                ..
            }) => match m.ext {
                None => assert_eq!(n, 44),
                Some(e) => {
                    assert!(n >= 72, "{n}");
                    assert_eq!(e.rtokens.len(), (n - 72) / 16, "{n}");
                }
            },
            Ok(m) => panic!("{m:?}"),
            Err(_) => assert!((45..72).contains(&n), "{n}"),
        }
    }
    // REQ ADD LINK: the count must fit.
    let bytes = vector("llc_req_add_link");
    for n in 44..bytes.len() {
        assert_eq!(
            Llc::decode(&bytes[..n]).unwrap_err(),
            DecodeError::new("gid_cnt", Why::Bound)
        );
    }
    // DELETE RKEY of version 2: 255 keys in a message of 44 bytes.
    let mut bytes = [0; 44];
    bytes[..5].copy_from_slice(&[0x29, 44, 0, 0, 255]);
    assert_eq!(
        Llc::decode(&bytes).unwrap_err(),
        DecodeError::new("num_rkeys", Why::Bound)
    );
    // Its answer carries the count but no keys.
    bytes[3] = 0x80;
    let Body::DeleteRkey(m) = Llc::decode(&bytes).unwrap().body else {
        panic!()
    };
    assert_eq!((m.count, m.rkeys.len()), (255, 0));
    // Version 1 has at most eight.
    bytes[..5].copy_from_slice(&[9, 44, 0, 0, 9]);
    assert_eq!(
        Llc::decode(&bytes).unwrap_err(),
        DecodeError::new("num_rkeys", Why::Bound)
    );
    assert!(Llc::decode(&vec![0x27; MAX_LEN]).is_ok());
    assert!(Llc::decode(&vec![0x27; MAX_LEN + 1]).is_err());
    // More tokens than a table has rows.
    assert!(Llc::decode(&vec![0x22; 72 + 16 * 255 + 15]).is_ok());
    assert_eq!(
        Llc::decode(&vec![0x22; 72 + 16 * 256]).unwrap_err(),
        DecodeError::new("num_rkeys", Why::Bound)
    );
}

#[test]
fn every_flag_is_read_from_its_bit() {
    // Response, then the two flags that the kind has.
    let read = |m: &Llc<'_>| match &m.body {
        Body::ConfirmLink(c) => (c.no_eyecatcher, false),
        Body::AddLink(a) => (a.rejected, false),
        Body::DeleteLink(d) => (d.all, d.orderly),
        Body::ConfirmRkey(k) => (k.negative, k.retry),
        Body::ConfirmRkeyCont(k) => (k.negative, false),
        Body::DeleteRkey(k) => (k.negative, false),
        other => panic!("{other:?}"),
    };
    for (name, first, second) in [
        ("llc_confirm_link_v1", 0x03, 0),
        ("llc_add_link_v1", 0x40, 0),
        ("llc_delete_link", 0x40, 0x20),
        ("llc_confirm_rkey", 0x20, 0x10),
        ("llc_confirm_rkey_cont", 0x20, 0),
        ("llc_delete_rkey", 0x20, 0),
    ] {
        let mut bytes = vector(name);
        for flags in 0..=255 {
            bytes[3] = flags;
            let m = Llc::decode(&bytes).unwrap();
            let want = (flags & first != 0, flags & second != 0);
            assert_eq!(read(&m), want, "{name} {flags:#04x}");
            assert_eq!(m.response, flags & 0x80 != 0, "{name} {flags:#04x}");
            let mut out = [0; LEN];
            m.encode(&mut out).unwrap();
            assert_eq!(Llc::decode(&out).unwrap(), m, "{name} {flags:#04x}");
        }
    }
}

#[test]
fn link_through_a_gateway_is_not_direct() {
    let mut bytes = vector("llc_add_link_v2");
    for (first, direct) in [(0x80, true), (0, false), (0x7f, false)] {
        bytes[44] = first;
        let Body::AddLink(m) = Llc::decode(&bytes).unwrap().body else {
            panic!()
        };
        assert_eq!(m.ext.unwrap().direct, direct, "{first:#04x}");
    }
}

#[test]
fn bytes_behind_a_message_of_version_1_are_ignored() {
    for (name, msg, _) in table() {
        let mut bytes = vector(name);
        bytes.extend([0xaa; 60]);
        if msg.version == Version::V1 {
            assert_eq!(Llc::decode(&bytes), Ok(msg), "{name}");
        }
    }
}

#[test]
fn length_field_of_version_2_is_not_read() {
    for (name, msg, _) in table() {
        if msg.version == Version::V2 {
            let decode = |b: &[u8]| Llc::decode(b).map(|m| m == msg);
            let bytes = vector(name);
            for v in [[0, 0], [0, 44], [44, 0], [0xff, 0xff]] {
                let mut copy = bytes.clone();
                copy[1..3].copy_from_slice(&v);
                assert_eq!(decode(&copy), Ok(true), "{name} {v:?}");
            }
        }
    }
}

#[test]
fn messages_survive_corruption() {
    for (name, msg, _) in table() {
        let bytes = vector(name);
        let fixed = match msg.version {
            Version::V1 => 1..2,
            Version::V2 => 0..0,
        };
        survives_corruption(&bytes, &[fixed], |b| match Llc::decode(b) {
            Ok(m) => {
                // Whatever was understood can be written again.
                let mut out = [0; MAX_LEN];
                let n = m
                    .encode(&mut out)
                    .unwrap_or_else(|e| panic!("{m:?}: {e:?}"));
                let again = Llc::decode(&out[..n]).unwrap();
                assert_eq!(again, m);
                Ok(())
            }
            Err(e) => Err(e),
        });
    }
}

#[test]
fn reserved_bits_are_ignored() {
    type Reserved = [(std::ops::Range<usize>, u8)];
    let rows: &[(&str, &Reserved)] = &[
        (
            "llc_confirm_link_v1",
            &[(2..3, 0xff), (3..4, 0x7c), (36..44, 0xff)],
        ),
        (
            "llc_add_link_v1",
            &[
                (2..3, 0xf0),
                (3..4, 0x3f),
                (10..12, 0xff),
                (32..33, 0xf0),
                (36..44, 0xff),
            ],
        ),
        (
            "llc_add_link_v2",
            &[(3..4, 0x3f), (44..45, 0x7f), (45..46, 0xff), (62..72, 0xff)],
        ),
        (
            "llc_add_link_cont",
            &[(2..3, 0xff), (3..4, 0x7f), (6..8, 0xff), (40..44, 0xff)],
        ),
        (
            "llc_delete_link",
            &[(2..3, 0xff), (3..4, 0x1f), (9..44, 0xff)],
        ),
        (
            "llc_req_add_link",
            &[(3..4, 0x7f), (4..24, 0xff), (25..28, 0xff)],
        ),
        (
            "llc_confirm_rkey",
            &[(2..3, 0xff), (3..4, 0x4f), (43..44, 0xff)],
        ),
        ("llc_confirm_rkey_cont", &[(2..3, 0xff), (3..4, 0x5f)]),
        (
            "llc_test_link",
            &[(2..3, 0xff), (3..4, 0x7f), (20..44, 0xff)],
        ),
        (
            "llc_delete_rkey",
            &[(2..3, 0xff), (3..4, 0x5f), (6..8, 0xff), (24..44, 0xff)],
        ),
    ];
    for (name, reserved) in rows {
        ignores_reserved(&vector(name), reserved, |b| {
            Llc::decode(b).map(|m| format!("{m:?}").replace("Wire", ""))
        });
    }
}

#[test]
fn list_lengths_are_bounded_when_written() {
    let keys = [Rkey(7); 256];
    let mut out = [0; MAX_LEN];
    let msg = |n: usize, v| Llc::request(v, Body::DeleteRkey(DeleteRkey::request(&keys[..n])));
    assert_eq!(msg(8, Version::V1).encode(&mut out), Ok(44));
    assert_eq!(
        msg(9, Version::V1).encode(&mut out),
        Err(EncodeError::TooMany)
    );
    assert_eq!(msg(9, Version::V2).encode(&mut out), Ok(44));
    assert_eq!(msg(10, Version::V2).encode(&mut out), Ok(48));
    assert_eq!(msg(255, Version::V2).encode(&mut out), Ok(8 + 4 * 255));
    assert_eq!(
        msg(256, Version::V2).encode(&mut out),
        Err(EncodeError::TooMany)
    );
    assert_eq!(
        msg(255, Version::V2).encode_short(),
        Err(EncodeError::NoRoom)
    );
    let moved = [MovedRtoken::default(); 255];
    let mut a = add_link();
    a.ext = Some(Extension {
        direct: false,
        client_gid: GID_A,
        rtokens: MovedRtokens::new(&moved),
        order: ByteOrder::Network,
    });
    let full = Llc::request(Version::V2, Body::AddLink(a));
    assert_eq!(full.encode(&mut out), Ok(72 + 16 * 255));
    assert_eq!(
        Llc::request(Version::V1, Body::AddLink(a)).encode(&mut out),
        Err(EncodeError::Inconsistent)
    );
}

#[test]
fn the_number_of_tokens_is_in_the_order_of_the_receiver() {
    let mut out = [0; MAX_LEN];
    let number_at = 70..72;
    for (order, number) in [(ByteOrder::Network, [0, 4]), (ByteOrder::Little, [4, 0])] {
        let moved = [MovedRtoken::default(); 4];
        let mut m = add_link();
        m.ext = Some(Extension {
            direct: true,
            client_gid: GID_A,
            rtokens: MovedRtokens::new(&moved),
            order,
        });
        let msg = Llc::request(Version::V2, Body::AddLink(m));
        let len = msg.encode(&mut out).unwrap();
        assert_eq!(out[number_at.clone()], number);
        // Whoever reads it goes by the length.
        let Ok(Llc {
            body: Body::AddLink(read),
            ..
        }) = Llc::decode(&out[..len])
        else {
            panic!("it is read");
        };
        assert_eq!(read.ext.unwrap().rtokens.len(), 4);
    }
}

#[test]
fn the_length_shows_the_order_of_the_sender() {
    let confirm = |version| {
        Llc::request(version, Body::ConfirmLink(confirm_link()))
            .encode_short()
            .unwrap()
    };
    let mut bytes = confirm(Version::V2);
    assert_eq!(ByteOrder::of_sender(&bytes), ByteOrder::Network);
    bytes.swap(1, 2);
    assert_eq!(ByteOrder::of_sender(&bytes), ByteOrder::Little);
    // Version 1 has its length where the upper half would be.
    assert_eq!(
        ByteOrder::of_sender(&confirm(Version::V1)),
        ByteOrder::Network
    );
    assert_eq!(ByteOrder::of_sender(&[]), ByteOrder::Network);
}

#[test]
fn messages_exist_only_in_their_version() {
    let mut out = [0; MAX_LEN];
    for (version, body) in [
        (Version::V2, Body::AddLinkCont(AddLinkCont::default())),
        (
            Version::V2,
            Body::ConfirmRkeyCont(ConfirmRkeyCont::default()),
        ),
        (Version::V1, Body::ReqAddLink(ReqAddLink::default())),
    ] {
        assert_eq!(
            Llc::request(version, body).encode(&mut out),
            Err(EncodeError::Inconsistent)
        );
    }
}

#[test]
fn version_2_rejection_carries_no_reason() {
    let m = add_link().rejection(AddLink::INVALID_MTU);
    let bytes = Llc::response(Version::V2, Body::AddLink(m))
        .encode_short()
        .unwrap();
    assert_eq!(bytes[3], 0xc0);
    let Body::AddLink(got) = Llc::decode(&bytes).unwrap().body else {
        panic!()
    };
    assert!(got.rejected);
    assert_eq!(got.reject_reason, 0);
}

#[test]
fn counts_say_which_tokens_are_valid() {
    let mut c = AddLinkCont {
        link_num: 1,
        remaining: 0,
        rtokens: MOVED,
    };
    for (remaining, valid) in [(0, 0), (1, 1), (2, 2), (3, 2), (255, 2)] {
        c.remaining = remaining;
        assert_eq!(c.valid().count(), valid);
    }
    let mut c = ConfirmRkey::single(Rkey(1), Vaddr(2));
    for (others, valid) in [(0, 0), (1, 1), (2, 2), (7, 2)] {
        c.others = others;
        assert_eq!(c.valid_others().count(), valid);
    }
    let mut c = ConfirmRkeyCont::default();
    for (remaining, valid) in [(0, 0), (2, 2), (3, 3), (4, 3)] {
        c.remaining = remaining;
        assert_eq!(c.valid().count(), valid);
    }
}

#[test]
fn random_bytes_are_read_without_a_panic_and_written_as_read() {
    property("LLC decoder", 20_000, |rng| {
        let len = rng.range(44, 300);
        let mut bytes = rng.vec(len);
        bytes[0] = rng.below(0x30) as u8;
        if bytes[0] < 0x20 {
            bytes[1] = 44;
        }
        if let Ok(m) = Llc::decode(&bytes) {
            let mut out = [0; MAX_LEN];
            let n = m.encode(&mut out).unwrap();
            assert_eq!(Llc::decode(&out[..n]).unwrap(), m);
        }
    });
}

#[test]
fn lists_from_the_wire_hold_what_was_sent() {
    let bytes = vector("llc_add_link_v2");
    let Body::AddLink(AddLink { ext: Some(ext), .. }) = Llc::decode(&bytes).unwrap().body else {
        panic!("no extension");
    };
    let moved = |n: u32| MovedRtoken {
        reference: Rkey(0x10 + n),
        rkey: Rkey(0x20 + n),
        vaddr: Vaddr(0x10_0000 * u64::from(n)),
    };
    let got: Vec<MovedRtoken> = ext.rtokens.iter().collect();
    assert_eq!(got, [moved(1), moved(2)]);
    assert_eq!(ext.rtokens.get(1), Some(moved(2)));
    assert_eq!(ext.rtokens.get(2), None);
    // Equal length is not enough to be the same.
    assert_ne!(ext.rtokens, MovedRtokens::new(&[moved(1), moved(3)]));
    assert_ne!(ext.rtokens, MovedRtokens::new(&[moved(1)]));
    assert_eq!(ext.rtokens, MovedRtokens::new(&[moved(1), moved(2)]));
}
