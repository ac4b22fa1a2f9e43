//! Functions of ROCr, which gpu-vmm-hip calls through HIP's library: setting access without HIP's check, querying the owner
//! of a plain allocation and the host's agent, and exporting a mapping as a descriptor.

use crate::c::{HipError, Out, give, stop};
use crate::call::call_named;
use crate::settings::SETTINGS;
use std::ffi::c_int;
use std::sync::Arc;

/// `HSA_STATUS_ERROR_INVALID_ARGUMENT`.
const INVALID_ARGUMENT: u32 = 0x1001;
/// The agent of device 0; the others follow.
const FIRST_AGENT: u64 = 0x5a00;
/// The agent of the host.
const HOST_AGENT: u64 = 0x4a00;
/// `HSA_AMD_AGENT_INFO_NEAREST_CPU`.
const NEAREST_CPU: u32 = 0xA113;

/// `hsa_amd_memory_access_desc_t`.
#[repr(C)]
struct AccessDescription {
    permissions: u32,
    agent: u64,
}

/// `hsa_amd_pointer_info_t`, its first half.
#[repr(C)]
struct PointerInfo {
    size: u32,
    kind: c_int,
    /// Two addresses, a size, and a user's pointer.
    more: [usize; 4],
    owner: u64,
}

/// Like `hip!`, with ROCr's status codes.
macro_rules! hsa {
    ($name:ident, |$state:pat_param $(, $argument:ident: $type:ty)*| $body:expr) => {
        /// # Safety
        ///
        /// As in ROCr's headers.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            if call_named(stringify!($name), |$state| $body) == HipError::SUCCESS { 0 } else { INVALID_ARGUMENT }
        }
    };
}

hsa!(hsa_amd_vmem_set_access, |state,
                               at: usize,
                               size: usize,
                               description: Option<&AccessDescription>,
                               count: usize| {
    let Some(AccessDescription { permissions, agent }) = description.filter(|_| count == 1) else {
        stop(format_args!("hsa_amd_vmem_set_access with {count} descriptions, not one"))
    };
    let device = Some(agent.wrapping_sub(FIRST_AGENT) as usize).filter(|_| *agent != HOST_AGENT);
    let is_known = device.is_none_or(|device| device < SETTINGS.devices);
    rule!(is_known, "hsa_amd_vmem_set_access for {agent:#x}, which is not an agent");
    let tiles = state.tiles("hsa_amd_vmem_set_access", at, size);
    state.set_access(tiles, device, *permissions)
});

hsa!(hsa_amd_pointer_info, |state,
                            at: usize,
                            info: Option<&mut PointerInfo>,
                            _a: usize,
                            _b: usize,
                            _c: usize| {
    let owner = state.mapping(at).map(|(_, mapping)| FIRST_AGENT + mapping.handle.device as u64);
    let info = info.ok_or(HipError::INVALID_VALUE)?;
    (info.kind, info.owner) = owner.map_or((0, 0), |owner| (1, owner));
    Ok(())
});

hsa!(hsa_agent_get_info, |_, _agent: u64, attribute: u32, value: Out<'_, u64>| {
    rule!(attribute == NEAREST_CPU, "hsa_agent_get_info of {attribute:#x}");
    give(value, HOST_AGENT)
});

// ROCr's handle is the number of a reference to the memory.
hsa!(hsa_amd_vmem_retain_alloc_handle, |state, handle: Out<'_, u64>, at: usize| {
    let found = state.mapping(at).filter(|(start, _)| *start == at);
    let memory = found.and_then(|(_, mapping)| mapping.handle.memory.get());
    let memory = Arc::clone(memory.ok_or(HipError::INVALID_VALUE)?);
    let number = state.number();
    state.retained.insert(number, memory);
    give(handle, number)
});

hsa!(hsa_amd_vmem_export_shareable_handle, |state, fd: Out<'_, c_int>, handle: u64, _flags: u64| {
    let memory = state.retained.get(&handle).ok_or(HipError::INVALID_VALUE)?;
    give(fd, memory.exported()?)
});

hsa!(hsa_amd_vmem_handle_release, |state, handle: u64| {
    state.retained.remove(&handle).map(drop).ok_or(HipError::INVALID_VALUE)
});
