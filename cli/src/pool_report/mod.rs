//! The `report` subcommand: a pool snapshot, as numbers or as a page. No driver is opened.

mod frames;
mod html;
mod perfetto;
mod read;
mod text;

use crate::CliResult;
use crate::args::ReportArguments;
use crate::destination::checked;
use crate::output::Output;
use gpu_vmm::pool::{BlockSnapshot, BlockState, PoolSnapshot, SpaceSnapshot};

pub(crate) fn run(options: &ReportArguments) -> CliResult {
    let page = checked("report", "--html", options.html.as_deref(), &[&options.file])?;
    let trace = checked("report", "--perfetto", options.perfetto.as_deref(), &[&options.file])?;
    let snapshot = read::read(&options.file)?;
    if let Some(mut page) = page {
        page.add(&html::page(&snapshot).map_err(|why| read::refused(&options.file, &why))?)?;
        return page.complete();
    }
    if let Some(mut trace) = trace {
        trace.add(&format!("{}\n", perfetto::trace(&snapshot)))?;
        return trace.complete();
    }
    text::print(&snapshot, &mut Output::default())
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
