// SPDX-License-Identifier: GPL-2.0

//! The list of all link groups, the gates of handshakes, and the clock that watches over idle groups.

use core::ops::Deref;

use kernel::{
    impl_has_delayed_work, impl_has_work, new_condvar, new_delayed_work, new_mutex, new_work,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc,
        CondVar,
        Mutex, //
    },
    time::msecs_to_jiffies,
    workqueue::{
        DelayedWork,
        Work,
        WorkItem, //
    },
};

use super::{
    group::{
        LinkGroup,
        Params,
        Reason, //
    },
    link::Link,
    loss::Cause,
    Deadline, //
};
use crate::{
    kapi::{
        global::{
            Global,
            Installed, //
        },
        net::NetNs,
        rdma::Device,
        shrinker::{
            Shrink,
            ShrinkerRegistration, //
        },
        work::{
            self,
            Kind,
            ModuleQueue,
            QueueRegistration, //
        },
    },
    net_ctx::{
        LogLimit,
        NetCtx, //
    },
    proto::{
        clc::Version,
        group::{
            linger_ms,
            Identity,
            Wanted, //
        },
        ids::{
            Eid,
            Gid,
            Mac,
            PeerId,
            Qpn,
            Role, //
        },
    },
    smc_ib::{
        DeviceUser,
        Start, //
    },
};

/// How often the clock looks at the groups.
const TICK_MS: u32 = 1000;

/// How long the end of a group can take at most, with some room: a device may hold on to a queue pair for three seconds
/// until it gives up asking for an Ethernet address.
const END_MS: u32 = 6000;

/// Distance of the numbers of two groups; the low byte is left for the numbers of links.
const ID_STEP: u32 = 256;

/// The work queue of this room.
pub(super) static QUEUE: ModuleQueue = ModuleQueue::new();

/// Where the registry is found.
static REGISTRY: Global<Registry> = Global::new();

/// Whom a handshake is with; handshakes with the same peer in the same role go one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKey {
    /// The peer's stack instance, which may be zero.
    pub(crate) id: PeerId,
    /// The peer's GID.
    pub(crate) gid: Gid,
}

/// All link groups.
#[pin_data]
struct Registry {
    /// The groups, from their making to their end.
    #[pin]
    groups: Mutex<KVec<Arc<LinkGroup>>>,
    /// The gates that are closed. Lock level 1, but never held while waiting.
    #[pin]
    gates: Mutex<KVec<(Role, PeerKey)>>,
    /// A gate has been opened.
    #[pin]
    gate_event: CondVar,
    /// How much was written to the log about links that are lost.
    #[pin]
    log: Mutex<LogLimit>,
    /// Number of the last group.
    last_id: Atomic<u32>,
    /// The module goes: no group is made, and the clock stops.
    stopping: Atomic<bool>,
    /// The clock.
    #[pin]
    tick: DelayedWork<Registry>,
    /// Gives memory back.
    #[pin]
    relief: Work<Registry, { Registry::RELIEF }>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Registry { self.tick }
}

impl_has_work! {
    impl HasWork<Self, { Registry::RELIEF }> for Registry { self.relief }
}

/// What the kernel takes back when there is little memory.
enum Spares {}

impl Shrink for Spares {
    fn count() -> usize {
        let Some(registry) = REGISTRY.get() else {
            return 0;
        };
        let Some(groups) = registry.groups.try_lock() else {
            return 0;
        };
        let bytes = groups.iter().map(|group| group.spare_bytes());
        let bytes = bytes.fold(0, u64::saturating_add);
        // A group that nobody uses has little memory of its own beside.
        let idle = groups.iter().filter(|group| group.is_idle(0)).count();
        usize::try_from(bytes >> PAGE_SHIFT)
            .unwrap_or(0)
            .saturating_add(idle)
    }

    fn shrink() {
        if let Some(registry) = REGISTRY.get() {
            QUEUE.enqueue::<Registry, { Registry::RELIEF }>(registry);
        }
    }
}

impl WorkItem<{ Registry::RELIEF }> for Registry {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        for group in this.groups.lock().iter().filter(|g| g.is_active()) {
            if group.is_idle(0) {
                group.end(Reason::Program);
            } else {
                group.relieve();
            }
        }
    }
}

impl WorkItem for Registry {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let draining = draining();
        let groups = this.groups.lock();
        for group in groups.iter() {
            if draining {
                group.end(Reason::Operator);
                continue;
            }
            let linger = linger_ms(group.role(), group.ctx().settings().lgr_linger());
            if group.is_idle(i64::from(linger)) {
                group.end(Reason::Program);
            } else if group.is_active() {
                group.tidy_some();
                group.keep_alive();
            }
        }
        let more = !groups.is_empty();
        drop(groups);
        if more {
            this.wind();
        }
    }
}

impl Registry {
    /// Number of the work that gives memory back.
    const RELIEF: u64 = 1;

    /// Lets the clock run once more.
    fn wind(self: &Arc<Self>) {
        if !self.stopping.load(Acquire) {
            QUEUE.enqueue_delayed(self.clone(), msecs_to_jiffies(TICK_MS));
        }
    }

    /// Ends the groups that `which` chooses and waits until they have ended.
    fn end_groups(&self, reason: Reason, which: impl Fn(&LinkGroup) -> bool) {
        let mut left = KVec::new();
        for group in self.groups.lock().iter().filter(|g| which(g)) {
            group.end(reason);
            // Without memory for the list its end is not waited for here; whoever needs that waits for the device.
            let _ = left.push(group.clone(), GFP_KERNEL);
        }
        // They end side by side, so that this is the time of the slowest.
        for group in left.iter() {
            if !group.wait_ended(END_MS) {
                pr_warn!("link group {:#x} does not end\n", group.id());
            }
        }
    }
}

impl DeviceUser for Registry {
    fn device_gone(&self, device: &Arc<Device>) {
        let mut left = KVec::new();
        for group in self.groups.lock().iter() {
            for link in group.links().filter(|link| link.start().is_at(device)) {
                link.lose(Cause::Device);
                // Without memory for the list its end is not waited for here; whoever needs that waits for the device.
                let _ = left.push(link, GFP_KERNEL);
            }
        }
        // They end side by side, so that this is the time of the slowest.
        for link in left.iter() {
            if !link.released.wait_ms(END_MS) {
                pr_warn!("a link of group {:#x} does not end\n", link.group().id());
            }
        }
    }

    fn port_lost(&self, device: &Arc<Device>, port: Option<u32>) {
        for group in self.groups.lock().iter() {
            for link in group.links() {
                let start = link.start();
                if start.is_at(device) && port.is_none_or(|port| port == start.port()) {
                    link.lose(Cause::Port);
                }
            }
        }
    }

    fn port_found(&self) {
        for group in self.groups.lock().iter() {
            if group.is_active() {
                group.port_found();
            }
        }
    }
}

/// The room's registrations. Dropping it ends all groups; the devices must have been given up before.
pub(crate) struct Registration {
    /// Goes first.
    _shrinker: ShrinkerRegistration<Spares>,
    /// Nobody finds the registry any more once this is dropped.
    _installed: Installed<Registry>,
    /// The registry.
    registry: Arc<Registry>,
    /// Goes last: it waits for the work items.
    _queue: QueueRegistration,
}

impl Registration {
    /// Makes the room ready.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EBUSY` when it was made already.
    pub(crate) fn new() -> Result<Self> {
        let queue = QUEUE.register(c"smc_llc", Kind::Unbound)?;
        let registry = Arc::pin_init(
            pin_init!(Registry {
                groups <- new_mutex!(KVec::new(), "smc_llc::groups"),
                gates <- new_mutex!(KVec::new(), "smc_llc::gates"),
                gate_event <- new_condvar!("smc_llc::gate_event"),
                log <- new_mutex!(LogLimit::new(), "smc_llc::log"),
                last_id: Atomic::new(0),
                stopping: Atomic::new(false),
                tick <- new_delayed_work!("smc_llc::tick"),
                relief <- new_work!("smc_llc::relief"),
            }),
            GFP_KERNEL,
        )?;
        let installed = REGISTRY.install(registry.clone())?;
        Ok(Self {
            _shrinker: ShrinkerRegistration::new(c"smc_rs-rings")?,
            _installed: installed,
            registry,
            _queue: queue,
        })
    }

    /// Who has to know when a device goes.
    pub(crate) fn device_user(&self) -> Arc<dyn DeviceUser> {
        self.registry.clone()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.stopping.store(true, Release);
        work::cancel_delayed_sync(&self.registry);
        self.registry.end_groups(Reason::Operator, |_| true);
    }
}

/// Whether an operator wants the module to get empty: groups end within [`TICK_MS`], and none is made.
fn draining() -> bool {
    NetCtx::of(NetNs::initial()).is_ok_and(|ctx| ctx.settings().drain())
}

/// Gives up the links whose peer uses the number of its queue pair anew, for `newcomer`. May sleep.
pub(super) fn end_superseded(newcomer: &Link) {
    let Some(registry) = REGISTRY.get() else {
        return;
    };
    for group in registry.groups.lock().iter() {
        if group.is_alive() {
            group.end_superseded(newcomer);
        }
    }
}

/// Whether a line may be written to the log about a link that is lost: whole ports full of them can be. May sleep.
pub(super) fn may_log() -> bool {
    REGISTRY.get().is_some_and(|r| r.log.lock().has_room())
}

/// Looks at all groups in the order in which they were made; `look` must not sleep for long.
pub(super) fn each_group(look: impl FnMut(&Arc<LinkGroup>)) {
    if let Some(registry) = REGISTRY.get() {
        registry.groups.lock().iter().for_each(look);
    }
}

/// Takes an ended group off the list.
pub(super) fn forget(group: &Arc<LinkGroup>) {
    if let Some(registry) = REGISTRY.get() {
        registry
            .groups
            .lock()
            .retain(|g| !core::ptr::eq(&**g, &**group));
    }
}

/// The right to decide whether a connection joins a group or makes one; lock level 1. Given back when it is dropped.
#[must_use]
pub(crate) struct Gate {
    /// Where it is noted.
    registry: Arc<Registry>,
    /// Our side.
    role: Role,
    /// The peer.
    peer: PeerKey,
}

impl Drop for Gate {
    fn drop(&mut self) {
        let mine = (self.role, self.peer);
        self.registry.gates.lock().retain(|gate| *gate != mine);
        self.registry.gate_event.notify_all();
    }
}

/// Takes the gate of a peer, waiting for it until `deadline` at most. In a work item.
///
/// # Errors
///
/// `ETIMEDOUT`; `ENOMEM`; `ENODEV` when the module goes.
pub(crate) fn gate(role: Role, peer: &PeerKey, deadline: Deadline) -> Result<Gate> {
    let registry = REGISTRY.get().ok_or(ENODEV)?;
    let mine = (role, *peer);
    let mut gates = registry.gates.lock();
    while gates.contains(&mine) {
        let left = deadline.left().ok_or(ETIMEDOUT)?;
        let _ = registry
            .gate_event
            .wait_interruptible_timeout(&mut gates, left);
    }
    gates.push(mine, GFP_KERNEL)?;
    drop(gates);
    Ok(Gate {
        registry,
        role,
        peer: *peer,
    })
}

/// A connection's place in a group, from the decision to join it until the connection is gone.
///
/// It may be dropped in any context. Where the last one is dropped before the first contact is over the group ends.
pub(crate) struct Membership(Arc<LinkGroup>);

impl Membership {
    /// The group.
    pub(crate) fn group(&self) -> &Arc<LinkGroup> {
        &self.0
    }
}

impl Deref for Membership {
    type Target = Arc<LinkGroup>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// What group a connection looks for.
pub(crate) struct Want<'a> {
    /// Our side.
    pub(crate) role: Role,
    /// The peer's stack instance.
    pub(crate) peer_id: PeerId,
    /// The peer's GID.
    pub(crate) peer_gid: Gid,
    /// The peer's Ethernet address, which counts in version 1.
    pub(crate) peer_mac: Mac,
    /// Version of the handshake.
    pub(crate) version: Version,
    /// The enterprise id that both chose in version 2.
    pub(crate) eid: Option<Eid>,
    /// On the client: the queue pair that the server named.
    pub(crate) peer_qpn: Option<Qpn>,
    /// Our end of the way to the peer; only groups with a link that begins there are found.
    pub(crate) start: &'a Start,
}

/// Finds a group that a connection may join, and joins it; says which link the connection takes. The caller holds the
/// peer's gate.
pub(crate) fn find(want: &Want<'_>) -> Option<(Membership, Arc<Link>)> {
    let registry = REGISTRY.get()?;
    let wanted = Wanted {
        identity: Identity {
            role: want.role,
            version: want.version,
            peer_id: want.peer_id,
            eid: want.eid,
            vlan: want.start.vlan(),
        },
        gid: want.peer_gid,
        mac: want.peer_mac,
        qpn: want.peer_qpn,
    };
    // Joining under the lock keeps the clock from ending the group in between.
    let groups = registry.groups.lock();
    let (group, link) = groups
        .iter()
        .find_map(|group| Some((group, group.find(want.start, &wanted)?)))?;
    group.join();
    Some((Membership(group.clone()), link))
}

/// Makes a group for a first contact, whose first link begins at `start`, and joins it. May sleep. The caller holds the
/// peer's gate.
///
/// # Errors
///
/// `ENOMEM`; `ENODEV` when the device or the module goes; what the device says.
pub(crate) fn create(
    start: &Start,
    params: Params,
    ctx: Arc<NetCtx>,
) -> Result<(Membership, Arc<Link>)> {
    let registry = REGISTRY.get().ok_or(ENODEV)?;
    if registry.stopping.load(Acquire) || draining() {
        return Err(ENODEV);
    }
    let id = registry
        .last_id
        .fetch_add(ID_STEP, Relaxed)
        .wrapping_add(ID_STEP);
    let (group, link) = LinkGroup::new(id, start, params, ctx)?;
    group.join();
    let member = Membership(group);
    registry.groups.lock().push(member.0.clone(), GFP_KERNEL)?;
    // Whoever ends the groups of a device or of the module has seen this one, or is seen here.
    if start.device().is_going() || registry.stopping.load(Acquire) {
        return Err(ENODEV);
    }
    registry.wind();
    Ok((member, link))
}
