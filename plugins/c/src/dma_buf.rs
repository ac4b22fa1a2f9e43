//! Dma-buf descriptors of a region, for network cards and other devices.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::region::Region;
use crate::status::{Failure, Status};
use crate::texts::{check_place, clear, give, object, value};
use gpu_vmm::Bytes;
use std::os::fd::IntoRawFd;

/// A dma-buf of a part of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf {
    /// The descriptor, which the caller must close.
    pub fd: i32,
    /// The offset in the region at which the memory begins. In the dma-buf the memory begins at 0.
    pub offset: u64,
    /// The size of the memory.
    pub length: u64,
}

/// Exports a range of whole mappings as dma-bufs, in order and without a gap, as network cards register them (ibv_reg_dmabuf_mr). The
/// range is one dma-buf where it can be, and otherwise one for each reservation, for each run of memory with the same owner and
/// properties, or, as on HIP, for each mapping. At most `capacity` of them are written, and `count` receives their number: if they end
/// before the range does, call again from there. The caller closes each descriptor. A dma-buf is invalid once its range is mapped anew,
/// unmapped, suspended or moved. CUDA: cuMemGetHandleForAddressRange; HIP: hipMemGetHandleForAddressRange.
///
/// Returns GPU_VMM_UNSUPPORTED if the driver has none, GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_SUSPENDED,
/// and GPU_VMM_INVALID_ARGUMENT for a part of a mapping and for a capacity of 0. After an error no descriptor is left open.
///
/// # Safety
///
/// `region` is null or a region. `dma_bufs` is null or points to `capacity` writable elements. `count` is null or points to a writable
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_dma_bufs(
    region: *const Region,
    offset: u64,
    length: u64,
    dma_bufs: *mut DmaBuf,
    capacity: u64,
    count: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(count) };
    status(|| {
        check_place("count", count)?;
        // SAFETY: guaranteed by the caller.
        unsafe { value("dma_bufs", dma_bufs.cast_const()) }?;
        if capacity == 0 {
            return Err(Failure::invalid("dma_bufs: the capacity is 0"));
        }
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let made = region.memory.with(|region| region.dma_bufs(Bytes(offset), Bytes(length)))??;
        let most = usize::try_from(capacity).unwrap_or(usize::MAX);
        let mut written = 0;
        // Those beyond the capacity are closed.
        for one in made.into_iter().take(most) {
            let one = DmaBuf { offset: one.offset.0, length: one.length.0, fd: one.fd.into_raw_fd() };
            // SAFETY: the caller guarantees `capacity` elements.
            unsafe { dma_bufs.add(written).write(one) };
            written += 1;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give("count", count, written as u64) }
    })
}
