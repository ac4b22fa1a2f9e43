//! The folder of saved regions.

use std::io;
use std::path::{Path, PathBuf};

/// The end of the names of files of regions.
const EXTENSION: &str = ".safetensors";

/// The begin of the names of files that are not complete yet.
const TEMPORARY: &str = ".gpu-vmm-";

/// The limit of a file's name without its end, in bytes: file systems permit 255.
const MAX_NAME: usize = 200;

/// Returns the name of a region's file: the region's name, in which slashes and percent signs are written as in a URL. The end of a long
/// name is a checksum; the file has the whole name.
pub(super) fn file_name(region: &str) -> String {
    let mut name = String::new();
    for char in region.chars() {
        match char {
            '/' => name.push_str("%2F"),
            '%' => name.push_str("%25"),
            // Temporary files and hidden ones begin with it.
            '.' if name.is_empty() => name.push_str("%2E"),
            other => name.push(other),
        }
    }
    if name.len() > MAX_NAME {
        let kept = (0..=MAX_NAME / 2).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        name.truncate(kept);
        name.push('-');
        name.push_str(&blake3::hash(region.as_bytes()).to_hex());
    }
    name + EXTENSION
}

/// Returns the files of regions in a folder, in the order of their names. Removes what a save has left that was killed.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(TEMPORARY) {
            std::fs::remove_file(&path)?;
        } else if name.ends_with(EXTENSION) && !name.starts_with('.') {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_has_its_own_file() {
        assert_eq!(file_name("llama/rank0"), "llama%2Frank0.safetensors");
        assert_eq!(file_name("llama%2Frank0"), "llama%252Frank0.safetensors");
        assert_eq!(file_name(".a/.b"), "%2Ea%2F.b.safetensors");
        // The longest names, of one, two and four bytes for a character, and of slashes.
        let long = [
            "x".repeat(255),
            "x".repeat(254) + "y",
            "é".repeat(127),
            "😀".repeat(63),
            "a/".repeat(127) + "a",
        ];
        let names = long.map(|region| file_name(&region));
        assert!(names.iter().all(|name| name.len() <= 255), "{names:?}");
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }

    #[test]
    fn only_files_of_regions_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.safetensors", "a.safetensors", ".hidden.safetensors", "notes.txt", ".gpu-vmm-x"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files(folder.path()).unwrap();
        assert_eq!(found, ["a", "b"].map(|name| folder.path().join(format!("{name}.safetensors"))));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4, "a killed save has left a file");
    }
}
