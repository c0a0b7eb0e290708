// SPDX-License-Identifier: GPL-2.0

//! The family `SMC_PNETID`: the table of physical networks, listed and changed.

use kernel::prelude::*;

use crate::{
    kapi::netlink::{
        genl::{
            Command,
            Dump,
            Family,
            Request,
            Right, //
        },
        Attrs, //
    },
    net_ctx::NetCtx,
    proto::pnet::{
        PnetId,
        Row,
        Target,
        ETHNAME_LEN,
        IBNAME_LEN,
        MAX_PORTS, //
    },
};

/// Lists the table, or the rows of one id.
const GET: u8 = 1;
/// Adds rows.
const ADD: u8 = 2;
/// Takes the rows of an id away.
const DEL: u8 = 3;
/// Takes all rows away.
const FLUSH: u8 = 4;

/// Attribute with an id.
const NAME: u16 = 1;
/// Attribute with the name of a network interface.
const ETHNAME: u16 = 2;
/// Attribute with the name of an RDMA device.
const IBNAME: u16 = 3;
/// Attribute with the number of its port.
const IBPORT: u16 = 4;

/// What stands in place of the name that a row does not have.
const NO_NAME: &[u8] = b"n/a";
/// And of the port.
const NO_PORT: u8 = 0xff;

/// The longest id in a request, with the zero at its end and blanks that are cut.
const ID_LIMIT: usize = 17;

/// The family.
pub(super) enum PnetTable {}

impl Family for PnetTable {
    const NAME: &'static CStr = c"SMC_PNETID";
    const VERSION: u8 = 1;
    const MAX_ATTR: u16 = IBPORT;
    const COMMANDS: &'static [Command] = &[
        Command {
            number: GET,
            right: Right::All,
            single: Some(get),
            dump: Some(dump),
        },
        Command {
            number: ADD,
            right: Right::NamespaceAdmin,
            single: Some(add),
            dump: None,
        },
        Command {
            number: DEL,
            right: Right::NamespaceAdmin,
            single: Some(delete),
            dump: None,
        },
        Command {
            number: FLUSH,
            right: Right::NamespaceAdmin,
            single: Some(flush),
            dump: None,
        },
    ];
}

/// Writes a row.
fn put(message: &mut Attrs<'_>, row: &Row<'_>) -> Result {
    message.text(NAME, row.id.name())?;
    let (eth, ib, port) = match row.target {
        Target::Eth(name) => (name, NO_NAME, NO_PORT),
        Target::Ib(name, port) => (NO_NAME, name, port),
    };
    message.text(ETHNAME, eth)?;
    message.text(IBNAME, ib)?;
    message.u8(IBPORT, port)
}

/// Lists the table.
fn dump(dump: &mut Dump<'_>) -> Result {
    let ctx = NetCtx::of(dump.net())?;
    let [start, _] = dump.position();
    let skip = usize::try_from(start)?;
    ctx.pnet().with(|rows| {
        for (at, entry) in (start..).zip(rows.iter().skip(skip)) {
            dump.message(GET, |message| put(message, &entry.row()))?;
            dump.set_position([at.saturating_add(1), 0]);
        }
        Ok(())
    })
}

/// The id of a request.
fn id(request: &Request<'_>) -> Result<PnetId> {
    let name = request.text(NAME, ID_LIMIT).inspect_err(|_| {
        request.explain(c"an id has at most 16 characters");
    })?;
    let id = name.and_then(|name| PnetId::new(name).ok());
    id.ok_or(EINVAL).inspect_err(|_| {
        request.explain(c"an id of 1 to 16 letters and digits is wanted");
    })
}

/// Answers with the rows of an id.
fn get(request: &Request<'_>) -> Result {
    let id = id(request)?;
    let ctx = NetCtx::of(request.net())?;
    request.reply(GET, |reply| {
        ctx.pnet().with(|rows| {
            rows.iter()
                .map(|entry| entry.row())
                .filter(|row| row.id == id)
                .try_for_each(|row| reply.message(|message| put(message, &row)))
        })
    })
}

/// Adds a row for the network interface, the RDMA port, or both.
fn add(request: &Request<'_>) -> Result {
    let id = id(request)?;
    let ctx = NetCtx::of(request.net())?;
    let eth = request.text(ETHNAME, ETHNAME_LEN).inspect_err(|_| {
        request.explain(c"the name of the interface is too long");
    })?;
    let ib = request.text(IBNAME, IBNAME_LEN).inspect_err(|_| {
        request.explain(c"the name of the RDMA device is too long");
    })?;
    let port = match request.attr(IBPORT) {
        None => 1,
        Some([port]) if (1..=MAX_PORTS).contains(port) => *port,
        Some(_) => {
            request.explain(c"a port is 1 or 2");
            return Err(EINVAL);
        }
    };
    if eth.is_none() && ib.is_none() {
        request.explain(c"an interface or an RDMA device is wanted");
        return Err(EINVAL);
    }
    let targets = [eth.map(Target::Eth), ib.map(|name| Target::Ib(name, port))];
    // One that is there already is no error as long as the other is new.
    let mut added = false;
    for target in targets.into_iter().flatten() {
        match ctx.pnet().add(&Row { id, target }) {
            Ok(()) => added = true,
            Err(err) if err == EEXIST => (),
            Err(err) => {
                request.explain(c"the name of the interface or of the RDMA device is none");
                return Err(err);
            }
        }
    }
    if added {
        return Ok(());
    }
    request.explain(c"it has an id already");
    Err(EEXIST)
}

/// Takes the rows of an id away.
fn delete(request: &Request<'_>) -> Result {
    let id = id(request)?;
    NetCtx::of(request.net())?
        .pnet()
        .remove(Some(id))
        .inspect_err(|_| request.explain(c"there is no such id"))
}

/// Takes all rows away.
fn flush(request: &Request<'_>) -> Result {
    NetCtx::of(request.net())?.pnet().remove(None)
}
