// SPDX-License-Identifier: GPL-2.0

//! Ring memory: pages that a network card reads or writes while the CPU copies in or out.
//!
//! A ring is a few pieces of physically contiguous pages of one size, never one virtual mapping: pieces of 16 KiB can be
//! had when large ones cannot, a scatter list of a few entries describes them, and no page tables have to be changed to
//! make or free one. A remote peer may write the memory at any time. Therefore no reference into it is ever formed:
//! bytes are copied through raw pointers, and whoever needs a value validates the copy.
//!
//! C header: [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

use core::{
    cmp::min,
    ptr::NonNull, //
};

use kernel::{
    iov::{
        IovIterDest,
        IovIterSource, //
    },
    num::casts::u32_as_usize,
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};
use smc_bindings as bindings;

use super::memcg::MemCg;

/// The smallest piece of a ring that has several: 16 KiB.
const MIN_PIECE_SHIFT: u32 = 14;

/// The smallest ring: 4 KiB.
const MIN_RING_SHIFT: u32 = 12;

/// The largest piece in terms of its shift: 4 MiB.
const MAX_PIECE_SHIFT: u32 = 22;

/// How the memory of a ring is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In one piece.
    Whole,
    /// In pieces as small as may be: such can be had where memory is in use for long.
    Pieces,
    /// In one piece where there is one, else in smaller ones.
    Mixed,
}

/// Memory of a ring: equal pieces of contiguous pages.
///
/// # Invariants
///
/// - Every entry of `pieces` is the first page of an allocation of `1 << piece_shift` bytes that this object owns and
///   that has a permanent kernel address.
/// - `pieces.len() << piece_shift == bytes`.
pub struct Ring {
    /// The pieces in the order of their offset in the ring.
    pieces: KVec<NonNull<bindings::page>>,
    /// Base-2 logarithm of the size of a piece.
    piece_shift: u32,
    /// Size of the whole ring.
    bytes: u32,
}

// SAFETY: The pages belong to the object and to no task; everything goes through raw copies.
unsafe impl Send for Ring {}

// SAFETY: The pages are memory that a device may change at any time, too: concurrent copies may tear, which users of a
// ring exclude by their cursors, but they are not undefined behaviour as no Rust reference is ever formed.
unsafe impl Sync for Ring {}

impl Ring {
    /// Allocates a zeroed ring of `bytes`, a power of two from 4 KiB, in at most `max_pieces` pieces.
    ///
    /// Pieces are of 16 KiB to 4 MiB; a ring smaller than that has one. For large ones there is no reclaim and no warning.
    ///
    /// The memory goes to the account of `memcg`; without one to nobody's, whichever task this is.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a size that no ring has; `ENOMEM` when there is no memory in so few pieces.
    pub fn new(
        bytes: u32,
        max_pieces: usize,
        layout: Layout,
        memcg: Option<&MemCg>,
    ) -> Result<Arc<Self>> {
        if !bytes.is_power_of_two() || bytes < 1 << MIN_RING_SHIFT {
            return Err(EINVAL);
        }
        let count = |shift: u32| u32_as_usize(bytes >> shift);
        let most = min(bytes.ilog2(), MAX_PIECE_SHIFT);
        let shifts = min(MIN_PIECE_SHIFT, most)..=most;
        let fitting = |shift: &u32| {
            count(*shift) <= max_pieces && (layout != Layout::Whole || count(*shift) == 1)
        };
        let account = if memcg.is_some() {
            bindings::GFP_KERNEL_ACCOUNT
        } else {
            bindings::GFP_KERNEL
        };
        let try_one = |shift: u32| {
            MemCg::charge(memcg, || {
                Self::in_pieces(bytes, shift, count(shift), account)
            })
            .ok()
        };
        let ring = match layout {
            Layout::Whole | Layout::Mixed => shifts.rev().filter(fitting).find_map(try_one),
            Layout::Pieces => shifts.filter(fitting).find_map(try_one),
        };
        Ok(Arc::new(ring.ok_or(ENOMEM)?, GFP_KERNEL)?)
    }

    /// Allocates `count` pieces of `1 << shift` bytes, with these flags and some more.
    fn in_pieces(bytes: u32, shift: u32, count: usize, flags: bindings::gfp_t) -> Result<Self> {
        let mut ring = Self {
            pieces: KVec::with_capacity(count, GFP_KERNEL)?,
            piece_shift: shift,
            bytes,
        };
        let flags = flags | bindings::__GFP_ZERO | bindings::__GFP_COMP | bindings::__GFP_NOWARN;
        // Neither the machine nor a cgroup at its limit is to kill a program for a ring.
        let flags = flags
            | if shift > MIN_PIECE_SHIFT {
                bindings::__GFP_NORETRY
            } else {
                bindings::__GFP_RETRY_MAYFAIL
            };
        let order = shift.saturating_sub(u32::try_from(PAGE_SHIFT)?);
        for _ in 0..count {
            // SAFETY: The flags allow sleeping, which the caller may.
            let page = unsafe { bindings::alloc_pages(flags, order) };
            let page = NonNull::new(page).ok_or(ENOMEM)?;
            // INVARIANT: The piece has `1 << shift` bytes; without `__GFP_HIGHMEM` it has a permanent address. The
            // capacity was reserved above, so that the push cannot fail and lose it. When a later piece fails,
            // dropping `ring` frees those before.
            ring.pieces.push(page, GFP_KERNEL)?;
        }
        Ok(ring)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Number of pieces.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Size of a piece in bytes.
    pub fn piece_bytes(&self) -> u32 {
        // The shift is at most `MAX_PIECE_SHIFT`.
        1 << self.piece_shift
    }

    /// Base-2 logarithm of the size of a piece.
    pub fn piece_shift(&self) -> u32 {
        self.piece_shift
    }

    /// The first page of a piece, for mapping it.
    pub(super) fn page(&self, index: usize) -> Option<NonNull<bindings::page>> {
        self.pieces.get(index).copied()
    }

    /// The kernel address of `offset`, and how many bytes of its piece follow; `None` at and behind the end.
    fn at(&self, offset: u32) -> Option<(*mut u8, usize)> {
        if offset >= self.bytes {
            return None;
        }
        let page = self.page(u32_as_usize(offset >> self.piece_shift))?;
        let inside = offset & self.piece_bytes().wrapping_sub(1);
        // SAFETY: By the type invariant `page` is the first page of an allocation with a permanent address.
        let base = unsafe { bindings::page_address(page.as_ptr()) };
        // The offset inside a piece is below its size.
        let left = u32_as_usize(self.piece_bytes().wrapping_sub(inside));
        Some((base.cast::<u8>().wrapping_add(u32_as_usize(inside)), left))
    }

    /// Calls `f` with the address and length of each contiguous part of a range, as long as it takes the whole part.
    ///
    /// Returns how many bytes `f` took. What lies behind the end of the ring is left out.
    fn for_parts(
        &self,
        offset: u32,
        len: u32,
        mut f: impl FnMut(*mut u8, usize) -> usize,
    ) -> usize {
        let mut done = 0usize;
        let mut offset = offset;
        let mut left = u32_as_usize(len);
        while left > 0 {
            let Some((addr, room)) = self.at(offset) else {
                break;
            };
            let part = min(room, left);
            let took = min(f(addr, part), part);
            // `took` is at most `left`, which began as a `u32`.
            done = done.saturating_add(took);
            left = left.saturating_sub(took);
            if took < part {
                break;
            }
            // A part is at most 4 MiB.
            offset = offset.saturating_add(u32::try_from(part).unwrap_or(u32::MAX));
        }
        done
    }

    /// Copies from an I/O vector into the ring; returns the bytes copied, fewer than asked when the source faults.
    pub fn copy_from_iter(&self, offset: u32, len: u32, src: &mut IovIterSource<'_>) -> usize {
        self.for_parts(offset, len, |addr, part| {
            // SAFETY: `addr` is valid for writes of `part` bytes inside a piece that `self` owns; by its own invariant
            // `src` is a valid source.
            unsafe { bindings::_copy_from_iter(addr.cast(), part, src.as_raw().cast()) }
        })
    }

    /// Copies from the ring to an I/O vector; returns the bytes copied, fewer than asked when the destination faults.
    pub fn copy_to_iter(&self, offset: u32, len: u32, dst: &mut IovIterDest<'_>) -> usize {
        self.for_parts(offset, len, |addr, part| {
            // SAFETY: `addr` is valid for reads of `part` bytes inside a piece that `self` owns; by its own invariant
            // `dst` is a valid destination.
            unsafe { bindings::_copy_to_iter(addr.cast(), part, dst.as_raw().cast()) }
        })
    }

    /// Copies bytes out of the ring; returns how many, fewer than asked at its end.
    pub fn read(&self, offset: u32, out: &mut [u8]) -> usize {
        let len = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let base = out.as_mut_ptr();
        let mut done = 0usize;
        self.for_parts(offset, len, |addr, part| {
            let to = base.wrapping_add(done);
            // SAFETY: `addr` is valid for reads of `part` bytes; `to` lies in `out`, of which at least `part` bytes
            // follow as the parts add up to at most its length. The two do not overlap: a ring has no references.
            unsafe { to.copy_from_nonoverlapping(addr, part) };
            done = done.saturating_add(part);
            part
        })
    }

    /// Copies bytes into the ring; returns how many, fewer than given at its end.
    pub fn write(&self, offset: u32, bytes: &[u8]) -> usize {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let base = bytes.as_ptr();
        let mut done = 0usize;
        self.for_parts(offset, len, |addr, part| {
            let from = base.wrapping_add(done);
            // SAFETY: `addr` is valid for writes of `part` bytes; `from` lies in `bytes`, of which at least `part`
            // bytes follow as the parts add up to at most its length. The two do not overlap.
            unsafe { addr.copy_from_nonoverlapping(from, part) };
            done = done.saturating_add(part);
            part
        })
    }

    /// Overwrites the first `len` bytes of the ring, or all, with zeros, before another connection gets it.
    pub fn clear(&self, len: u32) {
        self.for_parts(0, len, |addr, part| {
            // SAFETY: `addr` is valid for writes of `part` bytes inside a piece that `self` owns.
            unsafe { addr.write_bytes(0, part) };
            part
        });
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let order = self
            .piece_shift
            .saturating_sub(u32::try_from(PAGE_SHIFT).unwrap_or(0));
        for page in &self.pieces {
            // SAFETY: By the type invariant the piece was allocated with this order and belongs to `self`.
            unsafe { bindings::__free_pages(page.as_ptr(), order) };
        }
    }
}

#[cfg(CONFIG_KUNIT = "y")]
#[allow(
    unsafe_op_in_unsafe_fn,
    reason = "the functions that `kunit_tests` makes of tests"
)]
#[kunit_tests(smc_kapi_pages)]
mod tests {
    use super::*;

    /// Four pieces of 16 KiB.
    fn four_pieces() -> Result<Ring> {
        Ring::in_pieces(1 << 16, MIN_PIECE_SHIFT, 4, bindings::GFP_KERNEL)
    }

    #[test]
    fn only_sizes_of_rings_are_allocated() -> Result {
        for bytes in [0, 1, 1024, 2048, 5000, (1 << 14) + 1, 3 << 14, u32::MAX] {
            assert!(matches!(Ring::new(bytes, 64, Layout::Mixed, None), Err(e) if e == EINVAL));
        }
        assert!(matches!(Ring::new(1 << 14, 0, Layout::Mixed, None), Err(e) if e == ENOMEM));
        for shift in 12..20 {
            let ring = Ring::new(1 << shift, 64, Layout::Mixed, None)?;
            assert_eq!(ring.bytes(), 1 << shift);
            assert!(ring.pieces() <= 64);
            assert_eq!(
                u32::try_from(ring.pieces())? << ring.piece_shift(),
                ring.bytes()
            );
        }
        Ok(())
    }

    #[test]
    fn layouts_differ_in_their_pieces() -> Result {
        let pieces = |layout, max| Ring::new(1 << 18, max, layout, None).map(|ring| ring.pieces());
        assert_eq!(pieces(Layout::Whole, 64)?, 1);
        assert_eq!(pieces(Layout::Pieces, 64)?, 16);
        // No smaller than the device can do with.
        assert_eq!(pieces(Layout::Pieces, 8)?, 8);
        assert_eq!(pieces(Layout::Pieces, 1)?, 1);
        assert!(pieces(Layout::Mixed, 64)? <= 16);
        // There are no pieces of 8 MiB.
        assert!(matches!(Ring::new(1 << 23, 64, Layout::Whole, None), Err(e) if e == ENOMEM));
        Ok(())
    }

    #[test]
    fn bytes_cross_from_piece_to_piece() -> Result {
        let ring = four_pieces()?;
        let mut bytes = KVec::new();
        for i in 0..40_000u32 {
            bytes.push(u8::try_from(i % 251)?, GFP_KERNEL)?;
        }
        assert_eq!(ring.write(5_000, &bytes), 40_000);
        let mut out = KVec::from_elem(0u8, 40_000, GFP_KERNEL)?;
        assert_eq!(ring.read(5_000, &mut out), 40_000);
        assert!(*out == *bytes);
        let mut byte = [1];
        assert_eq!(ring.read(4_999, &mut byte), 1);
        assert_eq!(byte, [0]);
        Ok(())
    }

    #[test]
    fn what_lies_behind_the_end_is_left_out() -> Result {
        let ring = four_pieces()?;
        assert_eq!(ring.write(65_530, &[9; 20]), 6);
        let mut out = [1; 20];
        assert_eq!(ring.read(65_530, &mut out), 6);
        assert_eq!(
            out,
            [9, 9, 9, 9, 9, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
        );
        assert_eq!(ring.write(65_536, &[9]), 0);
        assert_eq!(ring.read(u32::MAX, &mut out), 0);
        Ok(())
    }

    #[test]
    fn a_ring_is_zero_at_first_and_after_clear() -> Result {
        let ring = four_pieces()?;
        let mut out = KVec::from_elem(1u8, 65_536, GFP_KERNEL)?;
        assert_eq!(ring.read(0, &mut out), 65_536);
        assert!(out.iter().all(|b| *b == 0));
        ring.write(16_000, &[7; 1000]);
        ring.clear(16_999);
        let mut last = [0; 2];
        assert_eq!(ring.read(16_998, &mut last), 2);
        assert_eq!(last, [0, 7]);
        ring.clear(u32::MAX);
        assert_eq!(ring.read(0, &mut out), 65_536);
        assert!(out.iter().all(|b| *b == 0));
        Ok(())
    }
}
