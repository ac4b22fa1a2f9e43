//! The chunks of a stream of bytes, which several threads take in order while one thread still adds some.

use crate::memory::Segment;
use crate::types::Bytes;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Segments, and the offset of their bytes in the stream.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) from: Bytes,
    pub(crate) segments: Vec<Segment>,
}

/// A range of the stream that lies in one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// The offset in the stream.
    pub(super) offset: Bytes,
    pub(super) place: Segment,
}

/// Cuts segments, whose bytes begin at `from` in the stream, into chunks of at most `most` bytes.
pub(super) fn cut(from: Bytes, segments: &[Segment], most: Bytes) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut offset = from;
    for segment in segments {
        let mut rest = *segment;
        while !rest.length.is_zero() {
            let length = rest.length.min(most);
            chunks.push(Chunk { offset, place: Segment { length, ..rest } });
            offset += length;
            rest = Segment { address: rest.address + length, length: rest.length - length, ..rest };
        }
    }
    chunks
}

/// A queue of chunks between the thread that adds them and those that take them.
#[derive(Debug, Default)]
pub(super) struct Feed {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Chunk>,
    /// True if no chunk will be added.
    ended: bool,
    /// True if a thread has failed, and no further chunk may be copied.
    stopped: bool,
}

impl Feed {
    pub(super) fn add(&self, chunks: Vec<Chunk>) {
        self.state().chunks.extend(chunks);
        self.changed.notify_all();
    }

    /// Returns the next chunk, or `None` if there is none left. Waits while chunks may still be added.
    pub(super) fn next(&self) -> Option<Chunk> {
        let waiting = |state: &mut State| state.chunks.is_empty() && !state.ended && !state.stopped;
        let woken = self.changed.wait_while(self.state(), waiting);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner);
        if state.stopped { None } else { state.chunks.pop_front() }
    }

    /// Lets no thread begin another chunk.
    pub(super) fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Returns a guard that, when it is dropped, says that no chunk will be added: also if the adding thread panics, since the
    /// others would wait for ever.
    pub(super) fn adding(&self) -> Adding<'_> {
        Adding(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it exists, chunks may still be added.
pub(super) struct Adding<'a>(&'a Feed);

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}
