// SPDX-License-Identifier: GPL-2.0

//! Connection data control: the 44-byte message that moves cursors and flags (RFC 7609, sections
//! 3.4 and 4.3).

use super::cursor::Cursor;
use super::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use super::ids::AlertToken;
use super::wire::{
    Reader,
    Writer, //
};

/// The first byte of every CDC message.
pub const TYPE: u8 = 0xfe;

/// The length of every CDC message.
pub const LEN: usize = 44;

/// The value of the length byte.
const LEN_BYTE: u8 = 44;

/// Flags that go with the producer cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProdFlags {
    /// The sender has data that does not fit into the window (bit 7, `write_blocked`).
    pub write_blocked: bool,
    /// Urgent data is on its way (bit 6, `urg_data_pending`).
    pub urgent_pending: bool,
    /// The byte before the producer cursor is urgent (bit 5, `urg_data_present`).
    pub urgent_present: bool,
    /// The sender wants a consumer cursor update (bit 4, `cons_curs_upd_req`).
    pub update_requested: bool,
    /// The message only validates what arrived before a link change (bit 3, `failover_validation`).
    pub failover_validation: bool,
}

impl ProdFlags {
    /// Bits of the wire byte.
    const WRITE_BLOCKED: u8 = 0x80;
    /// See [`ProdFlags::urgent_pending`].
    const URGENT_PENDING: u8 = 0x40;
    /// See [`ProdFlags::urgent_present`].
    const URGENT_PRESENT: u8 = 0x20;
    /// See [`ProdFlags::update_requested`].
    const UPDATE_REQUESTED: u8 = 0x10;
    /// See [`ProdFlags::failover_validation`].
    const FAILOVER_VALIDATION: u8 = 0x08;

    /// Reads the wire byte; reserved bits are ignored.
    pub const fn from_byte(b: u8) -> Self {
        Self {
            write_blocked: b & Self::WRITE_BLOCKED != 0,
            urgent_pending: b & Self::URGENT_PENDING != 0,
            urgent_present: b & Self::URGENT_PRESENT != 0,
            update_requested: b & Self::UPDATE_REQUESTED != 0,
            failover_validation: b & Self::FAILOVER_VALIDATION != 0,
        }
    }

    /// The wire byte with reserved bits zero.
    pub const fn to_byte(self) -> u8 {
        bit(self.write_blocked, Self::WRITE_BLOCKED)
            | bit(self.urgent_pending, Self::URGENT_PENDING)
            | bit(self.urgent_present, Self::URGENT_PRESENT)
            | bit(self.update_requested, Self::UPDATE_REQUESTED)
            | bit(self.failover_validation, Self::FAILOVER_VALIDATION)
    }
}

/// Flags about the state of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnFlags {
    /// The sender will write no more data (bit 7, `peer_done_writing`).
    pub sending_done: bool,
    /// The sender has closed and is done with our RMBE (bit 6, `peer_conn_closed`).
    pub closed: bool,
    /// The sender has aborted (bit 5, `peer_conn_abort`).
    pub abort: bool,
}

impl ConnFlags {
    /// Bits of the wire byte.
    const SENDING_DONE: u8 = 0x80;
    /// See [`ConnFlags::closed`].
    const CLOSED: u8 = 0x40;
    /// See [`ConnFlags::abort`].
    const ABORT: u8 = 0x20;

    /// Reads the wire byte; reserved bits are ignored.
    pub const fn from_byte(b: u8) -> Self {
        Self {
            sending_done: b & Self::SENDING_DONE != 0,
            closed: b & Self::CLOSED != 0,
            abort: b & Self::ABORT != 0,
        }
    }

    /// The wire byte with reserved bits zero.
    pub const fn to_byte(self) -> u8 {
        bit(self.sending_done, Self::SENDING_DONE)
            | bit(self.closed, Self::CLOSED)
            | bit(self.abort, Self::ABORT)
    }

    /// Whether any flag is set.
    pub const fn any(self) -> bool {
        self.sending_done || self.closed || self.abort
    }
}

/// `mask` if `on`, else 0.
const fn bit(on: bool, mask: u8) -> u8 {
    if on {
        mask
    } else {
        0
    }
}

/// A CDC message (RFC 7609, appendix A.4).
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 1 | type 0xfe |
/// | 1 | 1 | length 44 |
/// | 2 | 2 | sequence number |
/// | 4 | 4 | alert token of the receiver |
/// | 8 | 8 | producer cursor: reserved 2, wrap 2, count 4 |
/// | 16 | 8 | consumer cursor, same layout |
/// | 24 | 1 | producer flags |
/// | 25 | 1 | connection state flags |
/// | 26 | 18 | reserved |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sequence number; the first message of a connection has 1, and 65535 is followed by 0.
    pub seq: u16,
    /// The receiver's own token.
    pub token: AlertToken,
    /// Where the sender will write next in the receiver's element.
    pub prod: Cursor,
    /// Where the sender will read next in its own element.
    pub cons: Cursor,
    /// Flags about the sender's data.
    pub prod_flags: ProdFlags,
    /// Flags about the connection.
    pub conn_flags: ConnFlags,
}

impl Message {
    /// Reads a message; `bytes` is what the completion says has arrived.
    ///
    /// # Errors
    ///
    /// Fails for a wrong type or length byte, or when fewer than 44 bytes arrived. Bytes behind
    /// the 44th are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u8("type")? != TYPE {
            return Err(DecodeError::new("type", Why::Marker));
        }
        if r.u8("length")? != LEN_BYTE {
            return Err(DecodeError::new("length", Why::Length));
        }
        let seq = r.be16("seq")?;
        let token = AlertToken::from_peer(r.be32("token")?);
        let prod = decode_cursor(&mut r, "prod")?;
        let cons = decode_cursor(&mut r, "cons")?;
        let prod_flags = ProdFlags::from_byte(r.u8("prod_flags")?);
        let conn_flags = ConnFlags::from_byte(r.u8("conn_flags")?);
        r.skip(18, "reserved")?;
        Ok(Self {
            seq,
            token,
            prod,
            cons,
            prod_flags,
            conn_flags,
        })
    }

    /// The 44 bytes of the message.
    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        // The fields end at byte 26, so writing cannot fail.
        let _ = self.encode_into(&mut out);
        out
    }

    /// Writes the message into `out` and returns its length.
    ///
    /// # Errors
    ///
    /// Fails when `out` has fewer than 44 bytes.
    pub fn encode_into(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut w = Writer::new(out);
        w.put(&[TYPE, LEN_BYTE])?;
        w.be16(self.seq)?;
        w.be32(self.token.get())?;
        encode_cursor(&mut w, self.prod)?;
        encode_cursor(&mut w, self.cons)?;
        w.put(&[self.prod_flags.to_byte(), self.conn_flags.to_byte()])?;
        w.pad_to(LEN)?;
        Ok(w.len())
    }
}

/// Reads one cursor: two reserved bytes, wrap, count.
fn decode_cursor(r: &mut Reader<'_>, field: &'static str) -> Result<Cursor, DecodeError> {
    r.skip(2, field)?;
    Ok(Cursor {
        wrap: r.be16(field)?,
        count: r.be32(field)?,
    })
}

/// Writes one cursor.
fn encode_cursor(w: &mut Writer<'_>, c: Cursor) -> Result<(), EncodeError> {
    w.zeros(2)?;
    w.be16(c.wrap)?;
    w.be32(c.count)
}
