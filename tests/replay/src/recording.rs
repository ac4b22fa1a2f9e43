//! What a file of another program's recorder says beside the allocations: when they were, and what its own allocator held.

use gpu_vmm_core::Bytes;
use serde::Serialize;

/// What is known of the recorded program beside its allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Recording {
    /// The recorder: `PyTorch` or `RMM`.
    pub source: &'static str,
    /// The device's number in the recorded program, if the file names one.
    pub device: Option<u32>,
    /// The number of blocks that existed before the first recorded event, and that the replay allocates first.
    pub blocks_before: u64,
    /// The size of these.
    pub bytes_before: u64,
    /// The most memory that the program's own allocator held, if the file tells.
    pub peak_held: Option<u64>,
    /// The number of allocations that failed in the recorded program. The replay leaves them out.
    pub failed: u64,
    /// The number of allocations of private pools, as of CUDA graphs.
    pub private: u64,
    /// The number of blocks without a recorded free whose addresses were allocated again.
    pub frees_implied: u64,
    /// The number of entries of a kind that is not known, by its name.
    pub unknown: Vec<(String, u64)>,
    /// What the program's allocator aligned blocks to.
    #[serde(skip)]
    pub alignment: Bytes,
    /// The size of pages with which gpu-vmm serves such programs; `None` for the pool's default.
    #[serde(skip)]
    pub page: Option<Bytes>,
    /// The microseconds from the first entry to each allocation and free; empty if the file has no times.
    #[serde(skip)]
    pub(crate) times: Vec<u64>,
    /// The memory that the program's allocator held, from the operation with this number on.
    #[serde(skip)]
    pub(crate) held: Vec<(u64, u64)>,
}

impl Recording {
    pub(crate) const fn new(source: &'static str, device: Option<u32>, alignment: Bytes) -> Self {
        Self {
            source,
            device,
            blocks_before: 0,
            bytes_before: 0,
            peak_held: None,
            failed: 0,
            private: 0,
            frees_implied: 0,
            unknown: Vec::new(),
            alignment,
            page: None,
            times: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Returns whether the file has the time of each allocation and free.
    #[must_use]
    pub fn has_times(&self) -> bool {
        !self.times.is_empty()
    }

    /// Counts an entry of a kind that is not known.
    pub(crate) fn count_unknown(&mut self, kind: &str) {
        /// Names beyond these are counted together.
        const MAX: usize = 8;
        let name: String = kind.chars().filter(|char| !char.is_control()).take(60).collect();
        let name = if self.unknown.len() < MAX { name } else { "others".to_owned() };
        match self.unknown.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => self.unknown.push((name, 1)),
        }
    }
}
