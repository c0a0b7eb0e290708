// SPDX-License-Identifier: GPL-2.0

//! Whole CLC messages over the TCP connection.
//!
//! Never a byte more is read than the message has: what follows a Decline belongs to the application.

use kernel::prelude::*;

use super::{
    Stop,
    WAIT_DECLINE_MS,
    WAIT_MS, //
};
use crate::{
    kapi::net::TcpSocket,
    proto::{
        clc::{
            Decline,
            Header,
            MessageType,
            Version,
            DECLINE_LEN_V1,
            DECLINE_LEN_V2,
            HEADER_LEN,
            MAX_MESSAGE, //
        },
        reason::DeclineReason, //
    },
    smc_ib, //
};

/// One end of a handshake.
pub(super) struct Channel<'a> {
    /// The TCP connection.
    tcp: &'a TcpSocket,
    /// The message received last, then the one to send.
    buffer: KVec<u8>,
    /// The form of a Decline that the peer understands by now.
    pub(super) version: Version,
    /// Whether a Decline of the peer may be on its way while this side sends its own.
    pub(super) late: bool,
}

impl<'a> Channel<'a> {
    /// A channel on an established connection.
    pub(super) fn new(tcp: &'a TcpSocket) -> Result<Self> {
        Ok(Self {
            tcp,
            buffer: KVec::from_elem(0, MAX_MESSAGE, GFP_KERNEL)?,
            version: Version::V1,
            late: false,
        })
    }

    /// Sends the message that `encode` writes.
    pub(super) fn send<E>(
        &mut self,
        encode: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), Stop> {
        let length = encode(&mut self.buffer).map_err(|_| Stop::Decline(DeclineReason::INTERR))?;
        let message = self
            .buffer
            .get(..length)
            .ok_or(Stop::Decline(DeclineReason::INTERR))?;
        self.tcp.send_all(message).map_err(Stop::Fatal)
    }

    /// Receives the next message, which must be one of type `want`.
    ///
    /// # Errors
    ///
    /// [`Stop::Declined`] for a Decline; [`Stop::Fatal`] with `ETIMEDOUT` after six seconds, with `ECONNRESET` at the
    /// end of the stream, with `EPROTO` for anything that is no such message.
    pub(super) fn receive(&mut self, want: MessageType) -> Result<&[u8], Stop> {
        let (kind, length) = self.receive_any(WAIT_MS)?;
        let message = self.buffer.get(..length).ok_or(Stop::Fatal(EPROTO))?;
        if kind == MessageType::Decline {
            return Err(declined(message));
        }
        if kind != want {
            return Err(Stop::Fatal(EPROTO));
        }
        Ok(message)
    }

    /// Reads one message into the buffer: its type and its length.
    fn receive_any(&mut self, timeout_ms: u32) -> Result<(MessageType, usize), Stop> {
        let mut head = [0; HEADER_LEN];
        self.tcp
            .recv_exact(&mut head, timeout_ms)
            .map_err(Stop::Fatal)?;
        let header = Header::decode(&head).map_err(|_| Stop::Fatal(EPROTO))?;
        let (first, rest) = self
            .buffer
            .get_mut(..header.len())
            .and_then(|message| message.split_at_mut_checked(HEADER_LEN))
            .ok_or(Stop::Fatal(EPROTO))?;
        first.copy_from_slice(&head);
        self.tcp.recv_exact(rest, timeout_ms).map_err(Stop::Fatal)?;
        Ok((header.kind, header.len()))
    }

    /// Tells the peer that this side goes on with TCP.
    ///
    /// # Errors
    ///
    /// Fails when the connection does.
    pub(super) fn decline(&mut self, reason: DeclineReason) -> Result {
        let message = Decline::new(self.version, smc_ib::system_id(), reason);
        let mut bytes = [0; DECLINE_LEN_V2];
        let length = message.encode(&mut bytes).map_err(|_| EINVAL)?;
        self.tcp.send_all(bytes.get(..length).ok_or(EINVAL)?)?;
        if self.late {
            self.take_crossing_decline();
        }
        Ok(())
    }

    /// The peer's Decline, if one comes within a second; otherwise `otherwise`.
    pub(super) fn peer_decline_or(&mut self, otherwise: DeclineReason) -> Stop {
        if !self.decline_waits() {
            return Stop::Decline(otherwise);
        }
        match self.receive_any(WAIT_DECLINE_MS) {
            Ok((MessageType::Decline, length)) => self
                .buffer
                .get(..length)
                .map_or(Stop::Fatal(EPROTO), declined),
            Ok(_) => Stop::Fatal(EPROTO),
            Err(stop) => stop,
        }
    }

    /// Takes a Decline out of the stream that the peer sent while ours was on its way; data of the application stays.
    fn take_crossing_decline(&mut self) {
        if self.decline_waits() {
            // What was seen is there, so that this neither waits nor fails but with the connection itself.
            let _ = self.receive_any(WAIT_DECLINE_MS);
        }
    }

    /// Waits up to a second and looks, without reading, whether the next bytes are a whole Decline.
    fn decline_waits(&self) -> bool {
        let mut bytes = [0; DECLINE_LEN_V2];
        let Some(short) = bytes.get_mut(..DECLINE_LEN_V1) else {
            return false;
        };
        match self.tcp.peek(short, WAIT_DECLINE_MS) {
            Ok(DECLINE_LEN_V1) => {}
            _ => return false,
        }
        let Some(Ok(header)) = short.first_chunk::<HEADER_LEN>().map(Header::decode) else {
            return false;
        };
        if header.kind != MessageType::Decline {
            return false;
        }
        let Some(whole) = bytes.get_mut(..header.len()) else {
            return false;
        };
        self.tcp
            .peek(whole, WAIT_DECLINE_MS)
            .is_ok_and(|there| there == whole.len() && Decline::decode(whole).is_ok())
    }
}

/// What a received Decline says.
fn declined(message: &[u8]) -> Stop {
    match Decline::decode(message) {
        Ok(decline) => Stop::Declined(decline.reason.code()),
        Err(_) => Stop::Fatal(EPROTO),
    }
}
