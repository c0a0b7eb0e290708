// SPDX-License-Identifier: GPL-2.0

//! The kernel's sockets: a socket family of our own, the TCP sockets below it, and what belongs to a namespace.
//!
//! - [`Sock`] is a kernel `sock` with Rust data behind it; [`SocketOps`] says what its system calls do;
//!   [`SocketTypes`] registers it with the kernel.
//! - [`TcpSocket`] is a TCP socket that the kernel owns.
//! - [`WakeHook`] tells a [`Sock`] that something happened on a [`TcpSocket`].
//! - [`PerNet`] is data of each network namespace, [`sysctl`] its settings.

mod handle;
mod list;
mod msg;
pub mod netns;
mod ops;
pub mod option;
mod sock;
pub mod sysctl;
mod tcp;
mod types;
mod wait;
mod wake;

pub use handle::NetHandle;
pub use list::SockList;
pub use msg::{
    flag,
    put_int,
    Address,
    OptionIn,
    OptionOut,
    RecvMsg,
    SendMsg,
    Splice, //
};
pub use netns::{
    NetNs,
    NetRef,
    PerNet,
    PerNetPlace,
    PerNetRegistration, //
};
pub use ops::{
    Name,
    Origin,
    PollTable,
    SocketOps, //
};
pub use sock::{
    Family,
    Open,
    Sock,
    SockRef, //
};
pub use tcp::{
    PeerName,
    Shutdown,
    TcpSocket,
    TcpState, //
};
pub use types::{
    FamilyRegistration,
    SocketTypes,
    TypeNames,
    TypesRegistration,
    PROTOCOL_CONVERTED, //
};
pub use wait::Patience;
pub use wake::WakeHook;

/// Poll events, as in `poll(2)`.
pub mod events {
    use smc_bindings as bindings;

    /// Data can be read.
    pub const IN: u32 = bindings::EPOLLIN | bindings::EPOLLRDNORM;
    /// Urgent data can be read.
    pub const PRI: u32 = bindings::EPOLLPRI;
    /// Data can be written.
    pub const OUT: u32 = bindings::EPOLLOUT | bindings::EPOLLWRNORM;
    /// The socket has an error.
    pub const ERR: u32 = bindings::EPOLLERR;
    /// Both directions are closed.
    pub const HUP: u32 = bindings::EPOLLHUP;
    /// The peer writes no more.
    pub const RDHUP: u32 = bindings::EPOLLRDHUP;
}

/// A C struct of which all zero bytes are a value: its fields are numbers, and pointers that may be null.
///
/// # Safety
///
/// That has to be so.
unsafe trait Zeroed: Sized {
    /// The value of zero bytes.
    const ZERO: Self = {
        let zero = core::mem::MaybeUninit::zeroed();
        // SAFETY: By the trait's contract.
        unsafe { zero.assume_init() }
    };
}

// SAFETY: Numbers, and pointers to functions and objects as bindgen writes them: options and raw pointers.
unsafe impl Zeroed for smc_bindings::pernet_operations {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::ctl_table {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::nf_hook_ops {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::proto {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::proto_ops {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::inet_protosw {}
// SAFETY: As above.
unsafe impl Zeroed for smc_bindings::net_proto_family {}

/// The bits of a C integer that holds flags or a number that is not negative.
const fn unsigned(int: kernel::ffi::c_int) -> u32 {
    // CAST: Keeps the bits.
    int as u32
}

/// The opposite of [`unsigned`].
const fn signed(bits: u32) -> kernel::ffi::c_int {
    // CAST: Keeps the bits.
    bits as kernel::ffi::c_int
}
