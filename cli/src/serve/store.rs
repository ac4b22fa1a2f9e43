//! The folder of saved regions.

use std::io;
use std::path::{Path, PathBuf};

/// The end of the names of files of regions.
const EXTENSION: &str = ".safetensors";

/// Returns the name of a region's file: the region's name, in which slashes and percent signs are written as in a URL.
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
    name + EXTENSION
}

/// Returns the files of regions in a folder, in the order of their names.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(EXTENSION) && !name.starts_with('.') {
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
    fn each_region_has_a_file_of_its_own() {
        assert_eq!(file_name("llama/rank0"), "llama%2Frank0.safetensors");
        assert_eq!(file_name("llama%2Frank0"), "llama%252Frank0.safetensors");
        assert_eq!(file_name(".a/.b"), "%2Ea%2F.b.safetensors");
    }

    #[test]
    fn only_files_of_regions_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.safetensors", "a.safetensors", ".gpu-vmm-x.safetensors", "notes.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = files(folder.path()).unwrap();
        assert_eq!(found, ["a", "b"].map(|name| folder.path().join(format!("{name}.safetensors"))));
    }
}
