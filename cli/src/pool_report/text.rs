//! The report of a pool snapshot for people. A file's texts are untrusted and are shown without control characters,
//! which a terminal would obey.

use super::{largest, mapped, state_name, summary, unused};
use crate::CliResult;
use crate::output::{Output, about, counted, shown};
use crate::replay::history::History;
use gpu_vmm::pool::{BlockState, PoolSnapshot, PoolStats, SpaceSnapshot};
use gpu_vmm::{Address, Bytes};

pub(super) fn print(snapshot: &PoolSnapshot, replay: Option<&History>, output: &mut Output) -> CliResult {
    output.paragraph("pool on ", &shown(&snapshot.device))?;
    let page = Bytes(snapshot.page);
    output.paragraph("  ", &format!("{:.3} s after it was created, pages of {page}", snapshot.at))?;
    stats(snapshot, output)?;
    if let Some(history) = replay {
        output.paragraph(
            &format!("  {:<14}", "replay"),
            &format!("{}: {}", shown(&history.trace), summary(history)),
        )?;
    }
    snapshot.spaces.iter().try_for_each(|one| space(one, snapshot.page, output))?;
    bins(&snapshot.stats, output)?;
    blocks(snapshot, output)
}

fn stats(snapshot: &PoolSnapshot, output: &mut Output) -> CliResult {
    let stats = &snapshot.stats;
    let calls = &stats.driver_calls;
    let of_calls = format!(
        "{} ({} create, {} map, {} unmap, {} set access, {} other)",
        calls.total(),
        calls.create,
        calls.map,
        calls.unmap,
        calls.set_access,
        calls.other
    );
    let size = |bytes| about(Bytes(bytes));
    for (label, text) in [
        ("live", format!("{} in {}", size(stats.live), counted(stats.live_blocks, "block"))),
        ("cached", size(stats.cached)),
        ("pending", size(stats.pending)),
        ("kept", size(stats.kept)),
        ("held", format!("{}, {} of it unused", size(stats.held), unused(snapshot))),
        ("mapped", size(stats.mapped)),
        ("reserved", size(stats.reserved)),
        ("peaks", format!("{} live, {} held", size(stats.peak_live), size(stats.peak_held))),
        ("allocations", stats.allocations.to_string()),
        ("driver calls", of_calls),
    ] {
        output.paragraph(&format!("  {label:<14}"), &text)?;
    }
    Ok(())
}

fn space(space: &SpaceSnapshot, page: u64, output: &mut Output) -> CliResult {
    let tag = if space.tag.is_empty() { "without a tag".to_owned() } else { shown(&space.tag) };
    let suspended = if space.suspended { ", suspended" } else { "" };
    output.line("")?;
    output.paragraph(&format!("range {} ", Address(space.base)), &tag)?;
    output.line(format!(
        "  {} mapped of {} of addresses{suspended}",
        about(Bytes(mapped(space, page))),
        about(Bytes(space.reserved))
    ))?;
    for state in
        [BlockState::Live, BlockState::Bins, BlockState::Cached, BlockState::Pending, BlockState::Free]
    {
        let of_state = || space.blocks.iter().filter(|block| block.state == state);
        let (count, size) = (of_state().count(), of_state().map(|block| Bytes(block.size)).sum());
        if count > 0 {
            output.line(format!("  {:<10}{count:>8} of {:>10}", state_name(state), about(size)))?;
        }
    }
    Ok(())
}

fn bins(stats: &PoolStats, output: &mut Output) -> CliResult {
    if stats.bins.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line("small blocks      live      free")?;
    for bin in &stats.bins {
        output.line(format!("  {:>10}{:>10}{:>10}", about(Bytes(bin.size)), bin.live, bin.free))?;
    }
    Ok(())
}

fn blocks(snapshot: &PoolSnapshot, output: &mut Output) -> CliResult {
    let largest = largest(snapshot);
    if largest.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line("largest blocks")?;
    for (space, block) in largest {
        // The check of the file has excluded an overflow.
        let address = Address(space.base.saturating_add(block.offset)).to_string();
        let label =
            format!("  {:>10}  {:<8} {address:<18} ", about(Bytes(block.size)), state_name(block.state));
        output.paragraph(&label, &shown(&space.tag))?;
    }
    Ok(())
}
