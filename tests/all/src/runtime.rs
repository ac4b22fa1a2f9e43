//! An unpacked runtime: how programs are run on it, and whether it is complete.
//!
//! AMD's libraries need newer versions of the C library than most machines have. So the runtime's own loader starts programs,
//! with its own libraries and none of the machine's. `std::env::current_exe` is then the loader: tests of HIP do not start
//! themselves.

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

/// The loader's output for a library.
struct Found {
    /// Libraries that are not in the runtime.
    missing: Vec<String>,
    /// Functions that no library defines.
    undefined: Vec<String>,
}

impl Runtime {
    /// Returns the folder that holds all of its libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.prefix.join("usr/lib/x86_64-linux-gnu")
    }

    /// Returns the loader's command. It searches `before` first, then the runtime, then the folders in `own`.
    fn loader(&self, before: Option<&Path>, own: Option<&OsStr>) -> Command {
        let libraries = self.libraries();
        let ours = before.into_iter().chain([&*libraries]).map(Path::as_os_str);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--inhibit-cache").arg("--library-path").arg(search_path(ours.chain(own)));
        command
    }

    /// Returns the command for a program over the simulated HSA runtime in `simulator`. `own` names the folders of the
    /// program's own libraries.
    pub(crate) fn command(&self, simulator: &Path, program: &Path, own: Option<&OsStr>) -> Command {
        let mut command = self.loader(Some(simulator), own);
        command.arg(program);
        leave_the_machines(&mut command);
        // AMD's compiler would cache compiled kernels in the home folder.
        command.env("AMD_COMGR_CACHE", "0");
        // The behaviour of ROCr in these versions, which the simulator cannot detect.
        if ["7.1.", "7.2."].iter().any(|known| self.version.starts_with(known)) {
            command.env("HSA_SIM_KEEPS_MEMORY", "1");
        }
        command
    }

    /// Checks that all libraries are there that AMD's are linked to.
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

    /// Returns the functions that HIP imports and the simulated HSA runtime lacks. HIP does not call all its imports.
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

    /// Returns AMD's libraries: some are loaded at run time and not linked.
    fn amds(&self) -> Answer<Vec<String>> {
        let folder = self.libraries();
        let entries =
            fs::read_dir(&folder).doing(|| format!("{}, which should hold HIP", folder.display()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_amds = |name: &String| {
            // libamdhip64.so.7, not libamdhip64.so.7.2.53211, which is the same file.
            let version = name.split_once(".so.").map(|(_, version)| version);
            (name.starts_with("libamd") || name.starts_with("libhiprtc"))
                && version.is_some_and(|version| !version.contains('.'))
        };
        Ok(names.filter(is_amds).collect())
    }

    /// Asks the loader what it would bind a library of the runtime to.
    fn find(&self, before: Option<&Path>, library: &str) -> Answer<Found> {
        let mut loader = self.loader(before, None);
        loader.arg(self.libraries().join(library));
        // The variables that `ldd -r` sets.
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
