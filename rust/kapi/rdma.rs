// SPDX-License-Identifier: GPL-2.0

//! RDMA verbs: devices, address resolution, memory regions and reliable-connected queue pairs.
//!
//! # How the pieces hold each other
//!
//! [`Device`] stands for an RDMA device that a [`Client`] was told of. Whatever needs the device itself (a protection
//! domain, a mapping, a queue pair) holds a [`DeviceUse`]. When the device goes, the client is told, no new use can
//! begin, and the removal does not finish before the last use has ended. So a use proves that the device is there, and
//! it is the client's duty to end its uses soon.
//!
//! ```text
//!   Client ── Device ──enter()──▶ DeviceUse ◀── Pd ◀── Qp<H, S> ──posts──▶ Mapped (send ring), Mr (receive ring)
//!                                                        │ owns one completion queue
//!                                                        ▼
//!                                                   H: QpEvents, called in softirq
//! ```
//!
//! A [`Qp`] has its state in its type; only one that is ready to send can post. Every posted work request holds what
//! it points at until its completion was seen or the queue pair is destroyed.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::ptr::NonNull;

use kernel::error::{
    to_result,
    Result, //
};
use smc_bindings as bindings;

mod about;
mod device;
mod mr;
mod qp;
mod route;

pub use about::Pci;
pub use device::{
    Client,
    ClientPlace,
    ClientRegistration,
    Device,
    DeviceEvent,
    DeviceUse,
    GidEntry,
    GidKind,
    Limits,
    PortState, //
};
pub use mr::{
    Mapped,
    Mr,
    Pd, //
};
pub use qp::{
    Closing,
    Init,
    Message,
    Qp,
    QpConfig,
    QpEvents,
    RemoteEnd,
    Rtr,
    Rts,
    Write,
    MAX_WRITES, //
};
pub use route::{
    gid_of,
    interface,
    ip_of,
    resolve,
    subnets,
    Ends,
    Interface,
    Route, //
};

/// A reference to a network namespace, of whatever kind.
///
/// # Safety
///
/// `as_net()` returns a namespace that stays valid for as long as `self` is borrowed.
pub unsafe trait AsNet {
    /// The namespace.
    fn as_net(&self) -> NonNull<bindings::net>;
}

/// Turns the pointer-or-error value of a C function into a `Result`.
fn from_err_ptr<T>(ptr: *mut T) -> Result<NonNull<T>> {
    let addr = ptr.addr();
    // The last page of the address space holds negated error numbers.
    if addr >= usize::MAX - 4094 {
        let negated = addr.wrapping_neg();
        return Err(i32::try_from(negated)
            .ok()
            .and_then(|code| to_result(code.wrapping_neg()).err())
            .unwrap_or(kernel::error::code::EINVAL));
    }
    NonNull::new(ptr).ok_or(kernel::error::code::EINVAL)
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kernel::prelude::kunit_tests(smc_kapi_rdma)]
mod tests {
    use kernel::error::code::*;

    use super::*;

    #[test]
    fn pointers_and_errors_are_told_apart() {
        // SAFETY: Only makes a pointer of a number.
        let err = |errno: isize| unsafe { bindings::err_ptr(errno) }.cast::<u8>();
        assert!(matches!(from_err_ptr(err(-12)), Err(e) if e == ENOMEM));
        assert!(matches!(from_err_ptr(err(-1)), Err(e) if e == EPERM));
        // The largest error number, and the first address that is none.
        assert!(from_err_ptr(err(-4095)).is_err());
        assert!(from_err_ptr(err(-4096)).is_ok());
        assert!(matches!(from_err_ptr(err(0)), Err(e) if e == EINVAL));
        let byte = 1u8;
        let place = core::ptr::from_ref(&byte).cast_mut();
        assert!(matches!(from_err_ptr(place), Ok(p) if p.as_ptr() == place));
    }
}
