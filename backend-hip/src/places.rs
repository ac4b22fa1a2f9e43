//! The folders in which HIP and its compiler are looked for on Linux, and the libraries in them.
//!
//! ROCm's packages for a distribution install each release into `/opt/rocm/core-X.Y`. Only their metapackage links
//! `/opt/rocm/lib` and `/opt/rocm/core` to one of the releases. ROCm's wheels for Python install into the folder
//! `_rocm_sdk_core` of `site-packages`, `lib` of which has HIP, its compiler and ROCr; the wheels
//! `_rocm_sdk_libraries*` have neither.
#![cfg(unix)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names a folder to search before all others. The Python package sets it to the folder of
/// ROCm's wheels, from which PyTorch loads HIP.
pub(crate) const FOLDER: &str = "GPU_VMM_HIP_FOLDER";

/// The wheel with HIP, and the folder of its libraries.
const WHEEL: &str = "site-packages/_rocm_sdk_core/lib";

/// The oldest number in the name of a HIP library that is loaded: [`loader`](crate::loader) has the reason.
const OLDEST: u32 = 6;

/// The name of HIP's library without a number.
const STEM: &str = "libamdhip64.so";

/// A place of the search: one folder, or several that differ in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its name in errors, with `*` for a version.
    pub(crate) name: PathBuf,
    /// The existing folders, newest first. A folder without a version in its name need not exist.
    folders: Vec<PathBuf>,
}

impl Place {
    fn folder(path: PathBuf) -> Self {
        Self { name: path.clone(), folders: vec![path] }
    }

    /// Returns the folders in `parent` with this beginning and a version, each followed by `rest`.
    fn versions(parent: &Path, beginning: &str, rest: &str) -> Self {
        let name = parent.join(format!("{beginning}*")).join(rest);
        let folders = numbered(parent, beginning).into_iter().map(|(_, folder)| folder.join(rest)).collect();
        Self { name, folders }
    }

    /// Returns the paths of HIP's library in this place, newest first: numbers of 6 and more, then the one without a
    /// number.
    pub(crate) fn hip(&self) -> Vec<PathBuf> {
        self.folders.iter().flat_map(|folder| Self::hip_in(folder)).collect()
    }

    fn hip_in(folder: &Path) -> Vec<PathBuf> {
        let numbers = numbered(folder, &format!("{STEM}.")).into_iter();
        // A longer number belongs to the file behind the name.
        let major = numbers.filter(|(number, _)| number.len() == 1 && number[0] >= OLDEST);
        let bare = Some(folder.join(STEM)).filter(|path| path.exists());
        major.map(|(_, path)| path).chain(bare).collect()
    }

    /// Returns the paths that a library of this name would have in this place.
    pub(crate) fn paths(&self, name: &str) -> impl Iterator<Item = PathBuf> {
        self.folders.iter().map(move |folder| folder.join(name))
    }
}

/// Returns the place that is searched before the loader's own folders, if the environment names one.
pub(crate) fn first() -> Option<Place> {
    set(&std::env::var_os, FOLDER).map(Place::folder)
}

/// Returns the places that are searched after the loader's own folders, in their order.
pub(crate) fn last() -> Vec<Place> {
    last_in(Path::new("/"), &std::env::var_os::<&str>)
}

fn last_in(root: &Path, variable: &impl Fn(&'static str) -> Option<OsString>) -> Vec<Place> {
    let named = set(variable, "ROCM_PATH").map(|path| Place::folder(path.join("lib")));
    let pythons = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| set(variable, name));
    let wheels = pythons.map(|path| Place::versions(&path.join("lib"), "python", WHEEL));
    let rocm = root.join("opt/rocm");
    let installed = [
        Place::folder(rocm.join("lib")),
        Place::folder(rocm.join("core/lib")),
        Place::versions(&rocm, "core-", "lib"),
    ];
    named.into_iter().chain(wheels).chain(installed).collect()
}

/// Returns a variable's path. A relative path would depend on the current folder, and is ignored.
fn set(variable: &impl Fn(&'static str) -> Option<OsString>, name: &'static str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns true for the path of a HIP library: with a number of 6 or more, also of a file behind such a name, or without a number.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) fn is_hip(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(rest) = name.strip_prefix(STEM) else { return false };
    let major = rest.strip_prefix('.').and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    rest.is_empty() || major.is_some_and(|major| major >= OLDEST)
}

/// Returns the folder of a file. A relative path would depend on the current folder, and has none.
pub(crate) fn absolute_folder(file: &Path) -> Option<PathBuf> {
    file.parent().filter(|folder| folder.is_absolute()).map(Path::to_path_buf)
}

/// Returns the entries of a folder that have this beginning and then numbers with dots between them, and those numbers.
/// The newest is first: 10.0 is newer than 7.14.
fn numbered(folder: &Path, beginning: &str) -> Vec<(Vec<u32>, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(beginning)?;
            let number: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
            Some((number?, entry.path()))
        })
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary root folder.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("gpu-vmm-hip-places-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn with(self, files: &[&str]) -> Self {
            for file in files {
                let file = self.0.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            self
        }

        /// The libraries of all places, relative to the root.
        fn found(&self, variables: &[(&'static str, &str)]) -> Vec<String> {
            let relative = |path: PathBuf| path.strip_prefix(&self.0).unwrap().display().to_string();
            self.places(variables).iter().flat_map(Place::hip).map(relative).collect()
        }

        fn places(&self, variables: &[(&'static str, &str)]) -> Vec<Place> {
            last_in(&self.0, &|name| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                Some(if value.is_empty() { OsString::new() } else { self.0.join(value).into() })
            })
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn releases_are_sorted_by_number() {
        let file = |release: &str| format!("opt/rocm/core-{release}/lib/libamdhip64.so.7");
        let releases = ["7.14", "10.9", "10.10", "10.0"].map(file);
        let root = Root::new("releases").with(&releases.each_ref().map(String::as_str));
        let root = root
            .with(&["opt/rocm/core-next/lib/libamdhip64.so.7", "opt/rocm/extras-10/lib/libamdhip64.so.7"]);
        assert_eq!(root.found(&[]), ["10.10", "10.9", "10.0", "7.14"].map(file));
    }

    #[test]
    fn libraries_are_sorted_by_number() {
        let root = Root::new("libraries").with(&[
            "opt/rocm/lib/libamdhip64.so",
            "opt/rocm/lib/libamdhip64.so.10",
            "opt/rocm/lib/libamdhip64.so.5",
            "opt/rocm/lib/libamdhip64.so.6",
            "opt/rocm/lib/libamdhip64.so.9",
            "opt/rocm/lib/libamdhip64.so.9.1.2",
            "opt/rocm/lib/libamdhip64.so.old",
            "opt/rocm/lib/libhiprtc.so.10",
        ]);
        let expected = ["so.10", "so.9", "so.6", "so"].map(|end| format!("opt/rocm/lib/libamdhip64.{end}"));
        assert_eq!(root.found(&[]), expected);
    }

    #[test]
    fn loaded_libraries_are_recognized_by_name() {
        for name in ["so", "so.6", "so.9", "so.10", "so.7.2.70204"] {
            assert!(is_hip(Path::new(&format!("/opt/rocm/lib/libamdhip64.{name}"))), "{name}");
        }
        for name in
            ["/x/libamdhip64.so.5", "/x/libamdhip64.so.next", "/x/libamdhip64.sox", "/x/libhiprtc.so.9", ""]
        {
            assert!(!is_hip(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn folder_of_relative_path_is_unknown() {
        assert_eq!(
            absolute_folder(Path::new("/opt/rocm/lib/libamdhip64.so.7")),
            Some("/opt/rocm/lib".into())
        );
        for relative in ["libamdhip64.so.7", "lib/libamdhip64.so.7", "./libamdhip64.so.7", ""] {
            assert_eq!(absolute_folder(Path::new(relative)), None, "{relative}");
        }
    }

    #[test]
    fn every_place_is_searched_in_order() {
        let in_order = [
            "named/lib/libamdhip64.so.7",
            "venv/lib/python3.12/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7",
            "conda/lib/python3.9/site-packages/_rocm_sdk_core/lib/libamdhip64.so.7",
            "opt/rocm/lib/libamdhip64.so.7",
            "opt/rocm/core/lib/libamdhip64.so.7",
            "opt/rocm/core-10.0/lib/libamdhip64.so.8",
        ];
        let root = Root::new("order").with(&in_order);
        let variables = [("ROCM_PATH", "named"), ("VIRTUAL_ENV", "venv"), ("CONDA_PREFIX", "conda")];
        assert_eq!(root.found(&variables), in_order);
        assert_eq!(root.found(&[]), in_order[3..]);
        assert_eq!(root.found(&[("ROCM_PATH", "")]), in_order[3..], "an empty variable is the same as none");
    }

    #[test]
    fn empty_places_have_names() {
        let root = Root::new("names");
        let variables = [("ROCM_PATH", "named"), ("VIRTUAL_ENV", "venv")];
        let names: Vec<_> = root.places(&variables).into_iter().map(|place| place.name).collect();
        let expected = [
            "named/lib",
            "venv/lib/python*/site-packages/_rocm_sdk_core/lib",
            "opt/rocm/lib",
            "opt/rocm/core/lib",
            "opt/rocm/core-*/lib",
        ];
        assert_eq!(names, expected.map(|name| root.0.join(name)));
        assert_eq!(root.found(&variables), [""; 0]);
    }
}
