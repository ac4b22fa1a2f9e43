//! The pools of the process, one for each device, and each thread's tag.

use super::graphs::Graphs;
use super::private::PrivatePools;
use super::table::DEVICES;
use super::unclaimed::Unclaimed;
use crate::backend::open;
use crate::call::status;
use crate::pool::Pool;
use crate::pool_options::PoolOptions;
use crate::status::{CallResult, Failure, GPU_VMM_BUSY, Status};
use crate::texts::{clear, give_box, optional};
use gpu_vmm::extend::Lock;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Operation, Stream};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{MutexGuard, OnceLock};

/// The tag of blocks that were allocated without another tag.
const TAG: &str = "torch";

/// The tag of memory that was allocated during captures.
const GRAPHS: &str = "torch graphs";

/// The default page size: a first pass takes half as many calls as with 8 MiB. Trainings whose sizes change in each step, with the
/// pool's own slack, hold less than with PyTorch's expandable segments, and their steps took as long on a quiet machine.
const PAGE: Bytes = Bytes::mib(16);

/// The alignment of blocks, the same as in PyTorch's own allocator.
pub(super) const ALIGNMENT: Bytes = Bytes(512);

/// One device's memory.
pub(super) struct Device {
    pub(super) pool: Pool,
    pub(super) graphs: Graphs,
    pub(super) private: PrivatePools,
    pub(super) unclaimed: Unclaimed,
}

struct Process {
    backend: AnyBackend,
    options: PoolOptions,
    devices: [OnceLock<Device>; DEVICES],
    /// Locked while the pool of a device is created.
    making: Lock<()>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// The configuration for [`PROCESS`]. Locked while that is created.
static CONFIG: OnceLock<Lock<ProcessConfig>> = OnceLock::new();

struct ProcessConfig {
    backend: Option<String>,
    options: PoolOptions,
}

/// Locks the configuration. Returns an error in a forked child: a thread of the parent may have been opening the backend.
fn wanted() -> CallResult<MutexGuard<'static, ProcessConfig>> {
    let none = || Lock::new(ProcessConfig { backend: None, options: PoolOptions::DEFAULT });
    Ok(CONFIG.get_or_init(none).lock(Operation::Open)?)
}

thread_local! {
    /// The tag that this thread allocates under.
    static OWN: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// Whether allocations must look for their thread's tag or claim, as a set of bits: finding them takes as long as the rest.
static SPECIAL: AtomicU8 = AtomicU8::new(0);

/// A thread has set a tag.
const TAGGED: u8 = 1;

/// A thread may have claimed a restored block.
const CLAIMED: u8 = 2;

/// Returns the process's state, which the first call creates.
fn process() -> CallResult<&'static Process> {
    if let Some(process) = PROCESS.get() {
        return Ok(process);
    }
    let wanted = wanted()?;
    if let Some(process) = PROCESS.get() {
        return Ok(process);
    }
    let backend = open(wanted.backend.as_deref())?;
    let devices = [const { OnceLock::new() }; DEVICES];
    let made = Process { backend, options: wanted.options, devices, making: Lock::default() };
    Ok(PROCESS.get_or_init(|| made))
}

/// Returns the devices that have a pool.
pub(super) fn devices() -> impl Iterator<Item = &'static Device> {
    PROCESS.get().into_iter().flat_map(|process| process.devices.iter().filter_map(OnceLock::get))
}

/// Returns a device that has a pool. Queries create none: on other devices that would create a context.
pub(super) fn used(number: c_int) -> Option<&'static Device> {
    PROCESS.get()?.devices.get(usize::try_from(number).ok()?)?.get()
}

/// Returns the backend of PyTorch's pools.
pub(super) fn backend() -> CallResult<&'static AnyBackend> {
    Ok(&process()?.backend)
}

/// Returns the limit that gpu_vmm_torch_configure has set.
pub(super) fn limit() -> CallResult<Option<u64>> {
    Ok(Some(process()?.options.budget).filter(|budget| *budget > 0))
}

/// Returns a device, whose pool the first call creates.
#[inline]
pub(super) fn device(number: c_int) -> CallResult<&'static Device> {
    match used(number) {
        Some(device) => Ok(device),
        None => make_device(number),
    }
}

#[cold]
fn make_device(number: c_int) -> CallResult<&'static Device> {
    let process = process()?;
    let place = process.place(number)?;
    let _making = process.making.lock(Operation::CreatePool)?;
    if let Some(device) = place.get() {
        return Ok(device);
    }
    let pool = Pool::new(&process.backend, &process.options_of(number))?;
    let made = Device::of(&pool, number, Unclaimed::default())?;
    Ok(place.get_or_init(|| made))
}

/// Returns a device whose pool `restore` restores with these options. The device must not have a pool.
pub(super) fn restore_device(
    number: c_int,
    restore: impl FnOnce(&AnyBackend, &PoolOptions) -> CallResult<(Pool, Unclaimed)>,
) -> CallResult<&'static Device> {
    let process = process()?;
    let place = process.place(number)?;
    let _making = process.making.lock(Operation::Restore)?;
    if place.get().is_some() {
        let text = format!(
            "restore: device {number} has a pool already; restore before its first allocation and its first statistics"
        );
        return Err(Failure::new(GPU_VMM_BUSY, text));
    }
    let (pool, unclaimed) = restore(&process.backend, &process.options_of(number))?;
    let made = Device::of(&pool, number, unclaimed)?;
    Ok(place.get_or_init(|| made))
}

/// Makes allocations look for the claim of their thread, or not.
pub(super) fn look_for_claims(whether: bool) {
    if whether {
        SPECIAL.fetch_or(CLAIMED, Ordering::Relaxed);
    } else {
        SPECIAL.fetch_and(!CLAIMED, Ordering::Relaxed);
    }
}

impl Process {
    fn place(&self, number: c_int) -> CallResult<&OnceLock<Device>> {
        let place = usize::try_from(number).ok().and_then(|number| self.devices.get(number));
        place.ok_or_else(|| Failure::invalid(format!("allocate: there is no device {number}")))
    }

    /// Returns the options of the pool of a device.
    fn options_of(&self, number: c_int) -> PoolOptions {
        let page = self.options.page;
        // A small budget must not be a page or less.
        let is_small = (1..16 * PAGE.0).contains(&self.options.budget);
        let page = if page == 0 && !is_small { PAGE.0 } else { page };
        PoolOptions { device: number as u32, page, ..self.options }
    }
}

impl Device {
    fn of(pool: &Pool, number: c_int, unclaimed: Unclaimed) -> CallResult<Self> {
        let graphs = Graphs::new(pool.tagged(GRAPHS)?);
        // `DEVICES` fits into a byte.
        let private = PrivatePools::new(pool.tagged(GRAPHS)?, number as u8);
        Ok(Self { pool: pool.tagged(TAG)?, graphs, private, unclaimed })
    }

    /// Allocates under a tag. Returns null for a size of 0.
    pub(super) fn alloc(
        &self,
        tag: Option<&str>,
        size: isize,
        stream: Stream<'static>,
    ) -> CallResult<*mut c_void> {
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let size =
            u64::try_from(size).map_err(|_| Failure::invalid(format!("allocate: the size is {size}")))?;
        let block = self.block(tag, Bytes(size), stream)?;
        // Kept in the pool of all tags, whatever the tag, so that `free` finds the block.
        Ok(self.pool.blocks.keep(block)?.as_ptr())
    }

    /// Allocates a block under a tag.
    fn block(
        &self,
        tag: Option<&str>,
        size: Bytes,
        stream: Stream<'static>,
    ) -> CallResult<Block<AnyBackend>> {
        let own = &self.pool.blocks;
        Ok(match tag {
            Some(tag) => own.tagged(tag)?.request(size).alignment(ALIGNMENT).stream(stream).alloc()?,
            None => own.request(size).alignment(ALIGNMENT).stream(stream).alloc()?,
        })
    }

    /// Frees a block of [`Device::alloc`].
    pub(super) fn free(&self, block: *mut c_void) -> CallResult {
        if block.is_null() {
            return Ok(());
        }
        Ok(self.pool.blocks.free_at(Address(block.addr() as u64))?)
    }
}

/// Allocates under this thread's tag.
pub(super) fn alloc_tagged(device: &Device, size: isize, stream: Stream<'static>) -> CallResult<*mut c_void> {
    match SPECIAL.load(Ordering::Relaxed) {
        0 => return device.alloc(None, size, stream),
        bits if bits & CLAIMED != 0 && size > 0 => {
            if let Some(block) = device.unclaimed.claimed(Bytes(size.unsigned_abs() as u64), stream)? {
                return Ok(device.pool.blocks.keep(block)?.as_ptr());
            }
        }
        _ => {}
    }
    with_tag(|tag| device.alloc(tag, size, stream))
}

/// Allocates a block under this thread's tag.
#[inline]
pub(super) fn block_tagged(
    device: &Device,
    size: Bytes,
    stream: Stream<'static>,
) -> CallResult<Block<AnyBackend>> {
    let special = SPECIAL.load(Ordering::Relaxed);
    if special != 0 {
        if special & CLAIMED != 0
            && let Some(block) = device.unclaimed.claimed(size, stream)?
        {
            return Ok(block);
        }
        return with_tag(|tag| device.block(tag, size, stream));
    }
    // The common case calls little and returns one pointer.
    let request = || device.pool.blocks.request(size).alignment(ALIGNMENT).stream(stream);
    match request().alloc_cached() {
        Some(block) => Ok(block),
        None => Ok(request().alloc()?),
    }
}

/// Calls `work` with this thread's tag. A thread that is ending no longer has one.
fn with_tag<T>(work: impl Fn(Option<&str>) -> T) -> T {
    OWN.try_with(|own| work(own.borrow().as_deref())).unwrap_or_else(|_| work(None))
}

/// Configures the backend and the options of PyTorch's pools. A null `backend` selects as gpu_vmm_open does. `options.device` is
/// ignored, since each device has its own pool. Returns GPU_VMM_BUSY after the first allocation.
///
/// # Safety
///
/// `backend` is null or a string. `options` is null or points to initialized options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_configure(
    backend: *const c_char,
    options: *const PoolOptions,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (name, options) = unsafe { (optional("backend", backend)?, options.as_ref()) };
        options.map_or(Ok(()), PoolOptions::check)?;
        let mut wanted = wanted()?;
        if PROCESS.get().is_some() {
            let text = "configure: memory has been allocated already; configure before the first allocation";
            return Err(Failure::new(GPU_VMM_BUSY, text));
        }
        // Reports a wrong name here, not in the first allocation.
        open(name)?;
        wanted.backend = name.map(str::to_owned);
        wanted.options = options.copied().unwrap_or(PoolOptions::DEFAULT);
        Ok(())
    })
}

/// Sets the tag that this thread's following allocations get; null for "torch".
///
/// # Safety
///
/// `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_set_tag(tag: *const c_char) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let tag = unsafe { optional("tag", tag) }?;
        // Fails while the thread ends, when its locals are gone: it allocates without a tag then.
        let _ = OWN.try_with(|own| own.replace(tag.map(Into::into)));
        // This thread reads it next; other threads have no tag through this call.
        SPECIAL.fetch_or(TAGGED, Ordering::Relaxed);
        Ok(())
    })
}

/// Returns PyTorch's pool of a device, for its statistics and to suspend and resume its tags. Free it with gpu_vmm_pool_free,
/// which does not affect the memory.
///
/// # Safety
///
/// `pool` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_pool(device_number: c_int, pool: *mut *mut Pool) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(pool) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give_box("pool", pool, || Ok(device(device_number)?.pool.clone())) }
    })
}
