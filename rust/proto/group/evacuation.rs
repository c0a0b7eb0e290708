// SPDX-License-Identifier: GPL-2.0

//! How long connections that leave a link wait for the one that they go to.
//!
//! Each says something there first, and there is room for the messages of a few: the others wait for these to arrive. On
//! a slow wire that takes its time, and as long as anything arrives it goes on. A peer that lets nothing through, or next
//! to nothing, must not have every connection wait in turn: that link is given up, and with it all that is to come.

/// How long a connection waits while nothing arrives over the other link.
pub const STALLED_MS: u32 = 5_000;

/// How long all of them may take together.
pub const EVACUATION_MS: u32 = 30_000;

/// Connections leave a link. Moments are milliseconds of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evacuation {
    /// When the last of them must have left.
    until: i64,
}

impl Evacuation {
    /// It begins now.
    pub fn begin(now: i64) -> Self {
        Self {
            until: now.saturating_add(i64::from(EVACUATION_MS)),
        }
    }

    /// A connection begins to wait for a link over which so much has arrived, by any count.
    pub const fn queue(self, arrived: u32, now: i64) -> Queueing {
        Queueing {
            evacuation: self,
            arrived,
            since: now,
        }
    }
}

/// A connection that waits for the link to which it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queueing {
    /// What it is part of.
    evacuation: Evacuation,
    /// What had arrived when that was last seen to change.
    arrived: u32,
    /// When that was.
    since: i64,
}

impl Queueing {
    /// How much longer it waits if nothing happens, in milliseconds, now that so much has arrived; nothing where the
    /// link that is waited for is to be given up.
    pub fn left_ms(&mut self, arrived: u32, now: i64) -> Option<u32> {
        if arrived != self.arrived {
            self.arrived = arrived;
            self.since = now;
        }
        let stalled = self.since.saturating_add(i64::from(STALLED_MS));
        let until = stalled.min(self.evacuation.until);
        u32::try_from(until.saturating_sub(now))
            .ok()
            .filter(|left| *left > 0)
    }
}
