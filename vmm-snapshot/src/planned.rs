//! What a plan is made of.

use gpu_vmm_core::{AccessMap, Bytes, Properties};

/// A mapping to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedMapping {
    pub(crate) offset: Bytes,
    /// Its place in [`Plan::memories`](crate::plan::Plan::memories).
    pub(crate) memory: usize,
    pub(crate) access: AccessMap,
}

/// Memory to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlannedMemory {
    pub(crate) size: Bytes,
    pub(crate) properties: Properties,
    /// Which of the file's memories are its contents, one behind the other.
    pub(crate) sources: Vec<usize>,
}
