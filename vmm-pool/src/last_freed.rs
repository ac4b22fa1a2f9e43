//! The large block that was freed last, outside the core. If the next request fits it exactly, the free and the request take
//! one lock each, and no other than this one.
//!
//! [Locking the core](crate::shared::Inner::core) first moves the block's memory into the core, so that every holder of the
//! lock sees all free memory. Until then the thread cache that the block came from counts it as live.

use crate::block_memory::BlockMemory;
use crate::classes::MEDIUM;
use crate::stream_order::StreamIndex;
use crate::thread_cache::body::{Body, Ready};
use gpu_vmm_core::{Backend, Stream};
use gpu_vmm_premap::sync::{Mutex, MutexGuard, lock};

/// The slot for the block that was freed last, on cache lines of its own: every allocation reads the fields around it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Last<B: Backend> {
    /// False if freed memory may have to return to the driver at once.
    on: bool,
    /// Held for a look or an exchange only, and never while the thread waits for anything else.
    slot: Mutex<Slot<B>>,
}

#[derive(Debug)]
struct Slot<B: Backend> {
    body: Option<Ready<B>>,
    /// The stream that the slot serves, and its number.
    stream: Option<(Stream<'static>, StreamIndex)>,
    /// True after the pool's end, when no request would take a block out again, and in a pool with addresses that the program has
    /// chosen, whose blocks serve no other request.
    closed: bool,
    /// True while the pool holds more than its budget: the memory of freed blocks may have to return to the driver.
    refuses: bool,
    served: Served,
}

/// What the slot has served, in addition to what the thread caches count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// The number of requests.
    pub(crate) requests: u64,
    /// By how much the blocks have grown: they were freed with another size than they were allocated again with. It wraps around.
    pub(crate) growth: u64,
}

impl<B: Backend> Last<B> {
    pub(crate) fn new(on: bool) -> Self {
        let slot =
            Slot { body: None, stream: None, closed: false, refuses: false, served: Served::default() };
        Self { on, slot: Mutex::new(slot) }
    }

    #[inline]
    fn slot(&self) -> MutexGuard<'_, Slot<B>> {
        lock(&self.slot)
    }

    /// Returns true if the slot is for pieces like this one.
    #[inline]
    pub(crate) fn serves(&self, piece: &BlockMemory) -> bool {
        self.on && piece.size > MEDIUM
    }

    /// Stores the body of a freed block. Returns it if the slot is full or not for such blocks.
    #[inline]
    pub(crate) fn put(&self, body: Ready<B>) -> Option<Ready<B>> {
        if !self.serves(&body.piece) {
            return Some(body);
        }
        let mut slot = self.slot();
        if slot.closed || slot.refuses || slot.body.is_some() {
            return Some(body);
        }
        slot.body = Some(body);
        None
    }

    /// Takes the stored body for a request of `size` bytes, if the slot serves this stream and the piece fits.
    #[inline]
    pub(crate) fn take(
        &self,
        stream: Stream<'static>,
        size: u64,
        fits: impl FnOnce(&Body<B>) -> bool,
    ) -> Option<Ready<B>> {
        if !self.on {
            return None;
        }
        let mut slot = self.slot();
        let (_, index) = slot.stream.filter(|(served, _)| *served == stream)?;
        let mut body = slot.body.take_if(|body| body.index == index && fits(body))?;
        slot.served.requests += 1;
        slot.served.growth = slot.served.growth.wrapping_add(size).wrapping_sub(body.size());
        drop(slot);
        body.reuse(stream, size);
        Some(body)
    }

    /// Takes the stored body.
    pub(crate) fn take_any(&self) -> Option<Ready<B>> {
        if self.on { self.slot().body.take() } else { None }
    }

    /// Makes the slot serve a stream. The caller holds a thread cache in which the stream has this number.
    pub(crate) fn set_stream(&self, stream: Stream<'static>, index: StreamIndex) {
        if self.on {
            self.slot().stream = Some((stream, index));
        }
    }

    /// Makes the slot serve no stream, after the thread caches have forgotten one.
    pub(crate) fn forget(&self) {
        self.slot().stream = None;
    }

    /// Refuses later blocks, or takes them again. The caller holds the core.
    pub(crate) fn refuse(&self, refuses: bool) {
        if self.on {
            self.slot().refuses = refuses;
        }
    }

    /// Refuses all later blocks.
    pub(crate) fn close(&self) {
        self.slot().closed = true;
    }

    pub(crate) fn served(&self) -> Served {
        self.slot().served
    }
}
