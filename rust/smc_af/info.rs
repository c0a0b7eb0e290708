// SPDX-License-Identifier: GPL-2.0

//! What `getsockopt(SOL_SMC, SMC_RS_INFO)` tells about a socket: all in host byte order, zero where unknown.

use kernel::sync::atomic::Relaxed;

use crate::{
    kapi::net::Open,
    proto::ids::Role, //
};

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

/// The state number that tools know: of a connection over RDMA, its close state.
fn state_number(sk: Open<'_, SmcSock>) -> u8 {
    match SmcSock::connection(&sk) {
        Ok(conn) => conn.info().state.number(),
        Err(_) => sk.state_number(),
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
    out.put_u32(u32::from(state_number(sk)));
    out.put_u32(sk.reason.load(Relaxed));
    out.put_u32(sk.peer_diagnosis.load(Relaxed));
    let Ok(conn) = SmcSock::connection(&sk) else {
        return out.bytes;
    };
    let info = conn.info();
    let group = &info.group;
    out.put_u32(2);
    out.put_u32(u32::from(group.release()));
    out.put_u32(group.id());
    out.put_u32(match group.role() {
        Role::Client => 0,
        Role::Server => 1,
    });
    out.put_u32(group.conns());
    out.put_u32(u32::from(group.link_id().get()));
    out.put_u32(u32::from(info.first_contact));
    out.put_u32(info.token);
    out.put_u32(info.send_ring);
    out.put_u32(info.receive_ring);
    out.put_u32(info.peer_ring);
    out.put(&info.tx_bytes.to_ne_bytes());
    out.put(&info.rx_bytes.to_ne_bytes());
    out.put_u32(group.path().port());
    out.put_u32(0);
    out.put(&group.path().device_name());
    out.bytes
}
