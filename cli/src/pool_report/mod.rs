//! The `report` subcommand: a pool snapshot, as numbers or as a page. No driver is opened.

mod frames;
mod html;
mod perfetto;
mod read;
mod text;

use crate::CliResult;
use crate::args::ReportArguments;
use crate::destination::checked;
use crate::output::{Output, about};
use crate::replay::history::History;
use gpu_vmm::Bytes;
use gpu_vmm::pool::{BlockSnapshot, BlockState, PoolSnapshot, SpaceSnapshot};
use gpu_vmm_replay::Moment;

pub(crate) fn run(options: &ReportArguments) -> CliResult {
    let page = checked("report", "--html", options.html.as_deref(), &[&options.file])?;
    let trace = checked("report", "--perfetto", options.perfetto.as_deref(), &[&options.file])?;
    let (snapshot, replay) = read::read(&options.file)?;
    let replay = replay.as_ref();
    if let Some(mut page) = page {
        page.add(&html::page(&snapshot, replay).map_err(|why| read::refused(&options.file, &why))?)?;
        return page.complete();
    }
    if let Some(mut trace) = trace {
        trace.add(&format!("{}\n", perfetto::trace(&snapshot, replay)))?;
        return trace.complete();
    }
    text::print(&snapshot, replay, &mut Output::default())
}

/// Returns the name of a state.
fn state_name(state: BlockState) -> &'static str {
    match state {
        BlockState::Live => "live",
        BlockState::Cached => "cached",
        BlockState::Pending => "pending",
        BlockState::Bins => "bins",
        BlockState::Free => "free",
    }
}

/// Returns the name of the allocator of a recorded program.
fn recorded_name(history: &History) -> String {
    history
        .source
        .as_deref()
        .map_or_else(|| "the recorded allocator".to_owned(), |source| format!("{source}'s allocator"))
}

/// Describes a replay: the most memory that was requested, and that each side held.
fn summary(history: &History) -> String {
    let size = |bytes: Option<u64>| about(Bytes(bytes.unwrap_or(0)));
    let most = |value: fn(&Moment) -> Option<u64>| history.most(value);
    let theirs = most(|moment| moment.recorded)
        .map(|held| format!("{} held up to {}", recorded_name(history), about(Bytes(held))));
    let theirs = theirs.map(|text| text + ", ").unwrap_or_default();
    let (requested, held) = (most(|moment| Some(moment.requested)), most(|moment| Some(moment.held)));
    format!("requested up to {}; {theirs}the pool held up to {}", size(requested), size(held))
}

/// The number of largest blocks that are listed.
const LARGEST: usize = 20;

/// Returns the largest blocks that are not free, each with its range; blocks of one size in the order of the snapshot.
fn largest(snapshot: &PoolSnapshot) -> Vec<(&SpaceSnapshot, &BlockSnapshot)> {
    let all = snapshot.spaces.iter().flat_map(|space| space.blocks.iter().map(move |block| (space, block)));
    let mut taken: Vec<_> = all.filter(|(_, block)| block.state != BlockState::Free).collect();
    taken.sort_by_key(|(_, block)| std::cmp::Reverse(block.size));
    taken.truncate(LARGEST);
    taken
}

/// Returns the mapped size of a range.
fn mapped(space: &SpaceSnapshot, page: u64) -> u64 {
    // The check of the file has excluded an overflow of the sum.
    space.pages.iter().map(|pages| pages.count).sum::<u64>().saturating_mul(page)
}

/// Formats the part of the held memory without a live block, in percent.
fn unused(snapshot: &PoolSnapshot) -> String {
    format!("{:.1} %", 100.0 * snapshot.stats.unused().max(0.0))
}

#[cfg(test)]
mod tests;
