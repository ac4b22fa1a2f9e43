//! A stream that a pool serves for as long as it is registered.
#![allow(unsafe_code)] // the stream's life is the caller's promise

use crate::stream_order::StreamIndex;
use crate::{Block, BlockRequest, Pool};
use gpu_vmm_core::{Backend, Bytes, Detail, Error, Operation, Result, Stream};
use std::sync::Arc;

/// A stream that a pool serves until this is dropped. Then the stream may be destroyed, and its number in the pool serves
/// another stream once its work is done. Live blocks stay, and are free once the work is done that the stream had then.
#[derive(Debug)]
pub struct PoolStream<B: Backend> {
    pool: Pool<B>,
    stream: Stream<'static>,
    index: StreamIndex,
}

impl<B: Backend> Pool<B> {
    /// Serves a stream until the result is dropped. A program that makes and destroys streams registers each;
    /// [`Pool::alloc`] is for streams that stay for as long as the process runs.
    ///
    /// # Safety
    ///
    /// The stream is live, and of the backend's vendor, until the result has been dropped (not merely forgotten).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Detail::Unsupported) for the [per-thread default stream](Stream::is_per_thread), and for more than
    /// 65,534 streams at a time; [`Forked`](Detail::Forked).
    pub unsafe fn register_stream(&self, stream: Stream<'_>) -> Result<PoolStream<B>> {
        let operation = Operation::RegisterStream;
        // SAFETY: the caller keeps the stream until the registration ends, and nothing here uses it afterwards.
        let stream: Stream<'static> = unsafe { Stream::from_raw(stream.as_raw()) };
        let index = self.owner.inner.core(operation)?.streams.register(operation, stream)?;
        Ok(PoolStream { pool: self.clone(), stream, index })
    }

    /// Forgets a stream that is to be destroyed, without waiting: its number serves another stream once its work is done.
    /// Does nothing for a stream that the pool does not know, or that is [registered](Pool::register_stream).
    ///
    /// The stream may be destroyed afterwards, although it was given as `Stream<'static>`: the pool does not use it any
    /// more. Live blocks stay, and are free once the work is done that the stream has now.
    ///
    /// # Errors
    ///
    /// [`Capturing`](Detail::Capturing) if the stream captures: it is not forgotten then.
    pub fn forget_stream(&self, stream: Stream<'static>) -> Result<()> {
        let operation = Operation::UnregisterStream;
        let index = {
            let mut core = self.owner.inner.core(operation)?;
            let Some(index) = core.streams.known(stream) else { return Ok(()) };
            if core.streams.is_registered(index) {
                return Ok(());
            }
            if !stream.is_default() && core.streams.captures(usize::from(index)) {
                return Err(Error::new(operation, Detail::Capturing { source: None }));
            }
            index
        };
        self.owner.retire(operation, index)
    }
}

impl<B: Backend> PoolStream<B> {
    /// The pool, with the tag that the stream was registered under.
    #[must_use]
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> Stream<'_> {
        self.stream
    }

    /// Allocates a block of at least `size` bytes whose work is queued on the stream.
    ///
    /// # Errors
    ///
    /// Those of [`BlockRequest::alloc`].
    #[track_caller]
    #[inline]
    pub fn alloc(&self, size: Bytes) -> Result<Block<B>> {
        self.request(size).alloc()
    }

    /// Begins a request for a block whose work is queued on the stream.
    #[inline]
    pub fn request(&self, size: Bytes) -> BlockRequest<'_, B> {
        self.pool.request(size).stream(self.stream)
    }

    /// Notes that work on this stream uses a block: [`Block::record_use`].
    ///
    /// # Errors
    ///
    /// [`ForeignHandle`](Detail::ForeignHandle) for a block of another pool; [`Forked`](Detail::Forked).
    pub fn record_use(&self, block: &mut Block<B>) -> Result<()> {
        let (operation, inner) = (Operation::RecordUse, &self.pool.owner.inner);
        inner.process.check(operation)?;
        if !Arc::ptr_eq(inner, block.inner()) {
            let (theirs, ours) = ("another pool".to_owned(), "the pool of the stream".to_owned());
            return Err(Error::new(operation, Detail::ForeignHandle { theirs, ours }));
        }
        block.note_use(self.index);
        Ok(())
    }
}

impl<B: Backend> Drop for PoolStream<B> {
    fn drop(&mut self) {
        let operation = Operation::UnregisterStream;
        let inner = &self.pool.owner.inner;
        let is_last = inner.core(operation).is_ok_and(|mut core| core.streams.unregister(self.index));
        if is_last {
            // The process was checked, and nothing else can fail.
            let _ = self.pool.owner.retire(operation, self.index);
        }
    }
}
