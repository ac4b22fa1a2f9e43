//! A folder of small packages, and the program run on it.
//!
//! The packages are real ones, built with `dpkg-deb`. Their loader and C library are the machine's, so that the check whether
//! a runtime is complete works as with AMD's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of libraries in packages and on Debian's own machines.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const HIP: &str = "libamdhip64-9_9.1.2+dfsg-3_amd64.deb";
const LIBC: &str = "libc6_2.99-1_amd64.deb";

/// Why packages cannot be built here.
pub(crate) fn missing() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("there are only x86-64 packages for Linux".to_owned());
    }
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return Some("dpkg-deb is not installed".to_owned());
    }
    (!Path::new(LOADER).exists()).then(|| format!("there is no {LOADER}"))
}

pub(crate) struct Rig {
    pub(crate) folder: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Files that remain in Cargo's folder for temporary files do no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Rig {
    /// Creates a rig whose `9.list` names the two packages of a HIP 9.1.2.
    pub(crate) fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&folder);
        let rig = Self { folder };
        fs::create_dir_all(rig.debs()).unwrap();
        // Any library that is linked to the C library will do.
        rig.package(HIP, &[("libm.so.6", "libamdhip64.so.9")]);
        rig.package(LIBC, &[("libc.so.6", "libc.so.6"), ("ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2")]);
        rig.list(&[HIP, LIBC]);
        rig
    }

    pub(crate) fn debs(&self) -> PathBuf {
        self.folder.join("debs")
    }

    pub(crate) fn hip(&self) -> PathBuf {
        self.debs().join(HIP)
    }

    pub(crate) fn libc(&self) -> PathBuf {
        self.debs().join(LIBC)
    }

    /// Returns the folder in which the program sets runtimes up.
    pub(crate) fn runtimes(&self) -> PathBuf {
        self.folder.join("hip runtimes")
    }

    pub(crate) fn libraries(&self) -> PathBuf {
        self.runtimes().join("9.1.2").join(LIBRARIES)
    }

    pub(crate) fn list(&self, names: &[&str]) {
        fs::write(self.debs().join("9.list"), names.join("\n")).unwrap();
    }

    /// Builds a package of the machine's libraries under other names.
    pub(crate) fn package(&self, deb: &str, libraries: &[(&str, &str)]) {
        let (name, rest) = deb.split_once('_').unwrap();
        let version = rest.split_once('_').unwrap().0;
        let tree = self.folder.join("tree").join(name);
        let (control, into) = (tree.join("DEBIAN"), tree.join(LIBRARIES));
        fs::create_dir_all(&control).unwrap();
        fs::create_dir_all(&into).unwrap();
        let text = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: test <test@localhost>\n\
             Description: a test\n"
        );
        fs::write(control.join("control"), text).unwrap();
        let loader = fs::canonicalize(LOADER).unwrap();
        for (from, to) in libraries {
            fs::copy(loader.parent().unwrap().join(from), into.join(to)).unwrap();
        }
        let made = Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Znone", "--build"])
            .args([&tree, &self.debs().join(deb)])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    /// Returns the command of the program, with this folder of packages.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-vmm-test-all"));
        command.arg("--folder").arg(self.runtimes()).env("HIP_RUNTIME_DEBS", self.debs());
        command.env_remove("HIP_RUNTIME_MIRROR");
        command
    }

    pub(crate) fn set_up(&self) -> Output {
        self.command().arg("setup").output().unwrap()
    }

    /// Returns a value for PATH by which all programs but these are found.
    pub(crate) fn path_without(&self, programs: &[&str]) -> PathBuf {
        let links = self.folder.join("programs");
        fs::create_dir_all(&links).unwrap();
        for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap()) {
            for program in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = program.file_name();
                if !programs.iter().any(|one| **one == *name) {
                    // The first folder of a name counts.
                    let _ = std::os::unix::fs::symlink(program.path(), links.join(name));
                }
            }
        }
        links
    }

    /// Checks that it fails with one line that has all of these words, and leaves no runtime.
    pub(crate) fn refuses(&self, command: &mut Command, words: &[&str]) {
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        // `setup` sets up the fake NVIDIA driver all the same, which needs no package.
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.is_empty() || printed.starts_with("the fake NVIDIA driver is in "), "{printed}");
        assert!(!printed.contains("\nHIP "), "{printed}");
        let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{said}");
        assert_eq!(said.lines().last(), Some(errors[0]), "and nothing after it");
        for word in words {
            assert!(errors[0].contains(word), "not in it: {word}\n{said}");
        }
        assert_eq!(self.runtimes_left(), Vec::<String>::new(), "nothing is left half-installed");
    }

    /// Returns the contents of the folder of runtimes, complete or not.
    pub(crate) fn runtimes_left(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.runtimes()) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(|letter: char| letter.is_ascii_digit())).collect()
    }
}
