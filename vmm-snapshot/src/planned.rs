//! The mappings and memories of a plan.

use gpu_vmm_core::{AccessMap, Bytes, Properties};

/// A mapping to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedMapping {
    pub(crate) offset: Bytes,
    /// Its index in [`Plan::memories`](crate::plan::Plan::memories).
    pub(crate) memory: usize,
    pub(crate) access: AccessMap,
}

/// Memory to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlannedMemory {
    pub(crate) size: Bytes,
    pub(crate) properties: Properties,
    /// The file's memories that hold its contents, in sequence.
    pub(crate) sources: Vec<usize>,
}
