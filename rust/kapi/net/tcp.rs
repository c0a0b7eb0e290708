// SPDX-License-Identifier: GPL-2.0

//! A TCP socket that the kernel owns: it carries the handshake, and everything when SMC-R cannot be used.
//!
//! C header: [`include/linux/net.h`](srctree/include/linux/net.h)

use core::{
    mem::MaybeUninit,
    net::{
        IpAddr,
        Ipv4Addr,
        Ipv6Addr,
        SocketAddr,
        SocketAddrV6, //
    },
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_long, //
    },
    prelude::*, //
};
use smc_bindings as bindings;

use super::{
    unsigned,
    Address,
    Family,
    Name,
    NetNs,
    NetRef,
    OptionIn,
    OptionOut,
    Patience,
    PollTable,
    RecvMsg,
    SendMsg,
    Sock,
    SocketOps,
    Splice, //
};

/// Which directions of a connection to close.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// No more reading.
    Read,
    /// No more writing.
    Write,
    /// Neither.
    Both,
}

impl Shutdown {
    /// Reads the argument of `shutdown(2)`.
    pub fn from_raw(how: c_int) -> Option<Self> {
        match how {
            0 => Some(Self::Read),
            1 => Some(Self::Write),
            2 => Some(Self::Both),
            _ => None,
        }
    }

    /// The C constant.
    fn as_raw(self) -> c_int {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Both => 2,
        }
    }

    /// Whether reading ends.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether writing ends.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

/// What matters of a TCP connection's state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    /// Not connected, or not any more.
    Closed,
    /// On the way to a connection.
    Opening,
    /// Waits for connections.
    Listening,
    /// Connected, perhaps closed by one side.
    Open,
}

/// The name of the other end of a connection, as the kernel writes it.
pub struct PeerName {
    /// The address.
    storage: bindings::__kernel_sockaddr_storage,
    /// Its length.
    len: c_int,
}

/// A TCP socket of the kernel that holds its network namespace.
///
/// All methods may sleep unless they say otherwise. It must be dropped where sleeping is allowed: the drop closes the
/// connection and honours `SO_LINGER`.
///
/// # Invariants
///
/// `sock` is a valid socket with a TCP `sock`, owned by this object.
pub struct TcpSocket {
    /// The C object.
    sock: NonNull<bindings::socket>,
}

// SAFETY: The kernel's sockets are made for use by many tasks: every operation takes the locks that it needs.
unsafe impl Send for TcpSocket {}
// SAFETY: As for `Send`.
unsafe impl Sync for TcpSocket {}

impl TcpSocket {
    /// Makes a socket in `net`.
    ///
    /// # Errors
    ///
    /// Those of `socket(2)`.
    pub fn new(net: &NetNs, family: Family) -> Result<Self> {
        let mut sock = ptr::null_mut();
        // SAFETY: The namespace is alive and `sock` is ours.
        to_result(unsafe {
            bindings::sock_create_kern(
                net.as_raw(),
                family.as_raw(),
                // CAST: A small constant.
                bindings::sock_type_SOCK_STREAM as c_int,
                bindings::IPPROTO_TCP as c_int,
                &mut sock,
            )
        })?;
        // INVARIANT: The call succeeded.
        let this = Self {
            sock: NonNull::new(sock).ok_or(ENOMEM)?,
        };
        // SAFETY: A kernel's socket does not count its namespace; this one has to, as it may outlive its descriptor.
        unsafe { bindings::sk_net_refcnt_upgrade(this.sk()) };
        Ok(this)
    }

    /// The C socket.
    pub(super) fn as_raw(&self) -> *mut bindings::socket {
        self.sock.as_ptr()
    }

    /// The C sock, which stays the same until release.
    pub(in crate::kapi) fn sk(&self) -> *mut bindings::sock {
        // SAFETY: By the type invariant the socket is valid, and nobody changes the field before release.
        unsafe { (*self.as_raw()).sk }
    }

    /// The queue of those who wait for this socket.
    pub(super) fn wait_queue(&self) -> *mut bindings::wait_queue_head {
        // SAFETY: By the type invariant the socket is valid; only an address is made.
        unsafe { &raw mut (*self.as_raw()).wq.wait }
    }

    /// The socket's operations.
    fn ops(&self) -> &'static bindings::proto_ops {
        // SAFETY: By the type invariant the socket is valid.
        let place = unsafe { &raw const (*self.as_raw()).ops };
        // SAFETY: As above; the read is volatile, as IPV6_ADDRFORM may change the field.
        let ops = unsafe { ptr::read_volatile(place) };
        // SAFETY: TCP's operation tables are statics of the kernel itself.
        unsafe { &*ops }
    }

    /// The namespace of the socket.
    pub fn net(&self) -> NetRef {
        // SAFETY: By the type invariant the sock is valid.
        let net = unsafe { bindings::sock_net(self.sk()) };
        // SAFETY: The sock holds a reference to its namespace.
        unsafe { NetNs::from_raw(net) }.into()
    }

    /// Binds the socket to an address.
    pub fn bind(&self, addr: &Address<'_>) -> Result {
        let op = self.ops().bind.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid, and so is the address by its type.
        to_result(unsafe { op(self.as_raw(), addr.raw, addr.len) })
    }

    /// Connects as `connect(2)` does, waiting or not.
    pub fn connect(&self, addr: &Address<'_>, nonblocking: bool) -> Result {
        let op = self.ops().connect.ok_or(EOPNOTSUPP)?;
        let flags = if nonblocking { O_NONBLOCK } else { 0 };
        // SAFETY: The socket is valid, and so is the address by its type.
        to_result(unsafe { op(self.as_raw(), addr.raw, addr.len, flags) })
    }

    /// Asks what became of a connect that did not wait: `EALREADY` while it goes on.
    ///
    /// After any other answer the socket is either connected or ready for another connect.
    pub fn finish_connect(&self) -> Result {
        let op = self.ops().connect.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid; without an address the call only completes what has begun.
        to_result(unsafe { op(self.as_raw(), ptr::null_mut(), 0, O_NONBLOCK) })
    }

    /// Forgets the connection, resetting it if there is one: the socket can connect again.
    pub fn disconnect(&self) {
        let Some(op) = self.ops().connect else {
            return;
        };
        let mut addr = bindings::sockaddr {
            // CAST: A small constant.
            sa_family: bindings::AF_UNSPEC as bindings::sa_family_t,
            ..Default::default()
        };
        // CAST: The size of a struct.
        let len = size_of::<bindings::sockaddr>() as c_int;
        // SAFETY: The socket is valid and the address ours; of an address without a family no more is read.
        unsafe { op(self.as_raw(), (&raw mut addr).cast(), len, O_NONBLOCK) };
    }

    /// Keeps the name of the other end for [`connect_again`](Self::connect_again).
    ///
    /// # Errors
    ///
    /// `ENOTCONN`.
    pub fn peer_name(&self) -> Result<PeerName> {
        let mut storage = bindings::__kernel_sockaddr_storage::default();
        let len = self.raw_name((&raw mut storage).cast(), 1)?;
        Ok(PeerName { storage, len })
    }

    /// Forgets the connection and begins another one to the same end, without waiting for it.
    ///
    /// # Errors
    ///
    /// Those of `connect(2)`, but for `EINPROGRESS`.
    pub fn connect_again(&self, peer: &PeerName) -> Result {
        self.disconnect();
        let op = self.ops().connect.ok_or(EOPNOTSUPP)?;
        // The kernel may write to it.
        let mut storage = peer.storage;
        let name = (&raw mut storage).cast();
        // SAFETY: The socket is valid and the address ours.
        match to_result(unsafe { op(self.as_raw(), name, peer.len, O_NONBLOCK) }) {
            Err(err) if err != EINPROGRESS => Err(err),
            _ => Ok(()),
        }
    }

    /// Begins to accept connections, or changes the length of the queue.
    pub fn listen(&self, backlog: c_int) -> Result {
        let op = self.ops().listen.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid.
        to_result(unsafe { op(self.as_raw(), backlog) })
    }

    /// Takes a connection that waits; `EAGAIN` when there is none.
    pub fn accept(&self) -> Result<Self> {
        let ops = self.ops();
        let op = ops.accept.ok_or(EOPNOTSUPP)?;
        let sk = self.sk();
        let mut new = ptr::null_mut();
        // SAFETY: By the type invariant the sock is valid; these fields never change.
        let (family, kind) = unsafe { ((*sk).__sk_common.skc_family, (*sk).sk_type) };
        // SAFETY: `new` is ours.
        to_result(unsafe {
            bindings::sock_create_lite(
                c_int::from(family),
                c_int::from(kind),
                bindings::IPPROTO_TCP as c_int,
                &mut new,
            )
        })?;
        let new = NonNull::new(new).ok_or(ENOMEM)?;
        // SAFETY: Both sockets are valid; the new one is not known to anybody else.
        unsafe { bindings::sock_inode_copy_uid(new.as_ptr(), self.as_raw()) };
        let mut arg = bindings::proto_accept_arg {
            flags: O_NONBLOCK,
            kern: true,
            ..Default::default()
        };
        // SAFETY: Both sockets are valid and the argument is ours.
        let ret = unsafe { op(self.as_raw(), new.as_ptr(), &mut arg) };
        if let Err(err) = to_result(ret) {
            // SAFETY: The new socket is ours, and still without operations.
            unsafe { bindings::sock_release(new.as_ptr()) };
            return Err(err);
        }
        // SAFETY: The new socket is ours.
        unsafe { (*new.as_ptr()).ops = ops };
        // SAFETY: A socket holds its operations' module; the listener's keeps it here now.
        unsafe { bindings::module_get(ops.owner) };
        // INVARIANT: The socket was accepted. It counts its namespace, as the listener does.
        Ok(Self { sock: new })
    }

    /// Takes a connection, waiting for it.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when the time is over, `ERESTARTSYS` or `EINTR` for a signal.
    pub fn wait_accept(&self, patience: &mut Patience) -> Result<Self> {
        let attempt = || match self.accept() {
            Err(err) if err == EAGAIN => None,
            other => Some(other),
        };
        // SAFETY: The wait queue lives as long as this socket.
        unsafe { patience.wait_on(self.wait_queue(), true, attempt) }?
    }

    /// Writes the local or the peer's address; the answer is its length.
    pub fn name(&self, name: &mut Name<'_>, peer: c_int) -> Result<c_int> {
        self.raw_name(name.raw, peer)
    }

    /// As [`name`](Self::name), into storage for a `sockaddr_storage`.
    fn raw_name(&self, to: *mut bindings::sockaddr, peer: c_int) -> Result<c_int> {
        let op = self.ops().getname.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid, and `to` has room for any address.
        let len = unsafe { op(self.as_raw(), to, peer) };
        to_result(len.min(0)).map(|()| len)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.addr(0)
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.addr(1)
    }

    /// One of the two addresses.
    fn addr(&self, peer: c_int) -> Result<SocketAddr> {
        let mut storage = bindings::__kernel_sockaddr_storage::default();
        self.raw_name((&raw mut storage).cast(), peer)?;
        // SAFETY: The storage was zeroed, and the address written at its beginning; all bit patterns are valid.
        let v4 = unsafe { (&raw const storage).cast::<bindings::sockaddr_in>().read() };
        match u32::from(v4.sin_family) {
            bindings::AF_INET => Ok(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))),
                u16::from_be(v4.sin_port),
            )),
            bindings::AF_INET6 => {
                // SAFETY: As above.
                let v6 = unsafe { (&raw const storage).cast::<bindings::sockaddr_in6>().read() };
                // SAFETY: Every member of the union is plain bytes.
                let octets = unsafe { v6.sin6_addr.in6_u.u6_addr8 };
                Ok(SocketAddr::V6(SocketAddrV6::new(
                    Ipv6Addr::from(octets),
                    u16::from_be(v6.sin6_port),
                    0,
                    v6.sin6_scope_id,
                )))
            }
            _ => Err(EAFNOSUPPORT),
        }
    }

    /// Sends as `sendmsg(2)` on this socket would.
    pub fn sendmsg(&self, msg: &mut SendMsg<'_>) -> Result<usize> {
        let op = self.ops().sendmsg.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid, and so is the message by its type.
        count(unsafe { op(self.as_raw(), msg.raw, msg.len) })
    }

    /// Receives as `recvmsg(2)` on this socket would.
    pub fn recvmsg(&self, msg: &mut RecvMsg<'_>) -> Result<usize> {
        let op = self.ops().recvmsg.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid, and so is the message by its type.
        count(unsafe { op(self.as_raw(), msg.raw, msg.len, msg.flags) })
    }

    /// Says that a splice into this socket is over.
    pub fn splice_eof(&self) {
        if let Some(op) = self.ops().splice_eof {
            // SAFETY: The socket is valid.
            unsafe { op(self.as_raw()) };
        }
    }

    /// Answers as `poll(2)` on this socket would, and adds the caller to its waiters.
    pub fn poll(&self, table: &PollTable<'_>) -> u32 {
        let Some(op) = self.ops().poll else {
            return 0;
        };
        // SAFETY: The socket is valid, and so are file and table by their type.
        unsafe { op(table.file, self.as_raw(), table.table) }
    }

    /// Adds a caller of `poll(2)` to this socket's waiters.
    pub fn poll_wait(&self, table: &PollTable<'_>) {
        // SAFETY: The socket is valid, and so are file and table by their type.
        unsafe { bindings::sock_poll_wait(table.file, self.as_raw(), table.table) };
    }

    /// Closes one or both directions.
    pub fn shutdown(&self, how: Shutdown) -> Result {
        let op = self.ops().shutdown.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid.
        to_result(unsafe { op(self.as_raw(), how.as_raw()) })
    }

    /// Sets an option.
    pub fn set_option(&self, level: c_int, name: c_int, value: &OptionIn<'_>) -> Result {
        if level == SOL_SOCKET {
            // SAFETY: The socket is valid, and so is the value by its type.
            return to_result(unsafe {
                bindings::sock_setsockopt(self.as_raw(), level, name, value.value, value.len)
            });
        }
        let op = self.ops().setsockopt.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid, and so is the value by its type.
        to_result(unsafe { op(self.as_raw(), level, name, value.value, value.len) })
    }

    /// Reads an option.
    pub fn get_option(&self, level: c_int, name: c_int, out: &mut OptionOut<'_>) -> Result {
        let op = self.ops().getsockopt.ok_or(EOPNOTSUPP)?;
        // SAFETY: The socket is valid; the pointers into user space are checked by the callee.
        to_result(unsafe { op(self.as_raw(), level, name, out.value, out.len) })
    }

    /// Performs an `ioctl(2)`.
    pub fn ioctl(&self, cmd: u32, arg: usize, compat: bool) -> Result<c_int> {
        let ops = self.ops();
        #[cfg(CONFIG_COMPAT)]
        let op = if compat { ops.compat_ioctl } else { ops.ioctl };
        // Without programs of the other word size the two are the same.
        #[cfg(not(CONFIG_COMPAT))]
        let (op, _) = (ops.ioctl, compat);
        let op = op.ok_or(ENOIOCTLCMD)?;
        // SAFETY: The socket is valid; a pointer into user space is checked by the callee.
        let ret = unsafe { op(self.as_raw(), cmd, arg) };
        to_result(ret.min(0)).map(|()| ret)
    }

    /// Reads the time stamp of the last packet, for `SIOCGSTAMP`.
    pub fn timestamp(&self, to: *mut kernel::ffi::c_void, timeval: bool, time32: bool) -> Result {
        let op = self.ops().gettstamp.ok_or(ENOIOCTLCMD)?;
        // SAFETY: The socket is valid; the pointer into user space is checked by the callee.
        to_result(unsafe { op(self.as_raw(), to, timeval, time32) })
    }

    /// What state the connection is in. Does not sleep.
    pub fn state(&self) -> TcpState {
        // SAFETY: By the type invariant the sock is valid.
        let state = unsafe { bindings::sk_state_load(self.sk()) };
        match unsigned(state) {
            bindings::TCP_CLOSE => TcpState::Closed,
            bindings::TCP_SYN_SENT | bindings::TCP_SYN_RECV => TcpState::Opening,
            bindings::TCP_LISTEN => TcpState::Listening,
            _ => TcpState::Open,
        }
    }

    /// The error that waits on the socket, which it keeps. Does not sleep.
    pub fn error(&self) -> c_int {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw const (*self.sk()).sk_err };
        // SAFETY: As above; the read is volatile, as softirq may change the field.
        unsafe { ptr::read_volatile(place) }
    }

    /// Takes the error that waits on the socket. Does not sleep.
    pub fn take_error(&self) -> c_int {
        // SAFETY: By the type invariant the sock is valid.
        let err = unsafe { bindings::sock_error(self.sk()) };
        err.saturating_neg()
    }

    /// What was shut down: 1 for receiving, 2 for sending.
    pub fn shutdown_mask(&self) -> u8 {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        unsafe { ptr::read_volatile(&raw const (*self.sk()).sk_shutdown) }
    }

    /// The number of the interface that the socket is bound to, 0 for none.
    pub fn bound_interface(&self) -> u32 {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        let index =
            unsafe { ptr::read_volatile(&raw const (*self.sk()).__sk_common.skc_bound_dev_if) };
        u32::try_from(index).unwrap_or(0)
    }

    /// Whether reports wait on the socket's error queue. Does not sleep.
    pub fn has_errors(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_has_errors(self.sk()) }
    }

    /// Whether a reader would find neither bytes nor their end nor an error. Does not sleep.
    pub fn is_silent(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_is_silent(self.sk()) }
    }

    /// Whether `SO_ZEROCOPY` is on. Does not sleep.
    pub fn wants_zerocopy(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { super::sock::has_flag(self.sk(), bindings::sock_flags_SOCK_ZEROCOPY) }
    }

    /// Whether `TCP_NODELAY` is on. Does not sleep.
    pub fn has_nodelay(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid, and one of TCP.
        unsafe { bindings::sk_has_nodelay(self.sk()) }
    }

    /// Whether `SO_OOBINLINE` is on. Does not sleep.
    pub fn has_oob_inline(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { super::sock::has_flag(self.sk(), bindings::sock_flags_SOCK_URGINLINE) }
    }

    /// Switches `TCP_CORK`; turning it off sends what was held back. May sleep.
    pub fn set_cork(&self, on: bool) {
        // SAFETY: By the type invariant the sock is valid, and one of TCP; this is a task that may sleep.
        unsafe { bindings::tcp_sock_set_cork(self.sk(), on) };
    }

    /// Prepares the report that `size` bytes, sent with `MSG_ZEROCOPY`, were copied.
    ///
    /// # Errors
    ///
    /// `ENOBUFS` when there is no memory for it.
    pub fn zerocopy_report(&self, size: usize) -> Result<ZerocopyReport<'_>> {
        // SAFETY: By the type invariant the sock is valid, and this is a task that may sleep.
        let raw = unsafe { bindings::zerocopy_begin(self.sk(), size) };
        Ok(ZerocopyReport {
            tcp: self,
            raw: NonNull::new(raw).ok_or(ENOBUFS)?,
            sent: false,
        })
    }

    /// Lets the kernel find the owner of this socket by the file of `front`: for SIGURG, and for rules of the firewall.
    ///
    /// [`forget_file`](Self::forget_file) must be called before that file is gone.
    pub fn show_file<T: SocketOps>(&self, front: &Sock<T>) {
        // SAFETY: Both are valid, and this is a task that may sleep. The socket of `front` has a file or none.
        unsafe { bindings::sock_show_file(self.as_raw(), front.as_raw()) };
    }

    /// Ends [`show_file`](Self::show_file).
    pub fn forget_file(&self) {
        // SAFETY: By the type invariant the socket is valid, and this is a task that may sleep.
        unsafe { bindings::sock_show_file(self.as_raw(), ptr::null()) };
    }

    /// Moves bytes into a pipe as `splice(2)` from this socket would.
    pub fn splice_read(&self, splice: &mut Splice<'_>) -> Result<usize> {
        let op = self.ops().splice_read.ok_or(EINVAL)?;
        // SAFETY: By the type invariant the socket is valid; the field is a plain pointer.
        if unsafe { ptr::read_volatile(&raw const (*self.as_raw()).file) }.is_null() {
            // TCP looks there whether the call may wait.
            return splice.by_copy();
        }
        // SAFETY: The socket is valid and shows a file, and the arguments are those of a call in progress.
        let moved = unsafe {
            op(
                self.as_raw(),
                splice.ppos,
                splice.pipe,
                splice.len,
                splice.flags,
            )
        };
        usize::try_from(moved).map_err(|_| Error::from_errno(i32::try_from(moved).unwrap_or(-22)))
    }

    /// Whether an IPsec policy is attached to the socket, or one of its namespace covers the connection.
    pub fn has_xfrm_policy(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_has_xfrm_policy(self.sk()) }
    }

    /// Resets the connection.
    pub fn abort(&self) {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::tcp_abort(self.sk(), bindings::ECONNABORTED as c_int) };
    }

    /// Sends all of `bytes`, waiting at most `timeout_ms`.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`, and those of a broken connection.
    pub fn send_all_timeout(&self, bytes: &[u8], timeout_ms: u32) -> Result {
        let mut patience = Patience::from_ms(timeout_ms);
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..) {
            if rest.is_empty() {
                break;
            }
            let more = self.retry(&mut patience, || self.send_now(rest))?;
            sent = sent.saturating_add(more);
        }
        Ok(())
    }

    /// Sends all of `bytes`, waiting at most a few seconds for a peer that does not read.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`, and those of a broken connection.
    pub fn send_all(&self, bytes: &[u8]) -> Result {
        self.send_all_timeout(bytes, SEND_TIMEOUT_MS)
    }

    /// Fills `to`, waiting at most `timeout_ms`.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `ECONNRESET` at the end of the stream; those of a broken connection.
    pub fn recv_exact(&self, to: &mut [u8], timeout_ms: u32) -> Result {
        let mut patience = Patience::from_ms(timeout_ms);
        let mut got = 0;
        while let Some(rest) = to.get_mut(got..) {
            if rest.is_empty() {
                break;
            }
            let more = self.retry(&mut patience, || self.recv_now(rest, 0))?;
            if more == 0 {
                return Err(ECONNRESET);
            }
            got = got.saturating_add(more);
        }
        Ok(())
    }

    /// Looks at the bytes that come first, until `to` is full, the stream ends or `timeout_ms` are over.
    ///
    /// # Errors
    ///
    /// Those of a broken connection.
    pub fn peek(&self, to: &mut [u8], timeout_ms: u32) -> Result<usize> {
        let mut patience = Patience::from_ms(timeout_ms);
        let mut seen = 0;
        let full = to.len();
        let outcome = self.retry(&mut patience, || {
            // CAST: A flag.
            seen = self.recv_now(to, bindings::MSG_PEEK as c_int)?;
            if seen == full || seen == 0 || self.at_end() {
                Ok(seen)
            } else {
                Err(EAGAIN)
            }
        });
        match outcome {
            Err(err) if err == ETIMEDOUT => Ok(seen),
            other => other,
        }
    }

    /// Whether no more bytes can come.
    fn at_end(&self) -> bool {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw const (*self.sk()).sk_shutdown };
        // SAFETY: As above; the read is volatile, as softirq may change the field.
        let shutdown = unsafe { ptr::read_volatile(place) };
        u32::from(shutdown) & bindings::RCV_SHUTDOWN != 0
    }

    /// Does `step` again, after each wake-up of the socket, until it says something else than `EAGAIN`.
    fn retry(
        &self,
        patience: &mut Patience,
        mut step: impl FnMut() -> Result<usize>,
    ) -> Result<usize> {
        let attempt = || match step() {
            Err(err) if err == EAGAIN => None,
            other => Some(other),
        };
        // SAFETY: The wait queue lives as long as this socket.
        let outcome = unsafe { patience.wait_on(self.wait_queue(), false, attempt) };
        match outcome {
            Ok(result) => result,
            Err(err) if err == EAGAIN => Err(ETIMEDOUT),
            Err(err) => Err(err),
        }
    }

    /// Sends what the socket takes at once.
    fn send_now(&self, bytes: &[u8]) -> Result<usize> {
        let mut msg = bindings::msghdr {
            msg_flags: bindings::MSG_DONTWAIT | bindings::MSG_NOSIGNAL,
            ..Default::default()
        };
        let mut vec = bindings::kvec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: The socket is valid; message and vector are ours, and the bytes are only read.
        count(unsafe {
            bindings::kernel_sendmsg(self.as_raw(), &mut msg, &mut vec, 1, bytes.len())
        })
    }

    /// Receives what is there.
    fn recv_now(&self, to: &mut [u8], flags: c_int) -> Result<usize> {
        let mut msg = bindings::msghdr::default();
        let mut vec = bindings::kvec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: to.len(),
        };
        // CAST: A flag.
        let flags = flags | bindings::MSG_DONTWAIT as c_int;
        // SAFETY: The socket is valid; message, vector and room are ours.
        count(unsafe {
            bindings::kernel_recvmsg(self.as_raw(), &mut msg, &mut vec, 1, to.len(), flags)
        })
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        self.forget_option();
        // A socket with a file is not freed.
        self.forget_file();
        // SAFETY: By the type invariant the socket is valid and ours.
        unsafe { bindings::sock_release(self.as_raw()) };
    }
}

/// A report to come on the error queue of a TCP socket; it is sent, or taken back, when it is dropped.
///
/// # Invariants
///
/// `raw` is a report of the sock of `tcp`, with one reference that is owned by this object.
pub struct ZerocopyReport<'a> {
    /// Whose report it is.
    tcp: &'a TcpSocket,
    /// The C object.
    raw: NonNull<bindings::ubuf_info>,
    /// Whether there is something to report.
    sent: bool,
}

impl ZerocopyReport<'_> {
    /// The call has sent something.
    pub fn send(mut self) {
        self.sent = true;
    }
}

impl Drop for ZerocopyReport<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; this is a task that may sleep.
        unsafe { bindings::zerocopy_end(self.tcp.sk(), self.raw.as_ptr(), self.sent) };
    }
}

/// `SOL_SOCKET` as it comes in a call.
const SOL_SOCKET: c_int = bindings::SOL_SOCKET as c_int;

/// `O_NONBLOCK` as it goes into a call.
const O_NONBLOCK: c_int = bindings::O_NONBLOCK as c_int;

/// How long a handshake message may wait for room; the buffers of a new connection are empty.
const SEND_TIMEOUT_MS: u32 = 6_000;

/// Turns a C count-or-error into a result.
fn count(ret: c_int) -> Result<usize> {
    usize::try_from(ret).map_err(|_| Error::from_errno(ret))
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_tcp)]
mod tests {
    use super::*;

    /// Runs `call` with 127.0.0.1 and a port.
    fn at_loopback<R>(port: u16, call: impl FnOnce(&Address<'_>) -> R) -> R {
        let mut storage = bindings::__kernel_sockaddr_storage::default();
        let v4 = bindings::sockaddr_in {
            sin_family: bindings::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: bindings::in_addr {
                s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
            },
            ..Default::default()
        };
        // SAFETY: The storage has room and alignment for any address.
        unsafe { (&raw mut storage).cast::<bindings::sockaddr_in>().write(v4) };
        // CAST: The size of a struct.
        let len = size_of::<bindings::sockaddr_in>() as c_int;
        // SAFETY: The storage is initialised, and larger than that.
        call(&unsafe { Address::from_raw((&raw mut storage).cast(), len) })
    }

    /// A listener, and the two ends of a connection through it.
    fn connected() -> Result<(TcpSocket, TcpSocket, TcpSocket)> {
        let net = NetNs::initial();
        let listener = TcpSocket::new(net, Family::V4)?;
        assert!(listener.state() == TcpState::Closed);
        at_loopback(0, |addr| listener.bind(addr))?;
        listener.listen(4)?;
        assert!(listener.state() == TcpState::Listening);
        assert!(matches!(listener.accept(), Err(e) if e == EAGAIN));
        let here = listener.local_addr()?;
        let client = TcpSocket::new(net, Family::V4)?;
        at_loopback(here.port(), |addr| client.connect(addr, false))?;
        let server = listener.wait_accept(&mut Patience::from_ms(5_000))?;
        assert!(client.state() == TcpState::Open);
        assert_eq!(client.peer_addr()?, here);
        assert_eq!(server.peer_addr()?, client.local_addr()?);
        Ok((listener, client, server))
    }

    #[test]
    fn bytes_arrive_and_peeking_leaves_them() -> Result {
        let (_listener, client, server) = connected()?;
        client.send_all(b"twelve bytes")?;
        let mut seen = [0; 12];
        assert_eq!(server.peek(&mut seen, 5_000)?, 12);
        assert_eq!(&seen, b"twelve bytes");
        let (mut first, mut rest) = ([0; 5], [0; 7]);
        server.recv_exact(&mut first, 5_000)?;
        server.recv_exact(&mut rest, 5_000)?;
        assert_eq!(&first, b"twelv");
        assert_eq!(&rest, b"e bytes");
        Ok(())
    }

    #[test]
    fn waiting_for_bytes_ends_in_time() -> Result {
        let (_listener, client, server) = connected()?;
        client.send_all(b"abc")?;
        let mut four = [0; 4];
        assert_eq!(server.peek(&mut four, 100)?, 3);
        assert!(matches!(server.recv_exact(&mut four, 100), Err(e) if e == ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn the_end_of_the_stream_is_an_error() -> Result {
        let (_listener, client, server) = connected()?;
        client.send_all(b"abc")?;
        client.shutdown(Shutdown::Write)?;
        let mut four = [0; 4];
        assert_eq!(server.peek(&mut four, 5_000)?, 3);
        assert!(matches!(server.recv_exact(&mut four, 5_000), Err(e) if e == ECONNRESET));
        Ok(())
    }

    #[test]
    fn an_abort_resets_the_peer() -> Result {
        let (_listener, client, server) = connected()?;
        client.abort();
        let mut byte = [0];
        assert!(matches!(server.recv_exact(&mut byte, 5_000), Err(e) if e == ECONNRESET));
        assert!(server.state() == TcpState::Closed);
        Ok(())
    }

    #[test]
    fn a_refused_connect_leaves_the_socket_usable() -> Result {
        let net = NetNs::initial();
        let listener = TcpSocket::new(net, Family::V4)?;
        at_loopback(0, |addr| listener.bind(addr))?;
        let port = listener.local_addr()?.port();
        let client = TcpSocket::new(net, Family::V4)?;
        let refused = at_loopback(port, |addr| client.connect(addr, false));
        assert!(matches!(refused, Err(e) if e == ECONNREFUSED));
        client.disconnect();
        listener.listen(1)?;
        at_loopback(port, |addr| client.connect(addr, false))?;
        assert!(client.state() == TcpState::Open);
        Ok(())
    }
}
