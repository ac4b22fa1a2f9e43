//! The pools of the process, one for each device, and each thread's tag.

use super::graphs::Graphs;
use crate::backend::open;
use crate::call::status;
use crate::pool::{Pool, PoolOptions};
use crate::status::{Answer, Failure, GPU_VMM_BUSY, Status};
use crate::texts::{clear, give_box, optional};
use gpu_vmm::{Address, AnyBackend, Bytes, Stream};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What is tagged with nothing else.
const TAG: &str = "torch";

/// The tag of what graphs were captured with.
const GRAPHS: &str = "torch graphs";

/// What is mapped at a time, and how much more may be held than was needed, where nothing else is said: a training whose batches
/// differ maps memory in every step otherwise, while it waits. It is still less than PyTorch's expandable segments hold.
const PAGE: Bytes = Bytes::mib(16);
const SLACK: u32 = 7;

/// What addresses are multiples of, as PyTorch's own allocator has it.
pub(super) const ALIGNMENT: Bytes = Bytes(512);

/// So many devices are served.
const DEVICES: usize = 64;

/// One device's memory.
pub(super) struct Device {
    pub(super) pool: Pool,
    pub(super) graphs: Graphs,
}

struct Process {
    backend: AnyBackend,
    options: PoolOptions,
    devices: [OnceLock<Device>; DEVICES],
    /// Held by who makes the pool of a device.
    making: Mutex<()>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// What the process is to be made with. Held by who makes it.
static WANTED: Mutex<Wanted> = Mutex::new(Wanted { backend: None, options: PoolOptions::DEFAULT });

struct Wanted {
    backend: Option<String>,
    options: PoolOptions,
}

fn wanted() -> MutexGuard<'static, Wanted> {
    WANTED.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// What this thread allocates under.
    static OWN: RefCell<Option<Box<str>>> = const { RefCell::new(None) };
}

/// The process, made when it is first asked for.
fn process() -> Answer<&'static Process> {
    if let Some(process) = PROCESS.get() {
        return Ok(process);
    }
    let wanted = wanted();
    if let Some(process) = PROCESS.get() {
        return Ok(process);
    }
    let backend = open(wanted.backend.as_deref())?;
    let devices = [const { OnceLock::new() }; DEVICES];
    let made = Process { backend, options: wanted.options, devices, making: Mutex::new(()) };
    Ok(PROCESS.get_or_init(|| made))
}

/// The devices whose memory was asked for so far.
pub(super) fn devices() -> impl Iterator<Item = &'static Device> {
    PROCESS.get().into_iter().flat_map(|process| process.devices.iter().filter_map(OnceLock::get))
}

/// A device, whose pool is made when it is first asked for.
pub(super) fn device(number: c_int) -> Answer<&'static Device> {
    let process = process()?;
    let place = usize::try_from(number).ok().and_then(|number| process.devices.get(number));
    let place = place.ok_or_else(|| Failure::invalid(format!("allocate: there is no device {number}")))?;
    if let Some(device) = place.get() {
        return Ok(device);
    }
    let _making = process.making.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = place.get() {
        return Ok(device);
    }
    let PoolOptions { page, slack, .. } = process.options;
    // A small budget is not to be one page or none.
    let is_small = (1..16 * PAGE.0).contains(&process.options.budget);
    let page = if page == 0 && !is_small { PAGE.0 } else { page };
    let slack = if slack == 0 { SLACK } else { slack };
    let options = PoolOptions { device: number as u32, page, slack, ..process.options };
    let pool = Pool::new(&process.backend, &options)?;
    let graphs = Graphs::new(pool.tagged(GRAPHS)?);
    let made = Device { pool: pool.tagged(TAG)?, graphs };
    Ok(place.get_or_init(|| made))
}

impl Device {
    /// Allocates under a tag. Nothing is null.
    pub(super) fn alloc(
        &self,
        tag: Option<&str>,
        size: isize,
        stream: Stream<'static>,
    ) -> Answer<*mut c_void> {
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let size =
            u64::try_from(size).map_err(|_| Failure::invalid(format!("allocate: the size is {size}")))?;
        let own = &self.pool.blocks;
        let block = match tag {
            Some(tag) => own.tagged(tag)?.request(Bytes(size)).alignment(ALIGNMENT).stream(stream).alloc()?,
            None => own.request(Bytes(size)).alignment(ALIGNMENT).stream(stream).alloc()?,
        };
        // Kept for all tags together.
        Ok(own.keep(block)?.as_ptr())
    }

    /// Frees what [`Device::alloc`] gave.
    pub(super) fn free(&self, block: *mut c_void) -> Answer {
        if block.is_null() {
            return Ok(());
        }
        Ok(self.pool.blocks.free_at(Address(block.addr() as u64))?)
    }
}

/// Allocates under this thread's tag. A thread that is ending has none any more.
pub(super) fn alloc_tagged(device: &Device, size: isize, stream: Stream<'static>) -> Answer<*mut c_void> {
    OWN.try_with(|own| device.alloc(own.borrow().as_deref(), size, stream))
        .unwrap_or_else(|_| device.alloc(None, size, stream))
}

/// Says which backend serves PyTorch, by name or null for the one whose library the process has loaded, and with which options;
/// the device in them is not looked at, each has a pool of its own. Before the first allocation: GPU_VMM_BUSY from then on.
///
/// # Safety
///
/// `backend` is null or a string, `options` null or filled in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_configure(
    backend: *const c_char,
    options: *const PoolOptions,
) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let (name, options) = unsafe { (optional("backend", backend)?, options.as_ref()) };
        options.map_or(Ok(()), PoolOptions::check)?;
        let mut wanted = wanted();
        if PROCESS.get().is_some() {
            let text = "configure: memory has been allocated already; say this before the first allocation";
            return Err(Failure::new(GPU_VMM_BUSY, text));
        }
        // An error in the name is reported here, not by the first allocation.
        open(name)?;
        wanted.backend = name.map(str::to_owned);
        wanted.options = options.copied().unwrap_or(PoolOptions::DEFAULT);
        Ok(())
    })
}

/// What this thread allocates from now on has this tag; null for "torch".
///
/// # Safety
///
/// `tag` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_set_tag(tag: *const c_char) -> Status {
    status(|| {
        // SAFETY: as the caller says.
        let tag = unsafe { optional("tag", tag) }?;
        OWN.set(tag.map(Into::into));
        Ok(())
    })
}

/// The process's pool for a device, for its statistics, and to suspend and resume its tags. To be freed with gpu_vmm_pool_free,
/// which leaves the memory as it is.
///
/// # Safety
///
/// `pool` is null or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_pool(device_number: c_int, pool: *mut *mut Pool) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(pool) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe { give_box("pool", pool, || Ok(device(device_number)?.pool.clone())) }
    })
}
