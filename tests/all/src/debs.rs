//! A folder of packages: `N.list` names the package files of a runtime of HIP N, one per line.
//!
//! Keep such a folder to test the same versions for years, or copy it to a machine without a network.

use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable that names a folder of packages.
pub(crate) const DEBS: &str = "HIP_RUNTIME_DEBS";

/// The oldest version whose virtual memory works on Linux.
const OLDEST: (u32, u32) = (6, 1);

/// The packages of one version of HIP.
#[derive(Debug)]
pub(crate) struct Packages {
    /// AMD's version number, such as 7.2.4.
    pub(crate) version: String,
    /// The files.
    pub(crate) files: Vec<PathBuf>,
}

impl Packages {
    /// Returns the names of the files, which include the packages' versions.
    pub(crate) fn names(&self) -> String {
        let names = self.files.iter().filter_map(|file| file.file_name());
        names.map(|name| format!("{}\n", name.display())).collect()
    }
}

/// The major version of a HIP, and its packages or why there are none.
pub(crate) type Found = (u32, Answer<Packages>);

/// Reads each list of a folder, in the order of HIP's versions.
pub(crate) fn read(folder: &Path) -> Answer<Vec<Found>> {
    let entries = fs::read_dir(folder).doing(|| "which is not a folder that can be read".to_owned())?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut majors: Vec<u32> = files.filter_map(|file| list_of(&file)).collect();
    majors.sort_unstable();
    if majors.is_empty() {
        return Err(Trouble::new(
            "which has no list of packages; name those of HIP 7 in a file 7.list, one per line",
        ));
    }
    Ok(majors.into_iter().map(|major| (major, one(folder, major))).collect())
}

/// Returns the path of a list.
pub(crate) fn list(folder: &Path, major: u32) -> PathBuf {
    folder.join(format!("{major}.list"))
}

fn list_of(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_suffix(".list")?.parse().ok()
}

fn one(folder: &Path, major: u32) -> Answer<Packages> {
    let list = list(folder, major);
    let text = fs::read_to_string(&list).doing(|| list.display().to_string())?;
    let names: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let in_list = || list.display().to_string();
    for name in &names {
        one_of_ours(name).doing(in_list)?;
        if !folder.join(name).is_file() {
            return Err(Trouble::new(format!(
                "{} names {name}, which does not exist; put the package next to the list",
                in_list()
            )));
        }
    }
    let prefix = format!("libamdhip64-{major}_");
    let version = names.iter().find_map(|name| name.strip_prefix(&prefix));
    let version = version.ok_or_else(|| {
        Trouble::new(format!("{} names no {prefix}VERSION_amd64.deb, which is HIP itself", in_list()))
    })?;
    let version = upstream(version).doing(in_list)?;
    Ok(Packages { version, files: names.iter().map(|name| folder.join(name)).collect() })
}

/// Refuses a package file that cannot be unpacked here.
fn one_of_ours(name: &str) -> Answer {
    if name.contains('/') {
        return Err(Trouble::new(format!("{name} is not a file name; packages must be next to the list")));
    }
    let architecture = name.strip_suffix(".deb").and_then(|name| name.rsplit_once('_'));
    match architecture {
        Some((_, "amd64" | "all")) => Ok(()),
        Some((_, other)) => {
            Err(Trouble::new(format!("{name} is for {other}, and only x86-64 packages (amd64) can be used")))
        }
        None => Err(Trouble::new(format!("{name} is not a package name, NAME_VERSION_ARCHITECTURE.deb"))),
    }
}

/// Extracts AMD's version from Debian's: 7.2.4 from `1%3a7.2.4+dfsg-1~exp2_amd64.deb`.
pub(crate) fn upstream(debian: &str) -> Answer<String> {
    let version = debian.rsplit_once("%3a").map_or(debian, |(_, version)| version);
    let version = version.rsplit_once(':').map_or(version, |(_, version)| version);
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(version.len());
    let version = version[..end].trim_end_matches('.');
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => Ok(version.to_owned()),
        (Some(_), Some(_)) => {
            Err(Trouble::new(format!("HIP {version} is too old; 6.1 is the first that can be used")))
        }
        _ => Err(Trouble::new(format!("{debian} has no version such as 7.2.4"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_amds() {
        for (debian, expected) in [
            ("6.4.3-5_amd64.deb", "6.4.3"),
            ("7.2.4-1~exp2_amd64.deb", "7.2.4"),
            ("1%3a7.2.4+dfsg-1~exp1_amd64.deb", "7.2.4"),
            ("1:7.14-2", "7.14"),
            ("6.1.40091-1_amd64.deb", "6.1.40091"),
        ] {
            assert_eq!(upstream(debian).unwrap(), expected, "{debian}");
        }
        assert!(upstream("5.7.1-6_amd64.deb").unwrap_err().to_string().contains("too old"));
        assert!(upstream("6.0.2-1_amd64.deb").unwrap_err().to_string().contains("too old"));
        assert!(upstream("new_amd64.deb").is_err());
    }

    #[test]
    fn other_architectures_are_refused() {
        assert!(one_of_ours("libc6_2.43-7_amd64.deb").is_ok());
        assert!(one_of_ours("libdrm-common_2.4.134-3_all.deb").is_ok());
        let arm = one_of_ours("libc6_2.43-7_arm64.deb").unwrap_err().to_string();
        assert!(arm.contains("arm64") && arm.contains("only x86-64"), "{arm}");
        assert!(one_of_ours("../libc6_2.43-7_amd64.deb").is_err());
        assert!(one_of_ours("libc6.rpm").is_err());
    }
}
