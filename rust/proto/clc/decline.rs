// SPDX-License-Identifier: GPL-2.0

//! The Decline: either side goes on with TCP (RFC 7609, section 3.5.1.6.4, appendices
//! C.1, C.2, C.3 and C.4).

use super::{
    open,
    write_header,
    write_trailer,
    MessageType,
    Tech,
    Version,
    DECLINE_LEN_V1,
    DECLINE_LEN_V2,
    FLAG, //
};
use crate::proto::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use crate::proto::ids::{
    OsType,
    PeerId, //
};
use crate::proto::reason::DeclineReason;
use crate::proto::wire::{
    Reader,
    Writer, //
};

/// A Decline (RFC 7609, appendix A.2.5).
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 8 | header; flag 0x08 is out of sync |
/// | 8 | 8 | peer id |
/// | 16 | 4 | diagnosis |
/// | 20 | 1 | version 2: bits 7-4 operating system |
/// | 21 | 3 | reserved |
/// | 24 | 16 | version 2: further diagnosis, implementation defined |
/// | end - 4 | 4 | trailer |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decline {
    /// The version whose form the message has; any version is accepted in any phase.
    pub version: Version,
    /// The sender's view of the link group differs: the receiver ends that group.
    pub out_of_sync: bool,
    /// The sender's stack instance.
    pub peer_id: PeerId,
    /// Why.
    pub reason: DeclineReason,
    /// The sender's operating system; zero in version 1.
    pub os: OsType,
}

impl Decline {
    /// A Decline as this implementation sends it.
    pub fn new(version: Version, peer_id: PeerId, reason: DeclineReason) -> Self {
        Self {
            version,
            out_of_sync: reason == DeclineReason::SYNCERR,
            peer_id,
            reason,
            os: match version {
                Version::V1 => OsType::default(),
                Version::V2 => OsType::LINUX,
            },
        }
    }

    /// Reads a complete Decline. Reserved bits and unknown diagnoses are taken as they are.
    ///
    /// # Errors
    ///
    /// Names the field that is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (header, body) = open(bytes)?;
        if header.kind != MessageType::Decline {
            return Err(DecodeError::new("type", Why::Unsupported));
        }
        let version = header.layout();
        let want = match version {
            Version::V1 => DECLINE_LEN_V1,
            Version::V2 => DECLINE_LEN_V2,
        };
        if bytes.len() != want {
            return Err(DecodeError::new("length", Why::Length));
        }
        let mut r = Reader::new(body);
        let peer_id = PeerId(r.array("peer_id")?);
        let reason = DeclineReason::from_code(r.be32("diagnosis")?);
        let os = match version {
            Version::V1 => OsType::default(),
            Version::V2 => OsType::from_nibble(r.u8("os_type")? >> 4),
        };
        Ok(Self {
            version,
            out_of_sync: header.flag(),
            peer_id,
            reason,
            os,
        })
    }

    /// Writes the message and returns its length.
    ///
    /// # Errors
    ///
    /// Fails when the buffer is smaller than the message.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let len = match self.version {
            Version::V1 => DECLINE_LEN_V1,
            Version::V2 => DECLINE_LEN_V2,
        };
        let flag = if self.out_of_sync { FLAG } else { 0 };
        let mut w = Writer::new(out);
        let w = &mut w;
        write_header(
            w,
            MessageType::Decline,
            len,
            self.version,
            flag | Tech::R.bits(),
        )?;
        w.put(&self.peer_id.0)?;
        w.be32(self.reason.code())?;
        w.u8(self.os.get() << 4)?;
        w.pad_to(len.saturating_sub(super::TRAILER_LEN))?;
        write_trailer(w, len)
    }
}
