// SPDX-License-Identifier: GPL-2.0

//! What listeners are told when it happens, by the group `events` of the family `SMC_GEN_NETLINK`.
//!
//! Numbers of commands and attributes are far from those that tools of other implementations know.

use core::net::SocketAddr;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    kapi::{
        net::NetHandle,
        netlink::{
            event::Sender,
            Attrs, //
        },
    },
    proto::reason::DeclineReason, //
};

use super::Role;

/// Who sends; the family opens it.
pub(crate) static SENDER: Sender = Sender::new();

/// Name of the group.
pub(crate) const GROUP: &CStr = c"events";

/// The group among those of the family.
const GROUP_NUMBER: u32 = 0;

/// Numbers of the messages.
mod command {
    /// A connection went on by TCP.
    pub(super) const EVENT_FALLBACK: u8 = 64;
    /// A link group works.
    pub(super) const EVENT_LGR_UP: u8 = 65;
    /// A link group ends.
    pub(super) const EVENT_LGR_DOWN: u8 = 66;
    /// A link of a group works.
    pub(super) const EVENT_LINK_UP: u8 = 67;
    /// A link of a group ends.
    pub(super) const EVENT_LINK_DOWN: u8 = 68;
    /// Connections have left a link for another.
    pub(super) const EVENT_FAILOVER: u8 = 69;
}

/// Attributes of the messages.
mod event {
    /// Which end: 1 the server, 0 the client.
    pub(super) const SIDE: u16 = 1;
    /// Why a connection went on by TCP.
    pub(super) const REASON: u16 = 2;
    /// The diagnosis in the peer's Decline.
    pub(super) const PEER_DIAGNOSIS: u16 = 3;
    /// The peer's address: 4 or 16 bytes as on the wire.
    pub(super) const PEER_ADDR: u16 = 4;
    /// The peer's port.
    pub(super) const PEER_PORT: u16 = 5;
    /// Number of the link group.
    pub(super) const LGR_ID: u16 = 6;
    /// Number of the link.
    pub(super) const LINK_ID: u16 = 7;
    /// Name of the RDMA device.
    pub(super) const IB_DEV: u16 = 8;
    /// Its port.
    pub(super) const IB_PORT: u16 = 9;
    /// Why a link or a group ends.
    pub(super) const CAUSE: u16 = 10;
    /// How many connections.
    pub(super) const CONNS: u16 = 11;
}

/// Why a link or a group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is not needed any more.
    Unused,
    /// The module goes.
    Operator,
    /// The path broke, or the port or device has gone.
    LostPath,
    /// The peer broke the protocol.
    Violation,
    /// The peer said so.
    Peer,
}

impl Cause {
    /// The number that listeners know.
    const fn number(self) -> u32 {
        match self {
            Self::Unused => 1,
            Self::Operator => 2,
            Self::LostPath => 3,
            Self::Violation => 4,
            Self::Peer => 5,
        }
    }
}

/// A link, as listeners know it.
pub(crate) struct LinkName<'a> {
    /// Number of its group.
    pub(crate) group: u32,
    /// Its number in that.
    pub(crate) link: u8,
    /// Name of the RDMA device.
    pub(crate) device: &'a [u8],
    /// Its port.
    pub(crate) port: u32,
}

/// What has happened.
pub(crate) enum Event<'a> {
    /// A connection went on by TCP.
    Fallback {
        /// Which end this is.
        role: Role,
        /// Why.
        reason: DeclineReason,
        /// The diagnosis in the peer's Decline, 0 without one.
        peer_diagnosis: u32,
        /// The peer, if there is one.
        peer: Option<SocketAddr>,
    },
    /// A link group works.
    GroupUp {
        /// Its number.
        group: u32,
    },
    /// A link group ends.
    GroupDown {
        /// Its number.
        group: u32,
        /// Why.
        cause: Cause,
    },
    /// A link works.
    LinkUp(LinkName<'a>),
    /// A link ends.
    LinkDown(LinkName<'a>, Cause),
    /// Connections have left a link.
    Failover {
        /// Which.
        from: LinkName<'a>,
        /// How many.
        conns: u32,
    },
}

impl LinkName<'_> {
    /// Writes it.
    fn put(&self, to: &mut Attrs<'_>) -> Result {
        to.u32(event::LGR_ID, self.group)?;
        to.u8(event::LINK_ID, self.link)?;
        to.text(event::IB_DEV, self.device)?;
        to.u8(event::IB_PORT, u8::try_from(self.port)?)
    }
}

impl Event<'_> {
    /// The number of its message.
    const fn command(&self) -> u8 {
        match self {
            Self::Fallback { .. } => command::EVENT_FALLBACK,
            Self::GroupUp { .. } => command::EVENT_LGR_UP,
            Self::GroupDown { .. } => command::EVENT_LGR_DOWN,
            Self::LinkUp(_) => command::EVENT_LINK_UP,
            Self::LinkDown(..) => command::EVENT_LINK_DOWN,
            Self::Failover { .. } => command::EVENT_FAILOVER,
        }
    }

    /// Writes its message.
    fn put(&self, to: &mut Attrs<'_>) -> Result {
        match self {
            Self::Fallback {
                role,
                reason,
                peer_diagnosis,
                peer,
            } => {
                to.u8(event::SIDE, u8::from(*role == Role::Server))?;
                to.u32(event::REASON, reason.code())?;
                to.u32(event::PEER_DIAGNOSIS, *peer_diagnosis)?;
                let Some(peer) = peer else {
                    return Ok(());
                };
                to.ip(event::PEER_ADDR, peer.ip())?;
                to.u16(event::PEER_PORT, peer.port())
            }
            Self::GroupUp { group } => to.u32(event::LGR_ID, *group),
            Self::GroupDown { group, cause } => {
                to.u32(event::LGR_ID, *group)?;
                to.u32(event::CAUSE, cause.number())
            }
            Self::LinkUp(link) => link.put(to),
            Self::LinkDown(link, cause) => {
                link.put(to)?;
                to.u32(event::CAUSE, cause.number())
            }
            Self::Failover { from, conns } => {
                from.put(to)?;
                to.u32(event::CONNS, *conns)
            }
        }
    }
}

/// Tells the listeners of a namespace.
pub(crate) struct Events(Arc<NetHandle>);

impl Events {
    /// Those of a namespace.
    pub(super) fn new(handle: Arc<NetHandle>) -> Self {
        Self(handle)
    }

    /// Something has happened; without listeners that costs next to nothing. Any context but hard-irq.
    pub(crate) fn send(&self, event: &Event<'_>) {
        self.0.with(|net| {
            SENDER.send(net, GROUP_NUMBER, event.command(), |to| event.put(to));
        });
    }
}
