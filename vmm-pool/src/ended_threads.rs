//! Waits for default streams of threads: of threads that have ended, and of others, which alone can record events on theirs.

use crate::per_thread;
use crate::shared::Inner;
use crate::stream_order::StreamIndex;
use crate::streams::{Progress, Streams};
use gpu_vmm_core::{Backend, Operation, Result, Stream};

/// The number of ended threads with unfinished work on their default streams that causes a wait for the devices.
const ENDED_THREADS: usize = 16;

impl<B: Backend> Streams<B> {
    /// Retires the default streams of threads that have ended. Returns true if [`ENDED_THREADS`] of them have unfinished work: the caller
    /// should wait for the devices, since each further thread would occupy a number and memory.
    ///
    /// Thread caches need not forget such a stream: no request names it again.
    pub(crate) fn retire_ended(&mut self) -> bool {
        for index in 1..self.list.len() {
            if self.list[index].has_ended() {
                self.retire(index as StreamIndex);
            }
        }
        let is_busy = |one: &&Progress| one.is_retired && one.thread.is_some() && !one.is_idle();
        self.list.iter().filter(is_busy).count() >= ENDED_THREADS
    }

    /// Returns true if more than `most` bytes wait for default streams of other threads and no event covers them: only a wait for the
    /// devices tells that their work is done.
    pub(crate) fn waits_for_threads(&self, most: u64) -> bool {
        let is_others =
            |one: &&Progress| one.thread.is_some() && per_thread::for_driver(one.stream).is_none();
        let uncovered = self.list.iter().filter(is_others).filter(|one| !one.is_marked());
        uncovered.map(|one| one.unmarked).sum::<u64>() > most
    }
}

impl<B: Backend> Inner<B> {
    /// Retires the default streams of threads that have ended, if `stream` is the one of a thread that the pool does not know yet. Waits
    /// for the devices if many of them have unfinished work. A capture prevents the wait: they keep their numbers then.
    pub(crate) fn end_threads(&self, operation: Operation, stream: Stream<'static>) -> Result<()> {
        if !per_thread::is_of_thread(per_thread::named(stream)) {
            return Ok(());
        }
        let mut core = self.core(operation)?;
        let waits = core.streams.known(stream).is_none() && core.streams.retire_ended();
        drop(core);
        if waits {
            drop(self.core_after_work(operation)?);
        }
        Ok(())
    }

    /// Waits for the devices if much freed memory waits for default streams of other threads. Returns true if it has waited.
    pub(crate) fn wait_for_threads(&self, operation: Operation) -> Result<bool> {
        let core = self.core(operation)?;
        let waits = core.streams.waits_for_threads(core.most_unmarked());
        drop(core);
        if waits {
            drop(self.core_after_work(operation)?);
        }
        Ok(waits)
    }
}
