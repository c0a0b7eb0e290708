// SPDX-License-Identifier: GPL-2.0

//! Whether two hosts are on the same network, which version 1 asks for: its packets pass no router (RFC 7609, section
//! 3.5.1.2).
//!
//! The client lists the subnets of the network interface by which the TCP connection goes; the server compares them with
//! those of its own.

use core::net::{
    IpAddr,
    Ipv4Addr,
    Ipv6Addr, //
};

use super::{
    proposal::{
        PrefixArea,
        ProposalV1, //
    },
    MAX_PREFIXES, //
};
use crate::proto::ids::{
    Gid,
    Mac, //
};
use crate::proto::reason::DeclineReason;

/// A subnet of a network interface.
///
/// # Invariants
///
/// The length is from 1 to 32 or 128, and the bits behind it are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Its first address.
    network: IpAddr,
    /// Length of its prefix.
    len: u8,
}

impl Subnet {
    /// The subnet of an address; nothing for a length that no subnet has, and for all of the world.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let len_bits = u32::from(len);
        if len == 0 {
            return None;
        }
        // INVARIANT: A length beyond the address gives no mask.
        let network = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(u32::BITS.checked_sub(len_bits)?)?;
                Ipv4Addr::from_bits(ip.to_bits() & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(u128::BITS.checked_sub(len_bits)?)?;
                Ipv6Addr::from_bits(ip.to_bits() & mask).into()
            }
        };
        Some(Self { network, len })
    }

    /// Whether an address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::new(address, self.len) == Some(*self)
    }

    /// The prefix as a Proposal lists it; nothing for a subnet of IPv4, and none that every link has.
    fn listed(&self) -> Option<([u8; 16], u8)> {
        match self.network {
            IpAddr::V6(ip) if !ip.is_unicast_link_local() => Some((ip.octets(), self.len)),
            _ => None,
        }
    }
}

/// What a client says of its subnets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedSubnets {
    /// The subnet of our address and the length of its prefix; zero over IPv6.
    v4: ([u8; 4], u8),
    /// The prefixes of IPv6.
    v6: [([u8; 16], u8); MAX_PREFIXES],
    /// How many there are.
    v6_count: usize,
}

impl OfferedSubnets {
    /// What a client with the address `local` says, whose interface has these subnets: of IPv4 the one that contains the
    /// address; of IPv6 all, up to 8, that are more than their link.
    ///
    /// Nothing when there is none: then version 1 cannot be offered.
    pub fn new(local: IpAddr, ours: impl Iterator<Item = Subnet>) -> Option<Self> {
        let mut this = Self {
            v4: ([0; 4], 0),
            v6: [([0; 16], 0); MAX_PREFIXES],
            v6_count: 0,
        };
        if local.is_ipv4() {
            let mut ours = ours;
            let own = ours.find(|subnet| subnet.contains(local))?;
            if let IpAddr::V4(network) = own.network {
                this.v4 = (network.octets(), own.len);
            }
            return Some(this);
        }
        for (place, prefix) in this
            .v6
            .iter_mut()
            .zip(ours.filter_map(|subnet| subnet.listed()))
        {
            *place = prefix;
            this.v6_count = this.v6_count.saturating_add(1);
        }
        (this.v6_count > 0).then_some(this)
    }

    /// The version 1 part of a Proposal with these subnets, and our GID and MAC.
    pub fn proposal(&self, gid: Gid, mac: Mac) -> ProposalV1<'_> {
        let (v4_network, v4_len) = self.v4;
        ProposalV1 {
            gid,
            mac,
            v4_network,
            v4_len,
            v6: self.v6.get(..self.v6_count).unwrap_or(&[]),
        }
    }
}

impl PrefixArea<'_> {
    /// Whether one of the server's subnets is among the client's.
    fn shares(&self, ours: Subnet) -> bool {
        match ours.network {
            // A peer's field may have bits behind the prefix: the RFC calls it a mask in one place (appendix A.2.2).
            IpAddr::V4(_) => Subnet::new(self.v4_network.into(), self.v4_len) == Some(ours),
            IpAddr::V6(_) => self
                .v6
                .iter()
                .any(|(prefix, len)| Subnet::new(prefix.into(), len) == Some(ours)),
        }
    }

    /// Judges a client's subnets; `local` is the server's address of the connection, and `ours` are the subnets of the
    /// interface by which it goes. Only those of the address's own kind count.
    ///
    /// # Errors
    ///
    /// [`DeclineReason::DIFFPREFIX`] when there is none in common.
    pub fn check(
        &self,
        local: IpAddr,
        ours: impl Iterator<Item = Subnet>,
    ) -> Result<(), DeclineReason> {
        let mut ours = ours.filter(|o| o.network.is_ipv4() == local.is_ipv4());
        if ours.any(|o| self.shares(o)) {
            Ok(())
        } else {
            Err(DeclineReason::DIFFPREFIX)
        }
    }
}
