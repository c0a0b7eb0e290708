// SPDX-License-Identifier: GPL-2.0

//! Being told when something happens on a TCP socket, without touching the socket's own callbacks.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h)

use kernel::{
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};
use smc_bindings as bindings;

use super::{
    SockRef,
    SocketOps,
    TcpSocket, //
};

/// Tells `sk` of every wake-up of `tcp`'s wait queue, until it is dropped.
///
/// # Invariants
///
/// The entry is queued on the wait queue of `tcp`, which this object keeps alive.
#[pin_data(PinnedDrop)]
pub struct WakeHook<T: SocketOps> {
    /// What stands in the queue.
    #[pin]
    entry: Opaque<bindings::wait_queue_entry>,
    /// Who is told.
    sk: SockRef<T>,
    /// Whose queue it is.
    tcp: Arc<TcpSocket>,
}

// SAFETY: The entry is only touched by the wait queue's own functions, under its lock; the rest is `Send`.
unsafe impl<T: SocketOps> Send for WakeHook<T> {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl<T: SocketOps> Sync for WakeHook<T> {}

impl<T: SocketOps> WakeHook<T> {
    /// Begins to tell `sk` of what happens on `tcp`.
    pub fn new(sk: SockRef<T>, tcp: Arc<TcpSocket>) -> Result<Pin<KBox<Self>>> {
        let init = pin_init!(Self {
            entry <- Opaque::ffi_init(|slot: *mut bindings::wait_queue_entry| {
                // SAFETY: `slot` is memory for an entry.
                unsafe {
                    bindings::init_waitqueue_func_entry(slot, Some(wake_callback::<T>));
                }
            }),
            sk,
            tcp,
        });
        let hook = KBox::pin_init(init, GFP_KERNEL)?;
        // INVARIANT: The entry is queued here and taken out in drop. It is the last thing done: a wake-up may come at
        // once.
        // SAFETY: The queue lives as long as `tcp`; the entry is initialised and pinned.
        unsafe { bindings::add_wait_queue(hook.tcp.wait_queue(), hook.entry.get()) };
        Ok(hook)
    }
}

#[pinned_drop]
impl<T: SocketOps> PinnedDrop for WakeHook<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant the entry is queued there. Afterwards no wake-up can find it, as the queue's
        // lock is held over every walk.
        unsafe { bindings::remove_wait_queue(self.tcp.wait_queue(), self.entry.get()) };
    }
}

/// `wait_queue_entry::func`.
///
/// # Safety
///
/// Called by the kernel under the wait queue's lock, for the entry of a live [`WakeHook`], in any context.
unsafe extern "C" fn wake_callback<T: SocketOps>(
    entry: *mut bindings::wait_queue_entry,
    _mode: c_uint,
    _flags: c_int,
    key: *mut c_void,
) -> c_int {
    // SAFETY: The entry is the field of a `WakeHook`; `Opaque` is a transparent wrapper.
    let hook = unsafe { kernel::container_of!(Opaque::cast_from(entry), WakeHook<T>, entry) };
    // SAFETY: The hook takes its entry out, under the lock that is held now, before it goes.
    let hook = unsafe { &*hook };
    // SAFETY: A wake-up's key is null or a set of poll events.
    let events = unsafe { bindings::key_to_poll(key) };
    T::on_tcp_event(&hook.sk, &hook.tcp, events);
    // An entry that wakes nobody does not count among the exclusive ones.
    0
}
