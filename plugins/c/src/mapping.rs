//! Mapping physical memory into a region, and the access of devices to it.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use crate::call::status;
use crate::physical::Physical;
use crate::properties::{access, level};
use crate::region::{Region, taken_away};
use crate::status::{CallResult, Failure, GPU_VMM_NOT_MAPPED, GPU_VMM_SUSPENDED, Status};
use crate::texts::{clear, give, give_box, object};
use gpu_vmm::{AnyBackend, Bytes, Detail, DeviceId, MappingInfo, Operation, RegionState, WaitFor};

/// One mapping of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// The offset in the region at which the mapping begins.
    pub offset: u64,
    /// The length of the mapping: the size of the memory.
    pub length: u64,
    /// The device that owns the memory.
    pub device: u32,
    /// Whether the mapping cannot be used, because an operation on it failed and so did the rollback.
    pub poisoned: bool,
}

/// Maps physical memory as a whole at an offset. No device has access yet. The same memory can be mapped several times. CUDA:
/// cuMemMap; HIP: hipMemMap.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_ALREADY_MAPPED, GPU_VMM_SUSPENDED, and GPU_VMM_INVALID_ARGUMENT for
/// memory of another backend.
///
/// # Safety
///
/// `region` is null or a region. `physical` is null or physical memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_map(
    region: *const Region,
    offset: u64,
    physical: *const Physical,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let (region, physical) = unsafe { (object("region", region)?, object("physical", physical)?) };
        let map = |region: &mut gpu_vmm::Region<_>| region.map(Bytes(offset), &physical.0);
        Ok(region.memory.change(Operation::Map, true, map)?)
    })
}

/// Unmaps a range, which must consist of whole mappings without a hole, after waiting for the devices. The addresses stay
/// reserved. With `force`, tensors of the region may exist; nothing may use their elements in the range. CUDA: cuMemUnmap; HIP:
/// hipMemUnmap.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_SUSPENDED, GPU_VMM_INVALID_ARGUMENT for a part of a
/// mapping, and GPU_VMM_BUSY for a tensor, a capture, or if an observer refuses.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_unmap(
    region: *const Region,
    offset: u64,
    length: u64,
    force: bool,
) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let unmap = |region: &mut gpu_vmm::Region<_>| {
            region.unmap(Bytes(offset), Bytes(length), WaitFor::all_devices())
        };
        region.memory.change(Operation::Unmap, force, unmap).map_err(taken_away)
    })
}

/// Sets the access of a device, or of GPU_VMM_DEVICE_HOST, to whole mappings. `level` is GPU_VMM_ACCESS_NONE, GPU_VMM_ACCESS_READ or
/// GPU_VMM_ACCESS_READ_WRITE. If the device has another access already, the call waits for it first. CUDA: cuMemSetAccess; HIP:
/// hipMemSetAccess.
///
/// Returns GPU_VMM_UNALIGNED, GPU_VMM_OUT_OF_RANGE, GPU_VMM_NOT_MAPPED, GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE,
/// GPU_VMM_SUSPENDED, and GPU_VMM_UNSUPPORTED if the driver gives the host no access.
///
/// # Safety
///
/// `region` is null or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_set_access(
    region: *const Region,
    offset: u64,
    length: u64,
    device: u32,
    level: u32,
) -> Status {
    status(|| {
        let access = access(level)?;
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let set = |region: &mut gpu_vmm::Region<_>| {
            region.set_access(Bytes(offset), Bytes(length), DeviceId(device), access)
        };
        Ok(region.memory.change(Operation::SetAccess, true, set)?)
    })
}

/// Returns the access of a device, or of GPU_VMM_DEVICE_HOST, at an offset: GPU_VMM_ACCESS_NONE where nothing is mapped.
///
/// # Safety
///
/// `region` is null or a region. `level` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_access(
    region: *const Region,
    offset: u64,
    device: u32,
    level: *mut u32,
) -> Status {
    // SAFETY: null or writable for a number, as the caller guarantees.
    unsafe { clear(level) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let region = object("region", region)?;
            let access = region.memory.with(|region| region.access(Bytes(offset), DeviceId(device)))?;
            give("level", level, self::level(access))
        }
    })
}

/// Returns the mapping that contains an offset.
///
/// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region. `mapping` is null or points to a writable mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_mapping(
    region: *const Region,
    offset: u64,
    mapping: *mut Mapping,
) -> Status {
    // SAFETY: null or writable for a mapping, as the caller guarantees.
    unsafe { clear(mapping) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let region = unsafe { object("region", region) }?;
        let found = mapping_at(region, offset, |found| Mapping {
            offset: found.offset.0,
            length: found.length.0,
            device: found.memory.device().0,
            poisoned: found.poisoned,
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { give("mapping", mapping, found) }
    })
}

/// Returns the memory that is mapped at an offset, as an object that the caller must release.
///
/// Returns GPU_VMM_NOT_MAPPED if nothing is mapped there, and GPU_VMM_SUSPENDED.
///
/// # Safety
///
/// `region` is null or a region. `physical` is null or points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_region_physical(
    region: *const Region,
    offset: u64,
    physical: *mut *mut Physical,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(physical) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let region = object("region", region)?;
            let found = || mapping_at(region, offset, |found| Physical(found.memory.clone()));
            give_box("physical", physical, found)
        }
    })
}

/// Calls `read` with the mapping that contains an offset. Fails for a suspended region, which has no mappings until it is resumed.
pub(crate) fn mapping_at<T>(
    region: &Region,
    offset: u64,
    read: impl FnOnce(MappingInfo<'_, AnyBackend>) -> T,
) -> CallResult<T> {
    let fail = |status, text: String| Failure::new(status, format!("query mapping: {text}"));
    region.memory.with(|region| {
        region.mapping_at(Bytes(offset)).map(read).ok_or_else(|| match region.state() {
            RegionState::Suspended { .. } => {
                let (address, reserved) = (region.address(), region.reserved());
                fail(GPU_VMM_SUSPENDED, Detail::Suspended { address, reserved }.to_string())
            }
            _ => fail(GPU_VMM_NOT_MAPPED, format!("nothing is mapped at offset {}", Bytes(offset))),
        })
    })?
}
