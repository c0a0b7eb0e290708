// SPDX-License-Identifier: GPL-2.0

//! Numbers, names, size classes, reasons.

use crate::proto::error::*;
use crate::proto::ids::*;
use crate::proto::reason::DeclineReason;
use crate::proto::size::*;
use crate::proto::wire::{Reader, Writer};

#[test]
fn default_enterprise_id_is_valid() {
    assert!(Eid::DEFAULT.is_valid());
    assert_eq!(Eid::DEFAULT.name(), b"SMC-RS.DEFAULT");
    assert_eq!(Eid::new(b"SMC-RS.DEFAULT").unwrap(), Eid::DEFAULT);
}

#[test]
fn enterprise_ids_follow_their_rules() {
    let long = [b'A'; 32];
    for good in [b"A".as_slice(), b"0", b"A.B-C", &long, b"AB   "] {
        assert!(Eid::new(good).is_ok(), "{good:?}");
    }
    let longer = [b'A'; 33];
    for bad in [
        b"".as_slice(),
        b" A",
        b".A",
        b"-A",
        b"a",
        b"A_B",
        b"A B",
        b"A\0",
        b"\xc4",
        &longer,
    ] {
        assert!(Eid::new(bad).is_err(), "{bad:?}");
    }
    assert!(!Eid([0; 32]).is_valid());
}

#[test]
fn host_names_are_cleaned() {
    assert_eq!(Hostname::clean(b"host\0\0").name(), b"host");
    assert_eq!(Hostname::clean(b"a\x1b[31mb\n").name(), b"a.[31mb.");
    assert_eq!(Hostname::clean(b"two words").name(), b"two.words");
    assert_eq!(Hostname::clean(&[b'x'; 64]).as_bytes(), &[b'x'; 32]);
    assert_eq!(Hostname::clean(b""), Hostname::default());
    let once = Hostname::clean(b"n\xff");
    assert_eq!(Hostname::clean(once.as_bytes()), once);
}

#[test]
fn numbers_keep_their_width() {
    assert_eq!(Qpn::new(0xff_ffff).map(Qpn::get), Some(0xff_ffff));
    assert_eq!(Qpn::new(0x100_0000), None);
    assert_eq!(Qpn::truncate(0x1234_5678).get(), 0x34_5678);
    assert_eq!(Psn::truncate(u32::MAX).get(), 0xff_ffff);
    let usable = |v| Qpn::new(v).unwrap().is_usable();
    assert_eq!(
        [0, 1, 2, 0xff_fffe, 0xff_ffff].map(usable),
        [false, false, true, true, false]
    );
    assert_eq!(RmbeIndex::new(0), None);
    assert_eq!(LinkId::new(0), None);
    assert_eq!(AlertToken::new(0), None);
    assert_eq!(AlertToken::new(u32::MAX).unwrap().next().get(), 1);
    assert_eq!(AlertToken::from_peer(0).next().get(), 1);
}

#[test]
fn gids_speak_with_their_own_family() {
    let v4 = [Gid::from_v4([10, 0, 0, 1]), Gid::from_v4([192, 0, 2, 1])];
    let mut near = [0; 16];
    [near[0], near[1], near[15]] = [0xfe, 0x80, 1];
    let v6 = [Gid(near), Gid([0x20; 16])];
    for a in [v4, v6].concat() {
        for b in [v4, v6].concat() {
            assert_eq!(
                a.speaks_with(b),
                v4.contains(&a) == v4.contains(&b),
                "{a:?} {b:?}"
            );
        }
        assert!(!a.speaks_with(Gid::ZERO));
    }
}

#[test]
fn gids_of_ipv4_are_mapped() {
    let g = Gid::from_v4([192, 0, 2, 1]);
    assert_eq!(g.as_v4(), Some([192, 0, 2, 1]));
    assert_eq!(Gid([1; 16]).as_v4(), None);
    assert_eq!(Gid::ZERO.as_v4(), None);
    assert!(Gid::ZERO.is_zero() && !g.is_zero());
    assert!(Mac::ZERO.is_zero() && !Mac([1; 6]).is_zero());
    assert_eq!(
        PeerId::new([9, 8], Mac([1, 2, 3, 4, 5, 6])).0,
        [9, 8, 1, 2, 3, 4, 5, 6]
    );
}

#[test]
fn mtu_codes_agree_on_the_smaller_valid_one() {
    for a in 0..16 {
        for b in 0..16 {
            let got = MtuCode::from_nibble(a).agree(MtuCode::from_nibble(b));
            let valid = |v| (1..=5).contains(&v);
            let want = (valid(a) && valid(b)).then(|| a.min(b));
            assert_eq!(got.map(MtuCode::get), want, "{a} {b}");
        }
    }
    let bytes: Vec<_> = (0..=6).map(|v| MtuCode::from_nibble(v).bytes()).collect();
    let want = [
        None,
        Some(256),
        Some(512),
        Some(1024),
        Some(2048),
        Some(4096),
        None,
    ];
    assert_eq!(bytes, want);
}

#[test]
fn size_classes_cover_every_request() {
    for (bytes, code) in [
        (0, 0),
        (1, 0),
        (16_384, 0),
        (16_385, 1),
        (32_768, 1),
        (65_536, 2),
        (65_537, 3),
        (1 << 29, 15),
        ((1 << 29) + 1, 15),
        (u32::MAX, 15),
    ] {
        assert_eq!(RmbeSizeCode::at_least(bytes).get(), code, "{bytes}");
    }
    for code in 0..16 {
        let c = RmbeSizeCode::from_nibble(code);
        assert_eq!(c.bytes(), 16_384 << code);
        assert_eq!(RmbeSizeCode::at_least(c.bytes()), c);
    }
}

#[test]
fn socket_buffers_ask_for_half_their_value() {
    assert_eq!(
        RmbeSizeCode::for_socket_buffer(131_072),
        RmbeSizeCode::DEFAULT
    );
    assert_eq!(RmbeSizeCode::for_socket_buffer(131_073).get(), 3);
    assert_eq!(RmbeSizeCode::for_socket_buffer(0), RmbeSizeCode::MIN);
    assert_eq!(RmbeSizeCode::for_socket_buffer(u32::MAX), RmbeSizeCode::MAX);
    let limit = RmbeSizeCode::from_nibble(4);
    assert_eq!(
        RmbeSizeCode::for_socket_buffer_within(u32::MAX, limit),
        limit
    );
    assert_eq!(
        RmbeSizeCode::for_socket_buffer_within(40_000, limit).get(),
        1
    );
}

#[test]
fn degradation_ends_at_16_kib() {
    let order: Vec<u8> = RmbeSizeCode::from_nibble(3)
        .degrade()
        .map(RmbeSizeCode::get)
        .collect();
    assert_eq!(order, [3, 2, 1, 0]);
    assert_eq!(RmbeSizeCode::MIN.smaller(), None);
}

#[test]
fn update_limit_is_a_tenth_within_bounds() {
    // RFC 7609, section 4.5.1, example c: 6.4 KiB of 64 KiB.
    assert_eq!(update_limit(65_536), 6553);
    assert_eq!(update_limit(16_384), 2304);
    assert_eq!(update_limit(1 << 20), 104_857);
    assert_eq!(update_limit(4096), 2048);
    assert_eq!(update_limit(1), 1);
    assert_eq!(update_limit(0), 1);
}

#[test]
fn reasons_have_distinct_names_and_ascending_codes() {
    let all: Vec<_> = DeclineReason::all().collect();
    assert_eq!(all.len(), 37);
    assert!(all.windows(2).all(|w| w[0] < w[1]));
    for r in &all {
        assert_eq!(DeclineReason::from_code(r.code()), *r);
        assert_eq!(all.iter().filter(|o| o.name() == r.name()).count(), 1);
        assert!(!r.describe().is_empty());
        assert!(!r.remedy().is_empty());
    }
    assert_eq!(DeclineReason::from_code(7).name(), "UNKNOWN");
    assert_eq!(DeclineReason::from_code(7).describe(), "unknown reason");
    assert_ne!(
        DeclineReason::from_code(7).remedy(),
        DeclineReason::NOUEID.remedy()
    );
    assert_eq!(DeclineReason::from_code(7).code(), 7);
    assert_eq!(DeclineReason::NOUEID.code(), 0x0303_0008);
    assert_eq!(DeclineReason::PEERDECL.name(), "PEERDECL");
}

#[test]
fn reasons_that_may_pass_are_those_of_the_moment() {
    let passing: Vec<_> = DeclineReason::all()
        .filter(|r| r.is_passing())
        .map(DeclineReason::name)
        .collect();
    assert_eq!(
        passing,
        [
            "MEM",
            "TIMEOUT_CL",
            "TIMEOUT_AL",
            "NOACTLINK",
            "NOSRVLINK",
            "SYNCERR",
            "INTERR",
            "ERR_RTOK",
            "ERR_RDYLNK",
            "ERR_REGBUF"
        ]
    );
}

#[test]
fn reader_and_writer_stop_at_the_end() {
    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    let mut r = Reader::new(&bytes);
    assert_eq!(r.u8("a"), Ok(1));
    assert_eq!(r.be24("b"), Ok(0x02_0304));
    assert_eq!(r.be32("c"), Ok(0x0506_0708));
    assert_eq!(r.u8("d"), Err(DecodeError::truncated("d")));
    assert_eq!(Reader::new(&bytes).be64("e"), Ok(0x0102_0304_0506_0708));
    assert!(Reader::at(&bytes, 9, "f").is_err());
    assert_eq!(Reader::at(&bytes, 8, "g").unwrap().remaining(), 0);
    assert!(Reader::new(&bytes).skip(usize::MAX, "h").is_err());

    let mut out = [0xff; 4];
    let mut w = Writer::new(&mut out);
    assert!(w.is_empty());
    w.be24(0xff01_0203).unwrap();
    assert_eq!(w.pad_to(2), Err(EncodeError::Inconsistent));
    assert_eq!(w.be16(1), Err(EncodeError::NoRoom));
    w.pad_to(4).unwrap();
    assert_eq!(w.zeros(usize::MAX), Err(EncodeError::NoRoom));
    assert_eq!(w.len(), 4);
    assert_eq!(out, [1, 2, 3, 0]);
}

#[test]
fn errors_convert_into_one() {
    use crate::proto::close::{Event, InvalidTransition, State};
    use crate::proto::conn::ConnViolation;
    let d = DecodeError::new("x", Why::Value);
    let t = InvalidTransition {
        from: State::Init,
        event: Event::PeerDone,
    };
    assert_eq!(ProtoError::from(d), ProtoError::Decode(d));
    assert_eq!(
        ProtoError::from(EncodeError::NoRoom),
        ProtoError::Encode(EncodeError::NoRoom)
    );
    assert_eq!(
        ProtoError::from(ConnViolation::DataLost),
        ProtoError::Violation(ConnViolation::DataLost)
    );
    assert_eq!(ProtoError::from(t), ProtoError::Transition(t));
    assert_eq!(
        ProtoError::from(DeclineReason::MEM),
        ProtoError::Decline(DeclineReason::MEM)
    );
}

#[test]
fn defaults_are_what_their_names_say() {
    use crate::proto::close::Machine;
    assert_eq!(RmbeSizeCode::default().bytes(), 65_536);
    assert_eq!(Machine::default(), Machine::new());
    assert!(!Machine::new().peer_closed());
    assert_eq!(LinkUserId::from_number(0x0102_0304).0, [1, 2, 3, 4]);
}

#[test]
fn work_requests_step_down_to_the_default() {
    let of = |send, receive| WorkRequests { send, receive };
    for (from, to) in [
        (of(2048, 2048), Some(of(1024, 1024))),
        (of(20, 50), Some(of(16, 48))),
        (of(2048, 2), Some(of(1024, 2))),
        (of(2, 96), Some(of(2, 48))),
        (WorkRequests::DEFAULT, None),
        (of(2, 2), None),
    ] {
        assert_eq!(from.fewer(), to);
    }
    let steps = std::iter::successors(Some(of(2048, 2048)), |n| n.fewer());
    assert_eq!(steps.last(), Some(WorkRequests::DEFAULT));
}
