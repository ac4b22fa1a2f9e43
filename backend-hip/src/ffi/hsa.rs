//! Types, constants and functions of ROCr, as in AMD's headers.
#![allow(unsafe_code)] // the types of symbols are not checked

use crate::library::Library;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// `hsa_status_t`: 0 is success.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HsaStatus(pub(crate) u32);

/// `hsa_agent_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agent(pub(crate) u64);

/// `hsa_amd_vmem_alloc_handle_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryHandle(pub(crate) u64);

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
pub(crate) struct AccessDescription {
    pub(crate) permissions: u32,
    pub(crate) agent: Agent,
}

/// `hsa_amd_pointer_info_t`.
#[repr(C)]
pub(crate) struct PointerInfo {
    pub(crate) size: u32,
    pub(crate) kind: u32,
    pub(crate) agent_base: *mut c_void,
    pub(crate) host_base: *mut c_void,
    pub(crate) size_in_bytes: usize,
    pub(crate) user_data: *mut c_void,
    pub(crate) owner: Agent,
    pub(crate) global_flags: u32,
    pub(crate) registered: bool,
}

// Sizes and offsets from hsa_ext_amd.h.
const _: () = {
    assert!(size_of::<AccessDescription>() == 16 && offset_of!(AccessDescription, agent) == 8);
    assert!(size_of::<PointerInfo>() == 56 && offset_of!(PointerInfo, owner) == 40);
};

pub(crate) type SetAccess =
    unsafe extern "C" fn(*mut c_void, usize, *const AccessDescription, usize) -> HsaStatus;
pub(crate) type GetPointerInfo = unsafe extern "C" fn(
    *const c_void,
    *mut PointerInfo,
    *const c_void,
    *mut u32,
    *mut *mut Agent,
) -> HsaStatus;

pub(crate) type Retain = unsafe extern "C" fn(*mut MemoryHandle, *const c_void) -> HsaStatus;
pub(crate) type Export = unsafe extern "C" fn(*mut c_int, MemoryHandle, u64) -> HsaStatus;
pub(crate) type Release = unsafe extern "C" fn(MemoryHandle) -> HsaStatus;
pub(crate) type GetAgentInfo = unsafe extern "C" fn(Agent, u32, *mut Agent) -> HsaStatus;

/// The function that exports memory as a descriptor.
pub(crate) const EXPORT: &str = "hsa_amd_vmem_export_shareable_handle";
pub(crate) const SUCCESS: HsaStatus = HsaStatus(0);
/// `HSA_AMD_AGENT_INFO_NEAREST_CPU`, an attribute whose value is an agent.
pub(crate) const NEAREST_CPU: u32 = 0xA113;
/// `HSA_EXT_POINTER_TYPE_HSA`: memory that ROCr allocated.
pub(crate) const POINTER_TYPE_HSA: u32 = 1;

/// The ROCr functions that this backend uses.
#[cfg_attr(not(unix), allow(dead_code))] // descriptors
pub(crate) struct Hsa {
    pub(crate) set_access: SetAccess,
    pub(crate) pointer_info: GetPointerInfo,
    pub(crate) agent_info: GetAgentInfo,
    pub(crate) retain: Retain,
    pub(crate) export: Export,
    pub(crate) release: Release,
}

impl Hsa {
    /// Looks the functions up through HIP, which depends on ROCr, so they come from the copy that HIP uses.
    pub(crate) fn find(hip: &Library) -> Option<Self> {
        // SAFETY: ROCr's functions of these names have had these types since they exist (interface 1.4 and 1.0;
        // `hsa_agent_get_info` writes the requested attribute, and only attributes of type agent are requested). HIP
        // and its dependencies are never unloaded.
        unsafe {
            Some(Self {
                set_access: *hip.get("hsa_amd_vmem_set_access").ok()?,
                pointer_info: *hip.get("hsa_amd_pointer_info").ok()?,
                agent_info: *hip.get("hsa_agent_get_info").ok()?,
                retain: *hip.get("hsa_amd_vmem_retain_alloc_handle").ok()?,
                export: *hip.get(EXPORT).ok()?,
                release: *hip.get("hsa_amd_vmem_handle_release").ok()?,
            })
        }
    }
}
