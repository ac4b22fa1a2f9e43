//! The pool of a device that is restored from a file, whose blocks PyTorch's allocator then returns for chosen requests.
//!
//! A claimed block is an ordinary block of PyTorch from then on: its tensor frees it, and streams that use it are recorded.

use super::process::{look_for_claims, restore_device, used};
use super::unclaimed::{Unclaimed, claim};
use crate::call::status;
use crate::pool::Pool;
use crate::saved_pool::{BlockPlaces, RestoredBlock};
use crate::status::{Failure, GPU_VMM_FILE, GPU_VMM_NOT_FOUND, Status};
use crate::stores::ring;
use crate::texts::{self, optional};
use gpu_vmm::Address;
use std::ffi::{c_char, c_int};

/// Restores PyTorch's pool of a device from a file of gpu_vmm_pool_save, with the options of gpu_vmm_torch_configure: see
/// gpu_vmm_pool_restore, also for `blocks` and `count`. The blocks wait for gpu_vmm_torch_claim; gpu_vmm_torch_end_restore frees the others.
/// `tag` is a tag that the file must have, or null.
///
/// Returns the statuses of gpu_vmm_pool_restore, GPU_VMM_FILE for a file without the tag, and GPU_VMM_BUSY if the device has a pool
/// already, as after its first allocation.
///
/// # Safety
///
/// `path` is null or a string, and so is `tag`. `blocks` is null or points to `count` writable blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_restore_pool(
    device_number: c_int,
    path: *const c_char,
    tag: *const c_char,
    blocks: *mut RestoredBlock,
    count: u64,
) -> Status {
    // SAFETY: null or writable for `count` blocks, as the caller guarantees.
    let places = unsafe { BlockPlaces::cleared(blocks, count) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (path, tag) = unsafe { (texts::path("path", path)?, optional("tag", tag)?) };
        let mut found = Vec::new();
        restore_device(device_number, |backend, options| {
            let builder = options.builder(backend)?;
            let file = places.open(path)?;
            let mut regions = file.description().regions.iter();
            if let Some(tag) = tag.filter(|tag| !regions.any(|region| region.tag == **tag)) {
                let text = format!("restore: {} has no block tagged {tag:?}", path.display());
                return Err(Failure::new(GPU_VMM_FILE, text));
            }
            let restored = builder.restore(&file, &ring(backend)?)?;
            found.extend(restored.blocks.iter().map(|block| RestoredBlock::of(&restored.pool, block)));
            Ok((Pool::of(backend, restored.pool)?, Unclaimed::new(restored.blocks)))
        })?;
        // SAFETY: there are as many places as the file has blocks, which are all restored.
        unsafe { places.fill(&found) };
        Ok(())
    })
}

/// Claims a block of gpu_vmm_torch_restore_pool for this thread: PyTorch's next allocation on the device, of no more than its capacity,
/// returns it, whatever the stream. It is then a block like any other. Allocations of private pools and of captures take no claimed block.
/// One thread of the process restores at a time.
///
/// Returns GPU_VMM_NOT_FOUND if there is no such block, or if it was claimed before.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_claim(device_number: c_int, address: u64) -> Status {
    status(|| {
        let address = Address(address);
        if !used(device_number).map_or(Ok(false), |device| device.unclaimed.has(address))? {
            let text = format!("claim: no restored block of device {device_number} begins at {address}");
            return Err(Failure::new(GPU_VMM_NOT_FOUND, text));
        }
        claim(Some(address));
        look_for_claims(true);
        Ok(())
    })
}

/// Frees the blocks of gpu_vmm_torch_restore_pool that were not claimed, and forgets the claim of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn gpu_vmm_torch_end_restore(device_number: c_int) -> Status {
    status(|| {
        look_for_claims(false);
        claim(None);
        used(device_number).map_or(Ok(()), |device| device.unclaimed.clear())
    })
}
