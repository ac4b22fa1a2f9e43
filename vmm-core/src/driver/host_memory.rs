//! The host memory that a process can still take, by the system's estimate.
//!
//! Linux gives out more memory than there is, and ends a process that writes to memory which does not exist. So the stores ask
//! before they take memory for contents: contents that are refused here are still in the device's memory.

use crate::types::{Bytes, Detail, DeviceId, DriverError, Error, Operation, Result};

/// Returns [`Detail::BackingStoreFull`] if the host has less available memory than `needed`. Where the system does not say how much
/// it has, every amount is allowed.
pub(crate) fn check_available(operation: Operation, needed: Bytes) -> Result<()> {
    match system::available() {
        Some(Host { available: free, total: capacity }) if free < needed => {
            Err(Error::new(operation, Detail::BackingStoreFull { needed, free, capacity }))
        }
        _ => Ok(()),
    }
}

/// Creates the error of a call that could not get `requested` bytes of host memory: [`Detail::OutOfMemory`] of the
/// [host](DeviceId::HOST), with what the system says that the host has. Where it does not say that, the amounts are zero.
#[must_use]
pub fn host_out_of_memory(operation: Operation, requested: Bytes, source: DriverError) -> Error {
    let Host { available: free, total } =
        system::available().unwrap_or(Host { available: Bytes::ZERO, total: Bytes::ZERO });
    Error::new(operation, Detail::OutOfMemory { device: DeviceId::HOST, requested, free, total, source })
}

/// The memory of the host, or of the control group that limits the process most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Host {
    available: Bytes,
    total: Bytes,
}

#[cfg(target_os = "linux")]
mod system {
    use super::Host;
    use crate::types::Bytes;
    use std::fs::read_to_string;
    use std::path::Path;

    pub(super) fn available() -> Option<Host> {
        let machine = of_machine(&read_to_string("/proc/meminfo").ok()?);
        let group = read_to_string("/proc/self/cgroup").ok();
        let groups = group.as_deref().and_then(path_of_group).into_iter().flat_map(|path| {
            let root = Path::new("/sys/fs/cgroup");
            Path::new(path)
                .ancestors()
                .filter_map(|group| of_group(&root.join(relative(group))))
                .collect::<Vec<_>>()
        });
        least(machine, groups)
    }

    /// Returns the one of the machine and the control groups that leaves the process the least.
    pub(super) fn least(machine: Option<Host>, groups: impl Iterator<Item = Host>) -> Option<Host> {
        machine.into_iter().chain(groups).min_by_key(|host| host.available)
    }

    /// Reads `/proc/meminfo`.
    pub(super) fn of_machine(text: &str) -> Option<Host> {
        let kib = |name| value_of(text, name).map(Bytes::kib);
        Some(Host { available: kib("MemAvailable:")?, total: kib("MemTotal:")? })
    }

    /// Returns the process's group of version 2, from the text of `/proc/self/cgroup`.
    pub(super) fn path_of_group(text: &str) -> Option<&str> {
        text.lines().find_map(|line| line.strip_prefix("0::"))
    }

    fn relative(path: &Path) -> &Path {
        path.strip_prefix("/").unwrap_or(path)
    }

    /// Reads the limit of the group in a folder, or returns `None` if it has none. Pages of files that are not in memory for a
    /// `tmpfs` can be written to their disk, and count as free.
    pub(super) fn of_group(folder: &Path) -> Option<Host> {
        let read = |file| read_to_string(folder.join(file)).ok();
        let number = |file| read(file)?.trim().parse().ok();
        let (most, used): (u64, u64) = (number("memory.max")?, number("memory.current")?);
        let stat = read("memory.stat")?;
        let of = |name| value_of(&stat, name).unwrap_or(0);
        let free_again = of("file").saturating_sub(of("shmem")) + of("slab_reclaimable");
        let available = most.saturating_sub(used.saturating_sub(free_again));
        Some(Host { available: Bytes(available), total: Bytes(most) })
    }

    /// Returns the number after a name, in a text of one name and number a line.
    fn value_of(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Host;

    pub(super) fn available() -> Option<Host> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{create_dir, write};

    #[test]
    fn oversized_request_error_has_numbers() {
        let error = check_available(Operation::Suspend, Bytes::gib(1 << 30)).unwrap_err();
        let Detail::BackingStoreFull { needed, free, capacity } = error.detail() else { panic!("{error}") };
        assert!(*needed == Bytes::gib(1 << 30) && free <= capacity && !capacity.is_zero(), "{error}");
        check_available(Operation::Suspend, Bytes(1)).unwrap();
    }

    #[test]
    fn the_machine_tells_what_is_available() {
        let text = "MemTotal:       131981020 kB\nMemFree:        1 kB\nMemAvailable:   4096 kB\n";
        let host = Host { available: Bytes::mib(4), total: Bytes::kib(131_981_020) };
        assert_eq!(system::of_machine(text), Some(host));
        assert_eq!(system::of_machine("MemTotal: 1 kB\n"), None, "an old kernel");
    }

    #[test]
    fn the_narrowest_limit_counts() {
        let host = |available| Host { available: Bytes(available), total: Bytes(100) };
        assert_eq!(system::least(Some(host(50)), [host(70), host(20), host(30)].into_iter()), Some(host(20)));
        assert_eq!(system::least(Some(host(10)), [host(70)].into_iter()), Some(host(10)));
        assert_eq!(system::least(None, [host(70)].into_iter()), Some(host(70)));
        assert_eq!(system::least(None, std::iter::empty()), None);
    }

    #[test]
    fn a_group_of_version_2_is_found() {
        assert_eq!(system::path_of_group("12:memory:/old\n0::/a/b\n"), Some("/a/b"));
        assert_eq!(system::path_of_group("12:memory:/old\n"), None);
    }

    #[test]
    fn group_counts_limit_and_dirty_pages() {
        let folder = std::env::temp_dir().join(format!("gpu-vmm-group-{}", std::process::id()));
        create_dir(&folder).unwrap();
        let is = |max: &str, current: &str, stat: &str| {
            for (file, text) in [("memory.max", max), ("memory.current", current), ("memory.stat", stat)] {
                write(folder.join(file), text).unwrap();
            }
            system::of_group(&folder)
        };
        let host = |available, total| Some(Host { available: Bytes(available), total: Bytes(total) });
        assert_eq!(is("1000\n", "400\n", "anon 400\n"), host(600, 1000));
        let stat = "anon 200\nfile 150\nshmem 50\nslab_reclaimable 7\n";
        assert_eq!(is("1000\n", "400\n", stat), host(707, 1000), "a tmpfs stays in memory");
        assert_eq!(is("1000\n", "1200\n", "anon 1200\n"), host(0, 1000));
        assert_eq!(is("max\n", "400\n", "anon 400\n"), None, "there is no limit");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(system::of_group(&folder), None);
    }
}
