//! The initial folder of a run, and the files in it that the run changes.

use crate::report::snapshot;
use crate::snapshot;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder for one run.
pub(super) struct Files {
    folder: PathBuf,
    before: BTreeMap<OsString, Content>,
}

/// An entry of a folder.
#[derive(PartialEq, Eq)]
enum Content {
    Bytes(Vec<u8>),
    Link(PathBuf),
    Other,
}

/// The initial files of every run, in addition to `out`.
static INPUTS: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read(root.join(path)).unwrap();
    let pool = serde_json::to_vec(&snapshot()).unwrap();
    let mut huge = snapshot();
    huge.spaces[0].blocks[0].size = u64::MAX;
    vec![
        ("pool.json", pool),
        ("huge.json", serde_json::to_vec(&huge).unwrap()),
        ("run.trace", b"a 1 4194304 0\na 2 2097152 7\nf 2\nf 1\nr 1\nr 2\n".to_vec()),
        ("huge.trace", b"a 1 18446744073709551615 0\na 2 18446744073709551615 0\nf 1\nf 2\n".to_vec()),
        ("report.json", read("../conformance/src/report/sample.json")),
        ("bench.json", read("../docs/guide/performance/nvidia-h200-1.json")),
    ]
});

/// The initial content of `out`.
pub(super) const BEFORE: &[u8] = b"before";

impl Files {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("table-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for inner in ["folder", "disk"] {
            fs::create_dir_all(folder.join(inner)).unwrap();
        }
        for (name, bytes) in INPUTS.iter() {
            fs::write(folder.join(name), bytes).unwrap();
        }
        for (name, short) in
            [("pool.json", "pool"), ("run.trace", "run"), ("report.json", "report"), ("bench.json", "bench")]
        {
            symlink(name, folder.join(format!("{short}.link"))).unwrap();
            fs::hard_link(folder.join(name), folder.join(format!("{short}.hard"))).unwrap();
        }
        symlink("none/out", folder.join("dangling")).unwrap();
        fs::write(folder.join(OsStr::from_bytes(b"\xff.json")), &INPUTS[0].1).unwrap();
        for out in ["out", "disk/out"] {
            fs::write(folder.join(out), BEFORE).unwrap();
        }
        snapshot::write(folder.join("regions.snap").to_str().unwrap(), 3, None);
        Self { before: contents(&folder), folder }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files that have changed.
    pub(super) fn changes(&self) -> String {
        let after = contents(&self.folder);
        let mut changes = Vec::new();
        for (name, content) in &after {
            let empty = matches!(content, Content::Bytes(bytes) if bytes.is_empty());
            match self.before.get(name) {
                None => changes.push(format!("{} is new", shown(name))),
                Some(before) if before == content => {}
                Some(_) if empty => changes.push(format!("{} is empty", shown(name))),
                Some(_) => changes.push(format!("{} has changed", shown(name))),
            }
        }
        let gone = self.before.keys().filter(|name| !after.contains_key(*name));
        changes.extend(gone.map(|name| format!("{} is gone", shown(name))));
        changes.join(", ")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Formats a name for the table.
fn shown(name: &OsStr) -> String {
    name.to_string_lossy().replace('\u{fffd}', "\\xff")
}

/// Returns the content of a folder and its subfolders.
fn contents(folder: &Path) -> BTreeMap<OsString, Content> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let name = entry.file_name();
        if kind.is_dir() {
            for (inner, content) in contents(&path) {
                all.insert(Path::new(&name).join(inner).into_os_string(), content);
            }
            all.insert(name, Content::Other);
        } else if kind.is_symlink() {
            all.insert(name, Content::Link(fs::read_link(&path).unwrap()));
        } else if kind.is_file() {
            all.insert(name, Content::Bytes(fs::read(&path).unwrap()));
        } else {
            all.insert(name, Content::Other);
        }
    }
    all
}
