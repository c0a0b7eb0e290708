// SPDX-License-Identifier: GPL-2.0

//! Which connections went on by TCP: counted by reason and role, and logged with the peer's address.

use core::net::{
    IpAddr,
    SocketAddr, //
};

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

use super::log_limit::LogLimit;
use crate::{
    kapi::percpu::Counters,
    proto::reason::DeclineReason, //
};

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// It connected.
    Client,
    /// It accepted.
    Server,
}

/// How many different reasons are told apart: those with a name, and one place for all others.
const REASONS: usize = 48;

/// The counters of a namespace.
#[pin_data]
pub(crate) struct Fallbacks {
    /// For each role, as many as there are reasons.
    counters: Counters,
    /// What is written to the log.
    #[pin]
    log: Mutex<Log>,
}

/// For how long a reason is not written again for the same peer: ten minutes.
const LOG_AGAIN_MS: i64 = 600_000;

/// How many pairs of reason and peer are known to have been written.
const LOG_PAIRS: usize = 32;

/// A line that has been written.
#[derive(Clone, Copy)]
struct Written {
    /// The reason, and the diagnosis of the peer's Decline.
    why: (DeclineReason, u32),
    /// The peer; nothing for a socket without one.
    peer: Option<IpAddr>,
    /// When, on the log's clock.
    at_ms: i64,
}

/// What was written to the log of late.
struct Log {
    /// Lines, each in place of the oldest.
    written: [Option<Written>; LOG_PAIRS],
    /// Time zero of the log's clock.
    born: Instant<Monotonic>,
    /// How many there were of late, of whatever kind.
    limit: LogLimit,
}

/// The counter of a reason.
fn place(role: Role, reason: DeclineReason) -> usize {
    let at = DeclineReason::all().position(|known| known == reason);
    let last = REASONS.saturating_sub(1);
    let at = at.unwrap_or(last).min(last);
    match role {
        Role::Client => at,
        Role::Server => at.saturating_add(REASONS),
    }
}

impl Log {
    /// Whether a line may be written to the log: a remote machine can cause them.
    ///
    /// Lines that may not are dropped without a word.
    fn may_log(&mut self, why: (DeclineReason, u32), peer: Option<IpAddr>) -> bool {
        let now = self.born.elapsed().as_millis();
        let known = self.written.iter().flatten().any(|line| {
            (line.why, line.peer) == (why, peer) && now.saturating_sub(line.at_ms) < LOG_AGAIN_MS
        });
        if known || !self.limit.has_room() {
            return false;
        }
        let oldest = self
            .written
            .iter_mut()
            .min_by_key(|line| line.map_or(i64::MIN, |line| line.at_ms));
        if let Some(place) = oldest {
            *place = Some(Written {
                why,
                peer,
                at_ms: now,
            });
        }
        true
    }
}

impl Fallbacks {
    /// Nothing counted yet.
    pub(super) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            counters: Counters::new(2 * REASONS)?,
            log <- new_mutex!(Log {
                written: [None; LOG_PAIRS],
                born: Instant::now(),
                limit: LogLimit::new(),
            }, "Fallbacks::log"),
        })
    }

    /// Counts a connection.
    pub(super) fn count(&self, role: Role, reason: DeclineReason) {
        self.counters.add(place(role, reason), 1);
    }

    /// How many connections there were of a role and a reason; a reason without a name stands for all such.
    pub(crate) fn total(&self, role: Role, reason: DeclineReason) -> u64 {
        self.counters.total(place(role, reason))
    }

    /// Writes a line that says why and what to do, unless there was one for the peer or there were too many of late.
    pub(super) fn log(&self, role: Role, why: (DeclineReason, u32), peer: Option<SocketAddr>) {
        // A peer can say anything: what nobody knows counts as one.
        let (reason, diagnosis) = why;
        let said = DeclineReason::all().find(|known| known.code() == diagnosis);
        let key = (reason, said.map_or(0, DeclineReason::code));
        if !self.log.lock().may_log(key, peer.map(|peer| peer.ip())) {
            return;
        }
        let from = match role {
            Role::Client => "to",
            Role::Server => "from",
        };
        match peer {
            Some(peer) => pr_info!(
                "connection {} {} uses TCP: {}\n",
                from,
                Shown(peer),
                Why(why)
            ),
            None => pr_info!("socket uses TCP: {}\n", Why(why)),
        }
    }
}

/// A reason and the diagnosis of the peer's Decline as a person reads them, with what to do.
struct Why((DeclineReason, u32));

impl kernel::fmt::Display for Why {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        let (reason, diagnosis) = self.0;
        let (means, code) = (reason.describe(), reason.code());
        if diagnosis == 0 {
            return write!(f, "{means} (0x{code:08x}): {}", reason.remedy());
        }
        let said = DeclineReason::from_code(diagnosis);
        write!(
            f,
            "{means} (0x{code:08x}), it says: {} (0x{diagnosis:08x}): {}",
            said.describe(),
            said.remedy()
        )
    }
}

/// An address as a person reads it.
pub(crate) struct Shown(pub(crate) SocketAddr);

impl kernel::fmt::Display for Shown {
    fn fmt(&self, f: &mut kernel::fmt::Formatter<'_>) -> kernel::fmt::Result {
        core::fmt::Display::fmt(&self.0, f)
    }
}
