//! The entries. [`Quirks`](super::Quirks) uses those that have a constant. The others are handled the same way for all
//! versions, or never reached, because the core does not make the call.

use super::versions::*;
use super::{captures, host};
use gpu_vmm_core::Quirk;

pub(super) const FREE_RACES: Quirk = quirk(
    "free-races",
    (V6_1, V7_0),
    "after hipMemAddressFree a thread of HIP may still use the range; HIP then loses the next reservation at that \
     address: hipMemMap there returns success without calling HSA, the hipMemSetAccess that follows fails, and other \
     calls crash",
    "freed ranges are kept and reused by later reservations; a hint that is not free is not passed to HIP, which would return \
     another range, for ever; HipBackend::release_kept_addresses frees them",
    "simulated, 6.4.3: reserve, map, use, unmap, free crashes within tens of rounds, and about half of the runs of a \
     program that frees and reserves the same address end with a failed hipMemSetAccess; 7.2.4 does neither",
);

pub(super) const ACCESS_SUMS: Quirk = quirk(
    "access-sums",
    (V7_0, V7_12),
    "hipMemSetAccess returns hipErrorInvalidValue unless its size is the sum of the reservation's first mappings, in \
     the order of HIP's heap objects for them (a std::set of pointers): calls on mappings of different sizes fail at \
     random, a call on all mappings never does",
    "gpu-vmm tries the call; if it is refused, one call over all mappings, if that changes no other access; then \
     hsa_amd_vmem_set_access of ROCr, which HIP calls after its check",
    "ROCm/rocm-systems #2516, #2667, PR #2451, PR #6977; ggml-org/llama.cpp #18650; simulated, 7.2.4",
);

pub(super) const COPY_BY_SOURCE: Quirk = quirk(
    "copy-by-source",
    (V6_1, V7_0),
    "a copy is performed by the device that owns the source, or by the only side that is a device, whichever device is \
     current; without access that device faults and ends the process",
    "copies between devices go through the host, and each device accesses only its own memory; a copy is refused if \
     the owner has no access to the memory",
    "simulated, 6.4.3; 7.2.4 uses the current device",
);

pub(crate) const OWNER_LAST: Quirk = quirk(
    "owner-last",
    (V7_14, V7_16),
    "a mapping is corrupted when a peer is given access after the owner of the memory",
    "gpu-vmm sets the access of one device per call, the owner last; to add a peer later, it waits for the owner's \
     work, removes the owner's access, and sets it again after the peer's",
    "openxla/xla #46576; fixed by ROCm/rocm-systems PR #9908, which is in 7.16; not reproduced by gpu-vmm",
);

pub(super) const IMPORT_WANTS_POINTER: Quirk = quirk(
    "import-wants-pointer",
    (V6_1, V7_0),
    "hipMemImportFromShareableHandle reads the descriptor through the pointer; it crashes if the descriptor itself is \
     passed",
    "gpu-vmm passes a pointer",
    "ROCm/rocm-systems PR #759; simulated, 6.4.3",
);

const IMPORT_UNKNOWN_EFFECT: &str = "hipMemImportFromShareableHandle takes the descriptor or a pointer to it, depending \
                                     on the build; the wrong one crashes";

/// Builds 51831 to 59999 of 7.0 belong to 7.0.2, which takes the descriptor.
pub(super) const IMPORT_UNKNOWN: [Quirk; 2] = [
    quirk(
        "import-form-unknown",
        (V7_0, 70_051_831),
        IMPORT_UNKNOWN_EFFECT,
        "an import returns Unsupported",
        "ROCm/rocm-systems PR #759; RCCL accepts builds 51831 to 59999 of 7.0",
    ),
    quirk(
        "import-form-unknown",
        (70_060_000, V7_1),
        IMPORT_UNKNOWN_EFFECT,
        "an import returns Unsupported",
        "ROCm/rocm-systems PR #759; RCCL accepts builds 51831 to 59999 of 7.0",
    ),
];

pub(super) const IMPORT_READS_LATER: Quirk = quirk(
    "import-reads-later",
    (V7_14, V7_16),
    "HIP may read an imported descriptor only when access is set",
    "an imported handle keeps a copy of the descriptor open",
    "ROCm/rocm-systems PR #8304, #8436; fixed by PR #8440, which is in 7.16",
);

pub(super) const IMPORT_CHECKS_NOTHING: Quirk = quirk(
    "import-checks-nothing",
    (V7_14, UNFIXED),
    "hipMemImportFromShareableHandle accepts any descriptor; one that is no dma-buf fails when access is set",
    "a descriptor that is no dma-buf is refused before the call, unless the runtime's own exports are such files",
    "read in rocr-runtime of 7.14; not reproduced by gpu-vmm",
);

pub(crate) const IMPORT_IS_NOT_EXPORTED: Quirk = quirk(
    "import-is-not-exported",
    (V7_14, UNFIXED),
    "hipMemExportToShareableHandle returns hipErrorInvalidValue for imported memory",
    "an export of imported memory duplicates the descriptor that the import keeps open; if there is none, it returns \
     Unsupported",
    "read in rocr-runtime of 7.14; not reproduced by gpu-vmm",
);

pub(crate) const EXPORT_IS_KEPT: Quirk = quirk(
    "export-is-kept",
    (V7_14, V7_15),
    "hipMemExportToShareableHandle returns the descriptor that ROCr keeps for the memory, the same each time: closing \
     it breaks later exports and the access of other devices, and ROCr later closes the descriptor that has its \
     number by then",
    "a process makes its first export twice, on all versions; if both have one number, gpu-vmm duplicates the \
     descriptors of exports and does not close them",
    "ROCm/rocm-systems PR #8440: EBADF for the second export on 7.14.0; PR #7786; read in rocr-runtime of 7.14 \
     (ExportMemoryHandle)",
);

pub(super) const MEMORY_STAYS: Quirk = quirk(
    "memory-stays-until-free",
    (V7_1, V7_12),
    "on Linux, unmapped and released physical memory returns to the device only when other memory is mapped at its \
     addresses or the addresses are freed: ROCr keeps an inaccessible mapping of the memory there",
    "Reservation::return_memory frees the addresses and reserves the same ones again, and returns an error if another \
     part of the process has taken them; closing or suspending a region returns its memory, unmapping a part of it \
     does not; capabilities test this and report it",
    "ROCm/legacy-rocm-build #6021; ROCm/rocm-systems PR #4363; vllm-project/vllm #37533; fzyzcjy/torch_memory_saver #83",
);

pub(super) const RETAIN_DOES_NOT_COUNT: Quirk = quirk(
    "retain-does-not-count",
    (V6_1, V7_12),
    "hipMemRetainAllocationHandle adds no reference; a release for it frees too much, and it crashes on pointers from \
     hipMalloc",
    "PhysicalMemory::adopt returns Unsupported",
    "ROCm/rocm-systems PR #2696, #5807; simulated, both",
);

/// The fix was merged in May 2026. Whether 7.14 has it is not known.
pub(super) const RETAIN_CRASHES: Quirk = quirk(
    "retain-of-plain-crashes",
    (V7_12, V7_15),
    "hipMemRetainAllocationHandle crashes on pointers from hipMalloc, which have no handle",
    "PhysicalMemory::adopt returns Unsupported",
    "ROCm/rocm-systems PR #5807, merged in May 2026, by its date in 7.15",
);

pub(crate) const MAP_REPORTS_NOTHING: Quirk = quirk(
    "map-reports-nothing",
    (V6_1, V7_14),
    "hipMemMap returns success although nothing was mapped: too few descriptors, a failure below HIP, bad arguments",
    "the map fails unless hipMemGetAccess of the first byte succeeds; after such a failure HIP still holds a reference \
     to the handle, and its memory is not freed; gpu-vmm checks the arguments before the call",
    "simulated, both",
);

pub(crate) const UNMAP_ON_CURRENT_DEVICE: Quirk = quirk(
    "unmap-on-current-device",
    (V7_0, V7_14),
    "hipMemUnmap is ordered by the null stream of the current device",
    "the owner of the memory is made current for the call",
    "read in clr 7.0",
);

pub(crate) const IMPORT_ON_CURRENT_DEVICE: Quirk = quirk(
    "import-on-current-device",
    (V6_1, UNFIXED),
    "an imported handle belongs to the current device, and HIP reports that device",
    "the device is made current for the call; the properties come from the exporter",
    "simulated, both",
);

pub(crate) const ERROR_STICKS: Quirk = quirk(
    "error-sticks",
    (V7_0, UNFIXED),
    "hipGetLastError still reports a failed call after later calls succeeded",
    "gpu-vmm reads it once after each failure, so that it is empty for other code",
    "openxla/xla #31348",
);

pub(crate) const IMPORT_DESCRIPTOR_ZERO: Quirk = quirk(
    "import-descriptor-zero",
    (V7_1, UNFIXED),
    "descriptor 0 is treated as a null pointer",
    "HIP gets a duplicate of the descriptor, with a number above 2",
    "ROCm/rocm-systems PR #759",
);

pub(crate) const ALIGNMENT_IGNORED: Quirk = quirk(
    "alignment-ignored",
    (V6_1, UNFIXED),
    "hipMemAddressReserve checks the alignment but ignores it",
    "gpu-vmm reserves a larger range and uses its aligned part; it frees the whole range",
    "simulated, both: asked for 1 GiB, got 2 MiB",
);

pub(crate) const UNMAP_ONE_MAPPING: Quirk = quirk(
    "unmap-one-mapping",
    (V6_1, V7_0),
    "hipMemUnmap of several mappings leaks the memory of all but the first; of a part of a mapping, it forgets the \
     mapping and leaves it mapped",
    "each call unmaps one whole mapping, on all versions",
    "ROCm/ROCR-Runtime #285; simulated, 6.4.3",
);

pub(crate) const CREATE_ON_CURRENT_DEVICE: Quirk = quirk(
    "create-on-current-device",
    (V7_0, UNFIXED),
    "hipMemCreate allocates on the current device and only stores location.id",
    "the device is made current for the call, and the previous one afterwards",
    "simulated, 7.2.4: hipMemGetInfo of both devices",
);

pub(crate) const GRANULARITY_TOO_SMALL: Quirk = quirk(
    "granularity-too-small",
    (V6_1, UNFIXED),
    "HIP reports 4 KiB, which is slow and makes kernels fault on RDNA4",
    "gpu-vmm uses the larger of the reported granularity and 2 MiB",
    "ROCm/rocm-systems PR #9360, PR #1176; simulated, both: 4096",
);

/// All entries.
pub(crate) const QUIRKS: &[Quirk] = &[
    FREE_RACES,
    ACCESS_SUMS,
    COPY_BY_SOURCE,
    IMPORT_WANTS_POINTER,
    IMPORT_UNKNOWN[0],
    IMPORT_UNKNOWN[1],
    IMPORT_READS_LATER,
    IMPORT_CHECKS_NOTHING,
    IMPORT_IS_NOT_EXPORTED,
    EXPORT_IS_KEPT,
    GRANULARITY_TOO_SMALL,
    OWNER_LAST,
    CREATE_ON_CURRENT_DEVICE,
    IMPORT_ON_CURRENT_DEVICE,
    IMPORT_DESCRIPTOR_ZERO,
    quirk(
        "import-leaks",
        (V6_1, V7_0),
        "imported memory is not freed when the handle and its mappings are gone",
        "none: it is freed when the process ends",
        "ROCm/clr PR #193; simulated, 6.4.3",
    ),
    ALIGNMENT_IGNORED,
    quirk(
        "reserve-says-no-memory",
        (V6_1, V7_0),
        "hipMemAddressReserve returns hipErrorOutOfMemory for a size of 0 and for an alignment that is not a power of \
         two",
        "gpu-vmm checks both before the call",
        "simulated, 6.4.3; 7.2.4 returns hipErrorInvalidValue",
    ),
    quirk(
        "hint-is-a-wish",
        (V6_1, UNFIXED),
        "if the hinted address is taken or unaligned, hipMemAddressReserve returns another address and success",
        "the core compares the address, and frees the range if the address must be exact",
        "simulated, both",
    ),
    MAP_REPORTS_NOTHING,
    quirk(
        "map-beyond-reservation",
        (V6_1, V7_14),
        "hipMemMap across the end of a reservation crashes",
        "gpu-vmm checks the range before the call",
        "simulated, both",
    ),
    quirk(
        "map-offset",
        (V6_1, UNFIXED),
        "hipMemMap refuses an offset into the handle",
        "gpu-vmm maps whole handles",
        "simulated, both",
    ),
    quirk(
        "one-reservation",
        (V6_1, UNFIXED),
        "map, unmap, set access, copy and free work within one reservation; adjacent reservations never merge",
        "gpu-vmm splits ranges at the border of reservations",
        "intel/llvm #22671; simulated, both",
    ),
    UNMAP_ONE_MAPPING,
    quirk(
        "unmap-of-nothing",
        (V6_1, V7_0),
        "hipMemUnmap of a range without a mapping crashes",
        "gpu-vmm checks the range before the call",
        "simulated, 6.4.3",
    ),
    quirk(
        "unmap-does-not-wait",
        (V6_1, V7_14),
        "hipMemUnmap waits for some streams of some device, depending on the version",
        "gpu-vmm does not rely on it: the caller of an unmap proves that the devices have finished",
        "read in clr 6.4.1 and 7.0",
    ),
    UNMAP_ON_CURRENT_DEVICE,
    quirk(
        "unmap-waits-for-all-streams",
        (V7_14, UNFIXED),
        "hipMemUnmap waits for all streams of the memory's owner and of each device with access, and never returns while \
         queued work waits for the calling thread",
        "none: the caller of an unmap must not owe anything to queued work; until the call returns, gpu-vmm's other calls on \
         virtual memory wait for it",
        "read in clr of 7.14 (hip_vm.cpp)",
    ),
    quirk(
        "access-rounds-up",
        (V6_1, V7_0),
        "hipMemSetAccess of a part of a mapping sets the access of the whole mapping",
        "gpu-vmm sets the access of whole mappings",
        "simulated, 6.4.3",
    ),
    quirk(
        "access-unchecked",
        (V6_1, V7_0),
        "hipMemSetAccess checks neither the location type, and treats any as a device, nor the flags, which \
         hipMemGetAccess returns as they were set",
        "gpu-vmm passes devices only, and no other flags than none, read, or read and write",
        "simulated, 6.4.3; 7.2.4 refuses both",
    ),
    quirk(
        "access-change-is-a-gap",
        (V6_1, UNFIXED),
        "HIP changes an access by removing it and setting it again: a kernel that runs on that device may fault",
        "none; setting the access that a device already has changes nothing",
        "read in rocr-runtime of August 2025",
    ),
    quirk(
        "read-only-is-hardware",
        (V6_1, UNFIXED),
        "no call refuses to use memory that the device has no access to, to write to read-only memory, or to continue \
         beyond a mapping; the access faults and ends the process",
        "the core checks copies and fills; kernels are not checked",
        "simulated, both",
    ),
    quirk(
        "free-ignores-size",
        (V6_1, UNFIXED),
        "hipMemAddressFree frees the whole reservation that contains the address, whatever the size",
        "gpu-vmm frees a reservation once, with the base and size that HIP returned",
        "simulated, both",
    ),
    quirk(
        "free-while-mapped",
        (V6_1, UNFIXED),
        "hipMemAddressFree of a range with mappings fails and forgets the range; unmapping then crashes",
        "gpu-vmm does not free a reservation that has mappings, and does not retry a failed free",
        "simulated, both",
    ),
    quirk(
        "free-of-unknown",
        (V6_1, V7_14),
        "hipMemAddressFree of an address that is not reserved, or a second free, crashes",
        "gpu-vmm frees each reservation once",
        "simulated, both",
    ),
    quirk(
        "release-frees-nothing",
        (V6_2, V6_3),
        "physical memory is never freed",
        "none; capabilities test this and report it",
        "fixed in 6.3 (SWDEV-485904)",
    ),
    quirk(
        "release-frees-nothing",
        (V6_4, V6_4_2),
        "physical memory is never freed",
        "none; capabilities test this and report it",
        "ROCm/hip #3781",
    ),
    MEMORY_STAYS,
    RETAIN_DOES_NOT_COUNT,
    RETAIN_CRASHES,
    quirk(
        "hipfree-succeeds",
        (V6_1, UNFIXED),
        "hipFree of mapped memory returns success and corrupts HIP's tables",
        "gpu-vmm never calls it on such memory",
        "simulated, both",
    ),
    quirk(
        "export-to-null",
        (V6_2, V7_0),
        "hipMemExportToShareableHandle with a null pointer for the descriptor crashes",
        "gpu-vmm never passes a null pointer",
        "simulated, 6.4.3; 7.2.4 refuses it",
    ),
    quirk(
        "ipc-handle-accepted",
        (V6_1, UNFIXED),
        "hipIpcGetMemHandle accepts mapped memory and returns a handle that cannot be used",
        "gpu-vmm never calls it",
        "ROCm/clr #265, #266",
    ),
    quirk(
        "fill-opens-access",
        (V7_0, V7_14),
        "hipMemset first enables peer access, which gives the current device access to mapped memory",
        "the owner of the memory performs the fill, and has access already",
        "simulated, 7.2.4",
    ),
    ERROR_STICKS,
    quirk(
        "large-creates",
        (V6_1, V7_0),
        "single large hipMemCreate calls are reported to be unreliable, without a known cause",
        "none; other projects use handles of 2 MiB there",
        "vllm-project/vllm PR #12695",
    ),
    quirk(
        "mixed-graphics",
        (V6_3, V6_4),
        "maps fail on machines with an integrated and a discrete GPU",
        "the check after each map reports it; disabling the integrated GPU helps",
        "ROCm/ROCR-Runtime #287",
    ),
    quirk(
        "map-visible-late",
        (V7_2, UNFIXED),
        "on gfx1201, hipMemMap and hipMemSetAccess return before the mapping is visible: for about 2 ms kernels read \
         zeros there and their writes are lost, without a fault",
        "none: only waiting helps, and no fixed version is known; writing and checking a pattern detects it",
        "ROCm/rocm-systems #11693, seen with 7.2.1; ROCm/clr PR #288",
    ),
    quirk(
        "set-access-hangs-before-drm-3-64",
        (V7_14, UNFIXED),
        "hipMemSetAccess never returns on Linux with an amdgpu older than DRM 3.64: ROCr waits for a timeline point \
         that such a kernel ignores",
        "none: the call cannot be cancelled; a newer kernel helps",
        "ROCm/rocm-systems #9820; pytorch/pytorch #192259",
    ),
    quirk(
        "descriptor-for-each-handle",
        (V7_14, V7_15),
        "hipMemCreate keeps a descriptor open for each handle, and returns hipErrorOutOfMemory at the process's limit \
         of descriptors, however much memory is free",
        "none: the error contains the free memory; fewer and larger handles, or a higher limit of descriptors, help",
        "pytorch/pytorch PR #192814; ROCm/legacy-rocm-build #6661; ROCm/rocm-systems PR #7786, #10604",
    ),
    quirk(
        "scattered-copies",
        (V6_3, V6_4),
        "copies over several mappings of non-contiguous memory produced wrong data",
        "none",
        "ROCm/hip #3763",
    ),
    captures::WAITS_SPOIL_CAPTURES,
    captures::DEVICE_WAIT_SPOILS_CAPTURES,
    captures::SPOILT_CAPTURE_STAYS,
    captures::NULL_STREAM_SPOILS_CAPTURES,
    captures::RECORDED_THERE,
    captures::READS_STREAM,
    host::PINNED_BY_FIRST,
    host::ON_IMPORTS,
    host::ACCESS_APPEARS,
    host::HOST_ACCESS_NOT_REPORTED,
    host::HOST_ACCESS_LEAVES_A_HOLE,
    host::HOST_ACCESS_FAULTS,
    host::MEMORY_IS_THE_DEVICES,
    quirk(
        "range-is-one-mapping",
        (V7_0, UNFIXED),
        "hipMemGetHandleForAddressRange over several mappings, or of any length, returns success and a descriptor of \
         the first mapping's memory only",
        "gpu-vmm never calls it; it exports a descriptor of one whole mapping only, with the mapping's size, and \
         refuses ranges over several",
        "simulated, 7.2.4",
    ),
    quirk(
        "range-leaks",
        (V7_0, V7_16),
        "hipMemGetHandleForAddressRange takes a reference (hsa_amd_vmem_retain_alloc_handle) and never releases it: \
         the memory is never freed",
        "gpu-vmm never calls it; it calls the same ROCr functions directly and releases the reference",
        "simulated, 7.2.4: counts of ROCr's calls; fixed by ROCm/rocm-systems PR #10613, which is in 7.16",
    ),
];
