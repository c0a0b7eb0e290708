// SPDX-License-Identifier: GPL-2.0

//! SMC-R for Linux: an `AF_SMC` stream socket whose bytes travel by RDMA WRITE, or by TCP where they cannot.
//!
//! This file is the crate root: it lists the rooms and registers them in the order in which they must go away. A room
//! uses only rooms that stand above it here.

#![deny(
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_docs_in_private_items,
    clippy::missing_safety_doc,
    clippy::panic,
    clippy::todo,
    clippy::undocumented_unsafe_blocks,
    clippy::unimplemented,
    clippy::unreachable,
    clippy::unwrap_used
)]

use kernel::{
    prelude::*,
    str::CStr, //
};

use self::kapi::{
    net::option::OptionRegistration,
    rivals::{
        Rivals,
        RivalsRegistration, //
    },
};

mod proto;

#[allow(
    clippy::as_conversions,
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "a library of its own: it offers more than one caller uses; C constants change their type"
)]
mod kapi;

#[deny(unsafe_code)]
mod ctl;
#[deny(unsafe_code)]
mod net_ctx;
#[deny(unsafe_code)]
mod smc_cdc;
#[deny(unsafe_code)]
mod smc_clc;
#[deny(unsafe_code)]
mod smc_ib;
#[deny(unsafe_code)]
mod smc_llc;

/// What an application sees: the sockets.
#[deny(unsafe_code)]
mod smc_af {
    mod accept_queue;
    mod close;
    mod connect;
    mod data;
    mod info;
    mod inspect;
    mod listen;
    mod poll;
    mod socket;
    mod sockopt;
    mod state;
    mod waker;

    pub(crate) use inspect::{
        socket_after,
        Described, //
    };

    use kernel::prelude::*;

    use crate::kapi::{
        net::{
            FamilyRegistration,
            TypeNames,
            TypesRegistration, //
        },
        work::{
            Kind,
            ModuleQueue,
            QueueRegistration, //
        },
    };

    /// Runs what the sockets' work items do: connects, handshakes, accepting.
    static HANDSHAKES: ModuleQueue = ModuleQueue::new();

    /// The sockets' part of the module. The fields go in this order.
    pub(crate) struct Registration {
        /// The socket types.
        _types: TypesRegistration<socket::SmcSock>,
        /// Waits for all work.
        _queue: QueueRegistration,
    }

    /// The address family, which one implementation of SMC alone can have.
    pub(crate) struct Family(FamilyRegistration<socket::SmcSock>);

    impl Family {
        /// Takes it; there are no sockets yet.
        ///
        /// # Errors
        ///
        /// `EBUSY` when another implementation has it.
        pub(crate) fn claim() -> Result<Self> {
            socket::TYPES.claim().map(Self)
        }
    }

    impl Registration {
        /// Begins to offer sockets.
        ///
        /// # Errors
        ///
        /// `ENOMEM`.
        pub(crate) fn new(family: &Family) -> Result<Self> {
            let queue = HANDSHAKES.register(c"smc_handshake", Kind::Unbound)?;
            let types = family.0.offer(TypeNames {
                v4: c"SMC",
                v6: c"SMC6",
            })?;
            Ok(Self {
                _types: types,
                _queue: queue,
            })
        }
    }
}

module! {
    type: SmcModule,
    name: "smc_rs",
    authors: ["The smc-rs developers"],
    description: "Shared Memory Communications over RDMA (SMC-R)",
    license: "GPL",
    alias: [
        "net-pf-43",
        "net-pf-2-proto-256-type-1",
        "net-pf-10-proto-256-type-1",
        "net-pf-16-proto-16-family-SMC_GEN_NETLINK",
        "net-pf-16-proto-16-family-SMC_PNETID",
        "net-pf-16-proto-4-type-43",
    ],
    params: {
        v1_over_v2_gids: bool {
            default: false,
            description: "Test only: SMC version 1 also where a port has no RoCE v1 GIDs, over its RoCE v2 GIDs",
        },
    },
}

/// Everything the module has registered. The fields go in this order.
struct SmcModule {
    /// The conversion of sockets, which must not outlive what they are converted to.
    _convert: net_ctx::ConvertRegistration,
    /// What tools ask.
    _ctl: ctl::Registration,
    /// The sockets.
    _af: smc_af::Registration,
    /// RDMA devices.
    _ib: smc_ib::Registration,
    /// Link groups, which end with all their connections.
    _llc: smc_llc::Registration,
    /// What connections leave behind for later.
    _cdc: smc_cdc::Registration,
    /// What is kept for each namespace.
    _nets: net_ctx::Registration,
    /// The TCP option.
    _option: OptionRegistration,
    /// The address family.
    _family: smc_af::Family,
    /// Keeps other implementations out.
    _rivals: RivalsRegistration,
}

/// What cannot be loaded beside this module.
static RIVALS: Rivals = Rivals::new(&[c"smc"], rival_refused);

/// Says why another implementation was refused.
fn rival_refused(name: &CStr) {
    pr_err!("the module {name:?} is another implementation of SMC: to load it, unload this one first (smc-unload)\n");
}

/// Says why the address family could not be had.
fn not_alone(error: &Error) {
    pr_err!(
        "another implementation of SMC is loaded ({error:?}): to load this one, unload it first (modprobe -r smc_diag smc)\n"
    );
}

impl kernel::Module for SmcModule {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // Before anything that both would register: what the kernel does about that harms the earlier one.
        let rivals = RIVALS.register()?;
        let family = smc_af::Family::claim().inspect_err(not_alone)?;
        let option = OptionRegistration::new(net_ctx::OPTION)?;
        let nets = net_ctx::NetCtx::register()?;
        let cdc = smc_cdc::Registration::new()?;
        let llc = smc_llc::Registration::new()?;
        let v1_over_v2 = module_parameters::v1_over_v2_gids.value();
        let ib = smc_ib::Registration::new(llc.device_user(), v1_over_v2)?;
        let af = smc_af::Registration::new(&family)?;
        let ctl = ctl::Registration::new()?;
        let convert = net_ctx::ConvertRegistration::new()?;
        Ok(Self {
            _convert: convert,
            _ctl: ctl,
            _af: af,
            _ib: ib,
            _llc: llc,
            _cdc: cdc,
            _nets: nets,
            _option: option,
            _family: family,
            _rivals: rivals,
        })
    }
}
