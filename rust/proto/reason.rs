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

    /// One phrase for a log line.
    pub fn describe(self) -> &'static str {
        self.entry().map_or("unknown reason", |e| e.2)
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
    fn entry(self) -> Option<&'static (Self, &'static str, &'static str)> {
        TABLE.iter().find(|e| e.0 == self)
    }
}

/// Code, name and phrase of every reason known here.
const TABLE: &[(DeclineReason, &str, &str)] = &[
    (DeclineReason::MEM, "MEM", "memory allocation failed"),
    (
        DeclineReason::TIMEOUT_CL,
        "TIMEOUT_CL",
        "no CONFIRM LINK message in time",
    ),
    (
        DeclineReason::TIMEOUT_AL,
        "TIMEOUT_AL",
        "no ADD LINK message in time",
    ),
    (DeclineReason::CNFERR, "CNFERR", "configuration error"),
    (
        DeclineReason::PEERNOSMC,
        "PEERNOSMC",
        "the peer did not offer SMC",
    ),
    (
        DeclineReason::IPSEC,
        "IPSEC",
        "an IPsec policy covers the connection",
    ),
    (
        DeclineReason::NOSMCDEV,
        "NOSMCDEV",
        "no SMC device is usable",
    ),
    (
        DeclineReason::NOSMCDDEV,
        "NOSMCDDEV",
        "no SMC-D device is usable",
    ),
    (
        DeclineReason::NOSMCRDEV,
        "NOSMCRDEV",
        "no SMC-R device is usable",
    ),
    (
        DeclineReason::NOISM2SUPP,
        "NOISM2SUPP",
        "the hardware has no ISMv2",
    ),
    (
        DeclineReason::NOV2EXT,
        "NOV2EXT",
        "the proposal lacks its v2 extension",
    ),
    (
        DeclineReason::NOV2DEXT,
        "NOV2DEXT",
        "the proposal lacks its SMC-Dv2 extension",
    ),
    (
        DeclineReason::NOSEID,
        "NOSEID",
        "no common system enterprise id",
    ),
    (
        DeclineReason::NOSMCD2DEV,
        "NOSMCD2DEV",
        "no SMC-Dv2 device is usable",
    ),
    (
        DeclineReason::NOUEID,
        "NOUEID",
        "no common user enterprise id",
    ),
    (
        DeclineReason::RELEASEERR,
        "RELEASEERR",
        "the negotiated release differs",
    ),
    (
        DeclineReason::MAXCONNERR,
        "MAXCONNERR",
        "the connection limit is out of range or differs",
    ),
    (
        DeclineReason::MAXLINKERR,
        "MAXLINKERR",
        "the link limit is out of range or differs",
    ),
    (
        DeclineReason::MODEUNSUPP,
        "MODEUNSUPP",
        "the mode is not supported",
    ),
    (
        DeclineReason::RMBE_EC,
        "RMBE_EC",
        "the peer uses eyecatchers in its buffers",
    ),
    (
        DeclineReason::OPTUNSUPP,
        "OPTUNSUPP",
        "a socket option is not supported with SMC",
    ),
    (
        DeclineReason::DIFFPREFIX,
        "DIFFPREFIX",
        "the peers are in different subnets",
    ),
    (
        DeclineReason::GETVLANERR,
        "GETVLANERR",
        "the VLAN id could not be determined",
    ),
    (
        DeclineReason::ISMVLANERR,
        "ISMVLANERR",
        "the VLAN id was refused by the ISM device",
    ),
    (
        DeclineReason::NOACTLINK,
        "NOACTLINK",
        "no active link in the link group",
    ),
    (
        DeclineReason::NOSRVLINK,
        "NOSRVLINK",
        "the server's link was not found",
    ),
    (
        DeclineReason::VERSMISMAT,
        "VERSMISMAT",
        "the SMC version differs",
    ),
    (DeclineReason::MAX_DMB, "MAX_DMB", "too many SMC-D buffers"),
    (
        DeclineReason::NOROUTE,
        "NOROUTE",
        "no route to the peer for RoCEv2",
    ),
    (
        DeclineReason::NOINDIRECT,
        "NOINDIRECT",
        "one side routes directly, the other does not",
    ),
    (
        DeclineReason::NOTWANTED,
        "NOTWANTED",
        "the operator excludes the port",
    ),
    (
        DeclineReason::SYNCERR,
        "SYNCERR",
        "the link group views differ",
    ),
    (DeclineReason::PEERDECL, "PEERDECL", "the peer declined"),
    (DeclineReason::INTERR, "INTERR", "internal error"),
    (
        DeclineReason::ERR_RTOK,
        "ERR_RTOK",
        "the remote key could not be stored",
    ),
    (
        DeclineReason::ERR_RDYLNK,
        "ERR_RDYLNK",
        "the link could not be made ready",
    ),
    (
        DeclineReason::ERR_REGBUF,
        "ERR_REGBUF",
        "a buffer could not be registered",
    ),
];
