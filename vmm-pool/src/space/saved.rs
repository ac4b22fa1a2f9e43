//! Pages whose memory a save reads, without the core.

use super::Space;
use crate::frames::Frames;
use gpu_vmm_core::Backend;

impl<B: Backend> Space<B> {
    /// Keeps the memory of a page with blocks where it is, as one more block would.
    pub(crate) fn pin(&mut self, page: usize) {
        self.pages[page].live += 1;
    }

    /// Ends [`pin`](Self::pin). The memory becomes free if all blocks of the page were freed.
    pub(crate) fn unpin(&mut self, frames: &mut Frames<B>, page: usize) {
        let at = &mut self.pages[page];
        at.live -= 1;
        if at.is_mapped() && at.live == 0 {
            frames.release(at.frame);
        }
    }
}
