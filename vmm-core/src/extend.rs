//! Types for authors of backends and of extensions. Programs that only use gpu-vmm do not need them.

pub use crate::driver::{
    Deferred, DropLog, HostPages, check_same, check_virtual_memory, host_out_of_memory, usable_device,
};
#[doc(inline)]
pub use crate::forward;
pub use crate::memory::{BlockOwner, ChunkContents, Segment, create_now, files, free_deferred, rounded_size};
pub use crate::region::{
    ADDRESS_SPACE, LendMemory, MappedMemory, PORTABLE_UNIT, RegionSettings, check_reach, lend_elements,
};
#[cfg(feature = "profiler")]
#[doc(hidden)]
pub use crate::trace::Range;
#[doc(hidden)]
pub use crate::trace::{allow_nvtx, event, pool_memory, span};
#[cfg(windows)]
pub use crate::types::handles;
#[cfg(unix)]
pub use crate::types::system;
pub use crate::types::{
    DriverProcess, ExtensionError, InstanceId, Lock, NoWaits, Process, call_failed, is_exiting,
    missing_numa_node, no_device, out_of_addresses, user_of_addresses,
};
/// The crate that [`span`] and [`event`] report to.
#[cfg(feature = "tracing")]
#[doc(hidden)]
pub use tracing;
