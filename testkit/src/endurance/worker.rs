//! One thread of a program: its blocks, and its steps.

use super::groups::step;
use super::load::Part;
use super::model::Position;
use super::state::Run;
use super::{Order, Work};
use crate::Random;
use gpu_vmm_core::{Backend, Bytes, Error, ErrorKind, Location, Result, WaitFor};
use gpu_vmm_pool::{Block, Pool};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Rare calls are one in this number of steps.
const RARE: usize = 997;

/// Of a program whose tags end, one in this number of steps ends a tag.
const TAG_STEPS: usize = 61;

/// A tag of a thread.
struct Tag<B: Backend> {
    number: u64,
    name: String,
    pool: Pool<B>,
}

/// A live block.
struct Held<B: Backend> {
    block: Block<B>,
    part: Part,
    stream: usize,
    /// A second stream that uses the block.
    other: Option<usize>,
}

/// One thread of a program.
pub(super) struct Worker<B: Backend> {
    random: Random,
    tags: Vec<Tag<B>>,
    blocks: VecDeque<Held<B>>,
    live: u64,
    /// The number of blocks so far.
    number: u64,
    /// True while a sawtooth frees.
    frees: bool,
    /// The suspended tag, and its handle.
    suspended: Option<(String, Pool<B>)>,
    captured: Option<usize>,
}

impl<B: Backend> Worker<B> {
    pub(super) fn new<W: Work>(run: &Run<'_, B, W>, thread: usize) -> Result<Self> {
        let mut random = Random(run.program.seed ^ (thread as u64) << 32);
        random.next();
        let tags = (0..run.program.tags.max(1)).map(|_| Tag::new(run)).collect::<Result<_>>()?;
        Ok(Self {
            random,
            tags,
            blocks: VecDeque::new(),
            live: 0,
            number: 0,
            frees: false,
            suspended: None,
            captured: None,
        })
    }

    /// Makes one step: a call of the program, and perhaps the end of some work.
    pub(super) fn step<W: Work>(&mut self, run: &Run<'_, B, W>) {
        if self.random.below(RARE) == 0 {
            self.rare(run);
        } else if run.program.tags_end && self.random.below(TAG_STEPS) == 0 {
            self.renew_tag(run);
        } else if self.is_full(run) {
            self.free(run);
        } else {
            self.alloc(run);
        }
        let stream = self.random.below(run.program.streams.max(1));
        let behind = run.work.queued(stream).saturating_sub(run.work.done(stream));
        if behind > run.program.behind {
            let least = behind - run.program.behind;
            run.work.finish(stream, least + self.random.next() % (run.program.behind + 1));
            run.model().settle(|stream| run.work.done(stream));
        }
    }

    /// Returns true if the next call frees a block.
    fn is_full<W: Work>(&mut self, run: &Run<'_, B, W>) -> bool {
        let program = run.program;
        let most = match program.order {
            Order::Turns => program.streams + 1,
            _ => program.blocks.max(1),
        };
        let full = self.blocks.len() >= most || self.live >= program.bytes;
        match program.order {
            Order::Fifo | Order::Turns => full,
            Order::Lifo | Order::Random => full || !self.blocks.is_empty() && self.random.below(2) == 0,
            Order::Sawtooth => {
                self.frees = if self.frees { !self.blocks.is_empty() } else { full };
                self.frees
            }
        }
    }

    fn alloc<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let program = run.program;
        let (size, alignment) =
            (program.size(&mut self.random, self.number), program.alignment(&mut self.random));
        let stream = match program.order {
            Order::Turns => self.number as usize % program.streams.max(1),
            _ => self.random.below(program.streams.max(1)),
        };
        let tag = self.random.below(self.tags.len());
        self.number += 1;
        let Tag { number, name, pool } = &self.tags[tag];
        if self.suspended.as_ref().is_some_and(|(suspended, _)| suspended == name) {
            return;
        }
        let planned = run.model().request(*number, size, alignment);
        let request = pool.request(Bytes(size)).alignment(Bytes(alignment)).stream(run.work.stream(stream));
        let block = match request.alloc() {
            Ok(block) => block,
            Err(error) => {
                run.model().failed(&planned);
                self.explain(run, size, &error);
                return;
            }
        };
        let capacity = block.capacity().0;
        if !block.address().0.is_multiple_of(alignment)
            || capacity < size
            || capacity > size + size / 4 + step(alignment)
        {
            let at = block.address();
            run.violate(format!(
                "{size} bytes aligned to {alignment} have a block of {capacity} bytes at {at}"
            ));
        }
        let mut model = run.model();
        let order = Some(stream).filter(|stream| self.captured != Some(*stream));
        let unfinished = model.unfinished(block.address().0, capacity, order, |stream| run.work.done(stream));
        let part = model.served(&planned, block.address().0, capacity);
        drop(model);
        // Blocks of a forgotten stream wait for the work that it had then, which the model does not know.
        if let Some(at) = unfinished.filter(|_| !program.trims && run.work.is_exact()) {
            let address = block.address();
            run.violate(format!(
                "the block of {size} bytes at {address} lies where work of a block at {at:#x} is not done"
            ));
        }
        run.work.queue(stream, block.address(), block.size());
        let mut held = Held { block, part, stream, other: None };
        if program.streams > 1 && self.random.below(100) < program.shared {
            let other = self.random.below(program.streams);
            if held.block.record_use(run.work.stream(other)).is_ok() {
                run.work.queue(other, held.block.address(), held.block.size());
                held.other = Some(other);
            }
        }
        self.live += capacity;
        self.blocks.push_back(held);
    }

    /// Notes the error of a request, unless the program itself has caused it: its budget, or the device's memory, is less than its load
    /// may need.
    fn explain<W: Work>(&self, run: &Run<'_, B, W>, size: u64, error: &Error) {
        let budget = run.budget.load(Ordering::Relaxed);
        let is_explained = match error.kind() {
            ErrorKind::Suspended => run.program.suspends,
            ErrorKind::OutOfMemory => {
                let bound = run.model().bound();
                // Another thread may have changed the budget since the request failed.
                let changes = run.program.budgets && run.program.threads > 1;
                changes || budget.min(run.work.memory()) < bound.held.saturating_add(size)
            }
            _ => false,
        };
        if !is_explained {
            run.unexpected("alloc", error);
        }
    }

    /// Frees the block whose turn it is.
    fn free<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let index = match run.program.order {
            Order::Lifo => self.blocks.len().saturating_sub(1),
            Order::Fifo | Order::Turns => 0,
            Order::Sawtooth | Order::Random => self.random.below(self.blocks.len().max(1)),
        };
        let taken = match run.program.order {
            Order::Fifo | Order::Turns => self.blocks.pop_front(),
            _ => self.blocks.swap_remove_back(index),
        };
        if let Some(held) = taken {
            self.give(run, held);
        }
    }

    fn give<W: Work>(&mut self, run: &Run<'_, B, W>, held: Held<B>) {
        self.live -= held.block.capacity().0;
        let streams = [Some(held.stream), held.other].into_iter().flatten();
        let after: Vec<Position> = streams.map(|stream| (stream, run.work.queued(stream))).collect();
        run.model().free(held.block.address().0, held.part, after);
        drop(held.block);
    }

    /// Makes one of the calls that a program makes rarely.
    fn rare<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let program = run.program;
        match self.random.below(5) {
            0 if program.trims => {
                let keep = self.random.next() % program.bytes.max(1);
                if let Err(error) = run.pool.trim(Bytes(keep)) {
                    run.unexpected("trim", &error);
                }
            }
            1 if program.trims => {
                let stream = run.work.stream(self.random.below(program.streams.max(1)));
                // A stream that captures is not forgotten.
                let _ = run.pool.forget_stream(stream);
            }
            2 if program.suspends => self.suspend_or_resume(run),
            3 if program.captures => match self.captured.take() {
                Some(stream) => run.work.end_capture(stream),
                None => {
                    // The default stream cannot capture.
                    let stream = 1 + self.random.below(program.streams.max(2) - 1);
                    let can = stream < program.streams && program.threads == 1;
                    self.captured = Some(stream).filter(|stream| can && run.work.begin_capture(*stream));
                }
            },
            4 if program.budgets => self.change_budget(run),
            _ => {}
        }
        run.model().settle(|stream| run.work.done(stream));
    }

    fn suspend_or_resume<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let is_allowed = |error: &Error| {
            matches!(error.kind(), ErrorKind::Busy | ErrorKind::OutOfMemory | ErrorKind::Unsupported)
        };
        match self.suspended.take() {
            Some((name, pool)) => {
                if let Err(error) = pool.resume(&name) {
                    if !is_allowed(&error) {
                        run.unexpected("resume", &error);
                    }
                    self.suspended = Some((name, pool));
                }
            }
            None => {
                let tag = self.random.below(self.tags.len());
                let Tag { name, pool, .. } = &self.tags[tag];
                match pool.suspend(name, &run.store, WaitFor::all_devices()) {
                    Ok(_) => self.suspended = Some((name.clone(), pool.clone())),
                    // A stream captures, or other threads free blocks all the time.
                    Err(error) if is_allowed(&error) => {}
                    Err(error) => run.unexpected("suspend", &error),
                }
            }
        }
    }

    fn change_budget<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let held: u64 = run.pool.kinds().iter().map(|(_, stats)| stats.held).sum();
        let budget = match self.random.below(3) {
            0 => u64::MAX,
            1 => held.saturating_mul(2),
            _ => held / 4 * 3,
        };
        run.budget.store(budget, Ordering::Relaxed);
        if let Err(error) = run.pool.set_budget(Bytes(budget)) {
            run.unexpected("set budget", &error);
        }
    }

    /// Ends a tag, whose blocks live on, and begins another.
    fn renew_tag<W: Work>(&mut self, run: &Run<'_, B, W>) {
        let index = self.random.below(self.tags.len());
        if self.suspended.as_ref().is_some_and(|(suspended, _)| *suspended == self.tags[index].name) {
            return;
        }
        match Tag::new(run) {
            Ok(tag) => {
                let ended = std::mem::replace(&mut self.tags[index], tag);
                run.model().end_tag(ended.number);
            }
            Err(error) => run.unexpected("tag", &error),
        }
    }

    /// Frees everything.
    pub(super) fn end<W: Work>(mut self, run: &Run<'_, B, W>) {
        if let Some(stream) = self.captured.take() {
            run.work.end_capture(stream);
        }
        while let Some(held) = self.blocks.pop_front() {
            self.give(run, held);
        }
    }
}

impl<B: Backend> Tag<B> {
    fn new<W: Work>(run: &Run<'_, B, W>) -> Result<Self> {
        let number = run.next_tag.fetch_add(1, Ordering::Relaxed);
        let name = format!("tag-{number}");
        let own = run.pool.memory();
        let memory = if run.program.kinds && number % 2 == 1 { own.located(Location::Host) } else { own };
        let pool = run.pool.with_memory(memory)?.tagged(&name)?;
        Ok(Self { number, name, pool })
    }
}
