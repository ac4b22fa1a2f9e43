//! The differences between HIP's documentation and its versions, one entry per quirk, and the workarounds that a
//! version needs. Only this module compares versions.
//!
//! A version is the number that `hipRuntimeGetVersion` returns: major * 10^7 + minor * 10^5 + build. Builds are ordered
//! only within one minor version. "Simulated" in the evidence means AMD's own `libamdhip64` 6.4.3 or 7.2.4 on a
//! simulated HSA runtime: HIP's part is AMD's machine code, everything below it is simulated.

mod captures;
mod host;
mod list;
mod switch;
mod versions;

#[cfg(feature = "testkit")]
pub(crate) use captures::SPOILT_CAPTURE_STAYS;
pub(crate) use captures::{DEVICE_WAIT_SPOILS_CAPTURES, NULL_STREAM_SPOILS_CAPTURES, WAITS_SPOIL_CAPTURES};
use gpu_vmm_core::Quirk;
#[cfg(unix)]
pub(crate) use host::HOST_ACCESS_FAULTS;
pub(crate) use host::{HOST_ACCESS_LEAVES_A_HOLE, HOST_ACCESS_NOT_REPORTED};
pub(crate) use list::QUIRKS;
use list::{
    ACCESS_SUMS, COPY_BY_SOURCE, FREE_RACES, IMPORT_CHECKS_NOTHING, IMPORT_READS_LATER, IMPORT_UNKNOWN,
    IMPORT_WANTS_POINTER, MEMORY_STAYS, RETAIN_CRASHES, RETAIN_DOES_NOT_COUNT,
};
pub(crate) use list::{
    ALIGNMENT_IGNORED, CREATE_ON_CURRENT_DEVICE, ERROR_STICKS, GRANULARITY_TOO_SMALL,
    IMPORT_ON_CURRENT_DEVICE, MAP_REPORTS_NOTHING, OWNER_LAST, UNMAP_ON_CURRENT_DEVICE, UNMAP_ONE_MAPPING,
};
#[cfg(unix)]
pub(crate) use list::{EXPORT_IS_KEPT, IMPORT_DESCRIPTOR_ZERO, IMPORT_IS_NOT_EXPORTED};
pub(crate) use switch::workaround_enabled;

/// The first version whose virtual memory works on Linux.
pub(crate) const OLDEST: u32 = 60_100_000;

/// The releases of ROCm that have another number than their HIP, by HIP's minor version 7.N. `docs/guide/support.md` has the
/// same table.
const ROCM: [(u32, &str); 3] = [(15, "10.0"), (16, "10.1"), (17, "10.2")];

/// Formats a version as major, minor and build, with the release of ROCm if that has another number.
pub(crate) fn readable(version: u32) -> String {
    let (major, minor, build) = (version / 10_000_000, version / 100_000 % 100, version % 100_000);
    let rocm = ROCM.iter().find(|(of, _)| (major, minor) == (7, *of));
    let rocm = rocm.map(|(_, release)| format!(" (ROCm {release})")).unwrap_or_default();
    format!("{major}.{minor}.{build}{rocm}")
}

/// How `hipMemImportFromShareableHandle` interprets its second argument, which has a pointer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportForm {
    /// As the address of the descriptor.
    Pointer,
    /// As the descriptor itself.
    Value,
    /// As one of the two; the wrong one crashes.
    Unknown,
}

/// The workarounds that a version needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quirks {
    /// Freed addresses are kept for later reservations: [`FREE_RACES`].
    pub(crate) free_races: bool,
    /// `hipMemSetAccess` may refuse a valid call: [`ACCESS_SUMS`].
    pub(crate) access_sums: bool,
    /// Copies from another device's memory go through the host: [`COPY_BY_SOURCE`].
    pub(crate) copy_by_source: bool,
    /// Copies between page-locked memory and another device's memory go through memory that is not locked:
    /// [`host::PINNED_BY_FIRST`].
    pub(crate) pinned_by_first: bool,
    /// Events are not queried while their stream captures: [`captures::RECORDED_THERE`].
    pub(crate) events_spoil_captures: bool,
    /// Events whose stream was destroyed are not queried: [`captures::READS_STREAM`].
    pub(crate) event_reads_its_stream: bool,
    /// How a descriptor is passed: [`IMPORT_WANTS_POINTER`], [`IMPORT_UNKNOWN`].
    pub(crate) import_form: ImportForm,
    /// The descriptor stays open after the import: [`IMPORT_READS_LATER`], [`list::IMPORT_IS_NOT_EXPORTED`].
    pub(crate) import_stays_open: bool,
    /// Descriptors that are no dma-bufs are refused before the import: [`IMPORT_CHECKS_NOTHING`].
    #[cfg_attr(not(unix), allow(dead_code))] // descriptors
    pub(crate) import_checks_nothing: bool,
    /// Exports return a descriptor that the runtime keeps, if trying does not show it: [`list::EXPORT_IS_KEPT`].
    #[cfg_attr(not(unix), allow(dead_code))] // descriptors
    pub(crate) export_is_kept: bool,
    /// Released memory returns to the device only when its addresses are freed: [`MEMORY_STAYS`].
    pub(crate) memory_stays: bool,
    /// A peer must not be given access after the owner: [`OWNER_LAST`].
    pub(crate) owner_last: bool,
    /// Memory is not looked up by its address: [`RETAIN_DOES_NOT_COUNT`], [`RETAIN_CRASHES`].
    pub(crate) retain_is_unsafe: bool,
    /// The host cannot be given access: [`host::ACCESS_APPEARS`].
    pub(crate) no_host_access: bool,
    /// Host memory does not exist: [`host::MEMORY_IS_THE_DEVICES`].
    pub(crate) no_host_memory: bool,
}

impl Quirks {
    pub(crate) fn of(version: u32) -> Self {
        let has = |quirk: &Quirk| quirk.is_in(version) && workaround_enabled(quirk);
        let import_form = if has(&IMPORT_WANTS_POINTER) {
            ImportForm::Pointer
        } else if IMPORT_UNKNOWN.iter().any(has) {
            ImportForm::Unknown
        } else {
            ImportForm::Value
        };
        Self {
            free_races: has(&FREE_RACES),
            access_sums: has(&ACCESS_SUMS),
            copy_by_source: has(&COPY_BY_SOURCE),
            pinned_by_first: has(&host::PINNED_BY_FIRST),
            events_spoil_captures: has(&captures::RECORDED_THERE),
            event_reads_its_stream: has(&captures::READS_STREAM),
            import_form,
            // Versions with both quirks need it for the first one, and lose the second one's remedy with it.
            import_stays_open: if IMPORT_READS_LATER.is_in(version) {
                has(&IMPORT_READS_LATER)
            } else {
                has(&list::IMPORT_IS_NOT_EXPORTED)
            },
            import_checks_nothing: has(&IMPORT_CHECKS_NOTHING),
            export_is_kept: has(&list::EXPORT_IS_KEPT),
            // On Windows the code below HIP is different.
            memory_stays: cfg!(unix) && has(&MEMORY_STAYS),
            owner_last: has(&OWNER_LAST),
            retain_is_unsafe: has(&RETAIN_DOES_NOT_COUNT) || has(&RETAIN_CRASHES),
            no_host_access: has(&host::ACCESS_APPEARS),
            no_host_memory: has(&host::MEMORY_IS_THE_DEVICES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn versions_get_what_they_need() {
        let six = Quirks::of(60_443_484);
        assert!(six.free_races && !six.access_sums && six.import_form == ImportForm::Pointer);
        let seven = Quirks::of(70_253_211);
        assert!(!seven.free_races && seven.access_sums && seven.import_form == ImportForm::Value);
        assert!(!seven.import_stays_open);
        assert!(!Quirks::of(71_260_540).access_sums);
        let stays = |version| Quirks::of(version).memory_stays;
        assert!(!stays(70_051_831) && stays(70_100_000) == cfg!(unix) && !stays(71_200_000));
        assert!(Quirks::of(71_400_000).import_stays_open);
        assert!(six.events_spoil_captures && !seven.events_spoil_captures);
        assert!(six.no_host_access && !seven.no_host_access && Quirks::of(70_100_000).no_host_access);
        assert!(six.no_host_memory && seven.no_host_memory && !Quirks::of(71_500_000).no_host_memory);
    }

    /// The first version that needs each workaround, and the first that does not need it any more.
    #[test]
    fn workarounds_begin_and_end_with_versions() {
        type Needs = fn(Quirks) -> bool;
        let rows: [(&str, Needs, u32, u32); 14] = [
            ("free_races", |quirks| quirks.free_races, 60_100_000, 70_000_000),
            ("access_sums", |quirks| quirks.access_sums, 70_000_000, 71_200_000),
            ("copy_by_source", |quirks| quirks.copy_by_source, 60_100_000, 70_000_000),
            ("pinned_by_first", |quirks| quirks.pinned_by_first, 60_100_000, 70_000_000),
            ("events_spoil_captures", |quirks| quirks.events_spoil_captures, 60_100_000, 70_000_000),
            ("event_reads_its_stream", |quirks| quirks.event_reads_its_stream, 60_100_000, 70_000_000),
            ("import_stays_open", |quirks| quirks.import_stays_open, 71_400_000, u32::MAX),
            ("import_checks_nothing", |quirks| quirks.import_checks_nothing, 71_400_000, u32::MAX),
            ("export_is_kept", |quirks| quirks.export_is_kept, 71_400_000, 71_500_000),
            ("memory_stays", |quirks| quirks.memory_stays, 70_100_000, 71_200_000),
            ("owner_last", |quirks| quirks.owner_last, 71_400_000, 71_600_000),
            ("retain_is_unsafe", |quirks| quirks.retain_is_unsafe, 60_100_000, 71_500_000),
            ("no_host_access", |quirks| quirks.no_host_access, 60_100_000, 70_200_000),
            ("no_host_memory", |quirks| quirks.no_host_memory, 60_100_000, 71_500_000),
        ];
        for (name, needs, from, below) in rows {
            if cfg!(windows) && name == "memory_stays" {
                continue;
            }
            let found = [from - 1, from, below - 1, below].map(|version| needs(Quirks::of(version)));
            assert_eq!(found, [false, true, true, false], "{name}");
        }
    }

    #[test]
    fn only_known_builds_of_7_0_import() {
        for (version, form) in [
            (69_999_999, ImportForm::Pointer),
            (70_000_000, ImportForm::Unknown),
            (70_051_830, ImportForm::Unknown),
            (70_051_831, ImportForm::Value),
            (70_059_999, ImportForm::Value),
            (70_060_000, ImportForm::Unknown),
            (70_100_000, ImportForm::Value),
        ] {
            assert_eq!(Quirks::of(version).import_form, form, "{version}");
        }
    }

    #[test]
    fn entries_are_whole() {
        let mut names = HashSet::new();
        for quirk in QUIRKS {
            assert!(names.insert((quirk.id, quirk.from)), "{} is there twice", quirk.id);
            assert!(quirk.from < quirk.below && OLDEST <= quirk.from, "{}", quirk.id);
            assert!(![quirk.effect, quirk.handling, quirk.evidence].contains(&""), "{}", quirk.id);
        }
    }

    #[test]
    fn versions_are_readable() {
        assert_eq!(readable(70_253_211), "7.2.53211");
        assert_eq!(readable(71_260_540), "7.12.60540");
        assert_eq!(readable(71_526_333), "7.15.26333 (ROCm 10.0)");
        assert_eq!([71_600_001, 71_700_002].map(readable), ["7.16.1 (ROCm 10.1)", "7.17.2 (ROCm 10.2)"]);
        assert_eq!([71_400_003, 71_800_004, 81_500_005].map(readable), ["7.14.3", "7.18.4", "8.15.5"]);
    }
}
