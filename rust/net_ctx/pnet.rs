// SPDX-License-Identifier: GPL-2.0

//! The table of a namespace that says which network interfaces and RDMA ports are of one physical network.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

use crate::proto::pnet::{
    interface_id,
    lookup,
    PnetId,
    Row,
    Target,
    ETHNAME_LEN,
    IBNAME_LEN, //
};

/// A row, with its name in place.
pub(crate) struct Entry {
    /// The id.
    id: PnetId,
    /// The name, padded with zeroes.
    name: [u8; IBNAME_LEN],
    /// Length of the name.
    len: usize,
    /// The port of an RDMA device; nothing for a network interface.
    port: Option<u8>,
}

impl Entry {
    /// From its parts, whose rules have been checked.
    fn new(row: &Row<'_>) -> Self {
        let (from, port) = match row.target {
            Target::Eth(name) => (name, None),
            Target::Ib(name, port) => (name, Some(port)),
        };
        let mut name = [0; IBNAME_LEN];
        for (to, byte) in name.iter_mut().zip(from) {
            *to = *byte;
        }
        Self {
            id: row.id,
            name,
            len: from.len().min(IBNAME_LEN),
            port,
        }
    }

    /// As the protocol core knows it.
    pub(crate) fn row(&self) -> Row<'_> {
        let name = self.name.get(..self.len).unwrap_or(&[]);
        Row {
            id: self.id,
            target: match self.port {
                None => Target::Eth(name),
                Some(port) => Target::Ib(name, port),
            },
        }
    }
}

/// Most rows of a table.
const MAX_ROWS: usize = 4096;

/// The table of a namespace.
#[pin_data]
pub(crate) struct Pnet {
    /// The rows in the order in which they came.
    #[pin]
    rows: Mutex<KVec<Entry>>,
}

const _: () = assert!(ETHNAME_LEN <= IBNAME_LEN);

impl Pnet {
    /// Empty.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            rows <- new_mutex!(KVec::new(), "Pnet::rows"),
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// `EEXIST` when the interface or port has an id; `EINVAL` for a name that is none; `ENOSPC`, `ENOMEM`.
    pub(crate) fn add(&self, row: &Row<'_>) -> Result {
        row.target.check().map_err(|_| EINVAL)?;
        let mut rows = self.rows.lock();
        if rows.iter().any(|e| e.row().target == row.target) {
            return Err(EEXIST);
        }
        if rows.len() >= MAX_ROWS {
            return Err(ENOSPC);
        }
        rows.push(Entry::new(row), GFP_KERNEL)?;
        Ok(())
    }

    /// Takes away all rows with this id; all rows without one.
    ///
    /// # Errors
    ///
    /// `ENOENT` when there is none with it.
    pub(crate) fn remove(&self, id: Option<PnetId>) -> Result {
        let mut rows = self.rows.lock();
        let before = rows.len();
        rows.retain(|e| id.is_some_and(|id| id != e.id));
        if id.is_some() && rows.len() == before {
            return Err(ENOENT);
        }
        Ok(())
    }

    /// Looks at the rows.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&[Entry]) -> R) -> R {
        look(&self.rows.lock())
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.with(|rows| rows.is_empty())
    }

    /// The id of an interface, given its name and that of the lowest one below it.
    pub(crate) fn of_interface(&self, base: &[u8], name: &[u8]) -> Option<PnetId> {
        // No device of this architecture says by itself where it is.
        let hardware = None;
        self.with(|rows| interface_id(hardware, rows.iter().map(Entry::row), base, name))
    }

    /// The id of a port of an RDMA device, given the names that the device goes by.
    pub(crate) fn of_port(&self, names: &[&[u8]], port: u8) -> Option<PnetId> {
        self.with(|rows| {
            names.iter().find_map(|name| {
                let target = Target::Ib(name, port);
                lookup(rows.iter().map(Entry::row), &target)
            })
        })
    }
}
