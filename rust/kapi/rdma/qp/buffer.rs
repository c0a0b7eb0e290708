// SPDX-License-Identifier: GPL-2.0

//! Memory for messages, mapped for the device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use kernel::{
    alloc::flags::__GFP_NOWARN,
    error::to_result,
    prelude::*, //
};
use smc_bindings as bindings;

use super::DeviceUse;

/// Memory for messages, mapped for the device.
///
/// # Invariants
///
/// `memory` is `len` bytes that `_keep` owns, mapped at `addr` by this value.
pub(super) struct MsgBuf {
    /// Owns the memory; not touched but through `memory`.
    _keep: KVec<u8>,
    /// The memory.
    pub(super) memory: *mut u8,
    /// Its length.
    len: usize,
    /// Its address for the device.
    pub(super) addr: u64,
    /// Who writes.
    dir: bindings::dma_data_direction,
    /// The device.
    device: DeviceUse,
}

impl MsgBuf {
    /// Allocates and maps `len` bytes.
    pub(super) fn new(
        device: &DeviceUse,
        len: usize,
        dir: bindings::dma_data_direction,
    ) -> Result<Self> {
        // Whoever asks for much can do with less.
        let mut keep = KVec::from_elem(0u8, len, GFP_KERNEL | __GFP_NOWARN)?;
        let memory = keep.as_mut_ptr();
        // SAFETY: The device is valid, as it is in use; the memory is `len` bytes from the slab or page allocator.
        let addr = unsafe { bindings::ib_dma_map_single(device.raw(), memory.cast(), len, dir) };
        // SAFETY: The device is valid; any address may be asked about.
        to_result(unsafe { bindings::ib_dma_mapping_error(device.raw(), addr) })
            .map_err(|_| ENOMEM)?;
        // INVARIANT: Mapped just now.
        Ok(Self {
            _keep: keep,
            memory,
            len,
            addr,
            dir,
            device: device.clone(),
        })
    }

    /// The device address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<u64> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }
        Ok(self
            .addr
            .wrapping_add(kernel::num::casts::usize_as_u64(offset)))
    }

    /// Copies a message to `offset` and gives it to the device.
    pub(super) fn put(&self, offset: usize, msg: &[u8]) -> Result<u64> {
        let addr = self.at(offset, msg.len())?;
        let to = self.memory.wrapping_add(offset);
        // SAFETY: The range lies in the memory, as `at` checked. It belongs to the caller's slot alone.
        unsafe { to.copy_from_nonoverlapping(msg.as_ptr(), msg.len()) };
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe {
            bindings::ib_dma_sync_single_for_device(self.device.raw(), addr, msg.len(), self.dir)
        };
        Ok(addr)
    }

    /// Copies out what the device has written from the beginning on; it may be writing there again.
    pub(super) fn copy_out(&self, out: &mut [u8]) -> Result {
        self.take(0, out.len())?;
        for (index, byte) in out.iter_mut().enumerate() {
            let from = self.memory.wrapping_add(index);
            // SAFETY: The byte lies in the memory, as `take` checked. The volatile read of a byte that the device may be
            // writing gives some value.
            *byte = unsafe { from.read_volatile() };
        }
        Ok(())
    }

    /// Takes `len` bytes at `offset` from the device.
    pub(super) fn take(&self, offset: usize, len: usize) -> Result {
        let addr = self.at(offset, len)?;
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe { bindings::ib_dma_sync_single_for_cpu(self.device.raw(), addr, len, self.dir) };
        Ok(())
    }

    /// Gives `len` bytes at `offset` to the device.
    pub(super) fn give(&self, offset: usize, len: usize) -> Result<u64> {
        let addr = self.at(offset, len)?;
        // SAFETY: The device is valid, as it is in use; the range is mapped.
        unsafe { bindings::ib_dma_sync_single_for_device(self.device.raw(), addr, len, self.dir) };
        Ok(addr)
    }
}

impl Drop for MsgBuf {
    fn drop(&mut self) {
        // SAFETY: The device is valid, as it is in use; by the type invariant this value mapped the memory.
        unsafe { bindings::ib_dma_unmap_single(self.device.raw(), self.addr, self.len, self.dir) };
    }
}
