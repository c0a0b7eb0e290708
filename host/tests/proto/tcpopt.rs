// SPDX-License-Identifier: GPL-2.0

//! Finding and adding the TCP option (RFC 7609, section 3.1 and appendix A.1).

use crate::proto::tcpopt::*;

use crate::common::property;

/// MSS, SACK permitted, timestamps, filler, window scale: what Linux sends.
const LINUX: [u8; 20] = [
    2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
];

const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// A header with these flags and options; options are a multiple of 4 bytes.
fn header(flags: u8, options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let mut h = vec![0; 20];
    h[12] = (u8::try_from((20 + options.len()) / 4).unwrap() << 4) | 0x0a;
    h[13] = flags;
    h.extend(options);
    h
}

/// Does what an edit says.
fn apply(header: &[u8], edit: &Edit) -> Vec<u8> {
    let mut out = header.to_vec();
    let tail = out.split_off(edit.insert_at);
    out.extend(edit.bytes);
    out.extend(tail);
    out[12] = edit.offset_byte;
    out
}

#[test]
fn option_is_added_to_syn_and_syn_ack() {
    for flags in [SYN, SYN | ACK, SYN | 0xc0] {
        let h = header(flags, &LINUX);
        let edit = plan(&h, false).unwrap();
        assert_eq!(edit.new_len, 48);
        assert_eq!(edit.offset_byte, 0xca);
        let new = apply(&h, &edit);
        assert_eq!(new.len(), 48);
        assert_eq!(new[40..], [1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]);
        assert_eq!(new[20..40], LINUX);
        assert!(offered(&new));
        assert!(!offered(&h));
        assert_eq!(find(&new[20..]), Some(Found { offset: 22, len: 6 }));
        assert_eq!(plan(&new, false), Err(Refusal::Present));
    }
}

#[test]
fn bytes_behind_the_header_do_not_matter() {
    let mut h = header(SYN, &LINUX);
    let want = plan(&h, false).unwrap();
    h.extend([0xff; 30]);
    assert_eq!(plan(&h, false), Ok(want));
}

#[test]
fn other_segments_stay_as_they_are() {
    for flags in [0, ACK, ACK | 8, SYN | 1, SYN | 4, 4, ACK | 1] {
        assert_eq!(plan(&header(flags, &LINUX), false), Err(Refusal::NotSyn));
    }
    assert!(!offered(&header(ACK, &BYTES)));
}

#[test]
fn refusals_name_the_cause() {
    let rows: &[(&str, &[u8], Refusal)] = &[
        (
            "MD5",
            &[19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1],
            Refusal::Signed,
        ),
        ("AO", &[29, 4, 1, 1], Refusal::Signed),
        (
            "end of list",
            &[2, 4, 5, 0xb4, 0, 0, 0, 0],
            Refusal::EndOfList,
        ),
        ("length 0", &[2, 0, 1, 1], Refusal::Malformed),
        ("length 1", &[2, 1, 1, 1], Refusal::Malformed),
        ("runs over", &[1, 1, 8, 10], Refusal::Malformed),
        ("kind alone", &[1, 1, 1, 8], Refusal::Malformed),
    ];
    for (what, options, want) in rows {
        assert_eq!(plan(&header(SYN, options), false), Err(*want), "{what}");
    }
    assert_eq!(plan(&header(SYN, &LINUX), true), Err(Refusal::Data));
}

#[test]
fn header_never_exceeds_60_bytes() {
    for words in 0..=10usize {
        let options = vec![1; words * 4];
        let got = plan(&header(SYN, &options), false);
        if words <= 8 {
            assert_eq!(got.unwrap().new_len, 28 + words * 4);
        } else {
            assert_eq!(got, Err(Refusal::NoRoom), "{words}");
        }
    }
}

#[test]
fn incomplete_headers_are_malformed() {
    let h = header(SYN, &LINUX);
    for n in 0..h.len() {
        assert_eq!(plan(&h[..n], false), Err(Refusal::Malformed), "{n}");
    }
    for words in 0..5 {
        let mut short = header(SYN, &[]);
        short[12] = words << 4;
        assert_eq!(plan(&short, false), Err(Refusal::Malformed));
    }
}

#[test]
fn finder_tolerates_what_linux_tolerates() {
    let smc = [254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
    assert_eq!(find(&smc), Some(Found { offset: 0, len: 6 }));
    assert_eq!(find(&[]), None);
    // Longer, with an even length.
    assert!(find(&[254, 8, 0xe2, 0xd4, 0xc3, 0xd9, 0, 0]).is_some());
    assert!(find(&[254, 7, 0xe2, 0xd4, 0xc3, 0xd9, 0]).is_none());
    // Another experiment first.
    let two = [[254, 4, 0xf9, 0x89].as_slice(), &smc].concat();
    assert_eq!(find(&two), Some(Found { offset: 4, len: 6 }));
    // Cut off, other magic, behind the end of the list.
    assert!(find(&smc[..5]).is_none());
    assert!(find(&[254, 6, 0xe2, 0xd4, 0xc3, 0xd8]).is_none());
    assert!(find(&[[0].as_slice(), &smc].concat()).is_none());
    assert!(find(&[[2, 0].as_slice(), &smc].concat()).is_none());
    // The SMC-D magic was never used in the option.
    assert!(find(&[254, 6, 0xe2, 0xd4, 0xc3, 0xc4]).is_none());
}

#[test]
fn any_header_gives_a_legal_plan_or_a_refusal() {
    property("TCP option", 40_000, |rng| {
        let len = rng.below(70);
        let mut bytes = rng.vec(len);
        if rng.one_in(2) && bytes.len() > 14 {
            bytes[13] = SYN;
            // A list that is mostly fillers goes further.
            for b in &mut bytes[14..] {
                if rng.one_in(2) {
                    *b = 1;
                }
            }
        }
        let _ = find(&bytes);
        let _ = offered(&bytes);
        if let Ok(edit) = plan(&bytes, false) {
            assert!(edit.new_len <= 60);
            assert_eq!(edit.insert_at + 8, edit.new_len);
            assert_eq!(usize::from(edit.offset_byte >> 4) * 4, edit.new_len);
            assert!(offered(&apply(&bytes, &edit)));
        }
    });
}
