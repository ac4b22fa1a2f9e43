//! The NUMA nodes of this machine.

use std::path::Path;

/// Returns the reason why memory cannot be placed on a NUMA node: the kernel has none of this number. Returns `None` if it has, or if
/// that is unknown: off Linux, and in a sandbox that hides `/sys`.
#[must_use]
pub fn missing_numa_node(node: u32) -> Option<String> {
    let folder = Path::new("/sys/devices/system/node");
    let online = std::fs::read_to_string(folder.join("online")).ok()?;
    let is_there = folder.join(format!("node{node}")).is_dir();
    (!is_there).then(|| format!("this machine has no NUMA node {node}; it has {}", online.trim()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_of_the_kernel() {
        assert_eq!(missing_numa_node(0), None);
        let known = Path::new("/sys/devices/system/node/online").is_file();
        let text = missing_numa_node(u32::MAX);
        assert_eq!(text.is_some(), known, "{text:?}");
        assert!(text.is_none_or(|text| text.contains("no NUMA node 4294967295; it has 0")));
    }
}
