// SPDX-License-Identifier: GPL-2.0

//! Physical network ids and size statistics.

use crate::proto::error::Why;
use crate::proto::pnet::*;
use crate::proto::stats::{bucket, BUCKETS};

fn id(name: &str) -> PnetId {
    PnetId::new(name.as_bytes()).unwrap()
}

#[test]
fn ids_are_letters_and_digits_in_upper_case() {
    assert_eq!(id("net1").as_bytes(), b"NET1            ");
    assert_eq!(id("NET1  "), id("net1"));
    assert_eq!(id("A").name(), b"A");
    assert_eq!(id("0123456789ABCDEF").name().len(), 16);
    for (bad, why) in [
        ("", Why::Length),
        ("   ", Why::Length),
        ("0123456789ABCDEFG", Why::Length),
        ("A B", Why::Value),
        (" A", Why::Value),
        ("A-B", Why::Value),
        ("\u{e4}", Why::Value),
    ] {
        assert_eq!(PnetId::new(bad.as_bytes()).unwrap_err().why, why, "{bad:?}");
    }
}

#[test]
fn names_and_ports_are_bounded() {
    let ok = |t: Target<'_>| t.check().is_ok();
    assert!(ok(Target::Eth(b"eth0")));
    assert!(ok(Target::Eth(&[b'a'; 15])));
    assert!(!ok(Target::Eth(&[b'a'; 16])));
    assert!(!ok(Target::Eth(b"")));
    assert!(ok(Target::Ib(&[b'a'; 63], 2)));
    assert!(!ok(Target::Ib(&[b'a'; 64], 1)));
    assert!(!ok(Target::Ib(b"rxe0", 0)));
    assert!(!ok(Target::Ib(b"rxe0", 3)));
}

#[test]
fn hardware_outranks_the_table_and_the_lowest_device_the_upper_one() {
    let rows = [
        Row {
            id: id("UPPER"),
            target: Target::Eth(b"bond0"),
        },
        Row {
            id: id("LOWER"),
            target: Target::Eth(b"eth0"),
        },
        Row {
            id: id("PORT2"),
            target: Target::Ib(b"rxe0", 2),
        },
    ];
    let of = |hardware, base: &str, name: &str| {
        interface_id(
            hardware,
            rows.iter().copied(),
            base.as_bytes(),
            name.as_bytes(),
        )
    };
    assert_eq!(of(Some(id("HW")), "eth0", "bond0"), Some(id("HW")));
    assert_eq!(of(None, "eth0", "bond0"), Some(id("LOWER")));
    assert_eq!(of(None, "eth1", "bond0"), Some(id("UPPER")));
    assert_eq!(of(None, "eth1", "eth1"), None);
    let ib = |port| lookup(rows.iter().copied(), &Target::Ib(b"rxe0", port));
    assert_eq!(ib(2), Some(id("PORT2")));
    assert_eq!(ib(1), None);
}

#[test]
fn port_serves_by_id_or_by_being_the_interface_itself() {
    let port = |usable, id, own| Port { usable, id, own };
    let (a, b) = (Some(id("A")), Some(id("B")));
    let rows = [
        (a, port(true, a, false), true),
        (a, port(true, b, true), false),
        (a, port(true, None, true), false),
        (a, port(false, a, true), false),
        (None, port(true, None, true), true),
        (None, port(true, a, true), true),
        (None, port(true, None, false), false),
        (None, port(true, a, false), false),
        (None, port(false, None, true), false),
    ];
    for (interface, p, want) in rows {
        assert_eq!(serves(interface, &p), want, "{interface:?} {p:?}");
    }
}

#[test]
fn sizes_fall_into_classes_of_doubling_width() {
    const K: u64 = 1024;
    for (bytes, want) in [
        (0, 0),
        (1, 0),
        (8 * K, 0),
        (8 * K + 1, 1),
        (16 * K, 1),
        (16 * K + 1, 2),
        (32 * K, 2),
        (64 * K, 3),
        (128 * K, 4),
        (256 * K, 5),
        (512 * K, 6),
        (1024 * K, 7),
        (1024 * K + 1, 8),
        (u64::MAX, BUCKETS - 1),
    ] {
        assert_eq!(bucket(bytes), want, "{bytes}");
    }
}
