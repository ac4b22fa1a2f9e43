//! Functions that HIP is linked to and that are not simulated: images, IPC by handle, managed memory, file input and output,
//! interoperation. They are refused, or accepted if they need no action.
#![allow(unsafe_code)] // exported to C

use crate::abi::Status;

macro_rules! answering {
    ($status:expr, $what:literal: $($name:ident)*) => {
        hsa! { $(
            #[doc = $what]
            pub unsafe fn $name() {
                if $status != Status::SUCCESS {
                    trace!("{}: not simulated", stringify!($name));
                }
                $status
            }
        )* }
    };
}

answering! { Status::SUCCESS, "Accepted without any action.":
    hsa_amd_coherency_set_type
    hsa_amd_enable_logging
    hsa_amd_agent_set_async_scratch_limit
    hsa_amd_register_system_event_handler
}

answering! { Status::NOT_SUPPORTED, "Refused.":
    hsa_agent_extension_supported
    hsa_system_extension_supported
    hsa_amd_ais_file_read
    hsa_amd_ais_file_write
    hsa_amd_image_create
    hsa_amd_interop_map_buffer
    hsa_amd_interop_unmap_buffer
    hsa_amd_ipc_memory_attach
    hsa_amd_ipc_memory_create
    hsa_amd_ipc_memory_detach
    hsa_amd_svm_attributes_get
    hsa_amd_svm_attributes_set
    hsa_amd_svm_prefetch_async
    hsa_ext_image_create
    hsa_ext_image_create_with_layout
    hsa_ext_image_data_get_info
    hsa_ext_image_destroy
    hsa_ext_image_export
    hsa_ext_image_import
    hsa_ext_sampler_create
    hsa_ext_sampler_create_v2
    hsa_ext_sampler_destroy
}

// Of ROCr 7.14 and later.
answering! { Status::NOT_SUPPORTED, "Refused.":
    hsa_amd_external_semaphore_handle_close
    hsa_amd_external_semaphore_handle_open
    hsa_amd_image_create_v2
    hsa_amd_interop_map_buffer_with_size
    hsa_amd_ipc_signal_attach
    hsa_amd_ipc_signal_create
    hsa_amd_memory_async_batch_copy
    hsa_amd_queue_get_info
    hsa_amd_svm_discard_batch_async
    hsa_amd_vmem_export_fabric_handle
    hsa_amd_vmem_import_fabric_handle
    hsa_executable_get_info
    hsa_ext_image_create_v2
    hsa_ext_image_data_get_info_v2
    hsa_ext_image_destroy_v2
    hsa_ext_image_mipmap_array_get_level
}
