// SPDX-License-Identifier: GPL-2.0

//! The TCP option by which two ends say that they speak SMC, on a kernel whose TCP knows nothing of it.
//!
//! ```text
//!  client socket: ASKED                                   listener: ASKED, its operations replaced
//!   output hook adds the option, ── SYN + option ──►  conn_request sees the SYN, leaves a note on this CPU
//!   replaces the operations: SENT                       output hook reads the note, keeps it in the request,
//!  sk_rx_dst_set sees it:        ◄─ SYN-ACK + option ── and adds the option
//!   SEEN, operations restored     ── ACK ──►           syn_recv_sock makes the child: SEEN, operations restored
//! ```
//!
//! What a socket has come to stands in its `sk_user_data`, as the address of one of the tags below: nothing is
//! allocated, nothing is inherited by children, and nobody else can attach to the socket meanwhile. The operations that
//! replace TCP's own are three tables at most, immutable once made; they are put in place and taken away by
//! compare-and-swap under the socket's lock, as IPV6_ADDRFORM and a connect over IPv6 replace the pointer as well.
//!
//! C headers: [`include/linux/netfilter.h`](srctree/include/linux/netfilter.h),
//! [`include/net/inet_connection_sock.h`](srctree/include/net/inet_connection_sock.h)

use core::{
    ptr::{
        self,
        NonNull, //
    },
    slice,
};

use kernel::{
    error::to_result,
    ffi::{
        c_int,
        c_uint,
        c_void, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        SetOnce, //
    },
};
use smc_bindings as bindings;

use super::{
    NetNs,
    TcpSocket,
    Zeroed, //
};

/// How to change a TCP header.
pub struct Edit {
    /// The bytes to add at its end.
    pub bytes: [u8; 8],
    /// The new value of the byte that holds the header's length.
    pub offset_byte: u8,
}

/// What knows the option.
#[derive(Clone, Copy)]
pub struct Codec {
    /// Whether a TCP header, options included, has the option.
    pub offered: fn(header: &[u8]) -> bool,
    /// How to add it to a TCP header; nothing when that must not be done. The flag says whether data follow.
    pub plan: fn(header: &[u8], payload: bool) -> Option<Edit>,
}

/// The place in a TCP header of the byte that holds its length.
const OFFSET_BYTE: usize = 12;

/// The place in a TCP header of its checksum.
const CHECKSUM: usize = 16;

/// The codec, from the time of registration on.
static CODEC: SetOnce<Codec> = SetOnce::new();

/// Tags for `sk_user_data`; only their addresses matter.
#[repr(align(8))]
struct Tag(#[expect(dead_code, reason = "gives the tag an address of its own")] u64);

/// The option is to be written.
static ASKED: Tag = Tag(1);
/// It has been written.
static SENT: Tag = Tag(2);
/// The peer has it as well.
static SEEN: Tag = Tag(3);

/// The option is to be written, by a listener that takes few connections at once.
static LIMITED: Tag = Tag(4);
/// Such a listener has enough for now.
static PAUSED: Tag = Tag(5);

/// What a socket may be tagged with.
static TAGS: [&Tag; 5] = [&ASKED, &SENT, &SEEN, &LIMITED, &PAUSED];

/// Whether a value of `sk_user_data` is one of our tags.
fn is_tag(value: *mut c_void) -> bool {
    TAGS.iter().any(|tag| tag.value() == value)
}

/// Whether a value of `sk_user_data` is the tag of a socket that asks for the option and has not written it.
fn is_asking(value: *mut c_void) -> bool {
    [&ASKED, &LIMITED, &PAUSED]
        .iter()
        .any(|tag| tag.value() == value)
}

/// How many connections may be in a handshake, or on their way to one, at a listener that limits them.
pub const LISTENER_LIMIT: u32 = 16;

/// The bit in `sk_user_data` that keeps a tag from being copied to children.
const NOCOPY: usize = bindings::SK_USER_DATA_NOCOPY as usize;

impl Tag {
    /// What stands in `sk_user_data`.
    fn value(&'static self) -> *mut c_void {
        ptr::from_ref(self)
            .cast_mut()
            .cast::<c_void>()
            .map_addr(|addr| addr | NOCOPY)
    }
}

/// Which operations of TCP a table replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Those of IPv4 sockets.
    V4,
    /// Those of IPv6 sockets.
    V6,
    /// Those of IPv6 sockets that speak IPv4.
    Mapped,
}

impl Kind {
    /// The number of each kind, for the functions in its table.
    const V4_NUMBER: usize = 0;
    /// See [`V4_NUMBER`](Self::V4_NUMBER).
    const V6_NUMBER: usize = 1;
    /// See [`V4_NUMBER`](Self::V4_NUMBER).
    const MAPPED_NUMBER: usize = 2;

    /// Where its table is.
    fn place(self) -> &'static SetOnce<Table> {
        let [v4, v6, mapped] = &TABLES;
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
            Self::Mapped => mapped,
        }
    }

    /// The kind with this number.
    const fn from_number(number: usize) -> Self {
        match number {
            Self::V4_NUMBER => Self::V4,
            Self::V6_NUMBER => Self::V6,
            _ => Self::Mapped,
        }
    }
}

/// The C type of a table of operations.
type AfOps = bindings::inet_connection_sock_af_ops;

/// A table and what it replaces.
struct Table {
    /// TCP's own table, a static of the kernel.
    original: NonNull<AfOps>,
    /// Ours.
    ours: AfOps,
}

// SAFETY: Both tables are immutable.
unsafe impl Send for Table {}
// SAFETY: As for `Send`.
unsafe impl Sync for Table {}

/// The tables, made when the first socket of their kind needs one.
static TABLES: [SetOnce<Table>; 3] = [SetOnce::new(), SetOnce::new(), SetOnce::new()];

/// The note that a CPU leaves itself while a SYN is being answered.
#[repr(C)]
struct Note {
    /// The listener that answers; null when none does.
    listener: *const bindings::sock,
    /// Whether the SYN had the option.
    offered: bool,
}

/// The notes, one for each CPU; null before registration.
static NOTES: Atomic<*mut c_void> = Atomic::new(ptr::null_mut());

/// What all namespaces share; dropping it waits until no CPU is in a function of this file any more.
#[must_use]
pub struct OptionRegistration(());

impl OptionRegistration {
    /// Prepares for reading and writing the option.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(codec: Codec) -> Result<Self> {
        CODEC.populate(codec);
        // SAFETY: A plain allocation; null means that it failed.
        let notes = unsafe { bindings::alloc_percpu_zeroed(size_of::<Note>(), align_of::<Note>()) };
        if notes.is_null() {
            return Err(ENOMEM);
        }
        NOTES.store(notes, Release);
        Ok(Self(()))
    }
}

impl Drop for OptionRegistration {
    fn drop(&mut self) {
        // No socket and no hook is left: who is still in here entered before they went, under RCU's read lock.
        // SAFETY: This is called from a task that may sleep.
        unsafe { bindings::synchronize_net() };
        let notes = NOTES.xchg(ptr::null_mut(), Full);
        // SAFETY: The memory was allocated at registration, and nobody uses it any more.
        unsafe { bindings::free_percpu_memory(notes) };
    }
}

/// The output hooks of one namespace.
///
/// # Invariants
///
/// `ops` came from a `KBox` that nobody else owns, and is registered in `net`.
pub struct OutputHooks {
    /// What is registered, owned by this object; its address must not change.
    ops: NonNull<[bindings::nf_hook_ops; 2]>,
    /// Where.
    net: NonNull<bindings::net>,
}

// SAFETY: The object is only dropped, by any one task.
unsafe impl Send for OutputHooks {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for OutputHooks {}

impl OutputHooks {
    /// Begins to look at what leaves `net`.
    ///
    /// The object must be dropped before the namespace is gone, at the latest in its exit.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn register(net: &NetNs) -> Result<Self> {
        let entry = |family: u32, v6: bool| bindings::nf_hook_ops {
            hook: Some(if v6 {
                output_hook::<true>
            } else {
                output_hook::<false>
            }),
            // CAST: Small constants.
            pf: family as u8,
            hooknum: bindings::nf_inet_hooks_NF_INET_LOCAL_OUT,
            // Before connection tracking and address translation, so that they see the packet as it goes out.
            priority: bindings::nf_ip_hook_priorities_NF_IP_PRI_RAW_BEFORE_DEFRAG,
            ..Zeroed::ZERO
        };
        let net = NonNull::new(net.as_raw()).ok_or(EINVAL)?;
        let mut ops = KBox::new(
            [
                entry(bindings::NFPROTO_IPV4, false),
                entry(bindings::NFPROTO_IPV6, true),
            ],
            GFP_KERNEL,
        )?;
        // SAFETY: The namespace is alive, and the entries live until they are unregistered in drop.
        to_result(unsafe { bindings::nf_register_net_hooks(net.as_ptr(), ops.as_mut_ptr(), 2) })?;
        // INVARIANT: The registration succeeded, and the box is given up here.
        let ops = NonNull::from(KBox::leak(ops));
        Ok(Self { ops, net })
    }
}

impl Drop for OutputHooks {
    fn drop(&mut self) {
        let ops = self.ops.as_ptr().cast::<bindings::nf_hook_ops>();
        // SAFETY: By the type invariant the entries are registered there; the namespace has not gone yet.
        unsafe { bindings::nf_unregister_net_hooks(self.net.as_ptr(), ops, 2) };
        // Who lists the hooks reads the entries under RCU's read lock, maybe for a moment longer.
        // SAFETY: By the type invariant the memory is ours and came from the kernel's allocator.
        unsafe { bindings::nf_hook_ops_free(ops) };
    }
}

impl TcpSocket {
    /// Asks for the option on the connection that is about to be opened.
    ///
    /// # Errors
    ///
    /// `EBUSY` when somebody else is attached to the socket.
    pub fn ask_on_connect(&self) -> Result {
        let sk = self.sk();
        // SAFETY: The sock is valid. The lock keeps away whoever looks whether the socket is free to attach to.
        unsafe { bindings::sk_callback_lock(sk) };
        let free = user_data(sk).cmpxchg(ptr::null_mut(), ASKED.value(), Full);
        // SAFETY: It was taken above.
        unsafe { bindings::sk_callback_unlock(sk) };
        match free {
            Ok(_) => Ok(()),
            Err(tag) if is_asking(tag) => Ok(()),
            Err(_) => Err(EBUSY),
        }
    }

    /// Asks for the option on the connections that the listener will accept.
    ///
    /// # Errors
    ///
    /// `EBUSY` when somebody else is attached to the socket or its operations are not TCP's own.
    pub fn ask_on_accept(&self) -> Result {
        self.ask_on_connect()?;
        let sk = self.sk();
        // SAFETY: The sock is valid, and this is a task that may sleep.
        unsafe { bindings::lock_sock(sk) };
        let outcome = replace_operations(sk);
        // SAFETY: It was locked above.
        unsafe { bindings::release_sock(sk) };
        outcome
    }

    /// Says whether the listener limits the connections that it takes with the option, and whether it has enough now.
    /// Does not sleep. Nothing happens to a socket that does not ask for the option.
    pub fn limit_option(&self, limited: bool, enough: bool) {
        let to = match (limited, enough) {
            (false, _) => &ASKED,
            (true, false) => &LIMITED,
            (true, true) => &PAUSED,
        };
        let data = user_data(self.sk());
        for from in [&ASKED, &LIMITED, &PAUSED] {
            if data.cmpxchg(from.value(), to.value(), Full).is_ok() {
                return;
            }
        }
    }

    /// Whether both ends said that they speak SMC.
    pub fn peer_has_smc(&self) -> bool {
        user_data(self.sk()).load(Acquire) == SEEN.value()
    }

    /// Acknowledges as a new connection does, which has had no handshake yet: small data of the peer would else wait. May
    /// sleep.
    pub fn ack_like_new(&self) {
        // SAFETY: The sock is valid, one of TCP, and this is a task that may sleep.
        unsafe { bindings::tcp_ack_like_new(self.sk()) };
    }

    /// Makes the socket one of TCP like any other.
    pub fn forget_option(&self) {
        let sk = self.sk();
        let tag = user_data(sk).load(Acquire);
        if !is_tag(tag) {
            return;
        }
        // SAFETY: The sock is valid, and this is a task that may sleep.
        unsafe { bindings::lock_sock(sk) };
        restore_operations(sk);
        // Under the socket's lock nobody else changes a tag, but for one of a listener into another.
        let mut tag = user_data(sk).load(Relaxed);
        while is_tag(tag) {
            match user_data(sk).cmpxchg(tag, ptr::null_mut(), Full) {
                Ok(_) => {
                    if tag == SEEN.value() {
                        // The handshake is over.
                        // SAFETY: The sock is valid and locked.
                        unsafe { bindings::tcp_ack_as_usual(sk) };
                    }
                    break;
                }
                Err(now) => tag = now,
            }
        }
        // SAFETY: It was locked above.
        unsafe { bindings::release_sock(sk) };
    }
}

/// The `sk_user_data` of a valid sock, as an atomic.
fn user_data<'a>(sk: *mut bindings::sock) -> &'a Atomic<*mut c_void> {
    // SAFETY: The callers have a valid full sock, which outlives the use of the reference within them. All accesses to
    // the field that can run at the same time are single loads and stores.
    unsafe { Atomic::from_ptr(&raw mut (*sk).sk_user_data) }
}

/// The operations of a valid TCP sock, as an atomic.
fn operations<'a>(sk: *mut bindings::sock) -> &'a Atomic<*mut AfOps> {
    let icsk = sk.cast::<bindings::inet_connection_sock>();
    // SAFETY: As for `user_data`; a TCP sock is an `inet_connection_sock`.
    unsafe { Atomic::from_ptr((&raw mut (*icsk).icsk_af_ops).cast()) }
}

/// Puts our table in place of TCP's own. The caller holds the sock's lock.
fn replace_operations(sk: *mut bindings::sock) -> Result {
    let live = operations(sk).load(Acquire);
    let original = NonNull::new(live).ok_or(EINVAL)?;
    if is_ours(live) {
        return Ok(());
    }
    // SAFETY: The operations of a valid sock are a static table.
    let ops = unsafe { &*live };
    // SAFETY: The sock is valid.
    let family = unsafe { (*sk).__sk_common.skc_family };
    let over_v6 = usize::from(ops.net_header_len) == size_of::<bindings::ipv6hdr>();
    let kind = match (u32::from(family), over_v6) {
        (bindings::AF_INET, _) => Kind::V4,
        (_, true) => Kind::V6,
        (_, false) => Kind::Mapped,
    };
    let place = kind.place();
    if place.as_ref().is_none() {
        // Another CPU may do so at the same time, with the same table.
        place.populate(Table {
            original,
            ours: match kind {
                Kind::V4 => wrap::<{ Kind::V4_NUMBER }>(ops),
                Kind::V6 => wrap::<{ Kind::V6_NUMBER }>(ops),
                Kind::Mapped => wrap::<{ Kind::MAPPED_NUMBER }>(ops),
            },
        });
    }
    let table = place.as_ref().ok_or(EAGAIN)?;
    if table.original != original {
        // Somebody else has replaced them.
        return Err(EBUSY);
    }
    let ours = ptr::from_ref(&table.ours).cast_mut();
    operations(sk)
        .cmpxchg(live, ours, Full)
        .map(|_| ())
        .map_err(|_| EAGAIN)
}

/// Puts TCP's own table back if ours is in place. The caller holds the sock's lock.
fn restore_operations(sk: *mut bindings::sock) {
    let live = operations(sk).load(Acquire);
    for table in TABLES.iter().filter_map(SetOnce::as_ref) {
        if ptr::eq(live, &table.ours) {
            // A refusal means that somebody else has replaced the table meanwhile.
            let _ = operations(sk).cmpxchg(live, table.original.as_ptr(), Full);
        }
    }
}

/// Whether a table is one of ours.
fn is_ours(live: *mut AfOps) -> bool {
    TABLES
        .iter()
        .filter_map(SetOnce::as_ref)
        .any(|table| ptr::eq(live, &table.ours))
}

/// Our table in place of `ops`.
fn wrap<const KIND: usize>(ops: &AfOps) -> AfOps {
    AfOps {
        sk_rx_dst_set: Some(sk_rx_dst_set::<KIND>),
        conn_request: Some(conn_request::<KIND>),
        syn_recv_sock: Some(syn_recv_sock::<KIND>),
        ..*ops
    }
}

/// TCP's own table, for a function of ours.
fn original<const KIND: usize>() -> Option<&'static AfOps> {
    let table = Kind::from_number(KIND).place().as_ref()?;
    // SAFETY: It is a static of the kernel.
    Some(unsafe { table.original.as_ref() })
}

/// The TCP header of a received packet, options included.
///
/// # Safety
///
/// `skb` must be a packet that TCP has begun to work on, valid for `'a`: its header is linear and does not change.
unsafe fn received_header<'a>(skb: *const bindings::sk_buff) -> &'a [u8] {
    // SAFETY: The caller vouches for the packet.
    let (start, len) = unsafe {
        (
            bindings::skb_transport_header(skb),
            bindings::tcp_hdrlen(skb),
        )
    };
    // SAFETY: TCP has checked that the header is linear.
    unsafe { slice::from_raw_parts(start, kernel::num::casts::u32_as_usize(len)) }
}

/// Whether a TCP header is that of a SYN, and whether it is an answer.
fn syn_and_ack(header: &[u8]) -> (bool, bool) {
    let flags = header.get(13).copied().unwrap_or(0);
    (flags & 0x02 != 0, flags & 0x10 != 0)
}

/// Whether a TCP header has the option.
fn offered(header: &[u8]) -> bool {
    CODEC.as_ref().is_some_and(|codec| (codec.offered)(header))
}

/// `inet_connection_sock_af_ops::sk_rx_dst_set`: the client sees the SYN-ACK.
///
/// # Safety
///
/// Called by TCP under the sock's lock.
unsafe extern "C" fn sk_rx_dst_set<const KIND: usize>(
    sk: *mut bindings::sock,
    skb: *const bindings::sk_buff,
) {
    if let Some(call) = original::<KIND>().and_then(|ops| ops.sk_rx_dst_set) {
        // SAFETY: The arguments are those that TCP called with.
        unsafe { call(sk, skb) };
    }
    // SAFETY: The packet is the one that TCP works on.
    let header = unsafe { received_header(skb) };
    if syn_and_ack(header) == (true, true) && offered(header) {
        // Only of a socket whose SYN had the option: others may echo what they do not know.
        let agreed = user_data(sk).cmpxchg(SENT.value(), SEEN.value(), Full);
        if agreed.is_ok() {
            wait_for_data_to_ack(sk);
        }
    }
    restore_operations(sk);
}

/// `inet_connection_sock_af_ops::conn_request`: the listener answers a SYN.
///
/// # Safety
///
/// Called by TCP for a listener, with bottom halves off.
unsafe extern "C" fn conn_request<const KIND: usize>(
    sk: *mut bindings::sock,
    skb: *mut bindings::sk_buff,
) -> c_int {
    let Some(call) = original::<KIND>().and_then(|ops| ops.conn_request) else {
        return 0;
    };
    // SAFETY: The packet is the one that TCP works on.
    let offered = offered(unsafe { received_header(skb) }) && !has_enough(sk);
    let before = exchange_note(Note {
        listener: sk,
        offered,
    });
    // SAFETY: The arguments are those that TCP called with.
    let ret = unsafe { call(sk, skb) };
    exchange_note(before);
    ret
}

/// Whether a listener takes no more connections with the option for now.
fn has_enough(listener: *mut bindings::sock) -> bool {
    let tag = user_data(listener).load(Acquire);
    if tag != LIMITED.value() {
        return tag == PAUSED.value();
    }
    // SAFETY: The sock is valid, and a listener.
    let waiting = unsafe { bindings::listener_waiting(listener) };
    waiting >= LISTENER_LIMIT
}

/// Leaves a note on this CPU and takes the one that was there. With bottom halves off.
fn exchange_note(note: Note) -> Note {
    let notes = NOTES.load(Acquire);
    // SAFETY: The memory was allocated for notes, and is there as long as sockets are.
    let place = unsafe { bindings::get_cpu_memory(notes) }.cast::<Note>();
    // SAFETY: The place is this CPU's own, and holds a note: zeroed memory is one.
    let before = unsafe { place.replace(note) };
    // SAFETY: It was got above.
    unsafe { bindings::put_cpu_memory(notes) };
    before
}

/// Whether the SYN that `listener` is answering on this CPU had the option; nothing when it is answering none.
fn read_note(listener: *const bindings::sock) -> Option<bool> {
    let notes = NOTES.load(Acquire);
    if notes.is_null() {
        return None;
    }
    // SAFETY: The memory was allocated for notes. The CPU cannot change before it is put back.
    let place = unsafe { bindings::get_cpu_memory(notes) }.cast::<Note>();
    // SAFETY: The place is this CPU's own. A note there is that of a caller of this function or of nobody, as it is
    // only left with bottom halves off.
    let (who, offered) = unsafe { ((*place).listener, (*place).offered) };
    // SAFETY: It was got above.
    unsafe { bindings::put_cpu_memory(notes) };
    (who == listener).then_some(offered)
}

/// `inet_connection_sock_af_ops::syn_recv_sock`: the listener makes a child.
///
/// # Safety
///
/// Called by TCP for a listener, with bottom halves off.
unsafe extern "C" fn syn_recv_sock<const KIND: usize>(
    sk: *const bindings::sock,
    skb: *mut bindings::sk_buff,
    req: *mut bindings::request_sock,
    dst: *mut bindings::dst_entry,
    req_unhash: *mut bindings::request_sock,
    own_req: *mut bool,
    opt_child_init: Option<
        unsafe extern "C" fn(newsk: *mut bindings::sock, sk: *const bindings::sock),
    >,
) -> *mut bindings::sock {
    let Some(call) = original::<KIND>().and_then(|ops| ops.syn_recv_sock) else {
        return ptr::null_mut();
    };
    // SAFETY: The arguments are those that TCP called with.
    let child = unsafe { call(sk, skb, req, dst, req_unhash, own_req, opt_child_init) };
    if child.is_null() {
        return child;
    }
    // The child is locked until TCP is done with it.
    restore_operations(child);
    // SAFETY: TCP's function has set it.
    let own = unsafe { *own_req };
    // SAFETY: The request is that of the call. One made from a cookie has no listener, and nothing is known of its SYN.
    let has_listener = unsafe { !(*req).__req_common.__bindgen_anon_5.skc_listener.is_null() };
    // SAFETY: The request is that of the call.
    let agreed = unsafe { bindings::inet_rsk_smc_ok(req) };
    // SAFETY: The packet is the one that TCP works on. With fast open it is the SYN itself, not answered yet.
    let (syn, _) = syn_and_ack(unsafe { received_header(skb) });
    if own && has_listener && agreed && !syn {
        // Somebody may have attached to the child already.
        let free = user_data(child).cmpxchg(ptr::null_mut(), SEEN.value(), Full);
        if free.is_ok() {
            wait_for_data_to_ack(child);
        }
    }
    child
}

/// Lets acknowledgements wait for a moment: both ends of a handshake answer at once, so that they go with the answers.
/// Under the sock's lock.
fn wait_for_data_to_ack(sk: *mut bindings::sock) {
    // SAFETY: The callers have a valid TCP sock, which is locked.
    unsafe { bindings::tcp_wait_for_data_to_ack(sk) };
}

/// The output hook: adds the option to SYN and SYN-ACK of sockets that asked for it.
///
/// # Safety
///
/// Called by netfilter for a packet that leaves this machine, under RCU's read lock.
unsafe extern "C" fn output_hook<const V6: bool>(
    _priv: *mut c_void,
    skb: *mut bindings::sk_buff,
    _state: *const bindings::nf_hook_state,
) -> c_uint {
    // SAFETY: The packet is valid; the field is a plain pointer.
    let sk = unsafe { (*skb).sk };
    if !sk.is_null() {
        // SAFETY: A packet's sock is valid as long as the packet is; every kind of sock begins with this field's struct.
        let state = unsafe { ptr::read_volatile(&raw const (*sk).__sk_common.skc_state) };
        match u32::from(state) {
            // SAFETY: Only a full sock is in this state.
            bindings::TCP_SYN_SENT => unsafe { on_syn::<V6>(sk, skb) },
            // SAFETY: A sock in this state is a request.
            bindings::TCP_NEW_SYN_RECV => unsafe { on_syn_ack::<V6>(sk.cast(), skb) },
            _ => (),
        }
    }
    bindings::NF_ACCEPT
}

/// A packet leaves a sock that is connecting.
///
/// # Safety
///
/// `sk` must be a valid full sock, locked by the caller of the hook if it is one of TCP; `skb` valid and its own.
unsafe fn on_syn<const V6: bool>(sk: *mut bindings::sock, skb: *mut bindings::sk_buff) {
    let tag = user_data(sk).load(Acquire);
    if tag != ASKED.value() && tag != SENT.value() {
        return;
    }
    // The tag says that it is a TCP socket of ours.
    // SAFETY: The sock is valid and one of TCP.
    if unsafe { bindings::tcp_has_auth(sk) } {
        return;
    }
    // SAFETY: The packet is valid and its socket's.
    let planned = unsafe { plan::<V6>(skb) };
    let Some(edit) = planned else {
        return;
    };
    // The operations come first: without them the answer would not be seen.
    if replace_operations(sk).is_err() {
        return;
    }
    // SAFETY: As above, and the plan was made for this packet.
    if unsafe { apply::<V6>(skb, &edit) }.is_ok() {
        let _ = user_data(sk).cmpxchg(ASKED.value(), SENT.value(), Full);
    }
}

/// A packet leaves a request: a SYN-ACK.
///
/// # Safety
///
/// `req` must be a valid request and `skb` valid and its own.
unsafe fn on_syn_ack<const V6: bool>(
    req: *mut bindings::request_sock,
    skb: *mut bindings::sk_buff,
) {
    // SAFETY: The request is valid.
    let listener = unsafe { (*req).__req_common.__bindgen_anon_5.skc_listener };
    if listener.is_null() || !is_asking(user_data(listener).load(Acquire)) {
        return;
    }
    // SAFETY: The tag says that the listener is a TCP socket of ours.
    let signed = unsafe { bindings::tcp_has_auth(listener) };
    // SAFETY: The request is valid.
    let agreed = unsafe { bindings::inet_rsk_smc_ok(req) };
    // A SYN is answered for the first time while the note is there; later answers repeat the first one. Only the first
    // one decides: nobody else looks at the request yet.
    let note = read_note(listener);
    let wanted = note.unwrap_or(agreed) && !signed;
    let edit = if wanted {
        // SAFETY: The packet is valid and its request's.
        unsafe { plan::<V6>(skb) }
    } else {
        None
    };
    let done = match edit {
        // SAFETY: As above, and the plan was made for this packet.
        Some(edit) => unsafe { apply::<V6>(skb, &edit) }.is_ok(),
        None => false,
    };
    if note.is_some() && done != agreed {
        // SAFETY: The request is valid. Other CPUs may find it by now, but nobody else writes the bits of this word
        // before an answer to what is about to leave has come.
        unsafe { bindings::inet_rsk_set_smc_ok(req, done) };
    }
}

/// How to add the option to a packet; nothing when that must not be done.
///
/// # Safety
///
/// `skb` must be valid and about to leave.
unsafe fn plan<const V6: bool>(skb: *const bindings::sk_buff) -> Option<Edit> {
    let codec = CODEC.as_ref()?;
    // What a tunnel or IPsec has made of a segment leaves the machine with the segment's socket as well. And where IPsec
    // is to protect a connection its data must not go by RDMA.
    // SAFETY: The caller vouches for the packet, which has an IP header.
    if !unsafe { bindings::skb_is_plain_tcp(skb, V6) } {
        return None;
    }
    // SAFETY: The caller vouches for the packet.
    let (len, linear, offset) = unsafe {
        (
            (*skb).len,
            bindings::skb_headlen(skb),
            bindings::skb_transport_offset(skb),
        )
    };
    let offset = u32::try_from(offset).ok()?;
    // SAFETY: The packet is a TCP segment whose header its socket has made.
    let header_len = unsafe { bindings::tcp_hdrlen(skb) };
    let end = offset.checked_add(header_len)?;
    if linear != len || end > len {
        return None;
    }
    // SAFETY: The header is linear and within the packet, as was just seen; nobody changes it meanwhile.
    let header = unsafe { received_header(skb) };
    (codec.plan)(header, end < len)
}

/// Adds the option to a packet.
///
/// # Errors
///
/// `ENOMEM`; `EINVAL` for a length that does not fit. The packet is as it was then.
///
/// # Safety
///
/// `skb` must be valid and about to leave, and `edit` planned for it.
unsafe fn apply<const V6: bool>(skb: *mut bindings::sk_buff, edit: &Edit) -> Result {
    // CAST: A small constant.
    const ADDED: u16 = size_of::<[u8; 8]>() as u16;
    // SAFETY: The caller vouches for the packet.
    let (shared, room) = unsafe { (bindings::skb_cloned(skb), bindings::skb_tailroom(skb)) };
    if shared || room < c_int::from(ADDED) {
        // The data are shared with the copy that TCP keeps for sending again.
        // SAFETY: As above; the packet is ours while the hook runs.
        to_result(unsafe {
            bindings::pskb_expand_head(skb, 0, c_int::from(ADDED), bindings::GFP_ATOMIC)
        })?;
    }
    // SAFETY: As above. The positions of the headers are kept by the expansion.
    let (tcp, ip) = unsafe {
        (
            bindings::skb_transport_header(skb),
            (*skb).head.add(usize::from(
                (*skb)
                    .__bindgen_anon_4
                    .__bindgen_anon_1
                    .as_ref()
                    .network_header,
            )),
        )
    };
    // The length first, as it may not fit.
    if V6 {
        let ip = ip.cast::<bindings::ipv6hdr>();
        // SAFETY: The packet has an IPv6 header, which is not shared any more.
        let len = u16::from_be(unsafe { (*ip).payload_len });
        let len = len.checked_add(ADDED).ok_or(EINVAL)?;
        // SAFETY: As above.
        unsafe { (*ip).payload_len = len.to_be() };
    } else {
        let ip = ip.cast::<bindings::iphdr>();
        // SAFETY: The packet has an IPv4 header, which is not shared any more.
        let len = u16::from_be(unsafe { (*ip).tot_len });
        let len = len.checked_add(ADDED).ok_or(EINVAL)?;
        // SAFETY: As above.
        unsafe { (*ip).tot_len = len.to_be() };
        // SAFETY: As above.
        unsafe { bindings::ip_send_check(ip) };
    }
    // SAFETY: There is room for the bytes at the end.
    let end = unsafe { bindings::skb_put(skb, c_uint::from(ADDED)) }.cast::<u8>();
    // SAFETY: The room was just made, and overlaps with nothing.
    unsafe { ptr::copy_nonoverlapping(edit.bytes.as_ptr(), end, edit.bytes.len()) };
    // SAFETY: The packet has a TCP header, which is not shared any more.
    let header = unsafe { slice::from_raw_parts_mut(tcp, 20) };
    // SAFETY: The packet is valid.
    let partial = u32::from(unsafe { bindings::skb_ip_summed(skb) }) == bindings::CHECKSUM_PARTIAL;
    update_header(header, edit, partial, ADDED);
    Ok(())
}

/// Changes the fixed part of a TCP header for bytes that were added behind it.
fn update_header(header: &mut [u8], edit: &Edit, partial: bool, added: u16) {
    let word = |bytes: &[u8], at: usize| -> u16 {
        let pair = bytes.get(at..).and_then(<[u8]>::first_chunk::<2>);
        pair.map_or(0, |pair| u16::from_be_bytes(*pair))
    };
    let old = word(header, OFFSET_BYTE);
    if let Some(byte) = header.get_mut(OFFSET_BYTE) {
        *byte = edit.offset_byte;
    }
    let new = word(header, OFFSET_BYTE);
    let check = word(header, CHECKSUM);
    let check = if partial {
        // It holds the sum of the pseudo header, of which the length is a part; the device adds the rest.
        add16(check, added)
    } else {
        let mut sum = add16(!check, added);
        sum = add16(add16(sum, !old), new);
        for at in [0, 2, 4, 6] {
            sum = add16(sum, word(&edit.bytes, at));
        }
        !sum
    };
    if let Some(place) = header
        .get_mut(CHECKSUM..)
        .and_then(<[u8]>::first_chunk_mut::<2>)
    {
        *place = check.to_be_bytes();
    }
}

/// Adds as the checksum of the internet does: what is carried out comes back in.
fn add16(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(u16::from(carry))
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_option)]
mod tests {
    use super::*;
    use crate::kapi::net::Family;

    /// The internet checksum, from scratch.
    fn checksum(parts: &[&[u8]]) -> u16 {
        let mut sum = 0u32;
        for part in parts {
            for pair in part.chunks(2) {
                if let [high, low] = pair {
                    sum += u32::from(u16::from_be_bytes([*high, *low]));
                }
            }
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn a_full_checksum_stays_right() {
        let edit = Edit {
            bytes: [1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9],
            offset_byte: 0x70,
        };
        for seed in 0..=255u8 {
            let mut header = [0u8; 20];
            for (at, byte) in header.iter_mut().enumerate() {
                *byte = seed.wrapping_mul(31).wrapping_add(at as u8);
            }
            header[OFFSET_BYTE] = 0x50;
            header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&[0, 0]);
            // The length is a part of the pseudo header.
            let sum = checksum(&[&[0, 20], &header]);
            header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
            update_header(&mut header, &edit, false, 8);
            assert_eq!(header[OFFSET_BYTE], 0x70);
            assert_eq!(checksum(&[&[0, 28], &header, &edit.bytes]), 0);
        }
    }

    #[test]
    fn a_partial_checksum_counts_the_length_alone() {
        let edit = Edit {
            bytes: [7; 8],
            offset_byte: 0x70,
        };
        let mut header = [0u8; 20];
        header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&[0xff, 0xfe]);
        update_header(&mut header, &edit, true, 8);
        // What is carried out comes back in.
        assert_eq!(header[CHECKSUM..CHECKSUM + 2], [0x00, 0x07]);
    }

    #[test]
    fn tags_are_told_apart_and_not_copied() {
        let tags = TAGS.map(Tag::value);
        for (at, tag) in tags.iter().enumerate() {
            assert!(tag.addr() & NOCOPY != 0);
            assert!(tags.iter().skip(at + 1).all(|other| other != tag));
        }
    }

    #[test]
    fn asking_and_forgetting_leave_a_socket_as_it_was() -> Result {
        for family in [Family::V4, Family::V6] {
            let tcp = TcpSocket::new(NetNs::initial(), family)?;
            let before = operations(tcp.sk()).load(Relaxed);
            assert!(!is_ours(before));
            for _ in 0..2 {
                tcp.ask_on_accept()?;
                assert!(is_ours(operations(tcp.sk()).load(Relaxed)));
                // It may be asked again.
                tcp.ask_on_accept()?;
                tcp.ask_on_connect()?;
                assert!(!tcp.peer_has_smc());
                for (limited, enough) in [(true, false), (true, true), (false, true), (true, true)]
                {
                    tcp.limit_option(limited, enough);
                    assert_eq!(has_enough(tcp.sk()), limited && enough);
                    tcp.ask_on_connect()?;
                }
                tcp.forget_option();
                tcp.limit_option(true, true);
                assert!(!has_enough(tcp.sk()));
                assert!(operations(tcp.sk()).load(Relaxed) == before);
                assert!(user_data(tcp.sk()).load(Relaxed).is_null());
            }
            // Nothing to forget.
            tcp.forget_option();
        }
        Ok(())
    }

    #[test]
    fn a_socket_that_somebody_else_uses_is_left_alone() -> Result {
        let tcp = TcpSocket::new(NetNs::initial(), Family::V4)?;
        let mut other = 0u64;
        let foreign: *mut c_void = (&raw mut other).cast();
        user_data(tcp.sk()).store(foreign, Release);
        assert!(matches!(tcp.ask_on_connect(), Err(e) if e == EBUSY));
        assert!(matches!(tcp.ask_on_accept(), Err(e) if e == EBUSY));
        tcp.forget_option();
        assert!(user_data(tcp.sk()).load(Relaxed) == foreign);
        user_data(tcp.sk()).store(ptr::null_mut(), Release);
        Ok(())
    }

    #[test]
    fn hooks_come_and_go() -> Result {
        for _ in 0..2 {
            drop(OutputHooks::register(NetNs::initial())?);
        }
        Ok(())
    }
}
