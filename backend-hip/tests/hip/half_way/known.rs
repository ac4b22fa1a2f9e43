//! HIP's own errors after a failure below it, and the failures that are not tried.

use std::ops::Range;

/// What HIP does wrong after a failure of a function below it, during an operation, in a range of versions.
pub(super) struct Known {
    pub(super) operation: &'static str,
    pub(super) function: &'static str,
    pub(super) versions: Range<u32>,
    pub(super) reason: &'static str,
}

const ALL: Range<u32> = 0..u32::MAX;
const SEVEN: Range<u32> = 70_000_000..u32::MAX;
const NOT_UNMAPPED: &str = "hipMemUnmap returns success although the mapping still exists";
const REFERENCE_KEPT: &str = "hipMemMap keeps its reference to memory that was not mapped";
const FORGOTTEN: &str = "hipMemAddressFree has forgotten addresses that are still reserved below";

pub(super) const KNOWN: &[Known] = &[
    Known { operation: "map", function: "hsa_amd_vmem_map", versions: ALL, reason: REFERENCE_KEPT },
    Known { operation: "unmap", function: "hsa_amd_vmem_unmap", versions: SEVEN, reason: NOT_UNMAPPED },
    Known {
        operation: "return_memory",
        function: "hsa_amd_vmem_address_free",
        versions: SEVEN,
        reason: FORGOTTEN,
    },
    Known {
        operation: "region: shrink_to",
        function: "hsa_amd_vmem_unmap",
        versions: SEVEN,
        reason: NOT_UNMAPPED,
    },
    Known {
        operation: "region: unmap",
        function: "hsa_amd_vmem_unmap",
        versions: SEVEN,
        reason: NOT_UNMAPPED,
    },
    Known {
        operation: "region: suspend",
        function: "hsa_amd_vmem_unmap",
        versions: SEVEN,
        reason: NOT_UNMAPPED,
    },
    Known {
        operation: "region: suspend",
        function: "hsa_amd_vmem_address_free",
        versions: SEVEN,
        reason: FORGOTTEN,
    },
    Known { operation: "region: swap", function: "hsa_amd_vmem_map", versions: ALL, reason: REFERENCE_KEPT },
    Known {
        operation: "region: swap",
        function: "hsa_amd_vmem_unmap",
        versions: SEVEN,
        reason: NOT_UNMAPPED,
    },
    Known {
        operation: "region: grow_to",
        function: "hsa_amd_vmem_map",
        versions: ALL,
        reason: REFERENCE_KEPT,
    },
    Known {
        operation: "region: resume",
        function: "hsa_amd_vmem_map",
        versions: ALL,
        reason: REFERENCE_KEPT,
    },
];

/// Functions whose failure is not tried: HIP does not check for it, and crashes or hangs.
pub(super) const TAKEN_FOR_GRANTED: &[&str] = &[
    "hsa_amd_agents_allow_access",
    "hsa_amd_signal_async_handler",
    "hsa_amd_signal_create",
    "hsa_queue_create",
    "hsa_signal_create",
    // Objects that cannot be released leak in any case.
    "hsa_amd_memory_pool_free",
    "hsa_amd_vmem_handle_release",
];

/// The same for some operations: HIP 7 dereferences a null pointer if there is no memory for a new stream.
pub(super) const STREAMS_ALLOCATE: &str = "hsa_amd_memory_pool_allocate";
pub(super) const MAKE_STREAMS: &[&str] = &["copy stream", "region: suspend", "region: resume"];
