//! HIP's types, constants and function types, as in AMD's headers.
//!
//! The program in `backend-hip/bindgen` generates `bindings.rs` from HIP 7.2.4; the structures are the same since HIP
//! 5.3. C's enums are integers in a newtype, because a newer runtime may return numbers that today's headers do not
//! know. ROCm 10.0 (HIP 7.15) adds the errors 914 to 916 (`hipErrorInvalidResourceType`, `hipErrorInvalidResourceConfiguration`,
//! `hipErrorStreamDetached`) and 1054 (`hipErrorInvalidClusterSize`), and renumbers `hipErrorTbd`: nothing here names them,
//! and errors have the names that the runtime returns. Nothing here links: the functions are pointer types, which [`loader`](crate::loader) fills.
#![allow(unsafe_code)] // for a structure of zeros

#[rustfmt::skip]
#[allow(dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub)]
#[allow(missing_debug_implementations, clippy::use_self, clippy::all)]
mod bindings;

pub(crate) mod hsa;

pub(crate) use bindings::*;
use gpu_vmm_core::{Access, DeviceId, HandleTypes, Location, Properties};

/// `hipMemHandleTypeFabric`, which the headers of the bindings lack; ROCm 10.0's have it.
pub(crate) const FABRIC_HANDLE: hipMemAllocationHandleType = hipMemAllocationHandleType(8);

/// HIP's location of a device, or of the host, whose number HIP ignores.
pub(crate) const fn location(who: DeviceId) -> hipMemLocation {
    if who.is_host() {
        hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeHost, id: 0 }
    } else {
        hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeDevice, id: who.0 as i32 }
    }
}

/// HIP's location for memory of these properties.
const fn place(properties: &Properties) -> hipMemLocation {
    match properties.location {
        Location::Device => location(properties.device),
        Location::Host => location(DeviceId::HOST),
        Location::HostNode(node) => {
            hipMemLocation { type_: hipMemLocationType::hipMemLocationTypeHostNuma, id: node as i32 }
        }
    }
}

/// HIP's description of memory of these properties.
pub(crate) fn allocation(properties: &Properties) -> hipMemAllocationProp {
    // SAFETY: integers, a pointer and bytes, for all of which zero is a value.
    let mut allocation: hipMemAllocationProp = unsafe { std::mem::zeroed() };
    allocation.type_ = hipMemAllocationType::hipMemAllocationTypePinned;
    allocation.location = place(properties);
    allocation.__bindgen_anon_1.requestedHandleType =
        if properties.handle_types.contains(HandleTypes::FILE_DESCRIPTOR) {
            hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor
        } else if properties.handle_types.contains(HandleTypes::FABRIC) {
            FABRIC_HANDLE
        } else {
            hipMemAllocationHandleType::hipMemHandleTypeNone
        };
    allocation.allocFlags.gpuDirectRDMACapable = properties.remote_dma.into();
    allocation
}

/// Returns the properties that HIP reports for memory. Device 0 copies to and from host memory.
///
/// # Errors
///
/// The reason why there is no such location.
pub(crate) fn properties(reported: &hipMemAllocationProp) -> Result<Properties, String> {
    let hipMemLocation { type_, id } = reported.location;
    let first = Properties::on(DeviceId(0));
    let number = u32::try_from(id);
    let properties = match (type_, number) {
        (hipMemLocationType::hipMemLocationTypeDevice, Ok(device)) => Properties::on(DeviceId(device)),
        (hipMemLocationType::hipMemLocationTypeHost, _) => first.located(Location::Host),
        (hipMemLocationType::hipMemLocationTypeHostNuma, Ok(node)) => first.located(Location::HostNode(node)),
        _ => return Err(format!("HIP reports memory in a place of type {}, number {id}", type_.0)),
    };
    // SAFETY: both fields of the union are the same number.
    let types = unsafe { reported.__bindgen_anon_1.requestedHandleType };
    Ok(Properties {
        handle_types: HandleTypes::from_bits_truncate(types.0),
        remote_dma: reported.allocFlags.gpuDirectRDMACapable != 0,
        ..properties
    })
}

/// HIP's flags for an access.
pub(crate) const fn flags(access: Access) -> hipMemAccessFlags {
    match access {
        Access::None => hipMemAccessFlags::hipMemAccessFlagsProtNone,
        Access::Read => hipMemAccessFlags::hipMemAccessFlagsProtRead,
        Access::ReadWrite => hipMemAccessFlags::hipMemAccessFlagsProtReadWrite,
    }
}
