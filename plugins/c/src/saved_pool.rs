//! Pools in files.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::pool::{Pool, tag_field};
use crate::pool_options::PoolOptions;
use crate::status::{CallResult, Failure, Status};
use crate::stores::ring;
use crate::texts::{self, check_place, clear, give, give_box, object, required};
use gpu_vmm::pool::{Block, Pool as Blocks};
use gpu_vmm::snapshot::{SnapshotError, SnapshotFile};
use gpu_vmm::{AnyBackend, Error, Operation, WaitFor};
use std::ffi::{c_char, c_void};
use std::path::Path;

/// A block of a restored pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RestoredBlock {
    /// Its first address.
    pub address: u64,
    /// The requested size, or `capacity` if the file does not have it.
    pub size: u64,
    /// The bytes that it occupies.
    pub capacity: u64,
    /// The stream that it belongs to: the default stream.
    pub stream: *mut c_void,
    /// Its tag, terminated by a zero; a tag of more than 63 bytes is truncated.
    pub tag: [c_char; 64],
}

impl RestoredBlock {
    pub(crate) fn of(pool: &Blocks<AnyBackend>, block: &Block<AnyBackend>) -> Self {
        let found = pool.find(block.address());
        Self {
            address: block.address().0,
            size: block.size().0,
            capacity: block.capacity().0,
            stream: block.stream().as_raw(),
            tag: tag_field(found.as_ref().map_or("", |found| &*found.tag)),
        }
    }
}

/// The places for the blocks of a file.
#[derive(Clone, Copy)]
pub(crate) struct BlockPlaces {
    blocks: *mut RestoredBlock,
    count: u64,
}

impl BlockPlaces {
    /// Sets all places to zero.
    ///
    /// # Safety
    ///
    /// `blocks` is null or points to `count` writable blocks.
    pub(crate) unsafe fn cleared(blocks: *mut RestoredBlock, count: u64) -> Self {
        let most = isize::MAX as usize / size_of::<RestoredBlock>();
        let places = usize::try_from(count).ok().filter(|count| *count <= most && !blocks.is_null());
        for at in 0..places.unwrap_or(0) {
            // SAFETY: there are `count` writable places, as the caller guarantees; all fields can be zero.
            unsafe { clear(blocks.add(at)) };
        }
        Self { blocks, count }
    }

    /// Opens the file of a pool, and checks that the places are as many as its blocks.
    pub(crate) fn open(self, path: &Path) -> CallResult<SnapshotFile> {
        let (file, there) = open(path)?;
        if self.blocks.is_null() && self.count > 0 {
            let count = self.count;
            return Err(Failure::invalid(format!("restore: blocks is null, but count is {count}")));
        }
        if !self.blocks.is_null() && there != self.count {
            return Err(Failure::invalid(format!(
                "restore: {} has {there} blocks; expected {}",
                path.display(),
                self.count
            )));
        }
        Ok(file)
    }

    /// Writes all blocks, if there are places.
    ///
    /// # Safety
    ///
    /// The places are writable, as in [`BlockPlaces::cleared`], and as many as `blocks`.
    pub(crate) unsafe fn fill(self, blocks: &[RestoredBlock]) {
        if self.blocks.is_null() {
            return;
        }
        for (at, block) in blocks.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { self.blocks.add(at).write(*block) };
        }
    }
}

/// Opens the file of a pool. Returns it with the number of its blocks.
fn open(path: &Path) -> CallResult<(SnapshotFile, u64)> {
    let file = SnapshotFile::open(path)?;
    let count = file.description().pool.as_ref().map(gpu_vmm::snapshot::PoolRecord::blocks);
    let count = count.ok_or_else(|| {
        let path = path.display().to_string();
        Error::of_extension(Operation::Restore, SnapshotError::NotAPool { path })
    })?;
    Ok((file, count))
}

/// The largest number of tags in one call.
const MAX_TAGS: u64 = 1 << 16;

/// Writes the live blocks of a pool to a file, after waiting for the devices: their addresses, tags, sizes and bytes. An existing file of
/// that name is replaced when the new one is complete. Null `tags` and a `count` of zero mean all tags of this object's kind of memory; the
/// empty tag stands for blocks without one. Nothing may write to the blocks meanwhile; other threads allocate and free. `compress`
/// compresses the contents.
///
/// Create the pool with the option `restorable`: otherwise its addresses may be in use in another process.
///
/// Returns GPU_VMM_NOT_FOUND for a tag that does not exist, GPU_VMM_SUSPENDED, GPU_VMM_FILE if the file cannot be written, GPU_VMM_BUSY
/// for a capture, and GPU_VMM_UNSUPPORTED on a device without virtual memory management.
///
/// # Safety
///
/// `pool` is null or a pool. `path` is null or a string. `tags` is null or points to `count` pointers, each null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_save(
    pool: *const Pool,
    path: *const c_char,
    tags: *const *const c_char,
    count: u64,
    compress: bool,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, path) = unsafe { (object("pool", pool)?, texts::path("path", path)?) };
        if tags.is_null() && count > 0 {
            return Err(Failure::invalid(format!("save: tags is null, but count is {count}")));
        }
        if count > MAX_TAGS || (count == 0 && !tags.is_null()) {
            return Err(Failure::invalid(format!(
                "save: count is {count}; expected 1 to {MAX_TAGS}, or null tags for all"
            )));
        }
        let ring = ring(&pool.backend)?;
        let mut save = pool.blocks.save(&ring).compress(compress);
        for at in 0..count as usize {
            // SAFETY: there are `count` pointers, each null or a string, as the caller guarantees.
            save = save.tag(unsafe { required("one of tags", *tags.add(at)) }?);
        }
        save.write(path, WaitFor::all_devices())?;
        Ok(())
    })
}

/// Returns the number of blocks in the file of a pool.
///
/// Returns GPU_VMM_FILE for a file that cannot be read, is damaged, or has no pool.
///
/// # Safety
///
/// `path` is null or a string. `count` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_saved_pool_count(path: *const c_char, count: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(count) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("count", count, open(texts::path("path", path)?)?.1) }
    })
}

/// Creates the pool that gpu_vmm_pool_save has written to a file: its blocks have the same addresses, tags and bytes, and gpu_vmm_free
/// frees them. `blocks` receives them in the order of their addresses; `count` must be the number that gpu_vmm_saved_pool_count returns.
/// Null `blocks` and a `count` of zero skip that: gpu_vmm_find finds the blocks. Free the pool with gpu_vmm_pool_free.
///
/// `options` are those of gpu_vmm_pool_new, with the device that the blocks are restored on. The page size is that of the file, and the pool
/// is restorable if the saved one was. No other device has access to it before gpu_vmm_pool_allow_access.
///
/// Returns GPU_VMM_ADDRESS_TAKEN with a text that names what uses the addresses; GPU_VMM_FILE for a file that cannot be read, is damaged or
/// has no pool; GPU_VMM_OUT_OF_MEMORY, also for a budget or a device that is smaller than the memory; GPU_VMM_UNSUPPORTED for pages that are
/// smaller than the device's granularity, and for a file of another version; GPU_VMM_NO_SUCH_DEVICE; and GPU_VMM_INVALID_ARGUMENT for
/// another `count`. Everything created so far is released.
///
/// # Safety
///
/// `backend` is null or an open backend. `path` is null or a string. `options` is null or points to initialized options. `pool` is null or
/// points to a writable pointer. `blocks` is null or points to `count` writable blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_restore(
    backend: *const Backend,
    path: *const c_char,
    options: *const PoolOptions,
    pool: *mut *mut Pool,
    blocks: *mut RestoredBlock,
    count: u64,
) -> Status {
    // SAFETY: `pool` is null or writable for a pointer, and `blocks` null or writable for `count` blocks, as the caller guarantees.
    let places = unsafe {
        clear(pool);
        BlockPlaces::cleared(blocks, count)
    };
    status(|| {
        check_place("pool", pool)?;
        // SAFETY: guaranteed by the caller.
        let (backend, path) = unsafe { (&object("backend", backend)?.0, texts::path("path", path)?) };
        // SAFETY: guaranteed by the caller.
        let options = unsafe { options.as_ref() }.copied().unwrap_or(PoolOptions::DEFAULT);
        let builder = options.builder(backend)?;
        let file = places.open(path)?;
        let mut found = Vec::new();
        let restore = || {
            let restored = builder.restore(&file, &ring(backend)?)?;
            found.extend(restored.blocks.iter().map(|block| RestoredBlock::of(&restored.pool, block)));
            for block in restored.blocks {
                restored.pool.keep(block)?;
            }
            Pool::of(backend, restored.pool)
        };
        // SAFETY: the place is writable, as the caller guarantees.
        unsafe { give_box("pool", pool, restore) }?;
        // SAFETY: there are as many places as the file has blocks, which are all restored.
        unsafe { places.fill(&found) };
        Ok(())
    })
}

#[cfg(test)]
mod tests;
