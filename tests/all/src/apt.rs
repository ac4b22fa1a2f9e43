//! Fetches packages from Debian without touching the system: HIP runtimes from sid and experimental here, and any other
//! package for the modules that need it.
//!
//! apt runs with its own configuration, lists, cache and record of installed packages. That record is empty, so what apt
//! would install is the closure of a runtime down to the C library. apt only downloads those packages.

use crate::debs::DEBS;
use crate::debs::{self, Found};
use crate::mirror;
use crate::trouble::{Answer, Doing, Trouble};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names a mirror to use instead of the machine's.
const MIRROR: &str = "HIP_RUNTIME_MIRROR";

/// The keys with which Debian signs its archive; other systems have them in the package debian-archive-keyring.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The versions to look for; newer ones are found as well.
const MAJORS: [u32; 2] = [6, 7];

/// Returns the packages of the newest version of each HIP in `root`. Fetches them if they are missing or if `update` is set.
pub(crate) fn packages(root: &Path, update: bool) -> Answer<Vec<Found>> {
    let debs = root.join("debs");
    let mut have = debs::read(&debs).unwrap_or_default();
    have.retain(|(_, packages)| !update && packages.is_ok());
    let has = |major: &u32| have.iter().any(|(had, _)| had == major);
    let missing: Vec<u32> = MAJORS.into_iter().filter(|major| !has(major)).collect();
    if missing.is_empty() {
        return Ok(have);
    }
    let new = match fetch(root, debs) {
        Ok(new) => new,
        // Packages that are already there can be tested without a network.
        Err(trouble) if !have.is_empty() => {
            missing.into_iter().map(|major| (major, Err(trouble.clone()))).collect()
        }
        Err(trouble) => return Err(trouble),
    };
    have.retain(|(major, _)| new.iter().all(|(newer, _)| newer != major));
    have.extend(new);
    have.sort_by_key(|(major, _)| *major);
    Ok(have)
}

/// Fetches every HIP version that Debian has.
fn fetch(root: &Path, debs: PathBuf) -> Answer<Vec<Found>> {
    let apt = Apt::new(root, debs, format!("set {DEBS} to a folder of packages"))?;
    let majors = apt.update()?;
    let failures: Vec<Found> =
        majors.into_iter().filter_map(|major| Some((major, Err(apt.fetch(major).err()?)))).collect();
    apt.tidy()?;
    let mut found = debs::read(&apt.debs).unwrap_or_default();
    // Keep packages of an earlier run out of the result if the version could not be fetched now.
    found.retain(|(major, _)| failures.iter().all(|(failed, _)| failed != major));
    found.extend(failures);
    Ok(found)
}

/// apt with its own configuration.
#[derive(Debug)]
pub(crate) struct Apt {
    /// The folder of its state.
    home: PathBuf,
    /// The folder for packages.
    debs: PathBuf,
    mirrors: Vec<String>,
    /// What the user can do if apt cannot fetch.
    instead: String,
}

impl Apt {
    /// Creates the configuration in `root`; packages go to `debs`.
    pub(crate) fn new(root: &Path, debs: PathBuf, instead: String) -> Answer<Self> {
        // Without apt, its sources are missing too; report the missing apt first.
        Command::new("apt-get")
            .arg("--version")
            .output()
            .map_err(|error| cannot_run("apt-get", &error, &instead))?;
        let mirrors = match std::env::var(MIRROR) {
            Ok(mirror) if !mirror.is_empty() => vec![mirror],
            _ => mirror::of_this_machine(Path::new("/etc/apt")),
        };
        if mirrors.is_empty() {
            return Err(Trouble::new(format!(
                "this machine's apt sources name no mirror of Debian; set {MIRROR} to the address of one, or {instead}"
            )));
        }
        if !Path::new(KEYS).exists() {
            return Err(Trouble::new(format!(
                "{KEYS} is missing; install debian-archive-keyring, or {instead}"
            )));
        }
        let home = root.join("apt");
        for folder in ["lists/partial", "cache", "none/partial", "state"] {
            let folder = home.join(folder);
            fs::create_dir_all(&folder).doing(|| folder.display().to_string())?;
        }
        fs::create_dir_all(debs.join("partial")).doing(|| debs.display().to_string())?;
        let apt = Self { home, debs, mirrors, instead };
        apt.write("state/status", "")?;
        apt.write("apt.conf", &apt.configuration())?;
        Ok(apt)
    }

    fn write(&self, name: &str, text: &str) -> Answer {
        let path = self.home.join(name);
        fs::write(&path, text).doing(|| path.display().to_string())
    }

    fn configuration(&self) -> String {
        let (home, debs) = (self.home.display(), self.debs.display());
        // Read after the machine's configuration, which may have proxy settings. Its hooks would touch the system and are
        // cleared.
        format!(
            r#"Dir::State "{home}/state";
Dir::State::status "{home}/state/status";
Dir::State::lists "{home}/lists";
Dir::Cache "{home}/cache";
Dir::Cache::archives "{debs}";
Dir::Etc::sourcelist "{home}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Log "{home}/state";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::Contents-deb;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Sandbox::User "root";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "2";
"#
        )
    }

    /// Reads the archive's lists from the first mirror that has them, and returns the HIP versions that can be fetched.
    fn update(&self) -> Answer<BTreeSet<u32>> {
        let look = || self.majors().map(|majors| (!majors.is_empty()).then_some(majors));
        let majors = self.read_lists("libamdhip64", &["sid main", "experimental main"], look)?;
        Ok(majors.into_iter().chain(MAJORS).collect())
    }

    /// Reads the lists of suites with their components from the first mirror in which `look` finds something.
    pub(crate) fn read_lists<T>(
        &self,
        package: &str,
        suites: &[&str],
        look: impl Fn() -> Answer<Option<T>>,
    ) -> Answer<T> {
        let mut refusals = Vec::new();
        for mirror in &self.mirrors {
            eprintln!("asking {mirror} for {package}");
            let source = |suite| format!("deb [arch=amd64 signed-by={KEYS}] {mirror} {suite}\n");
            self.write("sources.list", &suites.iter().map(source).collect::<String>())?;
            match self.run("apt-get", &["-qq", "update"]).and_then(|_| look()) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => refusals.push(format!("{mirror} has no {package}")),
                Err(trouble) => refusals.push(trouble.to_string()),
            }
        }
        Err(Trouble::new(format!(
            "{}; set {MIRROR} to the address of a reachable mirror, or {}",
            refusals.join("; "),
            self.instead
        )))
    }

    /// The HIP versions in the lists that can be used.
    fn majors(&self) -> Answer<BTreeSet<u32>> {
        const NAME: &str = "libamdhip64-";
        let names = self.run("apt-cache", &["pkgnames", NAME])?;
        let majors = names.lines().filter_map(|name| name.strip_prefix(NAME)?.parse().ok());
        Ok(majors.filter(|major| *major >= MAJORS[0]).collect())
    }

    /// Fetches the newest version of a HIP whose dependencies are available.
    fn fetch(&self, major: u32) -> Answer {
        let name = format!("libamdhip64-{major}");
        let candidates = self.run("apt-cache", &["madison", &name])?;
        let mut refusals = Vec::new();
        for line in candidates.lines() {
            let mut columns = line.split('|').map(str::trim);
            let (Some(version), Some(source)) = (columns.nth(1), columns.next()) else { continue };
            let suite = if source.contains("experimental/") { "experimental" } else { "sid" };
            match self.fetch_version(major, version, suite) {
                Ok(()) => return Ok(()),
                Err(trouble) => {
                    eprintln!("{name} {version} of {suite} cannot be fetched: {trouble}");
                    refusals.push(format!("{version} of {suite}: {trouble}"));
                }
            }
        }
        Err(Trouble::new(if refusals.is_empty() {
            format!("Debian sid and experimental have no {name} now; set {DEBS} to a folder that has it")
        } else {
            format!(
                "{name} cannot be fetched; try again, or set {DEBS} to a folder that has it: {}",
                refusals.join("; ")
            )
        }))
    }

    fn fetch_version(&self, major: u32, version: &str, suite: &str) -> Answer {
        debs::upstream(version)?;
        let mut wanted = vec![format!("libamdhip64-{major}={version}")];
        // The kernel compiler is a separate package, and its data are in another that it does not depend on.
        for also in [format!("libhiprtc{major}"), format!("libhiprtc-builtins{major}")] {
            if !self.run("apt-cache", &["madison", &also])?.is_empty() {
                wanted.push(also);
            }
        }
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let install = ["-qq", "--yes", "--target-release", suite, "install"];
        // apt would not list packages that are already in the cache.
        let nowhere = format!("Dir::Cache::archives={}/none", self.home.display());
        let named =
            self.run("apt-get", &[&["-o", &nowhere, "--print-uris"], &install[..], &wanted].concat())?;
        // 'ADDRESS' NAME SIZE HASH
        let files =
            named.lines().filter(|line| line.starts_with('\'')).filter_map(|line| line.split(' ').nth(1));
        let list: String = files.map(|file| format!("{file}\n")).collect();
        eprintln!("fetching libamdhip64-{major} {version} of {suite} ({} packages)", list.lines().count());
        self.run("apt-get", &[&["--download-only"], &install[..], &wanted].concat())?;
        let path = debs::list(&self.debs, major);
        fs::write(&path, list).doing(|| path.display().to_string())
    }

    /// Removes packages that are in no list.
    fn tidy(&self) -> Answer {
        let entries = || fs::read_dir(&self.debs).doing(|| self.debs.display().to_string());
        let paths = |suffix: &'static str| {
            let paths = entries()?.filter_map(|entry| Some(entry.ok()?.path()));
            Ok(paths.filter(move |path| path.to_string_lossy().ends_with(suffix)))
        };
        let lists: String = paths(".list")?.filter_map(|list| fs::read_to_string(list).ok()).collect();
        let named: HashSet<&str> = lists.lines().collect();
        for package in paths(".deb")? {
            if package.file_name().is_some_and(|name| !named.contains(name.to_string_lossy().as_ref())) {
                fs::remove_file(&package).doing(|| package.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Runs a program of apt's in the folder of packages. Returns its output, or its errors if it fails.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Answer<String> {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.home.join("apt.conf")).args(arguments).env("LC_ALL", "C");
        command.current_dir(&self.debs);
        let answer = command.output().map_err(|error| cannot_run(program, &error, &self.instead))?;
        let (text, errors) =
            (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
        if answer.status.success() {
            return Ok(text.into_owned());
        }
        // apt writes the reason for unmet dependencies to standard output.
        let unmet = text.lines().filter(|line| line.contains("Depends: "));
        // The first error is the cause, the others are consequences.
        let said = errors.lines().find(|line| line.starts_with("E: "));
        let said: Vec<&str> = said.into_iter().chain(unmet).collect();
        let said = if said.is_empty() { errors.into_owned() } else { said.join("\n") };
        Err(Trouble::new(format!("{program}: {said}")))
    }
}

fn cannot_run(program: &str, error: &std::io::Error, instead: &str) -> Trouble {
    match error.kind() {
        ErrorKind::NotFound => Trouble::new(format!(
            "{program}, which fetches Debian packages, is not installed; install apt, or {instead}"
        )),
        _ => Trouble::new(format!("{program} cannot be run: {error}")),
    }
}
