// SPDX-License-Identifier: GPL-2.0

//! Sockets of TCP that programs open become ones of SMC, where the operator of a namespace wants that.
//!
//! A probe looks at each socket that a program opens on this machine; there is one as long as a namespace wants it. Which
//! programs and ports are meant is said by two lists ([`rules`]), and which peers are not worth another attempt is kept
//! in mind for a while ([`peers`]).

mod peers;
mod rules;

use core::net::SocketAddr;

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};

use self::{
    peers::Peers,
    rules::Rules, //
};
use super::NetCtx;
use crate::{
    kapi::{
        global::{
            Global,
            Installed, //
        },
        net::{
            sysctl::{
                Active,
                Value, //
            },
            NetNs,
            PerNetRegistration,
            PROTOCOL_CONVERTED, //
        },
        probe::{
            Converter,
            NewSocket,
            SocketProbes, //
        },
        published::Published,
    },
    proto::reason::DeclineReason, //
};

/// Nothing is converted.
const OFF: u32 = 0;

/// Sockets of TCP are converted.
const TCP: u32 = 1;

/// So are those of MPTCP, which a program that wants either opens.
const MPTCP: u32 = 2;

/// Protocol numbers of stream sockets.
const IPPROTO_IP: i32 = 0;
/// See [`IPPROTO_IP`].
const IPPROTO_TCP: i32 = 6;
/// See [`IPPROTO_IP`].
const IPPROTO_MPTCP: i32 = 262;

/// How many seconds a peer without SMC is kept in mind by default.
const MEMORY_DEFAULT: u32 = 300;

/// And at most: a day.
const MEMORY_MAX: u32 = 86_400;

/// Programs that hand their sockets to the kernel, which must find TCP in them.
const DENIED: &[u8] = b"comm:iscsid comm:nbd-client";

/// The files of a namespace.
pub(super) static SETTINGS: [Active<Tcp2Smc>; 5] = [
    Active::Number {
        name: c"tcp2smc",
        max: MPTCP,
        get: |this| this.level.load(Relaxed),
        set: Tcp2Smc::set_level,
    },
    Active::Number {
        name: c"tcp2smc_no_new_privs",
        max: 1,
        get: |this| this.no_new_privs.load(Relaxed),
        set: |this, value| {
            this.no_new_privs.store(value, Relaxed);
            Ok(())
        },
    },
    Active::Number {
        name: c"tcp2smc_memory",
        max: MEMORY_MAX,
        get: |this| this.memory_s.load(Relaxed),
        set: |this, value| {
            this.memory_s.store(value, Relaxed);
            this.peers.lock().clear();
            Ok(())
        },
    },
    Active::Text {
        name: c"tcp2smc_allow",
        get: |this, to| this.allow.with(|rules| rules.write(to)),
        set: |this, text| {
            this.allow.replace(Rules::parse(text)?);
            Ok(())
        },
    },
    Active::Text {
        name: c"tcp2smc_deny",
        get: |this, to| this.deny.with(|rules| rules.write(to)),
        set: |this, text| {
            this.deny.replace(Rules::parse(text)?);
            Ok(())
        },
    },
];

/// What a namespace converts.
#[pin_data]
pub(crate) struct Tcp2Smc {
    /// One of the levels above.
    level: Value,
    /// Whether programs that have given up the way to more rights are meant as well.
    no_new_privs: Value,
    /// How many seconds a peer without SMC is kept in mind.
    memory_s: Value,
    /// Programs and ports that are meant; all, if it names none.
    allow: Published<Rules>,
    /// Programs and ports that are not.
    deny: Published<Rules>,
    /// Peers that are not worth another attempt.
    #[pin]
    peers: Mutex<Peers>,
}

impl Tcp2Smc {
    /// Nothing is converted.
    pub(super) fn new() -> Result<Arc<Self>> {
        let allow = Published::new(Rules::parse(b"")?);
        let deny = Published::new(Rules::parse(DENIED)?);
        Arc::pin_init(
            pin_init!(Self {
                level: Atomic::new(OFF),
                no_new_privs: Atomic::new(0),
                memory_s: Atomic::new(MEMORY_DEFAULT),
                allow,
                deny,
                peers <- new_mutex!(Peers::new(), "Tcp2Smc::peers"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins or ends to convert; it concerns sockets that are opened afterwards.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` where the kernel has no probes or they are switched off.
    fn set_level(&self, level: u32) -> Result {
        let old = self.swap_level(level);
        let Some(probing) = PROBING.get() else {
            // The module comes or goes.
            return Ok(());
        };
        probing.follow().inspect_err(|_| {
            self.swap_level(old);
            let _ = probing.follow();
        })
    }

    /// Stores the level and counts the namespaces that convert.
    fn swap_level(&self, level: u32) -> u32 {
        let old = self.level.xchg(level, Full);
        match (old, level) {
            (OFF, OFF) => (),
            (OFF, _) => {
                WANTED.add(1, Relaxed);
            }
            (_, OFF) => {
                WANTED.add(-1, Relaxed);
            }
            _ => (),
        }
        old
    }

    /// The namespace goes.
    pub(super) fn close(&self) {
        // Taking the probes away cannot fail.
        let _ = self.set_level(OFF);
    }

    /// Whether a socket is to be converted that the running program opens.
    fn wants(&self, call: &NewSocket) -> bool {
        let level = self.level.load(Relaxed);
        let suits = match call.protocol() {
            IPPROTO_IP | IPPROTO_TCP => level >= TCP,
            IPPROTO_MPTCP => level >= MPTCP,
            _ => false,
        };
        suits
            && call.is_inet_stream()
            && (self.no_new_privs.load(Relaxed) != 0 || !call.has_no_new_privs())
            && self.allow.with(|rules| rules.allow_program(call))
            && !self.deny.with(|rules| rules.name_program(call))
    }

    /// Why a converted socket does not try SMC with a peer: the reason, and the peer's diagnosis.
    pub(crate) fn why_not_connect(&self, peer: SocketAddr) -> Option<(DeclineReason, u32)> {
        if !self.may_use_port(peer.port()) {
            return Some((DeclineReason::NOTWANTED, 0));
        }
        self.peers.lock().find(peer)
    }

    /// Whether a converted socket may try SMC on a port, of its own as a listener or of the peer.
    pub(crate) fn may_use_port(&self, port: u16) -> bool {
        self.allow.with(|rules| rules.allow_port(port))
            && !self.deny.with(|rules| rules.name_port(port))
    }

    /// Keeps in mind that a connection of a converted socket to `peer` went by TCP.
    pub(crate) fn remember(&self, peer: SocketAddr, reason: DeclineReason, diagnosis: u32) {
        let seconds = self.memory_s.load(Relaxed);
        // What may be over in a moment is not worth the memory.
        if seconds == 0 || reason.is_passing() {
            return;
        }
        // Without memory it costs another attempt.
        let _ = self
            .peers
            .lock()
            .put(peer, (reason, diagnosis), true, seconds);
    }

    /// Keeps in mind that `peer` sent the option back and then gave up. It may be one that does not know what the option
    /// means, or a listener that was closed just then: only a second time says so.
    pub(crate) fn suspect(&self, peer: SocketAddr) {
        let seconds = self.memory_s.load(Relaxed);
        if seconds != 0 {
            let why = (DeclineReason::PEERNOSMC, 0);
            let _ = self.peers.lock().put(peer, why, false, seconds);
        }
    }

    /// A connection to `peer` went by SMC.
    pub(crate) fn forget(&self, peer: SocketAddr) {
        self.peers.lock().remove(peer);
    }
}

/// How many namespaces convert.
static WANTED: Atomic<i32> = Atomic::new(0);

/// Where the probes are found.
static PROBING: Global<Probing> = Global::new();

/// The decision about each new socket.
enum Policy {}

impl Converter for Policy {
    fn convert(call: &NewSocket) -> Option<i32> {
        let ctx = PerNetRegistration::<NetCtx>::get(call.net()?)?;
        if !ctx.tcp2smc.wants(call) {
            return None;
        }
        // An operator who wants the module to get empty wants no new sockets.
        let initial = PerNetRegistration::<NetCtx>::get(NetNs::initial())?;
        (!initial.settings.drain()).then_some(PROTOCOL_CONVERTED)
    }
}

/// The probes of the machine.
#[pin_data]
struct Probing {
    /// The probes, while a namespace converts.
    #[pin]
    state: Mutex<State>,
}

/// What the lock guards.
struct State {
    /// The probes.
    probes: Option<SocketProbes<Policy>>,
    /// The module goes: there will be none any more.
    closed: bool,
}

impl Probing {
    /// Puts the probes in place or takes them away, as the namespaces want it. May sleep.
    fn follow(&self) -> Result {
        let mut state = self.state.lock();
        let wanted = WANTED.load(Relaxed) > 0 && !state.closed;
        match (wanted, state.probes.is_some()) {
            (true, false) => state.probes = Some(SocketProbes::register()?),
            (false, true) => state.probes = None,
            _ => (),
        }
        Ok(())
    }
}

/// Sockets are converted, where that is wanted, until this is dropped.
pub(crate) struct Registration {
    /// Nobody finds the probes any more once this is dropped.
    _installed: Installed<Probing>,
    /// The probes.
    probing: Arc<Probing>,
}

impl Registration {
    /// Makes ready. The socket types must be there.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let probing = Arc::pin_init(
            pin_init!(Probing {
                state <- new_mutex!(State {
                    probes: None,
                    closed: false,
                }, "Probing::state"),
            }),
            GFP_KERNEL,
        )?;
        let installed = PROBING.install(probing.clone())?;
        // A namespace may have asked already; that it is in vain shows in its sockets.
        let _ = probing.follow();
        Ok(Self {
            _installed: installed,
            probing,
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let probes = {
            let mut state = self.probing.state.lock();
            state.closed = true;
            state.probes.take()
        };
        drop(probes);
    }
}
