//! The computer and its operating system, as reports describe them.

use gpu_vmm_core::Vendor;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::Path;

/// The computer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, or its architecture if the system does not report the name.
    pub cpu: String,
    /// The number of CPU threads that this process may use.
    pub cpus: usize,
    /// The kernel's total memory.
    pub memory_bytes: Option<u64>,
}

/// The operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// The kernel with its version.
    pub kernel: String,
    /// The distribution's name for itself.
    pub distribution: Option<String>,
    /// The sign of a container: a file or a part of the control group's name. `None` if the system shows no such sign.
    pub container: Option<String>,
}

impl Machine {
    /// Describes this computer.
    #[must_use]
    pub fn this() -> Self {
        let cpu = value("/proc/cpuinfo", "model name", ':');
        let memory = value("/proc/meminfo", "MemTotal", ':');
        let kib = memory.and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
        Self {
            cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.map(|kib| kib << 10),
        }
    }
}

impl System {
    /// Describes this operating system.
    #[must_use]
    pub fn this() -> Self {
        let one_line = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        let kernel = one_line("/proc/sys/kernel/ostype")
            .zip(one_line("/proc/sys/kernel/osrelease"))
            .map(|(name, release)| format!("{name} {release}"));
        let distribution = value("/etc/os-release", "PRETTY_NAME", '=');
        Self {
            kernel: kernel.unwrap_or_else(|| std::env::consts::OS.to_owned()),
            distribution: distribution.map(|name| name.trim_matches('"').to_owned()),
            container: container(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} threads", self.cpu, self.cpus)?;
        match self.memory_bytes {
            Some(bytes) => write!(f, ", {}", gib(bytes)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kernel)?;
        if let Some(distribution) = &self.distribution {
            write!(f, ", {distribution}")?;
        }
        if let Some(container) = &self.container {
            write!(f, ", in a container ({container})")?;
        }
        Ok(())
    }
}

/// Formats a size in GiB.
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Returns the first value after a name in a system file.
fn value(path: &str, name: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(separator));
    let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

/// Looks for the signs that the usual kinds of container leave.
fn container() -> Option<String> {
    let files = ["/.dockerenv", "/run/.containerenv"];
    if let Some(file) = files.iter().find(|file| Path::new(file).exists()) {
        return Some((*file).to_owned());
    }
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let kinds = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let kind = kinds.iter().find(|kind| groups.contains(**kind))?;
    Some((*kind).to_owned())
}

/// Returns the version of a vendor's kernel module.
pub(super) fn kernel_module(vendor: Vendor) -> Option<String> {
    let text = fs::read_to_string(match vendor {
        Vendor::Cuda => "/proc/driver/nvidia/version",
        Vendor::Hip => "/sys/module/amdgpu/version",
        _ => return None,
    });
    version_in(&text.ok()?)
}

/// Returns the first word that consists of numbers separated by dots.
fn version_in(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_module_version_is_found() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:  gcc 11.5.0\n";
        assert_eq!(version_in(text).as_deref(), Some("580.159.04"));
        assert_eq!(version_in("6.12.12\n").as_deref(), Some("6.12.12"));
        assert_eq!(version_in("NVRM version: none"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_tells_of_the_machine() {
        let machine = Machine::this();
        assert!(machine.cpus > 0 && machine.memory_bytes > Some(1 << 20), "{machine:?}");
        let system = System::this();
        assert!(system.kernel.starts_with("Linux "), "{system:?}");
        assert!(system.to_string().starts_with(&system.kernel));
    }
}
