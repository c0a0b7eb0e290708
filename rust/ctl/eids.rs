// SPDX-License-Identifier: GPL-2.0

//! Enterprise ids: listed, added, taken away.

use kernel::prelude::*;

use crate::{
    kapi::netlink::genl::{
        Dump,
        Request, //
    },
    net_ctx::NetCtx,
    proto::ids::{
        Eid,
        EID_LEN, //
    },
};

use super::system::command::DUMP_UEID;

/// Attribute with an id.
const ENTRY: u16 = 1;

/// Lists the ids, each padded with blanks as on the wire.
pub(super) fn dump(dump: &mut Dump<'_>) -> Result {
    let list = NetCtx::of(dump.net())?.eids().list();
    let [mut at, _] = dump.position();
    while let Some(eid) = usize::try_from(at).ok().and_then(|n| list.iter().nth(n)) {
        dump.message(DUMP_UEID, |message| message.text(ENTRY, &eid.0))?;
        at = at.saturating_add(1);
        dump.set_position([at, 0]);
    }
    Ok(())
}

/// The id of a request.
fn entry(request: &Request<'_>) -> Result<Eid> {
    let value = request.attr(ENTRY).ok_or(EINVAL).inspect_err(|_| {
        request.explain(c"the id is missing");
    })?;
    let name = match value {
        [name @ .., 0] => name,
        name => name,
    };
    if name.len() > EID_LEN {
        request.explain(c"an id has at most 32 characters");
        return Err(ERANGE);
    }
    Eid::new(name).map_err(|_| {
        request.explain(
            c"an id has capital letters, digits, points and hyphens, and begins with a letter or a digit",
        );
        EINVAL
    })
}

/// Adds an id.
pub(super) fn add(request: &Request<'_>) -> Result {
    let eid = entry(request)?;
    NetCtx::of(request.net())?
        .eids()
        .add(eid)
        .inspect_err(|err| {
            if *err == EEXIST {
                request.explain(c"the id is there already");
            } else if *err == ERANGE {
                request.explain(c"there are four ids: take one away first");
            }
        })
}

/// Takes an id away.
pub(super) fn remove(request: &Request<'_>) -> Result {
    let eid = entry(request)?;
    NetCtx::of(request.net())?
        .eids()
        .remove(eid)
        .inspect_err(|_| request.explain(c"there is no such id"))
}

/// Takes all ids away.
pub(super) fn flush(request: &Request<'_>) -> Result {
    NetCtx::of(request.net())?.eids().clear();
    Ok(())
}
