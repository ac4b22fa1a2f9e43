//! HIP's types, constants and function types, as AMD's headers have them.
//!
//! `bindings.rs` is generated from HIP 7.2.4 by the program in `backend-hip/bindgen`; the structures are the same from
//! HIP 5.3 on. What C gives as an enum is an integer in a newtype, since a newer runtime answers numbers that no header
//! of today knows. Nothing here links: functions are types of pointers, which [`loader`](crate::loader) fills.
#![allow(unsafe_code)] // for a structure of zeros

#[rustfmt::skip]
#[allow(dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub)]
#[allow(missing_debug_implementations, clippy::use_self, clippy::all)]
mod bindings;

pub(crate) use bindings::*;
use gpu_vmm_core::{Access, DeviceId, HandleTypes, Properties};

/// The place that HIP calls a device.
pub(crate) const fn location(device: DeviceId) -> hipMemLocation {
    hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeDevice, id: device.0 as i32 }
}

/// HIP's description of memory.
pub(crate) fn allocation(properties: &Properties) -> hipMemAllocationProp {
    // SAFETY: integers, a pointer and bytes, for all of which zero is a value.
    let mut allocation: hipMemAllocationProp = unsafe { std::mem::zeroed() };
    allocation.type_ = hipMemAllocationType::hipMemAllocationTypePinned;
    allocation.location = location(properties.device);
    allocation.__bindgen_anon_1.requestedHandleType =
        if properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR) {
            hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor
        } else {
            hipMemAllocationHandleType::hipMemHandleTypeNone
        };
    allocation
}

/// HIP's flags for an access.
pub(crate) const fn flags(access: Access) -> hipMemAccessFlags {
    match access {
        Access::None => hipMemAccessFlags::hipMemAccessFlagsProtNone,
        Access::Read => hipMemAccessFlags::hipMemAccessFlagsProtRead,
        Access::ReadWrite => hipMemAccessFlags::hipMemAccessFlagsProtReadWrite,
    }
}
