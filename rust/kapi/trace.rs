// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of the system `smc`. Those that are off cost next to nothing.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h)

use smc_bindings as bindings;

use crate::kapi::net::{
    Sock,
    SocketOps,
    TcpSocket, //
};

/// The name of an RDMA device, ended by a zero byte.
pub type DeviceName = [u8; 64];

/// The device's name with a zero at its end, whatever it was.
fn ended(mut name: DeviceName) -> DeviceName {
    if let Some(last) = name.last_mut() {
        *last = 0;
    }
    name
}

/// `smc_switch_to_fallback`: a socket goes on by TCP, for a reason.
pub fn fallback<T: SocketOps>(sk: &Sock<T>, tcp: &TcpSocket, reason: u32) {
    // SAFETY: Both sockets are alive for the call; their addresses are written down.
    unsafe { bindings::trace_fallback(sk.as_raw(), tcp.sk(), reason) };
}

/// `smc_tx_sendmsg`: a socket sent bytes over a device, whose name is asked for when somebody listens.
pub fn sent<T: SocketOps>(sk: &Sock<T>, bytes: usize, device: impl FnOnce() -> DeviceName) {
    // SAFETY: The function has no requirements.
    if unsafe { bindings::trace_tx_enabled() } {
        let name = ended(device());
        // SAFETY: The socket is alive for the call, and the name ends with a zero.
        unsafe { bindings::trace_tx(sk.as_raw(), bytes, name.as_ptr().cast()) };
    }
}

/// `smc_rx_recvmsg`: a socket received bytes over a device, whose name is asked for when somebody listens.
pub fn received<T: SocketOps>(sk: &Sock<T>, bytes: usize, device: impl FnOnce() -> DeviceName) {
    // SAFETY: The function has no requirements.
    if unsafe { bindings::trace_rx_enabled() } {
        let name = ended(device());
        // SAFETY: The socket is alive for the call, and the name ends with a zero.
        unsafe { bindings::trace_rx(sk.as_raw(), bytes, name.as_ptr().cast()) };
    }
}

/// `smcr_link_down`: a link of a group ends, in the namespace of a cookie and in a state.
pub fn link_down<L, G>(link: &L, group: &G, cookie: u64, state: u32, device: DeviceName) {
    let name = ended(device);
    let (link, group) = (core::ptr::from_ref(link), core::ptr::from_ref(group));
    // SAFETY: The addresses are written down and not followed; the name ends with a zero.
    unsafe {
        bindings::trace_link_down(
            link.cast(),
            group.cast(),
            cookie,
            state,
            name.as_ptr().cast(),
        )
    };
}

/// `smc_conn_state`: a connection, known by its alert token, goes from one state to another. Any context.
pub fn conn_state<C>(conn: &C, cookie: u64, token: u32, old: u8, new: u8) {
    // SAFETY: The address is written down and not followed.
    unsafe {
        bindings::trace_conn_state(core::ptr::from_ref(conn).cast(), cookie, token, old, new)
    };
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kernel::prelude::kunit_tests(smc_kapi_trace)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ended() {
        assert_eq!(ended([b'x'; 64])[62..], [b'x', 0]);
    }
}
