//! The list in `tests/mutations`: the place of each mutation and the sentence that states the fault.

use crate::trouble::{Answer, Doing, Trouble};
use serde::Deserialize;
use std::fmt;
use std::fs;
use std::path::Path;

/// The path of the list in the workspace.
pub(crate) const FOLDER: &str = "tests/mutations";

/// All mutations.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct List {
    pub(crate) change: Vec<Change>,
    without: Vec<Without>,
}

/// An expression in the library's source, and its wrong replacement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    pub(crate) name: String,
    wrong: String,
    /// The path from the workspace's root.
    pub(crate) file: String,
    /// The expression. It occurs once in the file.
    pub(crate) text: String,
    pub(crate) becomes: String,
    by: String,
    #[serde(default)]
    on: On,
}

/// A HIP quirk whose workaround is left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Without {
    quirk: String,
    wrong: String,
    by: String,
    on: On,
}

/// The driver or the tool that must catch a mutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum On {
    /// Host memory.
    #[default]
    Host,
    /// AMD's runtime of this major version.
    Hip(u32),
    /// The fake NVIDIA driver.
    Cuda,
    /// The models of a package, under every schedule.
    Loom(Models),
    /// The whole pool, under random schedules.
    Shuttle,
    /// The tests of a package that is in [`TESTED`]; a backend's on its vendor's driver.
    Tests(Package),
}

/// The name of a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Package(pub(crate) &'static str);

/// The packages whose own tests can catch a mutation.
const TESTED: [&str; 13] = [
    "gpu-vmm-core",
    "gpu-vmm-cuda",
    "gpu-vmm-hip",
    "gpu-vmm-host",
    "gpu-vmm-pool",
    "gpu-vmm-premap",
    "gpu-vmm-serve",
    "gpu-vmm-share",
    "gpu-vmm-snapshot",
    "gpu-vmm-c",
    "gpu-vmm-cli",
    "gpu-vmm-fake-cuda",
    "gpu-vmm-fake-hip",
];

/// Models for loom, by their package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Models {
    Pool,
    Premap,
}

impl Models {
    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::Pool => "gpu-vmm-pool",
            Self::Premap => "gpu-vmm-premap",
        }
    }
}

impl TryFrom<String> for On {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(major) = text.strip_prefix("hip ").and_then(|major| major.parse().ok()) {
            return Ok(Self::Hip(major));
        }
        let tested = text.strip_prefix("tests ").and_then(|name| TESTED.into_iter().find(|one| *one == name));
        match tested {
            Some(package) => Ok(Self::Tests(Package(package))),
            None if text == "host" => Ok(Self::Host),
            None if text == "cuda" => Ok(Self::Cuda),
            None if text == "loom pool" => Ok(Self::Loom(Models::Pool)),
            None if text == "loom premap" => Ok(Self::Loom(Models::Premap)),
            None if text == "shuttle" => Ok(Self::Shuttle),
            None => Err(format!(
                "{text:?} is neither `host`, `cuda`, `loom pool`, `loom premap`, `shuttle`, `hip` with a major version, as in `hip 7`, nor `tests` with one of {}",
                TESTED.join(", ")
            )),
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cuda => f.pad("cuda"),
            Self::Hip(major) => f.pad(&format!("hip {major}")),
            Self::Loom(Models::Pool) => f.pad("loom pool"),
            Self::Loom(Models::Premap) => f.pad("loom premap"),
            Self::Shuttle => f.pad("shuttle"),
            Self::Tests(Package(package)) => f.pad(&format!("tests {package}")),
        }
    }
}

/// The environment variable that names the active change.
pub(crate) const CHANGED: &str = "GPU_VMM_MUTATION";

/// The environment variable that names the HIP quirk without its workaround, if gpu-vmm-hip has the feature `quirk-switch`.
pub(crate) const WITHOUT: &str = "GPU_VMM_HIP_WITHOUT_QUIRK";

/// A mutation that is in the copy and can be switched on.
#[derive(Debug)]
pub(crate) struct Mutation<'a> {
    pub(crate) name: String,
    /// The fault, in a sentence.
    pub(crate) wrong: &'a str,
    /// The group of the suite, a case of a group, the test, the model or the scenario that must catch it.
    pub(crate) by: &'a str,
    pub(crate) on: On,
    /// The environment variable that switches it on, and its value.
    pub(crate) switch: (&'static str, &'a str),
}

impl List {
    /// Reads every file of the folder.
    pub(crate) fn read(workspace: &Path) -> Answer<Self> {
        let folder = workspace.join(FOLDER);
        let entries = fs::read_dir(&folder).doing(|| folder.display().to_string())?;
        let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
        files.sort();
        let mut all = Self::default();
        for file in files {
            let shown = || file.display().to_string();
            let text = fs::read_to_string(&file).doing(shown)?;
            let list: Self = basic_toml::from_str(&text).doing(shown)?;
            all.change.extend(list.change);
            all.without.extend(list.without);
        }
        all.check_names()?;
        Ok(all)
    }

    /// Returns all mutations, in the list's order.
    pub(crate) fn mutations(&self) -> impl Iterator<Item = Mutation<'_>> {
        let changes = self.change.iter().map(|change| Mutation {
            name: change.name.clone(),
            wrong: &change.wrong,
            by: &change.by,
            on: change.on,
            switch: (CHANGED, &change.name),
        });
        let quirks = self.without.iter().map(|without| Mutation {
            name: format!("without-{}-{}", without.quirk, without.on).replace(' ', "-"),
            wrong: &without.wrong,
            by: &without.by,
            on: without.on,
            switch: (WITHOUT, &without.quirk),
        });
        changes.chain(quirks)
    }

    fn check_names(&self) -> Answer {
        let mut names: Vec<String> = self.mutations().map(|mutation| mutation.name).collect();
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Trouble::new(format!("{FOLDER} has {} twice", pair[0]))),
            None => Ok(()),
        }
    }
}
