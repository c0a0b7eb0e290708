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

use crate::{
    kapi::{
        net::{
            sysctl::{
                Setting,
                Sysctls,
                Value, //
            },
            NetNs, //
        },
        pages::Layout,
    },
    proto::{
        clc::{
            Extensions,
            Limits, //
        },
        size::WorkRequests, //
    },
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

/// Most seconds that something stays without being used: a day.
const DAY: u32 = 86_400;

/// How many seconds the hooks of a namespace stay without a socket by default.
const HOOK_TIMEOUT_DEFAULT: u32 = 60;

/// How long the hooks of a namespace stay without a socket.
const HOOK_TIMEOUT: Setting = Setting {
    name: c"hook_timeout",
    min: 0,
    max: DAY,
};

/// How many seconds a link group stays without a connection by default.
const LGR_LINGER_DEFAULT: u32 = 10;

/// How long a link group stays without a connection.
const LGR_LINGER: Setting = Setting {
    name: c"lgr_linger",
    min: 0,
    max: DAY,
};

/// How many seconds a link may be silent before the peer is asked whether it is there, by default.
const TESTLINK_DEFAULT: u32 = 30;

/// Most seconds: the kernel counts them in ticks of up to a thousandth as a signed integer.
const TESTLINK_MAX: u32 = i32::MAX.unsigned_abs() / 1_000;

/// How long a link may be silent.
const SMCR_TESTLINK_TIME: Setting = Setting {
    name: c"smcr_testlink_time",
    min: 0,
    max: TESTLINK_MAX,
};

/// Most links of a new link group.
const SMCR_MAX_LINKS: Setting = Setting {
    name: c"smcr_max_links_per_lgr",
    min: 1,
    max: 2,
};

/// Most connections of a new link group.
const SMCR_MAX_CONNS: Setting = Setting {
    name: c"smcr_max_conns_per_lgr",
    min: 16,
    max: 255,
};

/// How the memory of rings is laid out: 0 in one piece, 1 in small ones, 2 in one piece where there is one.
const SMCR_BUF_TYPE: Setting = Setting {
    name: c"smcr_buf_type",
    min: 0,
    max: 2,
};

/// Fewest and most work requests of a queue.
const WORK_REQUESTS: (u32, u32) = (2, 2_048);

/// Chains of a link that are on their way at the same time.
const SMCR_MAX_SEND_WR: Setting = Setting {
    name: c"smcr_max_send_wr",
    min: WORK_REQUESTS.0,
    max: WORK_REQUESTS.1,
};

/// Receive buffers of a link.
const SMCR_MAX_RECV_WR: Setting = Setting {
    name: c"smcr_max_recv_wr",
    min: WORK_REQUESTS.0,
    max: WORK_REQUESTS.1,
};

/// What is offered and taken beyond the standard: the bits of [`Extensions`].
const EXTENSIONS: Setting = Setting {
    name: c"extensions",
    min: 0,
    max: Extensions::ALL.bits(),
};

/// No new sockets.
const DRAIN: Setting = Setting {
    name: c"drain",
    min: 0,
    max: 1,
};

/// What every namespace has.
static EVERYWHERE: [Setting; 13] = [
    WMEM,
    RMEM,
    AUTOCORKING_SIZE,
    LIMIT_SMC_HS,
    HOOK_TIMEOUT,
    LGR_LINGER,
    SMCR_TESTLINK_TIME,
    SMCR_MAX_LINKS,
    SMCR_MAX_CONNS,
    SMCR_BUF_TYPE,
    SMCR_MAX_SEND_WR,
    SMCR_MAX_RECV_WR,
    EXTENSIONS,
];

/// What the initial namespace has besides, as it concerns the module as a whole.
static INITIAL: [Setting; 1] = [DRAIN];

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
    /// How many seconds a link group stays without a connection.
    lgr_linger: Value,
    /// After how many seconds of silence the peer of a link is asked whether it is there.
    testlink_time: Value,
    /// Most links of a new link group.
    max_links: Value,
    /// Most connections of a new link group.
    max_conns: Value,
    /// How the memory of new rings is laid out.
    buf_type: Value,
    /// Chains of a new link that are on their way at the same time.
    max_send_wr: Value,
    /// Receive buffers of a new link.
    max_recv_wr: Value,
    /// What new link groups do beyond the standard.
    extensions: Value,
    /// Whether the module is to be unloaded: no new sockets.
    drain: Value,
}

/// The files of a namespace; dropping it takes them away.
pub(super) struct Files {
    /// Those of every namespace.
    _own: Sysctls<Settings>,
    /// Those of the initial one.
    _initial: Option<Sysctls<Settings>>,
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
            lgr_linger: Atomic::new(LGR_LINGER_DEFAULT),
            testlink_time: Atomic::new(TESTLINK_DEFAULT),
            max_links: Atomic::new(SMCR_MAX_LINKS.max),
            max_conns: Atomic::new(SMCR_MAX_CONNS.max),
            buf_type: Atomic::new(0),
            max_send_wr: Atomic::new(WorkRequests::DEFAULT.send),
            max_recv_wr: Atomic::new(WorkRequests::DEFAULT.receive),
            extensions: Atomic::new(Extensions::ALL.bits()),
            drain: Atomic::new(0),
        }
    }

    /// Makes the files.
    pub(super) fn register(net: &NetNs, values: Arc<Self>) -> Result<Files> {
        let path = super::SYSCTL_PATH;
        let own = Sysctls::register(net, path, &EVERYWHERE, values.clone(), |v| {
            [
                &v.wmem,
                &v.rmem,
                &v.autocorking_size,
                &v.limit_smc_hs,
                &v.hook_timeout,
                &v.lgr_linger,
                &v.testlink_time,
                &v.max_links,
                &v.max_conns,
                &v.buf_type,
                &v.max_send_wr,
                &v.max_recv_wr,
                &v.extensions,
            ]
        })?;
        let initial = if net.is_initial() {
            let of_all = Sysctls::register(net, path, &INITIAL, values, |v| [&v.drain])?;
            Some(of_all)
        } else {
            None
        };
        Ok(Files {
            _own: own,
            _initial: initial,
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

    /// How many seconds a link group stays without a connection.
    pub(crate) fn lgr_linger(&self) -> u32 {
        self.lgr_linger.load(Relaxed)
    }

    /// After how many milliseconds of silence the peer of a link is asked whether it is there; 0 for never.
    pub(crate) fn testlink_ms(&self) -> u64 {
        u64::from(self.testlink_time.load(Relaxed)).saturating_mul(1_000)
    }

    /// What a new link group may hold, as far as this host is concerned.
    pub(crate) fn limits(&self) -> Limits {
        let byte = |value: &Value, most| u8::try_from(value.load(Relaxed)).unwrap_or(most);
        Limits {
            max_conns: byte(&self.max_conns, u8::MAX),
            max_links: byte(&self.max_links, 2),
        }
    }

    /// What new link groups may do beyond the standard, as far as this host is concerned.
    pub(crate) fn extensions(&self) -> Extensions {
        Extensions::ALL.limited_to(self.extensions.load(Relaxed))
    }

    /// How the memory of new rings is laid out, as a number.
    pub(crate) fn buf_type(&self) -> u8 {
        // It is at most 2.
        u8::try_from(self.buf_type.load(Relaxed)).unwrap_or(u8::MAX)
    }

    /// How the memory of new rings is laid out.
    pub(crate) fn layout(&self) -> Layout {
        match self.buf_type() {
            0 => Layout::Whole,
            1 => Layout::Pieces,
            _ => Layout::Mixed,
        }
    }

    /// How many work requests the queues of a new link take.
    pub(crate) fn work_requests(&self) -> WorkRequests {
        WorkRequests {
            send: self.max_send_wr.load(Relaxed),
            receive: self.max_recv_wr.load(Relaxed),
        }
    }

    /// Whether the module is to be unloaded.
    pub(crate) fn drain(&self) -> bool {
        self.drain.load(Relaxed) != 0
    }
}
