// SPDX-License-Identifier: GPL-2.0

//! Physical network ids: which RDMA port belongs to which network interface.
//!
//! The table itself is the shell's; its rows come in as an iterator.

use super::error::{
    DecodeError,
    Why, //
};

/// Length of a physical network id.
pub const PNETID_LEN: usize = 16;

/// Length of an interface name with its NUL.
pub const ETHNAME_LEN: usize = 16;

/// Length of an RDMA device name with its NUL.
pub const IBNAME_LEN: usize = 64;

/// How many ports an RDMA device may have here.
pub const MAX_PORTS: u8 = 2;

/// A physical network id: letters and digits, upper case, padded with blanks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PnetId([u8; PNETID_LEN]);

impl PnetId {
    /// Takes a name of 1 to 16 letters and digits; lower case becomes upper case, blanks at the
    /// end are cut.
    ///
    /// # Errors
    ///
    /// Names the rule that `name` breaks.
    pub fn new(name: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = name;
        while let [head @ .., b' '] = rest {
            rest = head;
        }
        if rest.is_empty() || rest.len() > PNETID_LEN {
            return Err(DecodeError::new("pnetid", Why::Length));
        }
        let mut out = [b' '; PNETID_LEN];
        for (o, c) in out.iter_mut().zip(rest) {
            if !c.is_ascii_alphanumeric() {
                return Err(DecodeError::new("pnetid", Why::Value));
            }
            *o = c.to_ascii_uppercase();
        }
        Ok(Self(out))
    }

    /// The 16 bytes with their padding.
    pub const fn as_bytes(&self) -> &[u8; PNETID_LEN] {
        &self.0
    }

    /// The name without its padding.
    pub fn name(&self) -> &[u8] {
        let mut rest: &[u8] = &self.0;
        while let [head @ .., b' '] = rest {
            rest = head;
        }
        rest
    }
}

/// What a row of the table gives an id to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A network interface by its name.
    Eth(&'a [u8]),
    /// A port of an RDMA device by its name and number.
    Ib(&'a [u8], u8),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The id.
    pub id: PnetId,
    /// Who has it.
    pub target: Target<'a>,
}

impl Target<'_> {
    /// Checks a name and, for an RDMA device, its port.
    ///
    /// # Errors
    ///
    /// Names the rule that is broken.
    pub fn check(&self) -> Result<(), DecodeError> {
        let (name, len, field) = match self {
            Self::Eth(name) => (name, ETHNAME_LEN, "ethname"),
            Self::Ib(name, _) => (name, IBNAME_LEN, "ibname"),
        };
        if name.is_empty() || name.len() >= len {
            return Err(DecodeError::new(field, Why::Length));
        }
        match self {
            Self::Ib(_, port) if *port == 0 || *port > MAX_PORTS => {
                Err(DecodeError::new("ibport", Why::Bound))
            }
            _ => Ok(()),
        }
    }
}

/// The id that the table gives to a target.
pub fn lookup<'a, I>(mut rows: I, target: &Target<'_>) -> Option<PnetId>
where
    I: Iterator<Item = Row<'a>>,
{
    rows.find(|r| r.target == *target).map(|r| r.id)
}

/// The id of an interface: what the hardware says counts, then the table for the lowest device
/// below it, then the table for itself.
pub fn interface_id<'a, I>(
    hardware: Option<PnetId>,
    rows: I,
    base: &[u8],
    name: &[u8],
) -> Option<PnetId>
where
    I: Iterator<Item = Row<'a>> + Clone,
{
    hardware
        .or_else(|| lookup(rows.clone(), &Target::Eth(base)))
        .or_else(|| lookup(rows, &Target::Eth(name)))
}

/// An RDMA port that a connection might use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port is up and may be used from the namespace.
    pub usable: bool,
    /// Its id, of the hardware or of the table.
    pub id: Option<PnetId>,
    /// The network interface of the port is the lowest device below that of the connection.
    pub own: bool,
}

/// Whether a port serves a connection whose interface has this id: the ids are the same, or the
/// interface has none and is the port's own.
pub fn serves(interface: Option<PnetId>, port: &Port) -> bool {
    port.usable
        && match interface {
            Some(id) => port.id == Some(id),
            None => port.own,
        }
}
