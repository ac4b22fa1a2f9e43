//! Compile-time checks that `ffi` matches `cuda.h`, as cudarc's bindings in this build have it.

use super::{
    CuResult, MemAccessDesc, MemAllocationFlags, MemAllocationProp, MemLocation, MulticastObjectProp,
    attribute,
};
use cudarc::driver::sys;
use gpu_vmm_core::HandleTypes;
use std::mem::{align_of, offset_of, size_of};

/// Asserts that the size, the alignment and each named field's offset are the same.
macro_rules! same_layout {
    ($ours:ty, $theirs:ty, $($field:ident = $their_field:ident),*) => {
        const _: () = {
            assert!(size_of::<$ours>() == size_of::<$theirs>());
            assert!(align_of::<$ours>() == align_of::<$theirs>());
            $(assert!(offset_of!($ours, $field) == offset_of!($theirs, $their_field));)*
        };
    };
}

same_layout!(MemLocation, sys::CUmemLocation, kind = type_);
// From 13.2 on the field has another name; it is the one that follows the type and fills the structure.
const _: () = assert!(offset_of!(MemLocation, id) == size_of::<sys::CUmemLocationType>());
same_layout!(
    MemAllocationFlags,
    sys::CUmemAllocationProp_st__bindgen_ty_1,
    compression_type = compressionType,
    gpu_direct_rdma_capable = gpuDirectRDMACapable,
    usage = usage,
    reserved = reserved
);
same_layout!(
    MemAllocationProp,
    sys::CUmemAllocationProp,
    kind = type_,
    requested_handle_types = requestedHandleTypes,
    location = location,
    win32_handle_meta_data = win32HandleMetaData,
    flags = allocFlags
);
same_layout!(MemAccessDesc, sys::CUmemAccessDesc, location = location, flags = flags);

/// Bindings before 12.1 lack this structure. An item that a glob imports shadows one from outside its block, so with such bindings
/// the check uses this one, written from the documentation.
#[allow(dead_code, non_snake_case)]
#[repr(C)]
struct CUmulticastObjectProp {
    numDevices: u32,
    size: usize,
    handleTypes: u64,
    flags: u64,
}
const _: () = {
    #[allow(unused_imports)]
    use sys::*;
    same_layout!(
        MulticastObjectProp,
        CUmulticastObjectProp,
        num_devices = numDevices,
        size = size,
        handle_types = handleTypes,
        flags = flags
    );
};

const _: () = {
    assert!(size_of::<CuResult>() == size_of::<sys::CUresult>());
    assert!(size_of::<sys::CUmemGenericAllocationHandle>() == size_of::<u64>());
    assert!(size_of::<sys::CUdeviceptr>() == size_of::<u64>());
    assert!(size_of::<sys::CUdevice_attribute>() == size_of::<u32>());
    assert!(size_of::<sys::CUmemAllocationHandleType>() == size_of::<u32>());
};

/// Asserts numbers that every version of the bindings has. The others came later: 124 with 11.7, 132 with 12.0, 128 with 12.3, the
/// code 47 after that.
macro_rules! same_number {
    ($($ours:expr, $theirs:expr;)*) => { const _: () = { $(assert!($ours as u64 == $theirs as u64);)* }; };
}

use sys::CUdevice_attribute as theirs;
use sys::CUmemAllocationHandleType as handle_type;
use sys::cudaError_enum as answer;
same_number! {
    gpu_vmm_core::HandleTypes::FILE_DESCRIPTOR.bits(),
        sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    gpu_vmm_core::HandleTypes::WIN32.bits(), sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32.0;
    size_of::<sys::CUuuid>(), size_of::<[u8; 16]>();
    CuResult::OUT_OF_MEMORY.0, answer::CUDA_ERROR_OUT_OF_MEMORY;
    CuResult::NOT_INITIALIZED.0, answer::CUDA_ERROR_NOT_INITIALIZED;
    CuResult::DEINITIALIZED.0, answer::CUDA_ERROR_DEINITIALIZED;
    CuResult::STUB_LIBRARY.0, answer::CUDA_ERROR_STUB_LIBRARY;
    CuResult::NO_DEVICE.0, answer::CUDA_ERROR_NO_DEVICE;
    CuResult::ILLEGAL_STATE.0, answer::CUDA_ERROR_ILLEGAL_STATE;
    CuResult::NOT_READY.0, answer::CUDA_ERROR_NOT_READY;
    attribute::VIRTUAL_MEMORY_MANAGEMENT, theirs::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
    attribute::HANDLE_TYPE_FILE_DESCRIPTOR,
        theirs::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    attribute::GENERIC_COMPRESSION, theirs::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED;
    attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM,
        theirs::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    HandleTypes::FILE_DESCRIPTOR.bits(), handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    HandleTypes::WIN32.bits(), handle_type::CU_MEM_HANDLE_TYPE_WIN32.0;
    super::LOCATION_DEVICE, sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    super::ALLOCATION_PINNED, sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    super::GRANULARITY_MINIMUM, sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    super::GRANULARITY_RECOMMENDED,
        sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    super::COMPRESSION_GENERIC, sys::CUmemAllocationCompType::CU_MEM_ALLOCATION_COMP_GENERIC;
    super::ACCESS_NONE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    super::ACCESS_READ, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
    super::ACCESS_READ_WRITE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    super::STREAM_NON_BLOCKING, sys::CUstream_flags::CU_STREAM_NON_BLOCKING;
    super::STREAM_BLOCKING, sys::CUstream_flags::CU_STREAM_DEFAULT;
    super::CAPTURE_RELAXED, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    super::EVENT_DISABLE_TIMING, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
    super::CAPTURE_NONE, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    super::HOST_ALLOC_PORTABLE, sys::CU_MEMHOSTALLOC_PORTABLE;
    super::HOST_REGISTER_PORTABLE, sys::CU_MEMHOSTREGISTER_PORTABLE;
    super::HOST_REGISTER_DEVICEMAP, sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        theirs::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    super::JIT_ERROR_LOG, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER;
    super::JIT_ERROR_LOG_SIZE, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
}

#[cfg(windows)]
same_number! {
    attribute::HANDLE_TYPE_WIN32, theirs::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED;
}
