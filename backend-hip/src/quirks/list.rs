//! The entries. Those with a name of their own are what [`Quirks`](super::Quirks) is made of; the rest is handled in one
//! way for all versions, or never reached, since the core's books exclude the call.

use super::versions::*;
use super::{captures, host};
use gpu_vmm_core::Quirk;

pub(super) const FREE_RACES: Quirk = quirk(
    "free-races",
    (V6_1, V7_0),
    "after hipMemAddressFree a thread of HIP's may still hold the range; the next reservation at that address is lost \
     in HIP's tables: hipMemMap there returns success without any call of HSA's, the hipMemSetAccess that follows fails, \
     and other calls crash",
    "freed ranges are kept and given to later reservations; HipBackend::release_kept_addresses frees them",
    "simulated, 6.4.3: reserve, map, use, unmap, free crashes within some tens of rounds, and about half of the runs of a \
     program that frees and reserves the same address end with a failed hipMemSetAccess; 7.2.4 does neither",
);

pub(super) const ACCESS_SUMS: Quirk = quirk(
    "access-sums",
    (V7_0, V7_12),
    "hipMemSetAccess answers hipErrorInvalidValue unless its size is the sum of the reservation's first mappings, in the \
     order in which HIP's objects for them lie on the heap (a std::set of pointers): mappings of different sizes fail by \
     chance, all mappings together never do",
    "tried first; then one call over all that is mapped where that changes nothing else; then ROCr's \
     hsa_amd_vmem_set_access, which is what HIP calls behind the check",
    "ROCm/rocm-systems #2516, #2667, PR #2451, PR #6977; ggml-org/llama.cpp #18650; simulated, 7.2.4",
);

pub(super) const COPY_BY_SOURCE: Quirk = quirk(
    "copy-by-source",
    (V6_1, V7_0),
    "a copy is done by the device whose memory is the source, or the one side of it that is a device's, whichever device \
     is current; without access it faults and ends the process",
    "between devices it is copied through the host, each device working on its own memory; a copy that the memory's own \
     device has no access for is refused",
    "simulated, 6.4.3; 7.2.4 takes the current device",
);

pub(crate) const OWNER_LAST: Quirk = quirk(
    "owner-last",
    (V7_14, UNFIXED),
    "a mapping is corrupted when a peer is given access after the owner of the memory",
    "one device a call, the owner last; for a peer that comes later the owner's work is waited for, its access taken, and \
     given again after the peer's",
    "openxla/xla #46576; ROCm/rocm-systems PR #9908; never seen here",
);

pub(super) const IMPORT_WANTS_POINTER: Quirk = quirk(
    "import-wants-pointer",
    (V6_1, V7_0),
    "hipMemImportFromShareableHandle reads the descriptor through the pointer; given the descriptor itself, it crashes",
    "a pointer is given",
    "ROCm/rocm-systems PR #759; simulated, 6.4.3",
);

const IMPORT_UNKNOWN_EFFECT: &str = "hipMemImportFromShareableHandle wants the descriptor or a pointer to it, by build; the \
                                     wrong one crashes";

/// Builds 51831 to 59999 of 7.0 are those of 7.0.2 that take the descriptor.
pub(super) const IMPORT_UNKNOWN: [Quirk; 2] = [
    quirk(
        "import-form-unknown",
        (V7_0, 70_051_831),
        IMPORT_UNKNOWN_EFFECT,
        "refused as Unsupported",
        "ROCm/rocm-systems PR #759; RCCL accepts builds 51831 to 59999 of 7.0",
    ),
    quirk(
        "import-form-unknown",
        (70_060_000, V7_1),
        IMPORT_UNKNOWN_EFFECT,
        "refused as Unsupported",
        "ROCm/rocm-systems PR #759; RCCL accepts builds 51831 to 59999 of 7.0",
    ),
];

pub(super) const IMPORT_READS_LATER: Quirk = quirk(
    "import-reads-later",
    (V7_14, UNFIXED),
    "an imported descriptor may be read only when access is set",
    "an imported handle keeps a copy of the descriptor open",
    "ROCm/rocm-systems PR #8304, #8436",
);

pub(super) const MEMORY_STAYS: Quirk = quirk(
    "memory-stays-until-free",
    (V7_1, V7_12),
    "on Linux, physical memory that was unmapped and released comes back only when something else is mapped at its \
     addresses or they are freed: ROCr leaves a mapping of the memory there, which nobody may touch",
    "Reservation::return_memory frees the addresses and reserves the same ones again, and tells where somebody else has \
     got them; a region's memory comes back when it is closed or suspended, not when some of it is unmapped; \
     capabilities try it and say so",
    "ROCm/legacy-rocm-build #6021; ROCm/rocm-systems PR #4363; vllm-project/vllm #37533; fzyzcjy/torch_memory_saver #83",
);

pub(crate) const MAP_REPORTS_NOTHING: Quirk = quirk(
    "map-reports-nothing",
    (V6_1, V7_14),
    "hipMemMap answers success when nothing was mapped: too few descriptors, a failure below, bad arguments",
    "hipMemGetAccess on the first byte must succeed, or the map failed; HIP then still holds a reference to the handle, whose \
     memory stays; bad arguments are excluded before the call",
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
    "an imported handle is the current device's, and says so",
    "the device is made current for the call; properties come from who exported",
    "simulated, both",
);

pub(crate) const ERROR_STICKS: Quirk = quirk(
    "error-sticks",
    (V7_0, UNFIXED),
    "hipGetLastError tells of a failed call even after others succeeded",
    "it is read once after each failure, so that it is empty for others",
    "openxla/xla #31348",
);

pub(crate) const IMPORT_DESCRIPTOR_ZERO: Quirk = quirk(
    "import-descriptor-zero",
    (V7_1, UNFIXED),
    "descriptor 0 is taken for a null pointer",
    "HIP is given a copy of the descriptor, which is above 2",
    "ROCm/rocm-systems PR #759",
);

pub(crate) const ALIGNMENT_IGNORED: Quirk = quirk(
    "alignment-ignored",
    (V6_1, UNFIXED),
    "hipMemAddressReserve checks the alignment and does not use it",
    "a larger range is reserved and the aligned part of it used; the whole is freed",
    "simulated, both: asked for 1 GiB, got 2 MiB",
);

pub(crate) const UNMAP_ONE_MAPPING: Quirk = quirk(
    "unmap-one-mapping",
    (V6_1, V7_0),
    "hipMemUnmap of several mappings leaks the memory of all but the first; of a part of one, it forgets the mapping \
     and leaves it",
    "one whole mapping a call, on all versions",
    "ROCm/ROCR-Runtime #285; simulated, 6.4.3",
);

pub(crate) const CREATE_ON_CURRENT_DEVICE: Quirk = quirk(
    "create-on-current-device",
    (V7_0, UNFIXED),
    "hipMemCreate takes the memory of the current device and only writes down location.id",
    "the device is made current for the call, and the former one again after it",
    "simulated, 7.2.4: hipMemGetInfo of both devices",
);

pub(crate) const GRANULARITY_TOO_SMALL: Quirk = quirk(
    "granularity-too-small",
    (V6_1, UNFIXED),
    "4 KiB are reported, which is slow, and with which kernels fault on RDNA4",
    "granularity is what HIP reports or 2 MiB, whichever is more",
    "ROCm/rocm-systems PR #9360, PR #1176; simulated, both: 4096",
);

/// All entries.
pub(crate) const LIST: &[Quirk] = &[
    FREE_RACES,
    ACCESS_SUMS,
    COPY_BY_SOURCE,
    IMPORT_WANTS_POINTER,
    IMPORT_UNKNOWN[0],
    IMPORT_UNKNOWN[1],
    IMPORT_READS_LATER,
    GRANULARITY_TOO_SMALL,
    OWNER_LAST,
    CREATE_ON_CURRENT_DEVICE,
    IMPORT_ON_CURRENT_DEVICE,
    IMPORT_DESCRIPTOR_ZERO,
    quirk(
        "import-leaks",
        (V6_1, V7_0),
        "memory that was imported is not freed when the handle and its mappings are gone",
        "none: the process that ends frees it",
        "ROCm/clr PR #193; simulated, 6.4.3",
    ),
    ALIGNMENT_IGNORED,
    quirk(
        "reserve-says-no-memory",
        (V6_1, V7_0),
        "hipMemAddressReserve answers hipErrorOutOfMemory to a size of 0 and to an alignment that is no power of two",
        "excluded before the call",
        "simulated, 6.4.3; 7.2.4 answers hipErrorInvalidValue",
    ),
    quirk(
        "hint-is-a-wish",
        (V6_1, UNFIXED),
        "with a hint that is taken or unaligned hipMemAddressReserve gives another address and success",
        "the address is compared by the caller, and given back where it had to be exact",
        "simulated, both",
    ),
    MAP_REPORTS_NOTHING,
    quirk(
        "map-beyond-reservation",
        (V6_1, V7_14),
        "hipMemMap across the end of a reservation crashes",
        "excluded before the call",
        "simulated, both",
    ),
    quirk(
        "map-offset",
        (V6_1, UNFIXED),
        "an offset into the handle is refused",
        "whole handles are mapped",
        "simulated, both",
    ),
    quirk(
        "one-reservation",
        (V6_1, UNFIXED),
        "map, unmap, set access, copies and free work within one reservation; adjacent ones never merge",
        "excluded before the call: ranges are cut at the border",
        "intel/llvm #22671; simulated, both",
    ),
    UNMAP_ONE_MAPPING,
    quirk(
        "unmap-of-nothing",
        (V6_1, V7_0),
        "hipMemUnmap where nothing is mapped crashes",
        "excluded before the call",
        "simulated, 6.4.3",
    ),
    quirk(
        "unmap-does-not-wait",
        (V6_1, V7_16),
        "hipMemUnmap waits for some streams of some device, by version",
        "excluded before the call: whoever unmaps proves that devices are done",
        "read in clr 6.4.1 and 7.0",
    ),
    UNMAP_ON_CURRENT_DEVICE,
    quirk(
        "access-rounds-up",
        (V6_1, V7_0),
        "hipMemSetAccess on a part of a mapping sets all of it",
        "excluded before the call: whole mappings are set",
        "simulated, 6.4.3",
    ),
    quirk(
        "access-unchecked",
        (V6_1, V7_0),
        "hipMemSetAccess looks neither at the type of the place, and takes any for a device, nor at the flags, which are \
         read back as they were set",
        "never called so: access is a device's, and none, read, or read and write",
        "simulated, 6.4.3; 7.2.4 refuses both",
    ),
    quirk(
        "access-change-is-a-gap",
        (V6_1, UNFIXED),
        "a changed access is taken away and given anew: a kernel that runs on that device may fault",
        "none; giving the access that is there changes nothing",
        "read in rocr-runtime of August 2025",
    ),
    quirk(
        "read-only-is-hardware",
        (V6_1, UNFIXED),
        "no call refuses to use memory that the device has no access to, to write to read-only memory, or to go on behind \
         a mapping; the access faults and ends the process",
        "copies and fills are checked against the core's books; kernels are not",
        "simulated, both",
    ),
    quirk(
        "free-ignores-size",
        (V6_1, UNFIXED),
        "hipMemAddressFree frees the whole reservation that holds the address, whatever the size",
        "a reservation is freed once, with the base and size that HIP gave",
        "simulated, both",
    ),
    quirk(
        "free-while-mapped",
        (V6_1, UNFIXED),
        "hipMemAddressFree while something is mapped fails and forgets the range; unmapping then crashes",
        "a reservation with mappings left is not freed, and a free that fails is not tried again",
        "simulated, both",
    ),
    quirk(
        "free-of-unknown",
        (V6_1, V7_14),
        "hipMemAddressFree of an address that is not reserved, or a second time, crashes",
        "excluded before the call",
        "simulated, both",
    ),
    quirk(
        "release-frees-nothing",
        (V6_2, V6_3),
        "physical memory is never given back",
        "none; capabilities try it and say so",
        "fixed in 6.3 (SWDEV-485904)",
    ),
    quirk(
        "release-frees-nothing",
        (V6_4, V6_4_2),
        "physical memory is never given back",
        "none; capabilities try it and say so",
        "ROCm/hip #3781",
    ),
    MEMORY_STAYS,
    quirk(
        "retain-does-not-count",
        (V6_1, V7_12),
        "hipMemRetainAllocationHandle adds no reference; releasing for it frees too much, and hipMalloc's pointers crash it",
        "never called",
        "ROCm/rocm-systems PR #2696, #5807; simulated, both",
    ),
    quirk(
        "hipfree-succeeds",
        (V6_1, UNFIXED),
        "hipFree on mapped memory answers success and ruins the tables",
        "never called on such memory",
        "simulated, both",
    ),
    quirk(
        "export-to-null",
        (V6_2, V7_0),
        "hipMemExportToShareableHandle with a null pointer for the descriptor crashes",
        "never called so",
        "simulated, 6.4.3; 7.2.4 refuses it",
    ),
    quirk(
        "ipc-handle-accepted",
        (V6_1, UNFIXED),
        "hipIpcGetMemHandle takes mapped memory and gives a handle that cannot be used",
        "never called",
        "ROCm/clr #265, #266",
    ),
    quirk(
        "fill-opens-access",
        (V7_0, V7_14),
        "hipMemset asks for peer access first, which gives the current device access to mapped memory",
        "fills are the owner's, who has it",
        "simulated, 7.2.4",
    ),
    ERROR_STICKS,
    quirk(
        "large-creates",
        (V6_1, V7_0),
        "single large hipMemCreate calls are told to be unreliable, without a known cause",
        "none; handles of 2 MiB are what others use there",
        "vllm-project/vllm PR #12695",
    ),
    quirk(
        "mixed-graphics",
        (V6_3, V6_4),
        "maps fail on machines with an integrated and a separate GPU",
        "told by the map that is verified; switching the integrated GPU off helps",
        "ROCm/ROCR-Runtime #287",
    ),
    quirk(
        "map-visible-late",
        (V7_2, UNFIXED),
        "on gfx1201, hipMemMap and hipMemSetAccess return before the mapping is visible: for about 2 ms a kernel reads zeros \
         there, and what it writes is lost, without a fault",
        "none: only time helps, and no version without it is known; a pattern that is written and checked sees it",
        "ROCm/rocm-systems #11693, seen with 7.2.1; ROCm/clr PR #288",
    ),
    quirk(
        "set-access-hangs-before-drm-3-64",
        (V7_14, UNFIXED),
        "hipMemSetAccess never returns on Linux whose amdgpu is older than DRM 3.64: ROCr waits for a point of a timeline \
         that such a kernel ignores",
        "none: the call cannot be taken back; a newer kernel helps",
        "ROCm/rocm-systems #9820; pytorch/pytorch #192259",
    ),
    quirk(
        "descriptor-for-each-handle",
        (V7_14, V7_15),
        "hipMemCreate keeps a descriptor open for each handle, and answers hipErrorOutOfMemory when the process may open no \
         more, however much memory is free",
        "none: the error has how much memory is free; fewer and larger handles, or a higher limit of descriptors, help",
        "pytorch/pytorch PR #192814; ROCm/legacy-rocm-build #6661; ROCm/rocm-systems PR #7786",
    ),
    quirk(
        "scattered-copies",
        (V6_3, V6_4),
        "a copy over several mappings of memory that is not contiguous gave wrong data",
        "none",
        "ROCm/hip #3763",
    ),
    captures::WAITS_SPOIL_CAPTURES,
    captures::DEVICE_WAIT_SPOILS_CAPTURES,
    captures::SPOILT_CAPTURE_STAYS,
    captures::NULL_STREAM_SPOILS_CAPTURES,
    captures::RECORDED_THERE,
    host::PINNED_BY_FIRST,
    host::ON_IMPORTS,
    host::ACCESS_APPEARS,
    host::HOST_ACCESS_UNTOLD,
    host::HOST_ACCESS_LEAVES_A_HOLE,
    host::MEMORY_IS_THE_DEVICES,
    quirk(
        "range-is-one-mapping",
        (V7_0, UNFIXED),
        "hipMemGetHandleForAddressRange over several mappings, or of any length at all, answers success with a \
         descriptor of the first mapping's memory alone",
        "never called; a descriptor is of one whole mapping and must have its size, and of several it is refused",
        "simulated, 7.2.4",
    ),
    quirk(
        "range-leaks",
        (V7_0, UNFIXED),
        "hipMemGetHandleForAddressRange takes a reference (hsa_amd_vmem_retain_alloc_handle) that it never gives back: \
         the memory is lost",
        "never called; what it calls of ROCr is called directly, and the reference given back",
        "simulated, 7.2.4: counts of ROCr's calls",
    ),
];
