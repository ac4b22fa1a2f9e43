//! A runtime that was unpacked: how programs are run on it, and whether it is complete.
//!
//! AMD's libraries need newer versions of the C library than most machines have. So programs are started by the
//! runtime's own loader, with its own libraries and none of the machine's. `std::env::current_exe` is then the loader:
//! tests of HIP do not start themselves.

use crate::environment::{leave_the_machines, search_path};
use crate::trouble::{Answer, Doing, Trouble};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) version: String,
    pub(crate) prefix: PathBuf,
}

/// What the loader finds for a library.
struct Found {
    /// Libraries that are not in the runtime.
    missing: Vec<String>,
    /// Functions that no library has.
    undefined: Vec<String>,
}

impl Runtime {
    /// The folder that holds all of its libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.prefix.join("usr/lib/x86_64-linux-gnu")
    }

    /// The loader, looking first in `before`, then in the runtime and at last in the folders `own`.
    fn loader(&self, before: Option<&Path>, own: Option<&OsStr>) -> Command {
        let libraries = self.libraries();
        let ours = before.into_iter().chain([&*libraries]).map(Path::as_os_str);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--inhibit-cache").arg("--library-path").arg(search_path(ours.chain(own)));
        command
    }

    /// Runs a program over the simulated HSA runtime that lies in `simulator`. `own` has the folders of the program's own
    /// libraries.
    pub(crate) fn command(&self, simulator: &Path, program: &Path, own: Option<&OsStr>) -> Command {
        let mut command = self.loader(Some(simulator), own);
        command.arg(program);
        leave_the_machines(&mut command);
        // What AMD's compiler makes of kernels would be kept in the home folder.
        command.env("AMD_COMGR_CACHE", "0");
        // What ROCr of these versions does, which the simulation cannot know.
        if ["7.1.", "7.2."].iter().any(|known| self.version.starts_with(known)) {
            command.env("HSA_SIM_KEEPS_MEMORY", "1");
        }
        command
    }

    /// Whether all is there that AMD's libraries are linked to.
    pub(crate) fn check(&self) -> Answer {
        let amds = self.amds()?;
        if !amds.iter().any(|library| library.contains("libamdhip64.so.")) {
            return Err(Trouble::new("the runtime is incomplete: it has no libamdhip64; add its package"));
        }
        for library in amds {
            let missing = self.find(None, &library)?.missing;
            if !missing.is_empty() {
                return Err(Trouble::new(format!(
                    "the runtime is incomplete: {library} needs {}; add the packages that have them",
                    missing.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// The functions that HIP asks for and the simulated HSA runtime lacks. HIP does not call all that it asks for.
    pub(crate) fn not_simulated(&self, simulator: &Path) -> Answer<Vec<String>> {
        let hip = self.amds()?.into_iter().filter(|library| library.starts_with("libamdhip64.so."));
        let mut undefined = Vec::new();
        for library in hip {
            undefined.extend(self.find(Some(simulator), &library)?.undefined);
        }
        undefined.sort_unstable();
        undefined.dedup();
        Ok(undefined)
    }

    /// AMD's libraries: some are not linked to and loaded while running.
    fn amds(&self) -> Answer<Vec<String>> {
        let folder = self.libraries();
        let entries =
            fs::read_dir(&folder).doing(|| format!("{}, which is to hold HIP", folder.display()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_amds = |name: &String| {
            // libamdhip64.so.7, not libamdhip64.so.7.2.53211, which is the same file.
            let version = name.split_once(".so.").map(|(_, version)| version);
            (name.starts_with("libamd") || name.starts_with("libhiprtc"))
                && version.is_some_and(|version| !version.contains('.'))
        };
        Ok(names.filter(is_amds).collect())
    }

    /// Asks the loader what a library of the runtime would be bound to.
    fn find(&self, before: Option<&Path>, library: &str) -> Answer<Found> {
        let mut loader = self.loader(before, None);
        loader.arg(self.libraries().join(library));
        // What `ldd -r` sets.
        loader.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_WARN", "1").env("LD_BIND_NOW", "1");
        let answer = loader.output().doing(|| format!("{:?}", loader.get_program()))?;
        let (text, errors) =
            (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        if !answer.status.success() {
            return Err(Trouble::new(format!(
                "the runtime's loader cannot load {library} ({}): {errors}",
                answer.status
            )));
        }
        let mut found = Found { missing: Vec::new(), undefined: Vec::new() };
        for line in text.lines().map(str::trim) {
            if let Some((name, place)) = line.split_once(" => ") {
                let place = place.split(" (").next().unwrap_or_default();
                let ours = Path::new(place).starts_with(&self.prefix)
                    || before.is_some_and(|before| Path::new(place).starts_with(before));
                if !ours {
                    found.missing.push(name.to_owned());
                }
            } else if let Some(symbol) = line.strip_prefix("undefined symbol: ") {
                let name = symbol.split([',', '\t', ' ']).next().unwrap_or_default();
                found.undefined.push(name.to_owned());
            }
        }
        Ok(found)
    }
}
