// SPDX-License-Identifier: GPL-2.0

//! RDMA devices: being told of them, asking them, and proving that one is still there.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    marker::PhantomData,
    net::IpAddr,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    ffi::c_void,
    new_mutex,
    num::casts::u32_as_usize,
    prelude::*,
    str::CStr,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed,
            Release, //
        },
        rcu,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};
use smc_bindings as bindings;

use super::{
    from_err_ptr,
    qp::MAX_SGE,
    route::{
        gid_of,
        in6_addr,
        ip_of,
        Ends, //
    },
    AsNet, //
};
use crate::kapi::{
    event::Event,
    net::{
        NetNs,
        NetRef, //
    }, //
};

/// Added to the number of uses when the device goes, so that the sum is negative from then on.
const CLOSED: i32 = i32::MIN;

/// What a device reports by itself; only the kinds that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// A port came up, or its addresses changed: it is worth another look.
    PortChanged(u32),
    /// A port went down.
    PortDown(u32),
    /// The device does not work any more.
    Fatal,
}

/// Who wants to know of RDMA devices. All functions may sleep, except [`event`](Client::event).
pub trait Client: 'static {
    /// The place of the C client: a static of the implementer.
    fn place() -> &'static ClientPlace;

    /// A device is there.
    fn added(device: &Arc<Device>);

    /// The device goes. Every [`DeviceUse`] must end soon; the removal waits for that after this call returned.
    fn removing(device: &Arc<Device>);

    /// The device reports something. Runs in a work item of the RDMA core; must not wait for anything.
    fn event(device: &Arc<Device>, event: DeviceEvent);
}

/// An RDMA device that may come to its end at any time.
///
/// # Invariants
///
/// - `raw` is valid while `uses` counts at least one use, and while the RDMA core runs one of the client's callbacks.
/// - `uses` is the number of living [`DeviceUse`]s, plus [`CLOSED`] once the device goes.
#[pin_data]
pub struct Device {
    /// The C device.
    raw: NonNull<bindings::ib_device>,
    /// Its name when it came, padded with zeroes.
    first_name: [u8; 64],
    /// Uses, and whether new ones may begin.
    uses: Atomic<i32>,
    /// Happens when the device goes and the last use has ended.
    #[pin]
    idle: Event,
    /// Our entry in the device's list of event handlers.
    #[pin]
    handler: Opaque<bindings::ib_event_handler>,
    /// Whom to tell of events.
    on_event: fn(&Arc<Device>, DeviceEvent),
    /// How many events there were.
    events: Atomic<u32>,
    /// What was last learned of the first ports. Nothing is taken inside.
    #[pin]
    seen: Mutex<[Option<Seen>; SEEN_PORTS]>,
}

/// How many ports are remembered.
const SEEN_PORTS: usize = 4;

/// What was learned of a port that can be used. It holds as long as nothing happens to the device and the port's network
/// interface looks the same.
#[derive(Clone, Copy)]
struct Seen {
    /// How many events there were before.
    events: u32,
    /// MTU of the interface.
    interface_mtu: u32,
    /// What the device said.
    state: PortState,
    /// It has said so twice. Once may have been while the interface changed, and what the interface shows was newer.
    sure: bool,
}

// SAFETY: The C device may be used from any task; the rest are atomics and locks.
unsafe impl Send for Device {}

// SAFETY: All functions of the RDMA core that are called through a shared `Device` do their own locking.
unsafe impl Sync for Device {}

impl Device {
    /// Begins a use, unless the device goes or has gone.
    pub fn enter(self: &Arc<Self>) -> Option<DeviceUse> {
        let mut seen = self.uses.load(Relaxed);
        loop {
            if seen < 0 {
                return None;
            }
            // INVARIANT: The use returned below is counted. A count near the limit cannot be reached: every use
            // belongs to an object in memory.
            match self.uses.cmpxchg(seen, seen.checked_add(1)?, Full) {
                Ok(_) => {
                    return Some(DeviceUse {
                        device: self.clone(),
                    })
                }
                Err(now) => seen = now,
            }
        }
    }

    /// The name that it had when it came, padded with zeroes: for one that has gone.
    pub fn first_name(&self) -> &[u8; 64] {
        &self.first_name
    }

    /// Whether the device goes or has gone: no use can begin any more.
    pub fn is_going(&self) -> bool {
        // ORDERING: Full in `shut`; whoever publishes something before this load and sees no end is seen by the client
        // in `removing`, if both go through a lock.
        self.uses.load(Acquire) < 0
    }

    /// Forbids new uses.
    fn shut(&self) {
        // INVARIANT: `uses` is not negative before, as a device goes once; the sum does not overflow.
        if self.uses.fetch_add(CLOSED, Full) == 0 {
            self.idle.set();
        }
    }

    /// Waits for the last use to end.
    fn wait_idle(&self) {
        if !self.idle.wait_ms(10_000) {
            pr_warn!("an rdma device goes, and a user of it does not let go\n");
            self.idle.wait();
        }
    }

    /// Calls the client for an event of the C device.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with the handler that [`ClientRegistration`] registered and a valid event.
    unsafe extern "C" fn handle_event(
        handler: *mut bindings::ib_event_handler,
        event: *mut bindings::ib_event,
    ) {
        let field = Opaque::cast_from(handler);
        // SAFETY: `handler` is the field of a `Device` in an `Arc`: only such ones are registered.
        let device = unsafe { kernel::container_of!(field, Device, handler) };
        // SAFETY: The event is valid for the call.
        let kind = unsafe { (*event).event };
        // SAFETY: The port number is the union's member for every event that is looked at below; for others it is
        // some number, which all bit patterns are.
        let port = unsafe { (*event).element.port_num };
        let what = match kind {
            bindings::ib_event_type_IB_EVENT_PORT_ACTIVE
            | bindings::ib_event_type_IB_EVENT_GID_CHANGE
            | bindings::ib_event_type_IB_EVENT_LID_CHANGE => DeviceEvent::PortChanged(port),
            bindings::ib_event_type_IB_EVENT_PORT_ERR => DeviceEvent::PortDown(port),
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => DeviceEvent::Fatal,
            _ => return,
        };
        // SAFETY: The registration holds a reference of the `Arc` until the handler is unregistered, and that waits
        // for running handlers. `ManuallyDrop` leaves the reference where it is.
        let device = core::mem::ManuallyDrop::new(unsafe { Arc::from_raw(device) });
        device.events.fetch_add(1, Full);
        (device.on_event)(&device, what);
    }
}

/// Proof that a device is there.
///
/// # Invariants
///
/// Counted in the device's `uses`, so that the C device is valid.
pub struct DeviceUse {
    /// The device.
    device: Arc<Device>,
}

impl Clone for DeviceUse {
    fn clone(&self) -> Self {
        // INVARIANT: One more is counted. That the device may be closed by now does not matter: it waits for `self`,
        // too.
        self.device.uses.add(1, Relaxed);
        Self {
            device: self.device.clone(),
        }
    }
}

impl Drop for DeviceUse {
    fn drop(&mut self) {
        // INVARIANT: One less is counted. ORDERING: Full, so that what was done under the use comes before the end of
        // the device.
        if self.device.uses.fetch_sub(1, Full) == CLOSED.wrapping_add(1) {
            self.device.idle.set();
        }
    }
}

/// What a device can do; only the limits that matter here.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Scatter entries of a send work request.
    pub max_send_sge: u32,
    /// Scatter entries of a receive work request.
    pub max_recv_sge: u32,
    /// Pages of a memory region that is registered by a work request.
    pub max_mr_pages: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Number of ports, which are counted from 1.
    pub ports: u32,
}

impl Limits {
    /// Most pieces that a range of a ring may have to be sent by one WRITE.
    pub fn pieces(&self) -> usize {
        MAX_SGE.min(u32_as_usize(self.max_send_sge))
    }
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Up, with Ethernet below.
    pub usable: bool,
    /// Code of the path MTU: 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// Length of the GID table.
    pub gids: u32,
}

/// How packets between GIDs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// RoCE v1: Ethernet frames of their own, which pass no router; any two GIDs of the kind can be ends.
    RoceV1,
    /// RoCE v2: UDP, of IPv4 or IPv6 as the GIDs say.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug)]
pub struct GidEntry {
    /// Its kind.
    pub kind: GidKind,
    /// Where it stands in the table.
    pub index: u16,
    /// The GID.
    pub gid: [u8; 16],
    /// Ethernet address of its network interface.
    pub mac: [u8; 6],
    /// VLAN id of its network interface; `0xffff` for none.
    pub vlan: u16,
    /// Index of its network interface.
    pub ifindex: i32,
}

/// What an entry of a GID table has to be.
#[derive(Clone, Copy)]
enum Wanted {
    /// RoCE v2, of the kind of an address, and where the flag is set of an interface with a subnet that contains it.
    V2(IpAddr, bool),
    /// RoCE v1, of an interface with this VLAN, and with a subnet that contains the address.
    V1 {
        /// Any address where there is none.
        near: Option<IpAddr>,
        /// Any VLAN where there is none.
        vlan: Option<u16>,
    },
}

impl DeviceUse {
    /// The device whose use this is.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The C device, valid while `self` lives.
    pub(super) fn raw(&self) -> *mut bindings::ib_device {
        self.device.raw.as_ptr()
    }

    /// Copies the device's name into `out`, cut to its length and always ended by a zero byte.
    pub fn name(&self, out: &mut [u8; 64]) {
        // SAFETY: By the type invariant the device is valid.
        unsafe { copy_name(self.raw(), out) };
    }

    /// The device's limits.
    pub fn limits(&self) -> Limits {
        // SAFETY: By the type invariant the device is valid; its attributes do not change after it was registered.
        let attrs = unsafe { &(*self.raw()).attrs };
        // SAFETY: As above.
        let ports = unsafe { (*self.raw()).phys_port_cnt };
        Limits {
            max_send_sge: attrs.max_send_sge,
            max_recv_sge: attrs.max_recv_sge,
            max_mr_pages: attrs.max_fast_reg_page_list_len,
            max_qp_wr: attrs.max_qp_wr,
            max_cqe: attrs.max_cqe,
            ports,
        }
    }

    /// The state of a port. May sleep.
    ///
    /// Drivers of Ethernet devices ask the port's network interface, under a lock that the whole machine shares: what
    /// they said is remembered as long as the interface looks the same.
    pub fn port(&self, port: u32) -> Result<PortState> {
        let events = self.device.events.load(Acquire);
        let (mut interface_mtu, mut up) = (0, false);
        // SAFETY: By the type invariant the device is valid; the RDMA core checks the port number, and both outputs are
        // valid for the call.
        let has_interface =
            unsafe { bindings::rdma_port_interface(self.raw(), port, &mut interface_mtu, &mut up) };
        let place = usize::try_from(port).ok().and_then(|n| n.checked_sub(1));
        let place = place.filter(|_| has_interface);
        let before = place.and_then(|n| *self.device.seen.lock().get(n)?);
        let before = before.filter(|b| b.events == events && b.interface_mtu == interface_mtu);
        if let Some(seen) = before.filter(|b| b.sure) {
            return Ok(PortState {
                usable: up,
                ..seen.state
            });
        }
        let state = self.query_port(port)?;
        if let Some(n) = place.filter(|_| state.usable) {
            let seen = Seen {
                events,
                interface_mtu,
                state,
                sure: before.is_some_and(|b| b.state == state),
            };
            if let Some(place) = self.device.seen.lock().get_mut(n) {
                *place = Some(seen);
            }
        }
        Ok(state)
    }

    /// Asks the device for the state of a port. May sleep.
    fn query_port(&self, port: u32) -> Result<PortState> {
        let mut attr = bindings::ib_port_attr::default();
        // SAFETY: By the type invariant the device is valid; the RDMA core checks the port number.
        to_result(unsafe { bindings::ib_query_port(self.raw(), port, &mut attr) })?;
        // SAFETY: As above; the port exists, as the query succeeded.
        let layer = unsafe { bindings::rdma_port_get_link_layer(self.raw(), port) };
        Ok(PortState {
            usable: attr.state == bindings::ib_port_state_IB_PORT_ACTIVE
                && layer == bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET,
            mtu: u8::try_from(attr.active_mtu).unwrap_or(0),
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
        })
    }

    /// Whether the device may be used from `net` (the RDMA core's shared or exclusive mode).
    pub fn visible_in(&self, net: &impl AsNet) -> bool {
        // SAFETY: Both pointers are valid: by the type invariant, and by the contract of `AsNet`.
        unsafe { bindings::rdma_dev_access_netns(self.raw(), net.as_net().as_ptr()) }
    }

    /// The RoCE v2 GID of `port` of our address itself, if its interface is in `net` and the address says which.
    pub fn find_own_gid(&self, port: u32, net: &impl AsNet, ends: &Ends) -> Option<GidEntry> {
        if ends.via().is_some() {
            return None;
        }
        let local = ends.local();
        let own = bindings::ib_gid { raw: gid_of(local) };
        // SAFETY: The device is valid by the type invariant, the GID for the call; a null interface means any.
        let found = unsafe {
            bindings::rdma_find_gid_by_port(
                self.raw(),
                &own,
                bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
                port,
                ptr::null_mut(),
            )
        };
        GidRef::new(found)?.entry(net, Wanted::V2(local, false))
    }

    /// A RoCE v2 GID of `port` of a network interface in `net` that has an address in whose subnet ours lies. Looks at
    /// the whole table.
    pub fn find_gid_around(
        &self,
        port: u32,
        gids: u32,
        net: &impl AsNet,
        ends: &Ends,
    ) -> Option<GidEntry> {
        let local = ends.local();
        self.entries(port, gids, net, Wanted::V2(local, true))
            .find(|entry| match ends.via() {
                // Such an address may be there once for each interface.
                Some(via) => entry.ifindex == via && entry.gid == gid_of(local),
                None => true,
            })
    }

    /// Whether `port` is one that has RoCE v1 GIDs. Costs nothing.
    pub fn has_v1_gids(&self, port: u32) -> bool {
        if !(1..=self.limits().ports).contains(&port) {
            return false;
        }
        // SAFETY: The device is valid by the type invariant, and the port is one of its own.
        unsafe { bindings::rdma_protocol_roce_eth_encap(self.raw(), port) }
    }

    /// The first RoCE v1 GID of `port` of a network interface in `net`: one that has a subnet with the address `near`, and
    /// the VLAN `vlan` (`0xffff` for none), as far as these are given.
    pub fn find_v1_gid(
        &self,
        port: u32,
        gids: u32,
        net: &impl AsNet,
        near: Option<IpAddr>,
        vlan: Option<u16>,
    ) -> Option<GidEntry> {
        if !self.has_v1_gids(port) {
            return None;
        }
        self.entries(port, gids, net, Wanted::V1 { near, vlan })
            .next()
    }

    /// The GIDs of `port` in `net` that are wanted.
    fn entries<'a>(
        &'a self,
        port: u32,
        gids: u32,
        net: &'a impl AsNet,
        wanted: Wanted,
    ) -> impl Iterator<Item = GidEntry> + 'a {
        (0..i32::try_from(gids).unwrap_or(0)).filter_map(move |index| {
            // SAFETY: The device is valid by the type invariant; the RDMA core checks port and index.
            let found = unsafe { bindings::rdma_get_gid_attr(self.raw(), port, index) };
            GidRef::new(found)?.entry(net, wanted)
        })
    }
}

impl DeviceUse {
    /// A RoCE v2 GID of `port` in `net` for a peer at `near`, of the kind of that address, and whether a subnet of its
    /// interface contains it.
    ///
    /// Best is one where it does; else the first one.
    pub fn find_gid_near(
        &self,
        port: u32,
        gids: u32,
        net: &impl AsNet,
        near: IpAddr,
    ) -> Option<(GidEntry, bool)> {
        let find = |subnet| {
            let wanted = Wanted::V2(near, subnet);
            Some((self.entries(port, gids, net, wanted).next()?, subnet))
        };
        find(true).or_else(|| find(false))
    }

    /// Whether the entry is still in the table of `port`, and a subnet of its interface, which is in `net`, contains
    /// `near`.
    pub fn gid_is_near(&self, port: u32, entry: &GidEntry, net: &impl AsNet, near: IpAddr) -> bool {
        // SAFETY: The device is valid by the type invariant; the RDMA core checks port and index.
        let found =
            unsafe { bindings::rdma_get_gid_attr(self.raw(), port, i32::from(entry.index)) };
        GidRef::new(found)
            .and_then(|gid| gid.entry(net, Wanted::V2(near, true)))
            .is_some_and(|now| now.gid == entry.gid)
    }

    /// The namespace of the network interface of a GID, unless that or the namespace goes.
    pub fn namespace_of(&self, port: u32, entry: &GidEntry) -> Option<NetRef> {
        // SAFETY: The device is valid by the type invariant; the RDMA core checks port and index.
        let found =
            unsafe { bindings::rdma_get_gid_attr(self.raw(), port, i32::from(entry.index)) };
        let gid = GidRef::new(found)?;
        let _rcu = rcu::read_lock();
        // SAFETY: The entry is valid, and the RCU read lock is held.
        let ndev = unsafe { bindings::rdma_read_gid_attr_ndev_rcu(gid.0.as_ptr()) };
        let ndev = from_err_ptr(ndev).ok()?.as_ptr();
        // SAFETY: The interface stays valid while the RCU read lock is held.
        let net = unsafe { bindings::dev_net(ndev) };
        // SAFETY: An interface's namespace stays in memory as long as the interface.
        unsafe { NetNs::try_get(net) }
    }
}

/// Copies the name of a device into `out`, cut to its length and always ended by a zero byte.
///
/// # Safety
///
/// `device` must be valid.
unsafe fn copy_name(device: *const bindings::ib_device, out: &mut [u8; 64]) {
    // SAFETY: The caller vouches for the device; its name is an array inside it.
    let name = unsafe { &raw const (*device).name };
    *out = [0; 64];
    // SAFETY: The array is valid for reads of its length. A rename may happen meanwhile and mix old and new bytes,
    // which a volatile read of single bytes allows.
    let bytes = unsafe { name.cast::<[u8; 64]>().read_volatile() };
    for (to, from) in out.iter_mut().take(63).zip(bytes) {
        if from == 0 {
            break;
        }
        *to = from;
    }
}

/// A counted reference to an entry of a GID table.
///
/// # Invariants
///
/// The pointer is valid and this value owns a reference to it.
struct GidRef(NonNull<bindings::ib_gid_attr>);

impl GidRef {
    /// Takes over the reference that a look-up returned; nothing for an error.
    fn new(found: *const bindings::ib_gid_attr) -> Option<Self> {
        // INVARIANT: The look-up functions return an error or a reference.
        from_err_ptr(found.cast_mut()).ok().map(Self)
    }

    /// Ethernet address and VLAN id of the interface.
    fn l2(&self) -> Option<([u8; 6], u16)> {
        let mut vlan = 0xffffu16;
        let mut mac = [0u8; 6];
        // SAFETY: The entry is valid by the type invariant; the two outputs are valid for the call.
        let ret = unsafe {
            bindings::rdma_read_gid_l2_fields(self.0.as_ptr(), &mut vlan, mac.as_mut_ptr())
        };
        to_result(ret).ok()?;
        Some((mac, vlan))
    }

    /// What the entry says, if it is what is wanted, and its interface is up in `net`.
    fn entry(&self, net: &impl AsNet, wanted: Wanted) -> Option<GidEntry> {
        // SAFETY: The entry is valid by the type invariant, and its fields do not change while it is referenced.
        let attr = unsafe { self.0.as_ref() };
        // SAFETY: All 16 bytes of a GID are initialised, whichever member of the union was written.
        let gid = unsafe { attr.gid.raw };
        let (kind, near) = match (attr.gid_type, wanted) {
            (bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP, Wanted::V2(ip, subnet))
                if are_alike(ip_of(gid), ip) =>
            {
                (GidKind::RoceV2, subnet.then_some(ip))
            }
            (bindings::ib_gid_type_IB_GID_TYPE_ROCE, Wanted::V1 { near, .. }) => {
                (GidKind::RoceV1, near)
            }
            _ => return None,
        };
        let ifindex = {
            let _rcu = rcu::read_lock();
            // SAFETY: The entry is valid, and the RCU read lock is held.
            let ndev = unsafe { bindings::rdma_read_gid_attr_ndev_rcu(self.0.as_ptr()) };
            let ndev = from_err_ptr(ndev).ok()?.as_ptr();
            // SAFETY: The interface stays valid while the RCU read lock is held.
            if unsafe { bindings::dev_net(ndev) } != net.as_net().as_ptr() {
                return None;
            }
            // SAFETY: The interface is valid and the RCU read lock is held.
            if near.is_some_and(|ip| !unsafe { has_subnet_of(ndev, ip) }) {
                return None;
            }
            // SAFETY: The interface is valid as above; its index does not change while it is in use.
            unsafe { (*ndev).ifindex }
        };
        let (mac, vlan) = self.l2()?;
        if matches!(wanted, Wanted::V1 { vlan: Some(want), .. } if want != vlan) {
            return None;
        }
        Some(GidEntry {
            kind,
            index: attr.index,
            gid,
            mac,
            vlan,
            ifindex,
        })
    }
}

impl Drop for GidRef {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns a reference, which ends here.
        unsafe { bindings::rdma_put_gid_attr(self.0.as_ptr()) };
    }
}

/// Whether two addresses are of IPv4, both of a single link in IPv6, or neither.
fn are_alike(one: IpAddr, other: IpAddr) -> bool {
    let kind = |ip| match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(ip.is_unicast_link_local()),
    };
    kind(one) == kind(other)
}

/// Whether one of the interface's subnets contains `ip`.
///
/// # Safety
///
/// `ndev` is valid and the caller holds the RCU read lock.
unsafe fn has_subnet_of(ndev: *mut bindings::net_device, ip: IpAddr) -> bool {
    let addr = match ip {
        IpAddr::V4(ip) => ip.octets(),
        // SAFETY: The caller promises a valid interface; the address is valid for the call.
        IpAddr::V6(ip) => return unsafe { bindings::has_prefix6(ndev, &in6_addr(ip)) },
    };
    // SAFETY: The caller promises a valid interface and the RCU read lock.
    let in_dev = unsafe { bindings::__in_dev_get_rcu(ndev) };
    if in_dev.is_null() {
        return false;
    }
    let addr = u32::from_ne_bytes(addr);
    // SAFETY: `in_dev` is valid under the RCU read lock. The volatile read stands for `rcu_dereference()`: what is
    // read through the pointer depends on its value.
    let mut ifa = unsafe { (&raw const (*in_dev).ifa_list).read_volatile() };
    while !ifa.is_null() {
        // SAFETY: An address in the list stays valid under the RCU read lock; these fields do not change.
        let (own, mask) = unsafe { ((*ifa).ifa_address, (*ifa).ifa_mask) };
        if (own ^ addr) & mask == 0 {
            return true;
        }
        // SAFETY: As for the first pointer.
        ifa = unsafe { (&raw const (*ifa).ifa_next).read_volatile() };
    }
    false
}

/// A place in static memory for the C side of a [`Client`].
///
/// # Invariants
///
/// The C client is initialised while `taken` is set.
pub struct ClientPlace {
    /// The C client.
    raw: Opaque<bindings::ib_client>,
    /// Whether a [`ClientRegistration`] uses the place.
    taken: Atomic<bool>,
}

// SAFETY: The C client is touched by the RDMA core, which does its own locking, and by the one registration that has
// set `taken`.
unsafe impl Sync for ClientPlace {}

impl ClientPlace {
    /// An empty place.
    pub const fn new() -> Self {
        Self {
            raw: Opaque::uninit(),
            taken: Atomic::new(false),
        }
    }
}

/// An entry in the list of those whom the RDMA core tells of devices. Dropping it removes all devices first; may sleep.
#[must_use]
pub struct ClientRegistration<C: Client>(PhantomData<fn() -> C>);

impl<C: Client> ClientRegistration<C> {
    /// Registers `C` under `name`; `C::added` is called for every device that is there.
    ///
    /// # Errors
    ///
    /// `EBUSY` when it is registered already; what the RDMA core says.
    pub fn new(name: &'static CStr) -> Result<Self> {
        let place = C::place();
        if place.taken.xchg(true, Full) {
            return Err(EBUSY);
        }
        let client = bindings::ib_client {
            name: name.as_char_ptr(),
            add: Some(Self::add),
            remove: Some(Self::remove),
            ..Default::default()
        };
        let raw = place.raw.get();
        // SAFETY: The place is static memory, and nobody else uses it as `taken` was not set before.
        unsafe { raw.write(client) };
        // SAFETY: The client is initialised and stays so until `drop` has unregistered it.
        if let Err(e) = to_result(unsafe { bindings::ib_register_client(raw) }) {
            place.taken.store(false, Release);
            return Err(e);
        }
        Ok(Self(PhantomData))
    }

    /// A device came.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with a valid device.
    unsafe extern "C" fn add(raw: *mut bindings::ib_device) -> i32 {
        from_result(|| {
            let raw = NonNull::new(raw).ok_or(EINVAL)?;
            let mut first_name = [0; 64];
            // SAFETY: The RDMA core hands over a valid device.
            unsafe { copy_name(raw.as_ptr(), &mut first_name) };
            // INVARIANT: `raw` is valid during this callback, and afterwards until `remove` has waited for all uses.
            let device: Arc<Device> = Arc::pin_init(
                pin_init!(Device {
                    raw,
                    first_name,
                    uses: Atomic::new(0),
                    idle <- Event::new(),
                    handler <- Opaque::ffi_init(|slot: *mut bindings::ib_event_handler| {
                        let handler = bindings::ib_event_handler {
                            device: raw.as_ptr(),
                            handler: Some(Device::handle_event),
                            ..Default::default()
                        };
                        // SAFETY: `slot` is valid memory, which `pin_init!` hands over.
                        unsafe { slot.write(handler) };
                    }),
                    on_event: C::event,
                    events: Atomic::new(0),
                    seen <- new_mutex!([None; SEEN_PORTS], "Device::seen"),
                }),
                GFP_KERNEL,
            )?;
            let data = Arc::into_raw(device.clone()).cast_mut();
            // SAFETY: The device is valid, the client is registered with it, and `data` is what `remove` expects.
            unsafe {
                bindings::ib_set_client_data(raw.as_ptr(), C::place().raw.get(), data.cast())
            };
            // SAFETY: The handler is pinned in the `Arc`, whose reference in the client data keeps it until `remove`
            // has unregistered it. The function links the list entry, which needs no initialisation.
            unsafe { bindings::ib_register_event_handler(device.handler.get()) };
            C::added(&device);
            Ok(0)
        })
    }

    /// A device goes.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with a device for which `add` succeeded, and with what `add` left as client data.
    unsafe extern "C" fn remove(_raw: *mut bindings::ib_device, data: *mut c_void) {
        // SAFETY: `add` made the client data from an `Arc<Device>`, whose reference is taken over here, once.
        let device = unsafe { Arc::from_raw(data.cast::<Device>().cast_const()) };
        // SAFETY: `add` registered the handler; afterwards it does not run any more.
        unsafe { bindings::ib_unregister_event_handler(device.handler.get()) };
        device.shut();
        C::removing(&device);
        device.wait_idle();
    }
}

impl<C: Client> Drop for ClientRegistration<C> {
    fn drop(&mut self) {
        let place = C::place();
        // SAFETY: The client was registered by `new`. The function calls `remove` for every device and returns when
        // nothing refers to the client.
        unsafe { bindings::ib_unregister_client(place.raw.get()) };
        place.taken.store(false, Release);
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_device)]
mod tests {
    use super::*;

    /// A client that nobody needs.
    enum Probe {}

    /// Its place.
    static PLACE: ClientPlace = ClientPlace::new();

    /// Devices that came, less those that went.
    static DEVICES: Atomic<i32> = Atomic::new(0);

    impl Client for Probe {
        fn place() -> &'static ClientPlace {
            &PLACE
        }

        fn added(device: &Arc<Device>) {
            if device.enter().is_some() && !device.is_going() {
                DEVICES.add(1, Relaxed);
            }
        }

        fn removing(device: &Arc<Device>) {
            if device.enter().is_none() && device.is_going() {
                DEVICES.add(-1, Relaxed);
            }
        }

        fn event(_device: &Arc<Device>, _event: DeviceEvent) {}
    }

    #[test]
    fn a_client_is_registered_once_at_a_time() -> Result {
        for _ in 0..2 {
            let client = ClientRegistration::<Probe>::new(c"smc_kunit")?;
            assert!(matches!(
                ClientRegistration::<Probe>::new(c"smc_kunit"),
                Err(e) if e == EBUSY
            ));
            // The refused attempt has not taken the place.
            assert!(PLACE.taken.load(Relaxed));
            drop(client);
            assert!(!PLACE.taken.load(Relaxed));
            // Whatever devices there are: each came and went.
            assert_eq!(DEVICES.load(Relaxed), 0);
        }
        Ok(())
    }
}
