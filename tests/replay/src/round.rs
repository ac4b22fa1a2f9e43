//! One thread's pass over the trace.

use crate::event::{Event, Trace};
use crate::fences::Fences;
use crate::watch::Watch;
use crate::{Allocator, ReplayError};
use gpu_vmm_core::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// After this number of events a thread reports its progress, and checks whether it must stop.
const AT_ONCE: usize = 4096;

/// Signals between the working threads.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// The number of finished events, of all threads.
    pub(crate) done: AtomicU64,
    pub(crate) stop: AtomicBool,
}

/// The data of a pass, created before the timing starts.
pub(crate) struct Pass<'a, A: Allocator> {
    trace: &'a Trace,
    allocator: &'a A,
    signs: &'a Signs,
    slots: Vec<Option<A::Block>>,
    fences: Fences,
}

impl<'a, A: Allocator> Pass<'a, A> {
    pub(crate) fn new(trace: &'a Trace, allocator: &'a A, signs: &'a Signs) -> Self {
        let slots = (0..trace.slots).map(|_| None).collect();
        Self { trace, allocator, signs, slots, fences: Fences::new(trace.fences) }
    }

    /// Runs all events, and returns when it began and ended. Frees the remaining blocks after that.
    pub(crate) fn run(mut self, watch: &mut impl Watch) -> Result<(Instant, Instant), ReplayError> {
        let start = Instant::now();
        let worked = self.events(watch);
        let end = Instant::now();
        self.signs.stop.fetch_or(worked.is_err(), Ordering::Relaxed);
        self.fences.all_done();
        let left = self.slots.drain(..).flatten();
        let freed = left.map(|block| self.allocator.free(block)).fold(Ok(()), Result::and);
        worked.and(freed).map(|()| (start, end))
    }

    fn events(&mut self, watch: &mut impl Watch) -> Result<(), ReplayError> {
        for (chunk, events) in self.trace.events.chunks(AT_ONCE).enumerate() {
            if self.signs.stop.load(Ordering::Relaxed) {
                return Err(ReplayError::Stopped);
            }
            for (place, event) in events.iter().enumerate() {
                self.event(*event, watch).map_err(|error| self.explained(chunk * AT_ONCE + place, error))?;
            }
            self.signs.done.fetch_add(events.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn event(&mut self, event: Event, watch: &mut impl Watch) -> Result<(), ReplayError> {
        match event {
            Event::Allocate { slot, stream, bytes } => {
                let block = watch.allocating(|| self.allocator.allocate(Bytes(bytes), stream))?;
                self.slots[slot as usize] = Some(block);
                watch.took(slot, bytes);
            }
            Event::Free { slot } => {
                if let Some(block) = self.slots[slot as usize].take() {
                    // Before the free: another thread may get the memory at once, and it would count twice.
                    watch.gave(slot);
                    watch.freeing(|| self.allocator.free(block))?;
                }
            }
            Event::FreeAfter { slot, fence } => {
                if let (Some(block), Some(fence)) =
                    (self.slots[slot as usize].take(), self.fences.take(fence))
                {
                    watch.gave(slot);
                    watch.freeing(|| self.allocator.free_after(block, fence))?;
                }
            }
            Event::Done { fence } => self.fences.done(fence),
        }
        Ok(())
    }

    /// Adds the state of the replay to an error.
    fn explained(&self, at: usize, error: ReplayError) -> ReplayError {
        let Some(Event::Allocate { stream, bytes, .. }) = self.trace.events.get(at) else { return error };
        let mut bytes_of = vec![0; self.trace.slots as usize];
        let (mut live, mut number) = (0, 1);
        for event in &self.trace.events[..at] {
            match *event {
                Event::Allocate { slot, bytes, .. } => {
                    bytes_of[slot as usize] = bytes;
                    live += bytes;
                    number += 1;
                }
                Event::Free { slot } | Event::FreeAfter { slot, .. } => live -= bytes_of[slot as usize],
                Event::Done { .. } => {}
            }
        }
        ReplayError::Allocate {
            number,
            of: self.trace.allocations,
            bytes: Bytes(*bytes),
            stream: self.trace.streams[usize::from(*stream)],
            live: Bytes(live),
            thread: None,
            source: Box::new(error),
        }
    }
}
