// SPDX-License-Identifier: GPL-2.0

//! What `getsockopt(SOL_SMC, SMC_RS_INFO)` tells about a socket: all in host byte order, zero where unknown.

use kernel::sync::atomic::Relaxed;

use crate::kapi::net::Open;

use super::{
    socket::SmcSock,
    state::Mode, //
};

/// Size of the answer.
const SIZE: usize = 152;

/// Version of the answer's layout.
const VERSION: u32 = 1;

/// Not decided yet: fresh, connecting, listening.
const MODE_UNDECIDED: u32 = 0;
/// RDMA.
const MODE_SMC: u32 = 1;
/// TCP.
const MODE_TCP: u32 = 2;

/// Writes the fields of the answer one after the other.
struct Writer {
    /// The answer.
    bytes: [u8; SIZE],
    /// Where the next field goes.
    at: usize,
}

impl Writer {
    /// Writes some bytes; what does not fit is left out.
    fn put(&mut self, field: &[u8]) {
        let end = self.at.saturating_add(field.len());
        if let Some(place) = self.bytes.get_mut(self.at..end) {
            place.copy_from_slice(field);
        }
        self.at = end;
    }

    /// Writes a number.
    fn put_u32(&mut self, number: u32) {
        self.put(&number.to_ne_bytes());
    }
}

/// The answer for `sk`.
pub(super) fn bytes(sk: Open<'_, SmcSock>) -> [u8; SIZE] {
    let mut out = Writer {
        bytes: [0; SIZE],
        at: 0,
    };
    let mode = match sk.mode() {
        Mode::Smc => MODE_SMC,
        Mode::Tcp => MODE_TCP,
        _ => MODE_UNDECIDED,
    };
    out.put_u32(VERSION);
    out.put_u32(mode);
    out.put_u32(u32::from(sk.state_number()));
    out.put_u32(sk.reason.load(Relaxed));
    out.put_u32(sk.peer_diagnosis.load(Relaxed));
    out.put_u32(2);
    out.bytes
}
