// SPDX-License-Identifier: GPL-2.0

//! Messages that a family of generic netlink sends by itself, to whoever has joined one of its groups.
//!
//! C header: [`include/net/genetlink.h`](srctree/include/net/genetlink.h)

use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full, //
        },
        rcu, //
    },
};
use smc_bindings as bindings;

use super::Attrs;
use crate::kapi::net::NetNs;

/// Sends to the groups of a family: a static, which does nothing while the family is not registered.
///
/// # Invariants
///
/// The pointer is null or that of a registered family, and it is cleared, and an RCU grace period passes, before that
/// ends.
pub struct Sender(Atomic<*mut bindings::genl_family>);

impl Sender {
    /// Without a family.
    pub const fn new() -> Self {
        Self(Atomic::new(ptr::null_mut()))
    }

    /// Begins to send for a family.
    ///
    /// # Safety
    ///
    /// `family` must be registered until [`close`](Self::close) has returned.
    pub(super) unsafe fn open(&self, family: NonNull<bindings::genl_family>) {
        // INVARIANT: The caller vouches for it.
        self.0.xchg(family.as_ptr(), Full);
    }

    /// Sends nothing any more. May sleep.
    pub(super) fn close(&self) {
        self.0.xchg(ptr::null_mut(), Full);
        // SAFETY: The function has no requirements but that the caller may sleep, which the documentation asks.
        unsafe { bindings::synchronize_rcu() };
    }

    /// Sends a message, marked with a command, to the listeners of a group in `net`. Without any `fill` is not called.
    /// What cannot be sent is lost. Any context but hard-irq; `fill` must not sleep.
    pub fn send(
        &self,
        net: &NetNs,
        group: u32,
        command: u8,
        fill: impl FnOnce(&mut Attrs<'_>) -> Result,
    ) {
        let _guard = rcu::read_lock();
        // ORDERING: Pairs with the full exchange in `open`, which publishes the registered family.
        let Some(family) = NonNull::new(self.0.load(Acquire)) else {
            return;
        };
        let family = family.as_ptr();
        // SAFETY: By the type invariant the family stays registered while the RCU read lock is held, and the namespace is
        // alive. The kernel checks the group.
        if !unsafe { bindings::genl_has_listeners(family, net.as_raw(), group) } {
            return;
        }
        // SAFETY: The function has no requirements.
        let Some(skb) = NonNull::new(unsafe { bindings::genl_event_new() }) else {
            return;
        };
        // SAFETY: The message is ours and the family registered.
        let head = unsafe { bindings::genlmsg_put(skb.as_ptr(), 0, 0, family, 0, command) };
        // INVARIANT: The message is valid, and the last in its buffer.
        let mut attrs = Attrs {
            skb,
            _call: PhantomData,
        };
        if head.is_null() || fill(&mut attrs).is_err() {
            // SAFETY: The message is ours.
            unsafe { bindings::reply_free(skb.as_ptr()) };
            return;
        }
        // SAFETY: The message was begun above.
        unsafe { bindings::genl_message_end(skb.as_ptr(), head) };
        // That nobody listens any more, or has no room, is no error here.
        // SAFETY: As for the listeners; the message is given away.
        let _ = unsafe { bindings::genl_multicast(family, net.as_raw(), skb.as_ptr(), group) };
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_event_sender)]
mod tests {
    use super::*;

    #[test]
    fn without_a_family_nothing_is_filled() {
        let sender = Sender::new();
        let mut filled = false;
        sender.send(NetNs::initial(), 0, 1, |_| {
            filled = true;
            Ok(())
        });
        assert!(!filled);
    }
}
