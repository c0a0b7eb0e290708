// SPDX-License-Identifier: GPL-2.0

//! Network namespaces and the module's data in each of them.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use core::{
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::from_result,
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc, //
    },
    types::Opaque, //
};
use smc_bindings as bindings;

use super::{
    handle::NetHandle,
    Zeroed, //
};

/// A network namespace.
///
/// # Invariants
///
/// A reference to it is only made where the namespace is alive: through a counted reference, through a socket that
/// holds one, or in a callback of the namespace's own life.
#[repr(transparent)]
pub struct NetNs(Opaque<bindings::net>);

/// A counted reference to a network namespace: it keeps the namespace and what is in it alive.
pub type NetRef = ARef<NetNs>;

// SAFETY: A `struct net` is made for use by any number of tasks; what is read of it here needs no lock.
unsafe impl Send for NetNs {}
// SAFETY: As for `Send`.
unsafe impl Sync for NetNs {}

// SAFETY: `get_net()` and `put_net()` count references, and a namespace with a reference stays alive.
unsafe impl AlwaysRefCounted for NetNs {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the namespace is alive.
        unsafe { bindings::get_net(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference that it owns.
        unsafe { bindings::put_net(obj.as_ptr().cast()) };
    }
}

impl PartialEq for NetNs {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

// SAFETY: A borrowed `NetNs` is a valid namespace for as long as the borrow lasts.
unsafe impl crate::kapi::rdma::AsNet for NetNs {
    fn as_net(&self) -> ptr::NonNull<bindings::net> {
        let net: ptr::NonNull<Self> = self.into();
        net.cast()
    }
}

impl NetNs {
    /// Wraps a namespace that the caller knows to be alive.
    ///
    /// # Safety
    ///
    /// `net` must be valid and stay so for `'a`.
    pub unsafe fn from_raw<'a>(net: *mut bindings::net) -> &'a Self {
        // SAFETY: The type is a transparent wrapper, and the caller vouches for the pointer.
        unsafe { &*net.cast() }
    }

    /// A counted reference to a namespace, unless it goes away already.
    ///
    /// # Safety
    ///
    /// `net` must be valid memory of a namespace, as it is in an RCU read section for an interface that is there.
    pub unsafe fn try_get(net: *mut bindings::net) -> Option<NetRef> {
        // SAFETY: The caller vouches for the memory; the count says whether the namespace is alive.
        let net = NonNull::new(unsafe { bindings::maybe_get_net(net) })?;
        // SAFETY: The call above has counted the reference that is handed over here; the type is a transparent wrapper.
        Some(unsafe { ARef::from_raw(net.cast()) })
    }

    /// The C object.
    pub fn as_raw(&self) -> *mut bindings::net {
        self.0.get()
    }

    /// The namespace that the machine started with.
    pub fn initial() -> &'static Self {
        // SAFETY: `init_net` is a static of the kernel and lives for ever.
        unsafe { Self::from_raw(ptr::addr_of_mut!(bindings::init_net)) }
    }

    /// Whether this is the namespace that the machine started with.
    pub fn is_initial(&self) -> bool {
        self == Self::initial()
    }

    /// The number that names this namespace and no other one, now or later.
    pub fn cookie(&self) -> u64 {
        // SAFETY: By the type invariant the namespace is alive; the number is written once, before it is reachable.
        unsafe { (*self.as_raw()).net_cookie }
    }

    /// The number by which `/proc/self/ns/net` names this namespace.
    pub fn inum(&self) -> u32 {
        // SAFETY: By the type invariant the namespace is alive; the number never changes.
        unsafe { (*self.as_raw()).ns.inum }
    }
}

/// What a module keeps for each network namespace.
pub trait PerNet: Send + Sync + Sized + 'static {
    /// Where the data of a namespace is found.
    fn place() -> &'static PerNetPlace<Self>;

    /// Makes the data of a new namespace; `handle` is a way to that for those who outlive it.
    fn new(net: &NetNs, handle: Arc<NetHandle>) -> Result<Arc<Self>>;

    /// The namespace goes away: its sockets are closed. May sleep.
    fn exit(&self, net: &NetNs) {
        let _ = net;
    }
}

/// The place of a [`PerNet`]: a static.
pub struct PerNetPlace<T: PerNet> {
    /// What the kernel registers.
    ops: UnsafeCell<bindings::pernet_operations>,
    /// The number that the kernel gave the data.
    id: UnsafeCell<u32>,
    /// The type of the data.
    _data: PhantomData<T>,
}

// SAFETY: Both cells are written only by registration, before any namespace can be asked for its data, and by the
// kernel under its own lock.
unsafe impl<T: PerNet> Sync for PerNetPlace<T> {}

/// What a namespace's slot holds: the kernel allocates it zeroed, so that nothing means "no data yet".
struct Slot {
    /// The data, of an `Arc` of the place's type.
    data: *const core::ffi::c_void,
    /// The way to the namespace, of an `Arc`.
    handle: *const NetHandle,
}

impl Slot {
    /// Without data.
    const EMPTY: Self = Self {
        data: ptr::null(),
        handle: ptr::null(),
    };
}

impl<T: PerNet> PerNetPlace<T> {
    /// An empty place.
    pub const fn new() -> Self {
        Self {
            ops: UnsafeCell::new(Zeroed::ZERO),
            id: UnsafeCell::new(0),
            _data: PhantomData,
        }
    }

    /// Makes the data of every namespace, and of those to come.
    ///
    /// # Errors
    ///
    /// Those of [`PerNet::new`], `ENOMEM`.
    pub fn register(&'static self) -> Result<PerNetRegistration<T>> {
        let ops = self.ops.get();
        let init = bindings::pernet_operations {
            init: Some(init_callback::<T>),
            exit: Some(exit_callback::<T>),
            id: self.id.get(),
            size: size_of::<Slot>(),
            ..Zeroed::ZERO
        };
        // SAFETY: Nothing is registered with this place yet, so that nobody else reads it.
        unsafe { ops.write(init) };
        // SAFETY: The operations live for ever and are set up above.
        kernel::error::to_result(unsafe { bindings::register_pernet_subsys(ops) })?;
        Ok(PerNetRegistration { place: self })
    }

    /// The slot of `net`.
    ///
    /// # Safety
    ///
    /// The place must be registered, and `net`'s data must not be in the course of being freed.
    unsafe fn slot(&self, net: &NetNs) -> *mut Slot {
        // SAFETY: The number was written by registration, which the caller vouches for.
        let id = unsafe { *self.id.get() };
        // SAFETY: `net` is alive and `id` is a number that the kernel gave out.
        unsafe { bindings::net_generic(net.as_raw(), id).cast() }
    }
}

/// Dropping it frees the data of every namespace.
#[must_use]
pub struct PerNetRegistration<T: PerNet> {
    /// What to unregister.
    place: &'static PerNetPlace<T>,
}

impl<T: PerNet> PerNetRegistration<T> {
    /// The module's data in `net`; nothing when the namespace never got any.
    pub fn get(net: &NetNs) -> Option<&T> {
        // SAFETY: Sockets and namespace callbacks, the only ones that have a `NetNs`, exist only while the place is
        // registered: sockets pin the module, and the registration is dropped after all that makes them.
        let slot = unsafe { T::place().slot(net) };
        // SAFETY: The kernel allocated the slot zeroed with the namespace.
        let data = unsafe { (*slot).data }.cast::<T>();
        // SAFETY: The slot is null or holds the pointer of an `Arc` that lives until the namespace's exit, when no
        // socket is left in it; the borrow is bound to `net`, which keeps that exit away.
        unsafe { data.as_ref() }
    }

    /// A counted reference to the module's data in `net`.
    pub fn get_arc(net: &NetNs) -> Option<Arc<T>> {
        let data: *const T = Self::get(net)?;
        // SAFETY: The pointer came from `Arc::into_raw`, and the slot still owns that reference.
        let borrowed = unsafe { kernel::sync::ArcBorrow::from_raw(data) };
        Some(borrowed.into())
    }
}

impl<T: PerNet> Drop for PerNetRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: The operations were registered when this object was made, and are so once.
        unsafe { bindings::unregister_pernet_subsys(self.place.ops.get()) };
    }
}

/// `pernet_operations::init`.
///
/// # Safety
///
/// Called by the kernel for a namespace in the making.
unsafe extern "C" fn init_callback<T: PerNet>(net: *mut bindings::net) -> kernel::ffi::c_int {
    from_result(|| {
        // SAFETY: The kernel hands over a namespace that exists for the time of the call.
        let net = unsafe { NetNs::from_raw(net) };
        // SAFETY: It is closed below, or by the exit of the namespace, which the kernel calls if this succeeds.
        let handle = unsafe { NetHandle::new(net) }?;
        let data = T::new(net, handle.clone()).inspect_err(|_| handle.close())?;
        // SAFETY: The kernel allocated the slot before it called us.
        let slot = unsafe { T::place().slot(net) };
        let full = Slot {
            data: Arc::into_raw(data).cast(),
            handle: Arc::into_raw(handle),
        };
        // SAFETY: Nobody else knows the namespace yet.
        unsafe { slot.write(full) };
        Ok(0)
    })
}

/// `pernet_operations::exit`.
///
/// # Safety
///
/// Called by the kernel for a namespace without users.
unsafe extern "C" fn exit_callback<T: PerNet>(net: *mut bindings::net) {
    // SAFETY: The kernel hands over a namespace that exists for the time of the call.
    let net = unsafe { NetNs::from_raw(net) };
    // SAFETY: The slot is freed only after this call.
    let slot = unsafe { T::place().slot(net) };
    // SAFETY: No socket is left in the namespace: nobody else reads the slot.
    let slot = unsafe { slot.replace(Slot::EMPTY) };
    if slot.data.is_null() {
        return;
    }
    // SAFETY: The slot owned the reference of this `Arc`: both were stored together.
    unsafe { Arc::from_raw(slot.handle) }.close();
    // SAFETY: The slot owned the reference of this `Arc`.
    let data = unsafe { Arc::from_raw(slot.data.cast::<T>()) };
    data.exit(net);
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_netns)]
mod tests {
    use kernel::sync::atomic::{
        Atomic,
        Relaxed, //
    };

    use super::*;

    /// Namespaces that got data, less those that lost it.
    static ALIVE: Atomic<i32> = Atomic::new(0);

    /// Data of a namespace.
    struct Probe {
        /// Whether the namespace is the initial one.
        initial: bool,
        /// The way to the namespace.
        handle: Arc<NetHandle>,
    }

    /// Where it is.
    static PLACE: PerNetPlace<Probe> = PerNetPlace::new();

    impl PerNet for Probe {
        fn place() -> &'static PerNetPlace<Self> {
            &PLACE
        }

        fn new(net: &NetNs, handle: Arc<NetHandle>) -> Result<Arc<Self>> {
            ALIVE.add(1, Relaxed);
            Ok(Arc::new(
                Self {
                    initial: net.is_initial(),
                    handle,
                },
                GFP_KERNEL,
            )?)
        }

        fn exit(&self, net: &NetNs) {
            // It is closed before.
            if net.is_initial() == self.initial && self.handle.with(|_| ()).is_none() {
                ALIVE.add(-1, Relaxed);
            }
        }
    }

    #[test]
    fn every_namespace_has_data_while_they_are_registered() -> Result {
        for _ in 0..2 {
            let registration = PLACE.register()?;
            assert!(ALIVE.load(Relaxed) >= 1);
            let net = NetNs::initial();
            assert!(PerNetRegistration::<Probe>::get(net).is_some_and(|probe| probe.initial));
            let kept = PerNetRegistration::<Probe>::get_arc(net).ok_or(ENOENT)?;
            drop(registration);
            assert_eq!(ALIVE.load(Relaxed), 0);
            // The reference outlives the registration.
            assert!(kept.initial);
            assert!(Arc::into_unique_or_drop(kept).is_some());
        }
        Ok(())
    }

    #[test]
    fn the_initial_namespace_is_itself() {
        let net = NetNs::initial();
        assert!(net.is_initial());
        assert!(net.inum() != 0);
        let held: NetRef = net.into();
        assert!(*held == *net);
    }
}
