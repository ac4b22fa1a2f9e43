//! Memory as a file descriptor, in one process and in several.
//!
//! | file | subject |
//! |---|---|
//! | `descriptors` | export and import, and what can be wrong with a descriptor |
//! | `processes` | the same memory in two processes and three, and what is left when one ends |
//! | `offers` | the same without a socket, as data, and data that lie |
//! | `channels` | what `regions` and `changes` share: the channel between two processes, and a region on its two ends |
//! | `regions` | a region of one process as one range in another, and what follows when it changes |
//! | `changes` | how an importer follows: at one address, with memory of several devices, through a socket that is full |
//! | `allowed` | who may be at the other end |
//! | `wanted` | what an importer wants |
//! | `ends` | how an importer releases, of a region and of what has left it |
//! | `dma_bufs` | what network cards are given |

mod allowed;
mod changes;
mod channels;
mod descriptors;
mod dma_bufs;
mod ends;
mod offers;
mod processes;
mod regions;
mod wanted;

use crate::case::Case;
use gpu_vmm_testkit::TestKit;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [
        descriptors::cases(),
        processes::cases(),
        regions::cases(),
        changes::cases(),
        allowed::cases(),
        wanted::cases(),
        ends::cases(),
        offers::cases(),
        dma_bufs::cases(),
    ]
    .concat()
}
