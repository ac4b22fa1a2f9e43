//! The streams of a pool, and how far the devices have come with them.
//!
//! Nothing is asked of a driver as long as memory is used again on the stream that it was freed on. Where another stream
//! wants it, or addresses are to be unmapped, an event is recorded on the stream, which tells of all frees before it.

use crate::turn::{CLEAN, MIXED, StreamIndex, Turn};
use gpu_vmm_core::{Backend, DeviceId, Error, Event, Result, Stream};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Streams<B: Backend> {
    backend: B,
    device: DeviceId,
    /// By number; the first is nobody's.
    list: Vec<Progress>,
    /// The moment of the last free.
    now: u64,
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
        Self { backend: backend.clone(), device, list: vec![nobody], now: 0, calls: 0 }
    }

    /// The stream's number.
    pub(crate) fn index(&mut self, stream: Stream<'static>) -> Result<StreamIndex> {
        let known = self.list.iter().skip(1).position(|one| one.stream == stream);
        let index = known.map_or(self.list.len(), |index| index + 1);
        let limit = usize::from(MIXED);
        if index >= limit {
            let reason = format!("a pool serves {} streams; forget those that are gone", limit - 1);
            return Err(Error::Unsupported { operation: "allocate", reason });
        }
        if index == self.list.len() {
            self.list.push(Progress::new(stream));
        }
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
            MIXED => self.list.iter().all(|one| one.is_idle() || turn.moment() <= one.done),
            index => turn.moment() <= self.list[usize::from(index)].done,
        }
    }

    /// True where addresses are to be given to all streams. With one stream alone they stay its own: what is everybody's and
    /// what is its own would not become one range as long as they differ.
    pub(crate) fn passes_on(&self, turn: Turn) -> bool {
        turn.stream() == CLEAN || self.list.len() > 2 && self.is_done(turn)
    }

    /// True where work on a stream may use it that is queued now.
    pub(crate) fn serves(&self, turn: Turn, index: StreamIndex) -> bool {
        turn.stream() == index || self.is_done(turn)
    }

    /// Asks how far the streams have come, and marks where they are now. True where one has come further.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        let mut further = false;
        for index in 1..self.list.len() {
            further |= self.poll_one(index)?;
            if !self.list[index].is_marked() {
                self.mark(index)?;
                further |= self.poll_one(index)?;
            }
        }
        Ok(further)
    }

    /// Records an event behind what was freed on a stream, where there is none yet.
    pub(crate) fn mark(&mut self, index: usize) -> Result<()> {
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

    fn poll_one(&mut self, index: usize) -> Result<bool> {
        let progress = &mut self.list[index];
        let before = progress.done;
        while let Some((moment, event)) = progress.marks.front() {
            self.calls += 1;
            if !event.is_done()? {
                break;
            }
            progress.done = *moment;
            let event = progress.marks.pop_front();
            progress.spare.extend(event.map(|(_, event)| event));
        }
        Ok(progress.done > before)
    }

    /// Waits until all that was freed on all streams is done.
    pub(crate) fn wait(&mut self) -> Result<()> {
        for index in 1..self.list.len() {
            self.wait_for(index as StreamIndex)?;
        }
        Ok(())
    }

    /// Waits until all that was freed on one stream is done.
    pub(crate) fn wait_for(&mut self, index: StreamIndex) -> Result<()> {
        let index = usize::from(index);
        self.mark(index)?;
        if let Some((_, event)) = self.list[index].marks.back() {
            self.calls += 1;
            event.wait()?;
        }
        let progress = &mut self.list[index];
        progress.done = progress.freed;
        let events = progress.marks.drain(..).map(|(_, event)| event);
        progress.spare.extend(events);
        Ok(())
    }
}
