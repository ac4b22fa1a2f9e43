//! The resources that this process holds, counted before and after.

use gpu_vmm_core::{Backend, Bytes};
use gpu_vmm_host::HostBackend;
use gpu_vmm_testkit::{FaultInject, Live};

/// Descriptors, mapped files, and the backend's live objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    descriptors: usize,
    mapped: usize,
    live: Live,
    free: Bytes,
}

impl Left {
    /// Counts the current resources. No other thread of the process may allocate meanwhile.
    pub(crate) fn now(backend: &FaultInject<HostBackend>) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: descriptors(),
            mapped: maps.lines().filter(|line| line.contains("memfd:gpu-vmm-host")).count(),
            live: backend.live(),
            free: backend.devices().iter().map(|one| backend.memory_info(one.id).unwrap().free).sum(),
        }
    }
}

/// The open files of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
