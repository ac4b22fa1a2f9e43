//! A backend whose streams exist in the test alone: their work ends when the test says so.
#![allow(unsafe_code)] // implements unsafe traits

use gpu_vmm_core::extend::forward;
use gpu_vmm_core::{
    Backend, CopyCalls, Detail, DeviceId, Error, Event, MemoryCalls, Operation, Result, Stream, SyncCalls,
};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// A backend that forwards calls for memory to an inner backend, and has streams, events and captures of its own.
///
/// No device does any work. The test queues units of work on a stream and ends them later, so that a program can run for long with
/// streams that end late, and without memory being touched.
#[derive(Clone, Debug)]
pub struct LateWork<B: Backend> {
    inner: B,
    streams: Arc<Streams>,
}

/// The streams, and the number of events that exist.
#[derive(Debug)]
struct Streams {
    list: Vec<Queue>,
    /// The streams that are the per-thread default streams of threads.
    of_threads: Mutex<Vec<(ThreadId, usize)>>,
    events: AtomicU64,
}

/// The number of units of work that were queued on a stream, and of those that have ended.
#[derive(Debug, Default)]
struct Queue {
    queued: AtomicU64,
    done: AtomicU64,
    captures: AtomicBool,
}

impl Queue {
    fn queued(&self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }

    fn end(&self, position: u64) {
        self.done.fetch_max(position.min(self.queued()), Ordering::AcqRel);
    }
}

/// The distance of the numbers of two streams. Both vendors' streams are pointers.
const APART: usize = 0x100;

impl<B: Backend> LateWork<B> {
    /// Wraps a backend, with `streams` streams. Stream 0 is the default stream.
    pub fn new(inner: B, streams: usize) -> Self {
        let list = (0..streams.max(1)).map(|_| Queue::default()).collect();
        let of_threads = Mutex::new(Vec::new());
        Self { inner, streams: Arc::new(Streams { list, of_threads, events: AtomicU64::new(0) }) }
    }

    /// Returns the inner backend.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Returns a stream.
    #[must_use]
    pub fn stream(&self, index: usize) -> Stream<'static> {
        match index {
            0 => Stream::DEFAULT,
            // SAFETY: this backend alone looks at the pointer, and it compares it with others.
            _ => unsafe { Stream::from_raw(ptr::without_provenance_mut(index * APART)) },
        }
    }

    /// Makes a stream the calling thread's [per-thread default stream](Stream::is_per_thread).
    pub fn own_by_thread(&self, stream: usize) {
        let mut all = self.streams.of_threads.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(thread, _)| *thread != thread::current().id());
        all.push((thread::current().id(), stream));
    }

    /// Queues a unit of work. While the stream captures, the work goes into a graph that never runs.
    pub fn queue(&self, stream: usize) {
        let queue = &self.streams.list[stream];
        if !queue.captures.load(Ordering::Acquire) {
            queue.queued.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the number of units of work that were ever queued on a stream.
    #[must_use]
    pub fn queued(&self, stream: usize) -> u64 {
        self.streams.list[stream].queued()
    }

    /// Returns how many of them have ended.
    #[must_use]
    pub fn done(&self, stream: usize) -> u64 {
        self.streams.list[stream].done.load(Ordering::Acquire)
    }

    /// Ends up to `count` units of work.
    pub fn finish(&self, stream: usize, count: u64) {
        self.streams.list[stream].end(self.done(stream).saturating_add(count));
    }

    /// Begins or ends a capture.
    pub fn set_capturing(&self, stream: usize, captures: bool) {
        self.streams.list[stream].captures.store(captures, Ordering::Release);
    }

    /// Returns true if a stream captures.
    #[must_use]
    pub fn is_capturing_on(&self, stream: usize) -> bool {
        self.streams.list[stream].captures.load(Ordering::Acquire)
    }

    /// Returns the number of events that exist.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.streams.events.load(Ordering::Acquire)
    }
}

impl Streams {
    /// Returns the stream of a call.
    fn at(&self, operation: Operation, stream: Stream<'_>) -> Result<(usize, &Queue)> {
        let index = match stream {
            _ if stream.is_default() => Some(0),
            _ if stream.is_per_thread() => self.of_this_thread(),
            _ => Some(stream.as_raw().addr() / APART),
        };
        let found = index.and_then(|index| Some((index, self.list.get(index)?)));
        found.ok_or_else(|| {
            let reason = format!("{:?} is no stream of this backend", stream.as_raw());
            Error::new(operation, Detail::Unsupported { reason })
        })
    }

    fn of_this_thread(&self) -> Option<usize> {
        let all = self.of_threads.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(thread, _)| *thread == thread::current().id()).map(|(_, stream)| *stream)
    }

    /// Returns true if the default stream of a thread captures, which work on the default stream would invalidate.
    fn does_any_thread_capture(&self) -> bool {
        let all = self.of_threads.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(_, stream)| self.list[*stream].captures.load(Ordering::Acquire))
    }

    /// Refuses a call that a capture forbids.
    fn check(operation: Operation, queue: &Queue) -> Result<()> {
        match queue.captures.load(Ordering::Acquire) {
            true => Err(Error::new(operation, Detail::Capturing { source: None })),
            false => Ok(()),
        }
    }
}

// SAFETY: every call is forwarded to the inner backend.
unsafe impl<B: Backend> Backend for LateWork<B> {
    forward!(inner: Backend);
}

// SAFETY: as above.
unsafe impl<B: Backend> MemoryCalls for LateWork<B> {
    type Handle = B::Handle;
    type Reservation = B::Reservation;
    forward!(inner: MemoryCalls);
}

// SAFETY: as above. No work of the streams touches memory, so that copies need not wait for it.
unsafe impl<B: Backend> CopyCalls for LateWork<B> {
    forward!(inner: CopyCalls);
}

// SAFETY: the work of the streams touches no memory, and a wait ends it.
unsafe impl<B: Backend> SyncCalls for LateWork<B> {
    forward!(inner: queries_spoil_captures);

    fn synchronize(&self, device: DeviceId) -> Result<()> {
        self.streams.list.iter().try_for_each(|queue| Streams::check(Operation::WaitForDevice, queue))?;
        self.streams.list.iter().for_each(|queue| queue.end(u64::MAX));
        self.inner.synchronize(device)
    }

    fn synchronize_stream(&self, _device: DeviceId, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::WaitForStream;
        let (_, queue) = self.streams.at(operation, stream)?;
        Streams::check(operation, queue)?;
        queue.end(u64::MAX);
        Ok(())
    }

    fn event(&self, device: DeviceId) -> Result<Box<dyn Event>> {
        self.inner.device(Operation::CreateEvent, device)?;
        self.streams.events.fetch_add(1, Ordering::AcqRel);
        Ok(Box::new(LateEvent { streams: Arc::clone(&self.streams), recorded: None }))
    }

    fn is_capturing(&self, stream: Stream<'_>) -> Result<bool> {
        let (_, queue) = self.streams.at(Operation::QueryCapture, stream)?;
        let breaks = stream.is_default() && self.streams.does_any_thread_capture();
        Ok(breaks || queue.captures.load(Ordering::Acquire))
    }
}

/// An event on one of the streams: the number of units of work that were queued when it was recorded.
#[derive(Debug)]
struct LateEvent {
    streams: Arc<Streams>,
    recorded: Option<(usize, u64)>,
}

// SAFETY: it is done when the work that was queued before has ended.
unsafe impl Event for LateEvent {
    fn record(&mut self, stream: Stream<'_>) -> Result<()> {
        let operation = Operation::RecordEvent;
        let (index, queue) = self.streams.at(operation, stream)?;
        Streams::check(operation, queue)?;
        self.recorded = Some((index, queue.queued()));
        Ok(())
    }

    fn is_done(&self) -> Result<bool> {
        let done = |stream: usize| self.streams.list[stream].done.load(Ordering::Acquire);
        Ok(self.recorded.is_none_or(|(stream, position)| done(stream) >= position))
    }

    fn wait(&self) -> Result<()> {
        if let Some((stream, position)) = self.recorded {
            self.streams.list[stream].end(position);
        }
        Ok(())
    }

    /// Ends the recorded work, so that later work of any stream comes after it.
    fn hold(&self, _: Stream<'_>) -> Result<()> {
        self.wait()
    }
}

impl Drop for LateEvent {
    fn drop(&mut self) {
        self.streams.events.fetch_sub(1, Ordering::AcqRel);
    }
}
