//! The memory that the host can really provide.
//!
//! The host backend's limit is the machine's whole memory, but other programs and the limit of a container leave less.
//! The kernel kills a process that uses more, instead of returning an error, so the limits are read first.

use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Result, Vendor};
use std::path::Path;

/// Returns the device's free memory, on the host at most what the system can provide.
pub(crate) fn free(backend: &AnyBackend, device: DeviceId) -> Result<Bytes> {
    let counted = backend.memory_info(device)?.free;
    if backend.vendor() != Vendor::Host {
        return Ok(counted);
    }
    Ok([available(), container()].into_iter().flatten().fold(counted, Bytes::min))
}

/// Returns the kernel's estimate of the memory that programs can still get.
fn available() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().parse().ok()
}

/// Returns the memory that the limits of this process's control groups leave, if there are any.
fn container() -> Option<Bytes> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    root.join(own).ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

/// Returns the memory that a group may still use. Cached files count as used, but the kernel drops them when memory is
/// needed.
fn left(group: &Path) -> Option<Bytes> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let limit = number("memory.max")?;
    let taken = number("memory.current")?;
    let files: u64 = read("memory.stat")?
        .lines()
        .filter_map(|line| line.strip_prefix("active_file ").or_else(|| line.strip_prefix("inactive_file ")))
        .filter_map(|number| number.parse::<u64>().ok())
        .sum();
    Some(Bytes(limit.saturating_sub(taken.saturating_sub(files))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_says_what_is_available() {
        let available = available();
        assert!(available.is_some_and(|bytes| bytes > Bytes::mib(1)), "{available:?}");
    }

    #[test]
    fn memory_limit_does_not_count_files() {
        let group = std::env::temp_dir().join(format!("gpu-vmm-{}", std::process::id()));
        std::fs::create_dir_all(&group).unwrap();
        let stat = "anon 500\ninactive_file 200\nactive_file 100\nshmem 50\n";
        for (name, text) in [("memory.max", "1000\n"), ("memory.current", "800\n"), ("memory.stat", stat)] {
            std::fs::write(group.join(name), text).unwrap();
        }
        assert_eq!(left(&group), Some(Bytes(500)));
        std::fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(left(&group), None);
        std::fs::remove_dir_all(&group).unwrap();
    }
}
