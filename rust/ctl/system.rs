// SPDX-License-Identifier: GPL-2.0

//! The family `SMC_GEN_NETLINK`: which commands there are, and those that are answered in a line.

use kernel::prelude::*;

use crate::{
    kapi::{
        netlink::{
            event::Sender,
            genl::{
                Command,
                Dump,
                Family,
                Request,
                Right, //
            }, //
        },
        uts::host_name, //
    },
    net_ctx::{
        NetCtx,
        EVENT_GROUP,
        EVENT_SENDER, //
    },
    proto::{
        clc::RELEASE,
        ids::Hostname, //
    },
};

use super::{
    devices,
    eids,
    groups,
    stats, //
};

/// Numbers of the commands.
pub(super) mod command {
    /// What the module can.
    pub(crate) const GET_SYS_INFO: u8 = 1;
    /// Link groups of SMC-R.
    pub(crate) const GET_LGR_SMCR: u8 = 2;
    /// The same with their links.
    pub(crate) const GET_LINK_SMCR: u8 = 3;
    /// Link groups of SMC-D.
    pub(crate) const GET_LGR_SMCD: u8 = 4;
    /// Devices of SMC-D.
    pub(crate) const GET_DEV_SMCD: u8 = 5;
    /// Devices of SMC-R.
    pub(crate) const GET_DEV_SMCR: u8 = 6;
    /// Counters.
    pub(crate) const GET_STATS: u8 = 7;
    /// Connections that went on by TCP.
    pub(crate) const GET_FBACK_STATS: u8 = 8;
    /// Enterprise ids.
    pub(crate) const DUMP_UEID: u8 = 9;
    /// Adds one.
    pub(crate) const ADD_UEID: u8 = 10;
    /// Takes one away.
    pub(crate) const REMOVE_UEID: u8 = 11;
    /// Takes all away.
    pub(crate) const FLUSH_UEID: u8 = 12;
    /// The id of the hardware.
    pub(crate) const DUMP_SEID: u8 = 13;
    /// Offers it.
    pub(crate) const ENABLE_SEID: u8 = 14;
    /// Does not offer it.
    pub(crate) const DISABLE_SEID: u8 = 15;
    /// Whether listeners limit the handshakes in progress.
    pub(crate) const DUMP_HS_LIMITATION: u8 = 16;
    /// They do.
    pub(crate) const ENABLE_HS_LIMITATION: u8 = 17;
    /// They do not.
    pub(crate) const DISABLE_HS_LIMITATION: u8 = 18;
    /// Connections by peer; not known to the tools of other implementations.
    pub(crate) const GET_PEER_STATS: u8 = 70;
}

use self::command::*;

/// Attribute around what the module can.
const SYS_INFO: u16 = 1;
/// Greatest attribute of a request.
const MAX_ATTR: u16 = 8;

/// Attributes within [`SYS_INFO`].
mod sys {
    /// Version of SMC.
    pub(super) const VER: u16 = 1;
    /// Release of that.
    pub(super) const REL: u16 = 2;
    /// Whether version 2 of SMC-D is there.
    pub(super) const IS_ISM_V2: u16 = 3;
    /// Name of this host.
    pub(super) const LOCAL_HOST: u16 = 4;
    /// Whether version 2 of SMC-R is there.
    pub(super) const IS_SMCR_V2: u16 = 6;
}

/// Attribute of the limit of handshakes.
const HS_LIMITATION_ENABLED: u16 = 1;

/// The family.
pub(super) enum System {}

impl Family for System {
    const NAME: &'static CStr = c"SMC_GEN_NETLINK";
    const VERSION: u8 = 1;
    const MAX_ATTR: u16 = MAX_ATTR;
    const GROUPS: &'static [&'static CStr] = &[EVENT_GROUP];
    const COMMANDS: &'static [Command] = &[
        dump(GET_SYS_INFO, sys_info),
        dump(GET_LGR_SMCR, groups::dump),
        dump(GET_LINK_SMCR, groups::dump_links),
        dump(GET_LGR_SMCD, nothing),
        dump(GET_DEV_SMCD, nothing),
        dump(GET_DEV_SMCR, devices::dump),
        dump(GET_STATS, stats::dump),
        dump(GET_FBACK_STATS, stats::dump_fallbacks),
        dump(GET_PEER_STATS, stats::dump_peers),
        dump(DUMP_UEID, eids::dump),
        single(ADD_UEID, Right::NamespaceAdmin, eids::add),
        single(REMOVE_UEID, Right::NamespaceAdmin, eids::remove),
        single(FLUSH_UEID, Right::NamespaceAdmin, eids::flush),
        dump(DUMP_SEID, empty_message),
        single(ENABLE_SEID, Right::Admin, no_hardware_id),
        single(DISABLE_SEID, Right::Admin, no_hardware_id),
        dump(DUMP_HS_LIMITATION, hs_limitation),
        single(ENABLE_HS_LIMITATION, Right::NamespaceAdmin, |request| {
            limit_hs(request, true)
        }),
        single(DISABLE_HS_LIMITATION, Right::NamespaceAdmin, |request| {
            limit_hs(request, false)
        }),
    ];

    fn sender() -> Option<&'static Sender> {
        Some(&EVENT_SENDER)
    }
}

/// A command that lists something.
const fn dump(number: u8, list: fn(&mut Dump<'_>) -> Result) -> Command {
    Command {
        number,
        right: Right::All,
        single: None,
        dump: Some(list),
    }
}

/// A command that changes something.
const fn single(number: u8, right: Right, change: fn(&Request<'_>) -> Result) -> Command {
    Command {
        number,
        right,
        single: Some(change),
        dump: None,
    }
}

/// Adds the only message of a dump.
pub(super) fn once(dump: &mut Dump<'_>, add: impl FnOnce(&mut Dump<'_>) -> Result) -> Result {
    if dump.position() == [0, 0] {
        add(dump)?;
        dump.set_position([1, 0]);
    }
    Ok(())
}

/// There is no SMC-D.
fn nothing(_dump: &mut Dump<'_>) -> Result {
    Ok(())
}

/// There is no hardware with an id: a message without attributes, as tools want one.
fn empty_message(dump: &mut Dump<'_>) -> Result {
    once(dump, |dump| dump.message(DUMP_SEID, |_| Ok(())))
}

/// There is no hardware with an id.
fn no_hardware_id(request: &Request<'_>) -> Result {
    request.explain(c"there is no SMC-D device with a system enterprise id");
    Err(EOPNOTSUPP)
}

/// What the module can.
fn sys_info(dump: &mut Dump<'_>) -> Result {
    once(dump, |dump| {
        let host = Hostname::clean(host_name().as_bytes());
        dump.message(GET_SYS_INFO, |message| {
            message.nest(SYS_INFO, |info| {
                info.u8(sys::VER, 2)?;
                info.u8(sys::REL, RELEASE)?;
                info.u8(sys::IS_ISM_V2, 0)?;
                info.u8(sys::IS_SMCR_V2, 1)?;
                info.text(sys::LOCAL_HOST, host.name())
            })
        })
    })
}

/// Whether listeners limit the handshakes in progress.
fn hs_limitation(dump: &mut Dump<'_>) -> Result {
    once(dump, |dump| {
        let on = NetCtx::of(dump.net())?.settings().limit_smc_hs();
        dump.message(DUMP_HS_LIMITATION, |message| {
            message.u8(HS_LIMITATION_ENABLED, u8::from(on))
        })
    })
}

/// Sets that.
fn limit_hs(request: &Request<'_>, on: bool) -> Result {
    NetCtx::of(request.net())?.settings().set_limit_smc_hs(on);
    Ok(())
}
