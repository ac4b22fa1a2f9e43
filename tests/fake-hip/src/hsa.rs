//! Functions of ROCr, which gpu-vmm-hip reaches through HIP's library: setting access without HIP's check, whose memory a
//! plain allocation is, which agent is the host, and a descriptor of what is mapped.
#![allow(unsafe_code)] // ROCr's interface

use crate::access::Who;
use crate::c::{HipError, call, require, stop};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// `hsa_status_t`.
#[repr(transparent)]
struct Status(u32);

const SUCCESS: Status = Status(0);
const INVALID_ARGUMENT: Status = Status(0x1001);

/// The agent of device 0; the others follow.
const FIRST_AGENT: u64 = 0x5a00;
/// The agent of the host.
const HOST_AGENT: u64 = 0x4a00;
/// `HSA_AMD_AGENT_INFO_NEAREST_CPU`.
const NEAREST_CPU: u32 = 0xA113;

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
            if description.agent == HOST_AGENT {
                return state.set_access(at.addr(), size, Who::Host, description.permissions);
            }
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

/// # Safety
///
/// As ROCr has it: `value` is for what the attribute is, here an agent.
#[unsafe(no_mangle)]
unsafe extern "C" fn hsa_agent_get_info(_agent: u64, attribute: u32, value: *mut u64) -> Status {
    answer(call(|_| {
        require(attribute == NEAREST_CPU)?;
        // SAFETY: the caller's promise.
        unsafe { *value = HOST_AGENT };
        Ok(())
    }))
}

/// # Safety
///
/// As ROCr has it: `handle` is for one handle, here the number of the memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn hsa_amd_vmem_retain_alloc_handle(handle: *mut u64, at: *const c_void) -> Status {
    answer(call(|state| {
        let number = state.retain_mapped(at.addr())?;
        // SAFETY: the caller's promise.
        unsafe { *handle = number };
        Ok(())
    }))
}

/// # Safety
///
/// As ROCr has it: `fd` is for one descriptor.
#[unsafe(no_mangle)]
unsafe extern "C" fn hsa_amd_vmem_export_shareable_handle(fd: *mut c_int, handle: u64, flags: u64) -> Status {
    answer(call(|state| {
        require(flags == 0)?;
        let exported = state.memory(handle).memory.descriptor().map_err(|_| HipError::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        unsafe { *fd = exported };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hsa_amd_vmem_handle_release(handle: u64) -> Status {
    answer(call(|state| {
        state.let_go_of_memory(handle);
        Ok(())
    }))
}
