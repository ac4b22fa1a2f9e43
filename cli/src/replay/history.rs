//! The memory over a whole replay, in the file of `--snapshot` beside the pool's snapshot, for `report`.

use crate::CliResult;
use gpu_vmm::pool::PoolSnapshot;
use gpu_vmm_replay::{Allocator, Moment, Trace, over_time};
use serde::{Deserialize, Serialize};

/// A pool's snapshot, and the replay that it is of, if it is of one.
#[derive(Serialize)]
pub(crate) struct Replayed {
    #[serde(flatten)]
    pub(crate) pool: PoolSnapshot,
    pub(crate) replay: Option<History>,
}

/// The memory over a whole replay, on a pool that held nothing before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct History {
    /// The file's name.
    pub(crate) trace: String,
    /// The recorder, `PyTorch` or `RMM`; `None` for a trace in the text format.
    pub(crate) source: Option<String>,
    /// Whether moments are in seconds of the recorded program. If not, they are numbers of allocations and frees.
    pub(crate) seconds: bool,
    /// The moments, oldest first.
    pub(crate) moments: Vec<Moment>,
}

impl History {
    pub(crate) fn of(file: String, trace: &Trace, allocator: &impl Allocator) -> CliResult<Self> {
        let recording = trace.recording();
        Ok(Self {
            trace: file,
            source: recording.map(|recording| recording.source.to_owned()),
            seconds: recording.is_some_and(gpu_vmm_replay::Recording::has_times),
            moments: over_time(trace, allocator)?,
        })
    }

    /// Returns the largest value of all moments.
    pub(crate) fn most(&self, value: impl Fn(&Moment) -> Option<u64>) -> Option<u64> {
        self.moments.iter().filter_map(value).max()
    }
}
