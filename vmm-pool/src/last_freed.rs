//! The large piece that was freed last. It lies beside the common books, since the next request may be for just that: then
//! neither has to do anything in them, nor to wait for whoever has them.
//!
//! Whoever has the books has it in them too: it is put there [whenever they are locked](crate::shared::Inner::core), so that
//! nobody finds less free memory than there is.

use crate::classes::MEDIUM;
use crate::piece::Piece;
use crate::stream_order::StreamIndex;
use gpu_vmm_sync::SpinMutex;

/// A piece that was used on a stream last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) piece: Piece,
    pub(crate) index: StreamIndex,
}

/// On cache lines of its own: what lies beside it is read for every allocation.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Last {
    /// False where what is freed may have to go back to the driver at once.
    on: bool,
    /// Held for as long as it takes to look, and never while anything else is waited for.
    freed: SpinMutex<Option<Freed>>,
}

impl Last {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, freed: SpinMutex::new(None) }
    }

    /// Puts a piece there. False where it is not large, or another one is there.
    #[inline]
    pub(crate) fn put(&self, freed: Freed) -> bool {
        if !self.on || freed.piece.size <= MEDIUM {
            return false;
        }
        let mut last = self.freed.lock();
        let is_put = last.is_none();
        if is_put {
            *last = Some(freed);
        }
        is_put
    }

    /// Takes what is there, if it fits.
    #[inline]
    pub(crate) fn take(&self, fits: impl FnOnce(&Freed) -> bool) -> Option<Freed> {
        if !self.on {
            return None;
        }
        self.freed.lock().take_if(|freed| fits(freed))
    }
}
