//! The misbehaviour of each version: one entry per behaviour, with the versions that have it and its source.
//!
//! A version is the number that `hipRuntimeGetVersion` returns. The entries are taken from public sources about HIP, not from
//! gpu-vmm-hip's list of quirks, so that the two can be compared.

const V6_1: u32 = 60_100_000;
const V6_2: u32 = 60_200_000;
const V6_3: u32 = 60_300_000;
const V6_4: u32 = 60_400_000;
const V6_4_2: u32 = 60_443_484;
const V7_0: u32 = 70_000_000;
/// The first build of 7.0.2 that takes descriptors by value, and the first above those.
const V7_0_2: u32 = 70_051_831;
const V7_0_6: u32 = 70_060_000;
const V7_1: u32 = 70_100_000;
const V7_2: u32 = 70_200_000;
const V7_12: u32 = 71_200_000;
const V7_14: u32 = 71_400_000;
const V7_15: u32 = 71_500_000;
const V7_16: u32 = 71_600_000;
const UNFIXED: u32 = u32::MAX;

macro_rules! behaviours {
    ($($(#[$doc:meta])* $name:ident: $($versions:expr),+ => $source:literal;)*) => {
        /// The misbehaviour of one version.
        #[derive(Debug)]
        pub(crate) struct Bucket {
            $($(#[$doc])* #[doc = concat!("\n\nSource: ", $source)] pub(crate) $name: bool,)*
        }

        impl Bucket {
            pub(crate) fn of(version: u32) -> Self {
                Self { $($name: $(($versions).contains(&version))||+,)* }
            }
        }
    };
}

behaviours! {
    /// A range that is freed soon after its last map or unmap is still held by a thread of HIP's: the next reservation at
    /// that address is lost in HIP's tables.
    free_races: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; not on 7.2.4";
    /// `hipMemCreate` takes the current device's memory, whatever the value of `location.id`.
    create_on_current: V7_0..UNFIXED => "clr hip_vm.cpp of 7.0 (getCurrentDevice); seen on 7.2.4";
    /// Memory cannot be shared at all.
    nothing_is_shared: V6_1..V6_2 => "ROCm 6.1's hipMemCreate; 6.2 introduced descriptors (56ebf515)";
    /// Releasing a handle frees no physical memory.
    release_frees_nothing: V6_2..V6_3, V6_4..V6_4_2 => "SWDEV-485904, fixed in 6.3; ROCm/hip #3781, fixed in 6.4.2";
    /// Physical memory is freed with the addresses, not when it is unmapped and released.
    memory_stays_until_free: V7_1..V7_12 => "ROCm/legacy-rocm-build #6021; vllm-project/vllm #37533; rocm-systems PR #4363";
    /// `hipMemMap` returns success even if it mapped nothing.
    map_reports_nothing: V6_1..V7_14 => "clr 6.4.1 rocvirtual.cpp 2785; seen on 6.4.3 and 7.2.4; changed in rocm-systems of mid 2026";
    /// `hipMemUnmap` handles one mapping: the memory of all others in the range is lost.
    unmap_knows_one: V6_1..V7_0 => "ROCm/ROCR-Runtime #285; seen on 6.4.3";
    /// `hipMemUnmap` waits for the null stream of the current device.
    unmap_waits_for_current: V7_0..V7_14 => "clr hip_vm.cpp of 7.0 (NullStream)";
    /// `hipMemSetAccess` requires its size to be the sum of the reservation's first mappings, in an order of HIP's own.
    access_sums: V7_0..V7_12 => "rocm-systems #2516, #2667, PR #6977; fixed by PR #2451";
    /// The host can get access.
    host_access: V7_2..UNFIXED => "rocm-systems PR #1606, #1620";
    /// Memory of the host, and of its nodes, can be created.
    host_memory: V7_15..UNFIXED => "hip-tests hipMemCreateHostNuma.cc; rocm-systems of mid 2026 (hostVmemAlloc)";
    /// A peer that gets access after the memory's own device corrupts the mapping.
    peer_after_owner_corrupts: V7_14..V7_16 => "openxla/xla #46576; rocm-systems PR #9908, by its date in 7.16";
    /// The device of the source does a copy, or the device of the only side in device memory.
    copy_by_source: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; 7.2.4 takes the current device";
    /// Device 0 does copies between mapped and page-locked memory.
    pinned_by_first: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; 7.2.4 takes the stream's device";
    /// `hipMemImportFromShareableHandle` reads the descriptor through a pointer.
    import_by_pointer: V6_1..V7_0_2, V7_0_6..V7_1 => "rocm-systems PR #759; RCCL takes 7.0 from build 51831 below 60000 for the new form";
    /// An imported descriptor is read, by its number, when access is set.
    import_reads_later: V7_14..V7_16 => "rocm-systems PR #8304, #8436, #8440";
    /// An import succeeds with any descriptor.
    import_checks_nothing: V7_14..UNFIXED => "rocr-runtime of 7.14 (Runtime::VMemoryImportShareableHandle)";
    /// The host's pages are not replaced when memory is unmapped that the host had access to.
    host_access_leaves_a_hole: V7_2..V7_16 => "rocr-runtime of August 2025 (RemoveAccess)";
    /// Every export returns the descriptor that the runtime keeps for the memory and closes with it.
    export_is_kept: V7_14..V7_15 => "rocr-runtime of 7.14 (KfdDriver::ExportMemoryHandle); rocm-systems PR #7786, #8440";
    /// Imported memory cannot be exported.
    import_is_not_exported: V7_14..UNFIXED => "rocr-runtime of 7.14 (Runtime::VMemoryExportShareableHandle)";
    /// Imported memory is never freed.
    import_leaks: V6_1..V7_0 => "ROCm/clr PR #193";
    /// `hipMemRetainAllocationHandle` adds no reference.
    retain_does_not_count: V6_1..V7_12 => "clr 6.4.1 hip_vm.cpp 303; rocm-systems PR #2696";
    /// `hipMemRetainAllocationHandle` follows a null pointer for a plain allocation.
    retain_of_plain_crashes: V6_1..V7_15 => "rocm-systems PR #5807";
    /// `hipGetLastError` reports a failure even after calls that succeeded.
    errors_stick: V7_0..UNFIXED => "openxla/xla #31348";
}

#[cfg(test)]
#[test]
fn builds_of_7_0_import_two_ways() {
    let by_pointer = |version| Bucket::of(version).import_by_pointer;
    assert!(by_pointer(70_051_830) && !by_pointer(70_051_831));
    assert!(!by_pointer(70_059_999) && by_pointer(70_060_000) && !by_pointer(V7_1));
}
