// SPDX-License-Identifier: GPL-2.0

//! LLC messages as the tests of exchanges and links send them, one of each kind.

use crate::proto::ids::*;
use crate::proto::llc::{self, *};

/// The offer of link 2.
pub fn add_link() -> AddLink<'static> {
    AddLink {
        mac: Mac([2; 6]),
        gid: Gid::from_v4([10, 0, 0, 2]),
        qpn: Qpn::new(40).unwrap(),
        link_num: 2,
        mtu: MtuCode::B1024,
        psn: Psn::truncate(1),
        rejected: false,
        reject_reason: 0,
        ext: None,
    }
}

/// The end of one link that is lost.
pub fn delete(link_num: u8) -> DeleteLink {
    DeleteLink {
        link_num,
        all: false,
        orderly: false,
        reason: DeleteLink::LOST_PATH,
    }
}

/// The first message on a link.
pub fn confirm_link(link_num: u8) -> ConfirmLink {
    ConfirmLink {
        mac: Mac::ZERO,
        gid: Gid::ZERO,
        qpn: Qpn::default(),
        link_num,
        user_id: LinkUserId::default(),
        max_links: 2,
        max_conns: 255,
        no_eyecatcher: true,
    }
}

/// One message of each kind with its name. Where the receiver has link 1 and no link 9, the number
/// of what is to be deleted matters.
pub fn one_of_each() -> Vec<(&'static str, Body<'static>)> {
    let all = DeleteLink::everything(true, DeleteLink::PROGRAM);
    vec![
        ("CONFIRM LINK", Body::ConfirmLink(confirm_link(2))),
        ("ADD LINK", Body::AddLink(add_link())),
        ("ADD LINK CONT", Body::AddLinkCont(AddLinkCont::default())),
        ("DELETE LINK 1", Body::DeleteLink(delete(1))),
        ("DELETE LINK 9", Body::DeleteLink(delete(9))),
        ("DELETE LINK all", Body::DeleteLink(all)),
        ("REQ ADD LINK", Body::ReqAddLink(ReqAddLink::default())),
        (
            "CONFIRM RKEY",
            Body::ConfirmRkey(ConfirmRkey::single(Rkey(5), Vaddr(0x50))),
        ),
        (
            "CONFIRM RKEY CONT",
            Body::ConfirmRkeyCont(ConfirmRkeyCont::default()),
        ),
        ("TEST LINK", Body::TestLink([7; 16])),
        (
            "DELETE RKEY",
            Body::DeleteRkey(DeleteRkey::request(&[Rkey(1)])),
        ),
    ]
}

/// The version in which a kind exists, the first if there are two.
pub fn version(body: &Body<'_>) -> llc::Version {
    match body {
        Body::ReqAddLink(_) => llc::Version::V2,
        _ => llc::Version::V1,
    }
}
