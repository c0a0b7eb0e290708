// SPDX-License-Identifier: GPL-2.0

//! The collisions of LLC exchanges: each row of RFC 7609, sections 3.5.5.3.1 to 3.5.5.3.3, with
//! what the section has the receiver do, up to the end of both exchanges.

use crate::proto::group::*;
use crate::proto::ids::*;
use crate::proto::llc::{self, *};

use crate::messages::{add_link, confirm_link, delete};

const V: llc::Version = llc::Version::V1;

/// The only link, which carries everything.
const LINK: usize = 0;

/// One side of a group, with an exchange of its own that awaits the answer of the peer.
struct Side {
    flows: Flows,
    own: FlowId,
}

impl Side {
    fn busy(role: Role, kind: Exchange) -> Self {
        let mut flows = Flows::new(role);
        let own = flows.begin(kind).unwrap();
        let opcode = match kind {
            Exchange::AddLink => Opcode::AddLink,
            Exchange::DeleteLink => Opcode::DeleteLink,
            Exchange::Rkey => Opcode::ConfirmRkey,
        };
        let awaited = Awaited {
            opcode,
            response: true,
            link: Some(LINK),
        };
        assert!(flows.expect(own, awaited));
        Self { flows, own }
    }

    /// A request of the peer comes.
    fn hears(&mut self, body: Body<'_>) -> Verdict {
        self.flows.arrived(&Llc::request(V, body), LINK)
    }

    /// The answer to the own request comes, and its exchange is over; gives what begins then.
    fn is_answered(&mut self, body: Body<'_>) -> Option<Next> {
        let verdict = self.flows.arrived(&Llc::response(V, body), LINK);
        assert_eq!(verdict, Verdict::Deliver(self.own));
        self.flows.finish(self.own)
    }
}

/// What a side answers at once.
fn answer(role: Role, body: Body<'_>) -> LlcReply {
    let mut rows = [RtokenEntry::EMPTY; 4];
    let links = [LinkId::new(1), None, None];
    let context = Context {
        role,
        link: LINK,
        links: &links,
    };
    let mut table = RtokenTable::new(&mut rows);
    respond(&Llc::request(V, body), &mut table, &context)
}

/// A TEST LINK is answered whatever is under way.
fn test_link_is_answered(role: Role, kind: Exchange) {
    let test = Body::TestLink(*b"0123456789abcdef");
    let mut side = Side::busy(role, kind);
    assert_eq!(side.hears(test), Verdict::Answer);
    let LlcReply::Send(bytes) = answer(role, test) else {
        panic!("{role:?} {kind:?}")
    };
    assert_eq!(Llc::decode(&bytes).unwrap(), Llc::response(V, test));
}

/// A DELETE LINK of the whole group ends it whatever is under way.
fn end_of_the_group_is_immediate(role: Role, kind: Exchange) {
    let all = Body::DeleteLink(DeleteLink::everything(true, DeleteLink::OPERATOR));
    assert_eq!(Side::busy(role, kind).hears(all), Verdict::Terminate);
    assert!(matches!(answer(role, all), LlcReply::Terminate { .. }));
}

fn key() -> ConfirmRkey {
    ConfirmRkey::single(Rkey(5), Vaddr(0x50))
}

/// The client's CONFIRM RKEY is refused by the server, which changes links, and told again once
/// the change is over at both sides.
fn key_is_told_again_afterwards(kind: Exchange, change: Body<'_>) {
    let mut server = Side::busy(Role::Server, kind);
    let mut client = Side::busy(Role::Client, Exchange::Rkey);
    assert_eq!(
        server.hears(Body::ConfirmRkey(key())),
        Verdict::RefuseForNow
    );
    let LlcReply::Send(refusal) = refuse_for_now(&Llc::request(V, Body::ConfirmRkey(key()))) else {
        panic!()
    };
    // The server's request crosses with it and is processed.
    assert_eq!(client.hears(change), Verdict::Start(kind));
    let change_of_links = client.flows.begin_for_peer(kind).unwrap();
    let refusal = Llc::decode(&refusal).unwrap();
    let Body::ConfirmRkey(m) = refusal.body else {
        panic!()
    };
    assert_eq!(judge_confirm_rkey(&key(), &m), Some(KeyAnswer::Later));
    assert_eq!(client.is_answered(refusal.body), None);
    // Not before the change is over.
    assert_eq!(client.flows.begin(Exchange::Rkey), Err(Busy));
    assert_eq!(server.is_answered(change), None);
    assert_eq!(client.flows.finish(change_of_links), None);
    client.flows.begin(Exchange::Rkey).unwrap();
    assert_eq!(server.hears(Body::ConfirmRkey(key())), Verdict::Answer);
}

/// The server has an exchange under way; the client's wish to end a link waits for its end.
fn deletion_waits(kind: Exchange, answered: Body<'_>) {
    let mut server = Side::busy(Role::Server, kind);
    assert_eq!(
        server.hears(Body::DeleteLink(delete(1))),
        Verdict::Parked,
        "{kind:?}"
    );
    assert_eq!(
        server.is_answered(answered),
        Some(Next::DeleteLink(delete(1)))
    );
}

/// The same with the client's ADD LINK.
fn addition_waits(kind: Exchange, answered: Body<'_>) {
    let mut server = Side::busy(Role::Server, kind);
    let wish = Body::AddLink(add_link());
    assert_eq!(server.hears(wish), Verdict::Parked, "{kind:?}");
    assert!(matches!(
        server.is_answered(answered),
        Some(Next::AddLink(_))
    ));
}

/// RFC 7609, section 3.5.5.3.1.
#[test]
fn collisions_with_add_link_and_confirm_link() {
    let add = Body::AddLink(add_link());
    for role in [Role::Server, Role::Client] {
        test_link_is_answered(role, Exchange::AddLink);
        end_of_the_group_is_immediate(role, Exchange::AddLink);
    }
    // ADD LINK of the client: it crosses with the server's, which is then its answer.
    let mut server = Side::busy(Role::Server, Exchange::AddLink);
    assert_eq!(server.hears(add), Verdict::Drop(Dropped::UnderWay));
    let mut client = Flows::new(Role::Client);
    let offer = Llc::request(V, add);
    assert_eq!(
        client.arrived(&offer, LINK),
        Verdict::Start(Exchange::AddLink)
    );
    let id = client.begin_for_peer(Exchange::AddLink).unwrap();
    assert_eq!(server.is_answered(add), None);
    assert_eq!(client.finish(id), None);
    deletion_waits(Exchange::AddLink, add);
    key_is_told_again_afterwards(Exchange::AddLink, add);
}

/// RFC 7609, section 3.5.5.3.2.
#[test]
fn collisions_during_delete_link() {
    let deletion = Body::DeleteLink(delete(1));
    for role in [Role::Server, Role::Client] {
        test_link_is_answered(role, Exchange::DeleteLink);
        end_of_the_group_is_immediate(role, Exchange::DeleteLink);
    }
    addition_waits(Exchange::DeleteLink, deletion);
    deletion_waits(Exchange::DeleteLink, deletion);
    key_is_told_again_afterwards(Exchange::DeleteLink, deletion);
}

/// RFC 7609, section 3.5.5.3.3.
#[test]
fn collisions_during_confirm_rkey() {
    let taken = Body::ConfirmRkey(key());
    for role in [Role::Server, Role::Client] {
        test_link_is_answered(role, Exchange::Rkey);
        end_of_the_group_is_immediate(role, Exchange::Rkey);
        // Keys of both sides do not collide (section 3.5.5.3).
        assert_eq!(
            Side::busy(role, Exchange::Rkey).hears(taken),
            Verdict::Answer
        );
    }
    addition_waits(Exchange::Rkey, taken);
    deletion_waits(Exchange::Rkey, taken);
    // ADD LINK and DELETE LINK of the server are processed, which is what the helper of the other
    // two sections shows from the client's side: its own CONFIRM RKEY is under way.
    key_is_told_again_afterwards(Exchange::AddLink, Body::AddLink(add_link()));
    key_is_told_again_afterwards(Exchange::DeleteLink, Body::DeleteLink(delete(1)));
    // CONFIRM LINK belongs to an exchange that the server has begun; nobody else starts one.
    let mut client = Side::busy(Role::Client, Exchange::Rkey);
    assert_eq!(
        client.hears(Body::ConfirmLink(confirm_link(2))),
        Verdict::Drop(Dropped::Unsolicited)
    );
}
