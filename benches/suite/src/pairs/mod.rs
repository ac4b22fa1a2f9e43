//! What is measured.

mod blocks;
mod calls;
mod dispatch;
mod fresh;
mod growth;
mod kept;
mod mappings;
mod order;
mod paged;
mod peer;
mod pieces;
pub(crate) mod pool;
mod premap;
mod records;
#[cfg(target_os = "linux")]
mod share;
mod suspend;
mod swap;
pub(crate) mod threads;

use crate::scene::Scene;
use crate::stop::Answer;
use gpu_vmm_testkit::TestKit;

/// A pair's name, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The name, which a filter is held against.
    pub name: &'static str,
    /// What both sides do.
    pub what: &'static str,
}

/// Two ways to the same end, or several such pairs of one subject.
pub(crate) struct Pair<B, A> {
    pub(crate) about: About,
    pub(crate) measure: fn(&mut Scene<'_, B, A>) -> Answer,
}

/// All of them, in the order in which they are measured.
pub(crate) fn all<B: TestKit, A: TestKit>() -> Vec<Pair<B, A>> {
    let pair = |name, what, measure| Pair { about: About { name, what }, measure };
    vec![
        pair("calls", "each call through the library, compared with the driver's own", calls::measure),
        pair("fresh", "8 GiB at once with its addresses, compared with an allocation", fresh::measure),
        pair(
            "growth",
            "memory that grows, compared with the best raw calls and with copying",
            growth::measure,
        ),
        pair("kept", "memory that was kept is mapped, compared with memory that is new", kept::measure),
        pair("paged", "a region that grows by the caller's pages, compared with raw calls", paged::measure),
        pair("pool", "a warm allocation with its free, compared with others'", pool::measure),
        pair(
            "mappings",
            "operations on a region that has many mappings, compared with one of 10",
            mappings::measure,
        ),
        pair(
            "dispatch",
            "a backend that is chosen at run time, compared with the same one by its type",
            dispatch::measure,
        ),
        pair("blocks", "the pool with many live blocks, compared with itself with one", blocks::measure),
        pair(
            "threads",
            "the pool on several threads, compared with itself on one, and with others",
            threads::measure,
        ),
        pair(
            "records",
            "memory that records take, compared with the driver's own and with what they record",
            records::measure,
        ),
        pair(
            "premap",
            "a step of growth that was mapped before it was asked for, compared with one on demand",
            premap::measure,
        ),
        pair(
            "swap",
            "two regions exchange their memory, compared with the driver's own calls",
            swap::measure,
        ),
        pair(
            "suspend",
            "memory given back and had again, compared with plain copies and the driver's own calls",
            suspend::measure,
        ),
        #[cfg(target_os = "linux")]
        pair("share", "64 handles through a socket, compared with the driver's own calls", share::measure),
        pair("peer", "memory that another device uses, compared with the driver's own copies", peer::measure),
    ]
}

/// What there is to be measured.
pub fn about<B: TestKit>() -> Vec<About> {
    all::<B, B>().iter().map(|pair| pair.about).collect()
}
