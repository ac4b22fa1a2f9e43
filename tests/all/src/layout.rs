//! The folders under `target/hip-runtime`, and the source of the packages.
//!
//! `debs` holds the packages that apt fetched, in the same form as a folder that the user names (see `debs`). `apt` is apt's
//! own state. Each version is unpacked into a folder of its name. `sim` has the simulated HSA runtime, `fake-cuda` the fake
//! NVIDIA driver under the names of NVIDIA's, `nvidia` NVIDIA's own library. `logs` has the whole output of every run.

use crate::arguments::Arguments;
use crate::debs::{self, DEBS, Packages};
use crate::runtime::Runtime;
use crate::trouble::{Answer, Doing, Trouble};
use crate::{apt, cargo, unpack, version};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of a HIP version, and its runtime or why there is none.
pub(crate) type Named = (String, Answer<Runtime>);

#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    /// Whether the folder is another than the default.
    elsewhere: bool,
    /// The folder of packages that the user named.
    named: Option<PathBuf>,
    pub(crate) update: bool,
    /// Whether a version that cannot be set up is a failure. Packages that the user names are always required.
    pub(crate) required: bool,
    /// Whether a missing NVIDIA library is a failure.
    pub(crate) nvidia_required: bool,
    /// Whether the suite also runs on simulated machines on which it shows little more.
    pub(crate) long: bool,
    /// The number of the only version of HIP on which the suite and the plug-ins run.
    hip_turn: Option<usize>,
}

impl Layout {
    pub(crate) fn new(arguments: &Arguments) -> Answer<Self> {
        let root = match &arguments.folder {
            Some(folder) => folder.clone(),
            None => cargo::target_folder()?.join("hip-runtime"),
        };
        // A loader and apt use paths from it, and neither runs in this program's working folder.
        let root = std::path::absolute(&root).doing(|| root.display().to_string())?;
        let named = std::env::var_os(DEBS).filter(|name| !name.is_empty()).map(PathBuf::from);
        let required = arguments.require_hip || named.is_some();
        let (update, nvidia_required) = (arguments.update, arguments.require_nvidia);
        let elsewhere = arguments.folder.is_some();
        let (long, hip_turn) = (arguments.long, arguments.hip_turn);
        Ok(Self { root, elsewhere, named, update, required, nvidia_required, long, hip_turn })
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn simulator(&self) -> PathBuf {
        self.root.join("sim")
    }

    pub(crate) fn fake_cuda(&self) -> PathBuf {
        self.root.join("fake-cuda")
    }

    /// Sets up every available version. Returns each runtime, or why it could not be set up.
    pub(crate) fn runtimes(&self) -> Vec<Named> {
        self.found().unwrap_or_else(|trouble| vec![("HIP".to_owned(), Err(trouble))])
    }

    /// Returns those of all versions on which the suite and the plug-ins run.
    pub(crate) fn chosen<'a>(&self, runtimes: &'a [Runtime]) -> &'a [Runtime] {
        match self.hip_turn.and_then(|turn| turn.checked_rem(runtimes.len())) {
            Some(place) => &runtimes[place..=place],
            None => runtimes,
        }
    }

    /// Returns the newest version that is `wanted`, or the newest of all; sets it up if necessary. Looks for no newer
    /// packages if one is set up, unless the user named a folder of packages.
    pub(crate) fn runtime(&self, wanted: Option<&str>) -> Answer<Runtime> {
        self.alone(|| {
            let mut there = unpack::set_up_already(&self.root);
            let is_there = version::newest(there.iter().map(|runtime| &*runtime.version), wanted).is_ok();
            let mut packages = Vec::new();
            if self.named.is_some() || self.update || !is_there {
                for (major, found) in self.packages()? {
                    match found {
                        Ok(found) => packages.push(found),
                        // A version that cannot be set up must not prevent the use of another one.
                        Err(trouble)
                            if wanted.is_some_and(|wanted| version::is(wanted, &major.to_string())) =>
                        {
                            return Err(trouble);
                        }
                        Err(trouble) => eprintln!("HIP {major}: {trouble}"),
                    }
                }
            }
            let names = there.iter().map(|runtime| &*runtime.version);
            let names = names.chain(packages.iter().map(|packages| &*packages.version));
            let chosen = version::newest(names, wanted)?;
            if let Some(packages) = packages.iter().find(|packages| packages.version == chosen) {
                return unpack::set_up(&self.root, packages);
            }
            let chosen = there.iter().position(|runtime| runtime.version == chosen).unwrap_or_default();
            let runtime = there.swap_remove(chosen);
            runtime.check()?;
            Ok(runtime)
        })
    }

    /// Returns this command as a user starts it.
    pub(crate) fn this_command(&self) -> Command {
        let mut command = Command::new("cargo");
        command.arg("test-all");
        if self.elsewhere {
            command.arg("--folder").arg(&self.root);
        }
        command
    }

    /// Returns the folder in which NVIDIA's own library is unpacked, with apt's state for it.
    pub(crate) fn nvidia(&self) -> PathBuf {
        self.root.join("nvidia")
    }

    /// Runs `work` while no other process of this program works in the folder. Refuses machines without packages.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
        supported(std::env::consts::OS, std::env::consts::ARCH)?;
        fs::create_dir_all(&self.root).doing(|| {
            format!("{} cannot be created; choose another place with --folder", self.root.display())
        })?;
        let _alone = alone(&self.root.join("lock"))?;
        work()
    }

    fn found(&self) -> Answer<Vec<Named>> {
        self.alone(|| self.found_alone())
    }

    fn found_alone(&self) -> Answer<Vec<Named>> {
        Ok(self.packages()?.into_iter().map(|(major, packages)| self.set_up(major, packages)).collect())
    }

    fn packages(&self) -> Answer<Vec<debs::Found>> {
        match &self.named {
            Some(folder) => debs::read(folder).doing(|| format!("{DEBS} names {}", folder.display())),
            None => apt::packages(&self.root, self.update),
        }
    }

    fn set_up(&self, major: u32, packages: Answer<Packages>) -> Named {
        match packages {
            Ok(packages) => (format!("HIP {}", packages.version), unpack::set_up(&self.root, &packages)),
            Err(trouble) => (format!("HIP {major}"), Err(trouble)),
        }
    }
}

/// Locks the folder. Two processes would unpack into each other's files, so the second waits.
#[cfg(unix)]
fn alone(path: &Path) -> Answer<fs::File> {
    let file = fs::File::create(path)
        .doing(|| format!("{} cannot be written; choose another place with --folder", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .doing(|| path.display().to_string())?;
    Ok(file)
}

/// Is never reached: packages exist for Linux alone.
#[cfg(not(unix))]
fn alone(_: &Path) -> Answer {
    Ok(())
}

/// Refuses machines for which there are no packages.
fn supported(system: &str, processor: &str) -> Answer {
    if system != "linux" || processor != "x86_64" {
        return Err(Trouble::new(format!(
            "this is {system} on {processor}, and there are only x86-64 packages for Linux; \
             run the tests that need them on such a machine"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::supported;

    #[test]
    fn other_machines_are_told() {
        assert!(supported("linux", "x86_64").is_ok());
        for (system, processor) in [("linux", "aarch64"), ("macos", "x86_64")] {
            let text = supported(system, processor).unwrap_err().to_string();
            assert!(text.contains(processor) && text.contains("only x86-64 packages"), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}
