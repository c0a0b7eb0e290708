// SPDX-License-Identifier: GPL-2.0

//! Bounded reading and writing of big-endian fields.

use super::error::{
    DecodeError,
    EncodeError, //
};

/// Reads fields from the front of a byte slice; running out of bytes is an error that names the field.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// What has not been read yet.
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Starts at `offset`, which must lie inside or at the end of the slice.
    ///
    /// # Errors
    ///
    /// Fails when `offset` lies behind the end.
    pub fn at(bytes: &'a [u8], offset: usize, field: &'static str) -> Result<Self, DecodeError> {
        bytes
            .get(offset..)
            .map(Self::new)
            .ok_or(DecodeError::truncated(field))
    }

    /// How many bytes are left.
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    ///
    /// Fails when fewer are left; so do the readers below.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::truncated(field))?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next `len` bytes, borrowed.
    pub fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(DecodeError::truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    /// Passes over reserved bytes, whatever they hold.
    pub fn skip(&mut self, len: usize, field: &'static str) -> Result<(), DecodeError> {
        self.bytes(len, field).map(|_| ())
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[b]| b)
    }

    /// Two bytes, network order.
    pub fn be16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    /// Three bytes, network order.
    pub fn be24(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field)
            .map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    /// Four bytes, network order.
    pub fn be32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    /// Eight bytes, network order.
    pub fn be64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_be_bytes)
    }
}

/// Writes fields to the front of a byte slice.
#[derive(Debug)]
pub struct Writer<'a> {
    /// The caller's buffer.
    buf: &'a mut [u8],
    /// How much of it is written.
    len: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the first byte.
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, len: 0 }
    }

    /// How many bytes have been written.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been written.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the next `n` bytes of the buffer.
    fn take(&mut self, n: usize) -> Result<&mut [u8], EncodeError> {
        let end = self.len.checked_add(n).ok_or(EncodeError::NoRoom)?;
        let out = self.buf.get_mut(self.len..end).ok_or(EncodeError::NoRoom)?;
        self.len = end;
        Ok(out)
    }

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// Fails when the buffer is full; so do the writers below.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let out = self.take(bytes.len())?;
        for (o, b) in out.iter_mut().zip(bytes) {
            *o = *b;
        }
        Ok(())
    }

    /// Appends `n` zero bytes: a reserved area.
    pub fn zeros(&mut self, n: usize) -> Result<(), EncodeError> {
        self.take(n)?.fill(0);
        Ok(())
    }

    /// Appends zero bytes up to the total length `len`.
    pub fn pad_to(&mut self, len: usize) -> Result<(), EncodeError> {
        let n = len.checked_sub(self.len).ok_or(EncodeError::Inconsistent)?;
        self.zeros(n)
    }

    /// Appends one byte.
    pub fn u8(&mut self, v: u8) -> Result<(), EncodeError> {
        self.put(&[v])
    }

    /// Appends two bytes, network order.
    pub fn be16(&mut self, v: u16) -> Result<(), EncodeError> {
        self.put(&v.to_be_bytes())
    }

    /// Appends the low three bytes, network order.
    pub fn be24(&mut self, v: u32) -> Result<(), EncodeError> {
        let [_, a, b, c] = v.to_be_bytes();
        self.put(&[a, b, c])
    }

    /// Appends four bytes, network order.
    pub fn be32(&mut self, v: u32) -> Result<(), EncodeError> {
        self.put(&v.to_be_bytes())
    }

    /// Appends eight bytes, network order.
    pub fn be64(&mut self, v: u64) -> Result<(), EncodeError> {
        self.put(&v.to_be_bytes())
    }
}
