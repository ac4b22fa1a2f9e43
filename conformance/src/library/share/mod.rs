//! Memory that is shared by file descriptors, dma-bufs and offers, in one process and in several.

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
