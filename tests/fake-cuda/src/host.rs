//! The host as a location of memory. Version 12.2 introduced two types of location; there is one NUMA node.

use crate::settings::settings;

/// Returns whether the configured version supports memory of the host.
pub(crate) fn is_known() -> bool {
    settings().version >= 12_020
}

/// The only node. The documentation says 0 for systems without NUMA.
pub(crate) const NODE: i32 = 0;
