// SPDX-License-Identifier: GPL-2.0

//! Prints one of every message of the core for text2pcap: `emit clc` as TCP payload, `emit rdma`
//! as RoCEv2 payload (transport header, message, checksum of zeros).

use smc_proto_host::proto::cdc::{ConnFlags, Message, ProdFlags};
use smc_proto_host::proto::clc::{
    self, AcceptConfirm, Decline, FirstContact, Kind, Limits, Proposal, ProposalV1, ProposalV2,
    V2Part, Version, MAX_ACCEPT_CONFIRM, MAX_PROPOSAL, RELEASE,
};
use smc_proto_host::proto::cursor::Cursor;
use smc_proto_host::proto::ids::{
    AlertToken, Eid, Gid, Hostname, LinkUserId, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbeIndex,
    Vaddr,
};
use smc_proto_host::proto::llc::{
    self, AddLink, AddLinkCont, Body, ConfirmLink, ConfirmRkey, ConfirmRkeyCont, DeleteLink,
    DeleteRkey, Extension, Gids, LinkRtoken, Llc, MovedRtoken, MovedRtokens, ReqAddLink, MAX_LEN,
};
use smc_proto_host::proto::reason::DeclineReason;
use smc_proto_host::proto::size::RmbeSizeCode;

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    let messages = match what.as_str() {
        "clc" => clc(),
        "rdma" => rdma(),
        "captured-clc" => captured("_clc_"),
        "captured-rdma" => ["_llc_", "_cdc_"]
            .into_iter()
            .flat_map(captured)
            .map(|m| send_only(&m))
            .collect(),
        _ => {
            eprintln!("usage: emit clc | rdma | captured-clc | captured-rdma");
            std::process::exit(2);
        }
    };
    for m in messages {
        for (n, line) in m.chunks(16).enumerate() {
            print!("{:06x}", n * 16);
            for b in line {
                print!(" {b:02x}");
            }
            println!();
        }
        println!();
    }
}

const PEER: PeerId = PeerId([0x12, 0x34, 2, 0, 0, 0, 0, 1]);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn limits() -> Limits {
    Limits {
        max_conns: 255,
        max_links: 2,
    }
}

/// Proposals, answers and declines of both versions.
fn clc() -> Vec<Vec<u8>> {
    let mut out = vec![];
    let gid = Gid::from_v4([10, 0, 0, 1]);
    let v2 = ProposalV2 {
        extensions: clc::Extensions::NONE,
        gid,
        release: RELEASE,
        limits: limits(),
    };
    let v6 = [([0x20; 16], 64)];
    let v1 = ProposalV1 {
        gid: Gid([0xfe; 16]),
        mac: MAC,
        v4_network: [10, 0, 0, 0],
        v4_len: 24,
        v6: &[],
    };
    let v1_v6 = ProposalV1 {
        v4_network: [0; 4],
        v4_len: 0,
        v6: &v6,
        ..v1
    };
    let eids = [Eid::DEFAULT, Eid::new(b"SECOND.ID-2").unwrap()];
    let ids = || eids.iter().copied();
    let mut buf = [0; MAX_PROPOSAL];
    let mut keep = |n: usize, buf: &[u8]| out.push(buf[..n].to_vec());
    let n = Proposal::encode_v2(PEER, &v2, ids(), &mut buf).unwrap();
    keep(n, &buf);
    // Not the plain form of RFC 7609: the dissector always expects the area of later versions.
    for v1 in [v1, v1_v6] {
        let n = Proposal::encode(PEER, Some(&v1), Some((&v2, ids())), &mut buf).unwrap();
        keep(n, &buf);
    }

    let base = AcceptConfirm {
        kind: Kind::Accept,
        first_contact: true,
        peer_id: PEER,
        gid,
        mac: MAC,
        qpn: Qpn::new(0x1234).unwrap(),
        rkey: Rkey(0xaabb_ccdd),
        rmbe_index: RmbeIndex::FIRST,
        token: AlertToken::new(0x1122_3344).unwrap(),
        rmbe_size: RmbeSizeCode::DEFAULT,
        mtu: MtuCode::B1024,
        vaddr: Vaddr(0x7fff_0000_1000),
        psn: Psn::truncate(0x55_6677),
        v2: None,
    };
    let fce = FirstContact::new(true, RELEASE, Hostname::clean(b"host-a"), limits());
    let part = |first_contact| {
        Some(V2Part {
            eid: Eid::DEFAULT,
            first_contact,
        })
    };
    let mut buf = [0; MAX_ACCEPT_CONFIRM];
    let gids = [gid, Gid::from_v4([10, 0, 1, 1])];
    // Not the short extension, which the dissector does not know.
    for kind in [Kind::Accept, Kind::Confirm] {
        let v1 = AcceptConfirm { kind, ..base };
        let later = AcceptConfirm {
            kind,
            first_contact: false,
            v2: part(None),
            ..base
        };
        let first = AcceptConfirm {
            kind,
            v2: part(Some(fce)),
            ..base
        };
        for m in [v1, later, first] {
            let list = m.extension().is_some() && kind == Kind::Confirm;
            let n = m.encode(if list { &gids } else { &[] }, &mut buf).unwrap();
            keep(n, &buf);
        }
    }
    for version in [Version::V1, Version::V2] {
        for reason in [DeclineReason::NOSMCDEV, DeclineReason::SYNCERR] {
            let n = Decline::new(version, PEER, reason)
                .encode(&mut buf)
                .unwrap();
            keep(n, &buf);
        }
    }
    out
}

/// Every LLC message in each version it has, requests and answers, and CDC messages.
fn rdma() -> Vec<Vec<u8>> {
    let gid = Gid::from_v4([10, 0, 0, 1]);
    let moved = [MovedRtoken {
        reference: Rkey(1),
        rkey: Rkey(2),
        vaddr: Vaddr(0x3000),
    }; 2];
    let token = LinkRtoken {
        link_num: 2,
        rkey: Rkey(5),
        vaddr: Vaddr(0x6000),
    };
    let confirm = Body::ConfirmLink(ConfirmLink {
        mac: MAC,
        gid,
        qpn: Qpn::new(0x1234).unwrap(),
        link_num: 1,
        user_id: LinkUserId([1, 2, 3, 4]),
        max_links: 2,
        max_conns: 255,
        no_eyecatcher: true,
    });
    let add = AddLink {
        mac: MAC,
        gid,
        qpn: Qpn::new(0x77).unwrap(),
        link_num: 2,
        mtu: MtuCode::B4096,
        psn: Psn::truncate(0x1234),
        rejected: false,
        reject_reason: 0,
        ext: None,
    };
    let mut add_v2 = add;
    add_v2.ext = Some(Extension {
        direct: true,
        client_gid: gid,
        rtokens: MovedRtokens::new(&moved),
        ..Extension::default()
    });
    let mut rkey = ConfirmRkey::single(Rkey(9), Vaddr(0x9000));
    rkey.others = 1;
    rkey.other_links[0] = token;
    let keys = [Rkey(1), Rkey(2)];
    let gids = [gid, Gid::from_v4([10, 0, 1, 1])];
    let both = [
        confirm,
        Body::DeleteLink(DeleteLink::everything(true, DeleteLink::PROGRAM)),
        Body::ConfirmRkey(rkey),
        Body::TestLink(*b"0123456789abcdef"),
        Body::DeleteRkey(DeleteRkey::request(&keys)),
    ];
    let mut all = vec![];
    for version in [llc::Version::V1, llc::Version::V2] {
        for body in both {
            all.push(Llc::request(version, body));
            all.push(Llc::response(version, body));
        }
    }
    let refused = Body::AddLink(add.rejection(AddLink::NO_ALT_PATH));
    all.push(Llc::response(llc::Version::V1, refused));
    all.push(Llc::response(llc::Version::V2, refused));
    all.push(Llc::request(llc::Version::V1, Body::AddLink(add)));
    all.push(Llc::request(llc::Version::V2, Body::AddLink(add_v2)));
    all.push(Llc::request(
        llc::Version::V1,
        Body::AddLinkCont(AddLinkCont {
            link_num: 2,
            remaining: 2,
            rtokens: moved,
        }),
    ));
    all.push(Llc::request(
        llc::Version::V1,
        Body::ConfirmRkeyCont(ConfirmRkeyCont {
            remaining: 3,
            rtokens: [token; 3],
            negative: false,
        }),
    ));
    all.push(Llc::request(
        llc::Version::V2,
        Body::ReqAddLink(ReqAddLink {
            gids: Gids::new(&gids),
        }),
    ));
    let mut out: Vec<Vec<u8>> = all
        .iter()
        .map(|m| {
            let mut buf = [0; MAX_LEN];
            let n = m.encode(&mut buf).unwrap();
            buf[..n].to_vec()
        })
        .collect();
    for (pf, cf) in [(0, 0), (0xf8, 0x20), (0x80, 0xc0)] {
        let m = Message {
            seq: 258,
            token: AlertToken::new(0x1122_3344).unwrap(),
            prod: Cursor {
                wrap: 3,
                count: 1000,
            },
            cons: Cursor { wrap: 2, count: 99 },
            prod_flags: ProdFlags::from_byte(pf),
            conn_flags: ConnFlags::from_byte(cf),
        };
        out.push(m.encode().to_vec());
    }
    out.into_iter().map(|m| send_only(&m)).collect()
}

/// The captured vectors of a kind. The C implementation writes the length of LLC messages of
/// version 2 in the byte order of its machine, which tshark cannot read: it is turned round.
fn captured(kind: &str) -> Vec<Vec<u8>> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("captured_") && name.contains(kind)
        })
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|p| {
            let name = p.file_name().unwrap().to_string_lossy();
            let mut bytes: Vec<u8> = std::fs::read_to_string(p)
                .unwrap()
                .lines()
                .filter(|l| !l.starts_with('#'))
                .flat_map(str::split_whitespace)
                .map(|b| u8::from_str_radix(b, 16).unwrap())
                .collect();
            if name.starts_with("captured_c_llc_") && bytes[1..3] == [44, 0] {
                bytes.swap(1, 2);
            }
            bytes
        })
        .collect()
}

/// A reliable SEND in one packet: base transport header, payload, checksum.
fn send_only(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![4, 0x40, 0xff, 0xff, 0, 0, 0x12, 0x34, 0x80, 0, 0, 1];
    out.extend(payload);
    out.extend([0; 4]);
    out
}
