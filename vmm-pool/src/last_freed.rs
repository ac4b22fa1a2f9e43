//! The large piece that was freed last, outside the core. If the next request fits it exactly, neither the free nor the
//! request needs the core's lock.
//!
//! [Locking the core](crate::shared::Inner::core) first moves the piece into the core, so that every holder of the lock sees
//! all free memory.

use crate::classes::MEDIUM;
use crate::piece::Piece;
use crate::stream_order::StreamIndex;
use gpu_vmm_sync::SpinMutex;

/// A freed piece, with the stream that used it last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) piece: Piece,
    pub(crate) index: StreamIndex,
}

/// The slot for the last freed piece, on cache lines of its own: every allocation reads the fields around it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Last {
    /// False if freed memory may have to return to the driver at once.
    on: bool,
    /// Held for a look or an exchange only, and never while the thread waits for anything else.
    freed: SpinMutex<Option<Freed>>,
}

impl Last {
    pub(crate) fn new(on: bool) -> Self {
        Self { on, freed: SpinMutex::new(None) }
    }

    /// Stores a piece. Returns false if the piece is not large or the slot is full.
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

    /// Takes the stored piece if it fits.
    #[inline]
    pub(crate) fn take(&self, fits: impl FnOnce(&Freed) -> bool) -> Option<Freed> {
        if !self.on {
            return None;
        }
        self.freed.lock().take_if(|freed| fits(freed))
    }
}
