// SPDX-License-Identifier: GPL-2.0

//! CLC messages against vectors, truncation, corruption and reserved bits.

use crate::proto::clc::*;
use crate::proto::error::{DecodeError, EncodeError, Why};
use crate::proto::ids::*;
use crate::proto::reason::DeclineReason;
use crate::proto::size::RmbeSizeCode;

use crate::common::{ignores_reserved, property, refuses_truncations, survives_corruption, vector};

const PEER_A: PeerId = PeerId([0, 1, 2, 0, 0, 0, 0x0a, 1]);
const MAC_A: Mac = Mac([2, 0, 0, 0, 0x0a, 1]);
const GID_V1_A: Gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0, 1]);

/// What a proposal says, in a form that can be compared.
type Said = (
    (u8, Tech, Tech, PeerId, Gid, Mac),
    Option<([u8; 4], u8, Vec<([u8; 16], u8)>)>,
    Option<(u8, Gid, Limits, Vec<Eid>)>,
);

fn proposal(bytes: &[u8]) -> Result<Said, DecodeError> {
    let p = Proposal::decode(bytes)?;
    Ok((
        (p.version, p.type_v1, p.type_v2, p.peer_id, p.gid, p.mac),
        p.prefixes
            .map(|a| (a.v4_network, a.v4_len, a.v6.iter().collect())),
        p.v2.map(|e| (e.release, e.gid, e.limits, e.eids.iter().collect())),
    ))
}

fn accept(bytes: &[u8]) -> Result<(AcceptConfirm, Vec<Gid>), DecodeError> {
    AcceptConfirm::decode(bytes).map(|(m, g)| (m, g.iter().collect()))
}

/// The bytes of a message that cannot change without an error: eyecatcher, type, length, trailer.
fn frame(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    vec![0..7, bytes.len() - 4..bytes.len()]
}

#[test]
fn proposal_of_version_1_over_ipv4_is_read_and_written() {
    let bytes = vector("proposal_v1_ipv4");
    let p = Proposal::decode(&bytes).unwrap();
    assert!(p.offers_v1() && !p.offers_v2());
    assert_eq!(
        proposal(&bytes).unwrap(),
        (
            (1, Tech::R, Tech::None, PEER_A, GID_V1_A, MAC_A),
            Some(([192, 168, 1, 0], 24, vec![])),
            None
        )
    );
    let v1 = ProposalV1 {
        gid: GID_V1_A,
        mac: MAC_A,
        v4_network: [192, 168, 1, 0],
        v4_len: 24,
        v6: &[],
    };
    let mut out = [0xff; MAX_PROPOSAL];
    let n = Proposal::encode_v1(PEER_A, &v1, &mut out).unwrap();
    assert_eq!(out[..n], bytes[..]);
}

#[test]
fn proposal_of_version_1_over_ipv6_skips_the_unknown_area() {
    let bytes = vector("proposal_v1_ipv6");
    let p = Proposal::decode(&bytes).unwrap();
    let v6: Vec<_> = p.prefixes.unwrap().v6.iter().collect();
    assert_eq!(v6.len(), 2);
    assert_eq!((v6[0].0[5], v6[0].1), (1, 64));
    assert_eq!((v6[1].0[5], v6[1].1), (2, 48));
    let area = p.prefixes.unwrap();
    assert_eq!((area.v6.len(), area.v6.is_empty()), (2, false));
}

#[test]
fn proposal_of_version_2_alone_is_read_and_written() {
    let bytes = vector("proposal_v2_only");
    let limits = Limits {
        max_conns: 255,
        max_links: 2,
    };
    assert_eq!(
        proposal(&bytes).unwrap(),
        (
            (2, Tech::None, Tech::R, PeerId::ZERO, Gid::ZERO, Mac::ZERO),
            None,
            Some((1, Gid::from_v4([10, 0, 0, 1]), limits, vec![Eid::DEFAULT]))
        )
    );
    let v2 = ProposalV2 {
        extensions: Extensions::NONE,
        gid: Gid::from_v4([10, 0, 0, 1]),
        release: 1,
        limits,
    };
    let mut out = [0xff; MAX_PROPOSAL];
    let eids = [Eid::DEFAULT];
    let n = Proposal::encode_v2(PeerId::ZERO, &v2, eids.iter().copied(), &mut out).unwrap();
    assert_eq!(out[..n], bytes[..]);
}

#[test]
fn version_2_proposal_has_zero_where_the_c_receiver_looks_for_a_prefix_count() {
    let bytes = vector("proposal_v2_only");
    assert_eq!(&bytes[38..40], [0, 0]);
    assert_eq!(bytes[47], 0);
}

#[test]
fn proposal_of_both_versions_is_read_and_written() {
    let bytes = vector("proposal_v1_v2");
    let said = proposal(&bytes).unwrap();
    let (release, gid, limits, eids) = said.2.unwrap();
    assert_eq!((release, gid), (0, Gid::from_v4([192, 168, 1, 7])));
    assert_eq!(limits, Limits::default());
    assert_eq!(
        eids,
        [Eid::new(b"ABC").unwrap(), Eid::new(b"X-1.2").unwrap()]
    );
    let v1 = ProposalV1 {
        gid: GID_V1_A,
        mac: MAC_A,
        v4_network: [192, 168, 1, 0],
        v4_len: 24,
        v6: &[],
    };
    let v2 = ProposalV2 {
        extensions: Extensions::NONE,
        gid,
        release,
        limits: Limits {
            max_conns: 255,
            max_links: 2,
        },
    };
    let mut out = [0xff; MAX_PROPOSAL];
    let n = Proposal::encode(
        PEER_A,
        Some(&v1),
        Some((&v2, eids.iter().copied())),
        &mut out,
    )
    .unwrap();
    assert_eq!(out[..n], bytes[..]);
}

#[test]
fn decline_takes_the_form_that_the_client_understands() {
    for (name, want) in [
        ("proposal_v1_ipv4", Version::V1),
        ("proposal_v1_v2", Version::V2),
        ("proposal_v2_only", Version::V2),
    ] {
        let bytes = vector(name);
        let proposal = Proposal::decode(&bytes).unwrap();
        assert_eq!(proposal.decline_version(), want, "{name}");
    }
}

#[test]
fn proposal_with_smcd_areas_is_read_past_them() {
    // Both technologies in both versions: the SMC-D extension of one GID follows the v2 one.
    let mut bytes = vector("proposal_v1_v2");
    let trailer = bytes.split_off(bytes.len() - 4);
    bytes[7] = 0x2f;
    bytes[88 + 1] = 1;
    bytes[88 + 6..88 + 8].copy_from_slice(&(32u16 + 64).to_be_bytes());
    bytes.extend([0x55; 48 + 10]);
    bytes.extend(trailer);
    let len = u16::try_from(bytes.len()).unwrap();
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    let said = proposal(&bytes).unwrap();
    assert_eq!((said.0 .1, said.0 .2), (Tech::Both, Tech::Both));
    assert_eq!(said.2.unwrap().3.len(), 2);
    refuses_truncations(&bytes, proposal);
    survives_corruption(&bytes, &frame(&bytes), proposal);

    let mut many = bytes.clone();
    many[88 + 1] = 9;
    assert_eq!(
        proposal(&many).unwrap_err(),
        DecodeError::new("ism_gid_cnt", Why::Bound)
    );
    let mut far = bytes.clone();
    far[88 + 6] = 0xff;
    assert_eq!(
        proposal(&far).unwrap_err(),
        DecodeError::new("smcd_v2_ext_offset", Why::Bound)
    );
}

#[test]
fn proposal_counts_and_offsets_are_bounded_before_use() {
    let good = vector("proposal_v1_v2");
    for (at, value, field) in [
        (38, 0xff, "iparea_offset"),
        (39, 41, "iparea_offset"),
        (50, 0xff, "v2_ext_offset"),
        (51, 37, "v2_ext_offset"),
        (87, 9, "v6_count"),
        (87, 255, "v6_count"),
        (88, 9, "eid_cnt"),
        (88, 255, "eid_cnt"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let e = proposal(&bytes).unwrap_err();
        assert_eq!((e.field, e.why), (field, Why::Bound), "byte {at}");
    }
    let mut bytes = vector("proposal_v1_ipv4");
    bytes[38] = 0xff;
    assert_eq!(proposal(&bytes).unwrap_err().field, "iparea_offset");
}

#[test]
fn proposal_that_offers_nothing_is_refused_in_version_1() {
    let mut bytes = vector("proposal_v1_ipv4");
    bytes[7] = 0x12;
    assert_eq!(
        proposal(&bytes).unwrap_err(),
        DecodeError::new("type_v1", Why::Value)
    );
}

#[test]
fn proposal_of_a_later_version_is_read_as_version_2() {
    let mut bytes = vector("proposal_v2_only");
    bytes[7] = 0x32;
    assert_eq!(Proposal::decode(&bytes).unwrap().version, 3);
}

#[test]
fn all_offers_of_a_proposal_are_told_apart() {
    // Every pair of offers in the version 2 message, whatever the rest of it says.
    let good = vector("proposal_v1_v2");
    for low in 0..16 {
        let mut bytes = good.clone();
        bytes[7] = 0x20 | low;
        let ok = proposal(&bytes).is_ok();
        // Only the layouts with prefix area and extension and without SMC-D extension fit.
        let (v1, v2) = (low & 3, low >> 2);
        assert_eq!(ok, v1 != 2 && v2 == 0, "{low:#x}");
    }
}

#[test]
fn proposals_survive_truncation_and_corruption() {
    for name in [
        "proposal_v1_ipv4",
        "proposal_v1_ipv6",
        "proposal_v2_only",
        "proposal_v1_v2",
    ] {
        let bytes = vector(name);
        refuses_truncations(&bytes, proposal);
        survives_corruption(&bytes, &frame(&bytes), proposal);
        let mut long = bytes.clone();
        long.push(0);
        assert!(proposal(&long).is_err(), "{name}: a byte too many");
    }
}

#[test]
fn reserved_bits_of_proposals_are_ignored() {
    ignores_reserved(&vector("proposal_v1_ipv4"), &[(45..47, 0xff)], proposal);
    ignores_reserved(
        &vector("proposal_v2_only"),
        &[
            (40..50, 0xff),
            (60..80, 0xff),
            (82..83, 0xff),
            (83..84, 0x0e),
            (84..88, 0xff),
            (108..120, 0xff),
        ],
        proposal,
    );
}

#[test]
fn version_2_proposal_ignores_the_prefix_offset_without_a_prefix_area() {
    ignores_reserved(&vector("proposal_v2_only"), &[(38..40, 0xff)], proposal);
}

#[test]
fn version_1_proposal_ignores_the_version_2_offer_bits() {
    ignores_reserved(&vector("proposal_v1_ipv4"), &[(7..8, 0x0c)], proposal);
}

#[test]
fn proposal_encoder_refuses_what_the_message_cannot_hold() {
    let v2 = ProposalV2 {
        extensions: Extensions::NONE,
        gid: Gid::from_v4([10, 0, 0, 1]),
        release: 1,
        limits: Limits {
            max_conns: 255,
            max_links: 1,
        },
    };
    let mut out = [0; MAX_MESSAGE];
    let eids = [Eid::DEFAULT; 9];
    let n = |k: usize, out: &mut [u8]| {
        Proposal::encode_v2(PeerId::ZERO, &v2, eids[..k].iter().copied(), out)
    };
    assert_eq!(n(9, &mut out), Err(EncodeError::TooMany));
    assert_eq!(n(0, &mut out), Err(EncodeError::Inconsistent));
    let len = n(8, &mut out).unwrap();
    for short in 0..len {
        assert_eq!(n(8, &mut out[..short]), Err(EncodeError::NoRoom));
    }
    let v1 = ProposalV1 {
        gid: GID_V1_A,
        mac: MAC_A,
        v4_network: [0; 4],
        v4_len: 0,
        v6: &[([0; 16], 64); 9],
    };
    assert_eq!(
        Proposal::encode_v1(PEER_A, &v1, &mut out),
        Err(EncodeError::TooMany)
    );
    let none: Option<(&ProposalV2, std::iter::Empty<Eid>)> = None;
    assert_eq!(
        Proposal::encode(PEER_A, None, none, &mut out),
        Err(EncodeError::Inconsistent)
    );
}

#[test]
fn every_proposal_that_is_written_is_read_back() {
    property("proposal", 2000, |rng| {
        let peer = PeerId(rng.bytes());
        let offers = rng.range(1, 3);
        let v6: Vec<_> = (0..rng.below(9))
            .map(|_| (rng.bytes::<16>(), rng.byte()))
            .collect();
        let eids: Vec<_> = (0..rng.range(1, 8)).map(|_| Eid(rng.bytes())).collect();
        let v1 = (offers & 1 != 0).then(|| ProposalV1 {
            gid: Gid(rng.bytes()),
            mac: Mac(rng.bytes()),
            v4_network: rng.bytes(),
            v4_len: rng.below(33) as u8,
            v6: &v6,
        });
        let v2 = (offers & 2 != 0).then(|| ProposalV2 {
            extensions: Extensions::NONE,
            gid: Gid(rng.bytes()),
            release: rng.below(16) as u8,
            limits: Limits {
                max_conns: rng.byte(),
                max_links: rng.byte(),
            },
        });
        let mut out = [0; MAX_PROPOSAL];
        let n = Proposal::encode(
            peer,
            v1.as_ref(),
            v2.as_ref().map(|p| (p, eids.iter().copied())),
            &mut out,
        )
        .unwrap();
        let head = Header::decode(out[..8].try_into().unwrap()).unwrap();
        assert_eq!(head.len(), n);
        let said = proposal(&out[..n]).unwrap();
        assert_eq!(said.0 .3, peer);
        assert_eq!(said.1, v1.map(|b| (b.v4_network, b.v4_len, v6.clone())),);
        if let Some(b) = v1 {
            assert_eq!((said.0 .4, said.0 .5), (b.gid, b.mac));
        }
        let limits = |p: &ProposalV2| match p.release {
            0 => Limits::default(),
            _ => p.limits,
        };
        assert_eq!(
            said.2,
            v2.map(|b| (b.release, b.gid, limits(&b), eids.clone()))
        );
    });
}

/// The message in the Accept vectors, without its version 2 part.
fn server(first_contact: bool, gid: Gid, token: u32) -> AcceptConfirm {
    AcceptConfirm {
        kind: Kind::Accept,
        first_contact,
        peer_id: PeerId([0, 2, 2, 0, 0, 0, 0x0b, 1]),
        gid,
        mac: Mac([2, 0, 0, 0, 0x0b, 1]),
        qpn: Qpn::new(0x123).unwrap(),
        rkey: Rkey(0x1122_3344),
        rmbe_index: RmbeIndex::FIRST,
        token: AlertToken::from_peer(token),
        rmbe_size: RmbeSizeCode::DEFAULT,
        mtu: MtuCode::B1024,
        vaddr: Vaddr(0x1234_5678_9000),
        psn: Psn::truncate(0xab_cdef),
        v2: None,
    }
}

fn extension(long: bool, release: u8, os: OsType, name: &[u8], limits: Limits) -> FirstContact {
    FirstContact {
        direct: release > 0,
        os,
        release,
        hostname: Hostname::clean(name),
        long,
        limits,
        features: 0,
        extensions: Extensions::NONE,
    }
}

/// All Accept and Confirm vectors with what they say.
fn accepts() -> Vec<(&'static str, AcceptConfirm, Vec<Gid>)> {
    let v2gid = Gid::from_v4([10, 0, 0, 2]);
    let limits = Limits {
        max_conns: 128,
        max_links: 1,
    };
    let with = |mut m: AcceptConfirm, fce| {
        m.v2 = Some(V2Part {
            eid: Eid::DEFAULT,
            first_contact: fce,
        });
        m
    };
    let v1gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0, 1]);
    let long = extension(true, 1, OsType::LINUX, b"server-1", limits);
    let short = extension(false, 0, OsType::ZOS, b"ZOS1", Limits::default());
    let confirm = AcceptConfirm {
        kind: Kind::Confirm,
        first_contact: true,
        peer_id: PEER_A,
        gid: Gid::from_v4([10, 0, 0, 1]),
        mac: MAC_A,
        qpn: Qpn::new(0x456).unwrap(),
        rkey: Rkey(0x5566_7788),
        rmbe_index: RmbeIndex::FIRST,
        token: AlertToken::from_peer(9),
        rmbe_size: RmbeSizeCode::DEFAULT,
        mtu: MtuCode::B1024,
        vaddr: Vaddr(0xabcd_ef00_0000),
        psn: Psn::truncate(0x12_3456),
        v2: Some(V2Part {
            eid: Eid::DEFAULT,
            first_contact: Some(extension(true, 1, OsType::LINUX, b"client", limits)),
        }),
    };
    vec![
        ("accept_v1", server(true, v1gid, 0xcafe_babe), vec![]),
        (
            "accept_v2_first",
            with(server(true, v2gid, 0xcafe_babe), Some(long)),
            vec![],
        ),
        (
            "accept_v2_first_short",
            with(server(true, v2gid, 0xcafe_babe), Some(short)),
            vec![],
        ),
        (
            "accept_v2_next",
            with(server(false, v2gid, 7), None),
            vec![],
        ),
        (
            "confirm_v2_first",
            confirm,
            vec![Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([10, 0, 1, 1])],
        ),
    ]
}

#[test]
fn accept_and_confirm_are_read_and_written() {
    for (name, msg, gids) in accepts() {
        let bytes = vector(name);
        assert_eq!(accept(&bytes).unwrap(), (msg, gids.clone()), "{name}");
        let mut out = [0xff; MAX_ACCEPT_CONFIRM];
        let n = msg.encode(&gids, &mut out).unwrap();
        assert_eq!(out[..n], bytes[..], "{name}");
    }
}

#[test]
fn accept_and_confirm_survive_truncation_and_corruption() {
    for (name, _, _) in accepts() {
        let bytes = vector(name);
        refuses_truncations(&bytes, accept);
        // Byte 4 turns one of them into the other.
        let mut frame = frame(&bytes);
        frame[0] = 0..4;
        frame.push(5..7);
        survives_corruption(&bytes, &frame, accept);
        let mut long = bytes.clone();
        long.push(0);
        assert!(accept(&long).is_err(), "{name}: a byte too many");
    }
}

#[test]
fn reserved_bits_of_accept_and_confirm_are_ignored() {
    for (name, _, _) in accepts() {
        let bytes = vector(name);
        let mut reserved = vec![(51..52, 0xff), (60..61, 0xff)];
        if bytes.len() > 68 {
            reserved.push((96..104, 0xff));
            // Version 2 uses two bits of the header byte less than there are.
            reserved.push((7..8, 0x04));
        }
        if bytes.len() > 108 {
            reserved.push((104..105, 0x7f));
            reserved.push((106..108, 0xff));
        }
        if bytes.len() >= 160 {
            reserved.push((144..156, 0xff));
        }
        if name == "confirm_v2_first" {
            reserved.push((157..160, 0xff));
        }
        ignores_reserved(&bytes, &reserved, accept);
    }
}

#[test]
fn accept_with_an_extension_that_is_too_short_is_refused() {
    let good = vector("accept_v2_first_short");
    for cut in 1..36 {
        let mut bytes = good[..good.len() - 4 - cut].to_vec();
        bytes.extend(&good[good.len() - 4..]);
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[5..7].copy_from_slice(&len.to_be_bytes());
        assert_eq!(
            accept(&bytes).unwrap_err(),
            DecodeError::new("first_contact", Why::Length),
            "{cut} bytes less"
        );
    }
}

#[test]
fn accept_with_the_first_contact_flag_but_without_the_extension_is_refused() {
    let mut bytes = vector("accept_v2_next");
    bytes[7] |= 8;
    assert_eq!(
        accept(&bytes).unwrap_err(),
        DecodeError::new("first_contact", Why::Length)
    );
    let mut bytes = vector("accept_v2_first");
    bytes[7] &= !8;
    assert_eq!(
        accept(&bytes).unwrap_err(),
        DecodeError::new("length", Why::Length)
    );
}

#[test]
fn confirm_with_a_short_gid_list_is_refused() {
    let good = vector("confirm_v2_first");
    for count in [0, 1, 3, 16, 255] {
        let mut bytes = good.clone();
        bytes[156] = count;
        assert!(accept(&bytes).is_err(), "count {count}");
    }
}

#[test]
fn confirm_with_the_short_extension_is_read() {
    let (_, msg, gids) = accepts().pop().unwrap();
    let mut msg = msg;
    let mut v2 = msg.v2.unwrap();
    v2.first_contact = Some(extension(
        false,
        0,
        OsType::LINUX,
        b"old",
        Limits::default(),
    ));
    msg.v2 = Some(v2);
    let mut out = [0; MAX_ACCEPT_CONFIRM];
    for k in 0..=gids.len() {
        let n = msg.encode(&gids[..k], &mut out).unwrap();
        assert_eq!(n, 104 + 36 + 4 + 16 * k + 4);
        assert_eq!(accept(&out[..n]).unwrap(), (msg, gids[..k].to_vec()));
    }
}

#[test]
fn limits_below_release_1_are_not_read() {
    let mut bytes = vector("accept_v2_first");
    bytes[105] = 0x20;
    let (m, _) = accept(&bytes).unwrap();
    assert_eq!(m.extension().unwrap().limits, Limits::default());
}

#[test]
fn element_zero_and_smcd_answers_are_refused() {
    let mut bytes = vector("accept_v1");
    bytes[45] = 0;
    assert_eq!(
        accept(&bytes).unwrap_err(),
        DecodeError::new("rmbe_index", Why::Value)
    );
    let mut bytes = vector("accept_v1");
    bytes[7] |= 1;
    assert_eq!(accept(&bytes).unwrap_err().why, Why::Unsupported);
    let mut bytes = vector("accept_v1");
    let end = bytes.len() - 1;
    bytes[3] = 0xc4;
    bytes[end] = 0xc4;
    assert_eq!(accept(&bytes).unwrap_err().why, Why::Unsupported);
}

#[test]
fn accept_confirm_encoder_refuses_contradictions() {
    let (_, confirm, gids) = accepts().pop().unwrap();
    let mut out = [0; MAX_ACCEPT_CONFIRM];
    let mut m = confirm;
    m.first_contact = false;
    assert_eq!(m.encode(&gids, &mut out), Err(EncodeError::Inconsistent));
    let mut m = confirm;
    m.kind = Kind::Accept;
    assert_eq!(m.encode(&gids, &mut out), Err(EncodeError::Inconsistent));
    let many = [Gid::ZERO; MAX_GIDS + 1];
    assert_eq!(confirm.encode(&many, &mut out), Err(EncodeError::TooMany));
    let n = confirm.encode(&many[1..], &mut out).unwrap();
    assert_eq!(n, MAX_ACCEPT_CONFIRM);
    for short in 0..n {
        assert_eq!(
            confirm.encode(&many[1..], &mut out[..short]),
            Err(EncodeError::NoRoom)
        );
    }
}

#[test]
fn element_of_a_buffer_with_several_elements_is_found() {
    let mut m = server(true, Gid::ZERO, 1);
    assert_eq!(m.element(), Some(Vaddr(0x1234_5678_9000)));
    m.rmbe_index = RmbeIndex::new(3).unwrap();
    assert_eq!(m.element(), Some(Vaddr(0x1234_5678_9000 + 2 * 65536)));
    m.vaddr = Vaddr(u64::MAX - 3 * 65536);
    assert_eq!(m.element(), Some(Vaddr(u64::MAX - 65536)));
    m.vaddr = Vaddr(u64::MAX - 3 * 65536 + 1);
    assert_eq!(m.element(), None);
}

#[test]
fn declines_of_both_versions_are_read_and_written() {
    let v1 = Decline::new(Version::V1, PEER_A, DeclineReason::NOSMCDEV);
    assert_eq!(Decline::decode(&vector("decline_v1")).unwrap(), v1);
    let mut out = [0xff; DECLINE_LEN_V2];
    let n = v1.encode(&mut out).unwrap();
    assert_eq!(out[..n], vector("decline_v1")[..]);

    let v2 = Decline::decode(&vector("decline_v2")).unwrap();
    assert_eq!(
        v2,
        Decline {
            version: Version::V2,
            out_of_sync: true,
            peer_id: PEER_A,
            reason: DeclineReason::SYNCERR,
            os: OsType::ZOS,
        }
    );
    let n = v2.encode(&mut out).unwrap();
    assert_eq!(Decline::decode(&out[..n]).unwrap(), v2);
    assert_eq!(out[20..40], [[0x10].as_slice(), &[0; 19]].concat());

    let ours = Decline::new(Version::V2, PEER_A, DeclineReason::SYNCERR);
    assert!(ours.out_of_sync);
    assert_eq!(ours.os, OsType::LINUX);
}

#[test]
fn declines_survive_truncation_corruption_and_reserved_bits() {
    for name in ["decline_v1", "decline_v2"] {
        let bytes = vector(name);
        refuses_truncations(&bytes, Decline::decode);
        survives_corruption(&bytes, &frame(&bytes), Decline::decode);
        let reserved = if bytes.len() == 28 { 20..24 } else { 21..40 };
        ignores_reserved(&bytes, &[(reserved, 0xff), (7..8, 0x07)], Decline::decode);
    }
}

#[test]
fn decline_with_an_unknown_diagnosis_keeps_it() {
    let mut bytes = vector("decline_v1");
    bytes[16..20].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    let d = Decline::decode(&bytes).unwrap();
    assert_eq!(d.reason.code(), 0x1234_5678);
    assert_eq!(d.reason.name(), "UNKNOWN");
}

#[test]
fn decline_length_follows_its_version() {
    let mut bytes = vector("decline_v1");
    bytes[7] = 0x20;
    assert_eq!(Decline::decode(&bytes).unwrap_err().field, "length");
}

#[test]
fn each_decoder_refuses_the_other_messages() {
    let names = [
        "proposal_v1_ipv4",
        "accept_v1",
        "confirm_v2_first",
        "decline_v1",
    ];
    for (i, name) in names.iter().enumerate() {
        let bytes = vector(name);
        assert_eq!(proposal(&bytes).is_ok(), i == 0, "{name}");
        assert_eq!(accept(&bytes).is_ok(), i == 1 || i == 2, "{name}");
        assert_eq!(Decline::decode(&bytes).is_ok(), i == 3, "{name}");
    }
}

#[test]
fn header_is_judged_before_anything_is_read() {
    let head = |kind: u8, len: u16, last: u8| {
        let [a, b] = len.to_be_bytes();
        Header::decode(&[0xe2, 0xd4, 0xc3, 0xd9, kind, a, b, last])
    };
    for (kind, min) in [(1, 52), (2, 48), (3, 48), (4, 28)] {
        assert_eq!(head(kind, min - 1, 0x10).unwrap_err().field, "length");
        assert_eq!(head(kind, min, 0x10).unwrap().len(), usize::from(min));
        assert!(head(kind, 1024, 0x10).is_ok());
        assert_eq!(head(kind, 1025, 0x10).unwrap_err().field, "length");
        assert_eq!(head(kind, 0, 0x10).unwrap_err().field, "length");
        assert_eq!(head(kind, u16::MAX, 0x10).unwrap_err().field, "length");
        assert_eq!(head(kind, 60, 0x0f).unwrap_err().field, "version");
        assert_eq!(head(kind, 60, 0x20).unwrap().layout(), Version::V2);
        assert_eq!(head(kind, 60, 0xf0).unwrap().layout(), Version::V2);
    }
    for kind in [0, 5, 6, 255] {
        assert_eq!(head(kind, 60, 0x10).unwrap_err().field, "type");
    }
    assert_eq!(
        Header::decode(b"HTTP/1.1").unwrap_err(),
        DecodeError::new("eyecatcher", Why::Marker)
    );
    let d = Header::decode(&[0xe2, 0xd4, 0xc3, 0xc4, 1, 0, 60, 0x2b]).unwrap();
    assert!(d.is_d && !d.is_empty());
    assert_eq!((d.type_v1(), d.type_v2()), (Tech::Both, Tech::None));
}

#[test]
fn random_bytes_never_upset_a_decoder() {
    property("CLC decoders", 20_000, |rng| {
        let len = rng.below(400);
        let mut bytes = rng.vec(len);
        // Half of them get past the frame.
        if bytes.len() >= 52 && rng.one_in(2) {
            bytes[..4].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xd9]);
            bytes[4] = 1 + bytes[4] % 4;
            let len = u16::try_from(bytes.len()).unwrap();
            bytes[5..7].copy_from_slice(&len.to_be_bytes());
            let end = bytes.len() - 4;
            bytes[end..].copy_from_slice(&[0xe2, 0xd4, 0xc3, 0xd9]);
        }
        let _ = proposal(&bytes);
        let _ = accept(&bytes);
        let _ = Decline::decode(&bytes);
    });
}
