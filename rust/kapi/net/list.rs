// SPDX-License-Identifier: GPL-2.0

//! All socks of the module, for whoever lists them: each is there from the time it is complete until it is destroyed.
//!
//! C header: [`include/net/sock.h`](srctree/include/net/sock.h)

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    NetNs,
    Sock,
    SockRef,
    SocketOps, //
};
use crate::{
    kapi::sync::BhLock,
    new_bh_lock, //
};

/// The namespace of a sock, as a number, then its number.
type Key = (usize, u64);

/// A sock in the list. The list holds no reference to it.
struct Entry<T: SocketOps>(NonNull<Sock<T>>);

// SAFETY: The pointer is only followed under the list's lock, by `SockList::after`.
unsafe impl<T: SocketOps> Send for Entry<T> {}

/// The socks of the module, by namespace, in the order in which they were made.
///
/// # Invariants
///
/// A sock that is in the tree has not been freed: its [`Place`] is dropped, under the lock, before it is.
#[pin_data]
pub struct SockList<T: SocketOps> {
    /// The socks.
    #[pin]
    tree: BhLock<RBTree<Key, Entry<T>>>,
    /// Number of the last one.
    last: Atomic<u64>,
}

impl<T: SocketOps> SockList<T> {
    /// An empty list.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                tree <- new_bh_lock!(RBTree::new(), "SockList::tree"),
                last: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Puts a sock into the list.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    ///
    /// # Safety
    ///
    /// What is returned must be dropped before the sock is freed.
    pub(super) unsafe fn enter(self: &Arc<Self>, sk: &Sock<T>) -> Result<Place<T>> {
        let number = self.last.fetch_add(1, Relaxed).wrapping_add(1);
        let key = (sk.net().as_raw().addr(), number);
        let node = RBTreeNode::new(key, Entry(sk.into()), GFP_KERNEL)?;
        // INVARIANT: The caller sees to it that the place goes before the sock.
        let old = self.tree.lock().insert(node);
        // Numbers do not come again.
        drop(old);
        Ok(Place {
            list: self.clone(),
            key,
        })
    }

    /// The sock of a namespace that was made next after the one with this number, and its number.
    pub fn after(&self, net: &NetNs, number: u64) -> Option<(u64, SockRef<T>)> {
        let net = net.as_raw().addr();
        let mut from = (net, number.checked_add(1)?);
        let tree = self.tree.lock();
        loop {
            let cursor = tree.cursor_lower_bound(&from)?;
            let (&(its_net, its_number), entry) = cursor.current();
            if its_net != net {
                return None;
            }
            // SAFETY: By the type invariant the sock has not been freed, and cannot be while the lock is held.
            if unsafe { bindings::sock_hold_alive(entry.0.as_ptr().cast()) } {
                // SAFETY: A reference was taken just now.
                return Some((its_number, unsafe { ARef::from_raw(entry.0) }));
            }
            // It is being destroyed.
            from = (net, its_number.checked_add(1)?);
        }
    }
}

/// A sock's place in the list; dropping it takes the sock out. Any context but hard-irq.
pub(super) struct Place<T: SocketOps> {
    /// The list.
    list: Arc<SockList<T>>,
    /// Where it is.
    key: Key,
}

impl<T: SocketOps> Drop for Place<T> {
    fn drop(&mut self) {
        let node = self.list.tree.lock().remove_node(&self.key);
        // Its memory is freed without the lock.
        drop(node);
    }
}
