//! HIP's devices, and the calling thread's current device.
#![allow(unsafe_code)] // calls into HIP

use crate::driver::Driver;
use crate::ffi::{self, hipDeviceAttribute_t, hipMemAllocationGranularity_flags, hipUUID};
use crate::quirks::{GRANULARITY_TOO_SMALL, workaround_enabled};
use gpu_vmm_core::extend::no_device;
use gpu_vmm_core::{
    Bytes, ComputeMode, Detail, Device, DeviceId, DeviceUuid, DriverError, Error, Granularity, MemoryInfo,
    Operation, Properties, Result, Vendor,
};
use std::ffi::{CStr, c_int};

/// The smallest granularity that this backend uses. HIP up to 7.2 reports 4 KiB, which costs a page table entry for
/// each page and faults on some cards (quirk `granularity-too-small`).
pub(crate) const FLOOR: Bytes = Bytes::mib(2);

/// Initializes HIP and returns its devices.
pub(crate) fn all(driver: &Driver) -> Result<Vec<Device>> {
    const OPERATION: Operation = Operation::Open;
    /// What can hide devices, in the order in which ROCr and HIP read it.
    const HIDES: [&str; 4] =
        ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];
    let none = |reason: String| no_device(Vendor::Hip, reason, &HIDES);
    let absent = |source: DriverError| none(source.to_string());
    // SAFETY: the argument is reserved and zero.
    let code = unsafe { (driver.hip.hipInit)(0) };
    driver.answer("hipInit", code).map_err(absent)?;
    let mut count: c_int = 0;
    // SAFETY: the function writes one integer.
    let code = unsafe { (driver.hip.hipGetDeviceCount)(&raw mut count) };
    driver.answer("hipGetDeviceCount", code).map_err(absent)?;
    if count <= 0 {
        return Err(none(format!("hipGetDeviceCount returned success and {count}")));
    }
    // The access records have room for `LIMIT` devices.
    let count = (count as u32).min(DeviceId::LIMIT);
    (0..count).map(|ordinal| one(driver, OPERATION, DeviceId(ordinal))).collect()
}

fn one(driver: &Driver, operation: Operation, id: DeviceId) -> Result<Device> {
    let mut name = [0u8; 256];
    // SAFETY: the function writes a text with a zero byte, no longer than the given length.
    let code = unsafe {
        (driver.hip.hipDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, id.0 as c_int)
    };
    driver.check(operation, "hipDeviceGetName", code, || id.to_string())?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    let mut total = 0;
    // SAFETY: the function writes one size.
    let code = unsafe { (driver.hip.hipDeviceTotalMem)(&raw mut total, id.0 as c_int) };
    driver.check(operation, "hipDeviceTotalMem", code, || id.to_string())?;
    let (reported, no_virtual_memory) = match without_virtual_memory(driver, id) {
        Ok(None) => (granularity(driver, operation, &Properties::on(id), MINIMUM), None),
        Ok(reason) => (Ok(FLOOR), reason),
        Err(error) => (Err(error), None),
    };
    let (unit, unusable) = match reported {
        Ok(reported) if !workaround_enabled(&GRANULARITY_TOO_SMALL) => (reported, None),
        Ok(reported) => (reported.max(FLOOR), None),
        Err(reason) => (FLOOR, Some(reason.to_string())),
    };
    let granularity = Granularity::new(unit).ok_or_else(|| {
        Error::new(
            operation,
            Detail::DriverContractViolated {
                what: format!("hipMemGetAllocationGranularity returned {unit} for {id}, not a power of two"),
            },
        )
    })?;
    let uuid = uuid(driver, id);
    let compute_mode = attribute(driver, operation, id, hipDeviceAttribute_t::hipDeviceAttributeComputeMode);
    Ok(Device {
        id,
        name,
        uuid,
        total_memory: Bytes(total as u64),
        granularity,
        unusable,
        no_virtual_memory,
        compute_mode: compute_mode.ok().and_then(ComputeMode::from_attribute),
    })
}

/// Returns why the device has no virtual memory management, if HIP reports that.
fn without_virtual_memory(driver: &Driver, id: DeviceId) -> Result<Option<String>> {
    const OPERATION: Operation = Operation::QueryCapabilities;
    let attribute = hipDeviceAttribute_t::hipDeviceAttributeVirtualMemoryManagementSupported;
    let answer = self::attribute(driver, OPERATION, id, attribute)?;
    let reason = format!(
        "hipDeviceAttributeVirtualMemoryManagementSupported ({}) is {answer}; it needs the kernel's KFD interface \
         1.15, libdrm with amdgpu_device_get_fd, and HIP_VMEM_MANAGE_SUPPORT not set to 0",
        attribute.0
    );
    Ok((answer != 1).then_some(reason))
}

/// Returns a device attribute.
pub(crate) fn attribute(
    driver: &Driver,
    operation: Operation,
    id: DeviceId,
    attribute: hipDeviceAttribute_t,
) -> Result<c_int> {
    let mut answer: c_int = 0;
    // SAFETY: the function writes one integer; for unknown attributes it returns an error.
    let code = unsafe { (driver.hip.hipDeviceGetAttribute)(&raw mut answer, attribute, id.0 as c_int) };
    driver
        .check(operation, "hipDeviceGetAttribute", code, || format!("attribute {} of {id}", attribute.0))?;
    Ok(answer)
}

/// Returns the device's UUID. On Linux it is the text after `GPU-` in ROCr's name of the device.
fn uuid(driver: &Driver, id: DeviceId) -> Option<DeviceUuid> {
    let get = driver.hip.hipDeviceGetUuid?;
    let mut uuid = hipUUID { bytes: [0; 16] };
    // SAFETY: the function writes sixteen bytes.
    let code = unsafe { get(&raw mut uuid, id.0 as c_int) };
    driver.answer("hipDeviceGetUuid", code).ok()?;
    let bytes: [u8; 16] = bytemuck::cast(uuid.bytes);
    is_unique(&bytes).then_some(DeviceUuid(bytes))
}

/// False for zeros and for `GPU-XX`, ROCr's name of every GPU without a UUID.
fn is_unique(uuid: &[u8; 16]) -> bool {
    *uuid != [0; 16] && !uuid.starts_with(b"XX\0")
}

/// The two granularities of memory.
pub(crate) const MINIMUM: hipMemAllocationGranularity_flags =
    hipMemAllocationGranularity_flags::hipMemAllocationGranularityMinimum;
pub(crate) const RECOMMENDED: hipMemAllocationGranularity_flags =
    hipMemAllocationGranularity_flags::hipMemAllocationGranularityRecommended;

/// Returns the granularity that HIP reports for memory of these properties: the minimum or the recommended one.
pub(crate) fn granularity(
    driver: &Driver,
    operation: Operation,
    properties: &Properties,
    option: hipMemAllocationGranularity_flags,
) -> Result<Bytes> {
    let _current = driver.on(operation, properties.device)?;
    let allocation = ffi::allocation(properties);
    let mut granularity = 0;
    // SAFETY: the function reads the description and writes one size.
    let code = unsafe {
        (driver.hip.hipMemGetAllocationGranularity)(&raw mut granularity, &raw const allocation, option)
    };
    driver.check(operation, "hipMemGetAllocationGranularity", code, || properties.to_string())?;
    Ok(Bytes(granularity as u64))
}

impl Driver {
    /// Makes a device the calling thread's current device until the returned value is dropped.
    ///
    /// The current device decides more than HIP's documentation says: since 7.0 the device whose memory `hipMemCreate`
    /// allocates, on all versions the device that an import belongs to, and the device that copies, fills and waits.
    pub(crate) fn on(&self, operation: Operation, device: DeviceId) -> Result<Current<'_>> {
        self.process.check(operation)?;
        let mut previous: c_int = 0;
        // SAFETY: the function writes one integer.
        let code = unsafe { (self.hip.hipGetDevice)(&raw mut previous) };
        self.check(operation, "hipGetDevice", code, || device.to_string())?;
        let wanted = device.0 as c_int;
        if previous != wanted {
            self.set_current(operation, wanted)?;
        }
        Ok(Current { driver: self, previous, changed: previous != wanted })
    }

    fn set_current(&self, operation: Operation, device: c_int) -> Result<()> {
        // SAFETY: the argument is a number, which HIP checks.
        let code = unsafe { (self.hip.hipSetDevice)(device) };
        self.check(operation, "hipSetDevice", code, || format!("device {device}"))
    }

    pub(crate) fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        const OPERATION: Operation = Operation::QueryMemory;
        let _current = self.on(OPERATION, device)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two sizes.
        let code = unsafe { (self.hip.hipMemGetInfo)(&raw mut free, &raw mut total) };
        self.check(OPERATION, "hipMemGetInfo", code, || device.to_string())?;
        Ok(MemoryInfo { free: Bytes(free as u64), total: Bytes(total as u64) })
    }

    pub(crate) fn can_access(&self, device: DeviceId, owner: DeviceId) -> Result<bool> {
        const OPERATION: Operation = Operation::QueryPeerAccess;
        self.process.check(OPERATION)?;
        if device == owner {
            return Ok(true);
        }
        let mut answer: c_int = 0;
        // SAFETY: the function writes one integer.
        let code = unsafe {
            (self.hip.hipDeviceCanAccessPeer)(&raw mut answer, device.0 as c_int, owner.0 as c_int)
        };
        self.check(OPERATION, "hipDeviceCanAccessPeer", code, || format!("{device} to {owner}"))?;
        Ok(answer == 1)
    }
}

/// A change of the thread's current device; dropping it restores the previous device.
pub(crate) struct Current<'a> {
    driver: &'a Driver,
    previous: c_int,
    changed: bool,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.changed
            && let Err(error) = self.driver.set_current(Operation::SetDevice, self.previous)
        {
            self.driver.drop_log.record(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_serial_is_not_unique() {
        assert!(is_unique(b"0000000000000518") && is_unique(b"0123456789abcdef"));
        assert!(!is_unique(&[0; 16]) && !is_unique(b"XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0"));
    }
}
