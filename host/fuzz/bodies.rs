// SPDX-License-Identifier: GPL-2.0

//! What each fuzz target does with its input; a property that does not hold is a panic.
//!
//! `fuzz_targets/` hands in what libFuzzer makes up, `tests/proto/fuzz.rs` what is in `corpus/`
//! and `vectors/`. A target is a function of this table and a file of its name in
//! `fuzz_targets/`.

use crate::proto::cdc::Message;
use crate::proto::clc::{
    self, check_accept, check_confirm, choose, AcceptConfirm, Choice, Decline, FirstContact,
    Header, Kind, Limits, Offer, Proposal, ProposalV1, ProposalV2, ServerPolicy, Subnet, Tech,
    V2Part,
};
use crate::proto::conn::Urgent;
use crate::proto::group::{
    respond, Context, Exchange, FlowId, Flows, LlcReply, Next, RtokenEntry, RtokenTable,
    TokenExchange, Told, Turn, Verdict, LINK_SLOTS,
};
use crate::proto::ids::{
    AlertToken, Eid, Gid, Hostname, LinkId, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbeIndex, Role,
    Vaddr,
};
use crate::proto::llc::{self, Llc, MovedRtoken};
use crate::proto::size::RmbeSizeCode;
use crate::proto::{tcpopt, DeclineReason};
use crate::sim::{Pair, Setup, CLOSED, DONE};

/// What a target does with an input.
pub type Body = fn(&[u8]);

/// Name and body of every target.
pub const TARGETS: [(&str, Body); 8] = [
    ("clc", clc),
    ("llc_v1", llc_v1),
    ("llc_v2", llc_v2),
    ("cdc", cdc),
    ("tcpopt", tcpopt),
    ("negotiate", negotiate),
    ("exchanges", exchanges),
    ("pair", pair),
];

/// Any bytes as a CLC message: what is accepted survives being written and read again.
pub fn clc(data: &[u8]) {
    if let Some(head) = data.first_chunk() {
        if let Ok(h) = Header::decode(head) {
            assert!((28..=clc::MAX_MESSAGE).contains(&h.len()));
        }
    }
    let mut out = [0; clc::MAX_MESSAGE];
    if let Ok(p) = Proposal::decode(data) {
        assert_eq!(p.prefixes.is_some(), p.type_v1.any());
        assert_eq!(p.v2.is_some(), p.type_v2.any());
        if let Some(area) = p.prefixes {
            assert!(area.v6.len() <= clc::MAX_PREFIXES && area.v4_len <= 32);
            assert_eq!(area.v6.iter().count(), area.v6.len());
            let ours = area
                .v6
                .iter()
                .filter_map(|(p, len)| Subnet::new(p.into(), len));
            let some = ours.clone().next().is_some();
            assert_eq!(area.check([0; 16].into(), ours).is_ok(), some);
            assert!(area.check([0; 4].into(), std::iter::empty()).is_err());
        }
        if let Some(ext) = p.v2 {
            assert!(ext.eids.len() <= clc::MAX_EIDS);
            assert_eq!(ext.eids.iter().count(), ext.eids.len());
        }
        assert!(Proposal::decode(&data[..data.len() - 1]).is_err());
    }
    if let Ok((m, gids)) = AcceptConfirm::decode(data) {
        assert!(gids.len() <= clc::MAX_GIDS);
        let list: Vec<Gid> = gids.iter().collect();
        let n = m.encode(&list, &mut out).unwrap();
        assert_eq!(n, data.len());
        assert_eq!(AcceptConfirm::decode(&out[..n]), Ok((m, gids)));
        assert!(AcceptConfirm::decode(&data[..data.len() - 1]).is_err());
    }
    if let Ok(m) = Decline::decode(data) {
        let n = m.encode(&mut out).unwrap();
        assert_eq!(n, data.len());
        assert_eq!(Decline::decode(&out[..n]), Ok(m));
    }
}

/// Any bytes as an LLC message of version 1.
pub fn llc_v1(data: &[u8]) {
    one_llc(data, llc::Version::V1);
}

/// Any bytes as an LLC message of version 2.
pub fn llc_v2(data: &[u8]) {
    one_llc(data, llc::Version::V2);
}

/// The bit of the first byte that tells the versions apart is set, so that no input is wasted.
fn one_llc(data: &[u8], version: llc::Version) {
    let mut bytes = data.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first = match version {
            llc::Version::V1 => *first & !0x20,
            llc::Version::V2 => *first | 0x20,
        };
    }
    let Ok(m) = Llc::decode(&bytes) else { return };
    assert_eq!(m.version, version);
    assert_eq!(llc::demux(bytes[0]), llc::Demux::Llc(version));
    let mut out = [0; llc::MAX_LEN];
    let n = m.encode(&mut out).unwrap();
    assert!((llc::LEN..=bytes.len()).contains(&n), "{n}");
    assert_eq!(Llc::decode(&out[..n]), Ok(m));
    assert!(Llc::decode(&bytes[..llc::LEN - 1]).is_err());
}

/// Any bytes as CDC messages to one connection, which sends and reads in between.
pub fn cdc(data: &[u8]) {
    if let Ok(m) = Message::decode(data) {
        assert_eq!(Message::decode(&m.encode()), Ok(m));
    }
    // A byte that says what the application does, then 26 bytes of message.
    let mut p = Pair::new(Setup {
        send: [24; 2],
        recv: [16; 2],
        ..Setup::default()
    });
    for chunk in data.chunks(27) {
        let [what, rest @ ..] = chunk else { return };
        let mut bytes = [0; 44];
        bytes[..rest.len()].copy_from_slice(rest);
        bytes[0] = 0xfe;
        bytes[1] = 44;
        if what & 0x80 != 0 {
            // Plausible numbers, or else hardly any message would be taken.
            bytes[8..16].copy_from_slice(&[
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                rest.first().copied().unwrap_or(0),
            ]);
            bytes[16..24].copy_from_slice(&[
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                rest.last().copied().unwrap_or(0),
            ]);
        }
        let m = Message::decode(&bytes).unwrap();
        let s = &mut p.sides[0];
        let before = s.conn.clone();
        match s.conn.on_cdc(&m) {
            Err(_) => assert_eq!(s.conn, before),
            Ok(fx) => {
                assert!(s.conn.readable_len() <= 16 && s.conn.window() <= 16);
                assert!(fx.arrived <= 16);
                if let Some(Urgent::Present { offset }) = fx.urgent {
                    assert!(offset < 16);
                    let _ = s.conn.urgent_arrived(*what);
                }
            }
        }
        match what & 7 {
            0 => {
                let n = u32::from(*what >> 3).min(s.conn.send_space());
                s.conn.commit_write(n).unwrap();
            }
            1 | 2 => {
                if let Some(plan) = s.conn.plan_tx(true) {
                    let _ = s.conn.tx_done(plan.token);
                }
            }
            3 | 4 => {
                let n = s.conn.readable().total();
                let _ = s.conn.consume(n).unwrap();
                assert_eq!(
                    s.conn.readable_len().min(1),
                    s.conn.readable().total().min(1)
                );
            }
            5 => {
                let _ = s.conn.take_urgent(what & 8 != 0);
            }
            6 => {
                let _ = s.conn.begin_failover();
            }
            _ => {
                let _ = s.conn.mark_urgent();
            }
        }
    }
}

/// Any bytes as a TCP header that gets the option. The first byte says whether data follows.
pub fn tcpopt(data: &[u8]) {
    let [payload, header @ ..] = data else { return };
    let offered = tcpopt::offered(header);
    if let Some(found) = tcpopt::find(header) {
        assert!(found.len >= 6 && found.offset + found.len <= header.len());
    }
    let Ok(edit) = tcpopt::plan(header, payload & 1 != 0) else {
        return;
    };
    assert!(!offered && payload & 1 == 0);
    assert!(edit.new_len <= 60 && edit.new_len % 4 == 0);
    assert_eq!(edit.new_len, edit.insert_at + edit.bytes.len());
    let mut new = header[..edit.insert_at].to_vec();
    new.extend(edit.bytes);
    new[12] = edit.offset_byte;
    assert_eq!(edit.offset_byte & 0x0f, header[12] & 0x0f);
    assert_eq!(usize::from(edit.offset_byte >> 4) * 4, edit.new_len);
    assert!(tcpopt::offered(&new));
    assert_eq!(tcpopt::plan(&new, false), Err(tcpopt::Refusal::Present));
    // What was there before is still what it was.
    assert_eq!(new[20..edit.insert_at], header[20..edit.insert_at]);
}

/// Takes numbers off the front of the input; zero when it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A policy of any kind and a proposal, written from the input or taken from it as it is: what the
/// server chooses suits both, and the client accepts the answer unless it was tampered with.
pub fn negotiate(data: &[u8]) {
    let mut input = Input(data);
    let [how, server_v1, server_v2, release, conns, links, eid, tamper, at, mtu] = input.bytes();
    let pool: [Eid; 4] =
        [b"A", b"B", b"C", b"D"].map(|n| Eid::new(n).expect("a letter is an enterprise id"));
    let ours: Vec<Eid> = (0..4)
        .filter(|i| eid & (1 << i) != 0)
        .map(|i| pool[i])
        .collect();
    let refuse = |on: u8| match on {
        0 => Err(DeclineReason::NOSMCRDEV),
        _ => Ok(()),
    };
    let policy = ServerPolicy {
        extensions: clc::Extensions::ALL,
        v1: refuse(server_v1 & 1),
        v2: refuse(server_v2 & 1),
        release: release & 1,
        limits: Limits {
            max_conns: conns.max(clc::MIN_CONNS),
            max_links: links.max(1),
        },
    };
    let mut written = [0; clc::MAX_PROPOSAL];
    let proposal = if how & 1 != 0 {
        let [gid, release, conns, links, first, second, v4_len] = input.bytes();
        let v1 = ProposalV1 {
            gid: Gid([gid; 16]),
            mac: Mac([gid; 6]),
            v4_network: [10, 0, 0, 0],
            v4_len: v4_len % 33,
            v6: &[],
        };
        let v2 = ProposalV2 {
            extensions: clc::Extensions::NONE,
            gid: Gid([gid; 16]),
            release: release & 0x0f,
            limits: Limits {
                max_conns: conns,
                max_links: links,
            },
        };
        let eids = [pool[usize::from(first % 4)], pool[usize::from(second % 4)]];
        let count = usize::from(how >> 4) % 3;
        let n = Proposal::encode(
            PeerId::ZERO,
            (how & 2 != 0).then_some(&v1),
            (how & 4 != 0).then(|| (&v2, eids.into_iter().take(count))),
            &mut written,
        );
        match n {
            Ok(n) => &written[..n],
            Err(_) => return,
        }
    } else {
        input.0
    };
    let Ok(p) = Proposal::decode(proposal) else {
        assert!(how & 1 == 0, "what was written cannot be read");
        return;
    };
    let chosen = choose(&p, &policy, ours.iter().copied());
    let theirs: Vec<Eid> = p.v2.iter().flat_map(|v| v.eids.iter()).collect();
    let offer = Offer {
        extensions: clc::Extensions::ALL,
        v1: p.offers_v1(),
        v2: p.offers_v2(),
        release: p.v2.map_or(0, |v| v.release),
        limits: p.v2.map(|v| v.limits).unwrap_or_default(),
        mtu: MtuCode::from_nibble(mtu),
    };
    let v2 = match chosen {
        Err(_) => return,
        Ok(Choice::V1) => {
            assert!(p.type_v1.has_r() && policy.v1.is_ok());
            None
        }
        Ok(Choice::V2 {
            release,
            eid,
            limits,
            ..
        }) => {
            assert!(policy.v2.is_ok() && ours.contains(&eid) && theirs.contains(&eid));
            assert!(release <= policy.release && release <= offer.release);
            assert!(limits.max_conns >= clc::MIN_CONNS && limits.max_links >= 1);
            let name = Hostname::clean(b"fuzz");
            Some(V2Part {
                eid,
                first_contact: Some(FirstContact::new(true, release, name, limits)),
            })
        }
    };
    let accept = AcceptConfirm {
        kind: Kind::Accept,
        first_contact: true,
        peer_id: PeerId::ZERO,
        gid: Gid::from_v4([10, 0, 0, 1]),
        mac: Mac([2; 6]),
        qpn: Qpn::truncate(77),
        rkey: Rkey(1),
        rmbe_index: RmbeIndex::FIRST,
        token: AlertToken::from_peer(5),
        rmbe_size: RmbeSizeCode::from_nibble(2),
        mtu: MtuCode::B1024,
        vaddr: Vaddr(0x1000),
        psn: Psn::truncate(9),
        v2,
    };
    let mut out = [0; clc::MAX_MESSAGE];
    let n = accept.encode(&[], &mut out).unwrap();
    let good = check_accept(&offer, theirs.iter().copied(), &accept);
    match offer.mtu.bytes() {
        Some(_) => assert!(good.is_ok(), "{good:?}"),
        None => assert!(good.is_err()),
    }
    // One byte of the answer is another one.
    out[usize::from(at) % n] ^= tamper;
    if let Ok((got, _)) = AcceptConfirm::decode(&out[..n]) {
        if let Ok(agreed) = check_accept(&offer, theirs.iter().copied(), &got) {
            assert!(
                agreed.limits.max_conns >= clc::MIN_CONNS
                    || got.extension().is_none_or(|f| f.release == 0)
            );
            assert!(got.element().is_some());
            let confirm = AcceptConfirm {
                kind: Kind::Confirm,
                ..got
            };
            assert!(check_confirm(&got, &confirm).is_ok());
            let _ = check_confirm(&accept, &confirm);
        }
    }
    assert!(p.type_v2 != Tech::None || v2.is_none());
}

/// LLC messages, own exchanges and their ends in any order on one side of a link group.
pub fn exchanges(data: &[u8]) {
    let mut input = Input(data);
    let setup = input.byte();
    let role = match setup & 1 {
        0 => Role::Server,
        _ => Role::Client,
    };
    let mut flows = Flows::new(role);
    let mut rows = [RtokenEntry::EMPTY; 4];
    let links = [LinkId::new(1), LinkId::new(2), None];
    let mut tokens = TokenExchange::new(role, LinkId::FIRST, setup >> 1);
    let mut running: Vec<FlowId> = vec![];
    let kinds = [Exchange::Rkey, Exchange::AddLink, Exchange::DeleteLink];
    while !input.is_empty() {
        let [what, n] = input.bytes();
        match what & 7 {
            0 => {
                if let Ok(id) = flows.begin(kinds[usize::from(n) % 3]) {
                    running.push(id);
                }
            }
            1 if !running.is_empty() => {
                let id = running.remove(usize::from(n) % running.len());
                let mut next = flows.finish(id);
                let mut bound = 0;
                while let Some(n) = next {
                    let kind = match n {
                        Next::AddLink(_) => Exchange::AddLink,
                        Next::DeleteLink(_) => Exchange::DeleteLink,
                    };
                    let id = flows.begin(kind).unwrap();
                    next = flows.finish(id);
                    bound += 1;
                    assert!(bound <= LINK_SLOTS + 1);
                }
            }
            2 => {
                let listed: [MovedRtoken; 2] = std::array::from_fn(|_| MovedRtoken {
                    reference: Rkey(input.byte().into()),
                    rkey: Rkey(input.byte().into()),
                    vaddr: Vaddr(0),
                });
                let before = tokens;
                let some = &listed[..usize::from(n) % 3];
                match tokens.message(some) {
                    Some(m) => assert!(m.valid().count() <= some.len()),
                    None => assert_eq!(tokens, before),
                }
            }
            _ => {
                let mut bytes = [0; llc::LEN];
                let head: [u8; 16] = input.bytes();
                bytes[..16].copy_from_slice(&head);
                bytes[1] = 44;
                let Ok(m) = Llc::decode(&bytes) else { continue };
                let link = usize::from(n) % LINK_SLOTS;
                if what & 0x80 != 0 {
                    if let Some(id) = running.first() {
                        let awaited = crate::proto::group::Awaited {
                            opcode: m.body.opcode(),
                            response: m.response,
                            link: (what & 0x40 != 0).then_some(link),
                        };
                        assert!(flows.expect(*id, awaited));
                    }
                }
                match flows.arrived(&m, link) {
                    Verdict::Start(kind) => running.push(flows.begin_for_peer(kind).unwrap()),
                    Verdict::Deliver(id) => assert!(running.contains(&id)),
                    Verdict::Answer => {
                        let context = Context {
                            role,
                            link,
                            links: &links,
                        };
                        let mut table = RtokenTable::new(&mut rows);
                        if let LlcReply::Send(b) = respond(&m, &mut table, &context) {
                            assert!(Llc::decode(&b).unwrap().response);
                        }
                    }
                    _ => {}
                }
                if let llc::Body::AddLinkCont(c) = m.body {
                    let before = tokens;
                    let mut table = RtokenTable::new(&mut rows);
                    match tokens.arrived(&c, &mut table, link, 1) {
                        Ok(Told::Keys { .. }) => assert_eq!(before.turn(), Turn::Await),
                        _ => assert_eq!(tokens, before),
                    }
                }
            }
        }
        assert_eq!(flows.is_idle(), running.is_empty());
        assert!(running.len() <= 2);
        assert!(RtokenTable::new(&mut rows).used() <= 4);
    }
}

/// A list of operations on two joined connections: what applications and devices do, in any
/// order. At the end everything that was written must have arrived.
pub fn pair(data: &[u8]) {
    let mut input = Input(data);
    let [a, b, c, d, wrap, limit, chain, slots, cork] = input.bytes();
    let size = |n: u8| u32::from(n % 40) + 1;
    let recv = [size(c), size(d)];
    let start = match wrap & 3 {
        0 => 0,
        1 => (u64::from(recv[0]) << 16) - u64::from((wrap >> 2).min(c % 40) + 1),
        2 => (u64::from(recv[1]) << 16) - u64::from((wrap >> 2).min(d % 40) + 1),
        _ => u64::from(wrap) << 30,
    };
    let mut p = Pair::new(Setup {
        send: [size(a), size(b)],
        recv,
        start,
        seq: [0, 0xfffa, 0x7ffd, 1][usize::from(wrap >> 6)],
        update_limit: size(limit),
        max_chain: u32::from(chain % 30),
        slots: usize::from(slots % 4) + 1,
        autocork: u32::from(cork % 60),
    });
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        let [what, n] = input.bytes();
        let i = usize::from(what & 1);
        // Zero bytes are no call: the simulated application would sleep over nothing.
        let n = u32::from(n).max(1);
        match (what >> 1) & 7 {
            0 | 1 if !p.sides[i].writer_sleeps => {
                p.write(i, n);
            }
            2 => {
                p.deliver(i);
            }
            3 => {
                p.complete(i);
            }
            4 if !p.sides[i].reader_sleeps => {
                p.read(i, n);
            }
            5 => p.write_out(i),
            6 => {
                p.deliver(i);
                p.complete(i);
                p.deliver(1 - i);
            }
            _ => {}
        }
        p.check();
    }
    p.settle();
    p.assert_all_arrived();
    // Then both end: no more data, then closed.
    for flags in [DONE, CLOSED] {
        p.close(0, flags);
        p.close(1, flags);
        while p.deliver(0) | p.complete(0) | p.deliver(1) | p.complete(1) {}
        for s in &p.sides {
            assert!(s.peer.sending_done && s.peer.closed == flags.closed);
        }
    }
}
