// SPDX-License-Identifier: GPL-2.0

//! Which exchanges the key of a receive ring needs (RFC 7609, section 3.5.5.2), and which of them a peer of this
//! implementation can do without.

use crate::proto::{
    clc::Extensions,
    ids::OsType, //
};

/// How long a link may have been silent that a connection takes without asking.
pub const FRESH_MS: u32 = 1000;

/// Whether the peer has to be told a key by CONFIRM RKEY, beyond its place in Accept or Confirm.
///
/// `quiet_ms` is how long the peer has not been heard of on the only link; nothing where there are several or one is
/// being added. A link that is added later tells the keys of all rings in use. On a link that was silent for longer than
/// [`FRESH_MS`] the exchange also shows that the way to the peer is still there, before a connection relies on it.
pub const fn needs_confirm(agreed: Extensions, quiet_ms: Option<u32>) -> bool {
    match quiet_ms {
        Some(ms) => ms > FRESH_MS || !agreed.contains(Extensions::OWN_KEYS),
        None => true,
    }
}

/// Whether the peer has to be told by DELETE RKEY to forget a key that it knows, before the key is made invalid.
///
/// `last_word` says that a connection had the ring and that its peer has closed or aborted it: everything it wrote has
/// arrived before that, and it writes no more.
pub const fn needs_delete(agreed: Extensions, last_word: bool) -> bool {
    !(last_word && agreed.contains(Extensions::OWN_KEYS))
}

/// Whether a client whose key is refused in the midst of a change of links tells it again after the change, as RFC 7609
/// asks for (section 3.5.5.3).
///
/// The C implementation in Linux does not, and its connection goes by TCP. It begins no exchange about keys in the midst
/// of a change, so that such a key has crossed with the change or comes after it, and it lists all its keys in the change:
/// nothing is missed if it is taken.
pub fn tells_again(os: OsType, agreed: Extensions) -> bool {
    os != OsType::LINUX || agreed != Extensions::NONE
}
