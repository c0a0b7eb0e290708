// SPDX-License-Identifier: GPL-2.0

//! A look at every socket that a program is about to open, with the right to open one of another protocol.
//!
//! The kernel has a place for this purpose, `update_socket_protocol()`, through which `socket(2)` passes, and
//! `__sys_socket_file()`, through which io_uring does. Entry probes on both change the argument `protocol`. Sockets of
//! the kernel itself pass neither.
//!
//! C header: [`include/linux/kprobes.h`](srctree/include/linux/kprobes.h)

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    ffi::c_int,
    prelude::*,
    types::NotThreadSafe, //
};
use smc_bindings as bindings;

use super::net::NetNs;

/// How long the name of a program is, with the zero at its end.
pub const COMMAND_LEN: usize = 16;

/// The functions that are probed.
const PLACES: [&CStr; 2] = [c"update_socket_protocol", c"__sys_socket_file"];

/// Lowest bits of a socket's type; the others are flags.
const TYPE_MASK: c_int = 0xf;

/// Decides about new sockets.
pub trait Converter: 'static {
    /// The protocol to open the socket with, if another than the program's.
    ///
    /// Called in the program's context with preemption off: it must not sleep nor allocate.
    fn convert(call: &NewSocket) -> Option<i32>;
}

/// A socket that the running program is about to open.
pub struct NewSocket {
    /// Address family.
    family: c_int,
    /// Type and flags.
    kind: c_int,
    /// Protocol.
    protocol: c_int,
    /// What is asked of the program concerns the running one.
    _here: NotThreadSafe,
}

impl NewSocket {
    /// Whether it is a stream socket of IPv4 or IPv6.
    pub fn is_inet_stream(&self) -> bool {
        // CAST: Small constants.
        let inet =
            self.family == bindings::AF_INET as c_int || self.family == bindings::AF_INET6 as c_int;
        inet && self.kind & TYPE_MASK == bindings::sock_type_SOCK_STREAM as c_int
    }

    /// The protocol that the program named.
    pub fn protocol(&self) -> i32 {
        self.protocol
    }

    /// The network namespace that the socket will be of; nothing for a thread of the kernel.
    pub fn net(&self) -> Option<&NetNs> {
        // SAFETY: The running task may always look at its own namespaces.
        let net = NonNull::new(unsafe { bindings::current_net() })?;
        // SAFETY: The task holds the namespace; only the task itself can give it up, and it is busy here.
        Some(unsafe { NetNs::from_raw(net.as_ptr()) })
    }

    /// Whether the program has given up the way to more rights (`PR_SET_NO_NEW_PRIVS`).
    pub fn has_no_new_privs(&self) -> bool {
        // SAFETY: The running task may always be looked at.
        unsafe { bindings::current_no_new_privs() }
    }

    /// The name of the program's first thread, as in `/proc/PID/comm`, padded with zeroes.
    pub fn command(&self) -> [u8; COMMAND_LEN] {
        let mut name = [0; COMMAND_LEN];
        // SAFETY: The array has the length that the function writes.
        unsafe { bindings::current_command(name.as_mut_ptr().cast()) };
        let end = name.iter().position(|c| *c == 0).unwrap_or(COMMAND_LEN);
        for rest in name.iter_mut().skip(end) {
            *rest = 0;
        }
        name
    }

    /// Whether the program is in the control group with this number, or in one below it.
    pub fn in_cgroup(&self, id: u64) -> bool {
        // SAFETY: The running task may always be looked at.
        unsafe { bindings::current_in_cgroup(id) }
    }
}

/// An entry probe.
///
/// # Invariants
///
/// The pointer came from a `KBox` that nobody else owns, and is registered.
struct Probe(NonNull<bindings::kprobe>);

// SAFETY: The object is only dropped, by any one task.
unsafe impl Send for Probe {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Probe {}

/// What is called at the entry of a probed function.
type Handler = unsafe extern "C" fn(*mut bindings::kprobe, *mut bindings::pt_regs) -> c_int;

impl Probe {
    /// Puts a probe on the function `place`.
    fn register(place: &'static CStr, handler: Handler) -> Result<Self> {
        let mut probe = KBox::new(bindings::kprobe::default(), GFP_KERNEL)?;
        probe.symbol_name = place.as_char_ptr();
        probe.pre_handler = Some(handler);
        let probe = NonNull::from(KBox::leak(probe));
        // SAFETY: The object lives until it is unregistered in drop, and the handler suits the kind of probe.
        let outcome = to_result(unsafe { bindings::probe_register(probe.as_ptr()) });
        if let Err(err) = outcome {
            // SAFETY: The pointer came from the box above, and the kernel did not take it.
            drop(unsafe { KBox::from_raw(probe.as_ptr()) });
            return Err(err);
        }
        // INVARIANT: It is registered, and the box was given up.
        Ok(Self(probe))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is registered. The call waits until no handler runs any more.
        unsafe { bindings::probe_unregister(self.0.as_ptr()) };
        // SAFETY: By the type invariant the pointer came from a box, and nobody knows it any more.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}

/// The probes; dropping it takes them away and waits for those who are in them. May sleep.
#[must_use]
pub struct SocketProbes<C: Converter> {
    /// The probes.
    _probes: [Probe; 2],
    /// Who decides.
    _converter: PhantomData<fn() -> C>,
}

impl<C: Converter> SocketProbes<C> {
    /// Begins to ask `C` about each socket that a program opens.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` where this kernel or this machine has no probes, or they are switched off; `ENOMEM`.
    pub fn register() -> Result<Self> {
        // SAFETY: The function has no requirements.
        if !unsafe { bindings::probes_supported() } || !probes_work()? {
            return Err(EOPNOTSUPP);
        }
        let [socket, ring] = PLACES;
        let place = |name| Probe::register(name, entry::<C>).map_err(unsupported);
        Ok(Self {
            _probes: [place(socket)?, place(ring)?],
            _converter: PhantomData,
        })
    }
}

/// Why there is no probe, as the caller is told.
fn unsupported(err: Error) -> Error {
    if err == ENOMEM {
        ENOMEM
    } else {
        EOPNOTSUPP
    }
}

/// Tries a probe on a function of the module's own: probes can be registered and yet be switched off.
fn probes_work() -> Result<bool> {
    let Ok(probe) = Probe::register(c"smc_helper_probe_target", trial) else {
        return Ok(false);
    };
    // SAFETY: The function has no requirements.
    let answer = unsafe { bindings::probe_target(1, 2, 3) };
    drop(probe);
    Ok(answer == 123)
}

/// Handler of the trial: tells what it saw in the argument that is given back.
///
/// # Safety
///
/// Called by the kernel with valid registers.
unsafe extern "C" fn trial(_: *mut bindings::kprobe, regs: *mut bindings::pt_regs) -> c_int {
    // SAFETY: The kernel hands over the registers.
    let (one, two, three) = unsafe { arguments(regs) };
    let seen = one
        .wrapping_mul(100)
        .wrapping_add(two.wrapping_mul(10))
        .wrapping_add(three);
    // SAFETY: As above.
    unsafe { bindings::regs_set_third(regs, seen) };
    0
}

/// Handler of the probes.
///
/// # Safety
///
/// Called by the kernel with valid registers, in the context of the task that opens a socket.
unsafe extern "C" fn entry<C: Converter>(
    _: *mut bindings::kprobe,
    regs: *mut bindings::pt_regs,
) -> c_int {
    // SAFETY: The function has no requirements.
    if !unsafe { bindings::this_module_stays() } {
        return 0;
    }
    // SAFETY: The kernel hands over the registers.
    let (family, kind, protocol) = unsafe { arguments(regs) };
    let call = NewSocket {
        family,
        kind,
        protocol,
        _here: NotThreadSafe,
    };
    if let Some(protocol) = C::convert(&call) {
        // SAFETY: The kernel hands over the registers, which are this call's to change.
        unsafe { bindings::regs_set_third(regs, protocol) };
    }
    0
}

/// The arguments of the probed function.
///
/// # Safety
///
/// `regs` must be the registers at the entry of a function of three integers.
unsafe fn arguments(regs: *const bindings::pt_regs) -> (c_int, c_int, c_int) {
    // SAFETY: The caller vouches for the registers.
    unsafe {
        (
            bindings::regs_first(regs),
            bindings::regs_second(regs),
            bindings::regs_third(regs),
        )
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_probe)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_changes_the_third_argument_while_it_is_there() -> Result {
        assert!(probes_work()?);
        // SAFETY: The function has no requirements.
        assert_eq!(unsafe { bindings::probe_target(1, 2, 3) }, 3);
        Ok(())
    }
}
