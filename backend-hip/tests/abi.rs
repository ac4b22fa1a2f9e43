//! Compares gpu-vmm's bindings with two published ones: hip-sys, generated from HIP 5.4, and the newest version of
//! cubecl-hip-sys. Everything but the numbers is checked at compile time; the test needs no ROCm.

#[rustfmt::skip]
#[allow(dead_code, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unreachable_pub)]
#[allow(clippy::use_self, clippy::all)]
#[path = "../src/ffi/bindings.rs"]
mod ours;

use cubecl_hip_sys as newest;
use hip_sys::hiprt as oldest;
use std::mem::offset_of;

macro_rules! same {
    ($structure:ident: $($field:ident),*) => {
        const _: () = {
            assert!(size_of::<ours::$structure>() == size_of::<oldest::$structure>());
            assert!(size_of::<ours::$structure>() == size_of::<newest::$structure>());
            assert!(align_of::<ours::$structure>() == align_of::<oldest::$structure>());
            assert!(align_of::<ours::$structure>() == align_of::<newest::$structure>());
            $(
                assert!(offset_of!(ours::$structure, $field) == offset_of!(oldest::$structure, $field));
                assert!(offset_of!(ours::$structure, $field) == offset_of!(newest::$structure, $field));
            )*
        };
    };
}

same!(hipMemLocation: type_, id);
same!(hipMemAccessDesc: location, flags);
same!(hipMemAllocationProp: type_, location, win32HandleMetaData, allocFlags);
same!(hipPointerAttribute_t: device);

// The field is a plain member up to 6.4, and in a union since 7.0.
const _: () = {
    let ours = offset_of!(ours::hipMemAllocationProp, __bindgen_anon_1);
    assert!(ours == offset_of!(oldest::hipMemAllocationProp, requestedHandleType));
    assert!(ours == offset_of!(newest::hipMemAllocationProp, __bindgen_anon_1));
};

// The structure exists since 6.0, so only the newest bindings have it.
const _: () = {
    type Newest = newest::hipDeviceProp_tR0600;
    assert!(size_of::<ours::hipDeviceProp_tR0600>() == size_of::<Newest>());
    let ours = offset_of!(ours::hipDeviceProp_tR0600, gcnArchName);
    assert!(ours == offset_of!(Newest, gcnArchName));
};

/// Turns `enumeration: name, name` into three columns of numbers.
macro_rules! numbers {
    ($($enumeration:ident: $($name:ident $newest:ident),*;)*) => {
        [$($((
            stringify!($name),
            ours::$enumeration::$name.0 as u64,
            oldest::$enumeration::$name as u64,
            newest::$newest as u64,
        ),)*)*]
    };
}

#[test]
fn the_numbers_are_those_of_others() {
    let numbers = numbers! {
        hipError_t:
            hipSuccess hipError_t_hipSuccess,
            hipErrorInvalidValue hipError_t_hipErrorInvalidValue,
            hipErrorOutOfMemory hipError_t_hipErrorOutOfMemory,
            hipErrorNoDevice hipError_t_hipErrorNoDevice,
            hipErrorIllegalAddress hipError_t_hipErrorIllegalAddress,
            hipErrorLaunchFailure hipError_t_hipErrorLaunchFailure;
        hipMemAccessFlags:
            hipMemAccessFlagsProtNone hipMemAccessFlags_hipMemAccessFlagsProtNone,
            hipMemAccessFlagsProtRead hipMemAccessFlags_hipMemAccessFlagsProtRead,
            hipMemAccessFlagsProtReadWrite hipMemAccessFlags_hipMemAccessFlagsProtReadWrite;
        hipMemAllocationType:
            hipMemAllocationTypePinned hipMemAllocationType_hipMemAllocationTypePinned;
        hipMemLocationType:
            hipMemLocationTypeDevice hipMemLocationType_hipMemLocationTypeDevice;
        hipMemAllocationGranularity_flags:
            hipMemAllocationGranularityMinimum hipMemAllocationGranularity_flags_hipMemAllocationGranularityMinimum,
            hipMemAllocationGranularityRecommended hipMemAllocationGranularity_flags_hipMemAllocationGranularityRecommended;
        hipDeviceAttribute_t:
            hipDeviceAttributeVirtualMemoryManagementSupported
            hipDeviceAttribute_t_hipDeviceAttributeVirtualMemoryManagementSupported;
        hipMemcpyKind:
            hipMemcpyHostToDevice hipMemcpyKind_hipMemcpyHostToDevice,
            hipMemcpyDeviceToHost hipMemcpyKind_hipMemcpyDeviceToHost,
            hipMemcpyDeviceToDevice hipMemcpyKind_hipMemcpyDeviceToDevice;
    };
    for (name, ours, oldest, newest) in numbers {
        assert_eq!((ours, ours), (oldest, newest), "{name}");
    }
    // These names differ, so they are compared by hand.
    let ours = ours::hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor.0;
    assert_eq!(ours, oldest::hipMemAllocationHandleType::hipMemHandleTypePosixFileDescriptor as u32);
    assert_eq!(ours, newest::hipMemAllocationHandleType_hipMemHandleTypePosixFileDescriptor);
    assert_eq!(
        (ours::HIP_VERSION_MAJOR, ours::HIP_VERSION_MINOR),
        (7, 2),
        "generated from the headers that the documentation names"
    );
}
