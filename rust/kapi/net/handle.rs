// SPDX-License-Identifier: GPL-2.0

//! A way to a network namespace for whoever does not keep it alive.

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::Arc, //
};
use smc_bindings as bindings;

use super::netns::NetNs;
use crate::kapi::sync::BhLock;

/// A namespace as long as it is there.
///
/// # Invariants
///
/// The pointer is that of a namespace whose exit has not yet called [`close`](Self::close).
#[pin_data]
pub struct NetHandle {
    /// The namespace; nothing once it goes.
    #[pin]
    net: BhLock<Option<NonNull<bindings::net>>>,
}

// SAFETY: The pointer is only used under the lock, while the namespace is there; any task may use that.
unsafe impl Send for NetHandle {}
// SAFETY: As for `Send`.
unsafe impl Sync for NetHandle {}

impl NetHandle {
    /// A way to `net`.
    ///
    /// # Safety
    ///
    /// [`close`](Self::close) must be called before the end of the exit of `net`.
    pub(super) unsafe fn new(net: &NetNs) -> Result<Arc<Self>> {
        let net = NonNull::new(net.as_raw());
        Arc::pin_init(
            // INVARIANT: The namespace is there, and the caller promises the rest.
            pin_init!(Self {
                net <- crate::new_bh_lock!(net, "NetHandle::net"),
            }),
            GFP_KERNEL,
        )
    }

    /// The namespace goes: nobody looks at it through this any more when the call returns.
    pub(super) fn close(&self) {
        *self.net.lock() = None;
    }

    /// Looks at the namespace if it is there. Any context but hard-irq; `look` must not sleep, nor come here again.
    pub fn with<R>(&self, look: impl FnOnce(&NetNs) -> R) -> Option<R> {
        let net = self.net.lock();
        let raw = (*net)?;
        // SAFETY: By the type invariant the namespace has not gone, and cannot before the lock is dropped.
        Some(look(unsafe { NetNs::from_raw(raw.as_ptr()) }))
    }
}
