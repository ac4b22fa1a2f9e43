//! The amount of memory of the host.

use gpu_vmm_core::{Bytes, MemoryInfo};

/// Returns the host's free and total memory, if the system reports them.
pub(crate) fn of_host() -> Option<MemoryInfo> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Parses lines such as `MemAvailable:   123 kB`.
fn parse(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(Bytes::kib(line.split_whitespace().next()?.parse().ok()?))
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_numbers_are_read() {
        let text = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(parse(text), Some(MemoryInfo { free: Bytes::mib(8), total: Bytes::mib(16) }));
        assert_eq!(parse("MemTotal:       16384 kB\n"), None);
        assert_eq!(parse("MemTotal:\nMemAvailable: 1 kB\n"), None);
    }
}
