// SPDX-License-Identifier: GPL-2.0

//! Link layer control: the messages that build and keep links, sent over the links themselves
//! (RFC 7609, section 3.3).
//!
//! A message is what one SEND completion delivered. Its length comes from the completion: the
//! length field of version 2 is in the byte order of the sender's machine in Linux and is
//! therefore not read.

mod message;
mod rkeys;

pub use message::{
    AddLink,
    AddLinkCont,
    ConfirmLink,
    ConfirmRkey,
    ConfirmRkeyCont,
    DeleteLink,
    DeleteRkey,
    Extension,
    LinkRtoken,
    ReqAddLink, //
};
pub use rkeys::{
    Gids,
    MovedRtoken,
    MovedRtokens,
    Rkeys, //
};

/// The version whose layout a message has: opcodes 0x01 to 0x09, or 0x21 to 0x29. It is that of the link group's
/// handshake.
pub use super::clc::Version;

use super::cdc;
use super::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use super::wire::{
    Reader,
    Writer, //
};

/// Length of every message but the long ones of version 2.
pub const LEN: usize = 44;

/// The largest message of version 2.
pub const MAX_LEN: usize = 8192;

/// How many keys or tokens a long message may list.
pub const MAX_RKEYS: usize = 255;

/// Bits that turn an opcode of version 1 into one of version 2.
const V2_BITS: u8 = 0x20;

/// Flag bit: this is the answer.
const RESPONSE: u8 = 0x80;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Shows that a new link carries messages.
    ConfirmLink,
    /// Offers a further link.
    AddLink,
    /// Carries keys for the further link (version 1).
    AddLinkCont,
    /// Ends a link or the link group.
    DeleteLink,
    /// Asks the server for a further link (version 2).
    ReqAddLink,
    /// Tells the key of a new buffer.
    ConfirmRkey,
    /// Carries what did not fit into the former (version 1).
    ConfirmRkeyCont,
    /// Asks for an echo.
    TestLink,
    /// Withdraws keys.
    DeleteRkey,
}

impl Opcode {
    /// The low bits of the first byte.
    const fn code(self) -> u8 {
        match self {
            Self::ConfirmLink => 1,
            Self::AddLink => 2,
            Self::AddLinkCont => 3,
            Self::DeleteLink => 4,
            Self::ReqAddLink => 5,
            Self::ConfirmRkey => 6,
            Self::TestLink => 7,
            Self::ConfirmRkeyCont => 8,
            Self::DeleteRkey => 9,
        }
    }

    /// The kind of a first byte.
    const fn from_byte(b: u8) -> Option<(Version, Self)> {
        let version = if b & V2_BITS == 0 {
            Version::V1
        } else {
            Version::V2
        };
        let op = match (version, b & !V2_BITS) {
            (_, 1) => Self::ConfirmLink,
            (_, 2) => Self::AddLink,
            (Version::V1, 3) => Self::AddLinkCont,
            (_, 4) => Self::DeleteLink,
            (Version::V2, 5) => Self::ReqAddLink,
            (_, 6) => Self::ConfirmRkey,
            (_, 7) => Self::TestLink,
            (Version::V1, 8) => Self::ConfirmRkeyCont,
            (_, 9) => Self::DeleteRkey,
            _ => return None,
        };
        Some((version, op))
    }
}

/// How a peer writes and reads the two numbers of version 2 that Linux has in the order of its machine: the length of a
/// message, and how many tokens an ADD LINK has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// Network order.
    #[default]
    Network,
    /// Reverse: Linux on a machine of that kind.
    Little,
}

impl ByteOrder {
    /// That of the sender of a message of the ordinary length, by its length field. Version 1 has no such numbers.
    pub fn of_sender(bytes: &[u8]) -> Self {
        match *bytes {
            [first, low, 0, ..] if first & V2_BITS != 0 && usize::from(low) == LEN => Self::Little,
            _ => Self::Network,
        }
    }
}

/// What the first byte of a received SEND says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demux {
    /// A CDC message: [`cdc::Message::decode`].
    Cdc,
    /// An LLC message of this version: [`Llc::decode`].
    Llc(Version),
    /// An unknown message that is to be dropped. RFC 7609, appendix A.3 calls opcodes whose top
    /// bits are 00 an error of the peer; Linux drops all, and so does this implementation, so
    /// that a newer peer does not lose its link group. `must` tells the two apart for counters.
    Unknown {
        /// Whether RFC 7609 demands that the opcode is supported.
        must: bool,
    },
}

/// Sorts a received SEND by its first byte.
pub const fn demux(first: u8) -> Demux {
    if first == cdc::TYPE {
        return Demux::Cdc;
    }
    match Opcode::from_byte(first) {
        Some((version, _)) => Demux::Llc(version),
        None => Demux::Unknown {
            must: first & 0xc0 == 0,
        },
    }
}

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body<'a> {
    /// See [`Opcode::ConfirmLink`].
    ConfirmLink(ConfirmLink),
    /// See [`Opcode::AddLink`].
    AddLink(AddLink<'a>),
    /// See [`Opcode::AddLinkCont`].
    AddLinkCont(AddLinkCont),
    /// See [`Opcode::DeleteLink`].
    DeleteLink(DeleteLink),
    /// See [`Opcode::ReqAddLink`].
    ReqAddLink(ReqAddLink<'a>),
    /// See [`Opcode::ConfirmRkey`].
    ConfirmRkey(ConfirmRkey),
    /// See [`Opcode::ConfirmRkeyCont`].
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// The 16 bytes to send back (RFC 7609, appendix A.3.8).
    TestLink([u8; 16]),
    /// See [`Opcode::DeleteRkey`].
    DeleteRkey(DeleteRkey<'a>),
}

impl Body<'_> {
    /// The kind of the message.
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::ConfirmLink(_) => Opcode::ConfirmLink,
            Self::AddLink(_) => Opcode::AddLink,
            Self::AddLinkCont(_) => Opcode::AddLinkCont,
            Self::DeleteLink(_) => Opcode::DeleteLink,
            Self::ReqAddLink(_) => Opcode::ReqAddLink,
            Self::ConfirmRkey(_) => Opcode::ConfirmRkey,
            Self::ConfirmRkeyCont(_) => Opcode::ConfirmRkeyCont,
            Self::TestLink(_) => Opcode::TestLink,
            Self::DeleteRkey(_) => Opcode::DeleteRkey,
        }
    }
}

/// A message (RFC 7609, appendix A.3).
///
/// | offset | width | version 1 | version 2 |
/// |---|---|---|---|
/// | 0 | 1 | opcode | opcode + 0x20 |
/// | 1 | 1 | length 44 | length, upper byte |
/// | 2 | 1 | low half: reject reason of ADD LINK | length, lower byte |
/// | 3 | 1 | flags, 0x80 is response | flags |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llc<'a> {
    /// Layout.
    pub version: Version,
    /// Whether this answers a request of the same kind.
    pub response: bool,
    /// The contents.
    pub body: Body<'a>,
}

impl<'a> Llc<'a> {
    /// A request.
    pub const fn request(version: Version, body: Body<'a>) -> Self {
        Self {
            version,
            response: false,
            body,
        }
    }

    /// An answer.
    pub const fn response(version: Version, body: Body<'a>) -> Self {
        Self {
            version,
            response: true,
            body,
        }
    }

    /// Reads a message; `bytes` is exactly what the completion says has arrived.
    ///
    /// # Errors
    ///
    /// Names the field that is malformed. The message is then to be dropped and counted.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let [first, len, reason, flags] = r.array("header")?;
        let (version, op) =
            Opcode::from_byte(first).ok_or(DecodeError::new("type", Why::Unsupported))?;
        if bytes.len() < LEN {
            return Err(DecodeError::truncated("message"));
        }
        if bytes.len() > MAX_LEN {
            return Err(DecodeError::new("message", Why::Length));
        }
        if version == Version::V1 && usize::from(len) != LEN {
            return Err(DecodeError::new("length", Why::Length));
        }
        let response = flags & RESPONSE != 0;
        // Version 2 uses the byte of the reason for the length.
        let reason = match version {
            Version::V1 => reason & 0x0f,
            Version::V2 => 0,
        };
        let body = match op {
            Opcode::ConfirmLink => Body::ConfirmLink(ConfirmLink::decode(&mut r, flags)?),
            Opcode::AddLink => Body::AddLink(AddLink::decode(&mut r, version, flags, reason)?),
            Opcode::AddLinkCont => Body::AddLinkCont(AddLinkCont::decode(&mut r)?),
            Opcode::DeleteLink => Body::DeleteLink(DeleteLink::decode(&mut r, flags)?),
            Opcode::ReqAddLink => Body::ReqAddLink(ReqAddLink::decode(&mut r)?),
            Opcode::ConfirmRkey => Body::ConfirmRkey(ConfirmRkey::decode(&mut r, flags)?),
            Opcode::ConfirmRkeyCont => {
                Body::ConfirmRkeyCont(ConfirmRkeyCont::decode(&mut r, flags)?)
            }
            Opcode::TestLink => Body::TestLink(r.array("user_data")?),
            Opcode::DeleteRkey => {
                Body::DeleteRkey(DeleteRkey::decode(&mut r, version, response, flags)?)
            }
        };
        Ok(Self {
            version,
            response,
            body,
        })
    }

    /// Writes the message and returns its length: 44, or more for the long forms of version 2.
    ///
    /// # Errors
    ///
    /// Fails when the buffer is too small, a list too long, or the kind does not exist in the
    /// version.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let op = self.body.opcode();
        let first = match self.version {
            Version::V1 => op.code(),
            Version::V2 => op.code() | V2_BITS,
        };
        if Opcode::from_byte(first).is_none() {
            return Err(EncodeError::Inconsistent);
        }
        let len = self.body.wire_len(self.version)?.max(LEN);
        let mut w = Writer::new(out);
        let w = &mut w;
        w.u8(first)?;
        match self.version {
            Version::V1 => {
                let reason = match &self.body {
                    Body::AddLink(m) => m.reject_reason & 0x0f,
                    _ => 0,
                };
                w.u8(u8::try_from(len).map_err(|_| EncodeError::TooMany)?)?;
                w.u8(reason)?;
            }
            Version::V2 => w.be16(u16::try_from(len).map_err(|_| EncodeError::TooMany)?)?,
        }
        let response = if self.response { RESPONSE } else { 0 };
        w.u8(response | self.body.flags())?;
        self.body.encode(w, self.version)?;
        w.pad_to(len)?;
        Ok(len)
    }

    /// Writes a message of the ordinary length into an array.
    ///
    /// # Errors
    ///
    /// As [`Llc::encode`]; a long message has no room.
    pub fn encode_short(&self) -> Result<[u8; LEN], EncodeError> {
        let mut out = [0; LEN];
        self.encode(&mut out)?;
        Ok(out)
    }
}

/// Passed by value, so it stays small.
const _: () = assert!(core::mem::size_of::<Llc<'_>>() <= 256);
