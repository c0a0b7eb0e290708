// SPDX-License-Identifier: GPL-2.0

//! The CDC message against a vector, truncation, corruption and reserved bits.

use crate::proto::cdc::*;
use crate::proto::cursor::Cursor;
use crate::proto::error::{EncodeError, Why};
use crate::proto::ids::AlertToken;

use crate::common::{ignores_reserved, property, refuses_truncations, survives_corruption, vector};

#[test]
fn message_is_read_and_written() {
    let bytes = vector("cdc");
    let want = Message {
        seq: 1,
        token: AlertToken::from_peer(0xcafe_babe),
        prod: Cursor {
            wrap: 1,
            count: 10_000,
        },
        cons: Cursor {
            wrap: 0xffff,
            count: 1000,
        },
        prod_flags: ProdFlags {
            write_blocked: true,
            urgent_pending: true,
            urgent_present: true,
            update_requested: false,
            failover_validation: false,
        },
        conn_flags: ConnFlags {
            sending_done: true,
            closed: false,
            abort: false,
        },
    };
    assert_eq!(Message::decode(&bytes).unwrap(), want);
    assert_eq!(want.encode()[..], bytes[..]);
}

#[test]
fn message_survives_truncation_corruption_and_reserved_bits() {
    let bytes = vector("cdc");
    refuses_truncations(&bytes, Message::decode);
    survives_corruption(&bytes, &[0..1, 1..2], Message::decode);
    ignores_reserved(
        &bytes,
        &[
            (8..10, 0xff),
            (16..18, 0xff),
            (24..25, 0x07),
            (25..26, 0x1f),
            (26..44, 0xff),
        ],
        Message::decode,
    );
}

#[test]
fn bytes_behind_the_message_are_ignored() {
    let mut bytes = vector("cdc");
    let want = Message::decode(&bytes).unwrap();
    bytes.extend([0xaa; 20]);
    assert_eq!(Message::decode(&bytes).unwrap(), want);
}

#[test]
fn wrong_marker_and_length_are_named() {
    let mut bytes = vector("cdc");
    bytes[1] = 43;
    let e = Message::decode(&bytes).unwrap_err();
    assert_eq!((e.field, e.why), ("length", Why::Length));
    bytes[0] = 1;
    let e = Message::decode(&bytes).unwrap_err();
    assert_eq!((e.field, e.why), ("type", Why::Marker));
}

#[test]
fn every_flag_byte_keeps_its_defined_bits() {
    for b in 0..=255 {
        assert_eq!(ProdFlags::from_byte(b).to_byte(), b & 0xf8);
        assert_eq!(ConnFlags::from_byte(b).to_byte(), b & 0xe0);
        assert_eq!(ConnFlags::from_byte(b).any(), b & 0xe0 != 0);
    }
}

#[test]
fn every_message_is_read_back() {
    property("CDC message", 2000, |rng| {
        let cursor = |rng: &mut crate::common::Rng| Cursor {
            wrap: u16::from_be_bytes(rng.bytes()),
            count: u32::from_be_bytes(rng.bytes()),
        };
        let m = Message {
            seq: u16::from_be_bytes(rng.bytes()),
            token: AlertToken::from_peer(u32::from_be_bytes(rng.bytes())),
            prod: cursor(rng),
            cons: cursor(rng),
            prod_flags: ProdFlags::from_byte(rng.byte()),
            conn_flags: ConnFlags::from_byte(rng.byte()),
        };
        let bytes = m.encode();
        assert_eq!(Message::decode(&bytes).unwrap(), m);
        let mut small = [0; 43];
        assert_eq!(m.encode_into(&mut small), Err(EncodeError::NoRoom));
    });
}
