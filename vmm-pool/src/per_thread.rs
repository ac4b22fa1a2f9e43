//! The default stream of each thread.
//!
//! Its handle means another stream in each thread. So the pool knows each of these streams by a handle of its own, which only the pool
//! uses: no driver and no caller gets it. A thread passes its own stream to the driver. For another thread's stream, no event can be
//! recorded: the pool waits for the devices where it must know that its work is done.
#![allow(unsafe_code)] // the pool's own handles

use gpu_vmm_core::{Detail, Error, Operation, Result, Stream};
use gpu_vmm_premap::sync::thread_number;
use std::sync::{Arc, Weak};

/// The handle for the first thread. No driver has a stream in this half of the addresses, and no thread has the highest one.
const FIRST: usize = usize::MAX / 2 + 1;

thread_local! {
    static LIFE: Arc<()> = Arc::new(());
}

/// Returns the pool's handle of a stream: for the per-thread default stream, that of the calling thread.
#[inline]
pub(crate) fn named(stream: Stream<'_>) -> Stream<'_> {
    if !stream.is_per_thread() {
        return stream;
    }
    // SAFETY: it is only compared with other handles, and `for_driver` and `for_caller` replace it.
    unsafe { Stream::from_raw(std::ptr::without_provenance_mut(FIRST + thread_number())) }
}

/// Returns true for the pool's handle of a thread's default stream.
#[inline]
pub(crate) fn is_of_thread(stream: Stream<'_>) -> bool {
    stream.as_raw().addr() >= FIRST
}

/// Returns the handle by which a driver knows the stream in this thread; none for another thread's default stream.
#[inline]
pub(crate) fn for_driver(stream: Stream<'static>) -> Option<Stream<'static>> {
    if !is_of_thread(stream) {
        return Some(stream);
    }
    (stream == named(Stream::PER_THREAD)).then_some(Stream::PER_THREAD)
}

/// Returns the handle by which callers know the stream.
pub(crate) fn for_caller(stream: Stream<'static>) -> Stream<'static> {
    if is_of_thread(stream) { Stream::PER_THREAD } else { stream }
}

/// Returns what ends with the calling thread.
///
/// # Errors
///
/// [`Unsupported`](Detail::Unsupported) while the thread ends.
pub(crate) fn life(operation: Operation) -> Result<Weak<()>> {
    LIFE.try_with(Arc::downgrade).map_err(|_| {
        let reason =
            "the thread is ending, and its per-thread default stream with it; pass a stream that the program created";
        Error::new(operation, Detail::Unsupported { reason: reason.to_owned() })
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn each_thread_has_a_stream() {
        let own = named(Stream::PER_THREAD);
        assert_eq!(
            (named(own), for_driver(own), for_caller(own)),
            (own, Some(Stream::PER_THREAD), Stream::PER_THREAD)
        );
        let other = thread::spawn(|| (named(Stream::PER_THREAD), life(Operation::Allocate).ok())).join();
        let (other, ended) = other.unwrap_or((Stream::DEFAULT, None));
        assert!(is_of_thread(other) && other != own && for_driver(other).is_none());
        assert_eq!(for_caller(other), Stream::PER_THREAD);
        assert_eq!(ended.map(|life| life.strong_count()), Some(0), "the thread has ended");
        let lives = life(Operation::Allocate).ok().map(|life| life.strong_count());
        assert_eq!(lives, Some(1));
    }

    #[test]
    fn other_streams_keep_their_handles() {
        assert_eq!([named(Stream::DEFAULT), for_caller(Stream::DEFAULT)], [Stream::DEFAULT; 2]);
        assert_eq!(for_driver(Stream::DEFAULT), Some(Stream::DEFAULT));
        assert!(!is_of_thread(Stream::PER_THREAD));
    }
}
