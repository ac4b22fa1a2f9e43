//! The devices that the driver lists, and why a device cannot be used.
//!
//! Unsafe, since it calls the driver.
#![allow(unsafe_code)]

use crate::device_state::DeviceState;
use crate::driver::Opened;
use crate::error::{answer, failed};
use crate::ffi::{CuResult, Functions, GRANULARITY_MINIMUM, attribute};
use crate::loader::{Loaded, without_device};
use crate::memory_types;
use gpu_vmm_core::{
    Bytes, ComputeMode, Device, DeviceId, DeviceUuid, DriverError, Granularity, Operation, Properties, Result,
};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

const OPERATION: Operation = Operation::QueryDevice;

/// The granularity of a device without virtual memory management, or of a device that cannot be used: the granularity of the other devices.
const NO_GRANULARITY: Granularity = match Granularity::new(Bytes::mib(2)) {
    Some(granularity) => granularity,
    None => unreachable!(),
};

/// Lists all devices in the order of their ordinals, each with its [`DeviceState`].
pub(crate) fn list(loaded: &Loaded) -> Result<Vec<(Device, DeviceState)>> {
    let functions = &loaded.functions;
    let check = |call, result: CuResult| match result {
        CuResult::SUCCESS => Ok(()),
        _ => Err(failed(OPERATION, answer(functions, call, result), "all devices".into())),
    };
    let mut count = 0;
    // SAFETY: the pointer is valid for one int.
    check("cuDeviceGetCount", unsafe { (functions.device_get_count)(&raw mut count) })?;
    if count == 0 {
        return Err(without_device("cuDeviceGetCount returned 0"));
    }
    let count = u32::try_from(count).unwrap_or(0).min(DeviceId::LIMIT);
    (0..count)
        .map(|ordinal| {
            let mut raw = 0;
            // SAFETY: the pointer is valid for one CUdevice, and the ordinal is below the count.
            check("cuDeviceGet", unsafe { (functions.device_get)(&raw mut raw, ordinal as c_int) })?;
            let state = DeviceState { raw, primary: OnceLock::new(), capabilities: OnceLock::new() };
            Ok((describe(functions, DeviceId(ordinal), raw), state))
        })
        .collect()
}

fn describe(functions: &Functions, id: DeviceId, raw: c_int) -> Device {
    let name = name(functions, raw).unwrap_or_else(|error| format!("a device without a name ({error})"));
    let memory = total_memory(functions, raw);
    let no_virtual_memory = matches!(attribute(functions, raw, attribute::VIRTUAL_MEMORY_MANAGEMENT), Ok(0))
        .then(|| "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0".to_owned());
    let granularity = match no_virtual_memory {
        None => granularity(functions, id, raw),
        Some(_) => Ok(NO_GRANULARITY),
    };
    let unusable = match (&memory, &granularity) {
        (Err(reason), _) => Some(reason.to_string()),
        (_, Err(reason)) => Some(reason.clone()),
        _ => None,
    };
    Device {
        id,
        name,
        uuid: uuid(functions, raw),
        total_memory: memory.unwrap_or(Bytes::ZERO),
        granularity: granularity.unwrap_or(NO_GRANULARITY),
        unusable,
        no_virtual_memory,
        compute_mode: compute_mode(functions, raw),
    }
}

fn name(functions: &Functions, raw: c_int) -> Result<String, DriverError> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the buffer has the given length, and the driver ends the name with a zero.
    match unsafe { (functions.device_get_name)(name.as_mut_ptr(), name.len() as c_int, raw) } {
        // SAFETY: as above; if the driver wrote nothing, the first byte is the zero.
        CuResult::SUCCESS => Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned()),
        result => Err(answer(functions, "cuDeviceGetName", result)),
    }
}

/// Returns the UUID, by which other processes identify the device. A MIG instance has its own.
fn uuid(functions: &Functions, raw: c_int) -> Option<DeviceUuid> {
    let mut bytes = [0; 16];
    // SAFETY: the pointer is valid for the 16 bytes of a `CUuuid`.
    match unsafe { (functions.device_get_uuid)(&raw mut bytes, raw) } {
        CuResult::SUCCESS => Some(DeviceUuid(bytes)),
        _ => None,
    }
}

fn total_memory(functions: &Functions, raw: c_int) -> Result<Bytes, DriverError> {
    let mut bytes = 0usize;
    // SAFETY: the pointer is valid for one size.
    match unsafe { (functions.device_total_mem)(&raw mut bytes, raw) } {
        CuResult::SUCCESS => Ok(Bytes(bytes as u64)),
        result => Err(answer(functions, "cuDeviceTotalMem_v2", result)),
    }
}

/// Queries one of the device's attributes.
pub(crate) fn attribute(functions: &Functions, raw: c_int, attribute: u32) -> Result<c_int, DriverError> {
    let mut value = 0;
    // SAFETY: the pointer is valid for one int; the driver returns an error for an attribute it does not know.
    match unsafe { (functions.device_get_attribute)(&raw mut value, attribute, raw) } {
        CuResult::SUCCESS => Ok(value),
        result => Err(answer(functions, "cuDeviceGetAttribute", result)),
    }
}

/// Returns the device's compute mode as of now: `nvidia-smi` can change it at any time.
pub(crate) fn compute_mode(functions: &Functions, raw: c_int) -> Option<ComputeMode> {
    attribute(functions, raw, attribute::COMPUTE_MODE).ok().and_then(ComputeMode::from_attribute)
}

/// Returns the device's granularity, or why the device cannot be used.
fn granularity(functions: &Functions, id: DeviceId, raw: c_int) -> Result<Granularity, String> {
    attribute(functions, raw, attribute::VIRTUAL_MEMORY_MANAGEMENT).map_err(|error| error.to_string())?;
    let prop = memory_types::allocation_prop(&Properties::on(id));
    let bytes = memory_types::granularity_bytes(functions, &prop, GRANULARITY_MINIMUM)
        .map_err(|error| error.to_string())?;
    Granularity::new(bytes)
        .ok_or_else(|| format!("cuMemGetAllocationGranularity: {}", memory_types::no_power_of_two(bytes)))
}

impl Opened {
    pub(crate) fn can_access_peer(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryPeerAccess;
        self.here(OPERATION)?;
        let (from, to) = (self.state(OPERATION, device)?, self.state(OPERATION, owner)?);
        if device == owner {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the pointer is valid for one int, and both devices exist.
        let result = unsafe { (self.functions().device_can_access_peer)(&raw mut can, from.raw, to.raw) };
        self.check(OPERATION, "cuDeviceCanAccessPeer", result, || format!("{device} to {owner}"))?;
        Ok(can != 0)
    }
}
