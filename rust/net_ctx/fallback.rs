// SPDX-License-Identifier: GPL-2.0

//! Which connections went on by TCP: counted by reason and role, and logged with the peer's address.

use core::net::SocketAddr;

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
};

use crate::proto::reason::DeclineReason;

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// It connected.
    Client,
    /// It accepted.
    Server,
}

/// How many different reasons are told apart; there are fewer than that, also with those of other implementations.
const REASONS: usize = 64;

/// How many lines a namespace may write to the log in [`LOG_PERIOD_MS`].
const LOG_LINES: u32 = 10;

/// See [`LOG_LINES`].
const LOG_PERIOD_MS: i64 = 5_000;

/// The counters of one reason.
#[derive(Clone, Copy, Default)]
struct Row {
    /// The reason's code; 0 in a row without one.
    code: u32,
    /// Connections that this end opened.
    client: u64,
    /// Connections that this end accepted.
    server: u64,
}

/// The counters of a namespace.
#[pin_data]
pub(crate) struct Fallbacks {
    /// What is counted.
    #[pin]
    table: Mutex<Table>,
}

/// What is counted of a namespace.
struct Table {
    /// A row for each reason that has occurred.
    rows: [Row; REASONS],
    /// When the first of the latest lines was written.
    since: Instant<Monotonic>,
    /// How many lines have been written since then.
    lines: u32,
}

impl Table {
    /// Counts a connection.
    fn count(&mut self, role: Role, reason: DeclineReason) {
        let row = self
            .rows
            .iter_mut()
            .find(|row| row.code == reason.code() || row.code == 0);
        if let Some(row) = row {
            row.code = reason.code();
            match role {
                Role::Client => row.client = row.client.saturating_add(1),
                Role::Server => row.server = row.server.saturating_add(1),
            }
        }
    }

    /// Whether another line may be written to the log: a remote machine can cause them.
    ///
    /// Lines that may not are dropped without a word.
    fn may_log(&mut self) -> bool {
        if self.since.elapsed().as_millis() >= LOG_PERIOD_MS {
            self.since = Instant::now();
            self.lines = 0;
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= LOG_LINES
    }
}

impl Fallbacks {
    /// Nothing counted yet.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table <- new_mutex!(Table {
                rows: [Row::default(); REASONS],
                since: Instant::now(),
                lines: 0,
            }, "Fallbacks::table"),
        })
    }

    /// Counts a connection.
    ///
    /// A reason that finds the table full is not counted.
    pub(crate) fn count(&self, role: Role, reason: DeclineReason) {
        self.table.lock().count(role, reason);
    }

    /// Counts a connection and writes a line about it, unless there were too many of late.
    pub(crate) fn record(&self, role: Role, reason: DeclineReason, peer: Option<SocketAddr>) {
        {
            let mut table = self.table.lock();
            table.count(role, reason);
            if !table.may_log() {
                return;
            }
        }
        let from = match role {
            Role::Client => "to",
            Role::Server => "from",
        };
        match peer {
            Some(peer) => pr_info!(
                "connection {} {} uses TCP: {} (0x{:08x})\n",
                from,
                Shown(peer),
                reason.describe(),
                reason.code(),
            ),
            None => pr_info!(
                "socket uses TCP: {} (0x{:08x})\n",
                reason.describe(),
                reason.code(),
            ),
        }
    }
}

/// An address as a person reads it.
pub(crate) struct Shown(pub(crate) SocketAddr);

impl kernel::fmt::Display for Shown {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
