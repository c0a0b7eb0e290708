// SPDX-License-Identifier: GPL-2.0

//! From an IP address to the interface and to the Ethernet address of the next hop.
//!
//! C header: [`include/rdma/ib_addr.h`](srctree/include/rdma/ib_addr.h)

use core::{
    net::{
        IpAddr,
        Ipv6Addr,
        SocketAddr, //
    },
    ptr, //
};

use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    types::Opaque, //
};
use smc_bindings as bindings;

use super::AsNet;
use crate::kapi::event::Event;

/// The address family of IPv4.
const AF_INET: u16 = 2;

/// The address family of IPv6.
const AF_INET6: u16 = 10;

/// How long the first attempt waits for the next hop, each further one twice as long.
const FIRST_STEP_MS: u32 = 20;

/// The addresses of the two ends of a connection, both of IPv4 or both of IPv6.
///
/// # Invariants
///
/// Neither is one of IPv4 mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Ours.
    local: IpAddr,
    /// The peer's.
    peer: IpAddr,
    /// The number of the interface that the addresses belong to, for those that each link has of its own.
    via: Option<i32>,
}

impl Ends {
    /// Those of two sockets; nothing if one is of IPv4 and the other is not.
    pub fn new(local: &SocketAddr, peer: &SocketAddr) -> Option<Self> {
        let scope = match peer {
            SocketAddr::V6(peer) => i32::try_from(peer.scope_id()).ok(),
            SocketAddr::V4(_) => None,
        };
        let (local, peer) = (local.ip().to_canonical(), peer.ip().to_canonical());
        // INVARIANT: Both are canonical.
        (local.is_ipv4() == peer.is_ipv4()).then_some(Self {
            local,
            peer,
            via: scope.filter(|scope| *scope > 0),
        })
    }

    /// Those of two GIDs, by way of the interface `via`; nothing if one is of IPv4 and the other is not.
    pub fn of_gids(local: [u8; 16], peer: [u8; 16], via: Option<i32>) -> Option<Self> {
        let (local, peer) = (ip_of(local), ip_of(peer));
        // INVARIANT: Both are canonical.
        (local.is_ipv4() == peer.is_ipv4()).then_some(Self { local, peer, via })
    }

    /// Our address.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// The number of the interface that the addresses belong to, if they are of one link alone.
    pub fn via(&self) -> Option<i32> {
        self.via
    }
}

/// The address that a GID stands for.
pub fn ip_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The GID that stands for an address.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// An address of IPv6 as C wants it.
pub(super) fn in6_addr(ip: Ipv6Addr) -> bindings::in6_addr {
    let mut addr = bindings::in6_addr::default();
    addr.in6_u.u6_addr8 = ip.octets();
    addr
}

/// How a peer is reached.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Ethernet address of the next hop: the peer's own if it is on the same network.
    pub next_hop: [u8; 6],
    /// Ethernet address of the interface on which the way begins.
    pub source: [u8; 6],
    /// Whether a router lies between.
    pub gateway: bool,
}

/// Room for the name of an interface, padded with zeroes.
pub type InterfaceName = [u8; 16];

/// A network interface by which a connection goes.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// Its name.
    pub name: InterfaceName,
    /// Name of the lowest one below it.
    pub base: InterfaceName,
    /// VLAN id of the connection's frames; `0xffff` for none.
    pub vlan: u16,
}

/// By which interface packets between the two ends leave `net`; nothing without a route. What stays on this machine goes
/// by the interface that has the address.
pub fn interface(net: &impl AsNet, ends: &Ends) -> Option<Interface> {
    let (mut name, mut base, mut vlan) = ([0; 16], [0; 16], 0xffff);
    let (to_name, to_base) = (name.as_mut_ptr().cast(), base.as_mut_ptr().cast());
    let net = net.as_net().as_ptr();
    let found = match (ends.local, ends.peer) {
        (IpAddr::V4(local), IpAddr::V4(peer)) => {
            let [local, peer] = [local, peer].map(|ip| u32::from_ne_bytes(ip.octets()));
            // SAFETY: The namespace is valid for this call by the contract of `AsNet`, each array has room for a name,
            // and the number is valid for the call.
            unsafe { bindings::route_names(net, local, peer, to_name, to_base, &mut vlan) }
        }
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            let (via, local, peer) = (ends.via.unwrap_or(0), in6_addr(local), in6_addr(peer));
            // SAFETY: As above; the two addresses are valid for the call.
            unsafe { bindings::route_names6(net, via, &local, &peer, to_name, to_base, &mut vlan) }
        }
        _ => false,
    };
    found.then_some(Interface { name, base, vlan })
}

/// Most subnets of an interface that are looked at.
const MAX_SUBNETS: usize = 16;

/// The subnets of the interface by which packets between the two ends leave `net`, each by an address in it and the
/// length of its prefix: those of IPv4, first the one of our address, or those of IPv6, as the ends are. None without a
/// route.
pub fn subnets(net: &impl AsNet, ends: &Ends) -> impl Iterator<Item = (IpAddr, u8)> {
    let net = net.as_net().as_ptr();
    let mut found: [Option<(IpAddr, u8)>; MAX_SUBNETS] = [None; MAX_SUBNETS];
    let most = i32::try_from(MAX_SUBNETS).unwrap_or(0);
    let mut lens = [0u8; MAX_SUBNETS];
    match (ends.local, ends.peer) {
        (IpAddr::V4(local), IpAddr::V4(peer)) => {
            let [local, peer] = [local, peer].map(|ip| u32::from_ne_bytes(ip.octets()));
            let mut addrs = [0u32; MAX_SUBNETS];
            // SAFETY: The namespace is valid for this call by the contract of `AsNet`, and both arrays have room for so
            // many.
            let count = unsafe {
                bindings::route_subnets(
                    net,
                    local,
                    peer,
                    addrs.as_mut_ptr(),
                    lens.as_mut_ptr(),
                    most,
                )
            };
            let some = usize::try_from(count).unwrap_or(0);
            for ((place, addr), len) in found.iter_mut().zip(addrs).zip(lens).take(some) {
                *place = Some((addr.to_ne_bytes().into(), len));
            }
        }
        (IpAddr::V6(local), IpAddr::V6(peer)) => {
            let (via, local, peer) = (ends.via.unwrap_or(0), in6_addr(local), in6_addr(peer));
            let mut addrs = [bindings::in6_addr::default(); MAX_SUBNETS];
            // SAFETY: As above; the two addresses are valid for the call.
            let count = unsafe {
                bindings::route_subnets6(
                    net,
                    via,
                    &local,
                    &peer,
                    addrs.as_mut_ptr(),
                    lens.as_mut_ptr(),
                    most,
                )
            };
            let some = usize::try_from(count).unwrap_or(0);
            for ((place, addr), len) in found.iter_mut().zip(addrs).zip(lens).take(some) {
                // SAFETY: Every member of the union is plain bytes.
                let bytes = unsafe { addr.in6_u.u6_addr8 };
                *place = Some((bytes.into(), len));
            }
        }
        _ => {}
    }
    found.into_iter().flatten()
}

/// What a resolution writes to while it runs.
#[pin_data]
struct Request {
    /// In and out of the RDMA core.
    #[pin]
    addr: Opaque<bindings::rdma_dev_addr>,
    /// Result of the resolution, valid once `done` has happened.
    status: Atomic<i32>,
    /// The callback has been called.
    #[pin]
    done: Event,
}

impl Request {
    /// The resolution has ended.
    ///
    /// # Safety
    ///
    /// Called by the RDMA core with the context that [`resolve`] passed, which lives until after this call.
    unsafe extern "C" fn finished(
        status: i32,
        _src: *mut bindings::sockaddr,
        _addr: *mut bindings::rdma_dev_addr,
        context: *mut c_void,
    ) {
        // SAFETY: `context` is the request of `resolve`, which waits for this callback before it frees it.
        let request = unsafe { &*context.cast::<Request>() };
        request.status.store(status, Release);
        request.done.set();
    }
}

/// A socket address as C wants it.
enum CAddr {
    /// That of IPv4.
    V4(bindings::sockaddr_in),
    /// That of IPv6.
    V6(bindings::sockaddr_in6),
}

impl CAddr {
    /// That of an address on the interface `scope`.
    fn new(ip: IpAddr, scope: Option<i32>) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::V4(bindings::sockaddr_in {
                sin_family: AF_INET,
                sin_addr: bindings::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ..Default::default()
            }),
            IpAddr::V6(ip) => Self::V6(bindings::sockaddr_in6 {
                sin6_family: AF_INET6,
                sin6_addr: in6_addr(ip),
                sin6_scope_id: scope.map_or(0, i32::unsigned_abs),
                ..Default::default()
            }),
        }
    }

    /// For C, which takes no more of it than its family has.
    fn as_mut_ptr(&mut self) -> *mut bindings::sockaddr {
        match self {
            Self::V4(addr) => (&raw mut *addr).cast(),
            Self::V6(addr) => (&raw mut *addr).cast(),
        }
    }
}

/// Looks up the route between the two ends in `net` and resolves the Ethernet address of its next hop.
///
/// If the ends say by which interface the way begins there, as if the peer were on its network if no route says
/// otherwise. May sleep, for at most `timeout_ms`.
///
/// # Errors
///
/// `ENETUNREACH`, `EHOSTUNREACH` and the like without a route; `ETIMEDOUT` when the next hop does not answer.
pub fn resolve(net: &impl AsNet, ends: &Ends, timeout_ms: u32) -> Result<Route> {
    let mut left = timeout_ms;
    let mut step = FIRST_STEP_MS;
    loop {
        // The RDMA core asks for the address, and does not notice an answer that comes before it waits for one.
        let now = left.min(step);
        match resolve_once(net, ends, now) {
            Err(e) if e == ETIMEDOUT && left > now => {}
            result => return result,
        }
        left = left.saturating_sub(now);
        step = step.saturating_mul(2);
    }
}

/// One attempt of [`resolve`].
fn resolve_once(net: &impl AsNet, ends: &Ends, timeout_ms: u32) -> Result<Route> {
    let addr = bindings::rdma_dev_addr {
        net: net.as_net().as_ptr(),
        bound_dev_if: ends.via.unwrap_or(0),
        ..Default::default()
    };
    let request = KBox::pin_init(
        pin_init!(Request {
            addr: Opaque::new(addr),
            status: Atomic::new(0),
            done <- Event::new(),
        }),
        GFP_KERNEL,
    )?;
    let mut src = CAddr::new(ends.local, ends.via);
    let mut dst = CAddr::new(ends.peer, ends.via);
    let context: *const Request = &*request;
    // SAFETY: Both socket addresses are copied during the call. The request stays valid until its callback has been
    // called, which is awaited below, and the namespace is valid for this call by the contract of `AsNet`.
    let ret = unsafe {
        bindings::rdma_resolve_ip(
            src.as_mut_ptr(),
            dst.as_mut_ptr(),
            request.addr.get(),
            usize::try_from(timeout_ms)?,
            Some(Request::finished),
            false,
            context.cast_mut().cast(),
        )
    };
    to_result(ret)?;
    // The core calls back at its own time-out; waiting a little longer than that is a last resort.
    request.done.wait_ms(timeout_ms.saturating_add(1000));
    // SAFETY: The address is that of the resolution. Afterwards the core does not use the request any more, whether its
    // callback has been called or not.
    unsafe { bindings::rdma_addr_cancel(request.addr.get()) };
    if !request.done.is_set() {
        return Err(ETIMEDOUT);
    }
    to_result(request.status.load(Acquire))?;
    // SAFETY: The resolution has ended, so that nobody writes the address any more.
    let resolved = unsafe { ptr::read(request.addr.get()) };
    let [a, b, c, d, e, f, ..] = resolved.dst_dev_addr;
    let [s, t, u, v, w, x, ..] = resolved.src_dev_addr;
    Ok(Route {
        next_hop: [a, b, c, d, e, f],
        source: [s, t, u, v, w, x],
        gateway: matches!(
            resolved.network,
            bindings::rdma_network_type_RDMA_NETWORK_IPV4
                | bindings::rdma_network_type_RDMA_NETWORK_IPV6
        ),
    })
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_route)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_have_room() {
        assert_eq!(
            u32::try_from(size_of::<InterfaceName>()),
            Ok(bindings::IFNAMSIZ)
        );
    }

    #[test]
    fn addresses_are_as_c_wants_them() {
        assert_eq!(u32::from(AF_INET), bindings::AF_INET);
        assert_eq!(u32::from(AF_INET6), bindings::AF_INET6);
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);
        for addr in [IpAddr::from([10, 1, 2, 3]), IpAddr::V6(ip)] {
            match CAddr::new(addr, Some(7)) {
                CAddr::V4(v4) => {
                    assert_eq!((v4.sin_family, addr.is_ipv4()), (AF_INET, true));
                    assert_eq!(v4.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
                }
                CAddr::V6(v6) => {
                    assert_eq!((v6.sin6_family, v6.sin6_scope_id), (AF_INET6, 7));
                    // SAFETY: Every member of the union is plain bytes.
                    assert_eq!(unsafe { v6.sin6_addr.in6_u.u6_addr8 }, ip.octets());
                }
            }
        }
    }

    #[test]
    fn ends_are_of_one_family() {
        let v4 = SocketAddr::from(([10, 1, 2, 3], 80));
        let mapped = SocketAddr::new(
            IpAddr::V6(core::net::Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped()),
            80,
        );
        let near = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let v6 = SocketAddr::V6(core::net::SocketAddrV6::new(near, 80, 0, 7));
        assert_eq!(Ends::new(&v4, &mapped), Ends::new(&v4, &v4));
        assert_eq!(Ends::new(&v4, &v4).map(|ends| ends.via()), Some(None));
        assert_eq!(Ends::new(&v4, &v6), None);
        assert_eq!(Ends::new(&v6, &v6).map(|ends| ends.via()), Some(Some(7)));
        assert_eq!(gid_of(ip_of(near.octets())), near.octets());
        assert_eq!(gid_of(v4.ip()), gid_of(mapped.ip().to_canonical()));
    }
}
