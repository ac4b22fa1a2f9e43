//! The settings and callbacks of a pool.

use crate::{PoolStats, Unfreed};
use gpu_vmm_core::{Access, Bytes, Grant, Properties};
use std::fmt;
use std::sync::Arc;

/// The settings of a pool, for one kind of its memory.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The properties of the memory.
    pub(crate) memory: Properties,
    /// The devices that have access to the memory: its own first, and others that were allowed to.
    pub(crate) access: Vec<Grant>,
    /// The size of the device's memory.
    pub(crate) total: Bytes,
    pub(crate) keep: Bytes,
    /// The requested page size, zero for the default; the pool uses at least the granularity and 2 MiB.
    pub(crate) page: Bytes,
    pub(crate) slack: Option<u32>,
    /// The most addresses that the pool may reserve.
    pub(crate) addresses: Bytes,
    /// True if another process must be able to reserve the same addresses.
    pub(crate) restorable: bool,
    pub(crate) scrub: bool,
    /// True if new memory can be exported to other processes of the machine, unless the driver refuses that.
    pub(crate) shareable: bool,
    /// True if the device has no virtual memory management: the pool consists of plain allocations.
    pub(crate) plain: bool,
    pub(crate) debug: bool,
    /// The bytes behind the highest block of a tag that are mapped in advance.
    pub(crate) premap: Bytes,
}

impl Settings {
    /// Returns the settings for another kind of memory, of a device with `total` memory.
    pub(crate) fn of(&self, memory: Properties, total: Bytes) -> Self {
        let access = vec![Grant { device: memory.device, access: Access::ReadWrite }];
        Self { memory, access, total, shareable: false, ..self.clone() }
    }

    /// Returns by how many bytes the pool may exceed the most memory that was ever needed at one time. Up to that limit it
    /// creates new memory instead of mapping free memory at further addresses, since each mapping takes time again. If the
    /// pool serves several streams, memory is spread over them and is reused less often at the same addresses.
    pub(crate) fn slack(&self, needed: u64, streams: usize) -> u64 {
        match self.slack {
            Some(percent) => (u128::from(needed) * u128::from(percent) / 100).try_into().unwrap_or(u64::MAX),
            None => needed / if streams > 1 { 14 } else { 100 },
        }
    }
}

pub(crate) type OutOfMemory = dyn Fn(&PoolStats, Bytes) -> bool + Send + Sync;
pub(crate) type ReportUnfreed = dyn Fn(&[Unfreed]) + Send + Sync;

/// The callbacks of a pool.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_percentage_of_need() {
        let settings = |slack| Settings {
            memory: Properties::on(gpu_vmm_core::DeviceId(0)),
            access: Vec::new(),
            total: Bytes::ZERO,
            keep: Bytes::ZERO,
            page: Bytes::ZERO,
            slack,
            addresses: Bytes::ZERO,
            restorable: false,
            scrub: false,
            shareable: false,
            plain: false,
            debug: false,
            premap: Bytes::ZERO,
        };
        for (percent, streams, slack) in [
            (None, 0, 14),
            (None, 1, 14),
            (None, 2, 100),
            (None, 9, 100),
            (Some(0), 2, 0),
            (Some(25), 1, 350),
        ] {
            assert_eq!(settings(percent).slack(1400, streams), slack, "{percent:?} %, {streams} streams");
        }
        // Neither a large pool nor a large percentage overflows.
        assert_eq!(settings(Some(50)).slack(u64::MAX, 1), u64::MAX / 2);
        assert_eq!(settings(Some(u32::MAX)).slack(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn the_text_says_which_callbacks_are_set() {
        let calls = Callbacks { out_of_memory: Some(Arc::new(|_, _| true)), unfreed: None };
        assert_eq!(format!("{calls:?}"), "Callbacks { out_of_memory: true, unfreed: false }");
        let calls = Callbacks { out_of_memory: None, unfreed: Some(Arc::new(|_| ())) };
        assert_eq!(format!("{calls:?}"), "Callbacks { out_of_memory: false, unfreed: true }");
    }
}
