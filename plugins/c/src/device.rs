//! Granularities and capabilities of devices.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::backend::Backend;
use crate::call::status;
use crate::properties::Properties;
use crate::status::{CallResult, Failure, Status};
use crate::texts::{check_place, clear, give, give_json, object, value};
use gpu_vmm::{
    AnyBackend, Backend as _, DeviceId, Granularity, Operation, Properties as MemoryProperties,
    first_supported,
};
use serde::Serialize;
use std::ffi::c_char;

/// Returns the granularity of memory with these properties: the unit of its size. Null properties mean the default.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
///
/// # Safety
///
/// `backend` is null or an open backend. `properties` is null or points to properties. `granularity` is null or points to a
/// writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_granularity(
    backend: *const Backend,
    properties: *const Properties,
    granularity: *mut u64,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { unit_of(backend, properties, granularity, AnyBackend::granularity_of) }
}

/// Returns the granularity that the driver recommends for memory with these properties, a multiple of gpu_vmm_granularity: the largest
/// pages of the hardware, for instance. The pages of pools are multiples of it. Null properties mean the default.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE, or GPU_VMM_UNSUPPORTED if the driver has no such memory.
///
/// # Safety
///
/// As for gpu_vmm_granularity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_recommended_granularity(
    backend: *const Backend,
    properties: *const Properties,
    granularity: *mut u64,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { unit_of(backend, properties, granularity, AnyBackend::recommended_granularity) }
}

/// Writes a granularity of memory that `query` returns.
///
/// # Safety
///
/// As for [`gpu_vmm_granularity`].
unsafe fn unit_of(
    backend: *const Backend,
    properties: *const Properties,
    granularity: *mut u64,
    query: fn(&AnyBackend, Operation, &MemoryProperties) -> gpu_vmm::Result<Granularity>,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(granularity) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let properties = Properties::read("granularity", properties.as_ref())?;
            backend.device(Operation::QueryGranularity, properties.device)?;
            let unit = query(backend, Operation::QueryGranularity, &properties)?;
            give("granularity", granularity, unit.bytes().0)
        }
    })
}

/// Returns the index of the first of `count` kinds of memory that the device supports. Each is tried: a granule is created, and exported by
/// each of its handle types. `refused` receives, as JSON, an array with the reason for each kind before it; it may be null. Free the text
/// with gpu_vmm_string_free.
///
/// Returns GPU_VMM_UNSUPPORTED with all reasons if the device supports none.
///
/// # Safety
///
/// `backend` is null or an open backend. `preferred` is null or points to `count` properties. `index` is null or points to a writable
/// number, and `refused` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_first_supported(
    backend: *const Backend,
    preferred: *const Properties,
    count: u64,
    index: *mut u64,
    refused: *mut *mut c_char,
) -> Status {
    // SAFETY: null or writable for a number and a pointer, as the caller guarantees.
    unsafe {
        clear(index);
        clear(refused);
    }
    status(|| {
        // SAFETY: guaranteed by the caller.
        let backend = unsafe { &object("backend", backend)?.0 };
        check_place("index", index)?;
        // SAFETY: guaranteed by the caller.
        unsafe { value("preferred", preferred) }?;
        let most = isize::MAX as usize / size_of::<Properties>();
        let count = usize::try_from(count).ok().filter(|count| *count <= most);
        let count = count.ok_or_else(|| Failure::invalid("preferred: count is too large"))?;
        // SAFETY: the caller guarantees `count` properties behind a pointer, which is not null; they fit into the address space.
        let kinds = unsafe { std::slice::from_raw_parts(preferred, count) };
        let preferred: Vec<_> =
            kinds.iter().map(|kind| Properties::read("preferred", Some(kind))).collect::<CallResult<_>>()?;
        let found = first_supported(backend, &preferred)?;
        let reasons: Vec<_> = found.refused.iter().map(|(_, reason)| reason).collect();
        if !refused.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { give_json(refused, &reasons) }?;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give("index", index, reasons.len() as u64) }
    })
}

/// Returns the unit of address ranges: the sizes of regions are multiples of it.
///
/// # Safety
///
/// `backend` is null or an open backend. `unit` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_reservation_unit(backend: *const Backend, unit: *mut u64) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(unit) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { give("unit", unit, object("backend", backend)?.0.reservation_unit().bytes().0) }
    })
}

/// Returns whether `device` can access memory of the device `owner`. CUDA: cuDeviceCanAccessPeer; HIP: hipDeviceCanAccessPeer.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE.
///
/// # Safety
///
/// `backend` is null or an open backend. `reachable` is null or points to a writable bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_can_access(
    backend: *const Backend,
    device: u32,
    owner: u32,
    reachable: *mut bool,
) -> Status {
    // SAFETY: null or writable for a bool, as the caller guarantees.
    unsafe { clear(reachable) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let backend = &object("backend", backend)?.0;
            let [device, owner] = [device, owner].map(DeviceId);
            backend.device(Operation::QueryPeerAccess, device)?;
            backend.device(Operation::QueryPeerAccess, owner)?;
            give("reachable", reachable, device == owner || backend.can_access(device, owner)?)
        }
    })
}

#[derive(Serialize)]
struct CapabilityInfo {
    feature: &'static str,
    available: bool,
    found_by: String,
    note: String,
}

/// Describes the capabilities of a device as a JSON array. Each element has `feature` (such as "peer access"), `available`,
/// `found_by` (how it was found) and `note` (why the feature is missing, or its limits). The first call may allocate one granule of
/// memory for trials. Free the text with gpu_vmm_string_free.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE.
///
/// # Safety
///
/// `backend` is null or an open backend. `json` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_capabilities(
    backend: *const Backend,
    device: u32,
    json: *mut *mut c_char,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let backend = &unsafe { object("backend", backend) }?.0;
        let found = backend.capabilities(DeviceId(device))?.into_iter().map(|one| CapabilityInfo {
            feature: one.feature.name(),
            available: one.available,
            found_by: one.found_by.to_string(),
            note: one.note,
        });
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &found.collect::<Vec<_>>()) }
    })
}
