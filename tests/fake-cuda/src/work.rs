//! Asynchronous work: every stream has a queue, and a thread that executes it.
//!
//! Default streams and blocking ones wait for each other as documented. A failure ends its context, whose queued work is not
//! executed any more.

use crate::code::{Answer, Code};
use crate::objects::{Capture, Context, Event, Function, Job, Module, Ticket};
use crate::settings::{MAX_DEVICES, settings};
use crate::violation::stop;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// The capacity of a stream's queue. A call waits while it is full.
const MAX_QUEUED: usize = 1024;

struct Task {
    number: u64,
    waits: Vec<Ticket>,
    job: Job,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: usize,
    /// Whether the stream and the default stream wait for each other.
    pub(crate) blocking: bool,
    /// Whether the program did not create it.
    is_default: bool,
    queue: VecDeque<Task>,
    /// Additional positions that the next task must wait for.
    waits: Vec<Ticket>,
    queued: u64,
    done: u64,
    has_thread: bool,
    /// Whether the program has destroyed it; it is removed when its work is done.
    pub(crate) closing: bool,
    pub(crate) capture: Option<Capture>,
}

/// The lock's content.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) primary: [Option<usize>; MAX_DEVICES],
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) events: BTreeMap<usize, Event>,
    pub(crate) modules: BTreeMap<usize, Module>,
    pub(crate) functions: BTreeMap<usize, Function>,
    pub(crate) graphs: BTreeMap<usize, Vec<Job>>,
    /// Executable graphs.
    pub(crate) execs: BTreeMap<usize, Vec<Job>>,
    last_name: usize,
}

static CHANGED: Condvar = Condvar::new();

/// Takes the lock. Code that also needs the lock of `state` must take that one first.
pub(crate) fn work() -> MutexGuard<'static, Work> {
    static WORK: LazyLock<Mutex<Work>> = LazyLock::new(Mutex::default);
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change.
pub(crate) fn wait(work: MutexGuard<'static, Work>) -> MutexGuard<'static, Work> {
    CHANGED.wait(work).unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Returns a unique name for an object, which the program sees as a pointer.
    pub(crate) fn new_name(&mut self) -> usize {
        self.last_name += 0x100;
        self.last_name
    }

    pub(crate) fn new_stream(&mut self, context: usize, blocking: bool, is_default: bool) -> usize {
        let name = self.new_name();
        let stream = Stream {
            context,
            blocking,
            is_default,
            queue: VecDeque::new(),
            waits: Vec::new(),
            queued: 0,
            done: 0,
            has_thread: false,
            closing: false,
            capture: None,
        };
        self.streams.insert(name, stream);
        name
    }

    /// Destroys a stream.
    pub(crate) fn close(&mut self, name: usize) {
        let Some(stream) = self.streams.get_mut(&name) else { return };
        stream.closing = true;
        if !stream.has_thread {
            self.streams.remove(&name);
        }
        CHANGED.notify_all();
    }

    /// Returns the number of streams that the program has created and not destroyed.
    pub(crate) fn streams_of_the_program(&self) -> u64 {
        self.streams.values().filter(|stream| !stream.is_default && !stream.closing).count() as u64
    }

    /// Returns the last position of a stream.
    pub(crate) fn last(&self, stream: usize) -> Ticket {
        Ticket { stream, number: self.streams.get(&stream).map_or(0, |stream| stream.queued) }
    }

    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|stream| stream.done >= ticket.number)
    }

    /// Makes the next task of a stream wait for a position.
    pub(crate) fn add_wait(&mut self, stream: usize, ticket: Ticket) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.waits.push(ticket);
        }
    }

    /// Returns the positions in other streams of its context that a new task of a stream must wait for.
    fn waits_of(&self, name: usize) -> Vec<Ticket> {
        let stream = &self.streams[&name];
        let Some(context) = self.contexts.get(&stream.context) else { return Vec::new() };
        if name == context.default {
            let is_waited_for = |other: &Stream| {
                other.context == stream.context && other.blocking && other.done < other.queued
            };
            let others = self.streams.iter().filter(|(_, other)| is_waited_for(other));
            others
                .map(|(other, _)| *other)
                .filter(|other| *other != name)
                .map(|other| self.last(other))
                .collect()
        } else if stream.blocking {
            vec![self.last(context.default)]
        } else {
            Vec::new()
        }
    }

    fn put(&mut self, name: usize, job: Job) -> Ticket {
        let mut waits = self.waits_of(name);
        let Some(stream) = self.streams.get_mut(&name) else { return Ticket { stream: name, number: 0 } };
        waits.append(&mut stream.waits);
        stream.queued += 1;
        stream.queue.push_back(Task { number: stream.queued, waits, job });
        if !stream.has_thread {
            stream.has_thread = true;
            thread(move || work_off(name));
        }
        CHANGED.notify_all();
        self.last(name)
    }

    fn is_full(&self, name: usize) -> bool {
        self.streams.get(&name).is_some_and(|stream| stream.queue.len() >= MAX_QUEUED)
    }

    /// Returns the next task of a stream if it can start.
    fn next(&mut self, name: usize) -> Option<Task> {
        let waits = &self.streams.get(&name)?.queue.front()?.waits;
        if waits.iter().all(|ticket| self.is_done(*ticket)) {
            self.streams.get_mut(&name)?.queue.pop_front()
        } else {
            None
        }
    }
}

/// Queues a task. A capturing stream adds it to its graph instead, without executing it.
pub(crate) fn queue(mut work: MutexGuard<'static, Work>, name: usize, job: Job) -> Ticket {
    if let Some(capture) = work.streams.get_mut(&name).and_then(|stream| stream.capture.as_mut()) {
        capture.nodes.push(job);
        return Ticket { stream: name, number: 0 };
    }
    while work.is_full(name) {
        work = wait(work);
    }
    work.put(name, job)
}

/// Waits for a position, and returns the error of its context.
pub(crate) fn finish(ticket: Ticket) -> Answer {
    let mut work = work();
    let context = work.streams.get(&ticket.stream).map(|stream| stream.context);
    while !work.is_done(ticket) {
        work = wait(work);
    }
    context.map_or(Ok(()), |context| work.check(context))
}

/// Runs a stream's thread.
fn work_off(name: usize) {
    let mut work = work();
    loop {
        let Some(stream) = work.streams.get(&name) else { return };
        let (context, is_at_end) = (stream.context, stream.closing && stream.queue.is_empty());
        if is_at_end {
            work.streams.remove(&name);
            CHANGED.notify_all();
            return;
        }
        let Some(Task { number, job, .. }) = work.next(name) else {
            work = wait(work);
            continue;
        };
        let failed = work.check(context);
        drop(work);
        let answer = failed.and_then(|()| {
            std::thread::sleep(settings().work_delay);
            job()
        });
        work = self::work();
        if let (Err(code), Some(context)) = (answer, work.contexts.get_mut(&context)) {
            context.failed.get_or_insert(code);
        }
        if let Some(stream) = work.streams.get_mut(&name) {
            stream.done = number;
        }
        CHANGED.notify_all();
    }
}

/// Starts a thread of the fake driver. A panic in it ends the process: the program would wait forever otherwise.
fn thread(body: impl FnOnce() + Send + 'static) {
    struct Alarm;
    impl Drop for Alarm {
        fn drop(&mut self) {
            if std::thread::panicking() {
                stop(format_args!("a thread of the fake driver died"));
            }
        }
    }
    let body = || {
        let _alarm = Alarm;
        body();
    };
    if let Err(error) = std::thread::Builder::new().name("fake-cuda".to_owned()).spawn(body) {
        stop(format_args!("a thread cannot be started: {error}"));
    }
}

impl Work {
    /// Returns the error of a failed context.
    pub(crate) fn check(&self, context: usize) -> Answer {
        match self.contexts.get(&context) {
            Some(Context { failed: Some(code), .. }) => Err(*code),
            Some(_) => Ok(()),
            None => Err(Code::CONTEXT_IS_DESTROYED),
        }
    }
}
