// SPDX-License-Identifier: GPL-2.0

//! The contents of each LLC message.

use super::rkeys::MOVED_LEN;
use super::{
    Body,
    ByteOrder,
    Gids,
    MovedRtoken,
    MovedRtokens,
    Rkeys,
    Version,
    LEN,
    MAX_RKEYS, //
};
use crate::proto::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use crate::proto::ids::{
    Gid,
    LinkUserId,
    Mac,
    MtuCode,
    Psn,
    Qpn,
    Rkey,
    Vaddr, //
};
use crate::proto::wire::{
    Reader,
    Writer, //
};

/// Flags of CONFIRM LINK: no eyecatcher stands in the sender's buffers, as RFC 7609, section 4.2
/// would have it.
const NO_EYECATCHER: u8 = 0x03;
/// Flag of ADD LINK: refused.
const ADD_REJECT: u8 = 0x40;
/// Flag of DELETE LINK: the whole link group.
const DELETE_ALL: u8 = 0x40;
/// Flag of DELETE LINK: no error.
const DELETE_ORDERLY: u8 = 0x20;
/// Flag of CONFIRM RKEY and DELETE RKEY: negative.
const RKEY_NEGATIVE: u8 = 0x20;
/// Flag of CONFIRM RKEY: try again after the present change.
const RKEY_RETRY: u8 = 0x10;
/// Bit of the ADD LINK extension: no gateway.
const DIRECT: u8 = 0x80;

/// Where the tokens of the ADD LINK extension start.
const EXT_TOKENS: usize = 72;
/// Where the GIDs of REQ ADD LINK start.
const REQ_GIDS: usize = 28;
/// Where the keys of DELETE RKEY start.
const DELETE_RKEYS: usize = 8;
/// How many keys DELETE RKEY of version 1 carries.
const DELETE_RKEYS_V1: usize = 8;

/// CONFIRM LINK (RFC 7609, appendix A.3.1).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 6 | MAC |
/// | 10 | 16 | GID |
/// | 26 | 3 | queue pair number |
/// | 29 | 1 | link number |
/// | 30 | 4 | link user id |
/// | 34 | 1 | most links |
/// | 35 | 1 | most connections (release 1; reserved in RFC 7609) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmLink {
    /// The sender's MAC.
    pub mac: Mac,
    /// The sender's GID.
    pub gid: Gid,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The number that the server gives the link.
    pub link_num: u8,
    /// The sender's own id of the link.
    pub user_id: LinkUserId,
    /// How many links the sender supports.
    pub max_links: u8,
    /// How many connections the sender supports.
    pub max_conns: u8,
    /// The sender's buffers have no eyecatcher: cursors start at 0 and the whole element is
    /// usable. Linux needs it from its peer, RFC 7609 does not know it.
    pub no_eyecatcher: bool,
}

impl ConfirmLink {
    /// Reads the fields behind the header.
    pub(super) fn decode(r: &mut Reader<'_>, flags: u8) -> Result<Self, DecodeError> {
        Ok(Self {
            mac: Mac(r.array("mac")?),
            gid: Gid(r.array("gid")?),
            qpn: Qpn::truncate(r.be24("qpn")?),
            link_num: r.u8("link_num")?,
            user_id: LinkUserId(r.array("user_id")?),
            max_links: r.u8("max_links")?,
            max_conns: r.u8("max_conns")?,
            // Either bit will do, as for the C implementation.
            no_eyecatcher: flags & NO_EYECATCHER != 0,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.put(&self.mac.0)?;
        w.put(&self.gid.0)?;
        w.be24(self.qpn.get())?;
        w.u8(self.link_num)?;
        w.put(&self.user_id.0)?;
        w.put(&[self.max_links, self.max_conns])
    }
}

/// ADD LINK in the layout of Linux.
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 6 | MAC |
/// | 10 | 2 | reserved (RFC 7609, appendix A.3.2 has no gap here) |
/// | 12 | 16 | GID |
/// | 28 | 3 | queue pair number |
/// | 31 | 1 | link number |
/// | 32 | 1 | low half MTU code |
/// | 33 | 3 | initial packet sequence number |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddLink<'a> {
    /// The sender's MAC of the new link.
    pub mac: Mac,
    /// The sender's GID of the new link.
    pub gid: Gid,
    /// The sender's queue pair of the new link.
    pub qpn: Qpn,
    /// The number that the server gives the new link.
    pub link_num: u8,
    /// The sender's path MTU.
    pub mtu: MtuCode,
    /// The sender's first packet sequence number.
    pub psn: Psn,
    /// The answer is a refusal.
    pub rejected: bool,
    /// Why it is refused; only version 1 carries it. 1: no other path, 2: bad MTU.
    pub reject_reason: u8,
    /// What version 2 appends.
    pub ext: Option<Extension<'a>>,
}

/// What version 2 appends to ADD LINK.
///
/// | offset | width | field |
/// |---|---|---|
/// | 44 | 1 | bit 7: direct |
/// | 46 | 16 | GID of the client that the server aims at |
/// | 70 | 2 | number of tokens, for Linux in the order of its machine: not read |
/// | 72 | 16 k | tokens |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extension<'a> {
    /// The path has no gateway.
    pub direct: bool,
    /// The client's GID.
    pub client_gid: Gid,
    /// The sender's tokens on the new link; their number follows from the length.
    pub rtokens: MovedRtokens<'a>,
    /// How their number is written: so that the receiver understands it.
    pub order: ByteOrder,
}

impl<'a> AddLink<'a> {
    /// The reason for a refusal: there is no second path.
    pub const NO_ALT_PATH: u8 = 1;
    /// The reason for a refusal: the MTU code is reserved.
    pub const INVALID_MTU: u8 = 2;

    /// A client's word in version 1 that it has a device for a further link; the server does not answer it, but may offer
    /// one (RFC 7609, section 3.5.5.1.2).
    pub const fn wish(gid: Gid, mac: Mac) -> AddLink<'static> {
        AddLink {
            mac,
            gid,
            qpn: Qpn::truncate(0),
            link_num: 0,
            mtu: MtuCode::from_nibble(0),
            psn: Psn::truncate(0),
            rejected: false,
            reject_reason: 0,
            ext: None,
        }
    }

    /// The refusal of this request: it echoes the request without its tokens.
    #[must_use]
    pub const fn rejection(&self, reason: u8) -> AddLink<'static> {
        AddLink {
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn,
            link_num: self.link_num,
            mtu: self.mtu,
            psn: self.psn,
            rejected: true,
            reject_reason: reason,
            ext: None,
        }
    }

    /// Reads the fields behind the header.
    pub(super) fn decode(
        r: &mut Reader<'a>,
        version: Version,
        flags: u8,
        reject_reason: u8,
    ) -> Result<Self, DecodeError> {
        let mac = Mac(r.array("mac")?);
        r.skip(2, "reserved")?;
        let gid = Gid(r.array("gid")?);
        let qpn = Qpn::truncate(r.be24("qpn")?);
        let link_num = r.u8("link_num")?;
        let mtu = MtuCode::from_nibble(r.u8("mtu")?);
        let psn = Psn::truncate(r.be24("psn")?);
        r.skip(8, "reserved")?;
        let ext = if version == Version::V2 && r.remaining() > 0 {
            Some(Extension::decode(r)?)
        } else {
            None
        };
        Ok(Self {
            mac,
            gid,
            qpn,
            link_num,
            mtu,
            psn,
            rejected: flags & ADD_REJECT != 0,
            reject_reason,
            ext,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.put(&self.mac.0)?;
        w.zeros(2)?;
        w.put(&self.gid.0)?;
        w.be24(self.qpn.get())?;
        w.u8(self.link_num)?;
        w.u8(self.mtu.get())?;
        w.be24(self.psn.get())?;
        w.zeros(8)?;
        if let Some(ext) = &self.ext {
            w.u8(if ext.direct { DIRECT } else { 0 })?;
            w.zeros(1)?;
            w.put(&ext.client_gid.0)?;
            w.zeros(8)?;
            let n = u16::try_from(ext.rtokens.len()).map_err(|_| EncodeError::TooMany)?;
            match ext.order {
                ByteOrder::Network => w.be16(n)?,
                ByteOrder::Little => w.put(&n.to_le_bytes())?,
            }
            for t in ext.rtokens.iter() {
                t.encode(w)?;
            }
        }
        Ok(())
    }
}

impl<'a> Extension<'a> {
    /// Reads what follows byte 44. Bytes that do not fill a token are ignored.
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let direct = r.u8("direct")? & DIRECT != 0;
        r.skip(1, "reserved")?;
        let client_gid = Gid(r.array("client_gid")?);
        r.skip(8, "reserved")?;
        r.skip(2, "num_rkeys")?;
        let count = r.remaining() / MOVED_LEN;
        if count > MAX_RKEYS {
            return Err(DecodeError::new("num_rkeys", Why::Bound));
        }
        let rtokens = MovedRtokens::from_wire(r.bytes(count.saturating_mul(MOVED_LEN), "rtokens")?);
        Ok(Self {
            direct,
            client_gid,
            rtokens,
            order: ByteOrder::Network,
        })
    }
}

/// ADD LINK CONTINUATION, version 1 (RFC 7609, appendix A.3.3).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 1 | link number |
/// | 5 | 1 | tokens that remain, those of this message included |
/// | 8 | 2 × 16 | tokens |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddLinkCont {
    /// The new link.
    pub link_num: u8,
    /// How many tokens the sender still has, with these.
    pub remaining: u8,
    /// The first two of them; the rest is zero.
    pub rtokens: [MovedRtoken; 2],
}

impl AddLinkCont {
    /// The tokens that count.
    pub fn valid(&self) -> impl Iterator<Item = &MovedRtoken> {
        self.rtokens.iter().take(usize::from(self.remaining))
    }

    /// Reads the fields behind the header.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let link_num = r.u8("link_num")?;
        let remaining = r.u8("num_rkeys")?;
        r.skip(2, "reserved")?;
        let mut rtokens = [MovedRtoken::default(); 2];
        for t in &mut rtokens {
            *t = MovedRtoken {
                reference: Rkey(r.be32("reference")?),
                rkey: Rkey(r.be32("rkey")?),
                vaddr: Vaddr(r.be64("vaddr")?),
            };
        }
        Ok(Self {
            link_num,
            remaining,
            rtokens,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.put(&[self.link_num, self.remaining, 0, 0])?;
        for t in &self.rtokens {
            t.encode(w)?;
        }
        Ok(())
    }
}

/// DELETE LINK (RFC 7609, appendix A.3.4).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 1 | link number, zero with the flag for all |
/// | 5 | 4 | reason |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteLink {
    /// Which link.
    pub link_num: u8,
    /// The whole link group.
    pub all: bool,
    /// No error: an operator or idleness.
    pub orderly: bool,
    /// Why.
    pub reason: u32,
}

impl DeleteLink {
    /// The path is lost.
    pub const LOST_PATH: u32 = 0x0001_0000;
    /// An operator asked for it.
    pub const OPERATOR: u32 = 0x0002_0000;
    /// A program asked for it, or nobody uses the link.
    pub const PROGRAM: u32 = 0x0003_0000;
    /// The peer broke the protocol.
    pub const VIOLATION: u32 = 0x0004_0000;
    /// An asymmetric link is needed no more.
    pub const NO_ASYMMETRIC: u32 = 0x0005_0000;
    /// Answer: there is no such link.
    pub const UNKNOWN_LINK: u32 = 0x0010_0000;

    /// Ends the whole link group.
    pub const fn everything(orderly: bool, reason: u32) -> Self {
        Self {
            link_num: 0,
            all: true,
            orderly,
            reason,
        }
    }

    /// Reads the fields behind the header.
    pub(super) fn decode(r: &mut Reader<'_>, flags: u8) -> Result<Self, DecodeError> {
        Ok(Self {
            link_num: r.u8("link_num")?,
            reason: r.be32("reason")?,
            all: flags & DELETE_ALL != 0,
            orderly: flags & DELETE_ORDERLY != 0,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u8(self.link_num)?;
        w.be32(self.reason)
    }
}

/// REQ ADD LINK, version 2.
///
/// | offset | width | field |
/// |---|---|---|
/// | 24 | 1 | number of GIDs |
/// | 28 | 16 k | GIDs |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReqAddLink<'a> {
    /// GIDs of the client that a new link could use.
    pub gids: Gids<'a>,
}

impl<'a> ReqAddLink<'a> {
    /// Reads the fields behind the header; the count is bounded by what arrived.
    pub(super) fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        r.skip(20, "reserved")?;
        let count = usize::from(r.u8("gid_cnt")?);
        r.skip(3, "reserved")?;
        let gids = r
            .bytes(count.saturating_mul(16), "gids")
            .map_err(|_| DecodeError::new("gid_cnt", Why::Bound))?;
        Ok(Self {
            gids: Gids::from_wire(gids),
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.zeros(20)?;
        w.u8(u8::try_from(self.gids.len()).map_err(|_| EncodeError::TooMany)?)?;
        w.zeros(3)?;
        for g in self.gids.iter() {
            w.put(&g.0)?;
        }
        Ok(())
    }
}

/// A buffer's token on one link: 13 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRtoken {
    /// Which link; unused for the first token of CONFIRM RKEY.
    pub link_num: u8,
    /// Key.
    pub rkey: Rkey,
    /// Address.
    pub vaddr: Vaddr,
}

impl LinkRtoken {
    /// Reads 13 bytes.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            link_num: r.u8("link_num")?,
            rkey: Rkey(r.be32("rkey")?),
            vaddr: Vaddr(r.be64("vaddr")?),
        })
    }

    /// Writes 13 bytes.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u8(self.link_num)?;
        w.be32(self.rkey.0)?;
        w.be64(self.vaddr.0)
    }
}

/// CONFIRM RKEY (RFC 7609, appendix A.3.5).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 1 | number of other links that follow, in all messages of the exchange |
/// | 5 | 4 + 8 | key and address on the link that carries the message |
/// | 17 | 2 × 13 | link number, key and address on other links |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmRkey {
    /// The token on the link that carries the message; its link number is not used.
    pub this_link: LinkRtoken,
    /// How many other links there are.
    pub others: u8,
    /// The first two of them; the rest is zero.
    pub other_links: [LinkRtoken; 2],
    /// The answer is negative.
    pub negative: bool,
    /// The sender should try again after the present change of the link group.
    pub retry: bool,
}

impl ConfirmRkey {
    /// Announces a buffer of a link group with a single link.
    pub const fn single(rkey: Rkey, vaddr: Vaddr) -> Self {
        let none = LinkRtoken {
            link_num: 0,
            rkey: Rkey(0),
            vaddr: Vaddr(0),
        };
        Self {
            this_link: LinkRtoken {
                link_num: 0,
                rkey,
                vaddr,
            },
            others: 0,
            other_links: [none; 2],
            negative: false,
            retry: false,
        }
    }

    /// The tokens of other links in this message.
    pub fn valid_others(&self) -> impl Iterator<Item = &LinkRtoken> {
        self.other_links.iter().take(usize::from(self.others))
    }

    /// Reads the fields behind the header.
    pub(super) fn decode(r: &mut Reader<'_>, flags: u8) -> Result<Self, DecodeError> {
        let first = LinkRtoken::decode(r)?;
        let mut other_links = [LinkRtoken::default(); 2];
        for t in &mut other_links {
            *t = LinkRtoken::decode(r)?;
        }
        Ok(Self {
            this_link: LinkRtoken {
                link_num: 0,
                ..first
            },
            others: first.link_num,
            other_links,
            negative: flags & RKEY_NEGATIVE != 0,
            retry: flags & RKEY_RETRY != 0,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        let first = LinkRtoken {
            link_num: self.others,
            ..self.this_link
        };
        first.encode(w)?;
        for t in &self.other_links {
            t.encode(w)?;
        }
        Ok(())
    }
}

/// CONFIRM RKEY CONTINUATION, version 1 (RFC 7609, appendix A.3.6).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 1 | tokens that remain, those of this message included |
/// | 5 | 3 × 13 | tokens (figure 38 draws one byte less for the first; the text has three equal ones) |
///
/// Three tokens of 13 bytes end at byte 44.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmRkeyCont {
    /// How many tokens the sender still has, with these.
    pub remaining: u8,
    /// The first three of them; the rest is zero.
    pub rtokens: [LinkRtoken; 3],
    /// The answer is negative.
    pub negative: bool,
}

impl ConfirmRkeyCont {
    /// The tokens that count.
    pub fn valid(&self) -> impl Iterator<Item = &LinkRtoken> {
        self.rtokens.iter().take(usize::from(self.remaining))
    }

    /// Reads the fields behind the header.
    pub(super) fn decode(r: &mut Reader<'_>, flags: u8) -> Result<Self, DecodeError> {
        let remaining = r.u8("remaining")?;
        let mut rtokens = [LinkRtoken::default(); 3];
        for t in &mut rtokens {
            *t = LinkRtoken::decode(r)?;
        }
        Ok(Self {
            remaining,
            rtokens,
            negative: flags & RKEY_NEGATIVE != 0,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.u8(self.remaining)?;
        for t in &self.rtokens {
            t.encode(w)?;
        }
        Ok(())
    }
}

/// DELETE RKEY (RFC 7609, appendix A.3.7).
///
/// | offset | width | field |
/// |---|---|---|
/// | 4 | 1 | number of keys |
/// | 5 | 1 | version 1: mask of unknown keys, bit 7 is the first; version 2: their number |
/// | 8 | 4 k | keys: up to 8, in version 2 up to 255; none in an answer of version 2 |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeleteRkey<'a> {
    /// The keys, as known on the link that carries the message.
    pub rkeys: Rkeys<'a>,
    /// The count byte of an answer of version 2, which carries no keys.
    pub count: u8,
    /// The answer is negative.
    pub negative: bool,
    /// Which keys were unknown, or how many.
    pub errors: u8,
}

impl<'a> DeleteRkey<'a> {
    /// Withdraws keys.
    pub fn request(rkeys: &'a [Rkey]) -> Self {
        Self {
            rkeys: Rkeys::new(rkeys),
            count: u8::try_from(rkeys.len()).unwrap_or(u8::MAX),
            negative: false,
            errors: 0,
        }
    }

    /// Reads the fields behind the header; the count is bounded by what arrived.
    pub(super) fn decode(
        r: &mut Reader<'a>,
        version: Version,
        response: bool,
        flags: u8,
    ) -> Result<Self, DecodeError> {
        let count = r.u8("num_rkeys")?;
        let errors = r.u8("err_mask")?;
        r.skip(2, "reserved")?;
        let bound = Err(DecodeError::new("num_rkeys", Why::Bound));
        let n = match (version, response) {
            (Version::V2, true) => 0,
            (Version::V1, _) if usize::from(count) > DELETE_RKEYS_V1 => return bound,
            _ => usize::from(count),
        };
        let Ok(bytes) = r.bytes(n.saturating_mul(4), "rkeys") else {
            return bound;
        };
        Ok(Self {
            rkeys: Rkeys::from_wire(bytes),
            count,
            negative: flags & RKEY_NEGATIVE != 0,
            errors,
        })
    }

    /// Writes the fields behind the header.
    fn encode(&self, w: &mut Writer<'_>, version: Version) -> Result<(), EncodeError> {
        if version == Version::V1 && self.rkeys.len() > DELETE_RKEYS_V1 {
            return Err(EncodeError::TooMany);
        }
        w.put(&[self.count, self.errors, 0, 0])?;
        for k in self.rkeys.iter() {
            w.be32(k.0)?;
        }
        Ok(())
    }
}

impl Body<'_> {
    /// The flags of the message apart from the response flag.
    pub(super) const fn flags(&self) -> u8 {
        match self {
            Self::ConfirmLink(m) => on(m.no_eyecatcher, NO_EYECATCHER),
            Self::AddLink(m) => on(m.rejected, ADD_REJECT),
            Self::DeleteLink(m) => on(m.all, DELETE_ALL) | on(m.orderly, DELETE_ORDERLY),
            Self::ConfirmRkey(m) => on(m.negative, RKEY_NEGATIVE) | on(m.retry, RKEY_RETRY),
            Self::ConfirmRkeyCont(m) => on(m.negative, RKEY_NEGATIVE),
            Self::DeleteRkey(m) => on(m.negative, RKEY_NEGATIVE),
            Self::AddLinkCont(_) | Self::ReqAddLink(_) | Self::TestLink(_) => 0,
        }
    }

    /// How long the message is before it is padded to 44 bytes.
    pub(super) fn wire_len(&self, version: Version) -> Result<usize, EncodeError> {
        let (start, list) = match self {
            Self::AddLink(AddLink { ext: Some(ext), .. }) => {
                if version == Version::V1 {
                    return Err(EncodeError::Inconsistent);
                }
                (EXT_TOKENS, ext.rtokens.wire_len()?)
            }
            Self::ReqAddLink(m) => (REQ_GIDS, m.gids.wire_len()?),
            Self::DeleteRkey(m) => (DELETE_RKEYS, m.rkeys.wire_len()?),
            _ => (LEN, 0),
        };
        start.checked_add(list).ok_or(EncodeError::TooMany)
    }

    /// Writes the fields behind the header.
    pub(super) fn encode(&self, w: &mut Writer<'_>, version: Version) -> Result<(), EncodeError> {
        match self {
            Self::ConfirmLink(m) => m.encode(w),
            Self::AddLink(m) => m.encode(w),
            Self::AddLinkCont(m) => m.encode(w),
            Self::DeleteLink(m) => m.encode(w),
            Self::ReqAddLink(m) => m.encode(w),
            Self::ConfirmRkey(m) => m.encode(w),
            Self::ConfirmRkeyCont(m) => m.encode(w),
            Self::TestLink(data) => w.put(data),
            Self::DeleteRkey(m) => m.encode(w, version),
        }
    }
}

/// `mask` if `set`, else 0.
const fn on(set: bool, mask: u8) -> u8 {
    if set {
        mask
    } else {
        0
    }
}
