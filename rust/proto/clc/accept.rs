// SPDX-License-Identifier: GPL-2.0

//! Accept and Confirm: the two messages by which the sides tell each other their buffers
//! (RFC 7609, sections 3.5.1.3, 3.5.1.4, 3.5.2.2 and 3.5.2.3).

use super::{
    open,
    write_header,
    write_trailer,
    Extensions,
    MessageType,
    Tech,
    Version,
    FLAG,
    MAX_GIDS,
    TRAILER_LEN, //
};
use crate::proto::error::{
    DecodeError,
    EncodeError,
    Why, //
};
use crate::proto::ids::{
    AlertToken,
    Eid,
    Gid,
    Hostname,
    Mac,
    MtuCode,
    OsType,
    PeerId,
    Psn,
    Qpn,
    Rkey,
    RmbeIndex,
    Vaddr, //
};
use crate::proto::size::RmbeSizeCode;
use crate::proto::wire::{
    Reader,
    Writer, //
};

/// Length of a version 1 message.
const LEN_V1: usize = 68;

/// Length of a version 2 message without first contact.
const LEN_V2: usize = 108;

/// Length of the first-contact extension without the fields of release 1.
const FCE_LEN: usize = 36;

/// Length of the first-contact extension with the fields of release 1.
const FCE_V21_LEN: usize = 52;

/// Length of the head of the GID list.
const GIDS_FIXED: usize = 4;

/// Length of a GID.
const GID_LEN: usize = 16;

/// Bit of the first extension byte: no gateway between the two.
const DIRECT: u8 = 0x80;

/// Which of the two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the server.
    Accept,
    /// From the client.
    Confirm,
}

/// How many connections and links a link group may have (from release 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections, 16 to 255.
    pub max_conns: u8,
    /// Links, at least 1.
    pub max_links: u8,
}

/// An Accept or a Confirm (RFC 7609, appendices A.2.3 and A.2.4).
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 8 | header; flag 0x08 is first contact |
/// | 8 | 8 | peer id |
/// | 16 | 16 | GID |
/// | 32 | 6 | MAC |
/// | 38 | 3 | queue pair number |
/// | 41 | 4 | RMB key |
/// | 45 | 1 | RMBE index |
/// | 46 | 4 | alert token |
/// | 50 | 1 | bits 7-4 RMBE size code, bits 3-0 MTU code |
/// | 51 | 1 | reserved |
/// | 52 | 8 | RMB virtual address |
/// | 60 | 1 | reserved |
/// | 61 | 3 | initial packet sequence number |
/// | 64 | 32 | version 2: enterprise id |
/// | 96 | 8 | version 2: reserved |
/// | 104 | 36 or 52 | version 2, first contact: extension |
/// | behind | 4 + 16 k | version 2, first contact, Confirm: GID list |
/// | end - 4 | 4 | trailer |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptConfirm {
    /// Accept or Confirm.
    pub kind: Kind,
    /// Whether this connection makes a new link group. RFC 7609 has the flag in the Accept only;
    /// Linux sets it in both.
    pub first_contact: bool,
    /// The sender's stack instance.
    pub peer_id: PeerId,
    /// The sender's GID.
    pub gid: Gid,
    /// The sender's MAC.
    pub mac: Mac,
    /// The sender's queue pair of the link this connection uses.
    pub qpn: Qpn,
    /// Key of the sender's RMB.
    pub rkey: Rkey,
    /// Element of the RMB.
    pub rmbe_index: RmbeIndex,
    /// Token to put into CDC messages to the sender.
    pub token: AlertToken,
    /// Size of the element.
    pub rmbe_size: RmbeSizeCode,
    /// Path MTU of the sender; may be a reserved code, which the negotiation refuses.
    pub mtu: MtuCode,
    /// Address of the RMB.
    pub vaddr: Vaddr,
    /// First packet sequence number of the sender.
    pub psn: Psn,
    /// Version 2 fields; their presence is the version.
    pub v2: Option<V2Part>,
}

/// The fields that version 2 adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V2Part {
    /// The enterprise id that the server chose.
    pub eid: Eid,
    /// The first-contact extension; present exactly when the flag is set.
    pub first_contact: Option<FirstContact>,
}

/// The first-contact extension.
///
/// | offset | width | field |
/// |---|---|---|
/// | 0 | 1 | bit 7: direct, no gateway |
/// | 1 | 1 | bits 7-4 operating system, bits 3-0 release |
/// | 2 | 2 | reserved |
/// | 4 | 32 | host name |
/// | 36 | 1 | connections per link group |
/// | 37 | 1 | links per link group |
/// | 38 | 2 | feature mask |
/// | 40 | 4 | vendor and options |
/// | 44 | 8 | reserved |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstContact {
    /// The path to the peer has no gateway.
    pub direct: bool,
    /// The sender's operating system.
    pub os: OsType,
    /// Release of version 2.
    pub release: u8,
    /// The sender's host name.
    pub hostname: Hostname,
    /// Whether the longer form with limits is on the wire. C sends it for SMC-R at any release.
    pub long: bool,
    /// Limits; zero below release 1.
    pub limits: Limits,
    /// Feature bits; zero below release 1.
    pub features: u16,
    /// What both do beyond the standard; none below release 1.
    pub extensions: Extensions,
}

impl FirstContact {
    /// An extension as this implementation sends it.
    pub const fn new(direct: bool, release: u8, hostname: Hostname, limits: Limits) -> Self {
        Self {
            direct,
            os: OsType::LINUX,
            release,
            hostname,
            long: true,
            limits: if release == 0 {
                Limits {
                    max_conns: 0,
                    max_links: 0,
                }
            } else {
                limits
            },
            features: 0,
            extensions: Extensions::NONE,
        }
    }

    /// The same with these extensions, where the release has room for them.
    #[must_use]
    pub const fn with(mut self, extensions: Extensions) -> Self {
        if self.release > 0 {
            self.extensions = extensions;
        }
        self
    }

    /// Its length on the wire.
    const fn len(&self) -> usize {
        if self.long {
            FCE_V21_LEN
        } else {
            FCE_LEN
        }
    }
}

/// The GIDs that a client lists for a second link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GidList<'a>(&'a [u8]);

impl<'a> GidList<'a> {
    /// The GIDs in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = Gid> + Clone + 'a {
        self.0
            .chunks_exact(GID_LEN)
            .filter_map(|g| g.first_chunk::<GID_LEN>().copied().map(Gid))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len() / GID_LEN
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Limits {
    /// Those of a link group of version 1, which negotiates none in the handshake: CONFIRM LINK may lower the links, to
    /// two at least (RFC 7609, section 2.2.2).
    pub const V1: Self = Self {
        max_conns: 255,
        max_links: 2,
    };
}

impl AcceptConfirm {
    /// The version of the message.
    pub const fn version(&self) -> Version {
        if self.v2.is_some() {
            Version::V2
        } else {
            Version::V1
        }
    }

    /// The first-contact extension, if there is one.
    pub fn extension(&self) -> Option<&FirstContact> {
        self.v2.as_ref()?.first_contact.as_ref()
    }

    /// Where the peer's element starts; `None` when its numbers do not fit into an address space.
    pub fn element(&self) -> Option<Vaddr> {
        self.vaddr.element(self.rmbe_index, self.rmbe_size.bytes())
    }

    /// Reads a complete Accept or Confirm.
    ///
    /// # Errors
    ///
    /// Names the field that is malformed. SMC-D messages are not supported.
    pub fn decode(bytes: &[u8]) -> Result<(Self, GidList<'_>), DecodeError> {
        let (header, body) = open(bytes)?;
        let kind = match header.kind {
            MessageType::Accept => Kind::Accept,
            MessageType::Confirm => Kind::Confirm,
            _ => return Err(DecodeError::new("type", Why::Unsupported)),
        };
        if header.is_d || header.type_v1() != Tech::R {
            return Err(DecodeError::new("type_v1", Why::Unsupported));
        }
        let mut r = Reader::new(body);
        let peer_id = PeerId(r.array("peer_id")?);
        let gid = Gid(r.array("gid")?);
        let mac = Mac(r.array("mac")?);
        let qpn = Qpn::truncate(r.be24("qpn")?);
        let rkey = Rkey(r.be32("rkey")?);
        let rmbe_index = RmbeIndex::new(r.u8("rmbe_index")?)
            .ok_or(DecodeError::new("rmbe_index", Why::Value))?;
        let token = AlertToken::from_peer(r.be32("token")?);
        let sizes = r.u8("sizes")?;
        r.skip(1, "reserved")?;
        let vaddr = Vaddr(r.be64("vaddr")?);
        r.skip(1, "reserved")?;
        let psn = Psn::truncate(r.be24("psn")?);

        let mut gids = GidList::default();
        let mut v2 = None;
        if header.layout() == Version::V2 {
            let eid = Eid(r.array("eid")?);
            r.skip(8, "reserved")?;
            let mut first_contact = None;
            if header.flag() {
                let (fce, list) = decode_first_contact(&mut r, kind)?;
                first_contact = Some(fce);
                gids = list;
            }
            v2 = Some(V2Part { eid, first_contact });
        }
        if r.remaining() != 0 {
            return Err(DecodeError::new("length", Why::Length));
        }
        let msg = Self {
            kind,
            first_contact: header.flag(),
            peer_id,
            gid,
            mac,
            qpn,
            rkey,
            rmbe_index,
            token,
            rmbe_size: RmbeSizeCode::from_nibble(sizes >> 4),
            mtu: MtuCode::from_nibble(sizes),
            vaddr,
            psn,
            v2,
        };
        Ok((msg, gids))
    }

    /// Writes the message; `gids` is for the Confirm of a version 2 first contact and must be
    /// empty otherwise.
    ///
    /// # Errors
    ///
    /// Fails when flag and extension contradict each other, for too many GIDs or too small a
    /// buffer.
    pub fn encode(&self, gids: &[Gid], out: &mut [u8]) -> Result<usize, EncodeError> {
        let fce = self.extension();
        if self.v2.is_some() && fce.is_some() != self.first_contact {
            return Err(EncodeError::Inconsistent);
        }
        let lists = fce.is_some() && self.kind == Kind::Confirm;
        if !lists && !gids.is_empty() {
            return Err(EncodeError::Inconsistent);
        }
        if gids.len() > MAX_GIDS {
            return Err(EncodeError::TooMany);
        }
        let mut len = match self.version() {
            Version::V1 => LEN_V1,
            Version::V2 => LEN_V2,
        };
        if let Some(fce) = fce {
            len = len.saturating_add(fce.len());
        }
        if lists {
            let list = gids.len().saturating_mul(GID_LEN);
            len = len.saturating_add(GIDS_FIXED).saturating_add(list);
        }
        let kind = match self.kind {
            Kind::Accept => MessageType::Accept,
            Kind::Confirm => MessageType::Confirm,
        };
        let flag = if self.first_contact { FLAG } else { 0 };

        let mut w = Writer::new(out);
        let w = &mut w;
        write_header(w, kind, len, self.version(), flag | Tech::R.bits())?;
        w.put(&self.peer_id.0)?;
        w.put(&self.gid.0)?;
        w.put(&self.mac.0)?;
        w.be24(self.qpn.get())?;
        w.be32(self.rkey.0)?;
        w.u8(self.rmbe_index.get())?;
        w.be32(self.token.get())?;
        w.put(&[(self.rmbe_size.get() << 4) | self.mtu.get(), 0])?;
        w.be64(self.vaddr.0)?;
        w.u8(0)?;
        w.be24(self.psn.get())?;
        if let Some(v2) = &self.v2 {
            w.put(&v2.eid.0)?;
            w.zeros(8)?;
        }
        if let Some(fce) = fce {
            encode_first_contact(w, fce)?;
        }
        if lists {
            let count = u8::try_from(gids.len()).map_err(|_| EncodeError::TooMany)?;
            w.put(&[count, 0, 0, 0])?;
            for gid in gids {
                w.put(&gid.0)?;
            }
        }
        write_trailer(w, len)
    }
}

/// Reads the first-contact extension and, in a Confirm, the GID list behind it.
///
/// The extension has two lengths; which one it is follows from the length of the message: an
/// Accept ends with it, and a Confirm ends with a list that states its own length.
fn decode_first_contact<'a>(
    r: &mut Reader<'a>,
    kind: Kind,
) -> Result<(FirstContact, GidList<'a>), DecodeError> {
    let (long, gids_len) = match kind {
        Kind::Accept => match r.remaining() {
            FCE_LEN => (false, None),
            FCE_V21_LEN => (true, None),
            _ => return Err(DecodeError::new("first_contact", Why::Length)),
        },
        Kind::Confirm => match confirm_form(r, FCE_V21_LEN) {
            Some(n) => (true, Some(n)),
            None => match confirm_form(r, FCE_LEN) {
                Some(n) => (false, Some(n)),
                None => return Err(DecodeError::new("first_contact", Why::Length)),
            },
        },
    };
    let flags = r.u8("direct")?;
    let os_release = r.u8("release")?;
    r.skip(2, "fce_reserved")?;
    let hostname = Hostname::clean(&r.array::<32>("hostname")?);
    let release = os_release & 0x0f;
    let mut limits = Limits::default();
    let mut features = 0;
    let mut extensions = Extensions::NONE;
    if long {
        let wire = Limits {
            max_conns: r.u8("max_conns")?,
            max_links: r.u8("max_links")?,
        };
        let mask = r.be16("features")?;
        let vendor = r.array::<4>("vendor")?;
        r.skip(8, "fce_reserved")?;
        if release >= 1 {
            limits = wire;
            features = mask;
            extensions = Extensions::from_contact(vendor);
        }
    }
    let mut gids = GidList::default();
    if let Some(n) = gids_len {
        r.skip(GIDS_FIXED, "gid_cnt")?;
        gids = GidList(r.bytes(n, "gids")?);
    }
    let fce = FirstContact {
        direct: flags & DIRECT != 0,
        os: OsType::from_nibble(os_release >> 4),
        release,
        hostname,
        long,
        limits,
        features,
        extensions,
    };
    Ok((fce, gids))
}

/// Whether the rest of a Confirm is an extension of `fce_len` bytes and a GID list; if so, how
/// many bytes its GIDs take.
fn confirm_form(r: &Reader<'_>, fce_len: usize) -> Option<usize> {
    let mut probe = *r;
    probe.skip(fce_len, "first_contact").ok()?;
    let count = usize::from(probe.u8("gid_cnt").ok()?);
    probe.skip(3, "gid_reserved").ok()?;
    let len = count.checked_mul(GID_LEN)?;
    (probe.remaining() == len).then_some(len)
}

/// Writes the first-contact extension.
fn encode_first_contact(w: &mut Writer<'_>, fce: &FirstContact) -> Result<(), EncodeError> {
    w.u8(if fce.direct { DIRECT } else { 0 })?;
    w.u8((fce.os.get() << 4) | (fce.release & 0x0f))?;
    w.zeros(2)?;
    w.put(fce.hostname.as_bytes())?;
    if fce.long {
        w.put(&[fce.limits.max_conns, fce.limits.max_links])?;
        w.be16(fce.features)?;
        w.put(&fce.extensions.to_contact())?;
        w.zeros(8)?;
    }
    Ok(())
}

/// The version 1 message and its trailer share this length rule.
const _: () = assert!(LEN_V1 == 64 + TRAILER_LEN && LEN_V2 == 104 + TRAILER_LEN);

/// Passed by value, so it stays small.
const _: () = assert!(core::mem::size_of::<AcceptConfirm>() <= 256);
