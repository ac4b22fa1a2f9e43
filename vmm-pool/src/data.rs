//! Reads and writes of a block's bytes.
#![allow(unsafe_code)] // copies device memory, which stays mapped meanwhile

use crate::shared::Inner;
use crate::tags::{Tag, TagState};
use crate::{Block, PoolError};
use gpu_vmm_core::{Address, Backend, Bytes, Detail, DeviceId, Error, OffsetRange, Operation, Result};
use gpu_vmm_premap::sync::{Arc, PoisonError, RwLockReadGuard};

impl<B: Backend> Block<B> {
    /// Copies bytes from the block to the host and waits for the copy. CUDA: `cuMemcpyDtoH`, HIP: `hipMemcpy`. The copy
    /// comes after the work on the default stream. For a block of another stream, wait for that stream first: a new block may
    /// still be in use by its earlier work.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](Detail::OutOfRange), [`Suspended`](PoolError::Suspended), [`Forked`](Detail::Forked), or the driver's
    /// error.
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<()> {
        self.while_mapped(Operation::Read, offset, bytes.len(), |backend, device, at| {
            // SAFETY: the bytes lie in the block, which is mapped for its device until this returns.
            unsafe { backend.copy_to_host(device, bytes, at) }
        })
    }

    /// Copies bytes from the host into the block and waits for the copy. CUDA: `cuMemcpyHtoD`, HIP: `hipMemcpy`. The copy
    /// comes after the work on the default stream. For a block of another stream, wait for that stream first: a new block may
    /// still be in use by its earlier work.
    ///
    /// # Errors
    ///
    /// As [`Block::read`]; some of the bytes may have been written then.
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.while_mapped(Operation::Write, offset, bytes.len(), |backend, device, at| {
            // SAFETY: as above.
            unsafe { backend.copy_from_host(device, at, bytes) }
        })
    }

    /// Copies a range of another block of the same pool into this block, at `offset`, and waits for the copy. The bytes stay on
    /// the device. CUDA: `cuMemcpyDtoD`, HIP: `hipMemcpy`. As for [`Block::write`], it comes after the work on the default stream.
    ///
    /// # Errors
    ///
    /// As [`Block::write`]; [`Unsupported`](Detail::Unsupported) for a block of another pool, or of another
    /// [kind](crate::Pool::with_memory) of memory.
    pub fn copy_from(&mut self, offset: Bytes, from: &Self, range: OffsetRange) -> Result<()> {
        const OPERATION: Operation = Operation::Copy;
        if !Arc::ptr_eq(self.inner(), from.inner()) {
            let reason =
                "the blocks belong to two pools, or to two kinds of memory of one; copy through the host"
                    .to_owned();
            return Err(Error::new(OPERATION, Detail::Unsupported { reason }));
        }
        from.check(OPERATION, range)?;
        self.check(OPERATION, OffsetRange { offset, length: range.length })?;
        if range.length.is_zero() {
            return Ok(());
        }
        let core = self.inner().core(OPERATION)?;
        let backend = core.backend.clone();
        let mut tags = [core.tag_of(self.piece()), core.tag_of(from.piece())].map(Arc::clone);
        drop(core);
        // Every copy locks in the same order. One tag is not locked twice: a suspension may wait between the two locks.
        tags.sort_by_key(|tag| tag.index);
        let [first, second] = &tags;
        let (_one, _both);
        match first.index == second.index {
            true => _one = keep_mapped(self.inner(), OPERATION, [&**first])?,
            false => _both = keep_mapped(self.inner(), OPERATION, [&**first, &**second])?,
        }
        self.check_mapped(OPERATION)?;
        from.check_mapped(OPERATION)?;
        let device = self.inner().core(OPERATION)?.settings.memory.device;
        // SAFETY: both ranges lie in blocks that stay mapped for the device until this returns. Two blocks never overlap.
        unsafe { backend.copy(device, self.address() + offset, from.address() + range.offset, range.length) }
    }

    pub(crate) fn check(&self, operation: Operation, range: OffsetRange) -> Result<()> {
        if range.end() > self.size() {
            return Err(Error::new(operation, Detail::OutOfRange { range, limit: self.size() }));
        }
        Ok(())
    }

    /// Checks that the memory of the block is neither suspended nor lost. A program that keeps freed blocks for reuse asks before it
    /// hands one out. Waits for a [move](crate::Pool::move_to_device), as requests do.
    ///
    /// # Errors
    ///
    /// [`Suspended`](PoolError::Suspended), [`Poisoned`](Detail::Poisoned) for memory that a failed call has lost,
    /// [`Forked`](Detail::Forked).
    pub fn check_usable(&self, operation: Operation) -> Result<()> {
        let tag = Arc::clone(self.inner().core(operation)?.tag_of(self.piece()));
        // Meanwhile the memory is mapped nowhere in the pool's books, as memory is that was lost.
        self.inner().wait_for_move(operation, &tag)?;
        self.check_mapped(operation)
    }

    /// Checks the memory as [`check_usable`](Self::check_usable) does, for a caller that a move waits for.
    fn check_mapped(&self, operation: Operation) -> Result<()> {
        let core = self.inner().core(operation)?;
        let tag = core.tag_of(self.piece());
        let is_moving = tag.state() == TagState::Moving;
        if !is_moving && (tag.is_suspended() || core.is_suspended(tag.index)) {
            return Err(Error::of_extension(operation, PoolError::Suspended { tag: tag.name.clone() }));
        }
        if let Some(offset) = core.lost_in(self.piece()) {
            let range = OffsetRange { offset, length: Bytes(core.page) };
            let cause = "the memory of the block is gone".to_owned();
            return Err(Error::new(operation, Detail::Poisoned { range, cause }));
        }
        Ok(())
    }

    /// Calls `act` with the address of a range of the block while its memory is mapped.
    fn while_mapped(
        &self,
        operation: Operation,
        offset: Bytes,
        length: usize,
        act: impl FnOnce(&B, DeviceId, Address) -> Result<()>,
    ) -> Result<()> {
        self.check(operation, OffsetRange { offset, length: Bytes(length as u64) })?;
        if length == 0 {
            return Ok(());
        }
        let core = self.inner().core(operation)?;
        let (backend, tag) = (core.backend.clone(), Arc::clone(core.tag_of(self.piece())));
        drop(core);
        let _mapped = keep_mapped(self.inner(), operation, [&tag])?;
        self.check_mapped(operation)?;
        // A move to another device has ended before.
        let device = self.inner().core(operation)?.settings.memory.device;
        act(&backend, device, self.address() + offset)
    }
}

/// Keeps the memory of tags mapped: a suspension or a move waits for the guards. Waits for a move that has begun, without a guard.
fn keep_mapped<'a, B: Backend, const N: usize>(
    inner: &Inner<B>,
    operation: Operation,
    tags: [&'a Tag; N],
) -> Result<[RwLockReadGuard<'a, ()>; N]> {
    loop {
        let guards = tags.map(|tag| tag.copies.read().unwrap_or_else(PoisonError::into_inner));
        let Some(moving) = tags.iter().find(|tag| tag.state() == TagState::Moving) else { return Ok(guards) };
        drop(guards);
        inner.wait_for_move(operation, moving)?;
    }
}
