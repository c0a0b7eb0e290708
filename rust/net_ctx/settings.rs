// SPDX-License-Identifier: GPL-2.0

//! The settings of a namespace: the files under `/proc/sys/net/smc/`.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};

use crate::kapi::net::{
    sysctl::{
        Setting,
        Sysctls,
        Value, //
    },
    NetNs, //
};

/// Default size of the rings in bytes.
const RING_DEFAULT: u32 = 65_536;

/// Least size of the rings.
const RING_MIN: u32 = 16_384;

/// Greatest size of the rings: sockets report twice the size as a signed integer.
const RING_MAX: u32 = i32::MAX.unsigned_abs() / 2;

/// Size of the send ring.
const WMEM: Setting = Setting {
    name: c"wmem",
    min: RING_MIN,
    max: RING_MAX,
};

/// Size of the receive ring.
const RMEM: Setting = Setting {
    name: c"rmem",
    min: RING_MIN,
    max: RING_MAX,
};

/// Default of how much small data is held back.
const AUTOCORKING_DEFAULT: u32 = 65_536;

/// How much small data is held back.
const AUTOCORKING_SIZE: Setting = Setting {
    name: c"autocorking_size",
    min: 0,
    max: u32::MAX,
};

/// Limit of the handshakes in progress.
const LIMIT_SMC_HS: Setting = Setting {
    name: c"limit_smc_hs",
    min: 0,
    max: 1,
};

/// Greatest number of seconds that the hooks of a namespace stay without a socket: a day.
const HOOK_TIMEOUT_MAX: u32 = 86_400;

/// How many seconds that is by default.
const HOOK_TIMEOUT_DEFAULT: u32 = 60;

/// How long the hooks of a namespace stay without a socket.
const HOOK_TIMEOUT: Setting = Setting {
    name: c"hook_timeout",
    min: 0,
    max: HOOK_TIMEOUT_MAX,
};

/// No new sockets.
const DRAIN: Setting = Setting {
    name: c"drain",
    min: 0,
    max: 1,
};

/// What every namespace has.
static EVERYWHERE: [Setting; 5] = [WMEM, RMEM, AUTOCORKING_SIZE, LIMIT_SMC_HS, HOOK_TIMEOUT];

/// What the initial namespace has: one more, as it concerns the module as a whole.
static INITIAL: [Setting; 6] = [
    WMEM,
    RMEM,
    AUTOCORKING_SIZE,
    LIMIT_SMC_HS,
    HOOK_TIMEOUT,
    DRAIN,
];

/// The settings of one namespace. Each is a whole that is read at the time of use.
pub(crate) struct Settings {
    /// Size of the send ring of new sockets in bytes.
    wmem: Value,
    /// Size of the receive ring of new sockets in bytes.
    rmem: Value,
    /// Up to how many bytes small data waits for what was sent before it.
    autocorking_size: Value,
    /// Whether new listeners limit the handshakes in progress.
    limit_smc_hs: Value,
    /// How many seconds the hooks that write the TCP option stay without a socket.
    hook_timeout: Value,
    /// Whether the module is to be unloaded: no new sockets.
    drain: Value,
}

impl Settings {
    /// The defaults.
    pub(super) fn new() -> Self {
        Self {
            wmem: Atomic::new(RING_DEFAULT),
            rmem: Atomic::new(RING_DEFAULT),
            autocorking_size: Atomic::new(AUTOCORKING_DEFAULT),
            limit_smc_hs: Atomic::new(0),
            hook_timeout: Atomic::new(HOOK_TIMEOUT_DEFAULT),
            drain: Atomic::new(0),
        }
    }

    /// Makes the files.
    pub(super) fn register(net: &NetNs, values: Arc<Self>) -> Result<Sysctls<Self>> {
        let path = super::SYSCTL_PATH;
        if net.is_initial() {
            return Sysctls::register(net, path, &INITIAL, values, |v| {
                [
                    &v.wmem,
                    &v.rmem,
                    &v.autocorking_size,
                    &v.limit_smc_hs,
                    &v.hook_timeout,
                    &v.drain,
                ]
            });
        }
        Sysctls::register(net, path, &EVERYWHERE, values, |v| {
            [
                &v.wmem,
                &v.rmem,
                &v.autocorking_size,
                &v.limit_smc_hs,
                &v.hook_timeout,
            ]
        })
    }

    /// Size of the send ring of new sockets in bytes.
    pub(crate) fn wmem(&self) -> u32 {
        self.wmem.load(Relaxed)
    }

    /// Size of the receive ring of new sockets in bytes.
    pub(crate) fn rmem(&self) -> u32 {
        self.rmem.load(Relaxed)
    }

    /// Up to how many bytes small data waits for what was sent before it, unless TCP_NODELAY is on.
    pub(crate) fn autocorking_size(&self) -> u32 {
        self.autocorking_size.load(Relaxed)
    }

    /// Whether new listeners limit the handshakes in progress.
    pub(crate) fn limit_smc_hs(&self) -> bool {
        self.limit_smc_hs.load(Relaxed) != 0
    }

    /// Sets whether new listeners limit the handshakes in progress.
    pub(crate) fn set_limit_smc_hs(&self, on: bool) {
        self.limit_smc_hs.store(u32::from(on), Relaxed);
    }

    /// How many milliseconds the hooks that write the TCP option stay without a socket.
    pub(super) fn hook_timeout_ms(&self) -> u32 {
        self.hook_timeout.load(Relaxed).saturating_mul(1_000)
    }

    /// Whether the module is to be unloaded.
    pub(crate) fn drain(&self) -> bool {
        self.drain.load(Relaxed) != 0
    }
}
