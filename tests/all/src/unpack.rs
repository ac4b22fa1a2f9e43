//! Unpacks packages into a runtime in a private folder, completely or not at all.
//!
//! They are unpacked next to the runtime's final path; once complete, that folder is renamed. A file in it names the
//! packages, so that the next run has nothing to do.

use crate::debs::Packages;
use crate::runtime::Runtime;
use crate::trouble::{Answer, Doing, Trouble};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// The file that names the packages of a runtime.
const STAMP: &str = "packages.list";

/// Returns the runtime of these packages, in `root`.
pub(crate) fn set_up(root: &Path, packages: &Packages) -> Answer<Runtime> {
    let runtime = Runtime { version: packages.version.clone(), prefix: root.join(&packages.version) };
    let stamp = runtime.prefix.join(STAMP);
    if fs::read_to_string(stamp).is_ok_and(|names| names == packages.names()) && runtime.check().is_ok() {
        return Ok(runtime);
    }
    let new = root.join(format!("{}.incomplete", packages.version));
    remove(&new)?;
    let made = make(&new, packages);
    let moved = made.and_then(|()| {
        remove(&runtime.prefix)?;
        fs::rename(&new, &runtime.prefix).doing(|| runtime.prefix.display().to_string())
    });
    match moved {
        Ok(()) => Ok(runtime),
        Err(trouble) => {
            remove(&new)?;
            Err(trouble)
        }
    }
}

/// Returns the runtimes in `root` whose folders are complete.
pub(crate) fn set_up_already(root: &Path) -> Vec<Runtime> {
    let entries = fs::read_dir(root).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let runtimes = names.map(|version| Runtime { prefix: root.join(&version), version });
    let is_whole = |runtime: &Runtime| {
        runtime.version.split('.').all(|number| number.parse::<u32>().is_ok())
            && runtime.prefix.join(STAMP).is_file()
    };
    runtimes.filter(is_whole).collect()
}

fn make(folder: &Path, packages: &Packages) -> Answer {
    eprintln!("unpacking HIP {} ({} packages)", packages.version, packages.files.len());
    fs::create_dir_all(folder).doing(|| folder.display().to_string())?;
    for package in &packages.files {
        unpack(package, folder)?;
    }
    let libraries = folder.join("usr/lib");
    // libLLVM looks in its own ../lib: link that to the folder that holds the libraries.
    #[cfg(unix)]
    std::os::unix::fs::symlink("x86_64-linux-gnu", libraries.join("lib"))
        .doing(|| format!("{}, which no package created", libraries.display()))?;
    Runtime { version: packages.version.clone(), prefix: folder.to_owned() }.check()?;
    let stamp = folder.join(STAMP);
    fs::write(&stamp, packages.names()).doing(|| stamp.display().to_string())
}

pub(crate) fn unpack(package: &Path, folder: &Path) -> Answer {
    let answer = Command::new("dpkg-deb").arg("--extract").arg(package).arg(folder).output();
    let answer = answer.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Trouble::new(
            "dpkg-deb, which unpacks the packages, is not installed; install dpkg, which systems other than Debian \
             have as well",
        ),
        _ => Trouble::new(format!("dpkg-deb cannot be run: {error}")),
    })?;
    if answer.status.success() {
        return Ok(());
    }
    Err(Trouble::new(format!(
        "{} cannot be unpacked; fetch it again (with --update if apt fetched it), or free disk space: {}",
        package.display(),
        String::from_utf8_lossy(&answer.stderr).lines().next().unwrap_or("no reason given")
    )))
}

pub(crate) fn remove(folder: &Path) -> Answer {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Trouble::new(format!("{} cannot be removed: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}
