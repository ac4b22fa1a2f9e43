//! Memory that is shared by file descriptors, dma-bufs and offers, in one process and in several.
//!
//! | file | subject |
//! |---|---|
//! | `descriptors` | export and import, and invalid descriptors |
//! | `processes` | the same memory in two processes and three, and what remains when one ends |
//! | `offers` | regions as data, without a socket, and data that is wrong |
//! | `channels` | helpers of `regions` and `changes`: the channel between two processes, and a region on its two ends |
//! | `regions` | a region of one process as one range in another, and its changes |
//! | `changes` | how an importer follows: at one address, with memory of several devices, through a full socket |
//! | `allowed` | the processes that may be at the other end |
//! | `wanted` | the options of an import |
//! | `ends` | how an importer releases a region, and memory that has left it |
//! | `dma_bufs` | dma-bufs for network cards |

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
