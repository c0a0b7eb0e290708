// SPDX-License-Identifier: GPL-2.0

//! Connection layer control: the handshake messages in the TCP stream (RFC 7609, section 3.2).
//!
//! The receiver peeks at [`HEADER_LEN`] bytes, lets [`Header::decode`] judge them, then reads
//! exactly [`Header::length`] bytes and gives the whole message to the decoder of its type. It
//! never reads further, because what follows may be application data (section 3.5.2.4).

mod accept;
mod decline;
mod extensions;
mod negotiate;
mod proposal;
mod subnet;

pub use accept::{
    AcceptConfirm,
    FirstContact,
    GidList,
    Kind,
    Limits,
    V2Part, //
};
pub use decline::Decline;
pub use extensions::Extensions;
pub use negotiate::{
    check_accept,
    check_confirm,
    choose,
    clamp_limits,
    Agreed,
    Choice,
    Confirmed,
    Offer,
    ServerPolicy, //
};
pub use proposal::{
    Eids,
    PrefixArea,
    Prefixes,
    Proposal,
    ProposalV1,
    ProposalV2,
    V2Extension, //
};
pub use subnet::{
    OfferedSubnets,
    Subnet, //
};

use super::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use super::wire::{
    Reader,
    Writer, //
};

/// Length of the header that starts every message.
pub const HEADER_LEN: usize = 8;

/// Length of the trailer that ends every message.
pub const TRAILER_LEN: usize = 4;

/// The largest message that is received; a header with a greater length is refused.
pub const MAX_MESSAGE: usize = 1024;

/// The largest proposal that is sent: version 1 and 2 together, 8 prefixes and 8 ids.
pub const MAX_PROPOSAL: usize = 40 + 40 + 8 + 8 * 17 + 40 + 8 * 32 + TRAILER_LEN;

/// The largest Accept or Confirm that is sent: first contact with [`MAX_GIDS`] GIDs.
pub const MAX_ACCEPT_CONFIRM: usize = 104 + 52 + 4 + 16 * MAX_GIDS + TRAILER_LEN;

/// How many GIDs a Confirm of ours may list.
pub const MAX_GIDS: usize = 8;

/// How many enterprise ids a proposal may list.
pub const MAX_EIDS: usize = 8;

/// How many IPv6 prefixes a proposal may list.
pub const MAX_PREFIXES: usize = 8;

/// Length of a Decline of version 1.
pub const DECLINE_LEN_V1: usize = 28;

/// Length of a Decline of version 2.
pub const DECLINE_LEN_V2: usize = 44;

/// The smallest number of connections per link group that may be negotiated.
pub const MIN_CONNS: u8 = 16;

/// The release of version 2 that is spoken here: 2.1.
pub const RELEASE: u8 = 1;

/// Eyecatcher of SMC-R messages: `SMCR` in EBCDIC.
const EYECATCHER_R: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// Eyecatcher of SMC-D messages: `SMCD` in EBCDIC.
const EYECATCHER_D: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xc4];

/// The flag in the low half of header byte 7: first contact, or out of sync in a Decline.
const FLAG: u8 = 0x08;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// The client's offer.
    Proposal,
    /// The server's answer.
    Accept,
    /// The client's agreement.
    Confirm,
    /// Either side goes on with TCP.
    Decline,
}

impl MessageType {
    /// The wire byte.
    pub const fn code(self) -> u8 {
        match self {
            Self::Proposal => 1,
            Self::Accept => 2,
            Self::Confirm => 3,
            Self::Decline => 4,
        }
    }

    /// Reads the wire byte.
    pub const fn from_code(v: u8) -> Option<Self> {
        match v {
            1 => Some(Self::Proposal),
            2 => Some(Self::Accept),
            3 => Some(Self::Confirm),
            4 => Some(Self::Decline),
            _ => None,
        }
    }

    /// The shortest legal message of this type.
    const fn min_len(self) -> u16 {
        match self {
            Self::Proposal => 52,
            // SMC-D version 1 is 48 bytes long.
            Self::Accept | Self::Confirm => 48,
            Self::Decline => 28,
        }
    }
}

/// The version of the protocol that a message follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// RFC 7609.
    V1,
    /// SMC v2, any release.
    V2,
}

impl Version {
    /// The number in the header.
    pub const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// What a proposal offers in one version, and which technology an answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tech {
    /// SMC-R (code 0).
    R,
    /// SMC-D (code 1).
    D,
    /// Neither (code 2).
    None,
    /// Both (code 3).
    Both,
}

impl Tech {
    /// Reads the low two bits.
    pub const fn from_bits(v: u8) -> Self {
        match v & 3 {
            0 => Self::R,
            1 => Self::D,
            2 => Self::None,
            _ => Self::Both,
        }
    }

    /// The two bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::R => 0,
            Self::D => 1,
            Self::None => 2,
            Self::Both => 3,
        }
    }

    /// Whether SMC-R is among it.
    pub const fn has_r(self) -> bool {
        matches!(self, Self::R | Self::Both)
    }

    /// Whether SMC-D is among it.
    pub const fn has_d(self) -> bool {
        matches!(self, Self::D | Self::Both)
    }

    /// Whether anything is offered.
    pub const fn any(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// The header of a message (RFC 7609, appendix A.2).
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 4 | eyecatcher |
/// | 4 | 1 | type |
/// | 5 | 2 | length of the whole message |
/// | 7 | 1 | bits 7-4 version; bits 3-2 offer of version 2; bits 1-0 offer of version 1 or chosen technology |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Message type.
    pub kind: MessageType,
    /// Whole length, header and trailer included, between 28 and [`MAX_MESSAGE`].
    pub length: u16,
    /// Version number, at least 1. A number above 2 is treated as 2.
    pub version: u8,
    /// Low half of byte 7.
    pub low: u8,
    /// Whether the eyecatcher is that of SMC-D.
    pub is_d: bool,
}

impl Header {
    /// Judges the first eight bytes of a message before anything else is read.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong: the bytes are then no CLC message, and the TCP connection
    /// should end (RFC 7609, appendix C.6).
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let [e0, e1, e2, e3, kind, l0, l1, last] = *bytes;
        let is_d = match [e0, e1, e2, e3] {
            EYECATCHER_R => false,
            EYECATCHER_D => true,
            _ => return Err(DecodeError::new("eyecatcher", Why::Marker)),
        };
        let kind =
            MessageType::from_code(kind).ok_or(DecodeError::new("type", Why::Unsupported))?;
        let length = u16::from_be_bytes([l0, l1]);
        if length < kind.min_len() || usize::from(length) > MAX_MESSAGE {
            return Err(DecodeError::new("length", Why::Length));
        }
        let version = last >> 4;
        if version == 0 {
            return Err(DecodeError::new("version", Why::Value));
        }
        Ok(Self {
            kind,
            length,
            version,
            low: last & 0x0f,
            is_d,
        })
    }

    /// Length of the whole message in bytes.
    pub fn len(&self) -> usize {
        usize::from(self.length)
    }

    /// Never true: a message has at least its header.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The version whose layout the message has.
    pub const fn layout(&self) -> Version {
        if self.version >= 2 {
            Version::V2
        } else {
            Version::V1
        }
    }

    /// What a proposal offers for version 1, or what an answer uses.
    pub const fn type_v1(&self) -> Tech {
        Tech::from_bits(self.low)
    }

    /// What a proposal offers for version 2; nothing when the header says version 1.
    pub const fn type_v2(&self) -> Tech {
        if self.version >= 2 {
            Tech::from_bits(self.low >> 2)
        } else {
            Tech::None
        }
    }

    /// The first-contact flag of Accept and Confirm, the out-of-sync flag of Decline.
    pub const fn flag(&self) -> bool {
        self.low & FLAG != 0
    }
}

/// Judges header and trailer of a complete message and its type.
///
/// Returns the header and the bytes between header and trailer.
fn open(bytes: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
    let mut r = Reader::new(bytes);
    let head = r.array::<HEADER_LEN>("header")?;
    let header = Header::decode(&head)?;
    if header.len() != bytes.len() {
        return Err(DecodeError::new("length", Why::Length));
    }
    let body = r
        .remaining()
        .checked_sub(TRAILER_LEN)
        .ok_or(DecodeError::truncated("trailer"))?;
    let body = r.bytes(body, "body")?;
    let want = if header.is_d {
        EYECATCHER_D
    } else {
        EYECATCHER_R
    };
    if r.array::<TRAILER_LEN>("trailer")? != want {
        return Err(DecodeError::new("trailer", Why::Marker));
    }
    Ok((header, body))
}

/// Writes the header of an SMC-R message.
fn write_header(
    w: &mut Writer<'_>,
    kind: MessageType,
    length: usize,
    version: Version,
    low: u8,
) -> Result<(), EncodeError> {
    let length = u16::try_from(length).map_err(|_| EncodeError::TooMany)?;
    w.put(&EYECATCHER_R)?;
    w.u8(kind.code())?;
    w.be16(length)?;
    w.u8((version.number() << 4) | (low & 0x0f))
}

/// Writes the trailer and checks that the message has the length its header says.
fn write_trailer(w: &mut Writer<'_>, length: usize) -> Result<usize, EncodeError> {
    w.put(&EYECATCHER_R)?;
    if w.len() == length {
        Ok(length)
    } else {
        Err(EncodeError::Inconsistent)
    }
}
