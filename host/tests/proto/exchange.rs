// SPDX-License-Identifier: GPL-2.0

//! The exchange of keys on a further link (RFC 7609, sections 3.5.1.6.3 and 3.5.5.2.3,
//! appendix A.3.3).

use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::*;

use crate::common::{property, written_down};

/// Columns of the link that carries the messages and of the new one.
const FROM: usize = 0;
const NEW: usize = 1;

fn link() -> LinkId {
    LinkId::new(2).unwrap()
}

/// The `n`th buffer of a side.
fn moved(side: u32, n: u32) -> MovedRtoken {
    MovedRtoken {
        reference: Rkey((side << 16) | n),
        rkey: Rkey((side << 16) | 0x8000 | n),
        vaddr: Vaddr(u64::from(n) << 32),
    }
}

/// What a side knows of the other's buffers before: their keys on the first link.
fn known(side: u32, count: u8) -> Vec<RtokenEntry> {
    let mut rows = vec![RtokenEntry::EMPTY; MAX_RTOKENS];
    let mut table = RtokenTable::new(&mut rows);
    for n in 0..u32::from(count) {
        let m = moved(side, n);
        let token = Rtoken {
            rkey: m.reference,
            vaddr: Vaddr(7),
        };
        table.add(FROM, token).unwrap();
    }
    rows
}

/// A message through its bytes.
fn wire(role: Role, m: AddLinkCont) -> AddLinkCont {
    let body = Body::AddLinkCont(m);
    let llc = match role {
        Role::Server => Llc::request(Version::V1, body),
        Role::Client => Llc::response(Version::V1, body),
    };
    let bytes = llc.encode_short().unwrap();
    match Llc::decode(&bytes).unwrap().body {
        Body::AddLinkCont(m) => m,
        other => panic!("{other:?}"),
    }
}

/// The tokens of a side from `told` on, as many as the shell would have at hand.
fn next(side: u32, count: u8, told: u8) -> Vec<MovedRtoken> {
    (u32::from(told)..u32::from(count))
        .take(2)
        .map(|n| moved(side, n))
        .collect()
}

/// Both sides to the end; returns the `remaining` fields as (server, client) pairs.
fn lockstep(server: u8, client: u8) -> Vec<(u8, u8)> {
    let mut s = TokenExchange::new(Role::Server, link(), server);
    let mut c = TokenExchange::new(Role::Client, link(), client);
    let (mut s_rows, mut c_rows) = (known(2, client), known(1, server));
    let mut out = vec![];
    while s.turn() != Turn::Done || c.turn() != Turn::Done {
        assert_eq!((s.turn(), c.turn()), (Turn::Send, Turn::Await));
        let m = s.message(&next(1, server, s.told())).unwrap();
        let m = wire(Role::Server, m);
        let told = c
            .arrived(&m, &mut RtokenTable::new(&mut c_rows), FROM, NEW)
            .unwrap();
        assert_eq!(told, Told::Keys { unknown: 0 });
        assert_eq!((s.turn(), c.turn()), (Turn::Await, Turn::Send));
        let r = c.message(&next(2, client, c.told())).unwrap();
        let r = wire(Role::Client, r);
        let told = s
            .arrived(&r, &mut RtokenTable::new(&mut s_rows), FROM, NEW)
            .unwrap();
        assert_eq!(told, Told::Keys { unknown: 0 });
        out.push((m.remaining, r.remaining));
    }
    // Every buffer is known on the new link.
    for (side, count, rows) in [(2, client, &mut s_rows), (1, server, &mut c_rows)] {
        let table = RtokenTable::new(rows);
        for n in 0..u32::from(count) {
            let m = moved(side, n);
            let row = table.find(FROM, m.reference).unwrap();
            let want = Rtoken {
                rkey: m.rkey,
                vaddr: m.vaddr,
            };
            assert_eq!(table.get(row, NEW), Some(want));
        }
        assert_eq!(table.used(), usize::from(count));
    }
    assert_eq!((s.told(), c.told()), (server, client));
    out
}

#[test]
fn both_sides_count_down_together() {
    // The example of figure 15: three buffers at the server, four at the client.
    assert_eq!(lockstep(3, 4), [(3, 4), (1, 2)]);
    // A side without buffers still sends its message.
    assert_eq!(lockstep(0, 0), [(0, 0)]);
    assert_eq!(lockstep(1, 0), [(1, 0)]);
    assert_eq!(lockstep(0, 2), [(0, 2)]);
    // The server needs more messages, then the client.
    assert_eq!(lockstep(5, 1), [(5, 1), (3, 0), (1, 0)]);
    assert_eq!(lockstep(2, 6), [(2, 6), (0, 4), (0, 2)]);
}

#[test]
fn every_pair_of_counts_comes_to_an_end() {
    for server in 0..=12 {
        for client in 0..=12 {
            let n = lockstep(server, client).len();
            let want = server.max(client).div_ceil(2).max(1);
            assert_eq!(n, usize::from(want), "{server} {client}");
        }
    }
    assert_eq!(lockstep(255, 254).len(), 128);
    assert_eq!(lockstep(0, 255).len(), 128);
}

/// A side in each situation it can be in, with the peer's last message.
fn situations() -> Vec<(String, TokenExchange, Option<AddLinkCont>)> {
    let mut out = vec![];
    for role in [Role::Server, Role::Client] {
        for ours in [0, 2, 3] {
            for theirs in [0, 2, 3] {
                let peer_role = match role {
                    Role::Server => Role::Client,
                    Role::Client => Role::Server,
                };
                let mut us = TokenExchange::new(role, link(), ours);
                let mut peer = TokenExchange::new(peer_role, link(), theirs);
                let (mut a, mut b) = (known(2, theirs), known(1, ours));
                let mut last = None;
                loop {
                    let name = format!(
                        "{role:?} {:?}, told {}, of {ours}, peer {} of {theirs}",
                        us.turn(),
                        us.told(),
                        peer.told()
                    );
                    out.push((name, us, last));
                    match us.turn() {
                        Turn::Done => break,
                        Turn::Send => {
                            let m = us.message(&next(1, ours, us.told())).unwrap();
                            let _ = peer
                                .arrived(&m, &mut RtokenTable::new(&mut b), FROM, NEW)
                                .unwrap();
                        }
                        Turn::Await => {
                            let m = peer.message(&next(2, theirs, peer.told())).unwrap();
                            let _ = us
                                .arrived(&m, &mut RtokenTable::new(&mut a), FROM, NEW)
                                .unwrap();
                            last = Some(m);
                        }
                    }
                }
            }
        }
    }
    out
}

#[test]
fn every_situation_with_every_message_is_as_written_down() {
    let peer = |remaining: u8| AddLinkCont {
        link_num: 2,
        remaining,
        rtokens: [moved(2, 0), moved(2, 9)],
    };
    let mut text = String::new();
    for (name, us, last) in situations() {
        let mut line = |event: &str, result: String| {
            text += &format!("{name:45} {event:22} {result}\n");
        };
        // Our own message: with all keys at hand, and with none left.
        for (event, keys) in [
            ("send", vec![moved(1, 0), moved(1, 1)]),
            ("send, buffers gone", vec![]),
        ] {
            let mut x = us;
            let r = match x.message(&keys) {
                Some(m) => format!(
                    "says {} remain, {} listed, then {:?}",
                    m.remaining,
                    m.valid().count(),
                    x.turn()
                ),
                None => {
                    assert_eq!(x, us);
                    "not our turn".into()
                }
            };
            line(event, r);
        }
        let mut events = vec![
            (
                "other link",
                AddLinkCont {
                    link_num: 3,
                    ..peer(1)
                },
            ),
            ("0 remain", peer(0)),
            ("1 remains", peer(1)),
            ("3 remain", peer(3)),
            ("255 remain", peer(255)),
        ];
        if let Some(m) = last {
            events.push(("the last one again", m));
        }
        for (event, m) in events {
            let mut x = us;
            let mut rows = known(2, 3);
            let before = rows.clone();
            let r = match x.arrived(&m, &mut RtokenTable::new(&mut rows), FROM, NEW) {
                Ok(Told::Keys { unknown }) => {
                    format!("taken, {unknown} unknown, then {:?}", x.turn())
                }
                Ok(Told::Again) => {
                    assert_eq!((x, &rows), (us, &before));
                    "ignored".into()
                }
                Err(e) => {
                    assert_eq!((x, &rows), (us, &before));
                    format!("refused: {e:?}")
                }
            };
            line(event, r);
        }
    }
    written_down("exchange", &text);
}

#[test]
fn peer_that_has_fewer_than_announced_may_say_so() {
    // As the C implementation, which counts connections and lists buffers.
    let mut s = TokenExchange::new(Role::Server, link(), 6);
    let mut rows = known(1, 6);
    let mut c = TokenExchange::new(Role::Client, link(), 0);
    let mut table = RtokenTable::new(&mut rows);
    let m = s.message(&next(1, 6, 0)).unwrap();
    assert_eq!(m.remaining, 6);
    assert!(c.arrived(&m, &mut table, FROM, NEW).is_ok());
    let r = c.message(&[]).unwrap();
    assert!(s
        .arrived(&r, &mut RtokenTable::new(&mut []), FROM, NEW)
        .is_ok());
    // Three buffers have gone: one is left of the four that were to come.
    let m = s.message(&[moved(1, 2)]).unwrap();
    assert_eq!((m.remaining, m.valid().count()), (1, 1));
    assert!(c.arrived(&m, &mut table, FROM, NEW).is_ok());
    let r = c.message(&[]).unwrap();
    assert!(s
        .arrived(&r, &mut RtokenTable::new(&mut []), FROM, NEW)
        .is_ok());
    assert_eq!((s.turn(), c.turn()), (Turn::Done, Turn::Done));
    assert_eq!(s.told(), 3);
}

#[test]
fn exchange_runs_inside_the_flow_that_adds_the_link() {
    let mut flows = Flows::new(Role::Server);
    let id = flows.begin(Exchange::AddLink).unwrap();
    let mut x = TokenExchange::new(Role::Server, link(), 3);
    let mut rows = known(2, 0);
    for n in 0..2 {
        assert_eq!(x.awaited(FROM), None, "our turn");
        let m = x.message(&next(1, 3, x.told())).unwrap();
        assert!(flows.expect(id, x.awaited(FROM).unwrap()));
        let answer = AddLinkCont {
            link_num: m.link_num,
            ..AddLinkCont::default()
        };
        let llc = Llc::response(Version::V1, Body::AddLinkCont(answer));
        assert_eq!(flows.arrived(&llc, FROM), Verdict::Deliver(id), "{n}");
        // A request of the same kind, or the answer on another link, is not it.
        let _ = x
            .arrived(&answer, &mut RtokenTable::new(&mut rows), FROM, NEW)
            .unwrap();
    }
    assert_eq!((x.turn(), x.awaited(FROM)), (Turn::Done, None));
    let client = TokenExchange::new(Role::Client, link(), 0);
    assert_eq!(
        client.awaited(FROM),
        Some(Awaited {
            opcode: Opcode::AddLinkCont,
            response: false,
            link: Some(FROM)
        })
    );
}

#[test]
fn random_messages_never_store_more_than_they_say() {
    property("token exchange", 3000, |rng| {
        let role = [Role::Server, Role::Client][rng.below(2) as usize];
        let ours = rng.byte() % 8;
        let mut x = TokenExchange::new(role, link(), ours);
        let mut rows = known(2, 8);
        let mut left: Option<u8> = None;
        for _ in 0..rng.range(1, 20) {
            if x.turn() == Turn::Send {
                let m = x.message(&next(1, ours, x.told())).unwrap();
                assert!(m.valid().count() <= 2);
                continue;
            }
            let m = AddLinkCont {
                link_num: 2 + rng.byte() % 2,
                remaining: rng.byte() % 10,
                rtokens: std::array::from_fn(|_| moved(2, rng.below(10) as u32)),
            };
            let (before, turn) = (x, x.turn());
            let fits = left.is_none_or(|l| m.remaining <= l);
            let got = x.arrived(&m, &mut RtokenTable::new(&mut rows), FROM, NEW);
            match got {
                Ok(Told::Keys { unknown }) => {
                    assert!(m.link_num == 2 && fits && turn == Turn::Await);
                    let bad = m.valid().filter(|t| t.reference.0 & 0xffff >= 8).count();
                    assert_eq!(usize::from(unknown), bad);
                    left = Some(m.remaining.saturating_sub(2));
                }
                Ok(Told::Again) | Err(_) => assert_eq!(x, before),
            }
        }
        assert!(x.told() <= ours);
    });
}
