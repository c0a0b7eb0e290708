// SPDX-License-Identifier: GPL-2.0

//! The list of sockets as `smcss` and others ask for it, in the kernel's layout for that.

use core::net::{
    IpAddr,
    SocketAddr, //
};

use kernel::prelude::*;
use zerocopy::IntoBytes;

use super::{
    gid_text,
    GID_TEXT, //
};
use crate::{
    kapi::{
        net::{
            Sock,
            SocketOps, //
        },
        netlink::diag::{
            Dump,
            Handler,
            HandlerPlace,
            Owner, //
        },
    },
    proto::{
        conn::Snapshot,
        ids::{
            Gid,
            Role, //
        },
    },
    smc_af::{
        socket_after,
        Described, //
    },
    smc_cdc::Info,
};

/// Extensions of an answer; also their attributes. What a request asks for is a mask with bit n - 1 for extension n.
mod extension {
    /// Rings and cursors.
    pub(super) const CONNINFO: u16 = 1;
    /// The link.
    pub(super) const LGRINFO: u16 = 2;
    /// What was shut down.
    pub(super) const SHUTDOWN: u16 = 3;
    /// Why it is one of TCP.
    pub(super) const FALLBACK: u16 = 5;
}

/// Where a request says which extensions it asks for.
const WANTED_AT: usize = 3;

/// Modes of a connection.
const MODE_SMCR: u8 = 0;
/// See [`MODE_SMCR`].
const MODE_TCP: u8 = 1;

/// Longest name of an RDMA device, with the zero at its end.
const DEVICE_NAME: usize = 64;

/// The beginning of an answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
struct Head {
    /// Address family of the socket.
    family: u8,
    /// Its state.
    state: u8,
    /// Its mode.
    mode: u8,
    /// Zero; the attribute has it.
    shutdown: u8,
    /// Ports in network byte order: its own and the peer's.
    ports: [[u8; 2]; 2],
    /// Addresses in network byte order: its own and the peer's; of IPv4 in the first four bytes.
    addresses: [[u8; 16]; 2],
    /// The interface that it is bound to.
    interface: u32,
    /// A number of its own.
    cookie: [u32; 2],
    /// Its owner.
    uid: u32,
    /// Number of its inode.
    inode: u64,
}

const _: () = assert!(size_of::<Head>() == 64);

/// Sizes of the rings; cursors follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
struct ConnInfo {
    /// Our alert token.
    token: u32,
    /// Size of the send ring in bytes.
    send_ring: u32,
    /// Size of the receive ring in bytes.
    receive_ring: u32,
    /// Size of the peer's receive ring in bytes.
    peer_ring: u32,
    /// Cursors and flags.
    cursors: [u8; Snapshot::LEN],
}

const _: () = assert!(size_of::<ConnInfo>() == 76);

/// The link of a connection.
#[derive(Clone, Copy, FromBytes, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
struct LgrInfo {
    /// Number of the link.
    link: u8,
    /// Name of the RDMA device.
    device: [u8; DEVICE_NAME],
    /// Its port.
    port: u8,
    /// Our GID as text.
    gid: [u8; GID_TEXT],
    /// The peer's.
    peer_gid: [u8; GID_TEXT],
    /// 0 for the client in the link group, 1 for the server.
    role: u8,
}

const _: () = assert!(size_of::<LgrInfo>() == 147);

/// Why a socket is one of TCP.
#[derive(Clone, Copy, FromBytes, IntoBytes, zerocopy_derive::Immutable)]
#[repr(C)]
struct Fallback {
    /// The reason.
    reason: u32,
    /// The diagnosis in the peer's Decline.
    peer_diagnosis: u32,
}

/// Where the kernel finds the handler.
static PLACE: HandlerPlace<Sockets> = HandlerPlace::new();

/// The handler.
pub(super) enum Sockets {}

impl Handler for Sockets {
    fn place() -> &'static HandlerPlace<Self> {
        &PLACE
    }

    fn dump(dump: &mut Dump<'_>) -> Result {
        let wanted = *dump.request().get(WANTED_AT).ok_or(EINVAL)?;
        let asks =
            |extension: u16| u32::from(wanted) & 1u32.wrapping_shl(u32::from(extension) - 1) != 0;
        while let Some((number, sk)) = socket_after(dump.net(), dump.position()) {
            let about = Described::of(&sk);
            let head = head(&sk, &about, &dump.owner(&sk));
            dump.message(head.as_bytes(), |to| {
                to.u8(extension::SHUTDOWN, about.shutdown)?;
                let fallback = Fallback {
                    reason: about.reason,
                    peer_diagnosis: about.peer_diagnosis,
                };
                to.bytes(extension::FALLBACK, fallback.as_bytes())?;
                let Some(conn) = &about.conn else {
                    return Ok(());
                };
                if asks(extension::CONNINFO) {
                    to.bytes(extension::CONNINFO, conn_info(conn).as_bytes())?;
                }
                if asks(extension::LGRINFO) {
                    to.bytes(extension::LGRINFO, lgr_info(conn).as_bytes())?;
                }
                Ok(())
            })?;
            dump.set_position(number);
        }
        Ok(())
    }
}

/// The beginning of the answer for a socket.
fn head<T: SocketOps>(sk: &Sock<T>, about: &Described, owner: &Owner) -> Head {
    let address = |addr: Option<SocketAddr>| {
        let mut bytes = [0; 16];
        let octets = match addr.map(|addr| addr.ip()) {
            None => return ([0; 2], bytes),
            Some(IpAddr::V6(ip)) => ip.octets(),
            Some(IpAddr::V4(ip)) => {
                for (to, from) in bytes.iter_mut().zip(ip.octets()) {
                    *to = from;
                }
                bytes
            }
        };
        (network_order(addr.map_or(0, |addr| addr.port())), octets)
    };
    let (port, local) = address(about.local);
    let (peer_port, peer) = address(about.peer);
    Head {
        family: u8::try_from(sk.family_number()).unwrap_or(0),
        state: about.state,
        mode: if about.is_tcp { MODE_TCP } else { MODE_SMCR },
        shutdown: 0,
        ports: [port, peer_port],
        addresses: [local, peer],
        interface: about.interface,
        cookie: owner.cookie,
        uid: owner.uid,
        inode: owner.inode,
    }
}

/// A port as it stands on the wire.
fn network_order(port: u16) -> [u8; 2] {
    let [hi, lo] = [port >> 8, port & 0xff];
    [hi, lo].map(|byte| u8::try_from(byte).unwrap_or(0))
}

/// Rings and cursors of a connection.
fn conn_info(conn: &Info) -> ConnInfo {
    ConnInfo {
        token: conn.token,
        send_ring: conn.send_ring,
        receive_ring: conn.receive_ring,
        peer_ring: conn.peer_ring,
        cursors: conn
            .cursors
            .as_ref()
            .map_or([0; Snapshot::LEN], Snapshot::diag_bytes),
    }
}

/// The link of a connection.
fn lgr_info(conn: &Info) -> LgrInfo {
    let group = &conn.group;
    let link = conn.link.as_ref();
    let peer_gid = link.and_then(|link| link.peer()).map(|peer| peer.gid);
    LgrInfo {
        link: link.map_or(0, |link| link.id().get()),
        device: link.map_or([0; 64], |link| link.start().device_name()),
        port: link.map_or(0, |link| u8::try_from(link.start().port()).unwrap_or(0)),
        gid: gid_text(&link.map_or(Gid::ZERO, |link| link.start().gid())),
        peer_gid: gid_text(&peer_gid.unwrap_or(Gid::ZERO)),
        role: match group.role() {
            Role::Client => 0,
            Role::Server => 1,
        },
    }
}
