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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Address, DeviceId};
    use std::thread;

    fn segment(address: u64, length: u64) -> Segment {
        Segment { address: Address(address), length: Bytes(length), device: DeviceId(0) }
    }

    #[test]
    fn chunks_lie_in_one_segment_and_follow_each_other_in_the_stream() {
        let chunks = cut(Bytes(7), &[segment(100, 10), segment(300, 3)], Bytes(4));
        let places = chunks.iter().map(|chunk| (chunk.offset.0, chunk.place.address.0, chunk.place.length.0));
        assert_eq!(places.collect::<Vec<_>>(), [(7, 100, 4), (11, 104, 4), (15, 108, 2), (17, 300, 3)]);
    }

    #[test]
    fn threads_wait_for_chunks_until_none_will_be_added() {
        let feed = Feed::default();
        thread::scope(|scope| {
            let adding = feed.adding();
            let takers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| std::iter::from_fn(|| feed.next()).count())).collect();
            for at in 0..50 {
                feed.add(cut(Bytes(at), &[segment(at, 2)], Bytes(1)));
            }
            drop(adding);
            let taken: usize = takers.into_iter().map(|taker| taker.join().unwrap_or_default()).sum();
            assert_eq!(taken, 100);
        });
        assert!(feed.next().is_none());
    }

    #[test]
    fn no_chunk_is_taken_after_a_failure() {
        let feed = Feed::default();
        let _adding = feed.adding();
        feed.add(cut(Bytes::ZERO, &[segment(0, 2)], Bytes(1)));
        assert!(feed.next().is_some());
        feed.stop();
        assert!(feed.is_stopped() && feed.next().is_none());
        feed.add(cut(Bytes::ZERO, &[segment(0, 2)], Bytes(1)));
        assert!(feed.next().is_none());
    }
}
