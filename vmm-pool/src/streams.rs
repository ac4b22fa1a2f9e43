//! The streams of a pool, and how far the devices have come with their work.
//!
//! The pool asks no driver while memory is reused on the stream that it was freed on. When another stream needs the memory,
//! or addresses must be unmapped, the pool records an event on the stream. The event covers all frees before it.
//!
//! A stream that cannot be queried or recorded on counts as busy; requests for other streams do not fail for it. The error
//! goes to the backend's drop log.
//!
//! A [thread's default stream](crate::per_thread) is one stream for each thread. Only the thread itself can record an event on it: what
//! its events do not cover is done after a wait for the devices. Its number serves another stream after its thread has ended.
//!
//! The backend watches every stream that the pool serves, so that no wait for a device invalidates a capture of one.

use crate::per_thread;
use crate::stream_order::{CLEAN, FreeAfter, MIXED, StreamIndex};
use gpu_vmm_core::{Backend, Detail, DeviceId, Error, Event, Operation, Result, Stream};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The most unfinished events per stream. On a slow device, more events report nothing sooner.
const MARKS: usize = 64;

#[derive(Debug)]
pub(crate) struct Streams<B: Backend> {
    pub(crate) backend: B,
    /// The device of the default stream, and of streams that the pool does not know yet.
    device: DeviceId,
    /// The streams by number. The first entry stands for no stream.
    pub(crate) list: Vec<Progress>,
    /// The moment of the last free.
    now: u64,
    /// The number of event calls and waits so far.
    pub(crate) calls: u64,
    /// The number of streams that were retired so far.
    pub(crate) retired: u64,
    /// True if a stream needs an event.
    owes: bool,
    /// The number of times that a stream was found to have come further.
    pub(crate) advances: u64,
    /// Events for later use on any stream of their device: a number whose stream was forgotten keeps none.
    spare: Vec<(DeviceId, Arc<dyn Event>)>,
}

/// The progress of a stream.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) stream: Stream<'static>,
    /// The device whose events are recorded on it.
    device: DeviceId,
    /// For the default stream of a thread: what ends with the thread.
    pub(crate) thread: Option<Weak<()>>,
    /// The number of registrations; zero for a stream that the pool knows from requests alone.
    registrations: u32,
    /// True if the stream was forgotten and may not exist any more. Its number serves another stream once all of its work is done.
    pub(crate) is_retired: bool,
    /// True if no event of its device can be recorded on it, because it belongs to another device or context.
    is_foreign: bool,
    /// True if it needs an event as soon as it does not capture any more.
    owes: bool,
    /// The moment up to which all frees are done.
    done: u64,
    /// The moment of the last free.
    pub(crate) freed: u64,
    /// The bytes that were freed since the last event was recorded.
    pub(crate) unmarked: u64,
    /// The events that may be unfinished, in order, each with the moment of the last free before it.
    pub(crate) marks: VecDeque<(u64, Arc<dyn Event>)>,
}

impl Progress {
    fn new(stream: Stream<'static>, device: DeviceId) -> Self {
        Self {
            stream,
            device,
            thread: None,
            registrations: 0,
            is_retired: false,
            is_foreign: false,
            owes: false,
            done: 0,
            freed: 0,
            unmarked: 0,
            marks: VecDeque::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.freed <= self.done
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.marks.back().map_or(self.done, |(moment, _)| *moment) >= self.freed
    }

    /// True for the default stream of a thread that has ended, before the stream is retired.
    pub(crate) fn has_ended(&self) -> bool {
        !self.is_retired && self.thread.as_ref().is_some_and(|thread| thread.strong_count() == 0)
    }

    fn is(&self, stream: Stream<'_>) -> bool {
        !self.is_retired && (self.stream == stream || self.stream.is_default() && stream.is_default())
    }
}

impl<B: Backend> Streams<B> {
    pub(crate) fn new(backend: &B, device: DeviceId) -> Self {
        let none = Progress::new(Stream::DEFAULT, device);
        Self {
            backend: backend.clone(),
            device,
            list: vec![none],
            now: 0,
            calls: 0,
            retired: 0,
            owes: false,
            advances: 0,
            spare: Vec::new(),
        }
    }

    /// Returns the number of a stream that the pool serves.
    pub(crate) fn known(&self, stream: Stream<'_>) -> Option<StreamIndex> {
        let stream = per_thread::named(stream);
        let index = self.list.iter().skip(1).position(|one| one.is(stream))?;
        Some((index + 1) as StreamIndex)
    }

    /// Returns the number of a stream. A new stream may receive the number of a retired one whose work is all done.
    pub(crate) fn index(&mut self, operation: Operation, stream: Stream<'static>) -> Result<StreamIndex> {
        let stream = per_thread::named(stream);
        if let Some(index) = self.known(stream) {
            return Ok(index);
        }
        let mut thread = None;
        if per_thread::is_of_thread(stream) {
            thread = Some(per_thread::life(operation)?);
            // Host memory has no such stream.
            self.backend.is_capturing(Stream::PER_THREAD)?;
        }
        let (count, limit) = (self.list.len(), usize::from(MIXED));
        if let Some(index) = self.vacant() {
            let Progress { done, freed, .. } = self.list[index];
            self.list[index] = Progress { thread, done, freed, ..Progress::new(stream, self.device) };
            self.backend.deferred().watch_stream(per_thread::for_caller(stream));
            return Ok(index as StreamIndex);
        }
        if count >= limit {
            let reason = format!("the pool serves the maximum of {} streams; forget some of them", limit - 1);
            return Err(Error::new(operation, Detail::Unsupported { reason }));
        }
        self.list.push(Progress { thread, ..Progress::new(stream, self.device) });
        self.backend.deferred().watch_stream(per_thread::for_caller(stream));
        Ok(count as StreamIndex)
    }

    /// Returns the number of a retired stream whose work is all done.
    fn vacant(&mut self) -> Option<usize> {
        if !self.list.iter().any(|one| one.is_retired) {
            return None;
        }
        let can_ask = self.can_ask();
        (1..self.list.len()).find(|index| {
            if can_ask && self.list[*index].is_retired {
                self.poll_one(*index);
            }
            self.list[*index].is_retired && self.list[*index].is_idle()
        })
    }

    /// Returns true for the default stream of a thread.
    #[inline]
    pub(crate) fn is_of_thread(&self, index: StreamIndex) -> bool {
        self.list[usize::from(index)].thread.is_some()
    }

    /// Registers a stream and returns its number. The default stream of a thread needs no registration: it ends with its thread.
    pub(crate) fn register(&mut self, operation: Operation, stream: Stream<'static>) -> Result<StreamIndex> {
        stream.check_shared(operation)?;
        let index = self.index(operation, stream)?;
        self.list[usize::from(index)].registrations += 1;
        Ok(index)
    }

    /// Ends a registration. Returns true if it was the last: the caller must then [retire](Self::retire) the stream, in the same
    /// hold of the core, since another thread may register it again.
    pub(crate) fn unregister(&mut self, index: StreamIndex) -> bool {
        let progress = &mut self.list[usize::from(index)];
        progress.registrations = progress.registrations.saturating_sub(1);
        progress.registrations == 0
    }

    pub(crate) fn is_registered(&self, index: StreamIndex) -> bool {
        self.list[usize::from(index)].registrations > 0
    }

    /// Stops serving a stream. A last event covers all work that is queued now, including that on live blocks. It is the only event
    /// that is asked later, because the stream may be destroyed at any time from now on. If none can be recorded, the number stays
    /// unused until a wait for the devices.
    pub(crate) fn retire(&mut self, index: StreamIndex) {
        let place = usize::from(index);
        self.free(index);
        let is_marked = self.for_driver(place).is_some() && !self.captures(place) && self.mark(place);
        self.backend.deferred().unwatch_stream(per_thread::for_caller(self.list[place].stream));
        self.retired += 1;
        let progress = &mut self.list[place];
        progress.is_retired = true;
        let last = if is_marked { progress.marks.pop_back() } else { None };
        self.spare.extend(progress.marks.drain(..).map(|(_, event)| (progress.device, event)));
        let Some((moment, mut event)) = last else { return };
        // No thread waits for it yet: it was recorded in this hold of the core.
        match Arc::get_mut(&mut event).map(|event| event.outlive_stream()) {
            Some(Ok(())) => self.list[place].marks.push_back((moment, event)),
            Some(Err(error)) => self.tell(error),
            None => {}
        }
    }

    /// Makes the default streams those of another device, and takes streams that the pool does not know yet for that device's. Returns
    /// false if work before a free on a default stream may not be done.
    pub(crate) fn move_to(&mut self, device: DeviceId) -> bool {
        let is_default =
            |one: &Progress| (one.stream.is_default() || one.thread.is_some()) && !one.is_retired;
        if self.list.iter().skip(1).any(|one| is_default(one) && !one.is_idle()) {
            return false;
        }
        self.list.iter_mut().skip(1).filter(|one| is_default(one)).for_each(|one| one.device = device);
        self.device = device;
        // They may be streams of the new device.
        self.list.iter_mut().for_each(|one| one.is_foreign = false);
        true
    }

    /// Returns the handle of a stream for callers.
    pub(crate) fn stream(&self, index: StreamIndex) -> Stream<'static> {
        self.list.get(usize::from(index)).map_or(Stream::DEFAULT, |one| per_thread::for_caller(one.stream))
    }

    fn for_driver(&self, index: usize) -> Option<Stream<'static>> {
        per_thread::for_driver(self.list[index].stream)
    }

    /// Returns the number of entries, including the one that stands for no stream.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns true if the pool serves more than one stream.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.count() > 2
    }

    /// Counts a free on a stream, and returns the order of the freed memory.
    #[inline]
    pub(crate) fn free(&mut self, index: StreamIndex) -> FreeAfter {
        if index == CLEAN {
            return FreeAfter::FREE;
        }
        let progress = &mut self.list[usize::from(index)];
        // All work of a retired stream on its blocks was queued before it was retired.
        if !progress.is_retired {
            self.now += 1;
            progress.freed = self.now;
        }
        FreeAfter::new(index, progress.freed)
    }

    /// Returns the order of memory that earlier work of a stream may use: the order of its frees so far.
    #[inline]
    pub(crate) fn so_far(&self, index: StreamIndex) -> FreeAfter {
        if index == CLEAN {
            FreeAfter::FREE
        } else {
            FreeAfter::new(index, self.list[usize::from(index)].freed)
        }
    }

    /// Returns true if no work of any stream uses the memory any more.
    #[inline]
    pub(crate) fn is_done(&self, free_after: FreeAfter) -> bool {
        free_after.stream() == CLEAN
            || free_after.moment() <= self.list[usize::from(free_after.stream())].done
    }

    /// Returns the moment up to which the work of a stream is done.
    pub(crate) fn done(&self, index: StreamIndex) -> u64 {
        self.list[usize::from(index)].done
    }

    /// Returns the order of memory that only the work before the last free on a stream may use.
    pub(crate) fn last_free(&self, index: StreamIndex) -> FreeAfter {
        let free_after = FreeAfter::new(index, self.list[usize::from(index)].freed);
        if self.is_done(free_after) { FreeAfter::FREE } else { free_after }
    }

    /// Returns the moment up to which events cover the frees on a stream.
    #[inline]
    pub(crate) fn covered(&self, index: StreamIndex) -> u64 {
        let progress = &self.list[usize::from(index)];
        progress.marks.back().map_or(progress.done, |(moment, _)| *moment)
    }

    /// Queries how far the streams have come, and records events for their latest frees. Returns true if any has come further.
    pub(crate) fn poll(&mut self) -> bool {
        if self.list.iter().all(Progress::is_idle) {
            return false;
        }
        if !self.can_ask() {
            let busy: Vec<_> = (1..self.list.len()).filter(|index| !self.list[*index].is_idle()).collect();
            busy.into_iter().for_each(|index| self.owe(index as StreamIndex));
            return false;
        }
        let mut is_any_further = false;
        for index in 1..self.list.len() {
            if self.list[index].is_idle() {
                continue;
            }
            let before = self.list[index].done;
            self.poll_one(index);
            if self.mark_if_possible(index) {
                self.poll_one(index);
            }
            is_any_further |= self.list[index].done > before;
        }
        is_any_further
    }

    /// Returns true if querying events and waiting for them cannot invalidate a known capture: one on the pool's own streams,
    /// or one that was announced.
    pub(crate) fn can_ask(&mut self) -> bool {
        if !self.backend.queries_spoil_captures() {
            return true;
        }
        !self.is_any_capturing()
    }

    /// Returns true if a stream of the pool captures, or a capture was announced. No device can be waited for then.
    pub(crate) fn is_any_capturing(&mut self) -> bool {
        self.backend.deferred().is_capturing()
            || (1..self.list.len()).any(|index| !self.list[index].is_retired && self.captures(index))
    }

    /// Returns true if work on a stream goes into a graph, or if the driver cannot say.
    pub(crate) fn captures(&mut self, index: usize) -> bool {
        self.calls += 1;
        // Another thread's default stream is a blocking stream: the default stream captures as long as it does.
        let stream = self.for_driver(index).unwrap_or(Stream::DEFAULT);
        match self.backend.is_capturing(stream) {
            Ok(captures) => captures,
            Err(error) => {
                self.tell(error);
                true
            }
        }
    }

    /// Notes that a stream needs an event after its capture: in it, the pool serves requests. Outside, it serves the stream from the
    /// stream's own memory and needs no event. Without this, nothing that the stream has freed would ever serve its captures.
    pub(crate) fn owe(&mut self, index: StreamIndex) {
        self.list[usize::from(index)].owes = true;
        self.owes = true;
    }

    /// Records the events that streams need and that do not capture any more.
    #[inline]
    pub(crate) fn mark_owed(&mut self) {
        if !self.owes || !self.can_ask() {
            return;
        }
        self.owes = false;
        for index in 1..self.list.len() {
            if std::mem::take(&mut self.list[index].owes) && !self.list[index].is_idle() {
                self.mark_if_possible(index);
            }
        }
    }

    fn tell(&self, error: Error) {
        self.backend.drop_log().record(error);
    }

    /// Counts freed bytes that wait for a stream. Records an event when they are more than `most`: the pool learns then in time that their
    /// work is done. If events were recorded only when memory is short, everything that was freed since would be unknown, and each
    /// shortage would extend the addresses.
    pub(crate) fn note_freed(&mut self, index: StreamIndex, bytes: u64, most: u64) {
        let progress = &mut self.list[usize::from(index)];
        progress.unmarked += bytes;
        if progress.unmarked > most {
            self.mark_if_possible(usize::from(index));
        }
    }

    /// Records an event behind the frees on a stream, unless the stream captures: after the capture, an event covers them.
    /// Returns true if it was recorded.
    pub(crate) fn mark_if_possible(&mut self, index: usize) -> bool {
        let progress = &self.list[index];
        let can_mark = !progress.is_retired
            && !progress.is_foreign
            && self.for_driver(index).is_some()
            && !progress.is_marked()
            && progress.marks.len() < MARKS;
        if can_mark && self.captures(index) {
            self.owe(index as StreamIndex);
            return false;
        }
        can_mark && self.mark(index)
    }

    /// Records an event behind the frees on a stream. Returns false if that fails: a later event covers them.
    fn mark(&mut self, index: usize) -> bool {
        self.calls += 1;
        let recorded = if self.list[index].stream.is_default() {
            // On CUDA this invalidates the capture of a blocking stream.
            let backend = self.backend.clone();
            backend.deferred().unless_capturing(Operation::RecordEvent, || self.record(index))
        } else {
            self.record(index)
        };
        match recorded {
            Ok(is_recorded) => is_recorded,
            Err(error) if matches!(error.detail(), Detail::Capturing { .. }) => false,
            Err(error) if matches!(error.detail(), Detail::ForeignStream { .. }) => {
                let device = self.device;
                let progress = &mut self.list[index];
                if progress.device != device && progress.marks.is_empty() {
                    // The pool knew the stream before it moved to the stream's device.
                    progress.device = device;
                    return self.mark(index);
                }
                progress.is_foreign = true;
                false
            }
            Err(error) => {
                self.tell(error);
                false
            }
        }
    }

    fn record(&mut self, index: usize) -> Result<bool> {
        let Some(stream) = self.for_driver(index) else { return Ok(false) };
        let mut event = self.event(self.list[index].device)?;
        let progress = &mut self.list[index];
        let Some(unused) = Arc::get_mut(&mut event) else { return Ok(false) };
        let mut recorded = unused.record(stream);
        if stream.is_per_thread() {
            // Nothing tells when the thread ends.
            recorded = recorded.and_then(|()| unused.outlive_stream());
        }
        // Another thread may have begun a capture since the check above. The event is then in its graph, and a query or a
        // wait for it would invalidate the capture. A default stream never captures.
        let is_kept = recorded.is_ok() && (progress.stream.is_default() || !self.captures(index));
        let progress = &mut self.list[index];
        if is_kept {
            progress.unmarked = 0;
            progress.marks.push_back((progress.freed, event));
        } else {
            self.spare.push((progress.device, event));
        }
        recorded.map(|()| is_kept)
    }

    /// Returns an event of a device that is not in use.
    fn event(&mut self, device: DeviceId) -> Result<Arc<dyn Event>> {
        while let Some(place) = self.spare.iter().rposition(|(of, _)| *of == device) {
            let (_, mut event) = self.spare.swap_remove(place);
            // A thread that waits for the event still holds it.
            if Arc::get_mut(&mut event).is_some() {
                return Ok(event);
            }
        }
        self.backend.event(device).map(Arc::from)
    }

    /// Notes that the work of a stream up to a moment is done.
    pub(crate) fn advance(&mut self, index: usize, moment: u64) {
        let progress = &mut self.list[index];
        self.advances += u64::from(moment > progress.done);
        progress.done = progress.done.max(moment);
        if progress.thread.is_some() && progress.is_idle() {
            progress.unmarked = 0;
        }
        let passed = progress.marks.partition_point(|(marked, _)| *marked <= moment);
        self.spare.extend(progress.marks.drain(..passed).map(|(_, event)| (progress.device, event)));
    }

    pub(crate) fn poll_one(&mut self, index: usize) {
        while let Some((moment, event)) = self.list[index].marks.front() {
            self.calls += 1;
            let moment = *moment;
            match event.is_done() {
                Ok(true) => self.advance(index, moment),
                Ok(false) => break,
                Err(error) => {
                    // A later query would fail as well: another event takes its place.
                    self.list[index].marks.pop_front();
                    self.backend.drop_log().record(error);
                }
            }
        }
    }
}

impl<B: Backend> Drop for Streams<B> {
    fn drop(&mut self) {
        for served in self.list.iter().skip(1).filter(|one| !one.is_retired) {
            self.backend.deferred().unwatch_stream(per_thread::for_caller(served.stream));
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used, unsafe_code)]

    use super::*;
    use gpu_vmm_host::HostConfig;

    #[test]
    fn each_number_but_two_serves_a_stream() {
        let mut streams = Streams::new(&HostConfig::new().open().unwrap(), DeviceId(0));
        // SAFETY: they are only compared with other streams.
        let stream = |address: usize| unsafe { Stream::from_raw(std::ptr::without_provenance_mut(address)) };
        let mut index = |address| streams.index(Operation::RegisterStream, stream(address));
        assert_eq!([0x1000, 0x2000, 0x1000].map(|address| index(address).unwrap()), [1, 2, 1]);
        // As if there were one stream for each of the other numbers but the last.
        streams.list.resize_with(usize::from(MIXED) - 1, || Progress::new(stream(0x3000), DeviceId(0)));
        let mut index = |address| streams.index(Operation::RegisterStream, stream(address));
        assert_eq!(index(0x4000).unwrap(), MIXED - 1);
        let error = index(0x5000).unwrap_err();
        assert_eq!(error.operation(), Operation::RegisterStream);
        assert!(error.to_string().contains("serves the maximum of 65534 streams; forget some"), "{error}");
        assert_eq!(index(0x2000).unwrap(), 2, "a known stream is refused");
    }
}
