// SPDX-License-Identifier: GPL-2.0

//! Messages to tools: what generic netlink ([`genl`], [`event`]) and the socket dump ([`diag`]) have in common.
//!
//! C header: [`include/net/netlink.h`](srctree/include/net/netlink.h)

pub mod diag;
pub mod event;
pub mod genl;

use core::{
    marker::PhantomData,
    net::IpAddr,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*, //
};
use smc_bindings as bindings;

/// The attributes of a message that is being written.
///
/// Every function fails with `EMSGSIZE` when there is no room left; the message is then given up as a whole.
///
/// # Invariants
///
/// `skb` is valid, and the message is the last in it.
pub struct Attrs<'a> {
    /// Where the message is.
    skb: NonNull<bindings::sk_buff>,
    /// It belongs to the call.
    _call: PhantomData<&'a mut bindings::sk_buff>,
}

impl Attrs<'_> {
    /// Bytes as they are.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> Result {
        let len = c_int::try_from(value.len())?;
        // SAFETY: By the type invariant the message can be written to, and the value has that length.
        to_result(unsafe {
            bindings::nla_put(
                self.skb.as_ptr(),
                c_int::from(kind),
                len,
                value.as_ptr().cast(),
            )
        })
    }

    /// An address: 4 or 16 bytes as on the wire.
    pub fn ip(&mut self, kind: u16, value: IpAddr) -> Result {
        match value {
            IpAddr::V4(ip) => self.bytes(kind, &ip.octets()),
            IpAddr::V6(ip) => self.bytes(kind, &ip.octets()),
        }
    }

    /// An 8-bit number.
    pub fn u8(&mut self, kind: u16, value: u8) -> Result {
        self.bytes(kind, &[value])
    }

    /// A 16-bit number.
    pub fn u16(&mut self, kind: u16, value: u16) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A 32-bit number.
    pub fn u32(&mut self, kind: u16, value: u32) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A 64-bit number at an aligned place, with an attribute `pad` before it where that is necessary.
    pub fn u64(&mut self, kind: u16, value: u64, pad: u16) -> Result {
        // SAFETY: By the type invariant the message can be written to.
        to_result(unsafe {
            bindings::nla_put_u64_aligned(
                self.skb.as_ptr(),
                c_int::from(kind),
                value,
                c_int::from(pad),
            )
        })
    }

    /// A number of 32 bits where it fits, else of 64.
    pub fn uint(&mut self, kind: u16, value: u64) -> Result {
        // SAFETY: By the type invariant the message can be written to.
        to_result(unsafe {
            bindings::nla_put_variable(self.skb.as_ptr(), c_int::from(kind), value)
        })
    }

    /// Text, with a zero at its end.
    pub fn text(&mut self, kind: u16, value: &[u8]) -> Result {
        // SAFETY: By the type invariant the message can be written to, and the value has that length.
        to_result(unsafe {
            bindings::nla_put_text(
                self.skb.as_ptr(),
                c_int::from(kind),
                value.as_ptr().cast(),
                value.len(),
            )
        })
    }

    /// Attributes within one.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self) -> Result) -> Result {
        // SAFETY: By the type invariant the message can be written to.
        let nest = unsafe { bindings::nla_nest_begin(self.skb.as_ptr(), c_int::from(kind)) };
        if nest.is_null() {
            return Err(EMSGSIZE);
        }
        // What was begun is cut off with the message when this fails.
        fill(self)?;
        // SAFETY: The nest was begun above, in this message.
        unsafe { bindings::nla_nest_close(self.skb.as_ptr(), nest) };
        Ok(())
    }
}

/// The state of a dump that goes on over several calls.
///
/// # Invariants
///
/// `cb` is that of the call in progress.
struct Progress<'a> {
    /// The C object.
    cb: NonNull<bindings::netlink_callback>,
    /// It belongs to the call.
    _call: PhantomData<&'a mut bindings::netlink_callback>,
}

impl Progress<'_> {
    /// Two numbers that say how far the dump has come; zero at first.
    fn get(&self) -> [u64; 2] {
        // SAFETY: By the type invariant the object is the call's; the array is for the dump's own use.
        unsafe {
            (*self.cb.as_ptr())
                .__bindgen_anon_1
                .ctx
                .as_ptr()
                .cast::<[u64; 2]>()
                .read_unaligned()
        }
    }

    /// Stores them.
    fn set(&self, at: [u64; 2]) {
        // SAFETY: As above; the array is longer than this.
        unsafe {
            (&raw mut (*self.cb.as_ptr()).__bindgen_anon_1.ctx)
                .cast::<[u64; 2]>()
                .write_unaligned(at)
        };
    }
}

/// What a step of a dump answers to the kernel, given how it ended.
///
/// # Safety
///
/// `skb` must be valid.
unsafe fn dump_answer(skb: *const bindings::sk_buff, outcome: Result) -> c_int {
    // SAFETY: The caller vouches for it.
    let len = unsafe { (*skb).len };
    let len = c_int::try_from(len).unwrap_or(c_int::MAX);
    match outcome {
        // Full: the rest comes with the next call. Done: the next call finds nothing more.
        Ok(()) => len,
        Err(err) if err == EMSGSIZE && len > 0 => len,
        Err(err) => err.to_errno(),
    }
}
