//! The streams of a pool, and how far the devices have come with them.
//!
//! Nothing is asked of a driver as long as memory is used again on the stream that it was freed on. Where another stream
//! wants it, or addresses are to be unmapped, an event is recorded on the stream, which tells of all frees before it.

use crate::turn::{CLEAN, MIXED, StreamIndex, Turn};
use gpu_vmm_core::{Backend, DeviceId, Error, Event, Result, Stream};
use std::collections::VecDeque;

/// So many events wait on a stream at most. Where a device takes long, further ones tell nothing sooner.
const MARKS: usize = 64;

#[derive(Debug)]
pub(crate) struct Streams<B: Backend> {
    backend: B,
    device: DeviceId,
    /// By number; the first is nobody's.
    list: Vec<Progress>,
    /// The moment of the last free.
    now: u64,
    /// Captures that the pool was told of.
    captures: u32,
    /// Events and waits so far.
    pub(crate) calls: u64,
}

/// How far a stream has come.
#[derive(Debug)]
struct Progress {
    stream: Stream<'static>,
    /// Frees up to this moment are done.
    done: u64,
    /// The last free.
    freed: u64,
    /// Events that may not have come yet, in order, each with the moment of the last free before it.
    marks: VecDeque<(u64, Box<dyn Event>)>,
    spare: Vec<Box<dyn Event>>,
}

impl Progress {
    fn new(stream: Stream<'static>) -> Self {
        Self { stream, done: 0, freed: 0, marks: VecDeque::new(), spare: Vec::new() }
    }

    fn is_idle(&self) -> bool {
        self.freed <= self.done
    }

    fn is_marked(&self) -> bool {
        self.marks.back().map_or(self.done, |(moment, _)| *moment) >= self.freed
    }
}

impl<B: Backend> Streams<B> {
    pub(crate) fn new(backend: &B, device: DeviceId) -> Self {
        let nobody = Progress::new(Stream::DEFAULT);
        Self { backend: backend.clone(), device, list: vec![nobody], now: 0, captures: 0, calls: 0 }
    }

    /// The number of a stream that there is.
    pub(crate) fn known(&self, stream: Stream<'static>) -> Option<StreamIndex> {
        let index = self.list.iter().skip(1).position(|one| one.stream == stream)?;
        Some((index + 1) as StreamIndex)
    }

    /// The stream's number.
    pub(crate) fn index(&mut self, stream: Stream<'static>) -> Result<StreamIndex> {
        if let Some(index) = self.known(stream) {
            return Ok(index);
        }
        let (index, limit) = (self.list.len(), usize::from(MIXED));
        if index >= limit {
            let reason = format!("a pool serves {} streams", limit - 1);
            return Err(Error::Unsupported { operation: "allocate", reason });
        }
        self.list.push(Progress::new(stream));
        Ok(index as StreamIndex)
    }

    pub(crate) fn stream(&self, index: StreamIndex) -> Stream<'static> {
        self.list.get(usize::from(index)).map_or(Stream::DEFAULT, |one| one.stream)
    }

    /// How many streams there are, with the one that is nobody's.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// What is freed on a stream now.
    pub(crate) fn free(&mut self, index: StreamIndex) -> Turn {
        if index == CLEAN {
            return Turn::FREE;
        }
        self.now += 1;
        self.list[usize::from(index)].freed = self.now;
        Turn::new(index, self.now)
    }

    /// True where no work of any stream uses it any more.
    pub(crate) fn is_done(&self, turn: Turn) -> bool {
        match turn.stream() {
            CLEAN => true,
            MIXED if turn == Turn::NEVER => false,
            MIXED => self.list.iter().all(|one| one.is_idle() || turn.moment() <= one.done),
            index => turn.moment() <= self.list[usize::from(index)].done,
        }
    }

    /// After the work of both, of which the first may be done already.
    #[inline]
    pub(crate) fn later(&self, before: Turn, turn: Turn) -> Turn {
        if before.stream() != turn.stream() && self.is_done(before) { turn } else { before.and(turn) }
    }

    /// True where work on a stream may use it that is queued now.
    pub(crate) fn serves(&self, turn: Turn, index: StreamIndex) -> bool {
        turn.stream() == index || self.is_done(turn)
    }

    /// Asks how far the streams have come, and marks where they are now.
    ///
    /// While one of them captures, or `stream`, or the pool was told of a capture, nobody is asked: that would spoil it.
    pub(crate) fn poll(&mut self, stream: StreamIndex) -> Result<()> {
        if self.captures > 0 || self.list.iter().all(Progress::is_idle) || self.capturing(stream)?.is_some() {
            return Ok(());
        }
        for index in 1..self.list.len() {
            self.poll_one(index)?;
            let progress = &self.list[index];
            if !progress.is_marked() && progress.marks.len() < MARKS {
                self.mark(index)?;
                self.poll_one(index)?;
            }
        }
        Ok(())
    }

    /// A stream that captures: one that is waited for, or `also`, which is there. Of others nobody knows whether they still
    /// are.
    fn capturing(&mut self, also: StreamIndex) -> Result<Option<Stream<'static>>> {
        for (index, progress) in self.list.iter().enumerate().skip(1) {
            if !progress.is_idle() || index == usize::from(also) {
                self.calls += 1;
                if self.backend.is_capturing(progress.stream)? {
                    return Ok(Some(progress.stream));
                }
            }
        }
        Ok(None)
    }

    /// Records an event behind what has just been freed on a stream, unless it captures: then only what is queued when that
    /// is over can be waited for.
    pub(crate) fn mark_now(&mut self, index: StreamIndex) -> Result<()> {
        let index = usize::from(index);
        self.calls += 1;
        let captures = self.backend.is_capturing(self.list[index].stream)?;
        if captures || self.list[index].marks.len() >= MARKS { Ok(()) } else { self.mark(index) }
    }

    /// Records an event behind what was freed on a stream, where there is none yet.
    fn mark(&mut self, index: usize) -> Result<()> {
        if self.list[index].is_marked() {
            return Ok(());
        }
        let mut event = match self.list[index].spare.pop() {
            Some(event) => event,
            None => self.backend.event(self.device)?,
        };
        self.calls += 1;
        let progress = &mut self.list[index];
        event.record(progress.stream)?;
        progress.marks.push_back((progress.freed, event));
        Ok(())
    }

    fn poll_one(&mut self, index: usize) -> Result<()> {
        let progress = &mut self.list[index];
        while let Some((moment, event)) = progress.marks.front() {
            self.calls += 1;
            let (moment, answer) = (*moment, event.is_done());
            if matches!(answer, Ok(false)) {
                break;
            }
            // One that cannot be asked tells nothing the next time either: another takes its place.
            let event = progress.marks.pop_front();
            if answer? {
                progress.done = moment;
                progress.spare.extend(event.map(|(_, event)| event));
            }
        }
        Ok(())
    }

    /// Waits until all that was freed on all streams is done.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] while one of them captures, or the pool was told of a capture.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.check_captures()?;
        if let Some(stream) = self.capturing(CLEAN)? {
            let reason = format!("nothing can be waited for until {stream:?} has ended its capture");
            return Err(Error::Unsupported { operation: "wait for streams", reason });
        }
        for index in 1..self.list.len() {
            self.wait_for(index as StreamIndex)?;
        }
        Ok(())
    }

    fn check_captures(&self) -> Result<()> {
        if self.captures == 0 {
            return Ok(());
        }
        let reason =
            "nothing can be waited for until the capture that the pool was told of has ended".to_owned();
        Err(Error::Unsupported { operation: "wait for streams", reason })
    }

    /// A capture begins of which the pool cannot know.
    pub(crate) fn capture_begins(&mut self) {
        self.captures += 1;
    }

    /// It has ended.
    pub(crate) fn capture_ends(&mut self) {
        self.captures = self.captures.saturating_sub(1);
    }

    /// Waits until all that was freed on one stream is done.
    pub(crate) fn wait_for(&mut self, index: StreamIndex) -> Result<()> {
        self.check_captures()?;
        let index = usize::from(index);
        self.mark(index)?;
        if let Some((_, event)) = self.list[index].marks.back() {
            self.calls += 1;
            let answer = event.wait();
            if answer.is_err() {
                // Others take their place.
                self.list[index].marks.clear();
            }
            answer?;
        }
        let progress = &mut self.list[index];
        progress.done = progress.freed;
        let events = progress.marks.drain(..).map(|(_, event)| event);
        progress.spare.extend(events);
        Ok(())
    }
}
