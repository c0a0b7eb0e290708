// SPDX-License-Identifier: GPL-2.0

//! The list of a family's sockets, as `ss` and the like ask for it.
//!
//! C header: [`include/linux/sock_diag.h`](srctree/include/linux/sock_diag.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::NonNull,
    slice, //
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*, //
};
use smc_bindings as bindings;

use super::{
    dump_answer,
    Attrs,
    Progress, //
};
use crate::kapi::net::{
    NetNs,
    Sock,
    SocketOps, //
};

/// Answers for the sockets of a family.
pub trait Handler: Sized + 'static {
    /// Where its table is.
    fn place() -> &'static HandlerPlace<Self>;

    /// Lists sockets: called again, after as much as a message holds, until it has nothing to add.
    fn dump(dump: &mut Dump<'_>) -> Result;
}

/// The place of a [`Handler`]: a static.
pub struct HandlerPlace<H: Handler> {
    /// What the kernel registers.
    table: UnsafeCell<bindings::sock_diag_handler>,
    /// Whose it is.
    _handler: PhantomData<fn() -> H>,
}

// SAFETY: The table is written only by registration, before anybody can be asked for it.
unsafe impl<H: Handler> Sync for HandlerPlace<H> {}

impl<H: Handler> HandlerPlace<H> {
    /// An empty place.
    pub const fn new() -> Self {
        Self {
            table: UnsafeCell::new(bindings::sock_diag_handler {
                owner: core::ptr::null_mut(),
                family: 0,
                dump: None,
                get_info: None,
                destroy: None,
            }),
            _handler: PhantomData,
        }
    }
}

/// A registered handler; dropping it takes it away and waits for requests in progress.
#[must_use]
pub struct Registration<H: Handler>(PhantomData<fn() -> H>);

impl<H: Handler> Registration<H> {
    /// Registers the handler for the module's own family.
    ///
    /// # Errors
    ///
    /// `EBUSY` when there is one.
    pub fn new() -> Result<Self> {
        let table = H::place().table.get();
        let entry = bindings::sock_diag_handler {
            owner: kernel::module::this_module::<crate::LocalModule>()
                .as_ptr()
                .cast(),
            // CAST: A small constant.
            family: bindings::PF_SMC as u8,
            dump: Some(request::<H>),
            get_info: None,
            destroy: None,
        };
        // SAFETY: It is not registered yet, so that nobody else reads it.
        unsafe { table.write(entry) };
        // SAFETY: The table lives for ever.
        to_result(unsafe { bindings::sock_diag_register(table) })?;
        Ok(Self(PhantomData))
    }
}

impl<H: Handler> Drop for Registration<H> {
    fn drop(&mut self) {
        // SAFETY: It was registered when this object was made.
        unsafe { bindings::sock_diag_unregister(H::place().table.get()) };
    }
}

/// `sock_diag_handler::dump`.
///
/// # Safety
///
/// Called by the kernel with a request for the family.
unsafe extern "C" fn request<H: Handler>(
    skb: *mut bindings::sk_buff,
    nlh: *mut bindings::nlmsghdr,
) -> c_int {
    let owner = kernel::module::this_module::<crate::LocalModule>().as_ptr();
    // SAFETY: The kernel hands over valid objects; the function suits them.
    unsafe { bindings::diag_dump_start(skb, nlh, Some(step::<H>), owner.cast()) }
}

/// A step of a dump.
///
/// # Safety
///
/// Called by the kernel with room for messages.
unsafe extern "C" fn step<H: Handler>(
    skb: *mut bindings::sk_buff,
    cb: *mut bindings::netlink_callback,
) -> c_int {
    let (Some(to), Some(cb)) = (NonNull::new(skb), NonNull::new(cb)) else {
        return EINVAL.to_errno();
    };
    // INVARIANT: Both are those of this call.
    let mut dump = Dump {
        skb: to,
        progress: Progress {
            cb,
            _call: PhantomData,
        },
    };
    let outcome = H::dump(&mut dump);
    // SAFETY: The kernel hands over a valid message.
    unsafe { dump_answer(skb, outcome) }
}

/// Whose a socket is.
pub struct Owner {
    /// Number of its inode; 0 when its descriptor is closed.
    pub inode: u64,
    /// Its owner, as the reader sees that.
    pub uid: u32,
    /// A number of its own.
    pub cookie: [u32; 2],
}

/// A dump: a step of it.
///
/// # Invariants
///
/// Both are those of the call in progress.
pub struct Dump<'a> {
    /// Where the messages go.
    skb: NonNull<bindings::sk_buff>,
    /// How far it has come.
    progress: Progress<'a>,
}

impl<'a> Dump<'a> {
    /// The namespace that the request came from.
    pub fn net(&self) -> &'a NetNs {
        // SAFETY: By the type invariant the socket that reads is valid for the time of the call, and its namespace with it.
        unsafe { NetNs::from_raw(bindings::dump_net(self.skb.as_ptr())) }
    }

    /// The payload of the request.
    pub fn request(&self) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: By the type invariant the request is there for the time of the dump.
        let bytes = unsafe { bindings::dump_request(self.progress.cb.as_ptr(), &mut len) };
        // SAFETY: The kernel tells the length of the payload.
        unsafe { slice::from_raw_parts(bytes.cast(), len) }
    }

    /// A number that says how far the dump has come; zero at first.
    pub fn position(&self) -> u64 {
        let [at, _] = self.progress.get();
        at
    }

    /// Stores it for the next step.
    pub fn set_position(&mut self, at: u64) {
        self.progress.set([at, 0]);
    }

    /// Whose a socket is.
    pub fn owner<T: SocketOps>(&self, sk: &Sock<T>) -> Owner {
        let mut cookie = [0; 2];
        // SAFETY: The sock is valid, and the array has the length that the function writes.
        unsafe { bindings::sock_diag_save_cookie(sk.as_raw(), cookie.as_mut_ptr()) };
        Owner {
            // SAFETY: The sock is valid.
            inode: unsafe { bindings::sock_number(sk.as_raw()) },
            // SAFETY: Both are valid.
            uid: unsafe { bindings::sock_owner(self.skb.as_ptr(), sk.as_raw()) },
            cookie,
        }
    }

    /// Adds a message that begins with `head`.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` when it did not fit: return that, and begin with it at the next step.
    pub fn message(&mut self, head: &[u8], fill: impl FnOnce(&mut Attrs<'_>) -> Result) -> Result {
        // SAFETY: By the type invariant both are valid.
        let payload = unsafe {
            bindings::diag_message_new(self.skb.as_ptr(), self.progress.cb.as_ptr(), head.len())
        };
        let payload = NonNull::new(payload).ok_or(EMSGSIZE)?;
        // SAFETY: The payload has been made with this length.
        unsafe {
            core::ptr::copy_nonoverlapping(head.as_ptr(), payload.as_ptr().cast(), head.len())
        };
        // INVARIANT: The message was begun above.
        let mut attrs = Attrs {
            skb: self.skb,
            _call: PhantomData,
        };
        let outcome = fill(&mut attrs);
        match outcome {
            // SAFETY: The message was begun above.
            Ok(()) => unsafe { bindings::diag_message_end(self.skb.as_ptr(), payload.as_ptr()) },
            // SAFETY: As above.
            Err(_) => unsafe { bindings::diag_message_cancel(self.skb.as_ptr(), payload.as_ptr()) },
        }
        outcome
    }
}
