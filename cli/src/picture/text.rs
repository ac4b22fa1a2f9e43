//! The report of a pool snapshot for people. A file's texts are untrusted and are shown without control characters,
//! which a terminal would obey.

use super::{largest, mapped, state_name, unused};
use crate::Answer;
use crate::output::{Output, about, counted, shown};
use gpu_vmm::pool::{BlockState, PoolSnapshot, PoolStats, SpaceSnapshot};
use gpu_vmm::{Address, Bytes};

pub(super) fn print(picture: &PoolSnapshot, output: &mut Output) -> Answer {
    output.paragraph("pool on ", &shown(&picture.device))?;
    let page = Bytes(picture.page);
    output.paragraph("  ", &format!("{:.3} s after it was created, pages of {page}", picture.at))?;
    account(picture, output)?;
    picture.spaces.iter().try_for_each(|one| space(one, picture.page, output))?;
    bins(&picture.stats, output)?;
    blocks(picture, output)
}

fn account(picture: &PoolSnapshot, output: &mut Output) -> Answer {
    let account = &picture.stats;
    let calls = &account.driver_calls;
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
        ("live", format!("{} in {}", size(account.live), counted(account.live_blocks, "block"))),
        ("cached", size(account.cached)),
        ("pending", size(account.pending)),
        ("kept", size(account.kept)),
        ("held", format!("{}, {} of it unused", size(account.held), unused(picture))),
        ("mapped", size(account.mapped)),
        ("reserved", size(account.reserved)),
        ("peaks", format!("{} live, {} held", size(account.peak_live), size(account.peak_held))),
        ("allocations", account.allocations.to_string()),
        ("driver calls", of_calls),
    ] {
        output.paragraph(&format!("  {label:<14}"), &text)?;
    }
    Ok(())
}

fn space(space: &SpaceSnapshot, page: u64, output: &mut Output) -> Answer {
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

fn bins(account: &PoolStats, output: &mut Output) -> Answer {
    if account.bins.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.line("small blocks      live      free")?;
    for bin in &account.bins {
        output.line(format!("  {:>10}{:>10}{:>10}", about(Bytes(bin.size)), bin.live, bin.free))?;
    }
    Ok(())
}

fn blocks(picture: &PoolSnapshot, output: &mut Output) -> Answer {
    let largest = largest(picture);
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
