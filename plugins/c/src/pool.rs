//! Allocating from a pool.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

mod memory;

use crate::backend::Backend;
use crate::call::status;
use crate::handles::{Kind, Object};
use crate::pool_options::PoolOptions;
use crate::status::{CallResult, Failure, GPU_VMM_OUT_OF_RANGE, Status};
use crate::stores::Stores;
use crate::texts::{
    bytes, check_place, clear, give, give_box, give_if_wanted, give_json, object, required, room, take_box,
};
use gpu_vmm::pool::{BlockInfo as BlockFacts, Pool as Blocks, PoolError};
#[cfg(target_os = "linux")]
use gpu_vmm::serve::Quota;
use gpu_vmm::{Address, AnyBackend, Backend as _, Bytes, CopyCalls, DeviceId, Error, Operation, Stream};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A pool of one device's memory that allocates under one tag. Calls of several threads run at the same time, also during gpu_vmm_suspend
/// and gpu_vmm_resume; but gpu_vmm_suspend, gpu_vmm_host_memory and gpu_vmm_trim_host take turns.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) backend: AnyBackend,
    pub(crate) blocks: Blocks<AnyBackend>,
    pub(crate) stores: Arc<Stores>,
    /// Its part of a server's budget.
    #[cfg(target_os = "linux")]
    pub(crate) quota: Option<Quota<AnyBackend>>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Pool {
    const KIND: Kind = Kind::Pool;
}

impl Pool {
    pub(crate) fn new(backend: &AnyBackend, options: &PoolOptions) -> CallResult<Self> {
        Self::of(backend, options.builder(backend)?.build()?)
    }

    /// Returns the object for a new pool, which it connects to the program's server, if there is one.
    pub(crate) fn of(backend: &AnyBackend, blocks: Blocks<AnyBackend>) -> CallResult<Self> {
        Ok(Self {
            #[cfg(target_os = "linux")]
            quota: crate::pool_server::connect(backend, &blocks)?,
            backend: backend.clone(),
            blocks,
            stores: Arc::default(),
        })
    }

    pub(crate) fn tagged(&self, tag: &str) -> CallResult<Self> {
        Ok(Self { blocks: self.blocks.tagged(tag)?, ..self.clone() })
    }

    /// Returns the device that the pool allocates from.
    pub(crate) fn device(&self) -> DeviceId {
        self.blocks.memory().device
    }

    /// Checks that `size` bytes from `address` on lie in one live block that is not suspended.
    fn place(&self, operation: Operation, address: u64, size: u64) -> CallResult<Address> {
        let address = Address(address);
        self.backend.deferred().process().check(operation)?;
        let found = self
            .blocks
            .find(address)
            .ok_or_else(|| Error::of_extension(operation, PoolError::NotABlock { address, inside: None }))?;
        if size > found.capacity.0 - found.offset.0 {
            return Err(Failure::new(
                GPU_VMM_OUT_OF_RANGE,
                format!(
                    "{operation}: {} at {address} exceed the block at {}, which ends {} after that address",
                    Bytes(size),
                    found.base,
                    found.capacity - found.offset
                ),
            ));
        }
        if found.suspended {
            return Err(Error::of_extension(operation, PoolError::Suspended { tag: found.tag }).into());
        }
        Ok(address)
    }
}

/// The size of the fields with a tag, with the terminating zero.
const TAG: usize = 64;

/// Returns the field for a tag, which is truncated between two characters.
pub(crate) fn tag_field(tag: &str) -> [c_char; TAG] {
    let mut field = [0; TAG];
    let mut room = tag.len().min(TAG - 1);
    while !tag.is_char_boundary(room) {
        room -= 1;
    }
    field.iter_mut().zip(&tag.as_bytes()[..room]).for_each(|(to, from)| *to = *from as c_char);
    field
}

/// Information on a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockInfo {
    /// Its first address.
    pub base: u64,
    /// The bytes that it occupies: the requested size, rounded up.
    pub capacity: u64,
    /// The distance of the queried address from `base`, in bytes.
    pub offset: u64,
    /// The stream that it was allocated for.
    pub stream: *mut c_void,
    /// The device that its memory belongs to.
    pub device: u32,
    /// Its tag, terminated by a zero; a tag of more than 63 bytes is truncated.
    pub tag: [c_char; 64],
}

impl From<BlockFacts> for BlockInfo {
    fn from(found: BlockFacts) -> Self {
        Self {
            base: found.base.0,
            capacity: found.capacity.0,
            offset: found.offset.0,
            stream: found.stream.as_raw(),
            device: found.device.0,
            tag: tag_field(&found.tag),
        }
    }
}

/// Creates a pool of a device's memory. The pool reserves and creates nothing before the first block. A null `options` is the
/// default: device 0, without limits. Free the pool with gpu_vmm_pool_free.
///
/// # Safety
///
/// `backend` is null or an open backend. `options` is null or points to initialized options. `pool` is null or points to a
/// writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_new(
    backend: *const Backend,
    options: *const PoolOptions,
    pool: *mut *mut Pool,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(pool) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = object("backend", backend)?;
            let options = options.as_ref().copied().unwrap_or(PoolOptions::DEFAULT);
            give_box("pool", pool, || Pool::new(&backend.0, &options))
        }
    })
}

/// Returns the same pool, allocating under a tag. Blocks with one tag are suspended together. Free the result with
/// gpu_vmm_pool_free.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string. `tagged` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_tagged(
    pool: *const Pool,
    tag: *const c_char,
    tagged: *mut *mut Pool,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(tagged) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (pool, tag) = (object("pool", pool)?, required("tag", tag)?);
            give_box("tagged", tagged, || pool.tagged(tag))
        }
    })
}

/// Forgets a tag: its name is free for another tag at once. Objects and blocks of the tag stay valid; its addresses are free when the
/// last of both has ended. A tag that is not forgotten ends in the same way. GPU_VMM_NOT_FOUND if no tag has the name.
/// GPU_VMM_SUSPENDED while the tag is suspended: gpu_vmm_resume finds it by its name.
///
/// # Safety
///
/// `pool` is null or a pool. `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_forget_tag(pool: *const Pool, tag: *const c_char) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, tag) = unsafe { (object("pool", pool)?, required("tag", tag)?) };
        Ok(pool.blocks.forget_tag(tag)?)
    })
}

/// Frees a pool. When the last object of a pool is freed, gpu_vmm_pool_tagged's included, all of its remaining blocks are freed as
/// well. Null does nothing.
///
/// # Safety
///
/// `pool` is null or comes from this library, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_free(pool: *mut Pool) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(pool) }
}

/// Allocates `size` bytes for a stream. Memory that was freed on this stream serves the stream's next request at once. It serves
/// other streams once the device has finished with it.
///
/// `alignment` is a power of two, or 0 for 256; a texture of linear memory needs 512 on NVIDIA's GPUs. `stream` is a CUstream or a
/// hipStream_t, null for the default stream. The stream must exist until gpu_vmm_forget_stream or the end of the pool.
///
/// # Safety
///
/// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor. `address` is null or points to a writable
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_alloc(
    pool: *const Pool,
    size: u64,
    alignment: u64,
    stream: *mut c_void,
    address: *mut u64,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        check_place("address", address)?;
        let alignment = Bytes(if alignment == 0 { 256 } else { alignment });
        let block = pool.blocks.request(Bytes(size)).alignment(alignment).stream(stream).alloc()?;
        // SAFETY: guaranteed by the caller.
        unsafe { give("address", address, pool.blocks.keep(block)?.0) }
    })
}

/// Allocates `size` bytes at an address, a multiple of 512, for a stream: see gpu_vmm_alloc. If the tag has addresses there, they must be
/// free; otherwise the pool reserves them.
///
/// Returns GPU_VMM_ADDRESS_TAKEN if a block, another tag or something outside of the pool is there, which the text names; GPU_VMM_UNALIGNED;
/// GPU_VMM_OUT_OF_ADDRESS_SPACE; GPU_VMM_UNSUPPORTED on a device without virtual memory management.
///
/// # Safety
///
/// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_alloc_at(
    pool: *const Pool,
    address: u64,
    size: u64,
    stream: *mut c_void,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        let block = pool.blocks.request(Bytes(size)).at(Address(address)).stream(stream).alloc()?;
        pool.blocks.keep(block)?;
        Ok(())
    })
}

/// Frees a block in the order of the stream that it was allocated for: work that is already queued on that stream may still use
/// the block.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_free(pool: *const Pool, address: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        Ok(pool.blocks.free_at(Address(address))?)
    })
}

/// Records that work on another stream uses a block. After gpu_vmm_free, the pool reuses the block's memory only once that stream
/// has finished the work that was queued on it by then. PyTorch: record_stream.
///
/// # Safety
///
/// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_record_use(pool: *const Pool, address: u64, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        Ok(pool.blocks.record_use_at(Address(address), stream)?)
    })
}

/// Finds the live block that contains an address. This is slow, since it searches the cache of every thread.
///
/// # Safety
///
/// `pool` is null or a pool. `block` is null or points to a writable gpu_vmm_block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_find(pool: *const Pool, address: u64, block: *mut BlockInfo) -> Status {
    // SAFETY: null or writable for a block, as the caller guarantees; all of its fields can be zero.
    unsafe { clear(block) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let address = Address(address);
        let missing =
            || Error::of_extension(Operation::FindBlock, PoolError::NotABlock { address, inside: None });
        let found = pool.blocks.find(address).ok_or_else(missing)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give("block", block, found.into()) }
    })
}

/// Copies bytes of a block to the host and waits for the copy. It does not wait for work on streams.
///
/// `address` is any address in a live block. The range may reach to the end of the block's capacity, which gpu_vmm_find reports.
/// Beyond that, the call returns GPU_VMM_OUT_OF_RANGE.
///
/// # Safety
///
/// `pool` is null or a pool. `to` is null or points to `size` writable bytes. No other thread frees, suspends or moves the block
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_read(pool: *const Pool, address: u64, to: *mut c_void, size: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let from = pool.place(Operation::Read, address, size)?;
        // SAFETY: the caller guarantees `size` writable bytes and a block that stays; `place` has checked the block's range.
        unsafe { Ok(pool.backend.copy_to_host(pool.device(), room("to", to, size)?, from)?) }
    })
}

/// Copies bytes of the host to a block and waits for the copy. It does not wait for work on streams. The range has the same
/// limits as in gpu_vmm_read.
///
/// # Safety
///
/// `pool` is null or a pool. `from` is null or points to `size` bytes. No other thread frees, suspends or moves the block during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_write(
    pool: *const Pool,
    address: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let to = pool.place(Operation::Write, address, size)?;
        // SAFETY: the caller guarantees `size` bytes and a block that stays; `place` has checked the block's range.
        unsafe { Ok(pool.backend.copy_from_host(pool.device(), to, bytes("from", from, size)?)?) }
    })
}

/// Returns free memory to the driver until the pool keeps at most `keep` bytes of it. `given_back` receives the number of bytes
/// that were returned; it may be null.
///
/// # Safety
///
/// `pool` is null or a pool. `given_back` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_trim(pool: *const Pool, keep: u64, given_back: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(given_back) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let bytes = pool.blocks.trim(Bytes(keep))?;
        // SAFETY: guaranteed by the caller.
        unsafe { give_if_wanted(given_back, bytes.0) };
        Ok(())
    })
}

/// Sets the largest amount of physical memory that the pool may hold, in bytes; UINT64_MAX for no limit. Any thread may call it at
/// any time. A pool that holds more returns free memory to the driver at once, without waiting for work that still uses it, and the
/// memory of blocks as they are freed. Until it holds less, requests that need new memory return GPU_VMM_OUT_OF_MEMORY.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_set_budget(pool: *const Pool, bytes: u64) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        Ok(pool.blocks.set_budget(Bytes(bytes))?)
    })
}

/// Forgets a stream that the caller is about to destroy, without waiting. The stream's memory serves other streams once its
/// queued work is done. Returns GPU_VMM_BUSY while the stream captures a graph.
///
/// # Safety
///
/// `pool` is null or a pool. `stream` is null or a live stream of the pool's vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_forget_stream(pool: *const Pool, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        Ok(pool.blocks.forget_stream(stream)?)
    })
}

/// Returns the pool's statistics as JSON: live, cached, pending, kept, held, mapped, reserved, peak_live, peak_held, and more.
/// Free the text with gpu_vmm_string_free.
///
/// # Safety
///
/// `pool` is null or a pool. `json` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_stats(pool: *const Pool, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &object("pool", pool)?.blocks.stats()) }
    })
}

/// Returns a snapshot of the pool as JSON, which `gpu-vmm report FILE.json --html OUT` draws. Free the text with
/// gpu_vmm_string_free.
///
/// # Safety
///
/// As for gpu_vmm_pool_stats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_snapshot(pool: *const Pool, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &object("pool", pool)?.blocks.snapshot()) }
    })
}

#[cfg(test)]
mod tests;
