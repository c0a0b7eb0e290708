// SPDX-License-Identifier: GPL-2.0

//! What `getsockopt(SOL_SMC, SMC_RS_INFO)` tells about a socket: all in host byte order, zero where unknown.

use kernel::{
    prelude::*,
    sync::atomic::Relaxed, //
};

use zerocopy::FromZeros;

use crate::{
    kapi::net::Open,
    proto::ids::Role, //
};

use super::{
    socket::SmcSock,
    state::Mode, //
};

/// Version of the answer's layout.
const VERSION: u32 = 1;

/// Not decided yet: fresh, connecting, listening.
const MODE_UNDECIDED: u32 = 0;
/// RDMA.
const MODE_SMC: u32 = 1;
/// TCP.
const MODE_TCP: u32 = 2;

/// Longest name of a device, with the zero at its end.
const DEVICE_NAME: usize = 64;

/// The answer, in the layout that user space knows.
#[derive(Clone, Copy, FromBytes, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
pub(super) struct Info {
    /// Version of this layout.
    version: u32,
    /// One of the `MODE_` numbers.
    mode: u32,
    /// The state number that the kernel's tools know.
    state: u32,
    /// Why the connection goes by TCP.
    fallback_reason: u32,
    /// The diagnosis in the peer's Decline.
    peer_diagnosis: u32,
    /// Version of SMC.
    smc_version: u32,
    /// Release of that version.
    smc_release: u32,
    /// Number of the link group.
    lgr_id: u32,
    /// Role in the link group: 0 client, 1 server.
    lgr_role: u32,
    /// Connections in the link group now.
    lgr_conns: u32,
    /// Number of the link in its group.
    link_id: u32,
    /// Whether this connection made the link group.
    first_contact: u32,
    /// Our alert token.
    token: u32,
    /// Size of the send ring in bytes.
    sndbuf: u32,
    /// Size of the receive ring in bytes.
    rmb: u32,
    /// Size of the peer's receive ring in bytes.
    peer_rmb: u32,
    /// Payload bytes taken from the application.
    tx_bytes: u64,
    /// Payload bytes given to the application.
    rx_bytes: u64,
    /// Port of the device.
    ib_port: u32,
    /// Zero.
    reserved: u32,
    /// Name of the device, with a zero at its end.
    ib_name: [u8; DEVICE_NAME],
}

const _: () = assert!(size_of::<Info>() == 152);

/// The answer for `sk`.
pub(super) fn of(sk: Open<'_, SmcSock>) -> Info {
    let mode = sk.mode();
    let mut info = Info {
        version: VERSION,
        mode: match mode {
            Mode::Smc => MODE_SMC,
            Mode::Tcp => MODE_TCP,
            _ => MODE_UNDECIDED,
        },
        state: u32::from(sk.state_number()),
        fallback_reason: sk.reason.load(Relaxed),
        peer_diagnosis: sk.peer_diagnosis.load(Relaxed),
        ..Info::new_zeroed()
    };
    let Ok(conn) = SmcSock::connection(&sk) else {
        return info;
    };
    let conn = conn.info();
    let group = &conn.group;
    info.state = u32::from(conn.state.number());
    info.smc_version = u32::from(group.version().number());
    info.smc_release = u32::from(group.release());
    info.lgr_id = group.id();
    info.lgr_role = match group.role() {
        Role::Client => 0,
        Role::Server => 1,
    };
    info.lgr_conns = group.conns();
    if let Some(link) = &conn.link {
        info.link_id = u32::from(link.id().get());
        info.ib_port = link.start().port();
        info.ib_name = link.start().device_name();
    }
    info.first_contact = u32::from(conn.first_contact);
    info.token = conn.token;
    info.sndbuf = conn.send_ring;
    info.rmb = conn.receive_ring;
    info.peer_rmb = conn.peer_ring;
    info.tx_bytes = conn.tx_bytes;
    info.rx_bytes = conn.rx_bytes;
    info
}
