//! What a pool looked like at a moment, in numbers or as a page. No driver is asked.
//!
//! | file | subject |
//! |---|---|
//! | `read` | a picture from a file, and whether it makes sense |
//! | `frames` | the physical memory, and who has each piece of it |
//! | `text` | the picture for a terminal |
//! | `html` | the picture as a page; `page/` has its parts |

mod frames;
mod html;
mod read;
mod text;

use crate::Answer;
use crate::args::ReportArguments;
use crate::destination::checked;
use crate::output::Output;
use gpu_vmm::pool::{BlockSnapshot, BlockState, PoolSnapshot, SpaceSnapshot};

pub(crate) fn run(asked: &ReportArguments) -> Answer {
    let page = checked("report", "--html", asked.html.as_deref(), &[&asked.file])?;
    let picture = read::read(&asked.file)?;
    let Some(mut page) = page else { return text::print(&picture, &mut Output::default()) };
    page.add(&html::page(&picture).map_err(|why| read::refused(&asked.file, &why))?)?;
    page.complete()
}

/// What a state is called.
fn state_name(state: BlockState) -> &'static str {
    match state {
        BlockState::Live => "live",
        BlockState::Cached => "cached",
        BlockState::Pending => "pending",
        BlockState::Bins => "bins",
        BlockState::Free => "free",
    }
}

/// How many of the largest blocks are listed.
const LARGEST: usize = 20;

/// The largest blocks that are not free, each with its range; of the same size that which comes first.
fn largest(picture: &PoolSnapshot) -> Vec<(&SpaceSnapshot, &BlockSnapshot)> {
    let all = picture.spaces.iter().flat_map(|space| space.blocks.iter().map(move |block| (space, block)));
    let mut taken: Vec<_> = all.filter(|(_, block)| block.state != BlockState::Free).collect();
    taken.sort_by_key(|(_, block)| std::cmp::Reverse(block.size));
    taken.truncate(LARGEST);
    taken
}

/// How much of a range is mapped.
fn mapped(space: &SpaceSnapshot, page: u64) -> u64 {
    // What was read fits.
    space.pages.iter().map(|pages| pages.count).sum::<u64>().saturating_mul(page)
}

/// The part of the held memory that no block takes, in percent.
fn unused(picture: &PoolSnapshot) -> String {
    format!("{:.1} %", 100.0 * picture.stats.unused().max(0.0))
}

#[cfg(test)]
mod tests;
