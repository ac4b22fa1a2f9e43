//! What a pool was told when it was made.

use crate::{PoolStats, Unfreed};
use gpu_vmm_core::{Bytes, DeviceId};
use std::fmt;
use std::sync::Arc;

/// What a pool was told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) device: DeviceId,
    /// All memory of the device.
    pub(crate) total: Bytes,
    pub(crate) budget: Bytes,
    pub(crate) keep: Bytes,
    /// What physical memory is created in; the granularity or 2 MiB where that is more.
    pub(crate) page: Bytes,
    pub(crate) slack: Option<u32>,
    /// All addresses that may be reserved.
    pub(crate) addresses: Bytes,
    /// The addresses of a tag's small blocks, and of all its others.
    pub(crate) reserve_small: Bytes,
    pub(crate) reserve: Bytes,
    pub(crate) scrub: bool,
    pub(crate) debug: bool,
    /// How much is mapped behind the highest block of a tag before it is needed.
    pub(crate) premap: Bytes,
}

impl Settings {
    /// New memory is created, rather than free memory mapped elsewhere, as long as no more than so much is held beyond what
    /// was ever needed at one time: mapping takes time again and again. Where several streams are served, memory is in more
    /// hands, and finds its way back less often.
    pub(crate) fn slack(&self, needed: u64, streams: usize) -> u64 {
        match self.slack {
            Some(percent) => (u128::from(needed) * u128::from(percent) / 100).try_into().unwrap_or(u64::MAX),
            None => needed / if streams > 1 { 14 } else { 100 },
        }
    }
}

pub(crate) type OutOfMemory = dyn Fn(&PoolStats, Bytes) -> bool + Send + Sync;
pub(crate) type ReportUnfreed = dyn Fn(&[Unfreed]) + Send + Sync;

/// What a pool calls.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    pub(crate) out_of_memory: Option<Arc<OutOfMemory>>,
    pub(crate) unfreed: Option<Arc<ReportUnfreed>>,
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("out_of_memory", &self.out_of_memory.is_some())
            .field("unfreed", &self.unfreed.is_some())
            .finish()
    }
}
