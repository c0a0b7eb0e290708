// SPDX-License-Identifier: GPL-2.0

//! The enterprise ids of a namespace: two hosts that have one in common may use SMC-R.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};

use crate::proto::ids::Eid;

/// How many ids a namespace may have; what tools know.
const MAX_UEIDS: usize = 4;

/// The ids of a namespace, as a value.
#[derive(Clone, Copy)]
pub(crate) struct EidList {
    /// The ids; the first `len` are meant.
    ids: [Eid; MAX_UEIDS],
    /// How many there are.
    len: usize,
}

impl EidList {
    /// The ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Eid> + Clone + '_ {
        self.ids.iter().take(self.len).copied()
    }
}

/// The ids of a namespace. There is one at first, which all hosts with this module have.
#[pin_data]
pub(crate) struct Eids {
    /// The ids.
    #[pin]
    list: Mutex<EidList>,
}

impl Eids {
    /// The one that all have.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(EidList {
                ids: [Eid::DEFAULT; MAX_UEIDS],
                len: 1,
            }, "Eids::list"),
        })
    }

    /// The ids as they are now.
    pub(crate) fn list(&self) -> EidList {
        *self.list.lock()
    }

    /// Adds an id.
    ///
    /// # Errors
    ///
    /// `EEXIST` when it is there; `ERANGE` when there are as many as fit into a Proposal.
    pub(crate) fn add(&self, eid: Eid) -> Result {
        let mut list = self.list.lock();
        if list.iter().any(|e| e == eid) {
            return Err(EEXIST);
        }
        let len = list.len;
        *list.ids.get_mut(len).ok_or(ERANGE)? = eid;
        list.len = len.saturating_add(1);
        Ok(())
    }

    /// Takes an id away.
    ///
    /// # Errors
    ///
    /// `ENOENT` when it is not there.
    pub(crate) fn remove(&self, eid: Eid) -> Result {
        let mut list = self.list.lock();
        let at = list.iter().position(|e| e == eid).ok_or(ENOENT)?;
        let len = list.len;
        if let Some(rest) = list.ids.get_mut(at..len) {
            rest.rotate_left(1);
        }
        list.len = len.saturating_sub(1);
        Ok(())
    }

    /// Takes all ids away.
    pub(crate) fn clear(&self) {
        self.list.lock().len = 0;
    }
}
