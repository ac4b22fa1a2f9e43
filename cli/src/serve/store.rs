//! The folder of saved regions.

use std::io;
use std::path::{Path, PathBuf};

/// The end of the names of files of regions.
const EXTENSION: &str = ".safetensors";

/// The end of the names of folders, each of which has a part of a region's name.
const FOLDER: &str = "%+";

/// The limit of a part, in bytes: file systems permit 255 with the end.
const MAX_PART: usize = 240;

/// Returns the path of a region's file in the folder: the region's name, in which slashes and percent signs are written as in a URL. What is
/// too long for one file's name is in folders.
pub(super) fn file_path(region: &str) -> PathBuf {
    let (mut path, mut name) = (PathBuf::new(), String::new());
    for char in region.chars() {
        if name.len() + "%2F".len().max(char.len_utf8()) > MAX_PART {
            path.push(std::mem::take(&mut name) + FOLDER);
        }
        match char {
            '/' => name.push_str("%2F"),
            '%' => name.push_str("%25"),
            // Temporary files and hidden ones begin with it.
            '.' if name.is_empty() => name.push_str("%2E"),
            other => name.push(other),
        }
    }
    path.join(name + EXTENSION)
}

/// Returns the files of regions in a folder, in the order of their names.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(FOLDER) && entry.file_type()?.is_dir() {
            files.extend(self::files(&path)?);
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
    fn each_region_has_a_file_of_its_own() {
        for (region, file) in [
            ("llama/rank0", "llama%2Frank0.safetensors"),
            ("llama%2Frank0", "llama%252Frank0.safetensors"),
            (".a/.b", "%2Ea%2F.b.safetensors"),
        ] {
            assert_eq!(file_path(region), Path::new(file));
        }
    }

    #[test]
    fn longest_names_have_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut expected = Vec::new();
        for region in ["x".repeat(255), ["a"; 128].join("/"), "\u{1f600}".repeat(63), "..".repeat(127) + "y"]
        {
            let path = folder.path().join(file_path(&region));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            expected.push(path);
        }
        expected.sort();
        let mut found = files(folder.path()).unwrap();
        found.sort();
        assert_eq!(found, expected);
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
