// SPDX-License-Identifier: GPL-2.0

//! Whether two hosts are on the same network, as version 1 asks (RFC 7609, section 3.5.1.2).

use std::net::IpAddr;

use crate::proto::clc::*;
use crate::proto::ids::*;
use crate::proto::reason::DeclineReason as Reason;

use crate::common::property;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A subnet by an address in it.
fn subnet(text: &str) -> Subnet {
    let (address, len) = text.split_once('/').unwrap();
    Subnet::new(ip(address), len.parse().unwrap()).unwrap()
}

fn subnets(list: &str) -> impl Iterator<Item = Subnet> + Clone + '_ {
    list.split_whitespace().map(subnet)
}

/// What a client at `local` with these subnets sends, and what a server at `at` with its own says to it.
fn meet(local: &str, client: &str, at: &str, server: &str) -> Option<Result<(), Reason>> {
    let offered = OfferedSubnets::new(ip(local), subnets(client))?;
    let v1 = offered.proposal(Gid([1; 16]), Mac([2; 6]));
    let mut out = [0; MAX_PROPOSAL];
    let n = Proposal::encode_v1(PeerId([3; 8]), &v1, &mut out).unwrap();
    let read = Proposal::decode(&out[..n]).unwrap();
    Some(read.prefixes.unwrap().check(ip(at), subnets(server)))
}

#[test]
fn lengths_that_no_subnet_has_are_none() {
    for (address, len, is) in [
        ("10.0.0.1", 0, false),
        ("10.0.0.1", 1, true),
        ("10.0.0.1", 32, true),
        ("10.0.0.1", 33, false),
        ("10.0.0.1", 255, false),
        ("fd00::1", 0, false),
        ("fd00::1", 1, true),
        ("fd00::1", 128, true),
        ("fd00::1", 129, false),
        ("fd00::1", 255, false),
    ] {
        assert_eq!(
            Subnet::new(ip(address), len).is_some(),
            is,
            "{address}/{len}"
        );
    }
}

#[test]
fn a_subnet_contains_what_has_its_prefix() {
    for (of, address, is) in [
        ("10.1.2.3/24", "10.1.2.0", true),
        ("10.1.2.3/24", "10.1.2.255", true),
        ("10.1.2.3/24", "10.1.3.3", false),
        ("10.1.2.3/31", "10.1.2.2", true),
        ("10.1.2.3/31", "10.1.2.1", false),
        ("10.1.2.3/32", "10.1.2.3", true),
        ("10.1.2.3/32", "10.1.2.2", false),
        ("128.0.0.0/1", "255.0.0.0", true),
        ("128.0.0.0/1", "127.255.255.255", false),
        ("fd00:1::5/64", "fd00:1::6", true),
        ("fd00:1::5/64", "fd00:1:0:1::5", false),
        ("fd00:1::5/128", "fd00:1::5", true),
        ("10.1.2.3/24", "::ffff:10.1.2.3", false),
    ] {
        assert_eq!(subnet(of).contains(ip(address)), is, "{of} {address}");
    }
}

#[test]
fn hosts_of_one_subnet_meet_and_others_do_not() {
    let near = Some(Ok(()));
    let far = Some(Err(Reason::DIFFPREFIX));
    for (what, local, client, at, server, want) in [
        (
            "one subnet",
            "10.1.2.3",
            "10.1.2.3/24",
            "10.1.2.9",
            "10.1.2.9/24",
            near,
        ),
        (
            "another",
            "10.1.2.3",
            "10.1.2.3/24",
            "10.1.3.9",
            "10.1.3.9/24",
            far,
        ),
        (
            "another mask",
            "10.1.2.3",
            "10.1.2.3/24",
            "10.1.2.9",
            "10.1.2.9/25",
            far,
        ),
        (
            "the second of the server",
            "10.1.2.3",
            "10.1.2.3/24",
            "10.9.9.9",
            "10.9.9.9/8 10.1.2.9/24",
            near,
        ),
        (
            "the client's own counts",
            "10.1.2.3",
            "10.2.2.3/24 10.1.2.3/24",
            "10.2.2.9",
            "10.2.2.9/24",
            far,
        ),
        (
            "the server has none",
            "10.1.2.3",
            "10.1.2.3/24",
            "10.1.2.9",
            "",
            far,
        ),
        (
            "one of ipv6",
            "fd01::3",
            "fd01::3/64",
            "fd01::9",
            "fd01::9/64",
            near,
        ),
        (
            "any of ipv6",
            "fd01::3",
            "fd01::3/64 fd02::3/48",
            "fd01::9",
            "fd03::9/64 fd02::9/48",
            near,
        ),
        (
            "another of ipv6",
            "fd01::3",
            "fd01::3/64",
            "fd02::9",
            "fd02::9/64",
            far,
        ),
        (
            "another length",
            "fd01::3",
            "fd01::3/64",
            "fd01::9",
            "fd01::9/63",
            far,
        ),
        (
            "only of the other kind",
            "10.1.2.3",
            "10.1.2.3/24",
            "fd01::9",
            "10.1.2.9/24",
            far,
        ),
        (
            "of both kinds",
            "fd01::3",
            "10.1.2.3/24 fd01::3/64",
            "fd01::9",
            "10.1.2.9/24 fd01::9/64",
            near,
        ),
        // Every link has it, so it says nothing.
        (
            "a link's own",
            "fe80::3",
            "fe80::3/64 fd01::3/64",
            "fe80::9",
            "fe80::9/64",
            far,
        ),
    ] {
        assert_eq!(meet(local, client, at, server), want, "{what}");
    }
}

#[test]
fn without_a_subnet_there_is_nothing_to_offer() {
    for (local, client) in [
        ("10.1.2.3", ""),
        ("10.1.2.3", "10.1.3.3/24 fd01::3/64"),
        ("fd01::3", ""),
        ("fd01::3", "10.1.2.3/24"),
        ("fe80::3", "fe80::3/64"),
    ] {
        assert_eq!(
            OfferedSubnets::new(ip(local), subnets(client)),
            None,
            "{local} {client}"
        );
    }
}

#[test]
fn no_more_prefixes_are_listed_than_a_message_has() {
    let many: Vec<_> = (0..20)
        .map(|n| subnet(&format!("fd00:{n:x}::1/48")))
        .collect();
    for count in 0..20 {
        let got = OfferedSubnets::new(ip("fd00::1"), many.iter().copied().take(count));
        let listed = got.map_or(0, |o| o.proposal(Gid([1; 16]), Mac([1; 6])).v6.len());
        assert_eq!(listed, count.min(MAX_PREFIXES));
    }
}

#[test]
fn bits_behind_the_prefix_do_not_count() {
    let v6 = [([0xfd; 16], 20)];
    let v1 = ProposalV1 {
        gid: Gid([1; 16]),
        mac: Mac([2; 6]),
        v4_network: [10, 1, 2, 99],
        v4_len: 24,
        v6: &v6,
    };
    let mut out = [0; MAX_PROPOSAL];
    let n = Proposal::encode_v1(PeerId([3; 8]), &v1, &mut out).unwrap();
    let area = Proposal::decode(&out[..n]).unwrap().prefixes.unwrap();
    assert_eq!(area.check(ip("10.1.2.5"), subnets("10.1.2.5/24")), Ok(()));
    assert_eq!(area.check(ip("fdfd::1"), subnets("fdfd:f000::/20")), Ok(()));
    let far = area.check(ip("fdfd::1"), subnets("fdfd:e000::/20"));
    assert_eq!(far, Err(Reason::DIFFPREFIX));
}

#[test]
fn two_hosts_of_a_subnet_always_meet() {
    property("subnet", 2000, |rng| {
        let v6 = rng.below(2) == 0;
        let address = |bytes: [u8; 16]| -> IpAddr {
            if v6 {
                let mut bytes = bytes;
                bytes[0] = 0xfd;
                bytes.into()
            } else {
                IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
        };
        let (one, len) = (
            address(rng.bytes()),
            rng.range(1, if v6 { 128 } else { 32 }) as u8,
        );
        let net = Subnet::new(one, len).unwrap();
        let other = address(rng.bytes());
        assert_eq!(net.contains(other), Subnet::new(other, len) == Some(net));
        let offered = OfferedSubnets::new(one, std::iter::once(net)).unwrap();
        let v1 = offered.proposal(Gid([1; 16]), Mac([2; 6]));
        let mut out = [0; MAX_PROPOSAL];
        let n = Proposal::encode_v1(PeerId::ZERO, &v1, &mut out).unwrap();
        let area = Proposal::decode(&out[..n]).unwrap().prefixes.unwrap();
        let theirs = Subnet::new(other, len);
        let met = area.check(other, theirs.into_iter()).is_ok();
        assert_eq!(met, net.contains(other));
        assert!(area.check(one, std::iter::once(net)).is_ok());
    });
}
