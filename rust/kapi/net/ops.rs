// SPDX-License-Identifier: GPL-2.0

//! What a socket of the module does in each system call.
//!
//! C header: [`include/linux/net.h`](srctree/include/linux/net.h)

use core::{
    marker::PhantomData,
    ptr, //
};

use kernel::{
    error::from_result,
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    seq_file::SeqFile,
    sync::Arc, //
};
use smc_bindings as bindings;

use super::{
    types::{
        SocketTypes,
        IPPROTO_SMC,
        PF_SMC,
        PROTOCOL_CONVERTED, //
    },
    unsigned,
    Address,
    Family,
    NetNs,
    Open,
    OptionIn,
    OptionOut,
    RecvMsg,
    SendMsg,
    Shutdown,
    Sock,
    SockRef,
    Splice,
    TcpSocket,
    Zeroed, //
};

/// Room for an address that a caller asked for.
pub struct Name<'a> {
    /// Storage for a `sockaddr_storage`.
    pub(super) raw: *mut bindings::sockaddr,
    /// The storage is the caller's.
    _storage: PhantomData<&'a mut bindings::sockaddr>,
}

/// A caller of `poll(2)`.
pub struct PollTable<'a> {
    /// The file that is polled.
    pub(super) file: *mut bindings::file,
    /// Its socket.
    pub(super) outer: *mut bindings::socket,
    /// What the caller waits with; may be null.
    pub(super) table: *mut bindings::poll_table_struct,
    /// They are the caller's.
    _call: PhantomData<&'a mut bindings::poll_table_struct>,
}

/// Who wanted a socket to be one of the module's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The program that opened it.
    Program,
    /// The operator: the program asked for a socket of TCP.
    Converted,
}

/// What a socket of the module is and does.
///
/// The methods are called in the context of a task that may sleep, except where they say otherwise.
pub trait SocketOps: Send + Sync + Sized + 'static {
    /// Where the socket types are registered.
    fn types() -> &'static SocketTypes<Self>;

    /// What lives as long as the descriptor.
    type Attached: Send + Sync;
    /// A connection on its way from the listener to its own socket.
    type Pending;

    /// Whether `net` may have another socket; asked first of all, but not of a converted one.
    fn may_create(net: &NetNs) -> Result;

    /// The data of a new socket. Its drop must not sleep.
    fn init(net: &NetNs, family: Family, origin: Origin) -> impl PinInit<Self, Error>;

    /// What lives as long as the descriptor of the new socket `sk`.
    fn attach(sk: &Sock<Self>) -> Result<Self::Attached>;

    /// The data of the socket of an accepted connection. Its drop must not sleep.
    fn init_child(net: &NetNs, pending: &Self::Pending) -> impl PinInit<Self, Error>;

    /// What lives as long as the descriptor of an accepted connection's socket. Nothing can fail afterwards.
    fn attach_child(sk: &Sock<Self>, pending: Self::Pending) -> Result<Self::Attached>;

    /// The descriptor is closed: this is the last call. What lived as long as it is dropped next.
    fn release(sk: Open<'_, Self>);

    /// What lived as long as the descriptor, or was made for one that never came to be, is about to be dropped. May
    /// sleep.
    fn detached(sk: &Sock<Self>);

    /// `bind(2)`.
    fn bind(sk: Open<'_, Self>, addr: &Address<'_>) -> Result;

    /// `connect(2)`.
    fn connect(sk: Open<'_, Self>, addr: &Address<'_>, nonblocking: bool) -> Result;

    /// `listen(2)`.
    fn listen(sk: Open<'_, Self>, backlog: c_int) -> Result;

    /// `accept(2)`.
    fn accept(sk: Open<'_, Self>, nonblocking: bool) -> Result<Self::Pending>;

    /// `getsockname(2)` for 0, `getpeername(2)` for 1, the name that `accept(2)` returns for 2.
    fn getname(sk: Open<'_, Self>, name: &mut Name<'_>, which: c_int) -> Result<c_int>;

    /// `poll(2)`.
    fn poll(sk: Open<'_, Self>, table: &PollTable<'_>) -> u32;

    /// `ioctl(2)`, of a program of the machine's other word size when `compat` is set.
    fn ioctl(sk: Open<'_, Self>, cmd: u32, arg: usize, compat: bool) -> Result<c_int>;

    /// `shutdown(2)`.
    fn shutdown(sk: Open<'_, Self>, how: Shutdown) -> Result;

    /// `setsockopt(2)`, `SOL_SOCKET` included.
    fn set_option(sk: Open<'_, Self>, level: c_int, name: c_int, value: &OptionIn<'_>) -> Result;

    /// `getsockopt(2)`, except `SOL_SOCKET`.
    fn get_option(sk: Open<'_, Self>, level: c_int, name: c_int, out: &mut OptionOut<'_>)
        -> Result;

    /// `sendmsg(2)` and the like.
    fn sendmsg(sk: Open<'_, Self>, msg: &mut SendMsg<'_>) -> Result<usize>;

    /// `recvmsg(2)` and the like.
    fn recvmsg(sk: Open<'_, Self>, msg: &mut RecvMsg<'_>) -> Result<usize>;

    /// `splice(2)` from the socket.
    fn splice_read(sk: Open<'_, Self>, splice: &mut Splice<'_>) -> Result<usize>;

    /// Describes the socket in `/proc/PID/fdinfo/FD`.
    fn show(sk: Open<'_, Self>, to: &SeqFile);

    /// A splice to the socket is over.
    fn splice_eof(sk: Open<'_, Self>);

    /// The TCP socket to read a time stamp from.
    fn tcp(sk: Open<'_, Self>) -> Result<Arc<TcpSocket>>;

    /// Something happened on the TCP socket that a [`WakeHook`](super::WakeHook) watches. Any context, under the lock
    /// of its wait queue: it may only take notes and queue work.
    fn on_tcp_event(sk: &SockRef<Self>, tcp: &TcpSocket, events: u32);

    /// Work that was asked for with [`Sock::queue_work`].
    fn work(sk: &SockRef<Self>);
}

/// Makes a fresh sock one of the module's.
///
/// # Safety
///
/// `sk` must be a fresh sock of one of `T`'s kinds with `sock_init_data()` done and a socket.
unsafe fn set_up<T: SocketOps>(sk: *mut bindings::sock, family: Family) -> Result {
    // SAFETY: The sock is valid and holds its namespace.
    let net = unsafe { NetNs::from_raw(bindings::sock_net(sk)) };
    // SAFETY: The sock is valid, and known to nobody else.
    let protocol = unsafe { &mut (*sk).sk_protocol };
    let origin = if i32::from(*protocol) == PROTOCOL_CONVERTED {
        *protocol = IPPROTO_SMC;
        Origin::Converted
    } else {
        T::may_create(net)?;
        Origin::Program
    };
    // SAFETY: The caller vouches for the sock.
    let this = unsafe { Sock::initialise(sk, family, T::init(net, family, origin)) }?;
    let attached = T::attach(this)?;
    // SAFETY: The descriptor is made after this call.
    unsafe { this.attach(attached) };
    // SAFETY: As above.
    unsafe { this.enlist() }?;
    // SAFETY: The sock has a socket.
    unsafe { bindings::sock_custom_sockopt((*sk).sk_socket) };
    // SAFETY: As above.
    unsafe { bindings::sock_support_zerocopy((*sk).sk_socket) };
    Ok(())
}

/// `net_proto_family::create`.
///
/// # Safety
///
/// Called by the kernel for a socket in the making.
pub(super) unsafe extern "C" fn create_callback<T: SocketOps>(
    net: *mut bindings::net,
    sock: *mut bindings::socket,
    protocol: c_int,
    kern: c_int,
) -> c_int {
    from_result(|| {
        let Some([v4, v6]) = T::types().protos() else {
            return Err(EAFNOSUPPORT);
        };
        // SAFETY: The kernel hands over a valid socket.
        let kind = unsafe { (*sock).type_ };
        // CAST: A small constant.
        if kind != bindings::sock_type_SOCK_STREAM as i16 {
            return Err(ESOCKTNOSUPPORT);
        }
        let family = match protocol {
            0 => Family::V4,
            1 => Family::V6,
            _ => return Err(EPROTONOSUPPORT),
        };
        // SAFETY: The kernel hands over a valid namespace.
        T::may_create(unsafe { NetNs::from_raw(net) })?;
        let proto = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        let sk = {
            // SAFETY: The kernel hands over a valid namespace; the kinds of sock are registered.
            unsafe { bindings::sk_alloc(net, PF_SMC, bindings::GFP_KERNEL, proto, kern) }
        };
        if sk.is_null() {
            return Err(ENOBUFS);
        }
        // SAFETY: Socket and sock are valid and fresh.
        unsafe { (*sock).ops = &Callbacks::<T>::SMC };
        // SAFETY: As above.
        unsafe { bindings::sock_init_data(sock, sk) };
        // SAFETY: As above.
        unsafe { (*sk).sk_protocol = u16::try_from(protocol).unwrap_or(0) };
        // SAFETY: The sock is set up as the function wants it.
        if let Err(err) = unsafe { set_up::<T>(sk, family) } {
            // SAFETY: The sock is ours; this drops the only reference.
            unsafe { bindings::sk_common_release(sk) };
            // SAFETY: The socket is valid.
            unsafe { (*sock).sk = ptr::null_mut() };
            return Err(err);
        }
        Ok(0)
    })
}

/// `proto::init`, for sockets of the internet families.
///
/// # Safety
///
/// Called by the kernel for a socket in the making.
pub(super) unsafe extern "C" fn init_callback<T: SocketOps, const V6: bool>(
    sk: *mut bindings::sock,
) -> c_int {
    let family = if V6 { Family::V6 } else { Family::V4 };
    // SAFETY: The kernel has done its own part of the sock, which has a socket. Upon an error the caller releases it.
    from_result(|| unsafe { set_up::<T>(sk, family) }.map(|()| 0))
}

/// `proto::destroy`: what lived as long as the descriptor goes.
///
/// # Safety
///
/// Called by the kernel from `sk_common_release()`, when no system call can use the sock any more; may sleep.
pub(super) unsafe extern "C" fn destroy_callback<T: SocketOps>(sk: *mut bindings::sock) {
    // SAFETY: The sock is of one of the module's kinds.
    if !unsafe { Sock::<T>::is_initialised(sk) } {
        return;
    }
    // SAFETY: It is initialised, as was just seen, and alive.
    let this = unsafe { Sock::<T>::from_raw(sk) };
    // CAST: A small constant. The kernel's destructor for internet sockets wants to see it.
    this.set_state_number(bindings::TCP_CLOSE as u8);
    T::detached(this);
    // SAFETY: No system call can use the sock.
    drop(unsafe { this.detach() });
}

/// `proto::hash`: there is no table to stand in.
///
/// # Safety
///
/// None needed.
pub(super) unsafe extern "C" fn hash_callback(_sk: *mut bindings::sock) -> c_int {
    0
}

/// `proto::unhash`: there is no table to be taken out of.
///
/// # Safety
///
/// None needed.
pub(super) unsafe extern "C" fn unhash_callback(_sk: *mut bindings::sock) {}

/// The functions that the kernel calls.
pub(super) struct Callbacks<T: SocketOps>(PhantomData<T>);

impl<T: SocketOps> Callbacks<T> {
    /// For the module's own family.
    pub(super) const SMC: bindings::proto_ops = Self::table(PF_SMC);
    /// For IPv4.
    pub(super) const INET: bindings::proto_ops = Self::table(bindings::PF_INET as c_int);
    /// For IPv6.
    pub(super) const INET6: bindings::proto_ops = Self::table(bindings::PF_INET6 as c_int);

    /// The table of `family`.
    const fn table(family: c_int) -> bindings::proto_ops {
        bindings::proto_ops {
            family,
            owner: kernel::module::this_module::<crate::LocalModule>()
                .as_ptr()
                .cast(),
            release: Some(Self::release),
            bind: Some(Self::bind),
            connect: Some(Self::connect),
            socketpair: Some(bindings::sock_no_socketpair),
            accept: Some(Self::accept),
            getname: Some(Self::getname),
            poll: Some(Self::poll),
            ioctl: Some(Self::ioctl),
            #[cfg(CONFIG_COMPAT)]
            compat_ioctl: Some(Self::compat_ioctl),
            gettstamp: Some(Self::gettstamp),
            listen: Some(Self::listen),
            shutdown: Some(Self::shutdown),
            setsockopt: Some(Self::setsockopt),
            getsockopt: Some(Self::getsockopt),
            show_fdinfo: Some(Self::show_fdinfo),
            sendmsg: Some(Self::sendmsg),
            recvmsg: Some(Self::recvmsg),
            mmap: Some(bindings::sock_no_mmap),
            splice_read: Some(Self::splice_read),
            splice_eof: Some(Self::splice_eof),
            set_peek_off: Some(bindings::sk_set_peek_off),
            ..Zeroed::ZERO
        }
    }

    /// `proto_ops::release`.
    ///
    /// # Safety
    ///
    /// As for every function here: called by the kernel with a valid socket of `T`'s, on behalf of a descriptor that
    /// the caller holds, and with arguments as the C field's type says.
    unsafe extern "C" fn release(sock: *mut bindings::socket) -> c_int {
        // SAFETY: The socket is valid.
        let sk = unsafe { (*sock).sk };
        if sk.is_null() {
            return 0;
        }
        // SAFETY: The descriptor is going, and this is its last call.
        T::release(unsafe { Open::from_raw(sock) });
        // SAFETY: The socket is valid.
        unsafe { (*sock).sk = ptr::null_mut() };
        // SAFETY: The sock is valid; the descriptor's reference is dropped here.
        unsafe { bindings::sk_common_release(sk) };
        0
    }

    /// `proto_ops::bind`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn bind(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr_unsized,
        len: c_int,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The kernel copied the address into storage of its own.
        let addr = unsafe { Address::from_raw(addr, len) };
        from_result(|| T::bind(sk, &addr).map(|()| 0))
    }

    /// `proto_ops::connect`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn connect(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr_unsized,
        len: c_int,
        flags: c_int,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The kernel copied the address into storage of its own.
        let addr = unsafe { Address::from_raw(addr, len) };
        let nonblocking = unsigned(flags) & bindings::O_NONBLOCK != 0;
        from_result(|| T::connect(sk, &addr, nonblocking).map(|()| 0))
    }

    /// `proto_ops::accept`.
    ///
    /// # Safety
    ///
    /// As above; `new` is a socket in the making.
    unsafe extern "C" fn accept(
        sock: *mut bindings::socket,
        new: *mut bindings::socket,
        arg: *mut bindings::proto_accept_arg,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The argument is the caller's.
        let flags = unsafe { (*arg).flags };
        let nonblocking = unsigned(flags) & bindings::O_NONBLOCK != 0;
        from_result(|| {
            let pending = T::accept(sk, nonblocking)?;
            // SAFETY: The new socket is valid and has no sock yet.
            unsafe { Self::make_child(sk, pending, new) }.map(|()| 0)
        })
    }

    /// Gives an accepted connection a sock and ties it to `new`.
    ///
    /// # Safety
    ///
    /// `new` must be a valid socket without a sock.
    unsafe fn make_child(
        listener: Open<'_, T>,
        pending: T::Pending,
        new: *mut bindings::socket,
    ) -> Result {
        let parent = listener.as_raw();
        // SAFETY: The listener's sock is valid; these fields never change.
        let (family, proto) = unsafe {
            (
                c_int::from((*parent).__sk_common.skc_family),
                (*parent).__sk_common.skc_prot,
            )
        };
        let net = listener.net();
        // SAFETY: The namespace is alive and the kind of sock is registered.
        let sk =
            unsafe { bindings::sk_alloc(net.as_raw(), family, bindings::GFP_KERNEL, proto, 0) };
        if sk.is_null() {
            return Err(ENOBUFS);
        }
        // SAFETY: Both are valid and fresh.
        unsafe { bindings::sock_init_data(new, sk) };
        // SAFETY: As above; the field never changes in the parent.
        unsafe { (*sk).sk_protocol = (*parent).sk_protocol };
        // SAFETY: As above; a plain number, which is read without a lock.
        unsafe { (*sk).sk_peek_off = ptr::read_volatile(&raw const (*parent).sk_peek_off) };
        // SAFETY: As above.
        unsafe { (*sk).sk_rcvlowat = ptr::read_volatile(&raw const (*parent).sk_rcvlowat) };
        // SAFETY: The sock is fresh, of one of `T`'s kinds.
        let made = unsafe { Sock::initialise(sk, listener.family(), T::init_child(net, &pending)) };
        let outcome = made.and_then(|this| {
            // First, as it may fail: what is attached to a connection is told of it, and then that has to be closed.
            // SAFETY: The sock is complete, and the new descriptor has no user yet.
            unsafe { this.enlist() }?;
            let attached = T::attach_child(this, pending)?;
            // SAFETY: As above.
            unsafe { this.attach(attached) };
            Ok(())
        });
        if let Err(err) = outcome {
            // SAFETY: The sock is ours; this drops the only reference.
            unsafe { bindings::sk_common_release(sk) };
            // SAFETY: The socket is valid.
            unsafe { (*new).sk = ptr::null_mut() };
            return Err(err);
        }
        // SAFETY: The socket is valid.
        unsafe { bindings::sock_custom_sockopt(new) };
        // SAFETY: As above.
        unsafe { bindings::sock_support_zerocopy(new) };
        // SAFETY: As above.
        unsafe { (*new).state = bindings::socket_state_SS_CONNECTED };
        Ok(())
    }

    /// `proto_ops::getname`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn getname(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr,
        peer: c_int,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        let mut name = Name {
            raw: addr,
            _storage: PhantomData,
        };
        from_result(|| T::getname(sk, &mut name, peer))
    }

    /// `proto_ops::poll`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        sock: *mut bindings::socket,
        wait: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        let table = PollTable {
            file,
            outer: sock,
            table: wait,
            _call: PhantomData,
        };
        T::poll(sk, &table)
    }

    /// `proto_ops::ioctl`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn ioctl(sock: *mut bindings::socket, cmd: c_uint, arg: usize) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        from_result(|| T::ioctl(sk, cmd, arg, false))
    }

    /// `proto_ops::compat_ioctl`.
    ///
    /// # Safety
    ///
    /// As above.
    #[cfg(CONFIG_COMPAT)]
    unsafe extern "C" fn compat_ioctl(
        sock: *mut bindings::socket,
        cmd: c_uint,
        arg: usize,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        from_result(|| T::ioctl(sk, cmd, arg, true))
    }

    /// `proto_ops::gettstamp`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn gettstamp(
        sock: *mut bindings::socket,
        to: *mut c_void,
        timeval: bool,
        time32: bool,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        from_result(|| T::tcp(sk)?.timestamp(to, timeval, time32).map(|()| 0))
    }

    /// `proto_ops::listen`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn listen(sock: *mut bindings::socket, backlog: c_int) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        from_result(|| T::listen(sk, backlog).map(|()| 0))
    }

    /// `proto_ops::shutdown`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn shutdown(sock: *mut bindings::socket, how: c_int) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        from_result(|| {
            let how = Shutdown::from_raw(how).ok_or(EINVAL)?;
            T::shutdown(sk, how).map(|()| 0)
        })
    }

    /// `proto_ops::setsockopt`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn setsockopt(
        sock: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: bindings::sockptr_t,
        len: c_uint,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The value is the caller's.
        let value = unsafe { OptionIn::from_raw(value, len) };
        from_result(|| T::set_option(sk, level, name, &value).map(|()| 0))
    }

    /// `proto_ops::getsockopt`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn getsockopt(
        sock: *mut bindings::socket,
        level: c_int,
        name: c_int,
        value: *mut c_char,
        len: *mut c_int,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        let mut out = OptionOut::from_raw(value, len);
        from_result(|| T::get_option(sk, level, name, &mut out).map(|()| 0))
    }

    /// `proto_ops::show_fdinfo`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn show_fdinfo(seq: *mut bindings::seq_file, sock: *mut bindings::socket) {
        // SAFETY: The file is the one that is read.
        let seq = unsafe { SeqFile::from_raw(seq.cast()) };
        // SAFETY: As above.
        T::show(unsafe { Open::<T>::from_raw(sock) }, seq);
    }

    /// `proto_ops::sendmsg`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn sendmsg(
        sock: *mut bindings::socket,
        msg: *mut bindings::msghdr,
        len: usize,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The message is the caller's.
        let mut msg = unsafe { SendMsg::from_raw(msg, len) };
        from_result(|| T::sendmsg(sk, &mut msg).map(count))
    }

    /// `proto_ops::recvmsg`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn recvmsg(
        sock: *mut bindings::socket,
        msg: *mut bindings::msghdr,
        len: usize,
        flags: c_int,
    ) -> c_int {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The message is the caller's.
        let mut msg = unsafe { RecvMsg::from_raw(msg, len, flags) };
        from_result(|| T::recvmsg(sk, &mut msg).map(count))
    }

    /// `proto_ops::splice_read`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn splice_read(
        sock: *mut bindings::socket,
        ppos: *mut bindings::loff_t,
        pipe: *mut bindings::pipe_inode_info,
        len: usize,
        flags: c_uint,
    ) -> isize {
        // SAFETY: As above.
        let sk = unsafe { Open::<T>::from_raw(sock) };
        // SAFETY: The arguments are those of this call.
        let mut splice = unsafe { Splice::from_raw(sock, ppos, pipe, len, flags) };
        from_result(|| {
            T::splice_read(sk, &mut splice).map(|len| isize::try_from(len).unwrap_or(isize::MAX))
        })
    }

    /// `proto_ops::splice_eof`.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn splice_eof(sock: *mut bindings::socket) {
        // SAFETY: As above.
        T::splice_eof(unsafe { Open::<T>::from_raw(sock) });
    }
}

/// A number of bytes as C wants it; a call moves less than 2 GiB.
fn count(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}
