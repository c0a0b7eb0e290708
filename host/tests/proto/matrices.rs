// SPDX-License-Identifier: GPL-2.0

//! Every machine of the core but those of `close` and `exchange`: each situation with each event,
//! compared with what `matrices/` says.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::proto::cdc::{ConnFlags, Message, ProdFlags};
use crate::proto::conn::{Conn, TxToken};
use crate::proto::cursor::Pos;
use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use crate::common::written_down;
use crate::messages::{one_of_each, version};
use crate::sim;

/// Every exchange that can be under way, and what it waits for.
fn exchanges(role: Role) -> Vec<(&'static str, Flows)> {
    let awaits = |opcode, response, link| Awaited {
        opcode,
        response,
        link: Some(link),
    };
    let mut out = vec![("idle", Flows::new(role))];
    let mut begin = |name, kind, awaited: Option<Awaited>| {
        let mut f = Flows::new(role);
        let id = f.begin(kind).unwrap();
        if let Some(a) = awaited {
            assert!(f.expect(id, a));
        }
        out.push((name, f));
        f
    };
    begin("keys", Exchange::Rkey, None);
    let keys = begin(
        "keys, awaits the answer on 0",
        Exchange::Rkey,
        Some(awaits(Opcode::ConfirmRkey, true, 0)),
    );
    begin("add", Exchange::AddLink, None);
    begin(
        "add, awaits ADD LINK answer on 0",
        Exchange::AddLink,
        Some(awaits(Opcode::AddLink, true, 0)),
    );
    begin(
        "add, awaits CONFIRM LINK on 1",
        Exchange::AddLink,
        Some(awaits(Opcode::ConfirmLink, false, 1)),
    );
    let mut got = begin(
        "add, awaits CONFIRM LINK answer on 1",
        Exchange::AddLink,
        Some(awaits(Opcode::ConfirmLink, true, 1)),
    );
    begin("delete", Exchange::DeleteLink, None);
    begin(
        "delete, awaits the answer on 0",
        Exchange::DeleteLink,
        Some(awaits(Opcode::DeleteLink, true, 0)),
    );
    let (_, confirm) = one_of_each().remove(0);
    let _ = got.arrived(&Llc::response(llc::Version::V1, confirm), 1);
    out.push(("add, has got CONFIRM LINK answer on 1", got));
    for (name, kind) in [
        ("add, and keys await the answer on 0", Exchange::AddLink),
        (
            "delete, and keys await the answer on 0",
            Exchange::DeleteLink,
        ),
    ] {
        let mut both = keys;
        both.begin_for_peer(kind).unwrap();
        out.push((name, both));
    }
    out
}

#[test]
fn exchanges_meet_every_message_as_written_down() {
    let mut text = String::new();
    for role in [Role::Server, Role::Client] {
        for (name, flows) in exchanges(role) {
            let mut line = |event: &str, result: String| {
                writeln!(text, "{role:?}, {name:40} {event:28} {result}").unwrap();
            };
            for (what, body) in one_of_each() {
                let version = version(&body);
                for (kind, msg) in [
                    ("", Llc::request(version, body)),
                    (" answer", Llc::response(version, body)),
                ] {
                    let on = |link| {
                        let mut f = flows;
                        let verdict = match f.arrived(&msg, link) {
                            Verdict::Deliver(_) => "deliver".into(),
                            v => format!("{v:?}"),
                        };
                        match v_changed(&flows, &f, &verdict) {
                            true => verdict,
                            false => panic!("{role:?} {name} {what}: {verdict} changed it"),
                        }
                    };
                    line(&format!("{what}{kind}"), format!("{} | {}", on(0), on(1)));
                }
            }
            for kind in [Exchange::Rkey, Exchange::AddLink, Exchange::DeleteLink] {
                let mut f = flows;
                let own = f.begin(kind).map(|_| ());
                let mut f = flows;
                let peer = f.begin_for_peer(kind).map(|_| ());
                line(
                    &format!("begin {kind:?}"),
                    format!("own {own:?} | for the peer {peer:?}"),
                );
            }
            let gone = |link| flows.link_gone(link).count();
            line("link 0, 1 gone", format!("{} | {} end", gone(0), gone(1)));
        }
    }
    written_down("exchanges", &text);
}

/// A verdict that has no consequence leaves the exchanges as they were.
fn v_changed(before: &Flows, after: &Flows, verdict: &str) -> bool {
    verdict == "deliver" || verdict == "Parked" || before == after
}

#[test]
fn single_link_answers_every_message_as_written_down() {
    let links = [LinkId::new(1), None, None];
    let known = Rtoken {
        rkey: Rkey(1),
        vaddr: Vaddr(0x10),
    };
    let mut text = String::new();
    for role in [Role::Server, Role::Client] {
        for (name, rows, filled) in [
            ("empty table", 2, 0),
            ("key 1 known", 2, 1),
            ("table full", 1, 1),
        ] {
            for (what, body) in one_of_each() {
                for version in [llc::Version::V1, llc::Version::V2] {
                    for (kind, response) in [("", false), (" answer", true)] {
                        let mut rows = vec![RtokenEntry::EMPTY; rows];
                        let mut table = RtokenTable::new(&mut rows);
                        if filled > 0 {
                            table.add(0, known).unwrap();
                        }
                        let msg = Llc {
                            version,
                            response,
                            body,
                        };
                        // Kinds that the version does not have cannot arrive.
                        if msg.encode(&mut [0; llc::MAX_LEN]).is_err() {
                            continue;
                        }
                        let context = Context {
                            role,
                            link: 0,
                            links: &links,
                        };
                        let reply = respond(&msg, &mut table, &context);
                        writeln!(
                            text,
                            "{role:?}, {name:11} {version:?} {:25} {}; {} known",
                            format!("{what}{kind}"),
                            show_reply(&reply),
                            table.used()
                        )
                        .unwrap();
                    }
                }
            }
        }
    }
    written_down("respond", &text);
}

/// What is sent, by the fields that an answer can change.
fn show_message(bytes: &[u8]) -> String {
    let m = Llc::decode(bytes).unwrap();
    let mut out = format!("{:?} {:?}", m.version, m.body.opcode());
    if m.response {
        out += " answer";
    }
    match m.body {
        Body::ConfirmRkey(m) => {
            write!(
                out,
                " key {} negative {} retry {}",
                m.this_link.rkey.0, m.negative, m.retry
            )
        }
        Body::DeleteRkey(m) => write!(
            out,
            " of {} listed {} negative {} errors {:#x}",
            m.count,
            m.rkeys.len(),
            m.negative,
            m.errors
        ),
        Body::DeleteLink(m) => write!(
            out,
            " {} all {} orderly {} reason {:#x}",
            m.link_num, m.all, m.orderly, m.reason
        ),
        Body::AddLink(m) => write!(out, " rejected {} reason {}", m.rejected, m.reject_reason),
        Body::TestLink(data) => write!(out, " {data:?}"),
        _ => Ok(()),
    }
    .unwrap();
    out
}

fn show_reply(reply: &LlcReply) -> String {
    match reply {
        LlcReply::Send(bytes) => format!("send {}", show_message(bytes)),
        LlcReply::Terminate { answer, orderly } => {
            let answer = answer.map(|b| show_message(&b));
            format!(
                "end, orderly {orderly}, send {}",
                answer.unwrap_or("nothing".into())
            )
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn token_table_meets_every_change_as_written_down() {
    let token = |n: u32| Rtoken {
        rkey: Rkey(n),
        vaddr: Vaddr(u64::from(n) << 8),
    };
    let moved = |reference| MovedRtoken {
        reference: Rkey(reference),
        rkey: Rkey(21),
        vaddr: Vaddr(0x2100),
    };
    type Fill = fn(&mut RtokenTable<'_>, &dyn Fn(u32) -> Rtoken);
    let tables: [(&str, usize, Fill); 4] = [
        ("empty", 2, |_, _| ()),
        ("1 on link 0", 2, |t, k| {
            t.add(0, k(1)).unwrap();
        }),
        ("1 on links 0 and 1", 2, |t, k| {
            let i = t.add(0, k(1)).unwrap();
            t.set(i, 1, k(11)).unwrap();
        }),
        ("1 and 2 on link 0, full", 2, |t, k| {
            t.add(0, k(1)).unwrap();
            t.add(0, k(2)).unwrap();
        }),
    ];
    type Change<'a> = Box<dyn Fn(&mut RtokenTable<'_>) -> String + 'a>;
    let add = |link, t| -> Change<'_> {
        Box::new(move |x| format!("{:?}", x.add(link, t).map(RtokenIndex::get)))
    };
    let changes: Vec<(&str, Change<'_>)> = vec![
        ("add 1", add(0, token(1))),
        ("add 3", add(0, token(3))),
        (
            "add 1 with another address",
            add(
                0,
                Rtoken {
                    rkey: Rkey(1),
                    vaddr: Vaddr(7),
                },
            ),
        ),
        ("add 11 on link 1", add(1, token(11))),
        ("add 3 on a link beyond", add(LINK_SLOTS, token(3))),
        (
            "add moved of 1",
            Box::new(|x| format!("{:?}", x.add_moved(0, 1, &moved(1)))),
        ),
        (
            "add moved of 9",
            Box::new(|x| format!("{:?}", x.add_moved(0, 1, &moved(9)))),
        ),
        (
            "add moved of 1 to a link beyond",
            Box::new(|x| format!("{:?}", x.add_moved(0, LINK_SLOTS, &moved(1)))),
        ),
        (
            "delete 1",
            Box::new(|x| format!("{:?}", x.delete(0, Rkey(1)))),
        ),
        (
            "delete 11 on link 1",
            Box::new(|x| format!("{:?}", x.delete(1, Rkey(11)))),
        ),
        (
            "delete 9",
            Box::new(|x| format!("{:?}", x.delete(0, Rkey(9)))),
        ),
        (
            "link 0 ends",
            Box::new(|x| {
                x.drop_link(0);
                "done".into()
            }),
        ),
        (
            "link 1 ends",
            Box::new(|x| {
                x.drop_link(1);
                "done".into()
            }),
        ),
        (
            "a link beyond ends",
            Box::new(|x| {
                x.drop_link(LINK_SLOTS);
                "done".into()
            }),
        ),
    ];
    let mut text = String::new();
    for (name, rows, fill) in tables {
        for (what, change) in &changes {
            let mut rows = vec![RtokenEntry::EMPTY; rows];
            let mut table = RtokenTable::new(&mut rows);
            fill(&mut table, &token);
            let result = change(&mut table);
            let mut after = String::new();
            for key in [1, 2, 3, 11, 21] {
                for link in 0..LINK_SLOTS {
                    if let Some(i) = table.find(link, Rkey(key)) {
                        let t = table.get(i, link).unwrap();
                        write!(after, " {key}@{link}={:#x}/{}", t.vaddr.0, i.get()).unwrap();
                    }
                }
            }
            writeln!(
                text,
                "{name:24} {what:32} {result:14}{after}; room {}",
                table.has_room()
            )
            .unwrap();
        }
    }
    written_down("rtoken", &text);
}

#[test]
fn group_types_meet_every_link_as_written_down() {
    let gid = |n| Gid::from_v4([10, 0, 0, n]);
    let mut text = String::new();
    use GroupType::*;
    for group in [None, Single, Symmetric, AsymmetricPeer, AsymmetricLocal] {
        for own_alternate in [true, false] {
            for peer_repeats in [true, false] {
                let ctx = AddContext {
                    group,
                    own_alternate,
                    peer_alternate: !peer_repeats,
                    peer_gid: gid(1),
                    peer_mac: Mac([1; 6]),
                    compare_mac: false,
                    max_links: 2,
                    free_slot: true,
                };
                let Body::AddLink(mut m) = one_of_each()[1].1 else {
                    unreachable!()
                };
                m.gid = gid(if peer_repeats { 1 } else { 2 });
                writeln!(
                    text,
                    "{group:15?} own second device {own_alternate:5} peer's {:5} offer {:5} ask {:5} request {:?} answer {:?}",
                    !peer_repeats,
                    ctx.may_offer(Role::Server),
                    ctx.may_ask(Role::Client),
                    ctx.judge_request(&m),
                    ctx.judge_response(&m, &m).map(|(t, _)| t),
                )
                .unwrap();
            }
        }
        let left: Vec<_> = (0..3).map(|n| group.after_delete(n)).collect();
        writeln!(
            text,
            "{group:15?} wants a link {}; with 0, 1, 2 links left {left:?}",
            group.wants_link()
        )
        .unwrap();
    }
    written_down("topology", &text);
}

/// A connection with what its caller keeps: rings of 16 bytes to send, 8 to write and 8 to read.
#[derive(Clone)]
struct Caller {
    conn: Conn,
    posted: VecDeque<TxToken>,
    /// The peer's last message, and how far it has written and read.
    seq: u16,
    wrote: u64,
    has_read: u64,
}

const PEER: u32 = 8;
const RECV: u32 = 8;

impl Caller {
    fn new() -> Self {
        Self {
            conn: sim::conn(16, PEER, RECV, 2, 0),
            posted: VecDeque::new(),
            seq: 0,
            wrote: 0,
            has_read: 0,
        }
    }

    fn write(&mut self, n: u32) -> String {
        format!("{:?}", self.conn.commit_write(n))
    }

    fn plan(&mut self, data: bool) -> String {
        let Some(p) = self.conn.plan_tx(data) else {
            return "nothing".into();
        };
        self.posted.push_back(p.token);
        format!("plan of {}: {}", p.data_len(), show_cdc(&p.cdc))
    }

    fn outcome(&mut self, ok: bool) -> String {
        let Some(token) = self.posted.pop_front() else {
            return "nothing posted".into();
        };
        let fx = match ok {
            true => self.conn.tx_done(token),
            false => self.conn.tx_failed(token),
        };
        let mut out = format!("freed {}", fx.freed);
        for (on, what) in [
            (fx.push, " push"),
            (fx.drained, " drained"),
            (fx.idle, " idle"),
        ] {
            out += if on { what } else { "" };
        }
        out
    }

    /// A message of the peer, which has written `wrote` more and read up to `has_read`.
    fn message(&mut self, wrote: u64, has_read: u64, prod: u8, conn: u8) -> String {
        let ring = sim::ring;
        let m = Message {
            seq: self.seq.wrapping_add(1),
            token: AlertToken::from_peer(1),
            prod: Pos::new(self.wrote + wrote).cursor(ring(RECV)),
            cons: Pos::new(has_read).cursor(ring(PEER)),
            prod_flags: ProdFlags::from_byte(prod),
            conn_flags: ConnFlags::from_byte(conn),
        };
        self.receive(m, wrote, has_read)
    }

    fn receive(&mut self, m: Message, wrote: u64, has_read: u64) -> String {
        let before = self.conn.clone();
        let fx = match self.conn.on_cdc(&m) {
            Ok(fx) => fx,
            Err(v) => {
                assert_eq!(self.conn, before, "refused but changed");
                return format!("refused: {v:?}");
            }
        };
        if !fx.stale && !m.prod_flags.failover_validation {
            self.seq = m.seq;
            self.wrote += wrote;
            self.has_read = has_read;
        }
        let mut out = format!("arrived {}", fx.arrived);
        if fx.freed > 0 {
            out += &format!(" freed {}", fx.freed);
        }
        for (on, what) in [
            (fx.push, " push"),
            (fx.urgent_read, " urgent-read"),
            (fx.close.sending_done, " peer-done"),
            (fx.close.closed, " peer-closed"),
            (fx.close.abort, " peer-abort"),
            (fx.stale, " stale"),
        ] {
            out += if on { what } else { "" };
        }
        if let Some(u) = fx.urgent {
            write!(out, " {u:?}").unwrap();
        }
        out
    }

    fn read(&mut self) -> String {
        let n = self.conn.readable().total();
        match self.conn.consume(n) {
            Ok(c) => format!("{n}{}", if c.push { " push" } else { "" }),
            Err(e) => format!("{e:?}"),
        }
    }

    fn end(&mut self, sending_done: bool, closed: bool, abort: bool) -> String {
        self.conn.request_close(ConnFlags {
            sending_done,
            closed,
            abort,
        });
        format!("work {}", self.conn.has_work())
    }

    /// What can be seen from outside afterwards.
    fn state(&self) -> String {
        let c = &self.conn;
        format!(
            "space {} unsent {} window {} readable {} posted {}{}",
            c.send_space(),
            c.unsent(),
            c.window(),
            c.readable_len(),
            c.posted(),
            if c.is_dead() { " dead" } else { "" }
        )
    }
}

fn show_cdc(m: &Message) -> String {
    let mut out = format!(
        "{}.{}/{}.{}",
        m.prod.wrap, m.prod.count, m.cons.wrap, m.cons.count
    );
    let (p, c) = (m.prod_flags, m.conn_flags);
    for (on, what) in [
        (p.write_blocked, " blocked"),
        (p.urgent_pending, " urgent-pending"),
        (p.urgent_present, " urgent-present"),
        (p.update_requested, " update"),
        (p.failover_validation, " validation"),
        (c.sending_done, " done"),
        (c.closed, " closed"),
        (c.abort, " abort"),
    ] {
        out += if on { what } else { "" };
    }
    out
}

/// Flags of messages, as bytes.
const BLOCKED: u8 = 0x80;
const PENDING: u8 = 0x40;
const PRESENT: u8 = 0x20;
const UPDATE: u8 = 0x10;
const DONE: u8 = 0x80;
const CLOSED: u8 = 0x40;
const ABORT: u8 = 0x20;

type Step = fn(&mut Caller) -> String;

/// Everything that can happen to a connection.
fn conn_events() -> Vec<(&'static str, Step)> {
    vec![
        ("write 3", |c| c.write(3)),
        ("write too much", |c| c.write(17)),
        ("plan", |c| c.plan(true)),
        ("plan a message", |c| c.plan(false)),
        ("completion", |c| c.outcome(true)),
        ("failure", |c| c.outcome(false)),
        ("3 bytes arrive", |c| c.message(3, c.has_read, 0, 0)),
        ("too much arrives", |c| c.message(9, c.has_read, 0, 0)),
        ("peer reads all", |c| {
            let sent = c.conn.snapshot().tx_sent;
            let all = u64::from(sent.wrap) * 16 + u64::from(sent.count);
            c.message(0, all.max(c.has_read), 0, 0)
        }),
        ("peer reads too much", |c| {
            c.message(0, c.has_read + 40, 0, 0)
        }),
        ("peer is blocked", |c| c.message(0, c.has_read, BLOCKED, 0)),
        ("peer asks for an update", |c| {
            c.message(0, c.has_read, UPDATE, 0)
        }),
        ("peer announces urgent", |c| {
            c.message(0, c.has_read, PENDING, 0)
        }),
        ("2 bytes, urgent", |c| {
            c.message(2, c.has_read, PENDING | PRESENT, 0)
        }),
        ("peer is done", |c| c.message(0, c.has_read, 0, DONE)),
        ("peer closes", |c| {
            c.message(0, c.has_read, 0, DONE | CLOSED)
        }),
        ("peer aborts", |c| c.message(0, c.has_read, 0, ABORT)),
        ("old message", |c| {
            c.seq = c.seq.wrapping_sub(2);
            c.message(1, c.has_read, 0, ABORT)
        }),
        ("validation, all arrived", |c| validation(c, 0)),
        ("validation, one is missing", |c| validation(c, 1)),
        ("read all", Caller::read),
        ("read too much", |c| {
            let n = c.conn.readable().total() + 1;
            format!("{:?}", c.conn.consume(n))
        }),
        ("shut", |c| c.end(true, false, false)),
        ("close", |c| c.end(true, true, false)),
        ("abort", |c| c.end(false, false, true)),
        ("kill", |c| {
            c.conn.kill();
            format!("work {}", c.conn.has_work())
        }),
        ("change of links", |c| match c.conn.begin_failover() {
            Some(m) => format!("number {} {}", m.seq, show_cdc(&m)),
            None => "nothing".into(),
        }),
        ("mark urgent", |c| format!("{:?}", c.conn.mark_urgent())),
        ("hold", |c| {
            format!(
                "corked {} small {}",
                c.conn.should_hold(true, 0),
                c.conn.should_hold(false, 100)
            )
        }),
    ]
}

fn validation(c: &mut Caller, ahead: u16) -> String {
    let m = Message {
        seq: c.seq.wrapping_add(ahead),
        token: AlertToken::from_peer(1),
        prod: Default::default(),
        cons: Default::default(),
        prod_flags: ProdFlags {
            failover_validation: true,
            ..ProdFlags::default()
        },
        conn_flags: ConnFlags::default(),
    };
    c.receive(m, 0, 0)
}

/// A way into every situation.
fn conn_situations() -> Vec<(&'static str, Caller)> {
    let ways: Vec<(&'static str, Vec<Step>)> = vec![
        ("fresh", vec![]),
        ("written", vec![|c| c.write(5)]),
        ("posted", vec![|c| c.write(5), |c| c.plan(true)]),
        (
            "completed",
            vec![|c| c.write(5), |c| c.plan(true), |c| c.outcome(true)],
        ),
        ("blocked", vec![|c| c.write(16), |c| c.plan(true)]),
        ("unread", vec![|c| c.message(5, 0, 0, 0)]),
        (
            "read, told",
            vec![|c| c.message(8, 0, 0, 0), Caller::read, |c| c.plan(true)],
        ),
        (
            "urgent of ours",
            vec![
                |c| c.write(2),
                |c| format!("{:?}", c.conn.mark_urgent()),
                |c| c.plan(true),
                |c| c.write(2),
            ],
        ),
        (
            "shut, unsent",
            vec![|c| c.write(16), |c| c.plan(true), |c| {
                c.end(true, false, false)
            }],
        ),
        (
            "shut",
            vec![|c| c.end(true, false, false), |c| c.plan(true)],
        ),
        (
            "closing, posted",
            vec![|c| c.write(5), |c| c.plan(true), |c| {
                c.end(true, true, false)
            }],
        ),
        (
            "closed",
            vec![|c| c.end(true, true, false), |c| c.plan(true)],
        ),
        (
            "peer done",
            vec![|c| c.message(0, 0, 0, DONE), |c| c.write(5)],
        ),
        (
            "peer closed, unsent",
            vec![|c| c.write(5), |c| c.message(0, 0, 0, DONE | CLOSED)],
        ),
        (
            "peer aborted",
            vec![|c| c.write(5), |c| c.message(2, 0, 0, ABORT)],
        ),
        (
            "abort wanted",
            vec![|c| c.write(5), |c| c.end(false, false, true)],
        ),
        (
            "aborted",
            vec![|c| c.write(5), |c| c.end(false, false, true), |c| {
                c.plan(true)
            }],
        ),
        (
            "killed",
            vec![|c| c.write(5), |c| c.plan(true), |c| {
                c.conn.kill();
                String::new()
            }],
        ),
        (
            "rolled back",
            vec![|c| c.write(5), |c| c.plan(true), |c| {
                let _ = c.conn.begin_failover();
                String::new()
            }],
        ),
        (
            "shut, rolled back",
            vec![
                |c| c.write(5),
                |c| c.end(true, false, false),
                |c| c.plan(true),
                |c| {
                    let _ = c.conn.begin_failover();
                    String::new()
                },
            ],
        ),
        (
            "closed, rolled back",
            vec![|c| c.end(true, true, false), |c| c.plan(true), |c| {
                let _ = c.conn.begin_failover();
                String::new()
            }],
        ),
        (
            "peer moved",
            vec![|c| c.message(5, 0, 0, 0), |c| validation(c, 0)],
        ),
    ];
    ways.into_iter()
        .map(|(name, way)| {
            let mut c = Caller::new();
            for step in way {
                let _ = step(&mut c);
            }
            (name, c)
        })
        .collect()
}

#[test]
fn connection_meets_every_event_as_written_down() {
    let mut text = String::new();
    for (name, caller) in conn_situations() {
        writeln!(text, "{name:20} {:28} {}", "", caller.state()).unwrap();
        for (event, step) in conn_events() {
            let mut c = caller.clone();
            let result = step(&mut c);
            writeln!(text, "{name:20} {event:28} {result}; {}", c.state()).unwrap();
        }
    }
    written_down("conn", &text);
}

#[test]
fn urgent_byte_meets_every_event_as_written_down() {
    let inline: Step = |c| {
        c.conn.set_oob_inline(true);
        String::new()
    };
    let arrive: Step = |c| c.message(3, 0, PENDING | PRESENT, 0);
    let fetch: Step = |c| format!("push {}", c.conn.urgent_arrived(b'u'));
    let take: Step = |c| format!("{:?}", c.conn.take_urgent(false));
    let events: Vec<(&'static str, Step)> = vec![
        ("announced", |c| c.message(0, 0, PENDING, 0)),
        ("2 bytes, announced", |c| c.message(2, 0, PENDING, 0)),
        ("2 bytes, urgent", |c| c.message(2, 0, PENDING | PRESENT, 0)),
        ("urgent without bytes", |c| {
            c.message(0, 0, PENDING | PRESENT, 0)
        }),
        ("2 bytes", |c| c.message(2, 0, 0, 0)),
        ("value handed over", fetch),
        ("peek", |c| format!("{:?}", c.conn.take_urgent(true))),
        ("take", take),
        ("read all", Caller::read),
        ("read 1", |c| format!("{:?}", c.conn.consume(1))),
        ("begin to read", |c| {
            c.conn.leave_mark();
            String::new()
        }),
        ("inline", inline),
        ("apart", |c| {
            c.conn.set_oob_inline(false);
            String::new()
        }),
        ("plan", |c| c.plan(true)),
    ];
    let ways: Vec<(&'static str, Vec<Step>)> = vec![
        ("none", vec![]),
        ("pending", vec![|c| c.message(0, 0, PENDING, 0)]),
        ("here, no value", vec![arrive]),
        ("here", vec![arrive, fetch]),
        ("here, taken", vec![arrive, fetch, take]),
        ("here, at the mark", vec![arrive, fetch, Caller::read]),
        ("taken, passed", vec![arrive, fetch, take, Caller::read]),
        (
            "passed, more read",
            vec![
                arrive,
                fetch,
                Caller::read,
                |c| c.message(2, 0, 0, 0),
                Caller::read,
            ],
        ),
        (
            "alone",
            vec![|c| c.message(1, 0, PENDING | PRESENT, 0), fetch],
        ),
        ("inline, here", vec![inline, arrive, fetch]),
        ("inline, read", vec![inline, arrive, fetch, Caller::read]),
    ];
    let show = |c: &Caller| {
        let k = &c.conn;
        format!(
            "readable {} of {} valid {} mark {}",
            k.readable().total(),
            k.readable_len(),
            k.urgent_valid(),
            k.at_mark()
        )
    };
    let mut text = String::new();
    for (name, way) in ways {
        let mut start = Caller::new();
        for step in way {
            let _ = step(&mut start);
        }
        writeln!(text, "{name:20} {:22} {}", "", show(&start)).unwrap();
        for (event, step) in &events {
            let mut c = start.clone();
            let result = step(&mut c);
            writeln!(text, "{name:20} {event:22} {result}; {}", show(&c)).unwrap();
        }
    }
    written_down("urgent", &text);
}
