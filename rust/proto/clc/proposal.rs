// SPDX-License-Identifier: GPL-2.0

//! The Proposal: what a client offers.

use super::{
    open,
    write_header,
    write_trailer,
    Extensions,
    Limits,
    MessageType,
    Tech,
    Version,
    MAX_EIDS,
    MAX_PREFIXES,
    TRAILER_LEN, //
};
use crate::proto::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use crate::proto::ids::{
    Eid,
    Gid,
    Mac,
    PeerId,
    EID_LEN, //
};
use crate::proto::wire::{
    Reader,
    Writer, //
};

/// End of the part that every proposal has; offsets count from here.
const FIXED_END: usize = 40;

/// Length of the area for SMC-D and version 2.
const AREA_LEN: usize = 40;

/// Where the field `v2_ext_offset` ends; the offset counts from here.
const EXT_OFFSET_END: usize = FIXED_END + 12;

/// What `v2_ext_offset` is when nothing stands between area and extension.
const EXT_OFFSET_MIN: usize = 28;

/// Length of the fixed part of the prefix area.
const PREFIX_FIXED: usize = 8;

/// Length of one IPv6 prefix entry.
const PREFIX_ENTRY: usize = 17;

/// Length of the fixed part of the version 2 extension.
const EXT_FIXED: usize = 40;

/// Length of the fixed part of the SMC-D version 2 extension.
const D_EXT_FIXED: usize = 48;

/// Length of one GID entry of the SMC-D version 2 extension.
const D_EXT_GID: usize = 10;

/// How many SMC-D GIDs a proposal may list.
const MAX_D_GIDS: usize = 8;

/// Where the end of `smcd_v2_ext_offset` lies in the version 2 extension.
const D_OFFSET_END: usize = 8;

/// A received proposal.
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 8 | header |
/// | 8 | 8 | peer id |
/// | 16 | 16 | RoCE v1 GID |
/// | 32 | 6 | RoCE MAC |
/// | 38 | 2 | offset of the prefix area from here |
/// | 40 | 40 | SMC-D and version 2 area (absent in plain RFC 7609 messages) |
/// | 40 + offset | 8 + 17 n | prefix area, when version 1 is offered |
/// | 52 + v2 offset | 40 + 32 e | version 2 extension, when version 2 is offered |
/// | behind it | 48 + 10 g | SMC-D version 2 extension, when SMC-Dv2 is offered |
/// | end - 4 | 4 | trailer |
#[derive(Clone, Copy, Debug)]
pub struct Proposal<'a> {
    /// Version number of the header.
    pub version: u8,
    /// Technologies offered in version 1.
    pub type_v1: Tech,
    /// Technologies offered in version 2.
    pub type_v2: Tech,
    /// The client's stack instance; zero in a version-2-only proposal of Linux.
    pub peer_id: PeerId,
    /// GID for version 1.
    pub gid: Gid,
    /// MAC for version 1.
    pub mac: Mac,
    /// Subnets of the client, when version 1 is offered.
    pub prefixes: Option<PrefixArea<'a>>,
    /// The version 2 extension, when version 2 is offered.
    pub v2: Option<V2Extension<'a>>,
}

/// Subnets for the same-link test of version 1 (RFC 7609, section 3.5.1.2).
#[derive(Clone, Copy, Debug)]
pub struct PrefixArea<'a> {
    /// IPv4 network address, zero over IPv6. (RFC 7609, appendix A.2.2 calls it a mask; section
    /// 3.5.1.2 and Linux use the network address.)
    pub v4_network: [u8; 4],
    /// Its prefix length.
    pub v4_len: u8,
    /// IPv6 prefixes.
    pub v6: Prefixes<'a>,
}

/// The IPv6 prefixes of a proposal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefixes<'a>(&'a [u8]);

impl<'a> Prefixes<'a> {
    /// Prefix and length, in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = ([u8; 16], u8)> + Clone + 'a {
        self.0.chunks_exact(PREFIX_ENTRY).filter_map(|e| {
            let (prefix, rest) = e.split_first_chunk::<16>()?;
            Some((*prefix, *rest.first()?))
        })
    }

    /// How many there are, at most 8.
    pub fn len(&self) -> usize {
        self.0.len() / PREFIX_ENTRY
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The version 2 extension of a proposal.
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 1 | number of enterprise ids |
/// | 1 | 1 | number of SMC-D GIDs |
/// | 3 | 1 | bits 7-4 release, bit 0 system EID present |
/// | 6 | 2 | offset of the SMC-D extension from here |
/// | 8 | 16 | RoCEv2 GID |
/// | 24 | 1 | connections per link group (from release 1) |
/// | 25 | 1 | links per link group (from release 1) |
/// | 26 | 2 | feature mask |
/// | 40 | 32 e | enterprise ids |
#[derive(Clone, Copy, Debug)]
pub struct V2Extension<'a> {
    /// Release of version 2 that the client speaks.
    pub release: u8,
    /// The client's RoCEv2 GID.
    pub gid: Gid,
    /// Limits, meaningful from release 1.
    pub limits: Limits,
    /// Feature bits.
    pub features: u16,
    /// Enterprise ids in the client's order.
    pub eids: Eids<'a>,
    /// What a peer of this implementation offers beyond the standard (from release 1).
    pub extensions: Extensions,
}

/// The enterprise ids of a proposal; not checked for their character set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eids<'a>(&'a [u8]);

impl<'a> Eids<'a> {
    /// The ids in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = Eid> + Clone + 'a {
        self.0
            .chunks_exact(EID_LEN)
            .filter_map(|e| e.first_chunk::<EID_LEN>().copied().map(Eid))
    }

    /// How many there are, at most 8.
    pub fn len(&self) -> usize {
        self.0.len() / EID_LEN
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Proposal<'a> {
    /// Reads a complete proposal.
    ///
    /// # Errors
    ///
    /// Names the field that is malformed. Every length follows from counts that are bounded
    /// first, and all of them together must give the length in the header.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, _) = open(bytes)?;
        if header.kind != MessageType::Proposal {
            return Err(DecodeError::new("type", Why::Unsupported));
        }
        let (type_v1, type_v2) = (header.type_v1(), header.type_v2());
        let end = bytes
            .len()
            .checked_sub(TRAILER_LEN)
            .ok_or(DecodeError::truncated("trailer"))?;
        // Everything below reads from the message without its trailer.
        let msg = bytes.get(..end).ok_or(DecodeError::truncated("trailer"))?;
        let mut r = Reader::at(msg, super::HEADER_LEN, "header")?;
        let peer_id = PeerId(r.array("peer_id")?);
        let gid = Gid(r.array("gid")?);
        let mac = Mac(r.array("mac")?);
        let ip_offset = usize::from(r.be16("iparea_offset")?);

        let v2_layout = header.version >= 2;
        if !v2_layout && !type_v1.any() {
            return Err(DecodeError::new("type_v1", Why::Value));
        }
        // The area has a fixed place, so a prefix area of a version 2 message lies right behind it.
        if v2_layout && type_v1.any() && ip_offset != AREA_LEN {
            return Err(DecodeError::new("iparea_offset", Why::Bound));
        }
        let (prefixes, mut expect) = if type_v1.any() {
            let at = FIXED_END.saturating_add(ip_offset);
            let (area, after) = decode_prefixes(msg, at)?;
            (Some(area), after)
        } else {
            (None, FIXED_END.saturating_add(AREA_LEN))
        };
        let mut v2 = None;
        if type_v2.any() {
            let (ext, after) = decode_extension(msg, expect, type_v2.has_d())?;
            v2 = Some(ext);
            expect = after;
        }
        if expect != msg.len() {
            return Err(DecodeError::new("length", Why::Length));
        }
        Ok(Self {
            version: header.version,
            type_v1,
            type_v2,
            peer_id,
            gid,
            mac,
            prefixes,
            v2,
        })
    }

    /// Whether SMC-R is offered in version 2.
    pub fn offers_v2(&self) -> bool {
        self.type_v2.has_r() && self.v2.is_some()
    }

    /// The form of a Decline that the client understands: that of its own header.
    pub fn decline_version(&self) -> Version {
        if self.version > Version::V1.number() {
            Version::V2
        } else {
            Version::V1
        }
    }

    /// Whether SMC-R is offered in version 1.
    pub fn offers_v1(&self) -> bool {
        self.type_v1.has_r()
    }
}

/// Reads the prefix area at `at` and returns where it ends.
fn decode_prefixes(msg: &[u8], at: usize) -> Result<(PrefixArea<'_>, usize), DecodeError> {
    let mut r = Reader::at(msg, at, "iparea_offset")?;
    let v4_network = r.array("v4_network")?;
    let v4_len = r.u8("v4_len")?;
    r.skip(2, "prefix_reserved")?;
    let count = usize::from(r.u8("v6_count")?);
    if count > MAX_PREFIXES || v4_len > 32 {
        return Err(DecodeError::new("v6_count", Why::Bound));
    }
    let list = count.saturating_mul(PREFIX_ENTRY);
    let v6 = Prefixes(r.bytes(list, "v6_prefixes")?);
    let area = PrefixArea {
        v4_network,
        v4_len,
        v6,
    };
    let after = at.saturating_add(PREFIX_FIXED).saturating_add(list);
    Ok((area, after))
}

/// Reads the version 2 extension, which must start at `at`, and returns where it ends, the SMC-D
/// extension included.
fn decode_extension(
    msg: &[u8],
    at: usize,
    has_d: bool,
) -> Result<(V2Extension<'_>, usize), DecodeError> {
    let mut a = Reader::at(msg, FIXED_END, "area")?;
    a.skip(10, "ism")?;
    let offset = usize::from(a.be16("v2_ext_offset")?);
    let vendor = a.array::<8>("vendor")?;
    a.skip(20, "area_reserved")?;
    if EXT_OFFSET_END.saturating_add(offset) != at {
        return Err(DecodeError::new("v2_ext_offset", Why::Bound));
    }

    let mut r = Reader::at(msg, at, "v2_ext_offset")?;
    let eid_count = usize::from(r.u8("eid_cnt")?);
    let d_count = usize::from(r.u8("ism_gid_cnt")?);
    r.skip(1, "ext_reserved")?;
    let release = r.u8("release")? >> 4;
    r.skip(2, "ext_reserved")?;
    let d_offset = usize::from(r.be16("smcd_v2_ext_offset")?);
    let gid = Gid(r.array("v2_gid")?);
    let limits = Limits {
        max_conns: r.u8("max_conns")?,
        max_links: r.u8("max_links")?,
    };
    let features = r.be16("features")?;
    r.skip(12, "ext_reserved")?;
    if eid_count > MAX_EIDS {
        return Err(DecodeError::new("eid_cnt", Why::Bound));
    }
    let list = eid_count.saturating_mul(EID_LEN);
    let eids = Eids(r.bytes(list, "eids")?);
    let mut after = at.saturating_add(EXT_FIXED).saturating_add(list);

    if has_d {
        if d_count > MAX_D_GIDS {
            return Err(DecodeError::new("ism_gid_cnt", Why::Bound));
        }
        let d_at = at.saturating_add(D_OFFSET_END).saturating_add(d_offset);
        if d_at != after {
            return Err(DecodeError::new("smcd_v2_ext_offset", Why::Bound));
        }
        let d_len = D_EXT_FIXED.saturating_add(d_count.saturating_mul(D_EXT_GID));
        r.skip(d_len, "smcd_ext")?;
        after = after.saturating_add(d_len);
    }
    let ext = V2Extension {
        release,
        gid,
        limits,
        features,
        eids,
        extensions: if release == 0 {
            Extensions::NONE
        } else {
            Extensions::from_proposal(vendor)
        },
    };
    Ok((ext, after))
}

/// The version 1 part of a proposal to send.
#[derive(Clone, Copy, Debug)]
pub struct ProposalV1<'a> {
    /// RoCE v1 GID.
    pub gid: Gid,
    /// RoCE MAC.
    pub mac: Mac,
    /// IPv4 network address, zero over IPv6.
    pub v4_network: [u8; 4],
    /// Its prefix length, zero over IPv6.
    pub v4_len: u8,
    /// IPv6 prefixes with their lengths, at most 8.
    pub v6: &'a [([u8; 16], u8)],
}

/// The version 2 part of a proposal to send.
#[derive(Clone, Copy, Debug)]
pub struct ProposalV2 {
    /// RoCEv2 GID.
    pub gid: Gid,
    /// Release that is spoken.
    pub release: u8,
    /// Limits that are offered (from release 1).
    pub limits: Limits,
    /// What is offered beyond the standard (from release 1).
    pub extensions: Extensions,
}

impl Proposal<'_> {
    /// Writes a proposal for version 2 alone: the form for devices without RoCE v1 GIDs.
    ///
    /// The prefix offset and everything of SMC-D is zero, because the C receiver looks at bytes
    /// there even when version 1 is not offered. `peer_id` may be zero, as Linux sends it.
    ///
    /// # Errors
    ///
    /// Fails for more than 8 ids, none, or too small a buffer.
    pub fn encode_v2<I>(
        peer_id: PeerId,
        v2: &ProposalV2,
        eids: I,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>
    where
        I: Iterator<Item = Eid> + Clone,
    {
        Self::encode(peer_id, None, Some((v2, eids)), out)
    }

    /// Writes a proposal of RFC 7609, without any area of later versions.
    ///
    /// # Errors
    ///
    /// Fails for more than 8 prefixes or too small a buffer.
    pub fn encode_v1(
        peer_id: PeerId,
        v1: &ProposalV1<'_>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError> {
        let prefixes = prefix_len(v1)?;
        let len = FIXED_END
            .saturating_add(prefixes)
            .saturating_add(TRAILER_LEN);
        let mut w = Writer::new(out);
        let w = &mut w;
        write_header(w, MessageType::Proposal, len, Version::V1, Tech::R.bits())?;
        write_fixed(w, peer_id, Some(v1), 0)?;
        write_prefixes(w, v1)?;
        write_trailer(w, len)
    }

    /// Writes a proposal with version number 2 that offers SMC-R in version 1, 2 or both.
    ///
    /// # Errors
    ///
    /// Fails when nothing is offered, a list is too long or the buffer too small.
    pub fn encode<I>(
        peer_id: PeerId,
        v1: Option<&ProposalV1<'_>>,
        v2: Option<(&ProposalV2, I)>,
        out: &mut [u8],
    ) -> Result<usize, EncodeError>
    where
        I: Iterator<Item = Eid> + Clone,
    {
        let prefixes = v1.map_or(Ok(0), prefix_len)?;
        let eid_count = v2.as_ref().map_or(0, |(_, eids)| {
            eids.clone().fold(0usize, |n, _| n.saturating_add(1))
        });
        if v1.is_none() && v2.is_none() {
            return Err(EncodeError::Inconsistent);
        }
        if eid_count > MAX_EIDS {
            return Err(EncodeError::TooMany);
        }
        if v2.is_some() && eid_count == 0 {
            return Err(EncodeError::Inconsistent);
        }
        let ext = if v2.is_some() {
            EXT_FIXED.saturating_add(eid_count.saturating_mul(EID_LEN))
        } else {
            0
        };
        let len = FIXED_END
            .saturating_add(AREA_LEN)
            .saturating_add(prefixes)
            .saturating_add(ext)
            .saturating_add(TRAILER_LEN);
        let tech = |present: bool| if present { Tech::R } else { Tech::None };
        let low = (tech(v2.is_some()).bits() << 2) | tech(v1.is_some()).bits();

        let mut w = Writer::new(out);
        let w = &mut w;
        write_header(w, MessageType::Proposal, len, Version::V2, low)?;
        let ip_offset = if v1.is_some() { AREA_LEN } else { 0 };
        write_fixed(w, peer_id, v1, ip_offset)?;
        // SMC-D and version 2 area.
        w.zeros(10)?;
        if v2.is_some() {
            put_u16(w, EXT_OFFSET_MIN.saturating_add(prefixes))?;
        } else {
            w.zeros(2)?;
        }
        let extensions = match &v2 {
            Some((v2, _)) if v2.release > 0 => v2.extensions,
            _ => Extensions::NONE,
        };
        w.put(&extensions.to_proposal())?;
        w.zeros(20)?;
        if let Some(v1) = v1 {
            write_prefixes(w, v1)?;
        }
        if let Some((v2, eids)) = v2 {
            let count = u8::try_from(eid_count).map_err(|_| EncodeError::TooMany)?;
            w.put(&[count, 0, 0, v2.release << 4])?;
            w.zeros(4)?;
            w.put(&v2.gid.0)?;
            let limits = if v2.release == 0 {
                Limits::default()
            } else {
                v2.limits
            };
            w.put(&[limits.max_conns, limits.max_links])?;
            w.zeros(14)?;
            for eid in eids {
                w.put(&eid.0)?;
            }
        }
        write_trailer(w, len)
    }
}

/// Length of the prefix area.
fn prefix_len(v1: &ProposalV1<'_>) -> Result<usize, EncodeError> {
    if v1.v6.len() > MAX_PREFIXES {
        return Err(EncodeError::TooMany);
    }
    Ok(PREFIX_FIXED.saturating_add(v1.v6.len().saturating_mul(PREFIX_ENTRY)))
}

/// Writes bytes 8 to 39.
fn write_fixed(
    w: &mut Writer<'_>,
    peer_id: PeerId,
    v1: Option<&ProposalV1<'_>>,
    ip_offset: usize,
) -> Result<(), EncodeError> {
    w.put(&peer_id.0)?;
    w.put(&v1.map_or(Gid::ZERO, |v| v.gid).0)?;
    w.put(&v1.map_or(Mac::ZERO, |v| v.mac).0)?;
    put_u16(w, ip_offset)
}

/// Writes the prefix area.
fn write_prefixes(w: &mut Writer<'_>, v1: &ProposalV1<'_>) -> Result<(), EncodeError> {
    w.put(&v1.v4_network)?;
    w.put(&[v1.v4_len, 0, 0])?;
    w.u8(u8::try_from(v1.v6.len()).map_err(|_| EncodeError::TooMany)?)?;
    for (prefix, len) in v1.v6 {
        w.put(prefix)?;
        w.u8(*len)?;
    }
    Ok(())
}

/// Writes a length or offset as two bytes.
fn put_u16(w: &mut Writer<'_>, v: usize) -> Result<(), EncodeError> {
    w.be16(u16::try_from(v).map_err(|_| EncodeError::TooMany)?)
}
