//! The streams of a backend as queues, and the threads that do their work.
//!
//! Threads start when work is queued and end after a while without work; dropping the backend ends them. While nothing is queued,
//! no query takes a lock. A forked child has none of the threads, so calls there fail before they take a lock.

use crate::capture::{Capture, Waiting};
use crate::mappings::Mappings;
use crate::stream_names::default_of;
use crate::work::{Position, Work};
use gpu_vmm_core::extend::Process;
use gpu_vmm_core::extend::system::refusal;
use gpu_vmm_core::{Detail, DeviceId, DriverError, Error, Operation, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The number of streams that work at the same time. Others wait, as with the hardware queues of a GPU.
const MAX_THREADS: usize = 8;

/// The time that a thread waits for more work before it ends.
const IDLE: Duration = Duration::from_millis(200);

/// All streams of a backend.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) process: Process,
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// The amount of work queued on all streams together and not done.
    pending: AtomicUsize,
    /// The number of capturing streams.
    pub(crate) captures: AtomicUsize,
    stopping: AtomicBool,
    has_lost: AtomicBool,
    state: Mutex<State>,
    /// Notified when work is queued or done.
    changed: Condvar,
    mappings: Arc<Mappings>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// By stream name; streams that have ended are removed.
    pub(crate) queues: BTreeMap<usize, Queue>,
    /// The number of captures that were ever begun.
    pub(crate) captures: u64,
    /// Includes threads that have ended since.
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that have not ended.
    alive: usize,
    /// The lost devices, each with the reason. All later work of such a device fails.
    lost: BTreeMap<DeviceId, String>,
}

/// The work on one stream.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) device: DeviceId,
    /// Whether the default stream waits for this stream, and this stream for the default stream.
    pub(crate) is_blocking: bool,
    pub(crate) capture: Option<Capture>,
    work: VecDeque<Work>,
    /// The amount of work ever queued, and how much of it is done.
    queued: u64,
    done: u64,
    /// Whether a thread is doing the first work of the queue.
    is_running: bool,
}

impl State {
    fn is_done(&self, place: Position) -> bool {
        self.queues.get(&place.stream).is_none_or(|queue| queue.done >= place.count)
    }

    /// Returns the current ends of the streams of a device that new work on `stream` must wait for: the blocking streams if it is
    /// the default stream, and the default stream if it is a blocking one.
    fn others(&self, device: DeviceId, stream: usize) -> Vec<Position> {
        let default = default_of(device);
        let is_blocking = self.queues.get(&stream).is_some_and(|queue| queue.is_blocking);
        let comes_after = |name: usize, queue: &Queue| match stream == default {
            true => queue.is_blocking && queue.device == device,
            false => is_blocking && name == default,
        };
        let others = self.queues.iter().filter(|(name, queue)| {
            **name != stream && queue.done < queue.queued && comes_after(**name, queue)
        });
        others.map(|(name, queue)| Position { stream: *name, count: queue.queued }).collect()
    }

    /// Returns a stream whose first work can be done, with that work. Removes completed holds on the way.
    fn next(&mut self, shared: &Shared) -> Option<(usize, Work)> {
        loop {
            let ready = self.queues.iter().find_map(|(name, queue)| match queue.work.front()? {
                _ if queue.is_running => None,
                Work::Hold(place) if !self.is_done(*place) => None,
                work => Some((*name, work.clone())),
            });
            match ready? {
                (name, Work::Hold(_)) => self.end(shared, name),
                (name, work) => {
                    self.queues.get_mut(&name)?.is_running = true;
                    return Some((name, work));
                }
            }
        }
    }

    /// Ends the first work of a stream.
    fn end(&mut self, shared: &Shared, name: usize) {
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.work.pop_front();
            queue.done += 1;
            queue.is_running = false;
            shared.pending.fetch_sub(1, Ordering::Release);
            shared.changed.notify_all();
        }
    }

    /// Drops all queued work of a device, which is lost. Work of it that other threads are doing ends by itself.
    fn lose(&mut self, shared: &Shared, device: DeviceId, why: String) {
        self.lost.entry(device).or_insert(why);
        shared.has_lost.store(true, Ordering::Release);
        for queue in self.queues.values_mut().filter(|queue| queue.device == device) {
            let running = usize::from(queue.is_running);
            let given_up = queue.work.len().saturating_sub(running);
            queue.work.truncate(running);
            queue.done += given_up as u64;
            shared.pending.fetch_sub(given_up, Ordering::Release);
        }
        shared.changed.notify_all();
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread: does one piece of work after the other, from any stream that has some.
    fn work(&self) {
        let mut state = self.state();
        while !self.stopping.load(Ordering::Acquire) {
            let Some((name, work)) = state.next(self) else {
                let waited = self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                if waited.1.timed_out() && self.pending.load(Ordering::Acquire) == 0 {
                    state.alive -= 1;
                    return;
                }
                continue;
            };
            drop(state);
            let ended = match &work {
                Work::Pattern(pattern) => pattern
                    .write(&self.mappings, || self.stopping.load(Ordering::Acquire))
                    .map_err(|why| (pattern.device, why)),
                Work::Hold(_) => Ok(()),
            };
            state = self.state();
            // Before the end: a waiting thread that sees no pending work takes no lock, and must find the loss.
            if let Err((device, why)) = ended {
                state.lose(self, device, why);
            }
            state.end(self, name);
        }
    }
}

impl Queues {
    pub(crate) fn new(process: Process, mappings: &Arc<Mappings>) -> Self {
        let shared = Shared {
            pending: AtomicUsize::new(0),
            captures: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            mappings: Arc::clone(mappings),
        };
        Self { process, shared: Arc::new(shared) }
    }

    /// Returns the state if any work is queued. If none is, there is nothing to wait for.
    fn busy(&self, operation: Operation) -> Result<Option<MutexGuard<'_, State>>> {
        self.process.check(operation)?;
        let is_idle = self.shared.pending.load(Ordering::Acquire) == 0;
        Ok(if is_idle { None } else { Some(self.shared.state()) })
    }

    /// Queues work on a stream of a device.
    pub(crate) fn push(
        &self,
        operation: Operation,
        device: DeviceId,
        stream: usize,
        work: Work,
    ) -> Result<()> {
        self.process.check(operation)?;
        let mut state = self.shared.state();
        if let Some(capture) = state.queues.get_mut(&stream).and_then(|queue| queue.capture.as_mut()) {
            capture.work.push(work);
            return Ok(());
        }
        if let Work::Hold(place) = &work
            && state.is_done(*place)
        {
            return Ok(());
        }
        let others = state.others(device, stream);
        // Includes this stream.
        let busy = 1 + state
            .queues
            .iter()
            .filter(|(name, queue)| **name != stream && !queue.work.is_empty())
            .count();
        if state.alive < busy.min(MAX_THREADS) {
            state.threads.retain(|thread| !thread.is_finished());
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().spawn(move || shared.work());
            let thread = thread.map_err(|error| {
                Error::new(
                    operation,
                    Detail::Driver {
                        source: DriverError::system("start a thread", &error),
                        context: "for the work of streams".to_owned(),
                    },
                )
            })?;
            state.threads.push(thread);
            state.alive += 1;
        }
        let queue = state.queues.entry(stream).or_default();
        queue.device = device;
        for work in others.into_iter().map(Work::Hold).chain([work]) {
            queue.work.push_back(work);
            queue.queued += 1;
            self.shared.pending.fetch_add(1, Ordering::AcqRel);
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Returns the current end of a stream, or `None` if all its work is done.
    pub(crate) fn place(&self, operation: Operation, stream: usize) -> Result<Option<Position>> {
        let Some(state) = self.busy(operation)? else { return Ok(None) };
        let queue = state.queues.get(&stream).filter(|queue| queue.done < queue.queued);
        Ok(queue.map(|queue| Position { stream, count: queue.queued }))
    }

    /// Returns whether all work before a place is done.
    pub(crate) fn is_done(&self, operation: Operation, place: Option<Position>) -> Result<bool> {
        let state = self.busy(operation)?;
        Ok(state.zip(place).is_none_or(|(state, place)| state.is_done(place)))
    }

    /// Waits until all work before a place is done.
    pub(crate) fn wait(&self, operation: Operation, place: Option<Position>) -> Result<()> {
        let (Some(mut state), Some(place)) = (self.busy(operation)?, place) else { return Ok(()) };
        while !state.is_done(place) {
            state = self.shared.wait(state);
        }
        Ok(())
    }

    /// Makes a stream a blocking one.
    pub(crate) fn make_blocking(&self, operation: Operation, device: DeviceId, stream: usize) -> Result<()> {
        self.process.check(operation)?;
        let mut state = self.shared.state();
        let queue = state.queues.entry(stream).or_default();
        (queue.device, queue.is_blocking) = (device, true);
        Ok(())
    }

    /// Waits for the work on a device's default stream and on its blocking streams.
    pub(crate) fn wait_for_default(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.check_waiting(operation, Waiting::Default(device))?;
        let Some(mut state) = self.busy(operation)? else { return Ok(()) };
        let default = default_of(device);
        let mut places = state.others(device, default);
        places.extend(
            state.queues.get(&default).map(|queue| Position { stream: default, count: queue.queued }),
        );
        while !places.iter().all(|place| state.is_done(*place)) {
            state = self.shared.wait(state);
        }
        Ok(())
    }

    /// Waits for all work that is queued on the streams of a device now.
    pub(crate) fn wait_for_device(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.check_waiting(operation, Waiting::Device(device))?;
        let Some(mut state) = self.busy(operation)? else { return Ok(()) };
        let queues = state.queues.iter().filter(|(_, queue)| queue.device == device);
        let places: Vec<Position> =
            queues.map(|(stream, queue)| Position { stream: *stream, count: queue.queued }).collect();
        while !places.iter().all(|place| state.is_done(*place)) {
            state = self.shared.wait(state);
        }
        Ok(())
    }

    /// Waits for a stream and removes it. A forked child leaves it alone, since it is the parent's.
    pub(crate) fn remove(&self, stream: usize) {
        let operation = Operation::DestroyStream;
        let waited = self.place(operation, stream).and_then(|place| self.wait(operation, place));
        if waited.is_ok() {
            let removed = self.shared.state().queues.remove(&stream);
            if removed.is_some_and(|queue| queue.capture.is_some()) {
                self.shared.captures.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Returns an error if the device is lost.
    pub(crate) fn check_alive(&self, operation: Operation, device: DeviceId) -> Result<()> {
        self.process.check(operation)?;
        if !self.shared.has_lost.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.shared.state().lost.get(&device) {
            None => Ok(()),
            Some(why) => {
                let source = refusal("the host backend", Errno::FAULT, why.clone());
                Err(Error::new(operation, Detail::DeviceLost { source }))
            }
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        if !self.process.is_this() {
            return;
        }
        self.shared.stopping.store(true, Ordering::Release);
        let threads = std::mem::take(&mut self.shared.state().threads);
        self.shared.changed.notify_all();
        for thread in threads {
            // No thread panics; if one does, its work has ended.
            let _ = thread.join();
        }
    }
}
