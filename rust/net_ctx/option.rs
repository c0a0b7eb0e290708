// SPDX-License-Identifier: GPL-2.0

//! The TCP option as the protocol core knows it, for the hooks that read and write it.

use crate::{
    kapi::net::option::{
        Codec,
        Edit, //
    },
    proto::tcpopt, //
};

/// Reads and plans by the protocol core.
pub(crate) const OPTION: Codec = Codec {
    offered: tcpopt::offered,
    plan,
};

/// How to add the option to a TCP header.
fn plan(header: &[u8], payload: bool) -> Option<Edit> {
    let edit = tcpopt::plan(header, payload).ok()?;
    Some(Edit {
        bytes: edit.bytes,
        offset_byte: edit.offset_byte,
    })
}
