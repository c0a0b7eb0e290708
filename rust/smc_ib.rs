// SPDX-License-Identifier: GPL-2.0

//! RDMA devices as SMC-R sees them: which are there, and by which port and address a peer is reached.
//!
//! A device is known from the moment the RDMA core tells of it until it goes. The link groups that live on it belong to
//! a room above, which is told of a device's end and of a port's through [`DeviceUser`].

mod path;

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};

pub(crate) use path::{
    approach,
    approach_v1,
    find_alternate,
    port_network,
    until_zero,
    Approach,
    Path,
    Start, //
};

use crate::{
    kapi::{
        global::{
            Global,
            Installed, //
        },
        random,
        rdma::{
            Client,
            ClientPlace,
            ClientRegistration,
            Device,
            DeviceEvent, //
        },
    },
    proto::ids::{
        Mac,
        PeerId, //
    },
};

/// Who keeps things on a device and has to know when it goes.
pub(crate) trait DeviceUser: Send + Sync {
    /// The device goes: end everything on it before returning, within two seconds. May sleep.
    fn device_gone(&self, device: &Arc<Device>);

    /// A port does not work any more, or all of them (`None`). Must not wait.
    fn port_lost(&self, device: &Arc<Device>, port: Option<u32>);

    /// A device has come, or a port of one has become usable or got other addresses. Must not wait.
    fn port_found(&self);
}

/// What the room knows, while the module is up.
#[pin_data]
struct State {
    /// The devices, in the order in which they came.
    #[pin]
    devices: Mutex<KVec<Arc<Device>>>,
    /// Who this host is for its peers.
    #[pin]
    identity: Mutex<Identity>,
    /// A random address for hosts without one, which identifies them in a handshake that ends in a decline.
    substitute_mac: [u8; 6],
    /// Who keeps things on the devices.
    user: Arc<dyn DeviceUser>,
    /// Links of version 1 may begin at RoCE v2 GIDs.
    v1_over_v2: bool,
}

/// Who this host is for its peers.
struct Identity {
    /// Two random bytes that tell this instance from an earlier one on the same host: of the module, or of the device
    /// when that went and came again, as a peer may not have noticed that.
    instance: [u8; 2],
    /// The device that gives this host its id, and its Ethernet address.
    from: Option<(Arc<Device>, [u8; 6])>,
}

/// Where [`State`] is found.
static STATE: Global<State> = Global::new();

/// Where the RDMA core finds us.
static PLACE: ClientPlace = ClientPlace::new();

/// What the RDMA core calls.
enum Devices {}

impl Client for Devices {
    fn place() -> &'static ClientPlace {
        &PLACE
    }

    fn added(device: &Arc<Device>) {
        let Some(state) = STATE.get() else {
            return;
        };
        if state
            .devices
            .lock()
            .push(device.clone(), GFP_KERNEL)
            .is_err()
        {
            pr_warn!("no memory to use an rdma device\n");
            return;
        }
        state.user.port_found();
    }

    fn removing(device: &Arc<Device>) {
        let Some(state) = STATE.get() else {
            return;
        };
        state
            .devices
            .lock()
            .retain(|d| !core::ptr::eq(&**d, &**device));
        {
            let mut identity = state.identity.lock();
            if matches!(&identity.from, Some((d, _)) if core::ptr::eq(&**d, &**device)) {
                let [i, j, ..] = random::random_bytes();
                *identity = Identity {
                    instance: [i, j],
                    from: None,
                };
            }
        }
        state.user.device_gone(device);
    }

    fn event(device: &Arc<Device>, event: DeviceEvent) {
        let Some(state) = STATE.get() else {
            return;
        };
        match event {
            DeviceEvent::PortDown(port) => state.user.port_lost(device, Some(port)),
            DeviceEvent::Fatal => state.user.port_lost(device, None),
            // A path is looked up anew for every connection; only further links wait for this.
            DeviceEvent::PortChanged(_) => state.user.port_found(),
        }
    }
}

/// The room's registrations. Dropping it ends everything on every device.
pub(crate) struct Registration {
    /// Goes first: it calls back for every device.
    _client: ClientRegistration<Devices>,
    /// What the callbacks use.
    _state: Installed<State>,
}

impl Registration {
    /// Begins to follow the RDMA devices. With `v1_over_v2`, links of version 1 may begin at RoCE v2 GIDs where there are
    /// no others: to test version 1 without such hardware.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EBUSY` when it was made already.
    pub(crate) fn new(user: Arc<dyn DeviceUser>, v1_over_v2: bool) -> Result<Self> {
        let [i, j, a, b, c, d, e, f] = random::random_bytes();
        let state = Arc::pin_init(
            pin_init!(State {
                devices <- new_mutex!(KVec::new(), "smc_ib::devices"),
                identity <- new_mutex!(
                    Identity {
                        instance: [i, j],
                        from: None,
                    },
                    "smc_ib::identity"
                ),
                // A locally administered unicast address.
                substitute_mac: [a & 0xfc | 0x02, b, c, d, e, f],
                user,
                v1_over_v2,
            }),
            GFP_KERNEL,
        )?;
        let state = STATE.install(state)?;
        let client = ClientRegistration::new(c"smc_rs")?;
        Ok(Self {
            _client: client,
            _state: state,
        })
    }
}

/// Most pieces that a ring may have so that each of the devices there are can read it: a connection may move to any.
pub(crate) fn common_pieces() -> Option<usize> {
    devices()
        .filter_map(|device| Some(device.enter()?.limits().pieces()))
        .min()
}

/// The devices, one after the other: while one is looked at others may come and go.
pub(crate) fn devices() -> impl Iterator<Item = Arc<Device>> {
    let state = STATE.get();
    (0..).map_while(move |at| state.as_ref()?.devices.lock().get(at).cloned())
}

/// The id of this stack instance: two random bytes, and the Ethernet address of a RoCE port (RFC 7609, appendix A.2.1).
///
/// The port is the first one over which a path was found, for as long as its device is there; when that goes, so does
/// the id, with the link groups that lived on it. Whoever proposes or
/// accepts has found a path, so that a peer never learns two ids of one host: it would take them for two hosts. Nothing
/// is asked or allocated here that could fail.
pub(crate) fn system_id() -> PeerId {
    let Some(state) = STATE.get() else {
        return PeerId::ZERO;
    };
    let identity = state.identity.lock();
    let mac = match &identity.from {
        Some((_, mac)) => *mac,
        None => state.substitute_mac,
    };
    PeerId::new(identity.instance, Mac(mac))
}

/// Whether links of version 1 may begin at RoCE v2 GIDs.
fn v1_over_v2() -> bool {
    STATE.get().is_some_and(|state| state.v1_over_v2)
}

/// A path begins at this device, with this Ethernet address: it gives this host its id if it has none yet.
fn identify(device: &Arc<Device>, mac: [u8; 6]) {
    if let Some(state) = STATE.get() {
        let mut identity = state.identity.lock();
        if identity.from.is_none() && !device.is_going() {
            identity.from = Some((device.clone(), mac));
        }
    }
}
