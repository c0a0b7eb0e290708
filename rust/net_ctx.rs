// SPDX-License-Identifier: GPL-2.0

//! What the module keeps for each network namespace, and every room may use: settings and counters.

mod eids;
mod events;
mod fallback;
mod hooks;
mod log_limit;
mod option;
mod peer_stats;
mod pnet;
mod settings;
mod stats;
mod tcp2smc;

use core::net::SocketAddr;

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
};

pub(crate) use self::{
    eids::{
        EidList,
        Eids, //
    },
    events::{
        Cause,
        Event,
        Events,
        LinkName,
        GROUP as EVENT_GROUP,
        SENDER as EVENT_SENDER, //
    },
    fallback::{
        Fallbacks,
        Role,
        Shown, //
    },
    hooks::SocketCount,
    log_limit::LogLimit,
    option::OPTION,
    peer_stats::PeerStats,
    pnet::Pnet,
    settings::Settings,
    stats::{
        Counter,
        RingEvent,
        Stats,
        Way, //
    },
    tcp2smc::{
        Registration as ConvertRegistration,
        Tcp2Smc, //
    },
};

use self::hooks::Hooks;
use crate::{
    kapi::{
        net::{
            sysctl::ActiveSysctls,
            NetHandle,
            NetNs,
            PerNet,
            PerNetPlace,
            PerNetRegistration, //
        },
        work::{
            Kind,
            QueueRegistration, //
        },
    },
    proto::{
        clc::Version,
        reason::DeclineReason, //
    },
};

/// Where the kernel keeps the context of each namespace.
static PLACE: PerNetPlace<NetCtx> = PerNetPlace::new();

/// Where the settings are, under `/proc/sys/`.
const SYSCTL_PATH: &CStr = c"net/smc";

/// The context of one namespace.
#[pin_data]
pub(crate) struct NetCtx {
    /// What the administrator may set.
    settings: Arc<Settings>,
    /// Which sockets of TCP become ones of SMC.
    tcp2smc: Arc<Tcp2Smc>,
    /// Its number, which no other one has, now or later.
    cookie: u64,
    /// Who is told of what happens.
    events: Events,
    /// Connections that went on by TCP, by reason.
    #[pin]
    fallbacks: Fallbacks,
    /// What is counted besides.
    stats: Arc<Stats>,
    /// The same for each peer.
    #[pin]
    peers: PeerStats,
    /// The enterprise ids.
    #[pin]
    eids: Eids,
    /// Physical networks.
    #[pin]
    pnet: Pnet,
    /// The hooks that write the TCP option.
    hooks: Arc<Hooks>,
    /// The files of the settings; taken away when the namespace goes.
    #[pin]
    sysctls: Mutex<Option<(settings::Files, ActiveSysctls<Tcp2Smc>)>>,
}

/// The room's registrations. The fields go in this order.
pub(crate) struct Registration {
    /// Frees the contexts of all namespaces.
    _nets: PerNetRegistration<NetCtx>,
    /// Waits for the removal of hooks.
    _queue: QueueRegistration,
}

impl NetCtx {
    /// Makes a context for every namespace, and for those to come.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn register() -> Result<Registration> {
        let queue = hooks::QUEUE.register(c"smc_net", Kind::Unbound)?;
        let nets = PLACE.register()?;
        Ok(Registration {
            _nets: nets,
            _queue: queue,
        })
    }

    /// The context of `net`.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the namespace has none, which cannot be for one that has sockets of the module.
    pub(crate) fn of(net: &NetNs) -> Result<Arc<Self>> {
        PerNetRegistration::get_arc(net).ok_or(ENODEV)
    }

    /// Counts a socket of the namespace: the TCP option can be written as long as there are any.
    pub(crate) fn count_socket(&self) -> SocketCount {
        self.hooks.count_socket()
    }

    /// Makes sure that the TCP option can be written in `net`, whose context this is, as long as the calling socket
    /// is counted.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` when the namespace goes.
    pub(crate) fn want_option(&self, net: &NetNs) -> Result {
        self.hooks.want(net)
    }

    /// What the administrator may set.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Which sockets of TCP become ones of SMC.
    pub(crate) fn tcp2smc(&self) -> &Tcp2Smc {
        &self.tcp2smc
    }

    /// What is counted besides connections that went on by TCP.
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The enterprise ids.
    pub(crate) fn eids(&self) -> &Eids {
        &self.eids
    }

    /// Physical networks.
    pub(crate) fn pnet(&self) -> &Pnet {
        &self.pnet
    }

    /// The number of the namespace, which no other one has, now or later.
    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Something has happened that listeners want to know.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.events.send(event);
    }

    /// A connection went on by TCP for a reason and with the diagnosis of the peer's Decline: it is counted, listeners
    /// are told, and unless `quiet` the log gets a line if there is room.
    pub(crate) fn fell_back(
        &self,
        role: Role,
        (reason, peer_diagnosis): (DeclineReason, u32),
        peer: Option<SocketAddr>,
        quiet: bool,
    ) {
        self.fallbacks.count(role, reason);
        if let Some(peer) = peer {
            self.peers.count(role, peer.ip(), Some(reason));
        }
        self.tell(&Event::Fallback {
            role,
            reason,
            peer_diagnosis,
            peer,
        });
        if !quiet {
            self.fallbacks.log(role, (reason, peer_diagnosis), peer);
        }
    }

    /// A connection goes by RDMA, in this version.
    pub(crate) fn connected(&self, role: Role, version: Version, peer: Option<SocketAddr>) {
        self.stats.connected(role, version);
        if let Some(peer) = peer {
            self.peers.count(role, peer.ip(), None);
        }
    }

    /// What is counted for each peer.
    pub(crate) fn peers(&self) -> &PeerStats {
        &self.peers
    }

    /// Connections that went on by TCP, by reason.
    pub(crate) fn fallbacks(&self) -> &Fallbacks {
        &self.fallbacks
    }
}

impl PerNet for NetCtx {
    fn place() -> &'static PerNetPlace<Self> {
        &PLACE
    }

    fn new(net: &NetNs, handle: Arc<NetHandle>) -> Result<Arc<Self>> {
        let settings = Arc::new(Settings::new(), GFP_KERNEL)?;
        let stats = Arc::new(Stats::new()?, GFP_KERNEL)?;
        let hooks = Hooks::new(settings.clone(), stats.clone())?;
        let tcp2smc = Tcp2Smc::new()?;
        let sysctls = (
            Settings::register(net, settings.clone())?,
            ActiveSysctls::register(net, SYSCTL_PATH, &tcp2smc::SETTINGS, tcp2smc.clone())?,
        );
        Arc::pin_init(
            try_pin_init!(Self {
                settings,
                tcp2smc,
                cookie: net.cookie(),
                events: Events::new(handle),
                fallbacks <- Fallbacks::new(),
                stats,
                peers <- PeerStats::new(),
                eids <- Eids::new(),
                pnet <- Pnet::new(),
                hooks,
                sysctls <- new_mutex!(Some(sysctls), "NetCtx::sysctls"),
            }),
            GFP_KERNEL,
        )
    }

    fn exit(&self, _net: &NetNs) {
        // The files go here, not when the last reference does: that may be where sleeping is not allowed.
        let sysctls = self.sysctls.lock().take();
        drop(sysctls);
        self.tcp2smc.close();
        self.hooks.close();
    }
}
