// SPDX-License-Identifier: GPL-2.0

//! From an IPv4 address to the interface and to the Ethernet address of the next hop.
//!
//! C header: [`include/rdma/ib_addr.h`](srctree/include/rdma/ib_addr.h)

use core::{
    mem::size_of,
    ptr, //
};

use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    types::Opaque, //
};
use smc_bindings as bindings;

use super::AsNet;
use crate::kapi::event::Event;

/// The address family of IPv4.
const AF_INET: u16 = 2;

/// How long the first attempt waits for the next hop, each further one twice as long.
const FIRST_STEP_MS: u32 = 20;

/// How a peer is reached.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Ethernet address of the next hop: the peer's own if it is on the same network.
    pub next_hop: [u8; 6],
    /// Ethernet address of the interface on which the way begins.
    pub source: [u8; 6],
    /// Whether a router lies between.
    pub gateway: bool,
}

/// Room for the name of an interface, padded with zeroes.
pub type InterfaceName = [u8; 16];

/// By which interface packets from `local` to `peer` leave `net`, and the lowest one below that; nothing without a
/// route. What stays on this machine goes by the interface that has the address.
pub fn interfaces(
    net: &impl AsNet,
    local: [u8; 4],
    peer: [u8; 4],
) -> Option<(InterfaceName, InterfaceName)> {
    let (mut name, mut base) = ([0; 16], [0; 16]);
    // SAFETY: The namespace is valid for this call by the contract of `AsNet`, and each array has room for a name.
    let found = unsafe {
        bindings::route_names(
            net.as_net().as_ptr(),
            u32::from_ne_bytes(local),
            u32::from_ne_bytes(peer),
            name.as_mut_ptr().cast(),
            base.as_mut_ptr().cast(),
        )
    };
    found.then_some((name, base))
}

/// What a resolution writes to while it runs.
#[pin_data]
struct Request {
    /// In and out of the RDMA core.
    #[pin]
    addr: Opaque<bindings::rdma_dev_addr>,
    /// Result of the resolution, valid once `done` has happened.
    status: Atomic<i32>,
    /// The callback has been called.
    #[pin]
    done: Event,
}

impl Request {
    /// The resolution has ended.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with the context that [`resolve`] passed, which lives until after this call.
    unsafe extern "C" fn finished(
        status: i32,
        _src: *mut bindings::sockaddr,
        _addr: *mut bindings::rdma_dev_addr,
        context: *mut c_void,
    ) {
        // SAFETY: `context` is the request of `resolve`, which waits for this callback before it frees it.
        let request = unsafe { &*context.cast::<Request>() };
        request.status.store(status, Release);
        request.done.set();
    }
}

/// An IPv4 socket address as C wants it.
fn sockaddr(addr: [u8; 4]) -> bindings::sockaddr_in {
    bindings::sockaddr_in {
        sin_family: AF_INET,
        sin_addr: bindings::in_addr {
            s_addr: u32::from_ne_bytes(addr),
        },
        ..Default::default()
    }
}

/// Looks up the route from `local` to `peer` in `net` and resolves the Ethernet address of its next hop.
///
/// With an interface's index in `via` the way begins there, as if the peer were on its network if no route says
/// otherwise. May sleep, for at most `timeout_ms`.
///
/// # Errors
///
/// `ENETUNREACH`, `EHOSTUNREACH` and the like without a route; `ETIMEDOUT` when the next hop does not answer.
pub fn resolve(
    net: &impl AsNet,
    via: Option<i32>,
    local: [u8; 4],
    peer: [u8; 4],
    timeout_ms: u32,
) -> Result<Route> {
    let mut left = timeout_ms;
    let mut step = FIRST_STEP_MS;
    loop {
        // The RDMA core asks for the address, and does not notice an answer that comes before it waits for one.
        let now = left.min(step);
        match resolve_once(net, via, local, peer, now) {
            Err(e) if e == ETIMEDOUT && left > now => {}
            result => return result,
        }
        left = left.saturating_sub(now);
        step = step.saturating_mul(2);
    }
}

/// One attempt of [`resolve`].
fn resolve_once(
    net: &impl AsNet,
    via: Option<i32>,
    local: [u8; 4],
    peer: [u8; 4],
    timeout_ms: u32,
) -> Result<Route> {
    let addr = bindings::rdma_dev_addr {
        net: net.as_net().as_ptr(),
        bound_dev_if: via.unwrap_or(0),
        ..Default::default()
    };
    let request = KBox::pin_init(
        pin_init!(Request {
            addr: Opaque::new(addr),
            status: Atomic::new(0),
            done <- Event::new(),
        }),
        GFP_KERNEL,
    )?;
    let mut src = sockaddr(local);
    let dst = sockaddr(peer);
    const {
        assert!(size_of::<bindings::sockaddr_in>() == size_of::<bindings::sockaddr>());
    }
    let context: *const Request = &*request;
    // SAFETY: Both socket addresses are copied during the call. The request stays valid until its callback has been
    // called, which is awaited below, and the namespace is valid for this call by the contract of `AsNet`.
    let ret = unsafe {
        bindings::rdma_resolve_ip(
            (&raw mut src).cast(),
            (&raw const dst).cast(),
            request.addr.get(),
            usize::try_from(timeout_ms)?,
            Some(Request::finished),
            false,
            context.cast_mut().cast(),
        )
    };
    to_result(ret)?;
    // The core calls back at its own time-out; waiting a little longer than that is a last resort.
    request.done.wait_ms(timeout_ms.saturating_add(1000));
    // SAFETY: The address is that of the resolution. Afterwards the core does not use the request any more, whether its
    // callback has been called or not.
    unsafe { bindings::rdma_addr_cancel(request.addr.get()) };
    if !request.done.is_set() {
        return Err(ETIMEDOUT);
    }
    to_result(request.status.load(Acquire))?;
    // SAFETY: The resolution has ended, so that nobody writes the address any more.
    let resolved = unsafe { ptr::read(request.addr.get()) };
    let [a, b, c, d, e, f, ..] = resolved.dst_dev_addr;
    let [s, t, u, v, w, x, ..] = resolved.src_dev_addr;
    Ok(Route {
        next_hop: [a, b, c, d, e, f],
        source: [s, t, u, v, w, x],
        gateway: resolved.network == bindings::rdma_network_type_RDMA_NETWORK_IPV4,
    })
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_route)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_have_room() {
        assert_eq!(
            u32::try_from(size_of::<InterfaceName>()),
            Ok(bindings::IFNAMSIZ)
        );
    }

    #[test]
    fn addresses_are_as_c_wants_them() {
        assert_eq!(u32::from(AF_INET), bindings::AF_INET);
        let addr = sockaddr([10, 1, 2, 3]);
        assert_eq!(addr.sin_family, AF_INET);
        assert_eq!(addr.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
    }
}
