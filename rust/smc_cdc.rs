// SPDX-License-Identifier: GPL-2.0

//! Connections over RDMA.

use kernel::{
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    prelude::*, //
};

/// Whom a connection wakes: the socket that owns it. Called in softirq and from tasks, with no lock held.
pub(crate) trait Wake: Send + Sync {
    /// Data, its end or urgent data can be read.
    fn readable(&self);
    /// There is room to write.
    fn writable(&self);
    /// The state changed: closed by the peer, or over.
    fn state(&self);
    /// The connection has failed: the socket's error, once.
    fn failed(&self, error: Error);
}

/// A connection; there are none yet.
pub(crate) enum Connection {}

/// How a call sends.
#[derive(Clone, Copy, Default)]
pub(crate) struct SendMode {
    /// More will follow soon.
    pub(crate) cork: bool,
    /// The last byte is urgent.
    pub(crate) urgent: bool,
}

/// How a call receives.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecvMode {
    /// The bytes stay.
    pub(crate) peek: bool,
    /// The bytes are thrown away.
    pub(crate) discard: bool,
}

/// What the socket has to do with its TCP connection.
pub(crate) enum TcpEnd {
    /// Shut it in both directions.
    Shutdown,
    /// Reset it.
    Reset,
}

/// What a poller may know.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ready {
    /// Data can be read, or its end.
    pub(crate) readable: bool,
    /// Data can be written, or writing fails at once.
    pub(crate) writable: bool,
    /// Both directions have ended.
    pub(crate) hangup: bool,
    /// The peer's direction has ended.
    pub(crate) read_hangup: bool,
    /// Urgent data waits.
    pub(crate) urgent: bool,
}

#[allow(missing_docs, clippy::missing_docs_in_private_items)]
impl Connection {
    pub(crate) fn try_send(&self, _: &mut IovIterSource<'_>, _: SendMode) -> Result<usize> {
        match *self {}
    }
    pub(crate) fn try_recv(&self, _: &mut IovIterDest<'_>, _: usize, _: RecvMode) -> Result<usize> {
        match *self {}
    }
    pub(crate) fn take_urgent(&self, _peek: bool) -> Result<u8> {
        match *self {}
    }
    pub(crate) fn at_mark(&self) -> bool {
        match *self {}
    }
    pub(crate) fn readable_len(&self) -> u32 {
        match *self {}
    }
    pub(crate) fn out_queue(&self) -> (u32, u32) {
        match *self {}
    }
    pub(crate) fn set_nodelay(&self, _: bool) {
        match *self {}
    }
    pub(crate) fn set_oob_inline(&self, _: bool) {
        match *self {}
    }
    pub(crate) fn push(&self) {
        match *self {}
    }
    pub(crate) fn is_drained(&self) -> bool {
        match *self {}
    }
    pub(crate) fn ready(&self) -> Ready {
        match *self {}
    }
    pub(crate) fn shutdown_read(&self) -> Result {
        match *self {}
    }
    pub(crate) fn shutdown_write(&self) -> Result {
        match *self {}
    }
    pub(crate) fn shutdown_both(&self) -> Result<TcpEnd> {
        match *self {}
    }
    pub(crate) fn close(&self) -> TcpEnd {
        match *self {}
    }
    pub(crate) fn abort(&self) {
        match *self {}
    }
}
