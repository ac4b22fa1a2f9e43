//! The settings from the environment, read at the first call.

mod parse;

use crate::abi::Status;
use gpu_vmm_test_settings::{Times, of_process};
use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

/// All variables begin with this.
pub(crate) const PREFIX: &str = "HSA_SIM_";

/// The tables have entries for this number of GPUs.
pub(crate) const MAX_GPUS: usize = 8;
/// The CPU, and the GPUs.
pub(crate) const AGENTS: usize = MAX_GPUS + 1;

/// The settings; `README.md` explains them.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `GPUS`
    pub(crate) gpus: usize,
    /// `GFX`: the instruction set, such as `gfx90a:sramecc+:xnack-`
    pub(crate) gfx: String,
    /// `MEM_MB`: the memory size of each GPU in bytes
    pub(crate) memory: usize,
    /// `GRANULE`: the allocation granularity
    pub(crate) granule: usize,
    /// `REC_GRANULE`: the recommended granularity
    pub(crate) recommended_granule: usize,
    /// `P2P`: whether a GPU can access another's memory
    pub(crate) p2p: bool,
    /// `LARGE_BAR`: whether the CPU can access a GPU's memory
    pub(crate) large_bar: bool,
    /// `VMM`: whether the agents report support for virtual memory
    pub(crate) vmm: bool,
    /// `HOST_ACCESS`: whether a GPU's access gives the CPU access to virtual memory too
    pub(crate) host_access: bool,
    /// `KEEPS_MEMORY`: whether unmapped memory is kept until its addresses are reused
    pub(crate) keeps_memory: bool,
    /// `KEEPS_DESCRIPTORS`: whether every export of memory returns the same descriptor, which the runtime closes
    pub(crate) keeps_descriptors: bool,
    /// `HOST_FAULTS`: whether the CPU gets SIGBUS from memory to which it has access
    pub(crate) host_faults: bool,
    /// `UUIDS`: whether each GPU has a unique number
    pub(crate) uuids: bool,
    /// `ON_FAULT`: whether a GPU's memory fault ends the process
    pub(crate) abort_on_fault: bool,
    /// `ON_UNKNOWN_KERNEL`: whether a kernel that is not simulated ends the process
    pub(crate) abort_on_unknown_kernel: bool,
    /// `KERNELS`: whether the program's kernels do anything
    pub(crate) run_kernels: bool,
    /// `JUNK`: whether a GPU's new memory is filled with junk
    pub(crate) junk: bool,
    /// `FAIL`
    pub(crate) failures: Vec<Failure>,
    /// `DELAY`, by the function's index in the list of calls
    pub(crate) delays: HashMap<usize, Duration>,
    /// `TRACE`
    pub(crate) trace: bool,
}

/// A call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) call: usize,
    pub(crate) times: Times,
    pub(crate) status: Status,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gpus: 1,
            gfx: "gfx90a:sramecc+:xnack-".to_owned(),
            memory: 4096 << 20,
            granule: 4096,
            recommended_granule: 2 << 20,
            p2p: true,
            large_bar: true,
            vmm: true,
            host_access: false,
            keeps_memory: false,
            keeps_descriptors: false,
            host_faults: false,
            uuids: true,
            abort_on_fault: true,
            abort_on_unknown_kernel: true,
            run_kernels: true,
            junk: false,
            failures: Vec::new(),
            delays: HashMap::new(),
            trace: false,
        }
    }
}

/// Returns the process's settings.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| of_process("hsa-sim", PREFIX, Settings::set));
    &SETTINGS
}
