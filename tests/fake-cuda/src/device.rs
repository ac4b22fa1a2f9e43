//! The driver and its devices: their number, names, attributes and capabilities.
#![allow(unsafe_code)] // exported to C

use crate::c::{Out, given};
use crate::call;
use crate::code::{Answer, Code};
use crate::settings::{Compression, settings};
use crate::violation::refuse;
use std::ffi::c_char;

/// Obviously not an NVIDIA GPU.
const NAME: &str = "fake CUDA (no NVIDIA GPU)";

/// The devices' attributes, each with the version that introduced it and its value; attributes that are not listed are 0.
const ATTRIBUTES: &[(u32, u32, i32)] = &[
    (1, 2000, 1024),     // MAX_THREADS_PER_BLOCK
    (2, 2000, 1024),     // MAX_BLOCK_DIM_X
    (3, 2000, 1024),     // MAX_BLOCK_DIM_Y
    (4, 2000, 64),       // MAX_BLOCK_DIM_Z
    (5, 2000, i32::MAX), // MAX_GRID_DIM_X
    (6, 2000, 65_535),   // MAX_GRID_DIM_Y
    (7, 2000, 65_535),   // MAX_GRID_DIM_Z
    (8, 2000, 49_152),   // MAX_SHARED_MEMORY_PER_BLOCK
    (10, 2000, 32),      // WARP_SIZE
    (16, 2000, 1),       // MULTIPROCESSOR_COUNT
    (20, 2000, 0),       // COMPUTE_MODE
    (41, 4000, 1),       // UNIFIED_ADDRESSING
    (19, 2000, 1),       // CAN_MAP_HOST_MEMORY
    (75, 5000, 9),       // COMPUTE_CAPABILITY_MAJOR
    (76, 5000, 0),       // COMPUTE_CAPABILITY_MINOR
    (102, 10_020, 1),    // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (91, 8_000, 1),      // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (103, 10_020, 1),    // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (107, 11_000, 1),    // GENERIC_COMPRESSION_SUPPORTED
    (110, 11_000, 1),    // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    (116, 11_030, 1),    // GPU_DIRECT_RDMA_SUPPORTED
    (124, 11_070, 1),    // DMA_BUF_SUPPORTED
    (128, 12_030, 1),    // HANDLE_TYPE_FABRIC_SUPPORTED, though fabric handles may not be permitted
    (132, 12_010, 1),    // MULTICAST_SUPPORTED
    (134, 12_020, 0),    // HOST_NUMA_ID
    (141, 12_090, 1),    // HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (145, 13_000, 1),    // HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
];

/// COMPUTE_MODE.
const COMPUTE_MODE: u32 = 20;
/// VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.
const VMM: u32 = 102;
/// GENERIC_COMPRESSION_SUPPORTED.
const COMPRESSION: u32 = 107;
/// MULTICAST_SUPPORTED.
const MULTICAST: u32 = 132;
/// The last attribute that a driver of 11.4 knows; later ones are listed or unknown.
const LAST_OF_11_4: u32 = 120;
/// The last attribute that a driver of 13.0 may know: measured, it does not know 152.
const LAST: u32 = 151;

/// Returns whether a device can access another's memory.
pub(crate) fn reaches(device: usize, owner: usize) -> bool {
    device == owner || settings().p2p.allows(device, owner)
}

/// Refuses a call of virtual memory management if the devices do not support it.
pub(crate) fn check_virtual_memory() -> Answer {
    match settings().vmm {
        true => Ok(()),
        false => {
            Err(refuse(Code::NOT_SUPPORTED, format_args!("the devices have no virtual memory management")))
        }
    }
}

/// Converts a `CUdevice`.
pub(crate) fn device(raw: i32) -> Answer<usize> {
    let device = usize::try_from(raw).ok().filter(|device| *device < settings().gpus);
    device.ok_or_else(|| refuse(Code::INVALID_DEVICE, format_args!("device {raw}")))
}

fn attribute(number: u32) -> Answer<i32> {
    let version = settings().version;
    match ATTRIBUTES.iter().find(|listed| listed.0 == number) {
        Some((_, since, _)) if *since > version => Err(Code::INVALID_VALUE),
        Some((COMPUTE_MODE, ..)) => Ok(settings().compute_mode.number()),
        Some((VMM, ..)) => Ok(settings().vmm.into()),
        Some((COMPRESSION, ..)) => Ok((settings().compression != Compression::None).into()),
        Some((MULTICAST, ..)) => Ok(settings().multicast.into()),
        Some((.., value)) => Ok(*value),
        None if (1..=LAST_OF_11_4).contains(&number) => Ok(0),
        None if number <= LAST && version >= 13_000 => Ok(0),
        None => Err(Code::INVALID_VALUE),
    }
}

/// Returns the name or the text of a code.
fn describe(code: Code, out: Out<'_, *const c_char>, is_name: bool) -> Answer {
    let out = given(out, "pStr")?;
    let Some((name, text)) = code.texts() else {
        out.write(std::ptr::null());
        return Err(Code::INVALID_VALUE);
    };
    out.write(if is_name { name.as_ptr() } else { text.as_ptr() });
    Ok(())
}

cuda! {
    /// Starts the driver.
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(refuse(Code::INVALID_VALUE, format_args!("flags {flags:#x}")));
        }
        call::start()?;
        if settings().gpus == 0 { Err(Code::NO_DEVICE) } else { Ok(()) }
    }

    /// Returns the configured version.
    fn cuDriverGetVersion(out: Out<'_, i32>) {
        given(out, "driverVersion")?.write(settings().version as i32);
        Ok(())
    }

    /// Returns the name of a code.
    fn cuGetErrorName(code: Code, out: Out<'_, *const c_char>) {
        describe(code, out, true)
    }

    /// Returns the text of a code.
    fn cuGetErrorString(code: Code, out: Out<'_, *const c_char>) {
        describe(code, out, false)
    }

    /// Returns the number of devices.
    fn cuDeviceGetCount(out: Out<'_, i32>) {
        given(out, "count")?.write(settings().gpus as i32);
        Ok(())
    }

    /// Returns the device with an ordinal, which is the same number.
    fn cuDeviceGet(out: Out<'_, i32>, ordinal: i32) {
        let out = given(out, "device")?;
        device(ordinal)?;
        out.write(ordinal);
        Ok(())
    }

    /// Returns the name, which says that this is not a GPU.
    fn cuDeviceGetName(out: *mut c_char, length: i32, raw: i32) {
        device(raw)?;
        let Some(length) = usize::try_from(length).ok().filter(|length| *length > 0 && !out.is_null()) else {
            return Err(refuse(Code::INVALID_VALUE, format_args!("{length} bytes at {out:?}")));
        };
        let bytes = &NAME.as_bytes()[..NAME.len().min(length - 1)];
        // SAFETY: the buffer has `length` bytes, more than the name and its zero.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
            out.add(bytes.len()).write(0);
        }
        Ok(())
    }

    /// Returns a UUID that the device has in every process.
    fn cuDeviceGetUuid_v2(out: Out<'_, [u8; 16]>, raw: i32) {
        let out = given(out, "uuid")?;
        let mut uuid = *b"fake CUDA GPU  0";
        uuid[15] += device(raw)? as u8;
        out.write(uuid);
        Ok(())
    }

    /// Returns the size of a device's memory.
    fn cuDeviceTotalMem_v2(out: Out<'_, usize>, raw: i32) {
        let out = given(out, "bytes")?;
        device(raw)?;
        out.write(settings().memory as usize);
        Ok(())
    }

    /// Returns an attribute of a device.
    fn cuDeviceGetAttribute(out: Out<'_, i32>, number: u32, raw: i32) {
        let out = given(out, "pi")?;
        device(raw)?;
        out.write(attribute(number)?);
        Ok(())
    }

    /// Returns whether a device can access another's memory.
    fn cuDeviceCanAccessPeer(out: Out<'_, i32>, raw: i32, peer: i32) {
        let out = given(out, "canAccessPeer")?;
        let (from, to) = (device(raw)?, device(peer)?);
        out.write((from != to && settings().p2p.allows(from, to)).into());
        Ok(())
    }
}
