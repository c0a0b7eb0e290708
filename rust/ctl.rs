// SPDX-License-Identifier: GPL-2.0

//! What an operator's tools see and set: generic netlink ([`system`], [`pnet`]) and the list of sockets ([`diag`]).
//!
//! The numbers of commands and attributes are those that the tools of SMC know, `smcr`, `smcss`, `smc_pnet` and others.

mod devices;
mod diag;
mod eids;
mod groups;
mod pnet;
mod stats;
mod system;

use kernel::prelude::*;

use crate::{
    kapi::netlink::{
        diag as sock_diag,
        genl, //
    },
    proto::ids::Gid, //
};

/// The room's registrations. The fields go in this order.
pub(crate) struct Registration {
    /// What the module is and does.
    _system: genl::Registration<system::System>,
    /// Physical networks.
    _pnet: genl::Registration<pnet::PnetTable>,
    /// The list of sockets.
    _diag: sock_diag::Registration<diag::Sockets>,
}

impl Registration {
    /// Begins to answer.
    ///
    /// # Errors
    ///
    /// `EEXIST` when another implementation of SMC is there; `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let diag = sock_diag::Registration::new()?;
        let pnet = genl::Registration::new()?;
        let system = genl::Registration::new()?;
        Ok(Self {
            _system: system,
            _pnet: pnet,
            _diag: diag,
        })
    }
}

/// Length of a GID as text, with the zero at its end.
const GID_TEXT: usize = 40;

/// A GID as text: eight groups of four hexadecimal digits.
fn gid_text(gid: &Gid) -> [u8; GID_TEXT] {
    let digit = |value: u8| match value & 0xf {
        n @ 0..=9 => b'0'.wrapping_add(n),
        n => b'a'.wrapping_add(n.wrapping_sub(10)),
    };
    let mut out = [b':'; GID_TEXT];
    for (group, pair) in out.chunks_mut(5).zip(gid.0.chunks(2)) {
        let digits = pair.iter().flat_map(|b| [digit(b >> 4), digit(*b)]);
        for (to, c) in group.iter_mut().zip(digits) {
            *to = c;
        }
    }
    if let Some(last) = out.last_mut() {
        *last = 0;
    }
    out
}
