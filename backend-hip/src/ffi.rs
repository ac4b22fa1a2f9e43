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

pub(crate) mod hsa;

pub(crate) use bindings::*;
use gpu_vmm_core::{Access, DeviceId, HandleTypes, Location, Properties};

/// Who is given access: a device, or the host, for which HIP looks at no number.
pub(crate) const fn location(who: DeviceId) -> hipMemLocation {
    if who.is_host() {
        hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeHost, id: 0 }
    } else {
        hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeDevice, id: who.0 as i32 }
    }
}

/// Where memory is to be.
const fn place(properties: &Properties) -> hipMemLocation {
    match properties.location {
        Location::Device => location(properties.device),
        Location::Host => location(DeviceId::HOST),
        Location::HostNode(node) => {
            hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeHostNuma, id: node as i32 }
        }
    }
}

/// HIP's description of memory.
pub(crate) fn allocation(properties: &Properties) -> hipMemAllocationProp {
    // SAFETY: integers, a pointer and bytes, for all of which zero is a value.
    let mut allocation: hipMemAllocationProp = unsafe { std::mem::zeroed() };
    allocation.type_ = hipMemAllocationType::hipMemAllocationTypePinned;
    allocation.location = place(properties);
    allocation.__bindgen_anon_1.requestedHandleType =
        if properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR) {
            hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor
        } else {
            hipMemAllocationHandleType::hipMemHandleTypeNone
        };
    allocation.allocFlags.gpuDirectRDMACapable = properties.remote_dma.into();
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
