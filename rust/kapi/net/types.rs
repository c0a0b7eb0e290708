// SPDX-License-Identifier: GPL-2.0

//! The socket types of the module: their registration with the kernel and its end.
//!
//! C headers: [`include/net/protocol.h`](srctree/include/net/protocol.h),
//! [`include/net/sock.h`](srctree/include/net/sock.h)

use core::{
    cell::UnsafeCell,
    marker::{
        PhantomData,
        PhantomPinned, //
    },
    mem::offset_of, //
};

use kernel::{
    error::to_result,
    ffi::{
        c_char,
        c_int,
        c_uint, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    ops::{
        create_callback,
        destroy_callback,
        hash_callback,
        init_callback,
        unhash_callback,
        Callbacks, //
    },
    Family,
    Sock,
    SockList,
    SocketOps,
    Zeroed, //
};
use crate::kapi::global::{
    Global,
    Installed, //
};

/// What the kernel keeps pointers to, and partly writes to.
struct Tables {
    /// The kinds of sock: for IPv4 and for IPv6.
    protos: [bindings::proto; 2],
    /// `socket(AF_INET or AF_INET6, SOCK_STREAM, number)`, with the number of SMC, then with [`PROTOCOL_CONVERTED`].
    switches: [bindings::inet_protosw; 4],
    /// The kernel links these.
    _pin: PhantomPinned,
}

/// The socket types of the module: a static, empty until it is registered.
pub struct SocketTypes<T: SocketOps> {
    /// `socket(family, …)`.
    family: UnsafeCell<bindings::net_proto_family>,
    /// Whether the family makes sockets yet.
    offered: Atomic<bool>,
    /// The tables.
    tables: UnsafeCell<Tables>,
    /// The sockets.
    list: Global<SockList<T>>,
    /// What the sockets do.
    _ops: PhantomData<T>,
}

// SAFETY: The tables are written by registration, before anybody else can reach them, and by the kernel under its own
// locks.
unsafe impl<T: SocketOps> Sync for SocketTypes<T> {}

/// The names and numbers of the socket types.
pub struct TypeNames {
    /// The name of the sock for IPv4 in `/proc/net/protocols`.
    pub v4: &'static CStr,
    /// The name of the sock for IPv6 in `/proc/net/protocols`.
    pub v6: &'static CStr,
}

/// The address family of the module's own.
pub(super) const PF_SMC: c_int = bindings::PF_SMC as c_int;

/// The protocol number under the internet families.
pub(super) const IPPROTO_SMC: u16 = bindings::IPPROTO_SMC as u16;

/// The protocol number of sockets that are converted, until they are made: it tells them from those that a program
/// opened with the number of SMC. The kernel has no protocol of this number.
pub const PROTOCOL_CONVERTED: i32 = 257;

impl<T: SocketOps> SocketTypes<T> {
    /// An empty place.
    pub const fn new() -> Self {
        Self {
            family: UnsafeCell::new(Zeroed::ZERO),
            offered: Atomic::new(false),
            tables: UnsafeCell::new(Tables::EMPTY),
            list: Global::new(),
            _ops: PhantomData,
        }
    }

    /// The sockets that there are, once there may be any.
    pub fn list(&self) -> Option<Arc<SockList<T>>> {
        self.list.get()
    }

    /// Takes the address family, which one module alone can have, without offering sockets yet.
    ///
    /// # Errors
    ///
    /// `EBUSY` when another implementation has it: modprobe(8) takes `EEXIST` for success.
    pub fn claim(&'static self) -> Result<FamilyRegistration<T>> {
        let family = self.family.get();
        // SAFETY: The place is a static that nobody reads before it is registered.
        unsafe {
            family.write(bindings::net_proto_family {
                family: PF_SMC,
                create: Some(create_callback::<T>),
                owner: module(),
            });
        }
        // SAFETY: The entry lives for ever and is set up.
        to_result(unsafe { bindings::sock_register(family) }).map_err(|error| {
            if error == EEXIST {
                EBUSY
            } else {
                error
            }
        })?;
        Ok(FamilyRegistration { types: self })
    }

    /// The kinds of sock, once there are any: for IPv4 and for IPv6.
    pub(super) fn protos(&self) -> Option<[*mut bindings::proto; 2]> {
        self.offered
            .load(Acquire)
            .then(|| Tables::pointers(self.tables.get()).protos)
    }
}

/// Dropping it gives the address family back. No socket may exist, which the kernel sees to: sockets pin the module.
#[must_use]
pub struct FamilyRegistration<T: SocketOps> {
    /// Whose family it is.
    types: &'static SocketTypes<T>,
}

impl<T: SocketOps> Drop for FamilyRegistration<T> {
    fn drop(&mut self) {
        // SAFETY: It is registered.
        unsafe { bindings::sock_unregister(PF_SMC) };
    }
}

impl Tables {
    /// Nothing yet.
    const EMPTY: Self = Self {
        protos: [Zeroed::ZERO, Zeroed::ZERO],
        switches: [const { Zeroed::ZERO }; 4],
        _pin: PhantomPinned,
    };
}

impl<T: SocketOps> SocketTypes<T> {
    /// One kind of sock.
    fn proto(name: &CStr, family: Family) -> bindings::proto {
        let mut proto = bindings::proto {
            owner: module(),
            init: Some(match family {
                Family::V4 => init_callback::<T, false>,
                Family::V6 => init_callback::<T, true>,
            }),
            destroy: Some(destroy_callback::<T>),
            hash: Some(hash_callback),
            unhash: Some(unhash_callback),
            // CAST: The size of a struct.
            obj_size: size_of::<Sock<T>>() as c_uint,
            ipv6_pinfo_offset: match family {
                Family::V4 => 0,
                // CAST: An offset in a struct.
                Family::V6 => offset_of!(Sock<T>, inet6) as c_uint,
            },
            ..Zeroed::ZERO
        };
        for (to, from) in proto.name.iter_mut().zip(name.to_bytes()) {
            *to = *from as c_char;
        }
        proto
    }
}

impl<T: SocketOps> FamilyRegistration<T> {
    /// Registers the socket types with the kernel, and lets the family make sockets.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn offer(&self, names: TypeNames) -> Result<TypesRegistration<T>> {
        let types = self.types;
        let tables = types.tables.get();
        let tables = Tables {
            protos: [
                SocketTypes::<T>::proto(names.v4, Family::V4),
                SocketTypes::<T>::proto(names.v6, Family::V6),
            ],
            switches: [const { Zeroed::ZERO }; 4],
            _pin: PhantomPinned,
        }
        .place(tables);
        let mut steps = TypesRegistration {
            _list: types.list.install(SockList::new()?)?,
            place: types,
            protos: 0,
            switches: 0,
        };
        for proto in tables.protos {
            // SAFETY: The table lives for ever, and is set up and not registered yet.
            to_result(unsafe { bindings::proto_register(proto, 1) })?;
            steps.protos += 1;
        }
        let [v4, v6] = tables.protos;
        let [switch4, switch6, converted4, converted6] = tables.switches;
        // CAST: A small constant.
        let converted = PROTOCOL_CONVERTED as u16;
        for (switch, protocol, proto, ops) in [
            (switch4, IPPROTO_SMC, v4, &Callbacks::<T>::INET),
            (switch6, IPPROTO_SMC, v6, &Callbacks::<T>::INET6),
            (converted4, converted, v4, &Callbacks::<T>::INET),
            (converted6, converted, v6, &Callbacks::<T>::INET6),
        ] {
            let entry = bindings::inet_protosw {
                // CAST: A small constant.
                type_: bindings::sock_type_SOCK_STREAM as u16,
                protocol,
                prot: proto,
                ops,
                ..Zeroed::ZERO
            };
            // SAFETY: The entry is not registered yet: nobody else reads it.
            unsafe { switch.write(entry) };
        }
        for (v4, v6) in [(switch4, switch6), (converted4, converted6)] {
            // SAFETY: The entry lives for ever and is set up.
            unsafe { bindings::inet_register_protosw(v4) };
            steps.switches += 1;
            // SAFETY: As above.
            to_result(unsafe { bindings::inet6_register_protosw(v6) })?;
            steps.switches += 1;
        }
        // What was set up above is seen by whoever sees this.
        types.offered.store(true, Release);
        Ok(steps)
    }
}

/// Pointers to the parts of [`Tables`] in their place.
struct TablePointers {
    /// The kinds of sock.
    protos: [*mut bindings::proto; 2],
    /// The internet families' entries.
    switches: [*mut bindings::inet_protosw; 4],
}

impl Tables {
    /// Writes the tables to their place and says where the parts are.
    fn place(self, place: *mut Self) -> TablePointers {
        // SAFETY: The place is a static that nobody reads before it is registered.
        unsafe { place.write(self) };
        Self::pointers(place)
    }

    /// Where the parts are.
    fn pointers(place: *mut Self) -> TablePointers {
        // SAFETY: The place is a static; only addresses are made.
        let (protos, switches) = unsafe {
            (
                (&raw mut (*place).protos).cast::<bindings::proto>(),
                (&raw mut (*place).switches).cast::<bindings::inet_protosw>(),
            )
        };
        TablePointers {
            protos: [protos, protos.wrapping_add(1)],
            switches: [0, 1, 2, 3].map(|n| switches.wrapping_add(n)),
        }
    }
}

/// Dropping it takes the socket types away. No socket may exist, which the kernel sees to: sockets pin the module.
#[must_use]
pub struct TypesRegistration<T: SocketOps> {
    /// The list of sockets.
    _list: Installed<SockList<T>>,
    /// What is registered.
    place: &'static SocketTypes<T>,
    /// How many kinds of sock.
    protos: u8,
    /// How many entries of the internet families.
    switches: u8,
}

impl<T: SocketOps> Drop for TypesRegistration<T> {
    fn drop(&mut self) {
        let tables = Tables::pointers(self.place.tables.get());
        let [v4, v6] = tables.protos;
        let [switch4, switch6, converted4, converted6] = tables.switches;
        self.place.offered.store(false, Relaxed);
        for (v4, v6, before) in [(converted4, converted6, 2), (switch4, switch6, 0)] {
            if self.switches > before + 1 {
                // SAFETY: It is registered, as the count says.
                unsafe { bindings::inet6_unregister_protosw(v6) };
            }
            if self.switches > before {
                // SAFETY: As above.
                unsafe { bindings::inet_unregister_protosw(v4) };
            }
        }
        if self.protos > 1 {
            // SAFETY: As above.
            unsafe { bindings::proto_unregister(v6) };
        }
        if self.protos > 0 {
            // SAFETY: As above.
            unsafe { bindings::proto_unregister(v4) };
        }
    }
}

/// This module, as the kernel's tables name it.
fn module() -> *mut bindings::module {
    kernel::module::this_module::<crate::LocalModule>()
        .as_ptr()
        .cast()
}
