//! Reads a pool snapshot from a file. Checks it first and reports errors with their place, so that the drawing code can
//! rely on it.

use crate::output::counted;
use crate::replay::history::History;
use crate::{CliResult, input};
use gpu_vmm::Bytes;
use gpu_vmm::pool::{PoolSnapshot, SpaceSnapshot};
use serde::Deserialize;
use std::path::Path;

/// The field that all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

/// The field of a file that `replay` has written.
#[derive(Deserialize)]
struct OfReplay {
    #[serde(default)]
    replay: Option<History>,
}

/// Reads and checks a file.
pub(super) fn read(file: &Path) -> CliResult<(PoolSnapshot, Option<History>)> {
    let text = input::read(file)?;
    content(&text).map_err(|why| refused(file, &why))
}

/// Returns the error for a file that is not a pool snapshot.
pub(super) fn refused(file: &Path, why: &str) -> Box<dyn std::error::Error> {
    format!("{} is not a pool snapshot: {why}", file.display()).into()
}

/// Parses and checks the content of a file.
pub(super) fn content(text: &[u8]) -> Result<(PoolSnapshot, Option<History>), String> {
    let Versioned { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != u64::from(PoolSnapshot::VERSION) {
        let known = PoolSnapshot::VERSION;
        return Err(format!("it has version {version}, but this gpu-vmm reads version {known}"));
    }
    let snapshot: PoolSnapshot = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    check(&snapshot)?;
    let OfReplay { replay } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if let Some(unordered) =
        replay.iter().flat_map(|replay| replay.moments.windows(2)).find(|pair| pair[0].at > pair[1].at)
    {
        let [before, after] = [&unordered[0], &unordered[1]].map(|moment| moment.at);
        return Err(format!("the replay has moment {after} after moment {before}"));
    }
    Ok((snapshot, replay))
}

/// Checks that the parts of a range do not overlap, and that no number overflows.
fn check(snapshot: &PoolSnapshot) -> Result<(), String> {
    for (index, space) in snapshot.spaces.iter().enumerate() {
        space_is_right(space, snapshot.page)
            .map_err(|why| format!("{why}, in range {index}, tagged {:?}", space.tag))?;
    }
    for frames in &snapshot.unmapped {
        frames_are_right(frames.frame, frames.count)?;
    }
    Ok(())
}

fn space_is_right(space: &SpaceSnapshot, page: u64) -> Result<(), String> {
    let Some(_) = space.base.checked_add(space.reserved) else {
        return Err(format!("{} of addresses exceeds the address space", Bytes(space.reserved)));
    };
    let mut after = 0;
    for block in &space.blocks {
        after = follows("block", block.offset, Some(block.size), after, space.reserved)?;
    }
    let mut after = 0;
    for pages in &space.pages {
        frames_are_right(pages.frame, pages.count)?;
        let size = pages.count.checked_mul(page);
        after = follows("mapping", pages.offset, size, after, space.reserved)?;
    }
    Ok(())
}

/// Checks that a part begins after the one before it and lies in its range, and returns its end.
fn follows(what: &str, offset: u64, size: Option<u64>, after: u64, limit: u64) -> Result<u64, String> {
    let at = Bytes(offset);
    if offset < after {
        return Err(format!(
            "the {what} at offset {at} begins before the end of the previous one, {}",
            Bytes(after)
        ));
    }
    if size == Some(0) {
        return Err(format!("the {what} at offset {at} has size 0"));
    }
    size.and_then(|size| offset.checked_add(size))
        .filter(|end| *end <= limit)
        .ok_or_else(|| format!("the {what} at offset {at} exceeds the end of the range, {}", Bytes(limit)))
}

fn frames_are_right(frame: u32, count: u64) -> Result<(), String> {
    match u64::from(frame).checked_add(count) {
        Some(end) if count > 0 && end <= 1 << 32 => Ok(()),
        _ => Err(format!("{} from number {frame} on are not possible", counted(count, "frame"))),
    }
}
