//! The host, as a place of memory: two types of place came with 12.2, and there is one NUMA node.

use crate::settings::settings;

/// Whether this version knows memory of the host.
pub(crate) fn is_known() -> bool {
    settings().version >= 12_020
}

/// Whether there is such a node. The documentation: 0 where the system has no NUMA.
pub(crate) const fn has_node(id: i32) -> bool {
    id == 0
}
