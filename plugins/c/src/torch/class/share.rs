//! Blocks in other processes.
//!
//! The exporter names descriptors of its physical memory, page by page, as an offer. The importer takes them from the exporter's
//! process and maps them at one range. PyTorch keeps the exporter's block alive until every importer has freed its tensors, and sends
//! the offer by its own means.

use crate::call::status;
use crate::handles::{Kind, Object};
use crate::status::{CallResult, Failure, GPU_VMM_NOT_FOUND, GPU_VMM_UNSUPPORTED, Status};
use crate::texts::{check_place, clear, give, give_box, give_json, required, take_box};
use crate::torch::importers::Importers;
use crate::torch::process::{backend, used};
use crate::torch::shared::{Handle, Shared};
use crate::torch::table;
use gpu_vmm::share::{ImportMethod, Offered};
use gpu_vmm::{Access, Address, AnyBackend, Bytes, Region};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// The way in which another process imports a block, where there is one.
#[cfg(target_os = "linux")]
const METHOD: Option<ImportMethod> = Some(ImportMethod::Process);
#[cfg(not(target_os = "linux"))]
const METHOD: Option<ImportMethod> = None;

/// Memory of another process that is mapped here.
pub struct Imported {
    _region: Region<AnyBackend>,
}

// SAFETY: no other type has the kind.
unsafe impl Object for Imported {
    const KIND: Kind = Kind::Imported;
}

/// Makes a live block of PyTorch importable. `handle` receives text for gpu_vmm_torch_import in another process of the same user, and
/// `offset` the distance of the block from the beginning of the memory that the import maps. The same block has one handle. Its memory
/// must not be freed before the other process has imported it. Free the text with gpu_vmm_string_free.
///
/// Until all such blocks are freed, every process of the same user may take descriptors from this one and trace it, where the kernel
/// restricts that to ancestors (PR_SET_PTRACER with PR_SET_PTRACER_ANY). Afterwards none may, whatever the program has set before.
///
/// # Safety
///
/// `handle` is null or points to a writable pointer, and `offset` to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_export(
    address: u64,
    handle: *mut *mut c_char,
    offset: *mut u64,
) -> Status {
    // SAFETY: each is null or writable, as the caller guarantees.
    unsafe {
        clear(handle);
        clear(offset);
    };
    status(|| {
        check_place("handle", handle)?;
        check_place("offset", offset)?;
        let shared = share(Address(address))?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            give_json(handle, &shared.handle)?;
            give("offset", offset, shared.handle.offset)
        }
    })
}

fn share(address: Address) -> CallResult<Arc<Shared>> {
    let missing =
        || Failure::new(GPU_VMM_NOT_FOUND, format!("share: no live block of PyTorch begins at {address}"));
    let unsupported =
        || Failure::new(GPU_VMM_UNSUPPORTED, "share: blocks pass between processes on Linux only".to_owned());
    let method = METHOD.ok_or_else(unsupported)?;
    let seen = table::with(address, |entry| (entry.device, entry.block.capacity(), entry.begin_share()));
    let (device, size, shared) = seen.ok_or_else(missing)?;
    let number = match shared {
        Ok(shared) => return Ok(shared),
        Err(number) => number,
    };
    let device = used(c_int::from(device)).ok_or_else(missing)?;
    let (memory, offset) = device.pool.blocks.memory_at(address, size)?;
    let importers = Importers::admit();
    let page = memory.first().map_or(0, |page| page.size().0);
    let offer = |page| Offered::of_memory(&device.pool.backend, page, method);
    let offered = memory.iter().map(offer).collect::<Result<Vec<_>, _>>()?;
    let pages = offered.iter().map(|one| one.offer().clone()).collect();
    let handle = Handle { offset: offset.0, page, pages };
    let shared = Arc::new(Shared { handle, _offered: offered, _importers: importers });
    // Another thread may have shared it meanwhile: all use the first handle. This one ends without the table's lock.
    table::with(address, |entry| entry.share(number, Arc::clone(&shared))).flatten().ok_or_else(missing)
}

/// Maps the memory that a handle of another process describes. `address` receives its first address. Free the result with
/// gpu_vmm_torch_imported_free when no work uses it any more.
///
/// # Safety
///
/// `handle` is null or a string. `imported` is null or points to a writable pointer, and `address` to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_import(
    handle: *const c_char,
    imported: *mut *mut Imported,
    address: *mut u64,
) -> Status {
    // SAFETY: each is null or writable, as the caller guarantees.
    unsafe {
        clear(imported);
        clear(address);
    };
    status(|| {
        check_place("imported", imported)?;
        check_place("address", address)?;
        // SAFETY: guaranteed by the caller.
        let text = unsafe { required("handle", handle) }?;
        let wrong = |error| Failure::invalid(format!("import: the handle is none of gpu-vmm: {error}"));
        let region = import(&serde_json::from_str(text).map_err(wrong)?)?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let begin = region.address().0;
            give_box("imported", imported, || Ok(Imported { _region: region }))?;
            give("address", address, begin)
        }
    })
}

fn import(handle: &Handle) -> CallResult<Region<AnyBackend>> {
    let Handle { page, pages, .. } = handle;
    let invalid = || Failure::invalid(format!("import: {} pages of {page} bytes", pages.len()));
    let size = page.checked_mul(pages.len() as u64).filter(|size| *size > 0).ok_or_else(invalid)?;
    let backend = backend()?;
    let mut region = Region::builder(backend).alignment(Bytes(*page)).reserve(Bytes(size)).build()?;
    let mut device = None;
    for (index, offer) in pages.iter().enumerate() {
        if offer.memory() != Bytes(*page) {
            return Err(invalid());
        }
        let memory = offer.import_memory(backend)?;
        device = Some(memory.properties().device);
        region.map(Bytes(page * index as u64), &memory)?;
    }
    if let Some(device) = device {
        region.set_access(Bytes::ZERO, Bytes(size), device, Access::ReadWrite)?;
    }
    Ok(region)
}

/// Unmaps memory of gpu_vmm_torch_import, after a wait for the devices. Null does nothing.
///
/// # Safety
///
/// `imported` is null or comes from gpu_vmm_torch_import, and was not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_torch_imported_free(imported: *mut Imported) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(imported) }
}
