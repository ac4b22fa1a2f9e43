//! The measured pairs.

mod blocks;
mod calls;
#[cfg(target_os = "linux")]
mod files;
mod first_suspend;
mod fresh;
mod growth;
mod kept;
mod limits;
mod mappings;
mod order;
mod paged;
mod peer;
mod pieces;
#[cfg(target_os = "linux")]
mod plain_file;
pub(crate) mod pool;
mod prefix;
mod premap;
mod records;
#[cfg(target_os = "linux")]
mod share;
mod suspend;
mod swap;
pub(crate) mod threads;

use crate::scene::Scene;
use crate::stop::StepResult;
use gpu_vmm_testkit::TestKit;

/// The name and the description of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The name, to which a filter applies.
    pub name: &'static str,
    /// The actions of both sides.
    pub what: &'static str,
}

/// Two ways to the same end, or several such pairs of one subject.
pub(crate) struct Pair<B> {
    pub(crate) about: About,
    pub(crate) measure: fn(&mut Scene<'_, B>) -> StepResult,
}

/// Returns all pairs, in the order of measurement.
pub(crate) fn all<B: TestKit>() -> Vec<Pair<B>> {
    let pair = |name, what, measure| Pair { about: About { name, what }, measure };
    vec![
        pair("calls", "each call through the library, compared with the driver's own", calls::measure),
        pair("fresh", "8 GiB at once with its addresses, compared with an allocation", fresh::measure),
        pair(
            "growth",
            "memory that grows, compared with the best raw calls and with copying",
            growth::measure,
        ),
        pair("kept", "kept memory is mapped, compared with new memory", kept::measure),
        pair("paged", "a region that grows by the caller's pages, compared with raw calls", paged::measure),
        pair(
            "prefix",
            "sequences with the pages of a common prefix, compared with copies of it",
            prefix::measure,
        ),
        pair("pool", "a warm allocation with its free, compared with other allocators'", pool::measure),
        pair("limits", "the pool's pairs, compared with what they cannot do without", limits::measure),
        pair(
            "mappings",
            "operations on a region with many mappings, compared with one with 10",
            mappings::measure,
        ),
        pair("blocks", "the pool with many live blocks, compared with itself with one", blocks::measure),
        pair(
            "threads",
            "the pool on several threads, compared with itself on one, and with others",
            threads::measure,
        ),
        pair(
            "records",
            "memory of records, compared with the driver's own and with the recorded memory",
            records::measure,
        ),
        pair(
            "premap",
            "a step of growth that was mapped ahead, compared with one on demand",
            premap::measure,
        ),
        pair(
            "swap",
            "two regions exchange their memory, compared with the driver's own calls",
            swap::measure,
        ),
        pair(
            "suspend",
            "suspended and resumed memory, compared with plain copies and the driver's own calls",
            suspend::measure,
        ),
        #[cfg(target_os = "linux")]
        pair(
            "files",
            "contents in files, compared with threads that write and read plain buffers",
            files::measure,
        ),
        #[cfg(target_os = "linux")]
        pair("share", "64 handles through a socket, compared with the driver's own calls", share::measure),
        pair("peer", "memory that another device uses, compared with the driver's own copies", peer::measure),
    ]
}

/// Returns all pairs with their descriptions.
pub fn about<B: TestKit>() -> Vec<About> {
    all::<B>().iter().map(|pair| pair.about).collect()
}
