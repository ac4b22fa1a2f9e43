//! Which version misbehaves how: one entry a behaviour, with the versions that have it and where that is written.
//!
//! A version is the number that `hipRuntimeGetVersion` answers. The entries are taken from what is public about HIP, not
//! from gpu-vmm-hip's list of quirks, so that the one can be held against the other.

/// A half-open range of version numbers.
type Versions = (u32, u32);

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
const EVER: u32 = u32::MAX;

macro_rules! behaviours {
    ($($(#[$doc:meta])* $name:ident: $($from:ident .. $below:ident),+ => $source:literal;)*) => {
        /// How one version misbehaves.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Bucket {
            $($(#[$doc])* pub(crate) $name: bool,)*
        }

        impl Bucket {
            pub(crate) const fn of(version: u32) -> Self {
                const fn is_in(version: u32, ranges: &[Versions]) -> bool {
                    let mut index = 0;
                    while index < ranges.len() {
                        if ranges[index].0 <= version && version < ranges[index].1 {
                            return true;
                        }
                        index += 1;
                    }
                    false
                }
                Self { $($name: is_in(version, &[$(($from, $below)),+]),)* }
            }
        }

        /// Name and source of each behaviour.
        #[cfg(test)]
        const SOURCES: &[(&str, &str)] = &[$((stringify!($name), $source)),*];
    };
}

behaviours! {
    /// `hipMemAddressReserve` answers a wrong size or alignment with `hipErrorOutOfMemory`, not `hipErrorInvalidValue`.
    reserve_calls_bad_size_no_memory: V6_1..V7_0 => "clr 6.4.1 hip_vm.cpp 54-81; hip-tests hipMemAddressReserve.cc, before and after 7.0";
    /// Freed soon after its last map or unmap, a range is still held by a thread of HIP's: the next reservation at that
    /// address is lost in HIP's tables.
    free_races: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; not on 7.2.4";
    /// `hipMemAddressFree` of a range in which something is mapped answers success, not `hipErrorUnknown`; it forgets the
    /// range in all versions.
    free_while_mapped_succeeds: V6_1..V6_3 => "SWDEV-485904, in 6.3";
    /// `hipMemAddressFree` of what is not reserved crashes.
    free_of_unknown_crashes: V6_1..V7_14 => "clr 6.4.1 hip_vm.cpp 36-52; seen on 6.4.3 and 7.2.4; checked in rocm-systems of 2026";
    /// `hipMemCreate` answers a device that is not there with `hipErrorInvalidValue`, not `hipErrorInvalidDevice`.
    create_calls_bad_device_bad_value: V6_1..V7_0 => "hip-tests hipMemCreate.cc, before and after 7.0";
    /// `hipMemCreate` takes the current device's memory, whatever `location.id` says.
    create_on_current: V7_0..EVER => "clr hip_vm.cpp of 7.0 (getCurrentDevice); seen on 7.2.4";
    /// Memory cannot be shared at all.
    nothing_is_shared: V6_1..V6_2 => "ROCm 6.1's hipMemCreate; descriptors came with 6.2 (56ebf515)";
    /// Releasing a handle gives no physical memory back.
    release_frees_nothing: V6_2..V6_3, V6_4..V6_4_2 => "SWDEV-485904, fixed in 6.3; ROCm/hip #3781, fixed in 6.4.2";
    /// Physical memory comes back when the addresses are freed, not when it is unmapped and released.
    memory_stays_until_free: V7_1..V7_12 => "ROCm/legacy-rocm-build #6021; vllm-project/vllm #37533; rocm-systems PR #4363";
    /// The recommended granularity is 2 MiB; the least one is 4 KiB in all versions.
    recommends_2_mib: V7_14..EVER => "rocm-systems PR #1176";
    /// `hipMemMap` answers success whether it mapped or not, and crashes across the end of a reservation.
    map_reports_nothing: V6_1..V7_14 => "clr 6.4.1 rocvirtual.cpp 2785; seen on 6.4.3 and 7.2.4; changed in rocm-systems of mid 2026";
    /// `hipMemUnmap` where nothing is mapped crashes.
    unmap_of_nothing_crashes: V6_1..V7_0 => "clr 6.4.1 hip_vm.cpp 349-380; seen on 6.4.3";
    /// `hipMemUnmap` knows one mapping: the memory of all others in the range is lost, and of a part it forgets the whole.
    unmap_knows_one: V6_1..V7_0 => "ROCm/ROCR-Runtime #285; seen on 6.4.3";
    /// `hipMemUnmap` waits for the device whose memory it is.
    unmap_waits_for_owner: V6_1..V7_0 => "clr 6.4.1 hip_internal.hpp 555";
    /// `hipMemUnmap` waits for the null stream of the current device.
    unmap_waits_for_current: V7_0..V7_14 => "clr hip_vm.cpp of 7.0 (NullStream)";
    /// `hipMemUnmap` waits for all that may use the memory.
    unmap_waits_for_all: V7_16..EVER => "rocm-systems of September 2026 (SyncAllStreams)";
    /// `hipMemSetAccess` looks at neither type of location nor flags.
    access_is_unchecked: V6_1..V7_0 => "clr 6.4.1 hip_vm.cpp 326-347";
    /// `hipMemSetAccess` on the first part of a mapping sets all of it.
    access_rounds_up: V6_1..V7_0 => "rocr-runtime of August 2025, runtime.cpp 3518-3565; seen on 6.4.3";
    /// `hipMemSetAccess` wants its size to be the sum of the reservation's first mappings, in an order of HIP's own.
    access_sums: V7_0..V7_12 => "rocm-systems #2516, #2667, PR #6977; fixed by PR #2451";
    /// The host can be given access.
    host_access: V7_2..EVER => "rocm-systems PR #1606, #1620";
    /// `hipMemCreate` takes the device's memory for the host's.
    host_memory_is_the_devices: V7_0..V7_15 => "seen on 7.2.4 over a simulated HSA runtime (hipMemGetInfo)";
    /// There is memory of the host, and of its nodes.
    host_memory: V7_15..EVER => "hip-tests hipMemCreateHostNuma.cc; rocm-systems of mid 2026 (hostVmemAlloc)";
    /// There is no `hipMemGetHandleForAddressRange`.
    no_range_handles: V6_1..V7_0 => "hip_hcc.map.in, node hip_6.5; missing in 6.4.3";
    /// The host cannot be given access to imported memory.
    no_host_access_on_imports: V7_15..V7_16 => "rocm-systems #11185, PR #10879";
    /// A peer that is given access after the memory's own device corrupts the mapping.
    peer_after_owner_corrupts: V7_14..EVER => "openxla/xla #46576; rocm-systems PR #9908, not known in which release";
    /// A copy is done by the device whose memory is the source, or the one side that is a device's.
    copy_by_source: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; 7.2.4 takes the current device";
    /// A copy between mapped and page-locked memory is done by device 0.
    pinned_by_first: V6_1..V7_0 => "seen on 6.4.3 over a simulated HSA runtime; 7.2.4 takes the stream's device";
    /// `hipMemset` gives the current device access to what it is to fill.
    fill_opens_access: V7_0..V7_14 => "seen on 7.2.4 over a simulated HSA runtime";
    /// `hipMemImportFromShareableHandle` reads the descriptor through a pointer.
    import_by_pointer: V6_1..V7_0_2, V7_0_6..V7_1 => "rocm-systems PR #759; RCCL takes 7.0 from build 51831 below 60000 for the new form";
    /// `hipMemExportToShareableHandle` writes through a null pointer.
    export_to_null_crashes: V6_2..V7_0 => "clr 6.4.1 hip_vm.cpp; seen on 6.4.3";
    /// An imported descriptor is read when access is set, by its number.
    import_reads_later: V7_14..EVER => "rocm-systems PR #8304, #8436";
    /// Imported memory is never given back.
    import_leaks: V6_1..V7_0 => "ROCm/clr PR #193";
    /// Exporting what was imported fails.
    no_export_of_imports: V7_15..EVER => "rocr-runtime of June 2026 (MemoryHandle)";
    /// `hipMemRetainAllocationHandle` adds a reference.
    retain_counts: V7_12..EVER => "rocm-systems PR #2696";
    /// `hipGetLastError` tells of a failure even after calls that succeeded.
    errors_stick: V7_0..EVER => "openxla/xla #31348";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_behave_as_written() {
        let (six_one, six_two, six_four) = (Bucket::of(V6_1), Bucket::of(60_241_134), Bucket::of(60_443_483));
        assert!(
            six_one.nothing_is_shared && !six_one.release_frees_nothing && six_one.free_while_mapped_succeeds
        );
        assert!(six_two.release_frees_nothing && six_two.import_by_pointer && !six_two.nothing_is_shared);
        assert!(six_four.release_frees_nothing && !Bucket::of(V6_4_2).release_frees_nothing);
        let (seven, one, twelve) = (Bucket::of(V7_0), Bucket::of(V7_1), Bucket::of(71_260_540));
        assert!(seven.access_sums && seven.create_on_current && !seven.memory_stays_until_free);
        assert!(one.access_sums && one.memory_stays_until_free && !one.import_by_pointer);
        assert!(twelve.map_reports_nothing && !twelve.access_sums && !twelve.memory_stays_until_free);
        let (fourteen, fifteen) = (Bucket::of(V7_14), Bucket::of(V7_15));
        assert!(
            fourteen.peer_after_owner_corrupts
                && !fourteen.map_reports_nothing
                && !fourteen.no_export_of_imports
        );
        assert!(fifteen.no_host_access_on_imports && fifteen.import_reads_later);
    }

    #[test]
    fn builds_of_7_0_import_in_two_ways() {
        let by_pointer = |version| Bucket::of(version).import_by_pointer;
        assert!(by_pointer(70_051_830) && !by_pointer(70_051_831));
        assert!(!by_pointer(70_059_999) && by_pointer(70_060_000) && !by_pointer(V7_1));
    }

    #[test]
    fn every_entry_has_a_source() {
        assert!(SOURCES.iter().all(|(_, source)| !source.is_empty()));
        assert!(SOURCES.len() > 25);
    }
}
