//! Compares the table of the sweep with the sources of vmm-core and vmm-snapshot, so that no operation is missing.

use super::{operations, row};
use gpu_vmm_host::HostBackend;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Public functions that can fail but are not in the table, each with the reason.
const NOT_SWEPT: &[(&str, &str)] = &[
    ("Region::close", "it consumes the region; `ends` sweeps it"),
    (
        "PhysicalMemory::adopt",
        "it is one call of the backend with nothing to undo; the fake drivers fail each driver call below it",
    ),
    ("DeviceVec::from_slice", "it calls `new` and `extend_from_slice`, which are swept"),
    ("PhysicalMemory::export_fabric", "no machine without a fabric has such handles"),
    ("PhysicalMemory::export_win32", "it exists only on Windows, where the suite has no backend"),
    ("PhysicalMemory::import_win32", "as above"),
    (
        "PhysicalMemory::import_fabric",
        "no machine without a fabric has such handles; importing from a descriptor is swept",
    ),
    (
        "Region::dma_bufs",
        "host memory has no dma-bufs, and on a device the call creates only the descriptors",
    ),
    (
        "Region::apply_layout",
        "it makes no driver call of its own; `Restore::regions` and gpu-vmm-host's `share` sweep it",
    ),
    ("Region::apply_layout_elsewhere", "as above"),
    ("Region::with_settings", "`Restore::regions` sweeps it"),
    ("Region::set_access_at_once", "as above"),
    ("Region::discard", "as above"),
    ("Region::check_usable", "it makes no driver call"),
    ("PhysicalMemory::check_belongs_to", "as above"),
    ("BackingStore::host", "it calls `StagingRing::new`, which is swept"),
    ("BackingStore::files", "it makes no driver call"),
    ("BackingStore::trim", "as above"),
    ("StagingRing::fetch", "`Region::suspend` and `Snapshot::write` sweep it"),
    ("StagingRing::send", "`Region::resume` and `Restore::regions` sweep it"),
];

/// Returns the source files with public operations.
fn sources() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let core = workspace.join("vmm-core/src");
    let region = std::fs::read_dir(core.join("region")).unwrap().map(|entry| entry.unwrap().path());
    // A folder in there contains tests.
    let mut sources: Vec<PathBuf> = region.filter(|path| path.is_file()).collect();
    let others = [
        "memory/physical.rs",
        "memory/adopt.rs",
        "testkit/patterns.rs",
        "memory/backing/mod.rs",
        "memory/staging_ring.rs",
    ];
    sources.extend(others.map(|file| core.join(file)));
    sources.extend(["capture.rs", "restore.rs"].map(|file| workspace.join("vmm-snapshot/src").join(file)));
    sources
}

/// Returns the public functions of a source that return a `Result`, as `Type::function`.
fn fallible(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut of = "";
    let mut signature = String::new();
    for line in source.lines() {
        if line.starts_with("impl") && !line.contains(" for ") {
            let name = line.split("> ").nth(1).unwrap_or(line.trim_start_matches("impl "));
            of = name.split(['<', ' ']).next().unwrap();
        }
        if ["    pub fn ", "    pub const fn ", "    pub unsafe fn "]
            .iter()
            .any(|start| line.starts_with(start))
        {
            signature.clear();
        } else if signature.is_empty() {
            continue;
        }
        signature.push_str(line);
        if line.ends_with('{') {
            if signature.contains("-> Result<") {
                let name = signature.split("fn ").nth(1).unwrap().split(['(', '<']).next().unwrap();
                found.push(format!("{of}::{name}"));
            }
            signature.clear();
        }
    }
    found
}

#[test]
fn every_operation_is_swept() {
    let found: BTreeSet<String> =
        sources().iter().flat_map(|path| fallible(&std::fs::read_to_string(path).unwrap())).collect();
    assert!(found.contains("Region::grow_or_move") && found.contains("PhysicalMemory::import"), "{found:?}");
    let rows: BTreeSet<String> =
        operations::all::<HostBackend>().iter().map(|row| row.of.to_owned()).collect();
    let except = |name: &str| NOT_SWEPT.iter().any(|(other, _)| *other == name);
    let missing: Vec<_> = found.iter().filter(|name| !rows.contains(*name) && !except(name)).collect();
    assert!(missing.is_empty(), "public operations without a row in the sweep: {missing:?}");
    let gone: Vec<_> = rows.iter().filter(|name| !found.contains(*name)).collect();
    assert!(gone.is_empty(), "rows of operations that do not exist: {gone:?}");
}

/// `DeviceVec::push` is swept by the case `failures::device_vec_push`.
#[test]
fn every_row_has_a_case() {
    let cases: BTreeSet<&str> = super::cases::<HostBackend>().iter().map(|case| case.name).collect();
    for row in operations::all::<HostBackend>() {
        let mut name = String::new();
        for letter in row.of.replace("::", "_").chars() {
            if letter.is_uppercase() && !name.is_empty() && !name.ends_with('_') {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        assert!(cases.contains(format!("failures::{name}").as_str()), "no case sweeps over {name}");
        if row::UNDONE.contains(&row.of) {
            let undoing = format!("failures::undoing_{}", name.trim_start_matches("region_"));
            assert!(cases.contains(undoing.as_str()), "no case is named {undoing}");
        }
    }
}

#[test]
fn sources_are_read_rightly() {
    let source = "impl<T: Pod, B: Backend> DeviceVec<T, B> {\n    pub fn push(&mut self, value: T) -> Result<()> {\n    }\n\
                  \n    pub fn len(&self) -> usize {\n    }\n}\nimpl<B> Region<B> {\n    pub unsafe fn long(\n        &self,\n    \
                  ) -> Result<u8> {\n    }\n    fn private(&self) -> Result<()> {\n    }\n    pub(super) fn inner() -> Result<()> \
                  {\n    }\n}\n";
    assert_eq!(fallible(source), ["DeviceVec::push", "Region::long"]);
}
