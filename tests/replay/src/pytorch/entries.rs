//! The entries of a device's trace.

use super::fields::Fields;
use crate::error::Wrong;
use crate::pickle::Value;
use crate::recording::Recording;
use gpu_vmm_core::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// The allocator took memory from the driver, or mapped it.
    Took,
    /// The allocator returned memory to the driver, or unmapped it.
    Returned,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: (u64, u64),
    /// In microseconds of PyTorch's clock.
    pub(super) time: Option<u64>,
}

/// What PyTorch writes into `internal_metadata` of a block that it allocates and frees at once, to reach a wanted address.
const PREFIX_BLOCK: &str = "mallocWithAddress";

/// Reads the entries that matter, in their order.
pub(super) fn read(
    fields: &Fields<'_>,
    trace: &Value,
    device: u32,
    alignment: Bytes,
) -> Result<(Vec<Entry>, Recording), Wrong> {
    let all = fields.items(*trace, || format!("`device_traces[{device}]`"))?;
    let mut recording = Recording::new("PyTorch", Some(device), alignment);
    recording.page = Some(super::PAGE);
    let mut entries = Vec::with_capacity(all.len());
    for (number, entry) in all.iter().enumerate() {
        let place = || format!("`device_traces[{device}][{number}]`");
        let action = match fields.text(*entry, "action", place)? {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" | "segment_map" => Action::Took,
            "segment_free" | "segment_unmap" => Action::Returned,
            "oom" => {
                recording.failed += 1;
                continue;
            }
            "snapshot" | "annotate" | "workspace_snapshot" => continue,
            other => {
                recording.count_unknown(other);
                continue;
            }
        };
        let internal = fields.find(*entry, "internal_metadata").and_then(|value| fields.values.str(value));
        if internal == Some(PREFIX_BLOCK) {
            continue;
        }
        let bytes = fields.integer(*entry, "size", place)?;
        if bytes == 0 && action == Action::Alloc {
            return Err(Wrong::Layout(format!("`size` of {} is 0, expected at least 1 byte", place())));
        }
        if bytes > i64::MAX as u64 {
            return Err(Wrong::Layout(format!("`size` of {} is negative", place())));
        }
        entries.push(Entry {
            action,
            address: fields.integer(*entry, "addr", place)?,
            bytes,
            stream: fields.optional(*entry, "stream", place)?.unwrap_or(0),
            pool: fields.pair(*entry, "pool_id"),
            time: fields.optional(*entry, "time_us", place)?,
        });
    }
    Ok((entries, recording))
}
