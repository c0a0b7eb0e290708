// SPDX-License-Identifier: GPL-2.0

//! The connections of a link group by their alert tokens.

use kernel::{
    num::casts::u32_as_usize,
    prelude::*,
    sync::Arc, //
};

use super::link::Link;
use crate::{
    kapi::random,
    proto::{
        cdc,
        conn::Short,
        group::{
            Evacuation,
            MAX_CONNS, //
        },
        ids::AlertToken, //
    },
};

/// Low bits of a token, which number its place in the table.
const INDEX_MASK: u32 = 0xff;

/// Width of those bits.
const INDEX_BITS: u32 = 8;

/// A connection, as its link group sees it. All functions but three run with bottom halves off and must not sleep.
pub(crate) trait ConnSink: Send + Sync {
    /// A CDC message with the connection's token has arrived on the link in this column.
    fn on_cdc(&self, bytes: &[u8; cdc::LEN], column: usize);

    /// A short message with the low half of the connection's token has arrived on the link in this column, with a write
    /// of `len` bytes.
    fn on_short(&self, short: Short, len: u32, column: usize);

    /// A chain that was posted with this cookie has been sent and acknowledged, or (`ok` is false) the link has failed,
    /// and [`on_move`](ConnSink::on_move) or [`on_link_dead`](ConnSink::on_link_dead) follows.
    fn on_tx_done(&self, cookie: u64, ok: bool);

    /// The link has been taken apart: a connection that uses it lets go of what it has on the link's device, so that the
    /// device can go. [`on_move`](ConnSink::on_move) or [`on_link_dead`](ConnSink::on_link_dead) follows. Runs in a work
    /// item.
    fn on_unmap(&self, from: &Link);

    /// The link goes, and nothing that was sent over it will arrive any more: a connection that uses it has to take
    /// another one. Runs in a work item and may sleep.
    fn on_move(&self, from: &Arc<Link>, evacuation: Evacuation);

    /// The clock has ticked, or memory is wanted: a connection that has not sent since the last time gives the larger send
    /// ring back. Runs in a work item and may sleep.
    fn on_rest(&self);

    /// A slot has become free for this connection, which had asked for one in vain.
    fn on_slot(&self);

    /// The link group has ended. Comes once, after its queue pairs were taken apart: nothing reads a send ring or writes
    /// an RMB any more.
    fn on_link_dead(&self);
}

/// A place of the table.
struct Entry {
    /// The token of the connection.
    token: AlertToken,
    /// The connection.
    sink: Arc<dyn ConnSink>,
}

/// The table of a group; its lock is level 5.
pub(super) struct Table {
    /// The places, as many as a group has connections.
    places: KVec<Option<Entry>>,
    /// Upper bits of the next token, so that a token comes again only after all others.
    series: u32,
    /// Nobody may enter any more.
    closed: bool,
}

impl Table {
    /// The connection in one of the [`MAX_CONNS`] places.
    pub(super) fn at(&self, place: usize) -> Option<Arc<dyn ConnSink>> {
        let entry = self.places.get(place)?.as_ref()?;
        Some(entry.sink.clone())
    }

    /// An empty table.
    pub(super) fn new() -> Result<Self> {
        let mut places = KVec::with_capacity(usize::from(MAX_CONNS), GFP_KERNEL)?;
        for _ in 0..MAX_CONNS {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            places,
            series: random::random_u32(),
            closed: false,
        })
    }

    /// Enters a connection and gives it a token.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` when the group has ended; `EMFILE` when the table is full.
    pub(super) fn attach(&mut self, sink: Arc<dyn ConnSink>) -> Result<AlertToken> {
        if self.closed {
            return Err(super::gone());
        }
        let index = self.places.iter().position(Option::is_none).ok_or(EMFILE)?;
        let low = u32::try_from(index)?;
        let token = loop {
            self.series = self.series.wrapping_add(1);
            if let Some(token) = AlertToken::new(self.series << INDEX_BITS | low) {
                break token;
            }
        };
        if let Some(place) = self.places.get_mut(index) {
            *place = Some(Entry { token, sink });
        }
        Ok(token)
    }

    /// Takes a connection out; the caller drops what is returned after the lock.
    pub(super) fn detach(&mut self, token: AlertToken) -> Option<Arc<dyn ConnSink>> {
        let place = self.places.get_mut(index_of(token))?;
        let entry = place.take_if(|entry| entry.token == token)?;
        Some(entry.sink)
    }

    /// The connection of a token.
    pub(super) fn get(&self, token: AlertToken) -> Option<Arc<dyn ConnSink>> {
        let entry = self.places.get(index_of(token))?.as_ref()?;
        (entry.token == token).then(|| entry.sink.clone())
    }

    /// The connection whose token has this low half, which contains its place.
    pub(super) fn get_short(&self, low: u16) -> Option<Arc<dyn ConnSink>> {
        let place = u32_as_usize(u32::from(low) & INDEX_MASK);
        let entry = self.places.get(place)?.as_ref()?;
        (entry.token.low_half() == low).then(|| entry.sink.clone())
    }

    /// Closes the table and takes any connection out of it, until there is none.
    pub(super) fn close_next(&mut self) -> Option<Arc<dyn ConnSink>> {
        self.closed = true;
        let entry = self.places.iter_mut().find_map(Option::take)?;
        Some(entry.sink)
    }
}

/// Place of a token; outside of the table for some that are not ours.
fn index_of(token: AlertToken) -> usize {
    u32_as_usize(token.get() & INDEX_MASK)
}
