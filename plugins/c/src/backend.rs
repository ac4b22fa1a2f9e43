//! Opening a vendor's driver, and what it says of itself.
//!
//! Unsafe, since it is called from C.
#![allow(unsafe_code)]

use crate::call::status;
use crate::status::{Answer, Failure, Status};
use crate::texts::{clear, give, give_box, give_if_wanted, give_json, object, optional, take_box};
use gpu_vmm::{AnyBackend, Backend as _, DeviceId, Vendor};
use serde::Serialize;
use std::ffi::c_char;

/// An opened driver. Pools and regions that were made of it stay when it is closed.
#[derive(Clone, Debug)]
pub struct Backend(pub(crate) AnyBackend);

/// Opens the backend of this name, or the best one for null.
pub(crate) fn open(name: Option<&str>) -> Answer<AnyBackend> {
    let Some(name) = name else { return Ok(AnyBackend::open_best()?) };
    let vendor: Vendor = name.parse().map_err(|_| {
        Failure::invalid(format!(
            "open backend: there is no backend {name:?}; give \"cuda\", \"hip\" or \"host\""
        ))
    })?;
    Ok(AnyBackend::open(vendor)?)
}

/// Opens a backend: "cuda", "hip" or "host" (memory of the host, for machines without a GPU). With null, opens the one that the
/// environment variable GPU_VMM_BACKEND names; if that is not set, the one whose library the process has loaded already, as
/// PyTorch for ROCm loads HIP's, or else the best one.
///
/// # Safety
///
/// `name` is null or a string; `backend` is room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_open(name: *const c_char, backend: *mut *mut Backend) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(backend) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let name = optional("the backend's name", name)?;
            give_box("backend", backend, || open(name).map(Backend))
        }
    })
}

/// Closes a backend. Its pools and regions stay. Null is nothing.
///
/// # Safety
///
/// `backend` is null or one that gpu_vmm_open gave and that was not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_close(backend: *mut Backend) {
    // SAFETY: as the caller says.
    unsafe { take_box(backend) }
}

/// "cuda", "hip" or "host"; "" for null. It need not be freed.
///
/// # Safety
///
/// `backend` is null or an open one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_name(backend: *const Backend) -> *const c_char {
    // SAFETY: as the caller says.
    let vendor = unsafe { backend.as_ref() }.map(|backend| backend.0.vendor());
    let name = match vendor {
        Some(Vendor::Cuda) => c"cuda",
        Some(Vendor::Hip) => c"hip",
        Some(Vendor::Host) => c"host",
        _ => c"",
    };
    name.as_ptr()
}

/// How many devices there are, usable or not.
///
/// # Safety
///
/// `backend` is null or an open one; `count` is null or room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_devices(backend: *const Backend, count: *mut u32) -> Status {
    // SAFETY: null or room for a number, as the caller says.
    unsafe { clear(count) };
    status(|| {
        // SAFETY: as the caller says.
        unsafe { give("count", count, object("backend", backend)?.0.devices().len() as u32) }
    })
}

#[derive(Serialize)]
struct Info<'a> {
    backend: &'static str,
    driver: String,
    driver_number: u32,
    library: String,
    devices: Vec<DeviceInfo<'a>>,
    quirks: Vec<&'static str>,
}

#[derive(Serialize)]
struct DeviceInfo<'a> {
    device: u32,
    name: &'a str,
    total: u64,
    granularity: u64,
    /// Why it cannot be used.
    unusable: Option<&'a str>,
}

/// The driver, its devices and its known deviations, as JSON; `gpu-vmm info --json` says more.
///
/// # Safety
///
/// `backend` is null or an open one; `json` is null or room for a pointer, to be freed with gpu_vmm_string_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_info(backend: *const Backend, json: *mut *mut c_char) -> Status {
    // SAFETY: null or room for a pointer, as the caller says.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: as the caller says.
        let backend = &unsafe { object("backend", backend) }?.0;
        let driver = backend.driver();
        let devices = backend.devices().iter().map(|device| DeviceInfo {
            device: device.id.0,
            name: &device.name,
            total: device.total_memory.0,
            granularity: device.granularity.bytes().0,
            unusable: device.unusable.as_deref(),
        });
        let info = Info {
            backend: backend.vendor().name(),
            driver: driver.version,
            driver_number: driver.version_number,
            library: driver.library,
            devices: devices.collect(),
            quirks: backend.quirks().iter().map(|quirk| quirk.id).collect(),
        };
        // SAFETY: as the caller says.
        unsafe { give_json(json, &info) }
    })
}

/// Free and total memory of a device now. CUDA: cuMemGetInfo, HIP: hipMemGetInfo. Where one of the two is null, it is not
/// wanted.
///
/// # Safety
///
/// `backend` is null or an open one; `free_bytes` and `total_bytes` are null or room for a number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_memory(
    backend: *const Backend,
    device: u32,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> Status {
    // SAFETY: null or room for a number each, as the caller says.
    unsafe {
        clear(free_bytes);
        clear(total_bytes);
    };
    status(|| {
        // SAFETY: as the caller says.
        unsafe {
            let memory = object("backend", backend)?.0.memory_info(DeviceId(device))?;
            give_if_wanted(free_bytes, memory.free.0);
            give_if_wanted(total_bytes, memory.total.0);
        }
        Ok(())
    })
}
