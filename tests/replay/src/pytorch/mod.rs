//! Reads a memory snapshot of PyTorch: the dict that `torch.cuda.memory._dump_snapshot` writes as a pickle.
//!
//! `device_traces` has a list of entries for each device. It is a ring: the oldest entries may be missing. `segments` has the memory that
//! the allocator held at the end, with its blocks. Sizes of entries are requested ones; sizes of blocks are rounded up, and have the
//! requested size beside them.

mod blocks;
mod entries;
mod fields;
mod held;
mod private;

#[cfg(test)]
mod tests;

use crate::error::Wrong;
use crate::event::Trace;
use crate::pickle::{Value, Values};
use fields::Fields;
use gpu_vmm_core::Bytes;

/// The alignment of PyTorch's blocks, which gpu-vmm's allocator class keeps.
const ALIGNMENT: Bytes = Bytes(512);

/// The page size of gpu-vmm's allocator class.
const PAGE: Bytes = Bytes::mib(16);

/// Memory that the allocator held at the end.
struct Segment {
    total: u64,
    blocks: Vec<BlockAtEnd>,
}

/// A block that was not free at the end.
struct BlockAtEnd {
    address: u64,
    bytes: u64,
    stream: u64,
    pool: (u64, u64),
}

/// Returns the trace of a device, or of the only device that has one.
pub(crate) fn trace(values: &Values, device: Option<u32>) -> Result<Trace, Wrong> {
    let fields = Fields::of(values);
    let traces = traces(&fields)?;
    let device = chosen(&fields, &traces, device)?;
    let segments = segments(&fields, device)?;
    let (entries, recording) = entries::read(&fields, &traces[device as usize], device, ALIGNMENT)?;
    blocks::replayable(&entries, &segments, recording)
}

/// Returns the list of entries of each device.
fn traces(fields: &Fields<'_>) -> Result<Vec<Value>, Wrong> {
    let root = fields.values.root;
    if fields.values.pairs(root).is_none() {
        let kind = fields.values.kind(root);
        return Err(Wrong::Layout(format!(
            "the pickle is {kind}, expected the dict that torch.cuda.memory._dump_snapshot writes, with `device_traces`"
        )));
    }
    Ok(fields.list(root, "device_traces", || "the snapshot".to_owned())?.to_vec())
}

fn chosen(fields: &Fields<'_>, traces: &[Value], device: Option<u32>) -> Result<u32, Wrong> {
    let mut used = Vec::new();
    for (number, entries) in (0..).zip(traces) {
        let entries = fields.items(*entries, || format!("`device_traces[{number}]`"))?;
        if !entries.is_empty() {
            used.push(number);
        }
    }
    match (device, &used[..]) {
        (_, []) => Err(Wrong::Layout(
            "`device_traces` has no entries; call torch.cuda.memory._record_memory_history() before the allocations".to_owned(),
        )),
        (None, [only]) => Ok(*only),
        (Some(device), _) if used.contains(&device) => Ok(device),
        (device, _) => {
            let list: Vec<String> = used.iter().map(u32::to_string).collect();
            let list = list.join(", ");
            Err(Wrong::Layout(match device {
                Some(device) => format!("`device_traces` has no entries of device {device}; it has some of devices {list}"),
                None => format!("it has entries of devices {list}; choose one with --recorded-device"),
            }))
        }
    }
}

/// Returns the segments of a device. They are missing in no version, but a snapshot of another tool may have none.
fn segments(fields: &Fields<'_>, device: u32) -> Result<Vec<Segment>, Wrong> {
    let root = || "the snapshot".to_owned();
    let Some(all) = fields.find(fields.values.root, "segments") else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for (number, segment) in fields.items(all, root)?.iter().enumerate() {
        let place = || format!("`segments[{number}]`");
        fields.dict(*segment, place)?;
        if fields.optional(*segment, "device", place)?.is_some_and(|on| on != u64::from(device)) {
            continue;
        }
        found.push(segment_of(fields, *segment, number)?);
    }
    Ok(found)
}

fn segment_of(fields: &Fields<'_>, segment: Value, number: usize) -> Result<Segment, Wrong> {
    let place = || format!("`segments[{number}]`");
    let stream = fields.optional(segment, "stream", place)?.unwrap_or(0);
    let pool = fields.pair(segment, "segment_pool_id");
    let mut next = fields.integer(segment, "address", place)?;
    let mut blocks = Vec::new();
    for (index, block) in fields.list(segment, "blocks", place)?.iter().enumerate() {
        let place = || format!("`segments[{number}][\"blocks\"][{index}]`");
        let size = fields.integer(*block, "size", place)?;
        // Before PyTorch 2.1 blocks have no address, but lie one after the other.
        let address = fields.optional(*block, "address", place)?.unwrap_or(next);
        next = address.saturating_add(size);
        // Versions before 2.2 name blocks that wait for a stream in another way.
        if fields.text(*block, "state", place)?.starts_with("active") && size > 0 {
            let bytes =
                fields.optional(*block, "requested_size", place)?.filter(|bytes| *bytes > 0).unwrap_or(size);
            blocks.push(BlockAtEnd { address, bytes, stream, pool });
        }
    }
    Ok(Segment { total: fields.integer(segment, "total_size", place)?, blocks })
}
