//! Waits for streams and fences, without a lock: a fence may be done only after another thread has called the pool.

use crate::Fence;
use crate::shared::{CoreGuard, Inner};
use crate::streams::{Progress, Streams};
use gpu_vmm_core::extend::free_deferred;
use gpu_vmm_core::{Backend, Detail, Error, Event, Operation, Result, WaitFor};
use std::sync::Arc;

/// The events and streams to wait for, so that all frees on streams up to now are done.
#[derive(Debug, Default)]
struct Waits {
    /// The last event of each stream, with the moment that it covers.
    events: Vec<(usize, u64, Arc<dyn Event>)>,
    /// Streams without an event, with their last free: these need a wait for the devices.
    others: Vec<(usize, u64)>,
}

impl<B: Backend> Streams<B> {
    /// Collects the events and streams to wait for.
    fn begin_wait(&mut self) -> Result<Waits> {
        let mut waits = Waits::default();
        let busy: Vec<_> = (1..self.list.len()).filter(|index| !self.list[*index].is_idle()).collect();
        if busy.is_empty() {
            return Ok(waits);
        }
        let capturing = || Error::new(Operation::WaitForStream, Detail::Capturing { source: None });
        if !self.can_ask() {
            return Err(capturing());
        }
        for index in busy {
            self.mark_if_possible(index);
            let Progress { marks, freed, .. } = &self.list[index];
            match marks.back() {
                Some((moment, event)) if moment >= freed => {
                    waits.events.push((index, *moment, Arc::clone(event)));
                }
                _ => waits.others.push((index, *freed)),
            }
        }
        if !waits.others.is_empty() && self.is_any_capturing() {
            waits.others.clear();
            if waits.events.is_empty() {
                return Err(capturing());
            }
        }
        self.calls += waits.events.len() as u64;
        Ok(waits)
    }
}

impl<B: Backend> Inner<B> {
    /// Waits until all frees on all streams are done. A stream that cannot be waited for stays busy, and the others are
    /// waited for nevertheless.
    ///
    /// # Errors
    ///
    /// The first error of a stream.
    pub(crate) fn wait_for_streams(&self, operation: Operation) -> Result<()> {
        let (waits, backend) = {
            let mut core = self.core(operation)?;
            (core.streams.begin_wait()?, core.backend.clone())
        };
        let mut result = Ok(());
        let mut note = |answer: Result<()>, index: usize, moment: u64| -> Result<()> {
            match answer {
                Ok(()) => self.core(operation)?.streams.advance(index, moment),
                Err(error) => result = std::mem::replace(&mut result, Ok(())).and(Err(error)),
            }
            Ok(())
        };
        for (index, moment, event) in waits.events {
            note(event.wait(), index, moment)?;
        }
        if !waits.others.is_empty() {
            let devices = || backend.devices().iter().filter(|device| device.unusable.is_none());
            let answer = WaitFor::all_devices().wait(&backend, || devices().map(|device| device.id));
            for (index, moment) in waits.others {
                note(answer.clone(), index, moment)?;
            }
        }
        result
    }
}

/// The number of waits for the streams, in case that collected memory must be waited for again.
const ROUNDS: usize = 4;

impl<B: Backend> Inner<B> {
    /// Waits for all streams, collects the pieces that waited for them, and locks the core. Memory that cannot be waited for
    /// stays in use.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`] alone.
    pub(crate) fn core_after_work(&self, operation: Operation) -> Result<CoreGuard<'_, B>> {
        for _ in 0..ROUNDS {
            // An error shows in the core: the stream stays busy.
            let _ = self.wait_for_streams(operation);
            let mut core = self.core(operation)?;
            // Collected memory is ordered behind all frees of its stream so far, and is waited for once more.
            if !core.collect_pending() {
                return Ok(core);
            }
        }
        self.core(operation)
    }
}

impl<B: Backend> Inner<B> {
    /// Waits until another thread has ended what it does without the core, if that may leave more free memory: a suspension, or
    /// overwriting. Returns false if no thread does so.
    pub(crate) fn wait_for_others(&self, operation: Operation) -> Result<bool> {
        let Some(ended) = self.core(operation)?.ongoing.ended_before_others() else { return Ok(false) };
        drop(self.core_when(operation, |core| core.ongoing.has_passed(ended))?);
        Ok(true)
    }
}

/// The waits of a request that finds too little memory, one after the other, with a new attempt after each.
#[derive(Debug)]
pub(crate) enum Ladder {
    /// Waits for all streams at once, and frees memory that destructors had to keep.
    Streams,
    /// Waits for the fences that existed then, one by one, and then for suspensions of other tags and for overwriting.
    Fences(Vec<Arc<dyn Fence>>),
}

impl Ladder {
    /// Waits for the next item. Returns false if none is left. A fence that cannot be waited for does not fail the request,
    /// which may be served without it.
    pub(crate) fn climb<B: Backend>(
        &mut self,
        inner: &Inner<B>,
        backend: &B,
        operation: Operation,
    ) -> Result<bool> {
        match self {
            Self::Streams => {
                // Before the driver is asked again.
                free_deferred(backend);
                let core = inner.core_after_work(operation)?;
                *self = Self::Fences(core.pending.fences());
                Ok(true)
            }
            Self::Fences(fences) => {
                while let Some(fence) = fences.pop() {
                    if fence.wait().is_ok() {
                        let mut core = inner.core(operation)?;
                        core.pending.note_done(&fence);
                        core.collect_pending();
                        return Ok(true);
                    }
                }
                inner.wait_for_others(operation)
            }
        }
    }
}
