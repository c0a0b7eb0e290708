// SPDX-License-Identifier: GPL-2.0

//! How many lines may be written to the log: what other machines do can cause them.

use kernel::time::{
    Instant,
    Monotonic, //
};

/// How many lines may be written in [`PERIOD_MS`].
const LINES: u32 = 10;

/// See [`LINES`].
const PERIOD_MS: i64 = 5_000;

/// What was written to the log of late.
pub(crate) struct LogLimit {
    /// When the first of the latest lines was written.
    since: Instant<Monotonic>,
    /// How many lines were to be written since then.
    lines: u32,
}

impl LogLimit {
    /// Nothing was written.
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            lines: 0,
        }
    }

    /// Whether not too many lines have been written of late; counts one.
    pub(crate) fn has_room(&mut self) -> bool {
        if self.since.elapsed().as_millis() >= PERIOD_MS {
            self.since = Instant::now();
            self.lines = 0;
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= LINES
    }
}
