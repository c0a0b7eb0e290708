// SPDX-License-Identifier: GPL-2.0

//! Errors of the protocol core: each names the field and the cause.

/// Why a field of a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The bytes end before the field does.
    Truncated,
    /// Bytes remain that no field accounts for, or a length field disagrees with the layout.
    Length,
    /// A fixed marker (eyecatcher, type byte) has another value.
    Marker,
    /// The value lies outside what the field may hold.
    Value,
    /// A count or an offset points outside the message or above its limit.
    Bound,
    /// The message is well formed but of a kind that is not handled here.
    Unsupported,
}

/// A received message could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The field that was being read, in the vocabulary of the struct that documents it.
    pub field: &'static str,
    /// What was wrong with it.
    pub why: Why,
}

impl DecodeError {
    /// Names the field and the cause.
    pub const fn new(field: &'static str, why: Why) -> Self {
        Self { field, why }
    }

    /// The bytes ended inside `field`.
    pub const fn truncated(field: &'static str) -> Self {
        Self::new(field, Why::Truncated)
    }
}

/// A message could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The output buffer is smaller than the message.
    NoRoom,
    /// A list is longer than the message can carry.
    TooMany,
    /// Parts of the message contradict each other.
    Inconsistent,
}

/// Any error of the protocol core, for a single conversion in the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoError {
    /// A received message was malformed.
    Decode(DecodeError),
    /// A message could not be written.
    Encode(EncodeError),
    /// A peer's CDC message broke a rule of the connection.
    Violation(super::conn::ConnViolation),
    /// An event does not fit the socket state.
    Transition(super::close::InvalidTransition),
    /// The two sides cannot agree.
    Decline(super::reason::DeclineReason),
}

impl From<DecodeError> for ProtoError {
    fn from(e: DecodeError) -> Self {
        Self::Decode(e)
    }
}

impl From<EncodeError> for ProtoError {
    fn from(e: EncodeError) -> Self {
        Self::Encode(e)
    }
}

impl From<super::conn::ConnViolation> for ProtoError {
    fn from(e: super::conn::ConnViolation) -> Self {
        Self::Violation(e)
    }
}

impl From<super::close::InvalidTransition> for ProtoError {
    fn from(e: super::close::InvalidTransition) -> Self {
        Self::Transition(e)
    }
}

impl From<super::reason::DeclineReason> for ProtoError {
    fn from(e: super::reason::DeclineReason) -> Self {
        Self::Decline(e)
    }
}
