// SPDX-License-Identifier: GPL-2.0

//! The TCP option by which two hosts tell each other that they speak SMC (RFC 7609, sections 3.1
//! and 3.5.1.1).

/// Option kind for experiments (RFC 6994).
pub const KIND: u8 = 254;

/// Length byte of the option.
pub const LEN: u8 = 6;

/// The experiment id: `SMCR` in EBCDIC (RFC 7609, appendix A.1).
pub const EXID: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];

/// What is appended to a header: two fillers, then the option.
pub const BYTES: [u8; 8] = [1, 1, KIND, LEN, 0xe2, 0xd4, 0xc3, 0xd9];

/// Length of a TCP header without options.
const MIN_HEADER: usize = 20;

/// The largest TCP header.
const MAX_HEADER: usize = 60;

/// Flags byte of the header.
const FLAG_FIN: u8 = 0x01;
/// See [`FLAG_FIN`].
const FLAG_SYN: u8 = 0x02;
/// See [`FLAG_FIN`].
const FLAG_RST: u8 = 0x04;

/// Option kind: end of list.
const KIND_END: u8 = 0;
/// Option kind: filler.
const KIND_NOP: u8 = 1;
/// Option kind: MD5 signature (RFC 2385).
const KIND_MD5: u8 = 19;
/// Option kind: authentication (RFC 5925).
const KIND_AO: u8 = 29;

/// Why a segment keeps its options as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not a complete TCP header, or its data offset is impossible.
    Malformed,
    /// Not a SYN or SYN-ACK.
    NotSyn,
    /// It carries data (fast open), which would come before the handshake.
    Data,
    /// The header would exceed 60 bytes.
    NoRoom,
    /// The segment is signed, so it must not change.
    Signed,
    /// The option list has an explicit end; nothing behind it would be read.
    EndOfList,
    /// The option is there already.
    Present,
}

/// How to change a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Edit {
    /// Where the bytes go: the old length of the header.
    pub insert_at: usize,
    /// What to insert.
    pub bytes: [u8; 8],
    /// The new byte 12 of the header: data offset in the upper half, the rest as it was.
    pub offset_byte: u8,
    /// The new length of the header.
    pub new_len: usize,
}

/// Where the option was found in an option area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Offset of the kind byte from the start of the option area.
    pub offset: usize,
    /// Length of the option, at least 6.
    pub len: usize,
}

/// Looks for the option in the option area of a SYN or SYN-ACK.
///
/// Like the C implementation it takes any even length from 6 up. A malformed list ends the search.
pub fn find(options: &[u8]) -> Option<Found> {
    Options::new(options).find(|o| o.is_smc()).map(|o| Found {
        offset: o.offset,
        len: o.len,
    })
}

/// Whether a complete TCP header (from byte 0, options included) is a SYN with the option.
pub fn offered(header: &[u8]) -> bool {
    parse(header).is_ok_and(|h| h.flags & FLAG_SYN != 0 && find(h.options).is_some())
}

/// Plans how to add the option to a header.
///
/// `header` starts at the first byte of the TCP header and holds at least all of it; `payload`
/// says whether the segment carries data.
///
/// # Errors
///
/// Says why the segment must stay as it is.
pub fn plan(header: &[u8], payload: bool) -> Result<Edit, Refusal> {
    let h = parse(header)?;
    if h.flags & FLAG_SYN == 0 || h.flags & (FLAG_FIN | FLAG_RST) != 0 {
        return Err(Refusal::NotSyn);
    }
    if payload {
        return Err(Refusal::Data);
    }
    let mut it = Options::new(h.options);
    for o in it.by_ref() {
        match o.kind {
            KIND_MD5 | KIND_AO => return Err(Refusal::Signed),
            _ if o.is_smc() => return Err(Refusal::Present),
            _ => {}
        }
    }
    match it.end {
        End::Complete => {}
        End::Explicit => return Err(Refusal::EndOfList),
        End::Broken => return Err(Refusal::Malformed),
    }
    let new_len = h.len.saturating_add(BYTES.len());
    if new_len > MAX_HEADER {
        return Err(Refusal::NoRoom);
    }
    // The header is a multiple of 4 and at most 60 bytes long, so its word count has four bits.
    let words = u8::try_from(new_len / 4).map_err(|_| Refusal::NoRoom)?;
    Ok(Edit {
        insert_at: h.len,
        bytes: BYTES,
        offset_byte: (words << 4) | (h.offset_byte & 0x0f),
        new_len,
    })
}

/// The parts of a TCP header that matter here.
struct Parsed<'a> {
    /// Length of the header in bytes, options included.
    len: usize,
    /// Byte 12.
    offset_byte: u8,
    /// Byte 13.
    flags: u8,
    /// Everything from byte 20 on.
    options: &'a [u8],
}

/// Takes a TCP header apart.
fn parse(header: &[u8]) -> Result<Parsed<'_>, Refusal> {
    let offset_byte = *header.get(12).ok_or(Refusal::Malformed)?;
    let flags = *header.get(13).ok_or(Refusal::Malformed)?;
    let len = usize::from(offset_byte >> 4).saturating_mul(4);
    let options = header.get(MIN_HEADER..len).ok_or(Refusal::Malformed)?;
    Ok(Parsed {
        len,
        offset_byte,
        flags,
        options,
    })
}

/// Why an option walk stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// At the last byte.
    Complete,
    /// At an end-of-list option.
    Explicit,
    /// At an option whose length cannot be.
    Broken,
}

/// One option other than a filler.
struct Opt<'a> {
    /// Kind byte.
    kind: u8,
    /// Offset of the kind byte in the area.
    offset: usize,
    /// Length with kind and length bytes.
    len: usize,
    /// What follows the length byte.
    data: &'a [u8],
}

impl Opt<'_> {
    /// Whether this is the SMC option.
    fn is_smc(&self) -> bool {
        self.kind == KIND && self.len % 2 == 0 && self.data.starts_with(&EXID)
    }
}

/// Walks an option area.
struct Options<'a> {
    /// The whole area.
    area: &'a [u8],
    /// Where the next option starts.
    pos: usize,
    /// Why the walk stopped.
    end: End,
}

impl<'a> Options<'a> {
    /// Starts at the first byte.
    fn new(area: &'a [u8]) -> Self {
        Self {
            area,
            pos: 0,
            end: End::Complete,
        }
    }

    /// Ends the walk.
    fn stop(&mut self, end: End) {
        self.end = end;
        self.pos = self.area.len();
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Opt<'a>;

    fn next(&mut self) -> Option<Opt<'a>> {
        loop {
            let rest = self.area.get(self.pos..)?;
            match rest {
                [] => return None,
                [KIND_END, ..] => {
                    self.stop(End::Explicit);
                    return None;
                }
                [KIND_NOP, ..] => self.pos = self.pos.saturating_add(1),
                [kind, len, ..] => {
                    let len = usize::from(*len);
                    let Some(data) = rest.get(2..len) else {
                        self.stop(End::Broken);
                        return None;
                    };
                    let offset = self.pos;
                    self.pos = self.pos.saturating_add(len);
                    return Some(Opt {
                        kind: *kind,
                        offset,
                        len,
                        data,
                    });
                }
                [_] => {
                    self.stop(End::Broken);
                    return None;
                }
            }
        }
    }
}
