//! The host, as a place of memory: two types of place came with 12.2, and there is one NUMA node.

use crate::settings::settings;

/// Whether this version knows memory of the host.
pub(crate) fn is_known() -> bool {
    settings().version >= 12_020
}

/// The one node. The documentation: 0 where the system has no NUMA.
pub(crate) const NODE: i32 = 0;
