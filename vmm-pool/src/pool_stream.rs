//! Registrations of streams, and forgetting of streams.
#![allow(unsafe_code)] // the caller promises that the stream stays live

use crate::owner::Owner;
use crate::stream_order::StreamIndex;
use crate::{Block, BlockRequest, Pool};
use gpu_vmm_core::{Backend, Bytes, Detail, Error, Operation, Result, Stream};
use std::sync::Arc;

/// A registration of a stream with a pool. The pool serves the stream until this is dropped. Then the stream may be
/// destroyed, and its number in the pool serves another stream once its work is done. Live blocks stay valid; their memory is
/// free once the work is done that was queued on the stream when this was dropped.
///
/// # Thread safety
///
/// Several threads may allocate through it at the same time, and any thread may drop it.
#[derive(Debug)]
pub struct PoolStream<B: Backend> {
    pool: Pool<B>,
    stream: Stream<'static>,
    index: StreamIndex,
}

impl<B: Backend> Pool<B> {
    /// Registers a stream until the result is dropped, with this handle's [kind](Pool::with_memory) of memory. The other kinds serve it
    /// too, and forget it when the result is dropped. A program that creates and destroys streams registers each one.
    /// [`Pool::alloc`] needs streams that exist for as long as the process runs.
    ///
    /// # Safety
    ///
    /// The stream must be live, and of the backend's vendor, until the result has been dropped (not merely forgotten).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Detail::Unsupported) for the [per-thread default stream](Stream::is_per_thread), and for more than
    /// 65,534 streams at a time; [`Forked`](Detail::Forked).
    pub unsafe fn register_stream(&self, stream: Stream<'_>) -> Result<PoolStream<B>> {
        let operation = Operation::RegisterStream;
        // SAFETY: the caller keeps the stream live until the registration ends. The pool does not use it afterwards.
        let stream: Stream<'static> = unsafe { Stream::from_raw(stream.as_raw()) };
        let index = self.owner.inner.core(operation)?.streams.register(operation, stream)?;
        Ok(PoolStream { pool: self.clone(), stream, index })
    }

    /// Forgets a stream before it is destroyed, without waiting. Its number serves another stream once its work is done. Does
    /// nothing for a stream that the pool does not know, or that is [registered](Pool::register_stream).
    ///
    /// The caller may destroy the stream afterwards, although it was passed as `Stream<'static>`: the pool does not use it
    /// any more. Live blocks stay valid; their memory is free once the work is done that the stream has now.
    ///
    /// # Errors
    ///
    /// [`Capturing`](Detail::Capturing) if the stream captures: it is not forgotten then.
    pub fn forget_stream(&self, stream: Stream<'static>) -> Result<()> {
        let operation = Operation::UnregisterStream;
        self.owner.forget_stream(operation, stream)?;
        self.kinds.forget_stream(operation, &self.owner, stream)
    }
}

impl<B: Backend> Owner<B> {
    /// Forgets a stream of one kind of memory, as [`Pool::forget_stream`] does.
    pub(crate) fn forget_stream(&self, operation: Operation, stream: Stream<'static>) -> Result<()> {
        let mut core = self.inner.core(operation)?;
        let Some(index) = core.streams.known(stream) else { return Ok(()) };
        if core.streams.is_registered(index) {
            return Ok(());
        }
        if !stream.is_default() && core.streams.captures(usize::from(index)) {
            return Err(Error::new(operation, Detail::Capturing { source: None }));
        }
        self.retire(&mut core, index);
        Ok(())
    }
}

impl<B: Backend> PoolStream<B> {
    /// Returns the pool, with the tag that the stream was registered under.
    #[must_use]
    pub const fn pool(&self) -> &Pool<B> {
        &self.pool
    }

    /// Returns the stream.
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

    /// Records that work on this stream uses a block of any [kind](Pool::with_memory), as [`Block::record_use`] does.
    ///
    /// # Errors
    ///
    /// [`ForeignHandle`](Detail::ForeignHandle) for a block of another pool; [`Forked`](Detail::Forked).
    pub fn record_use(&self, block: &mut Block<B>) -> Result<()> {
        let (operation, inner) = (Operation::RecordUse, &self.pool.owner.inner);
        inner.process.check(operation)?;
        if !Arc::ptr_eq(inner, block.inner()) {
            if self.pool.kinds.all().iter().any(|owner| Arc::ptr_eq(&owner.inner, block.inner())) {
                return block.record_use(self.stream);
            }
            let (theirs, ours) = ("another pool".to_owned(), "the pool of the stream".to_owned());
            return Err(Error::new(operation, Detail::ForeignHandle { theirs, ours }));
        }
        block.note_use(self.index);
        Ok(())
    }
}

impl<B: Backend> Drop for PoolStream<B> {
    fn drop(&mut self) {
        // In a forked child nothing is retired.
        let Ok(mut core) = self.pool.owner.inner.core(Operation::UnregisterStream) else { return };
        if core.streams.unregister(self.index) {
            self.pool.owner.retire(&mut core, self.index);
        }
        drop(core);
        self.pool.kinds.retire_stream(&self.pool.owner, self.stream);
    }
}
