// SPDX-License-Identifier: GPL-2.0

//! Why a connection does not use SMC-R: the diagnosis codes of the CLC Decline message.
//!
//! The same numbers are shown by `smcss`, counted in the fallback statistics and given to the
//! tracepoint, so one type carries them from the place of refusal to all of these.

/// A diagnosis code; codes of other implementations are kept as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeclineReason(u32);

impl DeclineReason {
    /// Memory allocation failed.
    pub const MEM: Self = Self(0x0101_0000);
    /// No CONFIRM LINK message in time.
    pub const TIMEOUT_CL: Self = Self(0x0201_0000);
    /// No ADD LINK message in time.
    pub const TIMEOUT_AL: Self = Self(0x0202_0000);
    /// Configuration error.
    pub const CNFERR: Self = Self(0x0300_0000);
    /// The peer did not offer SMC.
    pub const PEERNOSMC: Self = Self(0x0301_0000);
    /// An IPsec policy covers the connection (RFC 7609, section 5.5).
    pub const IPSEC: Self = Self(0x0302_0000);
    /// No SMC device is usable.
    pub const NOSMCDEV: Self = Self(0x0303_0000);
    /// No SMC-D device is usable.
    pub const NOSMCDDEV: Self = Self(0x0303_0001);
    /// No SMC-R device is usable.
    pub const NOSMCRDEV: Self = Self(0x0303_0002);
    /// The hardware has no ISMv2.
    pub const NOISM2SUPP: Self = Self(0x0303_0003);
    /// The proposal lacks its v2 extension.
    pub const NOV2EXT: Self = Self(0x0303_0004);
    /// The proposal lacks its SMC-Dv2 extension.
    pub const NOV2DEXT: Self = Self(0x0303_0005);
    /// No common system enterprise id.
    pub const NOSEID: Self = Self(0x0303_0006);
    /// No SMC-Dv2 device is usable.
    pub const NOSMCD2DEV: Self = Self(0x0303_0007);
    /// No common user enterprise id.
    pub const NOUEID: Self = Self(0x0303_0008);
    /// The negotiated release differs.
    pub const RELEASEERR: Self = Self(0x0303_0009);
    /// The connection limit is out of range or differs.
    pub const MAXCONNERR: Self = Self(0x0303_000a);
    /// The link limit is out of range or differs.
    pub const MAXLINKERR: Self = Self(0x0303_000b);
    /// The mode is not supported.
    pub const MODEUNSUPP: Self = Self(0x0304_0000);
    /// The peer uses eyecatchers in its buffers.
    pub const RMBE_EC: Self = Self(0x0305_0000);
    /// A socket option is not supported with SMC.
    pub const OPTUNSUPP: Self = Self(0x0306_0000);
    /// The peers are in different subnets.
    pub const DIFFPREFIX: Self = Self(0x0307_0000);
    /// The VLAN id could not be determined.
    pub const GETVLANERR: Self = Self(0x0308_0000);
    /// The VLAN id was refused by the ISM device.
    pub const ISMVLANERR: Self = Self(0x0309_0000);
    /// No active link in the link group.
    pub const NOACTLINK: Self = Self(0x030a_0000);
    /// The server's link was not found.
    pub const NOSRVLINK: Self = Self(0x030b_0000);
    /// The SMC version differs.
    pub const VERSMISMAT: Self = Self(0x030c_0000);
    /// Too many SMC-D buffers.
    pub const MAX_DMB: Self = Self(0x030d_0000);
    /// No route to the peer for RoCEv2.
    pub const NOROUTE: Self = Self(0x030e_0000);
    /// One side routes directly, the other does not.
    pub const NOINDIRECT: Self = Self(0x030f_0000);
    /// The operator excludes the port. Never on the wire: no handshake takes place.
    pub const NOTWANTED: Self = Self(0x03f0_0000);
    /// The link group views differ.
    pub const SYNCERR: Self = Self(0x0400_0000);
    /// The peer declined.
    pub const PEERDECL: Self = Self(0x0500_0000);
    /// Internal error.
    pub const INTERR: Self = Self(0x0999_0000);
    /// The remote key could not be stored.
    pub const ERR_RTOK: Self = Self(0x0999_0001);
    /// The link could not be made ready.
    pub const ERR_RDYLNK: Self = Self(0x0999_0002);
    /// A buffer could not be registered.
    pub const ERR_REGBUF: Self = Self(0x0999_0003);

    /// Takes a code from the wire; unknown ones are kept.
    pub const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// The code as it stands on the wire, in host order.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// A short symbolic name; `UNKNOWN` for a code of another implementation.
    pub fn name(self) -> &'static str {
        self.entry().map_or("UNKNOWN", |e| e.1)
    }

    /// What it means, as a phrase.
    pub fn describe(self) -> &'static str {
        self.entry().map_or("unknown reason", |e| e.2)
    }

    /// What an operator may do about it, as a phrase.
    pub fn remedy(self) -> &'static str {
        let unknown = "look at both hosts' kernel logs";
        self.entry().map_or(unknown, |e| e.3)
    }

    /// Whether the next attempt may well succeed: what was missing was missing for the moment.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            Self::MEM
                | Self::TIMEOUT_CL
                | Self::TIMEOUT_AL
                | Self::NOACTLINK
                | Self::NOSRVLINK
                | Self::SYNCERR
                | Self::INTERR
                | Self::ERR_RTOK
                | Self::ERR_RDYLNK
                | Self::ERR_REGBUF
        )
    }

    /// All codes with a name, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|e| e.0)
    }

    /// The row of the table below.
    fn entry(self) -> Option<&'static (Self, &'static str, &'static str, &'static str)> {
        TABLE.iter().find(|e| e.0 == self)
    }
}

/// Code, name, what it means and what an operator may do. `scripts/reasons` writes from this what the tools, the
/// selftests and the README know of it.
const TABLE: &[(DeclineReason, &str, &str, &str)] = &[
    (
        DeclineReason::MEM,
        "MEM",
        "out of memory",
        "free memory, or make net.smc.wmem and net.smc.rmem smaller",
    ),
    (
        DeclineReason::TIMEOUT_CL,
        "TIMEOUT_CL",
        "the first message over RDMA did not come through",
        "let UDP port 4791 through all firewalls on the way, and compare the MTU of both interfaces",
    ),
    (
        DeclineReason::TIMEOUT_AL,
        "TIMEOUT_AL",
        "the peer's second link did not come in time",
        "look at the second RDMA device of both hosts",
    ),
    (
        DeclineReason::CNFERR,
        "CNFERR",
        "the two ends are configured in different ways",
        "compare version and settings of both hosts",
    ),
    (
        DeclineReason::PEERNOSMC,
        "PEERNOSMC",
        "the other side did not answer the SMC option",
        "load the module there, and let the program there use SMC; a middlebox or SYN cookies can strip the option",
    ),
    (
        DeclineReason::IPSEC,
        "IPSEC",
        "an IPsec policy covers the connection",
        "nothing: what it protects must not go round it by RDMA (ip xfrm policy)",
    ),
    (
        DeclineReason::NOSMCDEV,
        "NOSMCDEV",
        "no usable SMC device on this side",
        "see NOSMCRDEV",
    ),
    (
        DeclineReason::NOSMCDDEV,
        "NOSMCDDEV",
        "no usable SMC-D device on this side",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOSMCRDEV,
        "NOSMCRDEV",
        "no usable RDMA device on this side",
        "give the interface of the route an RDMA device (rdma link) of the same physical network (smc_pnet)",
    ),
    (
        DeclineReason::NOISM2SUPP,
        "NOISM2SUPP",
        "the hardware lacks version 2 of SMC-D",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOV2EXT,
        "NOV2EXT",
        "the peer's offer lacks version 2",
        "configure the peer for SMC version 2",
    ),
    (
        DeclineReason::NOV2DEXT,
        "NOV2DEXT",
        "the peer's offer lacks version 2 of SMC-D",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOSEID,
        "NOSEID",
        "no system enterprise id in common",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOSMCD2DEV,
        "NOSMCD2DEV",
        "no usable device for version 2 of SMC-D",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOUEID,
        "NOUEID",
        "no enterprise id in common",
        "add one id on both hosts (smcr ueid add)",
    ),
    (
        DeclineReason::RELEASEERR,
        "RELEASEERR",
        "the peer confirmed another release than was agreed",
        "look at the version of the peer's SMC",
    ),
    (
        DeclineReason::MAXCONNERR,
        "MAXCONNERR",
        "no agreement on the number of connections",
        "look at the version of the peer's SMC",
    ),
    (
        DeclineReason::MAXLINKERR,
        "MAXLINKERR",
        "no agreement on the number of links",
        "look at the version of the peer's SMC",
    ),
    (
        DeclineReason::MODEUNSUPP,
        "MODEUNSUPP",
        "the peer wants a mode that is not supported",
        "configure the peer for SMC-R version 2",
    ),
    (
        DeclineReason::RMBE_EC,
        "RMBE_EC",
        "the peer wants eyecatchers in its buffers",
        "configure the peer without them",
    ),
    (
        DeclineReason::OPTUNSUPP,
        "OPTUNSUPP",
        "Fast Open was asked for",
        "switch TCP Fast Open off in the program",
    ),
    (
        DeclineReason::DIFFPREFIX,
        "DIFFPREFIX",
        "the two hosts are in different subnets",
        "compare netmasks, or use SMC version 2 on both",
    ),
    (
        DeclineReason::GETVLANERR,
        "GETVLANERR",
        "the VLAN could not be determined",
        "look at the interface of the route",
    ),
    (
        DeclineReason::ISMVLANERR,
        "ISMVLANERR",
        "the SMC-D device refused the VLAN",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOACTLINK,
        "NOACTLINK",
        "no link of the link group works",
        "look at the state of the RDMA devices of both hosts (rdma link)",
    ),
    (
        DeclineReason::NOSRVLINK,
        "NOSRVLINK",
        "the link that the server named is not known",
        "look at both hosts' kernel logs",
    ),
    (
        DeclineReason::VERSMISMAT,
        "VERSMISMAT",
        "the two hosts have no version of SMC in common",
        "use SMC version 2 on both (an enterprise id), or RoCE v1",
    ),
    (
        DeclineReason::MAX_DMB,
        "MAX_DMB",
        "the SMC-D device has no buffers left",
        "nothing: this is SMC-R",
    ),
    (
        DeclineReason::NOROUTE,
        "NOROUTE",
        "no route for RDMA to the peer's device",
        "look at the route and the neighbour entry of the peer",
    ),
    (
        DeclineReason::NOINDIRECT,
        "NOINDIRECT",
        "one side reaches the other through a gateway, the other directly",
        "compare netmasks and routes of both hosts",
    ),
    (
        DeclineReason::NOTWANTED,
        "NOTWANTED",
        "net.smc.tcp2smc_allow or _deny excludes the port",
        "change the lists, if that is not meant",
    ),
    (
        DeclineReason::SYNCERR,
        "SYNCERR",
        "the two ends differ about their link groups",
        "nothing, if it passes; else look at both hosts' kernel logs",
    ),
    (
        DeclineReason::PEERDECL,
        "PEERDECL",
        "the peer declined",
        "see the peer's diagnosis, its log and smc-doctor there",
    ),
    (
        DeclineReason::INTERR,
        "INTERR",
        "internal error",
        "look at both hosts' kernel logs",
    ),
    (
        DeclineReason::ERR_RTOK,
        "ERR_RTOK",
        "the peer's memory key could not be stored",
        "look at both hosts' kernel logs",
    ),
    (
        DeclineReason::ERR_RDYLNK,
        "ERR_RDYLNK",
        "the link could not be made ready",
        "look at the RDMA devices of both hosts (rdma link) and the way between them",
    ),
    (
        DeclineReason::ERR_REGBUF,
        "ERR_REGBUF",
        "a buffer could not be registered",
        "look at the limits of the RDMA device, and free memory",
    ),
];
