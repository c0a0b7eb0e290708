// SPDX-License-Identifier: GPL-2.0

//! What a system call hands to a socket: messages, addresses, option values, splice requests.
//!
//! C header: [`include/linux/socket.h`](srctree/include/linux/socket.h)

use core::{
    marker::PhantomData,
    net::{
        IpAddr,
        Ipv4Addr,
        Ipv6Addr,
        SocketAddr, //
    },
};

use kernel::{
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    prelude::*, //
};
use smc_bindings as bindings;

use super::{
    unsigned,
    TcpSocket, //
};

/// Length of an IPv6 address of a program that knows no interface numbers.
const SIN6_LEN_RFC2133: usize = 24;

/// An address that a caller of `bind(2)` or `connect(2)` gave, in kernel memory.
///
/// # Invariants
///
/// `raw` points at storage for a `sockaddr_storage`, of which `len` bytes are the caller's.
pub struct Address<'a> {
    /// The bytes.
    pub(super) raw: *mut bindings::sockaddr_unsized,
    /// How many of them the caller gave.
    pub(super) len: kernel::ffi::c_int,
    /// The storage is borrowed.
    _storage: PhantomData<&'a mut [u8]>,
}

impl Address<'_> {
    /// Wraps an address.
    ///
    /// # Safety
    ///
    /// `raw` must point at initialised storage of `len` bytes within a `sockaddr_storage` for the lifetime.
    pub(super) unsafe fn from_raw(
        raw: *mut bindings::sockaddr_unsized,
        len: kernel::ffi::c_int,
    ) -> Self {
        // INVARIANT: The caller vouches for it.
        Self {
            raw,
            len,
            _storage: PhantomData,
        }
    }

    /// How many bytes the caller gave.
    pub fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(0)
    }

    /// The address family; nothing when the address is too short to have one.
    pub fn family(&self) -> Option<u32> {
        if self.len() < size_of::<bindings::sa_family_t>() {
            return None;
        }
        // SAFETY: By the type invariant the bytes of the family are there and initialised.
        let family = unsafe { (*self.raw).sa_family };
        Some(u32::from(family))
    }

    /// The address as that of an internet socket; nothing when it is none, or too short.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.family()? {
            bindings::AF_INET if self.len() >= size_of::<bindings::sockaddr_in>() => {
                // SAFETY: By the type invariant that many bytes are there; the storage is aligned for any address.
                let v4 = unsafe { self.raw.cast::<bindings::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            // The number of an interface at its end may be missing.
            bindings::AF_INET6 if self.len() >= SIN6_LEN_RFC2133 => {
                // SAFETY: By the type invariant the storage is that of a `sockaddr_storage`, initialised and aligned.
                let v6 = unsafe { self.raw.cast::<bindings::sockaddr_in6>().read() };
                // SAFETY: Every member of the union is plain bytes.
                let octets = unsafe { v6.sin6_addr.in6_u.u6_addr8 };
                Some(SocketAddr::new(
                    IpAddr::V6(Ipv6Addr::from(octets)),
                    u16::from_be(v6.sin6_port),
                ))
            }
            _ => None,
        }
    }

    /// Whether the bytes of an IPv4 address stand for "any address".
    ///
    /// `None` when the address is too short.
    pub fn is_any_v4(&self) -> Option<bool> {
        if self.len() < size_of::<bindings::sockaddr_in>() {
            return None;
        }
        let addr = self.raw.cast::<bindings::sockaddr_in>();
        // SAFETY: By the type invariant that many bytes are there; the storage is aligned for any address.
        let ip = unsafe { (*addr).sin_addr.s_addr };
        Some(ip == 0)
    }
}

/// A message on its way from an application.
pub struct SendMsg<'a> {
    /// The C object.
    pub(super) raw: *mut bindings::msghdr,
    /// Bytes to send.
    pub(super) len: usize,
    /// The object is the caller's.
    _msg: PhantomData<&'a mut bindings::msghdr>,
}

impl<'a> SendMsg<'a> {
    /// Wraps a message.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid message with a source iterator, used by nobody else for `'a`.
    pub(super) unsafe fn from_raw(raw: *mut bindings::msghdr, len: usize) -> Self {
        Self {
            raw,
            len,
            _msg: PhantomData,
        }
    }

    /// Bytes that the application wants to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The `MSG_` flags.
    pub fn flags(&self) -> u32 {
        // SAFETY: The message is valid for the lifetime of this object.
        unsafe { (*self.raw).msg_flags }
    }

    /// Whether the call must not wait.
    pub fn nonblocking(&self) -> bool {
        self.flags() & bindings::MSG_DONTWAIT != 0
    }

    /// Where the bytes come from.
    pub fn iter(&mut self) -> &mut IovIterSource<'a> {
        // SAFETY: The message is valid for the lifetime of this object.
        let iter = unsafe { &raw mut (*self.raw).msg_iter };
        // SAFETY: The iterator is the message's own; a message to send has a source.
        unsafe { IovIterSource::from_raw(iter.cast()) }
    }
}

/// A message on its way to an application.
pub struct RecvMsg<'a> {
    /// The C object.
    pub(super) raw: *mut bindings::msghdr,
    /// Room for bytes.
    pub(super) len: usize,
    /// The `MSG_` flags of the call.
    pub(super) flags: kernel::ffi::c_int,
    /// The object is the caller's.
    _msg: PhantomData<&'a mut bindings::msghdr>,
}

impl<'a> RecvMsg<'a> {
    /// Wraps a message.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid message with a destination iterator, used by nobody else for `'a`.
    pub(super) unsafe fn from_raw(
        raw: *mut bindings::msghdr,
        len: usize,
        flags: kernel::ffi::c_int,
    ) -> Self {
        Self {
            raw,
            len,
            flags,
            _msg: PhantomData,
        }
    }

    /// Bytes that the application has room for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The `MSG_` flags.
    pub fn flags(&self) -> u32 {
        unsigned(self.flags)
    }

    /// Whether the call must not wait.
    pub fn nonblocking(&self) -> bool {
        self.flags() & bindings::MSG_DONTWAIT != 0
    }

    /// Adds `MSG_` flags to those that the call tells its caller.
    pub fn report(&mut self, flags: u32) {
        // SAFETY: The message is valid for the lifetime of this object.
        unsafe { (*self.raw).msg_flags |= flags };
    }

    /// Tells those who asked for it how much is left to read: by `TCP_INQ`, as it is set on `tcp`, or by io_uring.
    pub fn tell_unread(&mut self, tcp: &TcpSocket, unread: impl FnOnce() -> u32) {
        // SAFETY: The message is valid for the lifetime of this object, and the socket by its type.
        if !unsafe { bindings::wants_unread(self.raw, tcp.sk()) } {
            return;
        }
        let unread = i32::try_from(unread()).unwrap_or(i32::MAX);
        // SAFETY: The message is valid for the lifetime of this object, and the socket by its type.
        unsafe { bindings::tell_unread(self.raw, tcp.sk(), unread) };
    }

    /// Says that the message has no sender's address.
    pub fn clear_name(&mut self) {
        // SAFETY: The message is valid for the lifetime of this object.
        unsafe { (*self.raw).msg_namelen = 0 };
    }

    /// Where the bytes go.
    pub fn iter(&mut self) -> &mut IovIterDest<'a> {
        // SAFETY: The message is valid for the lifetime of this object.
        let iter = unsafe { &raw mut (*self.raw).msg_iter };
        // SAFETY: The iterator is the message's own; a message to receive has a destination.
        unsafe { IovIterDest::from_raw(iter.cast()) }
    }
}

/// `MSG_` flags and the like, under their C names.
pub mod flag {
    use smc_bindings as bindings;

    /// Look at bytes without taking them.
    pub const MSG_PEEK: u32 = bindings::MSG_PEEK;
    /// Out-of-band byte.
    pub const MSG_OOB: u32 = bindings::MSG_OOB;
    /// Wait for all bytes.
    pub const MSG_WAITALL: u32 = bindings::MSG_WAITALL;
    /// Drop the bytes instead of copying them.
    pub const MSG_TRUNC: u32 = bindings::MSG_TRUNC;
    /// Read the queue of errors.
    pub const MSG_ERRQUEUE: u32 = bindings::MSG_ERRQUEUE;
    /// More bytes follow.
    pub const MSG_MORE: u32 = bindings::MSG_MORE;
    /// No signal when the pipe is broken.
    pub const MSG_NOSIGNAL: u32 = bindings::MSG_NOSIGNAL;
    /// Send the caller's pages, and report when they may be used again.
    pub const MSG_ZEROCOPY: u32 = bindings::MSG_ZEROCOPY;
    /// Open the connection with the first bytes.
    pub const MSG_FASTOPEN: u32 = bindings::MSG_FASTOPEN;
}

/// The value that a caller of `setsockopt(2)` gave.
pub struct OptionIn<'a> {
    /// Where it lies.
    pub(super) value: bindings::sockptr_t,
    /// Its size.
    pub(super) len: u32,
    /// The storage is the caller's.
    _value: PhantomData<&'a [u8]>,
}

impl OptionIn<'_> {
    /// Wraps a value.
    ///
    /// # Safety
    ///
    /// A pointer into the kernel must be valid for `len` bytes for the lifetime.
    pub(super) unsafe fn from_raw(value: bindings::sockptr_t, len: u32) -> Self {
        Self {
            value,
            len,
            _value: PhantomData,
        }
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        kernel::num::casts::u32_as_usize(self.len)
    }

    /// Reads it as an integer.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is shorter than one, `EFAULT`.
    pub fn read_int(&self) -> Result<i32> {
        let mut int = 0i32;
        if self.len() < size_of::<i32>() {
            return Err(EINVAL);
        }
        // SAFETY: `int` has room for the bytes; a pointer into user space is checked by the callee.
        let failed = unsafe {
            bindings::copy_from_sockptr((&raw mut int).cast(), self.value, size_of::<i32>())
        };
        if failed != 0 {
            return Err(EFAULT);
        }
        Ok(int)
    }
}

/// Where a caller of `getsockopt(2)` wants a value.
pub struct OptionOut<'a> {
    /// Where the bytes go, in user space.
    pub(super) value: *mut kernel::ffi::c_char,
    /// Where the size stands, in user space.
    pub(super) len: *mut kernel::ffi::c_int,
    /// They are the caller's.
    _value: PhantomData<&'a mut [u8]>,
}

impl OptionOut<'_> {
    /// Wraps the two pointers into user space, which are checked at every use.
    pub(super) fn from_raw(value: *mut kernel::ffi::c_char, len: *mut kernel::ffi::c_int) -> Self {
        Self {
            value,
            len,
            _value: PhantomData,
        }
    }

    /// Copies as much of `bytes` as the caller has room for, and tells how much that was.
    ///
    /// # Errors
    ///
    /// `EFAULT`; `EINVAL` for a negative size.
    pub fn write(&mut self, bytes: &[u8]) -> Result {
        let mut room = 0;
        // SAFETY: `room` is ours; the pointer into user space is checked by the callee.
        if unsafe { bindings::get_user_int(&mut room, self.len) } != 0 {
            return Err(EFAULT);
        }
        let room = usize::try_from(room).map_err(|_| EINVAL)?;
        let len = room.min(bytes.len());
        let told = i32::try_from(len).map_err(|_| EINVAL)?;
        // SAFETY: The pointer into user space is checked by the callee.
        if unsafe { bindings::put_user_int(told, self.len) } != 0 {
            return Err(EFAULT);
        }
        // SAFETY: `len` bytes of `bytes` are ours; the pointer into user space is checked by the callee.
        let left = unsafe { bindings::copy_to_user(self.value.cast(), bytes.as_ptr().cast(), len) };
        if left != 0 {
            return Err(EFAULT);
        }
        Ok(())
    }

    /// Writes an integer.
    ///
    /// # Errors
    ///
    /// `EFAULT`; `EINVAL` when there is no room for one.
    pub fn write_int(&mut self, int: i32) -> Result {
        let mut room = 0;
        // SAFETY: `room` is ours; the pointer into user space is checked by the callee.
        if unsafe { bindings::get_user_int(&mut room, self.len) } != 0 {
            return Err(EFAULT);
        }
        if usize::try_from(room).is_ok_and(|room| room < size_of::<i32>()) {
            return Err(EINVAL);
        }
        self.write(&int.to_ne_bytes())
    }
}

/// A request to move bytes from a socket into a pipe.
pub struct Splice<'a> {
    /// The socket of the descriptor.
    pub(super) outer: *mut bindings::socket,
    /// The position, which a socket does not have.
    pub(super) ppos: *mut bindings::loff_t,
    /// The pipe.
    pub(super) pipe: *mut bindings::pipe_inode_info,
    /// How many bytes at most.
    pub(super) len: usize,
    /// `SPLICE_F_` flags.
    pub(super) flags: u32,
    /// The objects are the caller's.
    _call: PhantomData<&'a mut bindings::pipe_inode_info>,
}

impl Splice<'_> {
    /// Wraps the arguments of `proto_ops::splice_read`.
    ///
    /// # Safety
    ///
    /// They must be those of a call in progress.
    pub(super) unsafe fn from_raw(
        outer: *mut bindings::socket,
        ppos: *mut bindings::loff_t,
        pipe: *mut bindings::pipe_inode_info,
        len: usize,
        flags: u32,
    ) -> Self {
        Self {
            outer,
            ppos,
            pipe,
            len,
            flags,
            _call: PhantomData,
        }
    }

    /// Moves the bytes by way of the socket's own `recvmsg`, copying them.
    pub fn by_copy(&mut self) -> Result<usize> {
        // SAFETY: A socket that a system call works on has a file.
        let file = unsafe { (*self.outer).file };
        // SAFETY: The arguments are those of a call in progress.
        let moved =
            unsafe { bindings::copy_splice_read(file, self.ppos, self.pipe, self.len, self.flags) };
        usize::try_from(moved).map_err(|_| Error::from_errno(i32::try_from(moved).unwrap_or(-22)))
    }
}

/// Writes an integer to the place in user space that a call's argument names.
///
/// # Errors
///
/// `EFAULT`.
pub fn put_int(place: usize, int: i32) -> Result {
    let place: *mut kernel::ffi::c_int = core::ptr::with_exposed_provenance_mut(place);
    // SAFETY: The pointer into user space is checked by the callee.
    if unsafe { bindings::put_user_int(int, place) } != 0 {
        return Err(EFAULT);
    }
    Ok(())
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_msg)]
mod tests {
    use super::*;

    /// An address of this family that stands for any.
    fn any(family: u32) -> bindings::__kernel_sockaddr_storage {
        let mut storage = bindings::__kernel_sockaddr_storage::default();
        let place: *mut bindings::sockaddr_in = (&raw mut storage).cast();
        // SAFETY: The storage has room and alignment for any address.
        unsafe { (*place).sin_family = family as u16 };
        storage
    }

    #[test]
    fn short_addresses_say_nothing() {
        let mut storage = any(bindings::AF_INET);
        for len in 0..128 {
            // SAFETY: The storage is initialised and this long.
            let addr = unsafe { Address::from_raw((&raw mut storage).cast(), len) };
            assert_eq!(addr.family(), (len >= 2).then_some(bindings::AF_INET));
            assert_eq!(addr.is_any_v4(), (len >= 16).then_some(true));
        }
        // SAFETY: As above; a negative length gives no bytes.
        let addr = unsafe { Address::from_raw((&raw mut storage).cast(), -1) };
        assert_eq!(addr.len(), 0);
        assert_eq!(addr.family(), None);
    }

    #[test]
    fn option_values_are_read_when_they_are_whole() {
        let value = 0x1234_5678i32;
        let place = (&raw const value).cast_mut().cast();
        for len in 0..8 {
            // SAFETY: The value lives in the kernel, for the time of the call; no more than its own bytes are read.
            let option = unsafe { OptionIn::from_raw(bindings::kernel_sockptr(place), len) };
            match option.read_int() {
                Ok(read) => assert!(len >= 4 && read == value),
                Err(e) => assert!(len < 4 && e == EINVAL),
            }
        }
    }
}
