//! Two functions of ROCr, which gpu-vmm-hip reaches through HIP's library: setting access without HIP's check, and whose
//! memory a plain allocation is.
#![allow(unsafe_code)] // ROCr's interface

use crate::access::Who;
use crate::c::{HipError, call, stop};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `hsa_status_t`.
#[repr(transparent)]
struct Status(u32);

const SUCCESS: Status = Status(0);
const INVALID_ARGUMENT: Status = Status(0x1001);

/// The agent of device 0; the others follow.
const FIRST_AGENT: u64 = 0x5a00;

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AccessDescription {
    permissions: u32,
    agent: u64,
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
struct PointerInfo {
    size: u32,
    kind: c_int,
    agent_base: *mut c_void,
    host_base: *mut c_void,
    size_in_bytes: usize,
    user_data: *mut c_void,
    owner: u64,
    global_flags: u32,
    registered: bool,
}

fn answer(code: HipError) -> Status {
    if code == HipError::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
}

/// # Safety
///
/// As ROCr has it: as many descriptions as are said.
#[unsafe(no_mangle)]
unsafe extern "C" fn hsa_amd_vmem_set_access(
    at: *mut c_void,
    size: usize,
    descriptions: *const AccessDescription,
    count: usize,
) -> Status {
    answer(call(|state| {
        // SAFETY: the caller's promise.
        let descriptions = unsafe { std::slice::from_raw_parts(descriptions, count) };
        descriptions.iter().try_for_each(|description| {
            let device = description.agent.wrapping_sub(FIRST_AGENT) as usize;
            if device >= state.devices.len() {
                stop(format_args!(
                    "hsa_amd_vmem_set_access is given an agent {:#x} that it never gave",
                    description.agent
                ));
            }
            state.set_access(at.addr(), size, Who::Device(device), description.permissions)
        })
    }))
}

/// # Safety
///
/// As ROCr has it: `info` is of ROCr's structure.
#[unsafe(no_mangle)]
unsafe extern "C" fn hsa_amd_pointer_info(
    at: *const c_void,
    info: *mut PointerInfo,
    _allocate: *const c_void,
    _count: *mut u32,
    _agents: *mut *mut u64,
) -> Status {
    answer(call(|state| {
        let owner = state.plain.get(&at.addr()).and_then(|place| place.mappings.values().next());
        let (kind, owner) = owner.map_or((0, 0), |mapping| (1, FIRST_AGENT + mapping.device as u64));
        // SAFETY: the caller's promise.
        unsafe {
            (*info).kind = kind;
            (*info).owner = owner;
            (*info).host_base = null_mut();
        }
        Ok(())
    }))
}
