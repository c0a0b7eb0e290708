// SPDX-License-Identifier: GPL-2.0

//! One connection: its two rings, its cursors and the CDC messages that move them.
//!
//! Positions are unbounded byte counts. A byte at position `p` of the outgoing stream lies at
//! `p mod S` in a send ring of ours and at `p mod P` in the peer's element, so one number describes
//! both, and the peer's cursors are lifted from their 48 bits once, in [`Conn::on_cdc`].
//!
//! ```text
//!   outgoing   fin ≤ sent ≤ prep        max(fin, peer_cons) + S ≥ prep (of one ring),  peer_cons + P ≥ sent
//!   incoming   told ≤ read ≤ arrived    told + R ≥ arrived
//! ```
//!
//! The caller holds one lock around all calls. A plan must be posted under that lock, because the
//! order on the queue pair has to be the order in which the cursors moved; everything else that a
//! call returns is acted upon after the lock is dropped.

mod early;
mod moving;
mod rings;
mod rx;
mod short;
mod tx;
mod urgent;

pub use early::Early;
pub use moving::{
    Moving,
    Sorted,
    MOVING_MS, //
};
pub use rx::{
    Consumed,
    PeerClose,
    RxEffects, //
};
pub use short::{
    Short,
    ShortSorted, //
};
pub use tx::{
    DoneEffects,
    TxPlan,
    TxToken,
    Write,
    MAX_WRITES, //
};
pub use urgent::{
    Urgent,
    UrgentError, //
};

use super::cdc::{
    ConnFlags,
    ProdFlags, //
};
use super::cursor::{
    Cursor,
    Pos,
    RingSize, //
};
use super::ids::AlertToken;

/// What a peer's CDC message did wrong. The connection is to be aborted; no counter has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnViolation {
    /// A cursor's count is not below the ring size.
    CountOutsideRing,
    /// The producer cursor claims more than the space the peer was told of.
    ProducedTooMuch,
    /// The consumer cursor claims more than was sent.
    ConsumedTooMuch,
    /// The validation after a link change names a message that never arrived: data is lost.
    DataLost,
    /// A short message came though they were not agreed on, or where there must not be any.
    ShortUnwanted,
}

/// The caller asked for something that the rings do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// What a connection needs to know at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The send ring that the connection begins with.
    pub send_ring: RingSize,
    /// The peer's element, into which we write.
    pub peer_ring: RingSize,
    /// Our element, into which the peer writes.
    pub recv_ring: RingSize,
    /// The peer's token, for our CDC messages.
    pub peer_token: AlertToken,
    /// How much freed space is worth a message of its own: [`super::size::update_limit`].
    pub update_limit: u32,
    /// The most data bytes in one plan; 0 for no limit but the rings.
    pub max_chain: u32,
}

/// A connection. Two of the same value are in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conn {
    /// Ring sizes and constants.
    params: Params,

    /// Outgoing: the rings that bytes lie in.
    rings: rings::Rings,

    /// Outgoing: written into the send ring by the application up to here.
    prep: Pos,
    /// Outgoing: covered by plans up to here. It is also our producer cursor.
    sent: Pos,
    /// Outgoing: completed up to here.
    fin: Pos,
    /// Outgoing: the highest `sent` ever, which a link change does not lower.
    max_sent: Pos,
    /// Outgoing: the peer has told that it read up to here. What lies before this or `fin` is free again.
    peer_cons: Pos,
    /// Outgoing: end of the urgent byte that the peer has not yet read.
    urgent_tx: Option<Pos>,

    /// Incoming: the peer has told that it wrote up to here.
    arrived: Pos,
    /// Incoming: the application has read up to here.
    read: Pos,
    /// Incoming: the peer has been told that we read up to here.
    told: Pos,
    /// Incoming: urgent data.
    urgent_rx: urgent::Rx,

    /// Sequence number of the last CDC message planned.
    seq_sent: u16,
    /// Sequence number of the last CDC message whose sending completed.
    seq_fin: u16,
    /// Sequence number of the last CDC message received.
    seq_recv: u16,
    /// Counts link changes, so that completions of an old link are recognised.
    epoch: u16,
    /// Plans whose completion has not come back, of all links.
    posted: u32,

    /// Flags of the peer's last message.
    peer_prod_flags: ProdFlags,
    /// Close flags that the peer has ever set.
    peer_close: ConnFlags,
    /// Close flags that we want to send.
    want_close: ConnFlags,
    /// Close flags that we have sent.
    sent_close: ConnFlags,
    /// A CDC message is due even without data.
    cdc_due: bool,
    /// Both sides have agreed on short messages.
    short: bool,
    /// The peer has changed links, so its cursors may lie behind what we know for a while.
    peer_moved: bool,
    /// A chain of the present link has failed: what it said is repeated on another link, or the
    /// link group ends.
    failed: bool,
    /// Nothing may be posted any more.
    dead: bool,
}

/// Kept under a spinlock in memory that is charged per connection.
const _: () = assert!(core::mem::size_of::<Conn>() <= 256);

/// The cursors as the diagnosis interface shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Our element: where the peer writes next.
    pub rx_prod: Cursor,
    /// Our element: where we read next.
    pub rx_cons: Cursor,
    /// The peer's element: where we write next.
    pub tx_prod: Cursor,
    /// The peer's element: where the peer reads next, as we know it.
    pub tx_cons: Cursor,
    /// Send ring: written by the application.
    pub tx_prep: Cursor,
    /// Send ring: planned.
    pub tx_sent: Cursor,
    /// Send ring: completed, or read by the peer.
    pub tx_fin: Cursor,
    /// Producer flags of the next message we would send.
    pub tx_prod_flags: ProdFlags,
    /// Close flags we have sent.
    pub tx_conn_flags: ConnFlags,
    /// Producer flags of the peer's last message.
    pub rx_prod_flags: ProdFlags,
    /// Close flags the peer has set.
    pub rx_conn_flags: ConnFlags,
}

impl Snapshot {
    /// Length of the diagnosis interface's form.
    pub const LEN: usize = 60;

    /// The form of the diagnosis interface, in host byte order: four cursors of the elements, the flags of the peer
    /// and ours, three cursors of the send ring. A cursor is a hole, the laps, the bytes.
    pub fn diag_bytes(&self) -> [u8; Self::LEN] {
        let cursor = |c: Cursor| {
            let [a, b] = c.wrap.to_ne_bytes();
            let [d, e, f, g] = c.count.to_ne_bytes();
            [0, 0, a, b, d, e, f, g]
        };
        let flags = [
            self.rx_prod_flags.to_byte(),
            self.rx_conn_flags.to_byte(),
            self.tx_prod_flags.to_byte(),
            self.tx_conn_flags.to_byte(),
        ];
        let elements = [self.rx_prod, self.rx_cons, self.tx_prod, self.tx_cons];
        let sending = [self.tx_prep, self.tx_sent, self.tx_fin];
        let bytes = elements
            .into_iter()
            .flat_map(cursor)
            .chain(flags)
            .chain(sending.into_iter().flat_map(cursor));
        let mut out = [0; Self::LEN];
        for (to, byte) in out.iter_mut().zip(bytes) {
            *to = byte;
        }
        out
    }
}

impl Conn {
    /// A connection with empty rings.
    pub fn new(mut params: Params) -> Self {
        // A limit above half the ring could keep a blocked sender waiting.
        let most = (params.recv_ring.get() / 2).max(1);
        params.update_limit = params.update_limit.clamp(1, most);
        Self {
            params,
            rings: rings::Rings::one(params.send_ring),
            prep: Pos::ZERO,
            sent: Pos::ZERO,
            fin: Pos::ZERO,
            max_sent: Pos::ZERO,
            peer_cons: Pos::ZERO,
            urgent_tx: None,
            arrived: Pos::ZERO,
            read: Pos::ZERO,
            told: Pos::ZERO,
            urgent_rx: urgent::Rx::new(),
            seq_sent: 0,
            seq_fin: 0,
            seq_recv: 0,
            epoch: 0,
            posted: 0,
            peer_prod_flags: ProdFlags::from_byte(0),
            peer_close: ConnFlags::from_byte(0),
            want_close: ConnFlags::from_byte(0),
            sent_close: ConnFlags::from_byte(0),
            cdc_due: false,
            short: false,
            peer_moved: false,
            failed: false,
            dead: false,
        }
    }

    /// The constants it was made with.
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// Plans whose completion has not come back; buffers may go away only when this is zero.
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// Whether nothing is on its way, nothing is due, and nothing that failed has to be repeated: a
    /// connection that has ended may go. A last word that was lost with its link keeps it until
    /// [`Conn::begin_failover`] repeats that, or [`Conn::kill`] gives it up.
    pub fn is_settled(&self) -> bool {
        self.posted == 0 && (self.dead || !(self.failed || self.has_work()))
    }

    /// Whether the peer's element may still be written: after either side has closed it may have been given to another
    /// connection (RFC 7609, section 4.8.1).
    pub const fn may_write(&self) -> bool {
        !self.dead && !self.peer_close.closed && !self.sent_close.closed
    }

    /// Close flags the peer has set so far.
    pub const fn peer_close(&self) -> ConnFlags {
        self.peer_close
    }

    /// Close flags that have been sent so far.
    pub const fn sent_close(&self) -> ConnFlags {
        self.sent_close
    }

    /// Whether nothing is sent any more: aborted, or [`Conn::kill`] was called.
    pub const fn is_dead(&self) -> bool {
        self.dead
    }

    /// Asks for close flags to be sent: `sending_done` after the last byte, `closed` after the
    /// last byte is completed (so that the peer may reuse its element: RFC 7609, sections 4.4.2
    /// and 4.8.1),
    /// `abort` at once. The next plans carry them.
    pub fn request_close(&mut self, flags: ConnFlags) {
        self.want_close.sending_done |= flags.sending_done;
        self.want_close.closed |= flags.closed;
        self.want_close.abort |= flags.abort;
    }

    /// Asks for an abort to be sent at once; unsent data is dropped.
    pub fn request_abort(&mut self) {
        self.want_close.abort = true;
    }

    /// Ends all sending without a message: the link group is gone.
    pub fn kill(&mut self) {
        self.dead = true;
    }

    /// The cursors for the diagnosis interface.
    pub fn snapshot(&self) -> Snapshot {
        let p = &self.params;
        Snapshot {
            rx_prod: self.arrived.cursor(p.recv_ring),
            rx_cons: self.read.cursor(p.recv_ring),
            tx_prod: self.sent.cursor(p.peer_ring),
            tx_cons: self.peer_cons.cursor(p.peer_ring),
            tx_prep: self.prep.cursor(self.send_ring()),
            tx_sent: self.sent.cursor(self.send_ring()),
            tx_fin: self.kept_from().cursor(self.send_ring()),
            tx_prod_flags: self.prod_flags(),
            tx_conn_flags: self.sent_close,
            rx_prod_flags: self.peer_prod_flags,
            rx_conn_flags: self.peer_close,
        }
    }

    /// Starts both streams at another position, as if that much had been transferred before.
    ///
    /// Cursors then show their wrap-around after a few bytes instead of after 65536 laps. For
    /// tests; both sides must do it with the same numbers, before anything else.
    pub fn start_at(&mut self, outgoing: Pos, incoming: Pos, seq_sent: u16, seq_recv: u16) {
        self.prep = outgoing;
        self.sent = outgoing;
        self.fin = outgoing;
        self.max_sent = outgoing;
        self.peer_cons = outgoing;
        self.arrived = incoming;
        self.read = incoming;
        self.told = incoming;
        self.seq_sent = seq_sent;
        self.seq_fin = seq_sent;
        self.seq_recv = seq_recv;
    }
}
