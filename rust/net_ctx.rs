// SPDX-License-Identifier: GPL-2.0

//! What the module keeps for each network namespace, and every room may use: settings and counters.

mod fallback;
mod option;
mod settings;

use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
};

pub(crate) use self::{
    fallback::{
        Role,
        Shown, //
    },
    option::OPTION,
    settings::Settings, //
};

use self::fallback::Fallbacks;
use crate::kapi::net::{
    option::OutputHooks,
    sysctl::Sysctls,
    NetNs,
    PerNet,
    PerNetPlace,
    PerNetRegistration, //
};

/// Where the kernel keeps the context of each namespace.
static PLACE: PerNetPlace<NetCtx> = PerNetPlace::new();

/// The context of one namespace.
#[pin_data]
pub(crate) struct NetCtx {
    /// What the administrator may set.
    settings: Arc<Settings>,
    /// Connections that went on by TCP, by reason.
    #[pin]
    fallbacks: Fallbacks,
    /// The hooks that write the TCP option, from the first socket on that asks for it.
    #[pin]
    hooks: Mutex<Option<OutputHooks>>,
    /// The files of the settings; taken away when the namespace goes.
    #[pin]
    sysctls: Mutex<Option<Sysctls<Settings>>>,
}

/// Dropping it frees the contexts of all namespaces.
pub(crate) type Registration = PerNetRegistration<NetCtx>;

impl NetCtx {
    /// Makes a context for every namespace, and for those to come.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn register() -> Result<Registration> {
        PLACE.register()
    }

    /// The context of `net`.
    ///
    /// # Errors
    ///
    /// `ENODEV` when the namespace has none, which cannot be for one that has sockets of the module.
    pub(crate) fn of(net: &NetNs) -> Result<Arc<Self>> {
        Registration::get_arc(net).ok_or(ENODEV)
    }

    /// Makes sure that the TCP option can be written in `net`, whose context this is.
    ///
    /// Registering changes the kernel's code; it is done once, for the first socket that needs it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn want_option(&self, net: &NetNs) -> Result {
        let mut hooks = self.hooks.lock();
        if hooks.is_none() {
            *hooks = Some(OutputHooks::register(net)?);
        }
        Ok(())
    }

    /// What the administrator may set.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
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

    fn new(net: &NetNs) -> Result<Arc<Self>> {
        let settings = Arc::new(Settings::new(), GFP_KERNEL)?;
        let sysctls = Settings::register(net, settings.clone())?;
        Arc::pin_init(
            pin_init!(Self {
                settings,
                fallbacks <- Fallbacks::new(),
                hooks <- new_mutex!(None, "NetCtx::hooks"),
                sysctls <- new_mutex!(Some(sysctls), "NetCtx::sysctls"),
            }),
            GFP_KERNEL,
        )
    }

    fn exit(&self, _net: &NetNs) {
        // The files go here, not when the last reference does: that may be where sleeping is not allowed.
        let sysctls = self.sysctls.lock().take();
        drop(sysctls);
        let hooks = self.hooks.lock().take();
        drop(hooks);
    }
}
