//! The memory of a pool: its kinds, the devices with access, and the device that has it.
//!
//! Uses unsafe code: C calls these functions with raw pointers.
#![allow(unsafe_code)]

use super::Pool;
use crate::call::status;
use crate::physical::Physical;
use crate::properties::{Properties, access as level};
use crate::status::Status;
use crate::texts::{check_place, clear, give, give_box, give_json, object};
use gpu_vmm::pool::PoolStats;
use gpu_vmm::{Address, Bytes, DeviceId, MovePath, WaitFor};
use std::ffi::c_char;

/// A kind of memory and its statistics, as gpu_vmm_pool_kinds writes them.
#[derive(serde::Serialize)]
struct KindStats {
    memory: String,
    stats: PoolStats,
}

/// Returns the same pool, allocating another kind of memory under the same tag name: host memory, memory that can be exported, and so on.
/// All kinds share the budget; each has tags, streams and statistics of its own, and the same tag in two kinds is two tags. Free memory of
/// one kind gives way to a request of another. Null `properties` are plain device memory of device 0. GPU_VMM_UNSUPPORTED if the driver has
/// no such memory, or for another device than the pool's. Free the result with gpu_vmm_pool_free.
///
/// # Safety
///
/// `pool` is null or a pool. `properties` is null or points to initialized properties. `with_memory` is null or points to a writable
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_with_memory(
    pool: *const Pool,
    properties: *const Properties,
    with_memory: *mut *mut Pool,
) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(with_memory) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pool = object("pool", pool)?;
            let properties = Properties::read("properties", properties.as_ref())?;
            let with = || Ok(Pool { blocks: pool.blocks.with_memory(properties)?, ..pool.clone() });
            give_box("with_memory", with_memory, with)
        }
    })
}

/// Returns the kinds of memory of a pool as JSON, its own first: an array of objects with `memory`, a text that describes the kind, and
/// `stats`, as gpu_vmm_pool_stats returns them. Free the text with gpu_vmm_string_free.
///
/// # Safety
///
/// As for gpu_vmm_pool_stats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_kinds(pool: *const Pool, json: *mut *mut c_char) -> Status {
    // SAFETY: null or writable for a pointer, as the caller guarantees.
    unsafe { clear(json) };
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let kinds = pool.blocks.kinds().into_iter();
        let kinds: Vec<_> =
            kinds.map(|(memory, stats)| KindStats { memory: memory.to_string(), stats }).collect();
        // SAFETY: guaranteed by the caller.
        unsafe { give_json(json, &kinds) }
    })
}

/// Returns the physical memory behind an address of a block of any kind, and the address's offset in it: to export the block, or to map it
/// elsewhere. A larger block has more memory behind the end of this one. The memory outlives the block, and other blocks may lie in it. It
/// can be exported if its properties say so: gpu_vmm_physical_export_fd. Release it with gpu_vmm_physical_release.
///
/// Returns GPU_VMM_NOT_FOUND if the pool has no mapped memory there, and GPU_VMM_UNSUPPORTED on a device without virtual memory
/// management.
///
/// # Safety
///
/// `pool` is null or a pool. `physical` is null or points to a writable pointer. `offset` is null or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_memory_at(
    pool: *const Pool,
    address: u64,
    physical: *mut *mut Physical,
    offset: *mut u64,
) -> Status {
    // SAFETY: null or writable, as the caller guarantees.
    unsafe {
        clear(physical);
        clear(offset);
    }
    status(|| {
        check_place("physical", physical)?;
        check_place("offset", offset)?;
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        let (memory, within) = pool.blocks.memory_at(Address(address), Bytes(1))?;
        for piece in memory {
            // SAFETY: guaranteed by the caller. One byte lies in one piece.
            unsafe { give_box("physical", physical, || Ok(Physical(piece))) }?;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give("offset", offset, within.0) }
    })
}

/// Gives a device, or GPU_VMM_DEVICE_HOST, access to all memory of this object's kind, present and future: GPU_VMM_ACCESS_READ or
/// GPU_VMM_ACCESS_READ_WRITE, for the CPU GPU_VMM_ACCESS_READ_WRITE alone. A device that has this access or more keeps what it has.
///
/// Returns GPU_VMM_UNSUPPORTED for a device that has less access already, for read-only access where the driver has none, and for the
/// CPU where it cannot access such memory; GPU_VMM_PEER_UNREACHABLE and GPU_VMM_NO_SUCH_DEVICE.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_allow_access(pool: *const Pool, device: u32, access: u32) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        Ok(pool.blocks.allow_access_as(DeviceId(device), level(access)?)?)
    })
}

/// Moves a pool to another device, after waiting for the devices: all blocks of all kinds and tags keep their addresses and their bytes, and
/// have memory of `device`, from which the pool allocates from then on. That device gets read and write access, and the old one loses
/// its access: gpu_vmm_pool_allow_access gives it access as a peer. No work may use a block until the call returns. Requests of other
/// threads wait; gpu_vmm_read and gpu_vmm_write must end before, as before a suspension. Do not move a pool of gpu_vmm_torch_pool:
/// PyTorch's tensors stay tensors of their device.
///
/// Returns GPU_VMM_NO_SUCH_DEVICE, GPU_VMM_PEER_UNREACHABLE, GPU_VMM_OUT_OF_MEMORY, GPU_VMM_SUSPENDED while a tag is suspended, and
/// GPU_VMM_BUSY for memory that is exported or held elsewhere, or for a capture.
///
/// # Safety
///
/// `pool` is null or a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpu_vmm_pool_move_to_device(pool: *const Pool, device: u32) -> Status {
    status(|| {
        // SAFETY: guaranteed by the caller.
        let pool = unsafe { object("pool", pool) }?;
        pool.blocks.move_to_device(DeviceId(device), MovePath::Fastest(None), WaitFor::all_devices())?;
        Ok(())
    })
}
