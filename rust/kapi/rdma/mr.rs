// SPDX-License-Identifier: GPL-2.0

//! Memory that a device may reach: protection domains, mapped rings, and memory regions with a key for the peer.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    cmp::min,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::to_result,
    num::casts::u32_as_usize,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};
use smc_bindings as bindings;

use super::{
    from_err_ptr,
    DeviceUse, //
};
use crate::kapi::pages::Ring;

/// Name under which the RDMA core lists our objects.
const OWNER: &CStr = c"smc_rs";

/// A protection domain: queue pairs reach only memory of their own domain.
///
/// # Invariants
///
/// `raw` is a valid domain of the device in use, and this value owns it.
pub struct Pd {
    /// The C domain.
    raw: NonNull<bindings::ib_pd>,
    /// The device.
    device: DeviceUse,
}

// SAFETY: The C domain may be used from any task.
unsafe impl Send for Pd {}

// SAFETY: The RDMA core counts a domain's users atomically; a shared domain offers nothing else.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a domain. May sleep, as may the drop of the last reference.
    pub fn new(device: &DeviceUse) -> Result<Arc<Self>> {
        // SAFETY: The device is valid, as it is in use; the name is a valid C string.
        let raw = unsafe { bindings::__ib_alloc_pd(device.raw(), 0, OWNER.as_char_ptr()) };
        // INVARIANT: The domain was just allocated for this value.
        let pd = Self {
            raw: from_err_ptr(raw)?,
            device: device.clone(),
        };
        Ok(Arc::new(pd, GFP_KERNEL)?)
    }

    /// The C domain, valid while `self` lives.
    pub(super) fn raw(&self) -> *mut bindings::ib_pd {
        self.raw.as_ptr()
    }

    /// The device of the domain.
    pub fn device(&self) -> &DeviceUse {
        &self.device
    }

    /// The key under which the domain's queue pairs may read any mapped memory of this host.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: By the type invariant the domain is valid; its key does not change.
        unsafe { (*self.raw.as_ptr()).local_dma_lkey }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the domain. Every queue pair and region of it holds an `Arc` of
        // this value, so that none is left.
        unsafe { bindings::ib_dealloc_pd_user(self.raw.as_ptr(), ptr::null_mut()) };
    }
}

/// A ring that is mapped for a device.
///
/// CPU and device see the same bytes at once: where that would take copies (bounce buffers) or flushing caches, which
/// would have to be told of every byte that the peer may have written, there is no mapping. It may be dropped in any
/// context.
///
/// # Invariants
///
/// `addrs` holds one device address for each of the ring's first pieces, mapped by this value in direction `dir`.
pub struct Mapped {
    /// The memory, kept as long as the mapping.
    ring: Arc<Ring>,
    /// Device addresses of the pieces.
    addrs: KVec<u64>,
    /// Who may write.
    dir: bindings::dma_data_direction,
    /// The device.
    device: DeviceUse,
}

// SAFETY: Mappings may be made and undone by any task.
unsafe impl Send for Mapped {}

// SAFETY: A shared mapping is only read.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a ring that the device reads.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EOPNOTSUPP` where CPU and device do not see the same memory.
    pub fn for_sending(device: &DeviceUse, ring: &Arc<Ring>) -> Result<Arc<Self>> {
        let mapped = Self::new(device, ring, bindings::dma_data_direction_DMA_TO_DEVICE)?;
        Ok(Arc::new(mapped, GFP_KERNEL)?)
    }

    /// Maps a ring in direction `dir`.
    fn new(
        device: &DeviceUse,
        ring: &Arc<Ring>,
        dir: bindings::dma_data_direction,
    ) -> Result<Self> {
        let mut mapped = Self {
            ring: ring.clone(),
            addrs: KVec::with_capacity(ring.pieces(), GFP_KERNEL)?,
            dir,
            device: device.clone(),
        };
        let len = u32_as_usize(ring.piece_bytes());
        for index in 0..ring.pieces() {
            let page = ring.page(index).ok_or(EINVAL)?;
            // SAFETY: The device is valid, as it is in use; the piece is `len` bytes of pages, which the ring owns and
            // `mapped` keeps.
            let addr =
                unsafe { bindings::ib_dma_map_page(device.raw(), page.as_ptr(), 0, len, dir) };
            // SAFETY: The device is valid; any address may be asked about.
            to_result(unsafe { bindings::ib_dma_mapping_error(device.raw(), addr) })
                .map_err(|_| ENOMEM)?;
            // INVARIANT: The piece is mapped. The capacity is there, so that the push cannot lose it.
            mapped.addrs.push(addr, GFP_KERNEL)?;
            // SAFETY: The device is valid, and the address was mapped for it.
            if unsafe { bindings::ib_dma_need_sync(device.raw(), addr) } {
                return Err(EOPNOTSUPP);
            }
        }
        Ok(mapped)
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Calls `f` with device address and length of each contiguous part of a range; stops at its first error.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is not inside the ring; what `f` returns.
    pub(super) fn for_parts(
        &self,
        offset: u32,
        len: u32,
        mut f: impl FnMut(u64, u32) -> Result,
    ) -> Result {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.ring.bytes() {
            return Err(EINVAL);
        }
        let piece_bytes = self.ring.piece_bytes();
        let mut at = offset;
        while at < end {
            let index = u32_as_usize(at >> self.ring.piece_shift());
            let inside = at & piece_bytes.wrapping_sub(1);
            let base = self.addrs.get(index).ok_or(EINVAL)?;
            // `inside` is below the size of a piece, `at` below `end`.
            let part = min(piece_bytes.wrapping_sub(inside), end.wrapping_sub(at));
            f(base.wrapping_add(u64::from(inside)), part)?;
            at = at.checked_add(part).ok_or(EINVAL)?;
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let len = u32_as_usize(self.ring.piece_bytes());
        for addr in &self.addrs {
            // SAFETY: The device is valid, as it is in use; by the type invariant this value mapped the piece.
            unsafe { bindings::ib_dma_unmap_page(self.device.raw(), *addr, len, self.dir) };
        }
    }
}

/// A memory region over a whole ring, which a peer may write once it is registered.
///
/// Dropping the last reference may sleep. A region starts unregistered: its key is known, but good for nothing until
/// [`Qp::post_register`](super::Qp::post_register) or
/// [`Qp::post_renew`](super::Qp::post_renew) has completed, nor after the same of
/// [`Qp::post_invalidate`](super::Qp::post_invalidate).
///
/// # Invariants
///
/// `raw` is a valid region of `pd` whose page list is that of `mapped`, and this value owns it.
pub struct Mr {
    /// The C region.
    raw: NonNull<bindings::ib_mr>,
    /// The low byte of the key; the others are the device's.
    key_byte: Atomic<i32>,
    /// How many keys the region has had.
    keys_used: Atomic<i32>,
    /// The ring and its mapping, undone after the region.
    mapped: Mapped,
    /// The protection domain.
    pd: Arc<Pd>,
}

// SAFETY: The C region may be used from any task.
unsafe impl Send for Mr {}

// SAFETY: What changes in the C region (key and address) changes only under `fresh_key`, whose contract makes its
// caller the only user; the rest is read.
unsafe impl Sync for Mr {}

impl Mr {
    /// Makes a region for a ring. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EMSGSIZE` when the device's regions are smaller than the ring; what the device says.
    pub fn new(pd: &Arc<Pd>, ring: &Arc<Ring>) -> Result<Self> {
        let page = u32::try_from(PAGE_SIZE)?;
        let pages = ring.bytes().div_ceil(page);
        if pages > pd.device().limits().max_mr_pages {
            return Err(EMSGSIZE);
        }
        let mapped = Mapped::new(
            pd.device(),
            ring,
            bindings::dma_data_direction_DMA_BIDIRECTIONAL,
        )?;
        // SAFETY: The domain is valid, as `pd` is a reference to it.
        let raw = unsafe {
            bindings::ib_alloc_mr(pd.raw(), bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, pages)
        };
        let raw = from_err_ptr(raw)?;
        // SAFETY: The region was just allocated; its key is that of the device.
        let key = unsafe { (*raw.as_ptr()).rkey };
        // INVARIANT: The region belongs to this value; its page list is set next, before anybody else sees it.
        let mr = Self {
            raw,
            key_byte: Atomic::new(i32::try_from(key & 0xff)?),
            keys_used: Atomic::new(0),
            mapped,
            pd: pd.clone(),
        };
        mr.set_pages()?;
        mr.fresh_key();
        Ok(mr)
    }

    /// Writes the device addresses of the ring into the region.
    fn set_pages(&self) -> Result {
        let ring = self.mapped.ring();
        let mut list: KVec<bindings::scatterlist> =
            KVec::from_elem(bindings::scatterlist::default(), ring.pieces(), GFP_KERNEL)?;
        let count = u32::try_from(list.len())?;
        // SAFETY: The list is valid for `count` entries.
        unsafe { bindings::sg_init_table(list.as_mut_ptr(), count) };
        for (index, (entry, addr)) in list.iter_mut().zip(&self.mapped.addrs).enumerate() {
            let page = ring.page(index).ok_or(EINVAL)?;
            // SAFETY: The entry is valid and initialised; page and address describe a mapped piece of the ring.
            unsafe { bindings::sg_set_dma_page(entry, page.as_ptr(), ring.piece_bytes(), *addr) };
        }
        // SAFETY: The region is valid and not registered; the list describes mapped memory. The offset may be null.
        let done = unsafe {
            bindings::ib_map_mr_sg(
                self.raw.as_ptr(),
                list.as_mut_ptr(),
                i32::try_from(count)?,
                ptr::null_mut(),
                u32::try_from(PAGE_SIZE)?,
            )
        };
        // The function returns an error or how many entries fitted.
        if done < 0 {
            to_result(done)?;
        }
        if u32::try_from(done)? != count {
            return Err(EMSGSIZE);
        }
        Ok(())
    }

    /// Gives the region a key and an address that it has not had just before.
    ///
    /// To be called only while it is not registered, or right before its renewal is posted: a peer that still writes by
    /// the old key fails either way. The address is a random number, not one of this kernel's: a peer
    /// needs both, and learns nothing from either.
    pub fn fresh_key(&self) {
        let byte = self.key_byte.load(Relaxed).wrapping_add(1) & 0xff;
        self.key_byte.store(byte, Relaxed);
        self.keys_used.add(1, Relaxed);
        // SAFETY: The region is valid by the type invariant.
        unsafe {
            bindings::ib_update_fast_reg_key(
                self.raw.as_ptr(),
                u8::try_from(byte).unwrap_or_default(),
            )
        };
        // SAFETY: The function has no requirements.
        let random = unsafe { bindings::get_random_u64() };
        // Pages keep their alignment; the top bits stay clear, so that adding the size never overflows.
        let iova = random & 0x0000_7fff_ffff_0000 | 0x0000_0001_0000_0000;
        // SAFETY: The region is valid by the type invariant. The device looks at the address when it registers it.
        unsafe { (*self.raw.as_ptr()).iova = iova };
    }

    /// Whether all keys have been used once, so that a new region is due.
    pub fn is_worn(&self) -> bool {
        self.keys_used.load(Relaxed) >= 250
    }

    /// The key of the peer.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The address under which the peer reaches the first byte of the ring.
    pub fn address(&self) -> u64 {
        // SAFETY: The region is valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).iova }
    }

    /// The ring's mapping.
    pub fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// The C region, valid while `self` lives.
    pub(super) fn raw(&self) -> *mut bindings::ib_mr {
        self.raw.as_ptr()
    }

    /// The domain of the region.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this value owns the region. A posted work request that refers to it would hold
        // a reference, so that there is none.
        unsafe { bindings::ib_dereg_mr_user(self.raw.as_ptr(), ptr::null_mut()) };
    }
}
