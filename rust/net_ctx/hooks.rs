// SPDX-License-Identifier: GPL-2.0

//! The output hooks of a namespace: there from the first socket on that connects or listens, until the namespace has had
//! no SMC socket for a while.
//!
//! Registering and removing them changes the kernel's code, so that neither is done for each connection. Whoever has
//! a [`SocketCount`] and saw the hooks stays sure of them: they are removed only where the count is zero, and a newcomer
//! waits for a removal under way before it registers them again.

use kernel::{
    impl_has_delayed_work, new_delayed_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    time::{
        msecs_to_jiffies,
        Instant,
        Monotonic, //
    },
    workqueue::{
        DelayedWork,
        WorkItem, //
    },
};

use crate::{
    kapi::{
        net::{
            option::OutputHooks,
            NetNs, //
        },
        sync::BhLock,
        work::{
            cancel_delayed_sync,
            ModuleQueue, //
        },
    },
    new_bh_lock,
};

use super::{
    Counter,
    Settings,
    Stats, //
};

/// Runs the removals.
pub(super) static QUEUE: ModuleQueue = ModuleQueue::new();

/// The hooks of one namespace.
#[pin_data]
pub(super) struct Hooks {
    /// The hooks, while they are registered.
    #[pin]
    registered: Mutex<Option<OutputHooks>>,
    /// Who needs them. Taken inside `registered`; nothing is taken inside this.
    #[pin]
    need: BhLock<Need>,
    /// Removes them.
    #[pin]
    removal: DelayedWork<Self>,
    /// How long they stay without a socket.
    settings: Arc<Settings>,
    /// Where they are counted.
    stats: Arc<Stats>,
}

/// Whether the hooks of a namespace are needed.
struct Need {
    /// The SMC sockets of the namespace.
    sockets: usize,
    /// Since when there is none, if there is none.
    idle_since: Instant<Monotonic>,
    /// Whether the hooks are registered and not about to be removed.
    there: bool,
    /// The namespace goes: nothing is registered or planned any more.
    gone: bool,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Hooks { self.removal }
}

impl WorkItem for Hooks {
    type Pointer = Arc<Self>;

    /// Removes the hooks, if there has been no socket for long enough.
    fn run(this: Arc<Self>) {
        let mut registered = this.registered.lock();
        {
            let mut need = this.need.lock();
            if need.sockets > 0 || need.gone {
                return;
            }
            let rest_ms = this.rest_ms(&need);
            if rest_ms > 0 {
                // There was a socket meanwhile.
                this.plan_removal(rest_ms);
                return;
            }
            need.there = false;
        }
        // Under the mutex: who needs them again waits until they have gone.
        *registered = None;
        this.stats.bump(Counter::HOOKS_REMOVED);
    }
}

impl Hooks {
    /// None yet.
    pub(super) fn new(settings: Arc<Settings>, stats: Arc<Stats>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                registered <- new_mutex!(None, "Hooks::registered"),
                need <- new_bh_lock!(Need {
                    sockets: 0,
                    idle_since: Instant::now(),
                    there: false,
                    gone: false,
                }, "Hooks::need"),
                removal <- new_delayed_work!("net_ctx::hooks"),
                settings,
                stats,
            }),
            GFP_KERNEL,
        )
    }

    /// Registers the hooks in `net`, whose they are, where they are not. The caller is counted as a socket.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` when the namespace goes.
    pub(super) fn want(&self, net: &NetNs) -> Result {
        if self.need.lock().there {
            return Ok(());
        }
        let mut registered = self.registered.lock();
        if self.need.lock().gone {
            return Err(ENODEV);
        }
        if registered.is_none() {
            *registered = Some(OutputHooks::register(net)?);
            self.stats.bump(Counter::HOOKS_ADDED);
        }
        self.need.lock().there = true;
        Ok(())
    }

    /// Counts a socket.
    pub(super) fn count_socket(self: &Arc<Self>) -> SocketCount {
        let mut need = self.need.lock();
        need.sockets = need.sockets.saturating_add(1);
        SocketCount(self.clone())
    }

    /// The namespace goes: removes the hooks for good. May sleep.
    pub(super) fn close(self: &Arc<Self>) {
        self.need.lock().gone = true;
        // After this nothing refers to the hooks but sockets, and those have gone before their namespace.
        cancel_delayed_sync(self);
        let hooks = self.registered.lock().take();
        drop(hooks);
    }

    /// How long the hooks of a namespace without sockets still have to stay.
    fn rest_ms(&self, need: &Need) -> u32 {
        let waited = need.idle_since.elapsed().as_millis();
        let waited = u32::try_from(waited).unwrap_or(u32::MAX);
        self.settings.hook_timeout_ms().saturating_sub(waited)
    }

    /// Has the hooks looked at after a time. Called under the lock of `need`, where `gone` is not set.
    fn plan_removal(self: &Arc<Self>, after_ms: u32) {
        // What is planned already looks again when it finds itself too early.
        QUEUE.enqueue_delayed(self.clone(), msecs_to_jiffies(after_ms));
    }
}

/// Counts a socket of a namespace as long as it lives. It may be dropped in any context but hard-irq.
#[must_use]
pub(crate) struct SocketCount(Arc<Hooks>);

impl Drop for SocketCount {
    fn drop(&mut self) {
        let hooks = &self.0;
        let mut need = hooks.need.lock();
        need.sockets = need.sockets.saturating_sub(1);
        if need.sockets == 0 && need.there && !need.gone {
            need.idle_since = Instant::now();
            hooks.plan_removal(hooks.settings.hook_timeout_ms());
        }
    }
}
