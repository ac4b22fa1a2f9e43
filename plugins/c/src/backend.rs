//! Opening a vendor's driver, and queries of the driver and its devices.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::handles::{Kind, Object, find};
use crate::status::{CallResult, Failure, Status};
use crate::texts::{clear, give, give_box, give_if_wanted, give_json, object, optional, take_box};
use gpu_vmm::{AnyBackend, Backend as _, ComputeMode, DeviceId, Vendor};
use serde::Serialize;
use std::ffi::c_char;

/// An open driver. Pools and regions that were created from it stay valid when it is closed.
/// Calls of several threads run at the same time.
#[derive(Clone, Debug)]
pub struct Backend(pub(crate) AnyBackend);

// SAFETY: no other type has the kind.
unsafe impl Object for Backend {
    const KIND: Kind = Kind::Backend;
}

/// Opens the backend with this name. Without a name, opens the best one.
pub(crate) fn open(name: Option<&str>) -> CallResult<AnyBackend> {
    let Some(name) = name else { return Ok(AnyBackend::open_best()?) };
    let vendor: Vendor = name.parse().map_err(|_| {
        Failure::invalid(format!(
            "open backend: there is no backend {name:?}; give \"cuda\", \"hip\" or \"host\""
        ))
    })?;
    Ok(AnyBackend::open(vendor)?)
}

/// Opens a backend: "cuda", "hip" or "host" (host memory, for machines without a GPU).
///
/// With null, opens the backend that the environment variable GPU_VMM_BACKEND names. If that is not set, opens the backend whose
/// library the process has already loaded, as PyTorch for ROCm loads HIP's, or else the best one. Close it with gpu_vmm_close.
/// In a child of a process that has initialized a driver, GPU_VMM_FORKED is returned and never host memory.
///
/// # Safety
///
/// `name` is null or a string. `backend` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_open(name: *const c_char, backend: *mut *mut Backend) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(backend) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let name = optional("the backend's name", name)?;
            give_box("backend", backend, || open(name).map(Backend))
        }
    })
}

/// Closes a backend. Its pools and regions stay valid. Null does nothing.
///
/// # Safety
///
/// `backend` is null or comes from gpu_vmm_open, and was not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_close(backend: *mut Backend) {
    // SAFETY: guaranteed by the caller.
    unsafe { take_box(backend) }
}

/// Returns the backend's name: "cuda", "hip" or "host"; "" for null. The string is static.
///
/// # Safety
///
/// `backend` is null or an open backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_name(backend: *const Backend) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    let vendor = unsafe { find(backend) }.map(|backend| backend.0.vendor());
    let name = match vendor {
        Some(Vendor::Cuda) => c"cuda",
        Some(Vendor::Hip) => c"hip",
        Some(Vendor::Host) => c"host",
        _ => c"",
    };
    name.as_ptr()
}

/// Returns the number of devices in `count`, including devices that cannot be used.
///
/// # Safety
///
/// `backend` is null or an open backend. `count` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_devices(backend: *const Backend, count: *mut u32) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(count) };
    status(|| {
        // SAFETY: guaranteed by the caller.
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
    /// The identifier by which other processes recognize the device, as the files of regions do.
    uuid: Option<String>,
    total: u64,
    granularity: u64,
    /// Why the device cannot be used.
    unusable: Option<&'a str>,
    /// Why the device has no virtual memory management: its regions and pools are plain allocations.
    no_virtual_memory: Option<&'a str>,
    /// Which processes may create contexts on the device.
    compute_mode: Option<&'static str>,
}

/// Describes the driver, its devices and its known deviations as JSON. The command `gpu-vmm info --json` reports more. Free the
/// text with gpu_vmm_string_free.
///
/// # Safety
///
/// `backend` is null or an open backend. `json` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_backend_info(backend: *const Backend, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let backend = &unsafe { object("backend", backend) }?.0;
        let driver = backend.driver();
        let devices = backend.devices().iter().map(|device| DeviceInfo {
            device: device.id.0,
            name: &device.name,
            uuid: device.uuid.map(|uuid| uuid.to_string()),
            total: device.total_memory.0,
            granularity: device.granularity.bytes().0,
            unusable: device.unusable.as_deref(),
            no_virtual_memory: device.no_virtual_memory.as_deref(),
            compute_mode: device.compute_mode.map(ComputeMode::name),
        });
        let info = Info {
            backend: backend.vendor().name(),
            driver: driver.version,
            driver_number: driver.version_number,
            library: driver.library,
            devices: devices.collect(),
            quirks: backend.quirks().iter().map(|quirk| quirk.id).collect(),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &info) }
    })
}

/// Returns the free and the total memory of a device. CUDA: cuMemGetInfo; HIP: hipMemGetInfo. Each of the two may be null.
///
/// # Safety
///
/// `backend` is null or an open backend. `free_bytes` and `total_bytes` are null or point to a writable number each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_memory(
    backend: *const Backend,
    device: u32,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> Status {
    // SAFETY: each is null or writable for a number, as the caller guarantees.
    unsafe {
        clear(free_bytes);
        clear(total_bytes);
    };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let memory = object("backend", backend)?.0.memory_info(DeviceId(device))?;
            give_if_wanted(free_bytes, memory.free.0);
            give_if_wanted(total_bytes, memory.total.0);
        }
        Ok(())
    })
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::status::GPU_VMM_OK;
    use std::ptr::null_mut;

    /// Where the vendor's driver is missing, another backend must not take its place.
    #[test]
    fn backend_is_opened_by_name_only() {
        for (vendor, name) in [(Vendor::Cuda, c"cuda"), (Vendor::Hip, c"hip")] {
            let mut backend = null_mut();
            // SAFETY: a string, and a place for the result.
            let status = unsafe { gpu_vmm_open(name.as_ptr(), &raw mut backend) };
            assert_eq!(status == GPU_VMM_OK, AnyBackend::open(vendor).is_ok(), "{name:?}");
            assert_eq!(backend.is_null(), status != GPU_VMM_OK, "{name:?}");
            // SAFETY: null, or freed once.
            unsafe { gpu_vmm_close(backend) };
        }
    }
}
