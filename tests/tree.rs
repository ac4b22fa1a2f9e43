//! The repository's files, for the tests that read them.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the files in a folder and those below it whose names have one of the endings, without build outputs and hidden folders. The
/// templates in `.github` are not hidden.
pub(crate) fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the repository can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let found = paths.flat_map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let skipped =
            name.starts_with('.') && name != ".github" || name == "target" || name == "node_modules";
        if path.is_dir() {
            return if skipped { Vec::new() } else { files(&path, endings) };
        }
        let wanted = !skipped && endings.iter().any(|ending| name.ends_with(ending));
        if wanted { vec![path] } else { Vec::new() }
    });
    found.collect()
}
