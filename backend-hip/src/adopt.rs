//! Memory that other code has mapped: `hipMemRetainAllocationHandle`, and what HIP reports about it.
#![allow(unsafe_code)] // calls into HIP

use crate::attributes;
use crate::driver::Driver;
use crate::error::is_invalid_value;
use crate::ffi::{self, hipMemAllocationProp};
use crate::handle::HipHandle;
use gpu_vmm_core::{Address, Bytes, Detail, Error, Operation, Result};
use std::sync::Arc;

const OPERATION: Operation = Operation::AdoptMemory;

/// Takes a reference to the memory that is mapped at an address.
///
/// # Safety
///
/// As [`MemoryCalls::adopt`](gpu_vmm_core::MemoryCalls::adopt).
pub(crate) unsafe fn adopt(driver: &Arc<Driver>, at: Address) -> Result<HipHandle> {
    driver.process.check(OPERATION)?;
    let refuse = |reason: String| Err(Error::new(OPERATION, Detail::Unsupported { reason }));
    let version = driver.info().version;
    if driver.quirks.retain_is_unsafe {
        return refuse(format!(
            "HIP {version} adds no reference for hipMemRetainAllocationHandle, or crashes on a pointer from hipMalloc; 7.15 and \
             later can look up memory by its address"
        ));
    }
    let (Some(retain), Some(properties_of), Some(range_of)) = (
        driver.hip.hipMemRetainAllocationHandle,
        driver.hip.hipMemGetAllocationPropertiesFromHandle,
        driver.hip.hipMemGetAddressRange,
    ) else {
        return refuse(format!("HIP {version} lacks a function that looks up memory by its address"));
    };
    let entered = driver.enter(OPERATION)?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: HIP writes one handle. These versions check the address.
    let code = unsafe { retain(&raw mut raw, at.as_ptr()) };
    let retained = driver.check(OPERATION, "hipMemRetainAllocationHandle", code, || at.to_string());
    drop(entered);
    match retained {
        Err(error) if is_invalid_value(&error) => {
            let reason = format!(
                "{error}; plain allocations (hipMalloc), pointers of the host and addresses without memory have none"
            );
            return Err(Error::new(OPERATION, Detail::NoMemoryAt { address: at, reason }));
        }
        retained => retained?,
    }
    // From here on the reference is released if a call fails, once the lock is free again.
    let mut handle = HipHandle::adopted(driver, raw);
    let _entered = driver.enter(OPERATION)?;
    // SAFETY: integers, a pointer and bytes, for all of which zero is a value.
    let mut reported: hipMemAllocationProp = unsafe { std::mem::zeroed() };
    // SAFETY: HIP writes one structure, and the handle is its own.
    let code = unsafe { properties_of(&raw mut reported, raw) };
    driver.check(OPERATION, "hipMemGetAllocationPropertiesFromHandle", code, || at.to_string())?;
    let (mut base, mut size) = (std::ptr::null_mut(), 0usize);
    // SAFETY: HIP writes an address and a size.
    let code = unsafe { range_of(&raw mut base, &raw mut size, at.as_ptr()) };
    driver.check(OPERATION, "hipMemGetAddressRange", code, || at.to_string())?;
    let properties = match ffi::properties(&reported) {
        Ok(properties) => properties,
        Err(reason) => return refuse(reason),
    };
    driver.device(OPERATION, properties.device)?;
    // HIP stores flags that it ignores.
    handle.describe(Bytes(size as u64), attributes::given(driver, &properties));
    Ok(handle)
}
