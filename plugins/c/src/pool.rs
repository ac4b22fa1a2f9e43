//! Allocating from a pool.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::status::{Answer, Failure, Status};
use crate::stores::Stores;
use crate::texts::{
    bytes, check_place, clear, give, give_box, give_if_wanted, give_json, object, required, room, take_box,
};
use gpu_vmm::pool::{BlockInfo as Found, Pool as Blocks, PoolError};
use gpu_vmm::{Address, AnyBackend, Bytes, CopyCalls, DeviceId, Error, Operation, Stream};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// For `keep` of gpu_vmm_pool_options: free memory returns to the driver at once. One byte is less than any page.
pub const GPU_VMM_KEEP_NOTHING: u64 = 1;

/// What a pool is to be. All zeros, as after `= {0}`, is the default: a pool of device 0 without limits that keeps its memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Whose memory it is.
    pub device: u32,
    /// The most physical memory that the pool may hold; 0 for no limit.
    pub budget: u64,
    /// The most free memory that the pool keeps, in bytes; 0 for all of it, GPU_VMM_KEEP_NOTHING for none.
    pub keep: u64,
    /// The size in which physical memory is created and mapped, a power of two; 0 for the driver's granularity, or for 16 MiB
    /// where PyTorch is served. Larger pieces take fewer driver calls, and more may lie unused beside blocks.
    pub page: u64,
    /// By how many hundredths the pool may hold more than was ever needed at one time, before it maps free memory from
    /// elsewhere rather than create new, which is slow where sizes change all the time; 0 for 1, or 7 once it
    /// serves several streams or PyTorch.
    pub slack: u32,
    /// Memory is overwritten with zeros where it passes from one tag to another.
    pub scrub: bool,
    /// The pool remembers where each block came from.
    pub debug: bool,
    /// Must be zero. Later versions add their settings here, so that the size stays: a setting that this version does not know
    /// is an error and not ignored.
    pub reserved: [u64; 4],
}

impl PoolOptions {
    /// All zeros.
    pub(crate) const DEFAULT: Self = Self {
        device: 0,
        budget: 0,
        keep: 0,
        page: 0,
        slack: 0,
        scrub: false,
        debug: false,
        reserved: [0; 4],
    };

    /// Refuses settings of a later version.
    pub(crate) fn check(&self) -> Answer {
        if self.reserved != [0; 4] {
            return Err(Failure::invalid(
                "make a pool: options.reserved is not zero; set the whole struct to zero first (gpu_vmm_pool_options options = {0}), \
                 or load a library as new as the header",
            ));
        }
        Ok(())
    }
}

/// A pool of a device's memory, allocating under one tag.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) backend: AnyBackend,
    pub(crate) device: DeviceId,
    pub(crate) blocks: Blocks<AnyBackend>,
    pub(crate) stores: Arc<Stores>,
}

impl Pool {
    pub(crate) fn new(backend: &AnyBackend, options: &PoolOptions) -> Answer<Self> {
        options.check()?;
        let device = DeviceId(options.device);
        let mut builder = Blocks::builder(backend).device(device);
        match options.keep {
            0 => {}
            GPU_VMM_KEEP_NOTHING => builder = builder.keep(Bytes::ZERO),
            keep => builder = builder.keep(Bytes(keep)),
        }
        if options.budget > 0 {
            builder = builder.budget(Bytes(options.budget));
        }
        if options.page > 0 {
            builder = builder.page(Bytes(options.page));
        }
        if options.slack > 0 {
            builder = builder.slack(options.slack);
        }
        if options.scrub {
            builder = builder.scrub();
        }
        if options.debug {
            builder = builder.debug();
        }
        Ok(Self { backend: backend.clone(), device, blocks: builder.build()?, stores: Arc::default() })
    }

    pub(crate) fn tagged(&self, tag: &str) -> Answer<Self> {
        Ok(Self { blocks: self.blocks.tagged(tag)?, ..self.clone() })
    }

    /// Where all `size` bytes from an address on lie in one live block whose memory is there.
    fn place(&self, operation: Operation, address: u64, size: u64) -> Answer<Address> {
        let address = Address(address);
        let found = self
            .blocks
            .find(address)
            .ok_or_else(|| Error::of_extension(operation, PoolError::NotABlock { address, inside: None }))?;
        if size > found.capacity.0 - found.offset.0 {
            return Err(Failure::invalid(format!(
                "{operation}: {} at {address} are more than the block at {} has from there on, {}",
                Bytes(size),
                found.base,
                found.capacity - found.offset
            )));
        }
        if self.blocks.is_suspended(&found.tag)? {
            return Err(Error::of_extension(operation, PoolError::Suspended { tag: found.tag }).into());
        }
        Ok(address)
    }
}

/// How much of a tag a [`BlockInfo`] has room for, with the zero behind it.
const TAG: usize = 64;

/// What is known of a block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockInfo {
    /// Its first address.
    pub base: u64,
    /// How much it takes: what was asked for, rounded up.
    pub size: u64,
    /// How far behind the first address the one lies that was asked about.
    pub offset: u64,
    /// The stream that it was allocated for.
    pub stream: *mut c_void,
    /// Whose memory it is.
    pub device: u32,
    /// Its tag; a longer one is cut.
    pub tag: [c_char; 64],
}

impl From<Found> for BlockInfo {
    fn from(found: Found) -> Self {
        let mut tag = [0; TAG];
        let mut room = found.tag.len().min(TAG - 1);
        while !found.tag.is_char_boundary(room) {
            room -= 1;
        }
        tag.iter_mut().zip(&found.tag.as_bytes()[..room]).for_each(|(to, from)| *to = *from as c_char);
        Self {
            base: found.base.0,
            size: found.capacity.0,
            offset: found.offset.0,
            stream: found.stream.as_raw(),
            device: found.device.0,
            tag,
        }
    }
}

/// Makes a pool of a device's memory. Nothing is reserved or created before the first block. `options` may be null: device 0
/// without limits.
///
/// # Safety
///
/// `backend` is null or an open one, `options` null or filled in; `pool` is null or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_new(
    backend: *const Backend,
    options: *const PoolOptions,
    pool: *mut *mut Pool,
) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(pool) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let backend = object("backend", backend)?;
            let options = options.as_ref().copied().unwrap_or(PoolOptions::DEFAULT);
            give_box("pool", pool, || Pool::new(&backend.0, &options))
        }
    })
}

/// The same pool for blocks with a tag: they are suspended together. To be freed as a pool of its own.
///
/// # Safety
///
/// `pool` is null or a pool, `tag` null or a string; `tagged` is null or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_tagged(
    pool: *const Pool,
    tag: *const c_char,
    tagged: *mut *mut Pool,
) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(tagged) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (pool, tag) = (object("pool", pool)?, required("tag", tag)?);
            give_box("tagged", tagged, || pool.tagged(tag))
        }
    })
}

/// Lets a pool go. With the last of its tags all blocks end that were not freed. Null is nothing.
///
/// # Safety
///
/// `pool` is null or one that this library gave and that was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_free(pool: *mut Pool) {
    // SAFETY: as the caller says.
    unsafe { take_box(pool) }
}

/// Allocates `size` bytes for a stream: what was freed on it serves the next request for the same stream at once, other
/// streams when the device is done with it. `alignment` is a power of two, or 0 for 256. `stream` is CUDA's CUstream or HIP's
/// hipStream_t, null for the default stream; it has to stay until gpu_vmm_forget_stream.
///
/// # Safety
///
/// `pool` is null or a pool, `stream` null or a live stream of its vendor; `address` is null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_alloc(
    pool: *const Pool,
    size: u64,
    alignment: u64,
    stream: *mut c_void,
    address: *mut u64,
) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(address) };
    status(|| {
        // SAFETY: as the caller says.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        check_place("address", address)?;
        let alignment = Bytes(if alignment == 0 { 256 } else { alignment });
        let block = pool.blocks.request(Bytes(size)).alignment(alignment).stream(stream).alloc()?;
        // SAFETY: as the caller says.
        unsafe { give("address", address, pool.blocks.keep(block)?.0) }
    })
}

/// Frees a block, in the order of the stream that it was allocated for: work that is queued there may still use it.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_free(pool: *const Pool, address: u64) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let pool = unsafe { object("pool", pool) }?;
        Ok(pool.blocks.free_at(Address(address))?)
    })
}

/// Notes that work on another stream uses a block: once freed, it is used again when that stream has done what is queued on
/// it then. PyTorch: record_stream.
///
/// # Safety
///
/// `pool` is null or a pool, `stream` null or a live stream of its vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_record_use(pool: *const Pool, address: u64, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        Ok(pool.blocks.record_use_at(Address(address), stream)?)
    })
}

/// The live block in which an address lies. For questions now and then.
///
/// # Safety
///
/// `pool` is null or a pool, `block` null or room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_find(pool: *const Pool, address: u64, block: *mut BlockInfo) -> Status {
    // SAFETY: null or room for a block, whose fields can all be zero, as the caller says.
    unsafe { clear(block) };
    status(|| {
        // SAFETY: as the caller says.
        let pool = unsafe { object("pool", pool) }?;
        let address = Address(address);
        let missing =
            || Error::of_extension(Operation::FindBlock, PoolError::NotABlock { address, inside: None });
        let found = pool.blocks.find(address).ok_or_else(missing)?;
        // SAFETY: as the caller says.
        unsafe { give("block", block, found.into()) }
    })
}

/// Copies bytes of a block to the host and waits for the copy. Work of streams is not waited for.
///
/// # Safety
///
/// `pool` is null or a pool, `to` null or room for `size` bytes. Nobody frees or suspends the block meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_read(pool: *const Pool, address: u64, to: *mut c_void, size: u64) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let pool = unsafe { object("pool", pool) }?;
        let from = pool.place(Operation::Read, address, size)?;
        // SAFETY: there is room for so many bytes, as the caller says, and the block has them, which was looked at.
        unsafe { Ok(pool.backend.copy_to_host(pool.device, room("to", to, size)?, from)?) }
    })
}

/// Copies bytes of the host to a block and waits until they are there. Work of streams is not waited for.
///
/// # Safety
///
/// `pool` is null or a pool, `from` null or `size` bytes. Nobody frees or suspends the block meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_write(
    pool: *const Pool,
    address: u64,
    from: *const c_void,
    size: u64,
) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let pool = unsafe { object("pool", pool) }?;
        let to = pool.place(Operation::Write, address, size)?;
        // SAFETY: the bytes are there, as the caller says, and the block has room for them, which was looked at.
        unsafe { Ok(pool.backend.copy_from_host(pool.device, to, bytes("from", from, size)?)?) }
    })
}

/// Gives memory back to the driver in which nothing is, until no more than `keep` of it is kept. `given_back` may be null.
///
/// # Safety
///
/// `pool` is null or a pool, `given_back` null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_trim(pool: *const Pool, keep: u64, given_back: *mut u64) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(given_back) };
    status(|| {
        // SAFETY: as the caller says.
        let pool = unsafe { object("pool", pool) }?;
        let bytes = pool.blocks.trim(Bytes(keep))?;
        // SAFETY: as the caller says.
        unsafe { give_if_wanted(given_back, bytes.0) };
        Ok(())
    })
}

/// Forgets a stream that is to be destroyed, without waiting: what it has used serves other streams once its work is done.
/// GPU_VMM_BUSY while the stream captures.
///
/// # Safety
///
/// `pool` is null or a pool, `stream` null or a live stream of its vendor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_forget_stream(pool: *const Pool, stream: *mut c_void) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let (pool, stream) = unsafe { (object("pool", pool)?, Stream::from_raw(stream)) };
        Ok(pool.blocks.forget_stream(stream)?)
    })
}

/// Where the pool's memory is, as JSON: live, cached, pending, kept, held, mapped, reserved, peak_live, peak_held, and more.
///
/// # Safety
///
/// `pool` is null or a pool; `json` is null or room for a pointer, to be freed with gpu_vmm_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_stats(pool: *const Pool, json: *mut *mut c_char) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe { give_json(json, &object("pool", pool)?.blocks.stats()) }
    })
}

/// What the pool looks like now, as JSON: what `gpu-vmm report FILE.json --html OUT` draws.
///
/// # Safety
///
/// As for gpu_vmm_pool_stats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_snapshot(pool: *const Pool, json: *mut *mut c_char) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe { give_json(json, &object("pool", pool)?.blocks.snapshot()) }
    })
}
