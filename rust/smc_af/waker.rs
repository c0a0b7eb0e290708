// SPDX-License-Identifier: GPL-2.0

//! How a connection wakes its socket, which may not exist yet.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Release, //
        },
        Arc,
        SetOnce, //
    },
};

use crate::{
    kapi::{
        net::SockRef,
        sync::BhLock, //
    },
    new_bh_lock,
    smc_cdc::Wake, //
};

use super::{
    socket::SmcSock,
    HANDSHAKES, //
};

/// Wakes a socket once it is known; before that there is nobody to wake.
///
/// A connection holds it, and drops it when the socket is closed: that breaks the circle of references.
#[pin_data]
pub(super) struct SockWaker {
    /// The socket.
    sk: SetOnce<SockRef<SmcSock>>,
    /// An error that came before the socket did.
    early: Atomic<i32>,
    /// The listener, as long as it waits for the first bytes on the socket's behalf.
    #[pin]
    listener: BhLock<Option<SockRef<SmcSock>>>,
}

impl SockWaker {
    /// Wakes nobody yet.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                sk: SetOnce::new(),
                early: Atomic::new(0),
                listener <- new_bh_lock!(None, "SockWaker::listener"),
            }),
            GFP_KERNEL,
        )
    }

    /// Until there is a socket, `listener` runs its work item when something happens.
    pub(super) fn set_listener(&self, listener: SockRef<SmcSock>) {
        *self.listener.lock() = Some(listener);
    }

    /// Something has happened, and there is no socket.
    fn tell_listener(&self) {
        if let Some(sk) = self.listener.lock().as_ref() {
            sk.queue_work(&HANDSHAKES);
        }
    }

    /// From now on wakes `sk`, and gives it the error that came before.
    pub(super) fn set(&self, sk: SockRef<SmcSock>) {
        if self.sk.populate(sk) {
            self.pass_on();
        }
        let listener = self.listener.lock().take();
        drop(listener);
    }

    /// Gives the socket, if it is known, the error that waits, if one does.
    fn pass_on(&self) {
        let Some(sk) = self.sk.as_ref() else {
            return;
        };
        // ORDERING: Either the one who stored the error sees the socket, or the one who stored the socket sees the
        // error: both store first and look second.
        let errno = self.early.xchg(0, Full);
        if errno != 0 {
            sk.set_err(errno);
            sk.wake_error();
            // The peer learns of it by a reset of the TCP connection.
            sk.failed.store(1, Release);
            sk.queue_work(&HANDSHAKES);
        }
    }
}

impl Wake for SockWaker {
    fn readable(&self) {
        if let Some(sk) = self.sk.as_ref() {
            sk.wake_readable();
        } else {
            self.tell_listener();
        }
    }

    fn urgent(&self) {
        if let Some(sk) = self.sk.as_ref() {
            sk.wake_urgent();
        }
    }

    fn writable(&self) {
        if let Some(sk) = self.sk.as_ref() {
            sk.wake_writable();
        }
    }

    fn state(&self) {
        if let Some(sk) = self.sk.as_ref() {
            sk.wake_state();
        } else {
            self.tell_listener();
        }
    }

    fn failed(&self, error: Error) {
        self.early.xchg(error.to_errno().saturating_neg(), Full);
        self.pass_on();
    }
}
