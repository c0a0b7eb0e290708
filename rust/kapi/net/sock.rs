// SPDX-License-Identifier: GPL-2.0

//! A kernel `sock` with Rust data behind it.
//!
//! The data come in two parts. `T` lives as long as the sock: anybody with a reference may look at it, also in softirq.
//! `T::Attached` lives as long as the descriptor: only system calls, which hold the file open, may look at it
//! ([`Open`]), and it goes in `close(2)`, where sleeping is allowed.
//!
//! C header: [`include/net/sock.h`](srctree/include/net/sock.h)

use core::{
    cell::UnsafeCell,
    ops::Deref,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    ffi::{
        c_int,
        c_long, //
    },
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc, //
    },
    types::{
        NotThreadSafe,
        Opaque, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
};
use smc_bindings as bindings;

use crate::kapi::{
    memcg::MemCg,
    work::ModuleQueue, //
};

use super::{
    list::Place,
    signed,
    unsigned,
    NetNs,
    OptionIn,
    Patience,
    PollTable,
    SocketOps,
    TcpSocket, //
};

/// Which IP a socket speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6, which may speak IPv4 as well.
    V6,
}

impl Family {
    /// The C constant.
    pub(super) fn as_raw(self) -> c_int {
        match self {
            // CAST: Small constants.
            Self::V4 => bindings::AF_INET as c_int,
            Self::V6 => bindings::AF_INET6 as c_int,
        }
    }
}

/// A `sock` of the module with data `T`.
///
/// # Invariants
///
/// - It lies at the beginning of an object of the module's slabs, so that a pointer to it is one to a `sock`.
/// - `next_destruct` is set exactly when `data` is initialised, which is so for every `Sock` that anybody can name;
///   `data` is dropped in the sock's destructor.
/// - `attached` is written once before the descriptor exists and emptied when it is closed.
#[repr(C)]
pub struct Sock<T: SocketOps> {
    /// What the kernel's own functions work on.
    inet: Opaque<bindings::inet_sock>,
    /// What they look for in a socket that speaks IPv6.
    pub(super) inet6: Opaque<bindings::ipv6_pinfo>,
    /// The destructor that the kernel had set.
    next_destruct: UnsafeCell<Option<unsafe extern "C" fn(*mut bindings::sock)>>,
    /// Which IP the TCP socket below speaks.
    family: UnsafeCell<Family>,
    /// What lives as long as the descriptor.
    attached: UnsafeCell<Option<T::Attached>>,
    /// Where it stands among all socks; nothing before it is complete.
    place: UnsafeCell<Option<Place<T>>>,
    /// Runs [`SocketOps::work`].
    work: Work<Self>,
    /// The data.
    data: Opaque<T>,
}

impl<T: SocketOps> WorkItem for Sock<T> {
    type Pointer = SockRef<T>;

    fn run(this: SockRef<T>) {
        T::work(&this);
    }
}

kernel::impl_has_work! {
    impl{T: SocketOps} HasWork<Self> for Sock<T> { self.work }
}

/// A counted reference to a sock, which keeps the module as well.
///
/// Dropping it may free the sock and `T`, in whatever context that is.
pub type SockRef<T> = ARef<Sock<T>>;

// SAFETY: The C part is used through functions that lock it themselves; `T` is `Send` and `Sync`; `attached` is only
// reached through `Open`, which stays with one task, and is `Sync` itself.
unsafe impl<T: SocketOps> Send for Sock<T> {}
// SAFETY: As for `Send`.
unsafe impl<T: SocketOps> Sync for Sock<T> {}

// SAFETY: `sock_hold()` and `sock_put()` count references, and a sock with a reference is not freed.
unsafe impl<T: SocketOps> AlwaysRefCounted for Sock<T> {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sock_hold(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference that it owns.
        unsafe { bindings::sock_put(obj.as_ptr().cast()) };
    }
}

impl<T: SocketOps> Deref for Sock<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant the data is initialised.
        unsafe { &*self.data.get() }
    }
}

impl<T: SocketOps> Sock<T> {
    /// The sock behind a C pointer.
    ///
    /// # Safety
    ///
    /// `sk` must be a sock of the module's, of data `T`, initialised, and valid for `'a`.
    pub(super) unsafe fn from_raw<'a>(sk: *mut bindings::sock) -> &'a Self {
        // SAFETY: The caller vouches for the pointer; by the type invariant both begin at the same place.
        unsafe { &*sk.cast() }
    }

    /// The C object.
    pub(in crate::kapi) fn as_raw(&self) -> *mut bindings::sock {
        self.inet.get().cast()
    }

    /// Initialises the data of a fresh sock.
    ///
    /// # Safety
    ///
    /// `sk` must be a fresh sock from one of the module's slabs, known to nobody else, with the kernel's destructor
    /// set.
    pub(super) unsafe fn initialise(
        sk: *mut bindings::sock,
        family: Family,
        init: impl PinInit<T, Error>,
    ) -> Result<&'static Self> {
        let this = sk.cast::<Self>();
        // SAFETY: The object is as large as a `Sock`; only addresses are made.
        let (work, data, attached, place, fam, next) = unsafe {
            (
                &raw mut (*this).work,
                (&raw mut (*this).data).cast::<T>(),
                (&raw mut (*this).attached).cast::<Option<T::Attached>>(),
                (&raw mut (*this).place).cast::<Option<Place<T>>>(),
                (&raw mut (*this).family).cast::<Family>(),
                (&raw mut (*this).next_destruct)
                    .cast::<Option<unsafe extern "C" fn(*mut bindings::sock)>>(),
            )
        };
        // SAFETY: Nobody else knows the object, whose memory is this large and aligned.
        unsafe { attached.write(None) };
        // SAFETY: As above.
        unsafe { place.write(None) };
        // SAFETY: As above.
        unsafe { fam.write(family) };
        let new_work = Work::new(c"smc_sock", kernel::static_lock_class!());
        // SAFETY: As above; a sock never moves, so that the work item is pinned.
        unsafe { pin_init::raw_init(work, new_work) };
        // SAFETY: As above.
        unsafe { pin_init::raw_try_init(data, init) }?;
        // SAFETY: The caller vouches for the sock.
        let old = unsafe { (*sk).sk_destruct };
        // INVARIANT: The data is initialised.
        // SAFETY: Nobody else knows the object.
        unsafe { next.write(Some(old.unwrap_or(no_destruct))) };
        // SAFETY: Nobody else knows the object.
        unsafe { (*sk).sk_destruct = Some(destruct_callback::<T>) };
        // SAFETY: The object is a complete `Sock` now. The lifetime is cut to size by the callers, which hold the sock.
        Ok(unsafe { &*this })
    }

    /// Puts in place what lives as long as the descriptor.
    ///
    /// # Safety
    ///
    /// The descriptor must not exist yet.
    pub(super) unsafe fn attach(&self, attached: T::Attached) {
        // SAFETY: Without a descriptor nobody looks at the field.
        unsafe { *self.attached.get() = Some(attached) };
    }

    /// Puts the sock among those that can be listed.
    ///
    /// # Safety
    ///
    /// The sock must be complete, and the descriptor must not exist yet.
    pub(super) unsafe fn enlist(&self) -> Result {
        let list = T::types().list().ok_or(ENODEV)?;
        // SAFETY: The place is dropped in the sock's destructor.
        let place = unsafe { list.enter(self) }?;
        // SAFETY: Nobody looks at the field but this function, called once, and the destructor.
        unsafe { *self.place.get() = Some(place) };
        Ok(())
    }

    /// The address family under which the kernel knows the sock.
    pub fn family_number(&self) -> u16 {
        // SAFETY: By the type invariant the sock is valid; the field never changes.
        unsafe { (*self.as_raw()).__sk_common.skc_family }
    }

    /// What was shut down: 1 for receiving, 2 for sending.
    pub fn shutdown_mask(&self) -> u8 {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        unsafe { ptr::read_volatile(&raw const (*self.as_raw()).sk_shutdown) }
    }

    /// Takes away what lives as long as the descriptor.
    ///
    /// # Safety
    ///
    /// No system call may be in progress on the socket, nor can one begin any more.
    pub(super) unsafe fn detach(&self) -> Option<T::Attached> {
        // SAFETY: The caller vouches that nobody looks at the field.
        unsafe { (*self.attached.get()).take() }
    }

    /// Whether `sk` got as far as having its data initialised.
    ///
    /// # Safety
    ///
    /// `sk` must be a sock from one of the module's slabs.
    pub(super) unsafe fn is_initialised(sk: *mut bindings::sock) -> bool {
        let this = sk.cast::<Self>();
        // SAFETY: The object is as large as a `Sock`, and was zeroed when it was allocated.
        unsafe { (*(*this).next_destruct.get()).is_some() }
    }

    /// Another reference to the sock.
    pub fn hold(&self) -> SockRef<T> {
        self.into()
    }

    /// Has [`SocketOps::work`] called soon, once for any number of requests that come before it runs. Any context.
    pub fn queue_work(&self, queue: &'static ModuleQueue) {
        if let Some(queue) = queue.get() {
            // A refused request means that one is waiting already.
            let _ = queue.enqueue(self.hold());
        }
    }

    /// Which IP the TCP socket below speaks.
    pub fn family(&self) -> Family {
        // SAFETY: The field is written before the sock is known to anybody.
        unsafe { *self.family.get() }
    }

    /// The namespace of the socket.
    pub fn net(&self) -> &NetNs {
        // SAFETY: By the type invariant the sock is valid.
        let net = unsafe { bindings::sock_net(self.as_raw()) };
        // SAFETY: The sock holds a reference to its namespace, and the borrow is bound to the sock.
        unsafe { NetNs::from_raw(net) }
    }

    /// Sets the state number that the kernel and its tools read.
    pub fn set_state_number(&self, state: u8) {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw mut (*self.as_raw()).__sk_common.skc_state };
        // SAFETY: As above; the write is volatile, as the kernel reads the field without a lock.
        unsafe { ptr::write_volatile(place.cast(), state) };
    }

    /// The state number.
    pub fn state_number(&self) -> u8 {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw const (*self.as_raw()).__sk_common.skc_state };
        // SAFETY: As above.
        unsafe { ptr::read_volatile(place.cast()) }
    }

    /// Sets the error that `SO_ERROR` and the next call report, a positive number.
    pub fn set_err(&self, errno: c_int) {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw mut (*self.as_raw()).sk_err };
        // SAFETY: As above; the write is volatile, as `SO_ERROR` reads the field without a lock.
        unsafe { ptr::write_volatile(place, errno) };
    }

    /// The error that waits, a positive number or 0.
    pub fn err(&self) -> c_int {
        // SAFETY: By the type invariant the sock is valid.
        let place = unsafe { &raw const (*self.as_raw()).sk_err };
        // SAFETY: As above.
        unsafe { ptr::read_volatile(place) }
    }

    /// Takes the error that waits.
    pub fn take_err(&self) -> Result {
        // SAFETY: By the type invariant the sock is valid.
        kernel::error::to_result(unsafe { bindings::sock_error(self.as_raw()) })
    }

    /// Wakes those who wait to read or to accept. Any context.
    pub fn wake_readable(&self) {
        // SAFETY: By the type invariant the sock is valid; its callback is the kernel's default one.
        unsafe { bindings::sk_data_ready(self.as_raw()) };
    }

    /// Wakes those who wait to write. Any context.
    pub fn wake_writable(&self) {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_wake_writable(self.as_raw()) };
    }

    /// Sends SIGURG to whoever asked for it: urgent data has arrived. Any context.
    pub fn wake_urgent(&self) {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_urgent(self.as_raw()) };
    }

    /// Wakes everybody: the state changed. Any context.
    pub fn wake_state(&self) {
        // SAFETY: By the type invariant the sock is valid; its callback is the kernel's default one.
        unsafe { bindings::sk_state_change(self.as_raw()) };
    }

    /// Wakes everybody: the socket has an error. Any context.
    pub fn wake_error(&self) {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { bindings::sk_error_report(self.as_raw()) };
    }

    /// Passes a wake-up of the TCP socket on to those who asked for signals. Any context.
    ///
    /// TCP says that there is room again only to those who found none.
    pub fn wake_async(&self, events: u32) {
        for (event, how, band) in [
            (
                super::events::IN,
                bindings::SOCK_WAKE_WAITD,
                bindings::POLL_IN,
            ),
            (
                super::events::OUT,
                bindings::SOCK_WAKE_IO,
                bindings::POLL_OUT,
            ),
            (
                super::events::ERR,
                bindings::SOCK_WAKE_IO,
                bindings::POLL_ERR,
            ),
        ] {
            if events & event != 0 {
                // SAFETY: By the type invariant the sock is valid.
                unsafe { bindings::sk_wake_async(self.as_raw(), how as c_int, band as c_int) };
            }
        }
    }

    /// Sets the buffer sizes that the socket reports, as the kernel does: twice what they are. One that the application
    /// chose stays as it is.
    pub fn set_buffers(&self, sndbuf: u32, rcvbuf: u32) {
        let (chosen_snd, chosen_rcv) = self.buffers_locked();
        let sk = self.as_raw();
        let twice = |bytes: u32| c_int::try_from(bytes.saturating_mul(2)).unwrap_or(c_int::MAX);
        if !chosen_snd {
            // SAFETY: By the type invariant the sock is valid; the field is a plain number, read without a lock.
            unsafe { ptr::write_volatile(&raw mut (*sk).sk_sndbuf, twice(sndbuf)) };
        }
        if !chosen_rcv {
            // SAFETY: As above.
            unsafe { ptr::write_volatile(&raw mut (*sk).sk_rcvbuf, twice(rcvbuf)) };
        }
    }

    /// The buffer sizes as the socket reports them: for sending and for receiving.
    pub fn buffers(&self) -> (u32, u32) {
        let sk = self.as_raw();
        // SAFETY: By the type invariant the sock is valid; the fields are plain numbers, read without a lock.
        let snd = unsafe { ptr::read_volatile(&raw const (*sk).sk_sndbuf) };
        // SAFETY: As above.
        let rcv = unsafe { ptr::read_volatile(&raw const (*sk).sk_rcvbuf) };
        (unsigned(snd.max(0)), unsigned(rcv.max(0)))
    }

    /// The memory cgroup that the socket belongs to.
    pub fn memcg(&self) -> Option<MemCg> {
        // SAFETY: By the type invariant the sock is valid.
        unsafe { MemCg::of_sock(self.as_raw()) }
    }

    /// Whether the application chose the buffer sizes: for sending and for receiving.
    pub fn buffers_locked(&self) -> (bool, bool) {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        let locks = unsafe { ptr::read_volatile(&raw const (*self.as_raw()).sk_userlocks) };
        let locks = u32::from(locks);
        (
            locks & bindings::SOCK_SNDBUF_LOCK != 0,
            locks & bindings::SOCK_RCVBUF_LOCK != 0,
        )
    }

    /// The least number of bytes that a blocking receive waits for, given the room it has.
    pub fn rcvlowat(&self) -> u32 {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        let low = unsafe { ptr::read_volatile(&raw const (*self.as_raw()).sk_rcvlowat) };
        unsigned(low.max(1))
    }

    /// Takes over what was set as `SO_RCVLOWAT` on `tcp`, and leaves one byte there; `one` says that this was meant. May
    /// sleep.
    pub fn take_rcvlowat_of(&self, tcp: &TcpSocket, one: bool) {
        // SAFETY: Both socks are valid, and this is a task that may sleep.
        unsafe { bindings::sk_take_rcvlowat(self.as_raw(), tcp.sk(), one) };
    }

    /// From now on the application reads from `tcp`: that wakes it as this socket would.
    pub fn hand_rcvlowat_to(&self, tcp: &TcpSocket) {
        // SAFETY: Both socks are valid; plain numbers, read and written without a lock.
        unsafe {
            let low = ptr::read_volatile(&raw const (*self.as_raw()).sk_rcvlowat);
            ptr::write_volatile(&raw mut (*tcp.sk()).sk_rcvlowat, low);
        }
    }

    /// Where the next peek begins (`SO_PEEK_OFF`), a number of bytes; nothing when that is off.
    pub fn peek_offset(&self) -> Option<u32> {
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        let at = unsafe { ptr::read_volatile(&raw const (*self.as_raw()).sk_peek_off) };
        u32::try_from(at).ok()
    }

    /// Says where the next peek begins; a negative number switches that off.
    pub fn set_peek_offset(&self, to: i32) {
        // SAFETY: By the type invariant the sock is valid; a plain number, written without a lock.
        unsafe { ptr::write_volatile(&raw mut (*self.as_raw()).sk_peek_off, to) };
    }

    /// From now on peeks go to `tcp`: it begins where this socket would.
    pub fn hand_peek_offset_to(&self, tcp: &TcpSocket) {
        // SAFETY: Both socks are valid; plain numbers, read and written without a lock.
        unsafe {
            let at = ptr::read_volatile(&raw const (*self.as_raw()).sk_peek_off);
            ptr::write_volatile(&raw mut (*tcp.sk()).sk_peek_off, at);
        }
    }

    /// Moves the place where the next peek begins: onward by what was peeked at, back by what was read.
    pub fn move_peek_offset(&self, onward: i32) {
        let Some(at) = self.peek_offset() else {
            return;
        };
        self.set_peek_offset(signed(at).saturating_add(onward).max(0));
    }

    /// Makes this socket report what calls on `tcp` change by the way: the buffers that TCP sizes by itself, and where
    /// the next peek begins.
    pub fn follow(&self, tcp: &TcpSocket) {
        let to = self.as_raw();
        let from = tcp.sk();
        // SAFETY: Both socks are valid; these are plain numbers, read and written without a lock.
        unsafe {
            ptr::write_volatile(
                &raw mut (*to).sk_sndbuf,
                ptr::read_volatile(&raw const (*from).sk_sndbuf),
            );
            ptr::write_volatile(
                &raw mut (*to).sk_rcvbuf,
                ptr::read_volatile(&raw const (*from).sk_rcvbuf),
            );
            ptr::write_volatile(
                &raw mut (*to).sk_peek_off,
                ptr::read_volatile(&raw const (*from).sk_peek_off),
            );
        }
    }

    /// How long `SO_LINGER` lets a close wait: nothing when it is off.
    pub fn linger(&self) -> Option<Patience> {
        let sk = self.as_raw();
        // SAFETY: By the type invariant the sock is valid.
        if !unsafe { has_flag(sk, bindings::sock_flags_SOCK_LINGER) } {
            return None;
        }
        // SAFETY: By the type invariant the sock is valid; a plain number, read without a lock.
        let time = unsafe { ptr::read_volatile(&raw const (*sk).sk_lingertime) };
        Some(Patience::of(c_long::try_from(time).unwrap_or(c_long::MAX)))
    }

    /// Makes this socket report the options of `tcp`, where the kernel's own code looks for them. May sleep.
    ///
    /// `SO_RCVLOWAT` and `SO_PEEK_OFF` are not among them: the handshake reads from `tcp`.
    ///
    /// The sizes of the buffers are taken over where the application chose them, or both with `buffers`.
    ///
    /// # Locking
    ///
    /// Takes the lock of this sock, as `setsockopt(2)` does: its flags are changed by read and write, not atomically.
    pub fn mirror(&self, tcp: &TcpSocket, buffers: bool) {
        // SAFETY: Both socks are valid, and this is a task that may sleep.
        unsafe { bindings::sk_mirror_options(self.as_raw(), tcp.sk(), buffers) };
    }
}

/// Whether one of the `SOCK_` flags of a sock is set.
///
/// # Safety
///
/// `sk` must be valid.
pub(super) unsafe fn has_flag(sk: *const bindings::sock, flag: u32) -> bool {
    // SAFETY: The caller vouches for the sock.
    let place = unsafe { &raw const (*sk).__sk_common.__bindgen_anon_5.skc_flags };
    // SAFETY: As above; the read is volatile, as the flags are changed without a lock that is held here.
    let flags = unsafe { ptr::read_volatile(place) };
    1usize.checked_shl(flag).is_some_and(|bit| flags & bit != 0)
}

/// A socket as a system call sees it: its descriptor is open.
pub struct Open<'a, T: SocketOps> {
    /// The sock.
    sk: &'a Sock<T>,
    /// It stays with the call.
    _call: NotThreadSafe,
}

impl<T: SocketOps> Clone for Open<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: SocketOps> Copy for Open<'_, T> {}

impl<T: SocketOps> Deref for Open<'_, T> {
    type Target = Sock<T>;

    fn deref(&self) -> &Sock<T> {
        self.sk
    }
}

impl<'a, T: SocketOps> Open<'a, T> {
    /// The socket of a call.
    ///
    /// # Safety
    ///
    /// `sock` must be the socket of a call in progress, or of one that closes it, and have a sock of data `T`.
    pub(super) unsafe fn from_raw(sock: *mut bindings::socket) -> Self {
        // SAFETY: The caller vouches for the socket.
        let sk = unsafe { (*sock).sk };
        Self {
            // SAFETY: The caller vouches for the sock, which the open file keeps.
            sk: unsafe { Sock::from_raw(sk) },
            _call: NotThreadSafe,
        }
    }

    /// The sock without the knowledge that it is open.
    pub fn sock(&self) -> &'a Sock<T> {
        self.sk
    }

    /// What lives as long as the descriptor.
    ///
    /// # Errors
    ///
    /// `EBADFD` if it were gone, which cannot be while the descriptor is open.
    pub fn attached(&self) -> Result<&'a T::Attached> {
        // SAFETY: The field is only written before the descriptor exists and after its last call.
        unsafe { (*self.sk.attached.get()).as_ref() }.ok_or(EBADFD)
    }

    /// How long a read may wait.
    pub fn read_patience(&self, nonblocking: bool) -> Patience {
        // SAFETY: The sock is valid.
        Patience::of(unsafe { bindings::sock_rcvtimeo(self.as_raw(), nonblocking) })
    }

    /// How long a read looks for data before it sleeps, in microseconds (`SO_BUSY_POLL`).
    pub fn busy_us(&self) -> u32 {
        // SAFETY: The sock is valid.
        unsafe { bindings::sk_busy_us(self.as_raw()) }
    }

    /// How long a write or a connect may wait.
    pub fn write_patience(&self, nonblocking: bool) -> Patience {
        // SAFETY: The sock is valid.
        Patience::of(unsafe { bindings::sock_sndtimeo(self.as_raw(), nonblocking) })
    }

    /// Waits on the socket until `cond` gives something; `cond` may sleep.
    ///
    /// Of exclusive waiters only one is woken when the socket becomes readable.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when the time is over, `ERESTARTSYS` or `EINTR` for a signal.
    pub fn wait<R>(
        &self,
        patience: &mut Patience,
        exclusive: bool,
        cond: impl FnMut() -> Option<R>,
    ) -> Result<R> {
        // SAFETY: The sock is valid and, as its descriptor is open, has a wait queue.
        let queue = unsafe { bindings::sk_sleep(self.as_raw()) };
        // SAFETY: The queue lives in the socket of the open descriptor.
        unsafe { patience.wait_on(queue, exclusive, cond) }
    }

    /// Adds a caller of `poll(2)` to the socket's waiters.
    pub fn poll_wait(&self, table: &PollTable<'_>) {
        // SAFETY: File, socket and table are those of a call in progress.
        unsafe { bindings::sock_poll_wait(table.file, table.outer, table.table) };
    }

    /// The error of a write that failed with `err`: for `EPIPE` the socket's own one, if it has any. What comes out as
    /// `EPIPE` sends the signal that belongs to it.
    pub fn broken_pipe(&self, nosignal: bool, err: Error) -> Error {
        let flags = if nosignal { bindings::MSG_NOSIGNAL } else { 0 };
        // SAFETY: The sock is valid.
        let errno =
            unsafe { bindings::sk_stream_error(self.as_raw(), signed(flags), err.to_errno()) };
        Error::from_errno(errno)
    }
}

/// `sock::sk_destruct`.
///
/// # Safety
///
/// Called by the kernel when the last reference to a sock of data `T` is gone, in any context but hard-irq.
unsafe extern "C" fn destruct_callback<T: SocketOps>(sk: *mut bindings::sock) {
    let this = sk.cast::<Sock<T>>();
    // SAFETY: The object is a complete `Sock` that nobody else knows any more.
    let next = unsafe { (*(*this).next_destruct.get()).take() };
    // SAFETY: As above.
    drop(unsafe { (*(*this).place.get()).take() });
    // SAFETY: As above; only an address is made.
    let data = unsafe { (&raw mut (*this).data).cast::<T>() };
    // SAFETY: By the type invariant the data was initialised, and it is dropped nowhere else.
    unsafe { ptr::drop_in_place(data) };
    if let Some(next) = next {
        // SAFETY: It is the destructor that the kernel had set for this sock.
        unsafe { next(sk) };
    }
}

/// Stands in for a destructor that the kernel did not set.
///
/// # Safety
///
/// None needed: it does nothing.
unsafe extern "C" fn no_destruct(_sk: *mut bindings::sock) {}

/// The reference that a connection or an accept queue holds of a TCP socket.
pub type TcpRef = Arc<TcpSocket>;
