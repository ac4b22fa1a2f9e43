//! The simulated device: streams, kernels, captures, and which work uses which memory.

use gpu_vmm_core::{AddressRange, Detail, Error, Operation, Result, Stream};
use shuttle::sync::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{MutexGuard, PoisonError};

/// The machine's number for a block. No other block gets it.
pub(crate) type Tenant = u64;

/// A range of a handle's physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Physical {
    handle: u64,
    start: u64,
    end: u64,
}

impl Physical {
    fn overlaps(&self, other: &Self) -> bool {
        self.handle == other.handle && self.start < other.end && other.start < self.end
    }
}

/// Work that uses a range of addresses.
#[derive(Clone, Debug)]
struct Kernel {
    tenant: Tenant,
    range: (u64, u64),
    /// The memory behind the addresses when it was queued.
    memory: Vec<Physical>,
}

/// A stream: a queue whose first kernel completes next.
#[derive(Debug, Default)]
struct Queue {
    kernels: VecDeque<Kernel>,
    /// The number of kernels queued so far, and completed so far.
    queued: u64,
    done: u64,
    /// The kernels queued during the current capture.
    graph: Option<Vec<Kernel>>,
    /// The number of captures begun so far.
    captures: u64,
    destroyed: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Keyed by the streams' names, which depend on the schedule alone.
    streams: BTreeMap<usize, Queue>,
    /// First addresses of mappings, with their sizes and handles.
    mappings: BTreeMap<u64, (u64, u64)>,
    /// Blocks in use, and those that wait for a fence.
    live: BTreeMap<Tenant, (u64, u64)>,
    tenants: Tenant,
    handles: u64,
    /// Blocks that wait for all work on them, and whether it is complete.
    fences: BTreeMap<Tenant, bool>,
    stopped: bool,
}

/// The machine. A lock of the system guards its state, so that calls in destructors, under the library's locks, are no points
/// at which threads switch.
#[derive(Debug)]
pub(crate) struct Machine {
    state: std::sync::Mutex<State>,
    /// Counts the changes, for threads that wait.
    changes: Mutex<u64>,
    changed: Condvar,
}

/// A position in a stream's work, for an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    stream: usize,
    number: u64,
    /// The capture in which it was recorded, counted from 1.
    capture: Option<u64>,
}

fn name(stream: Stream<'_>) -> usize {
    stream.as_raw().addr()
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { state: std::sync::Mutex::default(), changes: Mutex::new(0), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the scheduler switch to another thread.
    pub(crate) fn switch(&self) {
        drop(self.changes.lock().unwrap());
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        *self.changes.lock().unwrap() += 1;
        self.changed.notify_all();
        result
    }

    /// Waits until `is` returns a value.
    pub(crate) fn wait_until<T>(&self, is: impl Fn(&Self) -> Option<T>) -> T {
        let mut changes = self.changes.lock().unwrap();
        loop {
            if let Some(result) = is(self) {
                return result;
            }
            changes = self.changed.wait(changes).unwrap();
        }
    }
}

/// The device's next task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// The first kernel of a stream.
    Kernel(usize),
    /// A fence whose block is used by no work any more.
    Fence(Tenant),
}

/// The interface for the device's thread.
impl Machine {
    /// Waits for a task, and lets `pick` choose among the given number. Returns `None` when no task is left and the machine
    /// was stopped.
    pub(crate) fn next(&self, pick: impl Fn(usize) -> usize) -> Option<Task> {
        self.wait_until(|machine| {
            let state = machine.state();
            let busy = state.streams.iter().filter(|(_, queue)| !queue.kernels.is_empty());
            let kernels = busy.map(|(name, _)| Task::Kernel(*name));
            let ready = state.fences.iter().filter(|(tenant, done)| !**done && !state.is_in_use(**tenant));
            let tasks: Vec<Task> = kernels.chain(ready.map(|(tenant, _)| Task::Fence(*tenant))).collect();
            match tasks.len() {
                0 if state.stopped => Some(None),
                0 => None,
                count => Some(Some(tasks[pick(count)])),
            }
        })
    }

    /// Completes a task.
    pub(crate) fn finish(&self, task: Task) {
        self.change(|state| match task {
            Task::Kernel(stream) => {
                let kernel = state.streams[&stream].kernels[0].clone();
                let now = state.behind(kernel.range);
                assert_eq!(now.as_ref(), Some(&kernel.memory), "memory was taken away under {kernel:?}");
                let queue = state.streams.get_mut(&stream).unwrap();
                queue.kernels.pop_front();
                queue.done += 1;
            }
            Task::Fence(tenant) => {
                state.fences.insert(tenant, true);
                state.live.remove(&tenant);
            }
        });
    }

    pub(crate) fn stop(&self) {
        self.change(|state| state.stopped = true);
    }
}

/// The interface for programs.
impl Machine {
    /// Creates a stream.
    pub(crate) fn create_stream(&self, name: usize) -> Stream<'static> {
        self.change(|state| assert!(state.streams.insert(name, Queue::default()).is_none()));
        let raw = std::ptr::without_provenance_mut(name);
        #[allow(unsafe_code)]
        // SAFETY: no memory is accessed through it; the machine detects uses after its end.
        unsafe {
            Stream::from_raw(raw)
        }
    }

    pub(crate) fn destroy_stream(&self, stream: Stream<'_>) {
        self.change(|state| state.queue(stream).destroyed = true);
    }

    /// Queues a kernel that uses a block.
    pub(crate) fn launch(&self, stream: Stream<'_>, tenant: Tenant) {
        self.change(|state| {
            let range = state.live[&tenant];
            let memory = state.behind(range).unwrap_or_else(|| panic!("block {tenant} has no memory"));
            let kernel = Kernel { tenant, range, memory };
            let queue = state.queue(stream);
            match &mut queue.graph {
                Some(graph) => graph.push(kernel),
                None => queue.push(kernel),
            }
        });
    }

    pub(crate) fn begin_capture(&self, stream: Stream<'_>) {
        self.change(|state| {
            let queue = state.queue(stream);
            assert!(queue.graph.replace(Vec::new()).is_none(), "it captures already");
            queue.captures += 1;
        });
    }

    /// Ends a capture and launches its graph on a stream.
    pub(crate) fn end_capture_and_launch(&self, stream: Stream<'_>, on: Stream<'_>) {
        self.change(|state| {
            let graph = state.queue(stream).graph.take().expect("it captures");
            let queue = state.queue(on);
            assert!(queue.graph.is_none(), "a graph is launched into a capture");
            graph.into_iter().for_each(|kernel| queue.push(kernel));
        });
    }

    /// Checks that no other work uses, or will use, a range that was handed out for a stream. Earlier work of the stream may
    /// use it, unless the caller captures the stream.
    pub(crate) fn handed_out(&self, range: AddressRange, stream: Stream<'_>, captured: bool) -> Tenant {
        let mut state = self.state();
        let range = (range.base.0, range.base.0 + range.size.0);
        let memory =
            state.behind(range).unwrap_or_else(|| panic!("{range:x?} was handed out without memory"));
        for (tenant, live) in &state.live {
            assert!(
                range.1 <= live.0 || live.1 <= range.0,
                "{range:x?} was handed out, and is block {tenant}'s"
            );
        }
        for (name_of, queue) in &state.streams {
            let comes_before = *name_of == name(stream) && !captured;
            for kernel in queue.kernels.iter().filter(|_| !comes_before) {
                let shared = kernel.memory.iter().any(|used| memory.iter().any(|given| given.overlaps(used)));
                assert!(
                    !shared,
                    "{range:x?} was handed out for {stream:?}, but {kernel:?} is queued on {name_of:#x}"
                );
            }
        }
        state.tenants += 1;
        let tenant = state.tenants;
        state.live.insert(tenant, range);
        tenant
    }

    /// Notes that a block is about to be freed.
    pub(crate) fn given_back(&self, tenant: Tenant) {
        self.state().live.remove(&tenant);
    }

    /// Notes that a block is about to be freed behind a fence. The device completes the fence when no work uses the block any
    /// more.
    pub(crate) fn fenced(&self, tenant: Tenant) {
        self.change(|state| state.fences.insert(tenant, false));
    }

    pub(crate) fn is_fence_done(&self, tenant: Tenant) -> bool {
        self.state().fences[&tenant]
    }
}

/// The interface for the driver's calls.
impl Machine {
    /// Returns the position after all work queued on a stream; it is in a graph while the stream captures.
    pub(crate) fn place(&self, stream: Stream<'_>) -> Position {
        let mut state = self.state();
        let queue = state.queue(stream);
        assert!(!queue.destroyed, "an event is recorded on a destroyed stream");
        let capture = queue.graph.is_some().then_some(queue.captures);
        Position { stream: name(stream), number: queue.queued, capture }
    }

    /// Refuses queries of a position in a graph. Panics if its capture is not over.
    pub(crate) fn check_asking(&self, operation: Operation, place: Position) -> Result<()> {
        let Some(capture) = place.capture else { return Ok(()) };
        let queue = &self.state().streams[&place.stream];
        let goes_on = queue.graph.is_some() && queue.captures == capture;
        assert!(!goes_on, "{operation}: that invalidates the capture of {:#x}", place.stream);
        Err(Error::new(operation, Detail::Capturing { source: None }))
    }

    pub(crate) fn is_past(&self, place: Position) -> bool {
        self.state().streams[&place.stream].done >= place.number
    }

    pub(crate) fn asked_whether_it_captures(&self, stream: Stream<'_>) -> bool {
        let mut state = self.state();
        let queue = state.queue(stream);
        assert!(!queue.destroyed, "the capture status of a destroyed stream is queried");
        queue.graph.is_some()
    }

    /// Waits for the work that is queued now, on one stream or on all.
    pub(crate) fn synchronize(&self, only: Option<Stream<'_>>) -> Result<()> {
        let places: Vec<Position> = {
            let state = self.state();
            if state.streams.values().any(|queue| queue.graph.is_some()) {
                return Err(Error::new(Operation::WaitForDevice, Detail::Capturing { source: None }));
            }
            let of = |stream: &usize| only.is_none_or(|only| name(only) == *stream);
            let place = |(stream, queue): (&usize, &Queue)| Position {
                stream: *stream,
                number: queue.queued,
                capture: None,
            };
            state.streams.iter().filter(|(stream, _)| of(stream)).map(place).collect()
        };
        self.wait_until(|machine| places.iter().all(|place| machine.is_past(*place)).then_some(()));
        Ok(())
    }

    pub(crate) fn new_handle(&self) -> u64 {
        let mut state = self.state();
        state.handles += 1;
        state.handles
    }

    pub(crate) fn map(&self, at: u64, size: u64, handle: u64) {
        self.state().mappings.insert(at, (size, handle));
    }

    /// Checks that no queued work uses the memory that is unmapped.
    pub(crate) fn unmap(&self, start: u64, end: u64) {
        let mut state = self.state();
        for (stream, queue) in &state.streams {
            let graph = queue.graph.iter().flatten();
            for kernel in queue.kernels.iter().chain(graph) {
                let apart = end <= kernel.range.0 || kernel.range.1 <= start;
                assert!(apart, "{start:#x}..{end:#x} is unmapped, but {kernel:?} is queued on {stream:#x}");
            }
        }
        state.mappings.retain(|at, _| *at < start || end <= *at);
    }

    /// Returns the number of mappings.
    pub(crate) fn mappings(&self) -> usize {
        self.state().mappings.len()
    }
}

impl Queue {
    fn push(&mut self, kernel: Kernel) {
        self.kernels.push_back(kernel);
        self.queued += 1;
    }
}

impl State {
    fn is_in_use(&self, tenant: Tenant) -> bool {
        self.streams.values().any(|queue| queue.kernels.iter().any(|kernel| kernel.tenant == tenant))
    }

    fn queue(&mut self, stream: Stream<'_>) -> &mut Queue {
        // The default stream always exists.
        self.streams.entry(name(stream)).or_default()
    }

    /// Returns the memory behind a range; `None` if a part of it has none.
    fn behind(&self, (start, end): (u64, u64)) -> Option<Vec<Physical>> {
        let mut memory = Vec::new();
        let mut at = start;
        while at < end {
            let (base, (size, handle)) = self.mappings.range(..=at).next_back()?;
            let stop = end.min(base + size);
            if stop <= at {
                return None;
            }
            memory.push(Physical { handle: *handle, start: at - base, end: stop - base });
            at = stop;
        }
        Some(memory)
    }
}
