//! Backing stores for the contents of suspended regions.

mod file;
mod pages;
mod pinned_arena;
mod saved_contents;
mod store;
mod stores;
mod stripes;

pub(crate) use saved_contents::SavedContents;

use crate::driver::{Backend, check_same};
use crate::memory::StagingRing;
use crate::types::{Bytes, Detail, Error, Operation, Result};
use pages::HostMemory;
use pinned_arena::PinnedArena;
use std::path::PathBuf;
use std::sync::Arc;
use stripes::Stripes;

/// A store for the contents of suspended regions.
///
/// Create it ahead of need. Clones share the store, and several regions can use it at once, from several threads.
///
/// | constructor | contents are kept in | and copied |
/// |---|---|---|
/// | [`pinned`](BackingStore::pinned) | pinned memory, allocated with the store | directly, at the full speed of the link |
/// | [`host`](BackingStore::host), [`pageable`](BackingStore::pageable) | ordinary memory of the needed size, until the resume | through a [`StagingRing`] |
/// | [`file`](BackingStore::file) | a file for each region, until the resume | through a [`StagingRing`] |
/// | [`files`](BackingStore::files) | a file on each of several disks for each region | through a [`StagingRing`] |
/// | [`nothing`](BackingStore::nothing) | nothing: contents are discarded | |
///
/// ```
/// # use gpu_vmm_core::{Backend, BackingStore, Region, Result, WaitFor};
/// # fn example<B: Backend>(backend: &B, weights: &mut Region<B>, cache: &mut Region<B>) -> Result<()> {
/// // Once, when the process starts: pinning is slow.
/// let store = BackingStore::host(backend)?;
/// // Free the memory while the process is idle.
/// weights.suspend(&store, WaitFor::all_devices())?;
/// cache.suspend(&BackingStore::nothing(), WaitFor::all_devices())?;
/// // Map memory again, at the same addresses and with the same access.
/// weights.resume()?;
/// cache.resume()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BackingStore<B: Backend>(Kind<B>);

#[derive(Debug)]
enum Kind<B: Backend> {
    /// The backend whose devices can copy to the pinned memory, and that memory.
    Pinned(B, Arc<PinnedArena>),
    Pageable(Arc<HostMemory>, Arc<StagingRing<B>>),
    /// The directories: at least one.
    File(Arc<[PathBuf]>, Arc<StagingRing<B>>),
    Nothing,
}

/// The kind of a [`BackingStore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BackingKind {
    /// Pinned (page-locked) memory.
    Pinned,
    /// Ordinary memory.
    Pageable,
    /// A file.
    File,
    /// Nothing: contents are discarded.
    Nothing,
}

impl BackingKind {
    /// Returns `pinned`, `pageable`, `file` or `nothing`, as reports print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Pageable => "pageable",
            Self::File => "file",
            Self::Nothing => "nothing",
        }
    }
}

impl<B: Backend> Clone for BackingStore<B> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Pinned(owner, locked) => Kind::Pinned(owner.clone(), Arc::clone(locked)),
            Kind::Pageable(memory, ring) => Kind::Pageable(Arc::clone(memory), Arc::clone(ring)),
            Kind::File(directories, ring) => Kind::File(Arc::clone(directories), Arc::clone(ring)),
            Kind::Nothing => Kind::Nothing,
        })
    }
}

impl<B: Backend> BackingStore<B> {
    /// Creates a store in pinned memory for `capacity` bytes of contents. CUDA: `cuMemHostRegister` of new pages, HIP:
    /// `hipHostMalloc`.
    ///
    /// This call allocates all of the memory, which takes longer than a copy. In return, devices copy contents directly, at the full
    /// speed of the link.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], or any error that the driver returns.
    pub fn pinned(backend: &B, capacity: Bytes) -> Result<Self> {
        PinnedArena::new(backend, capacity)
            .map(|locked| Self(Kind::Pinned(backend.clone(), Arc::new(locked))))
    }

    /// Creates a store in ordinary memory, which is allocated when a region is suspended and freed when it is resumed.
    ///
    /// Contents are copied through the ring, which other stores may share.
    #[must_use]
    pub fn pageable(ring: impl Into<Arc<StagingRing<B>>>) -> Self {
        Self::pageable_keeping(ring, Bytes::ZERO)
    }

    /// Creates a store in ordinary memory, as [`pageable`](Self::pageable) does, with a ring of its own.
    ///
    /// # Errors
    ///
    /// Those of [`StagingRing::new`].
    pub fn host(backend: &B) -> Result<Self> {
        StagingRing::new(backend, StagingRing::<B>::threads(), StagingRing::<B>::CHUNK).map(Self::pageable)
    }

    /// Creates a store in ordinary memory that keeps up to `most` bytes of it after the resume, for the next contents.
    ///
    /// Copies to memory that was kept are up to twice as fast as to new memory, whose pages the system has to clear first. Dropping
    /// the store frees the memory that it keeps.
    #[must_use]
    pub fn pageable_keeping(ring: impl Into<Arc<StagingRing<B>>>, most: Bytes) -> Self {
        Self(Kind::Pageable(Arc::new(HostMemory::keeping(most)), ring.into()))
    }

    /// Creates a store that keeps the contents of each suspended region in a file in this directory.
    ///
    /// The file has no name (on Windows, it is deleted on close), so it does not outlive the process. The disk space is allocated
    /// before anything is copied, if the file system supports that. A suspend returns when the disk has accepted the contents, so
    /// that no error is lost. On Linux the contents bypass the page cache (`O_DIRECT`) if the file system supports that, and take
    /// no host memory. Contents are copied through the ring, which other stores may share. Chunks that are not a multiple of 4 KiB
    /// go through the page cache.
    ///
    /// In a directory whose files are in memory (tmpfs), the contents of a region are in up to 16 files of at least 64 MiB, because
    /// Linux allocates, writes and frees the pages of one file with one thread at a time.
    #[must_use]
    pub fn file(directory: impl Into<PathBuf>, ring: impl Into<Arc<StagingRing<B>>>) -> Self {
        Self(Kind::File([directory.into()].into(), ring.into()))
    }

    /// Creates a store that spreads the contents of each suspended region over a file in each of these directories, as
    /// [`file`](BackingStore::file) does in one. The directories should be on different disks, which then work at the same time. Each
    /// receives the same amount. If all of them are in memory, each has as many files as [`file`](BackingStore::file) uses.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] if there is no directory.
    pub fn files<P: Into<PathBuf>>(
        directories: impl IntoIterator<Item = P>,
        ring: impl Into<Arc<StagingRing<B>>>,
    ) -> Result<Self> {
        let directories: Arc<[PathBuf]> = directories.into_iter().map(Into::into).collect();
        if directories.is_empty() {
            return Err(Error::new(Operation::KeepContents, Detail::ZeroSize));
        }
        Ok(Self(Kind::File(directories, ring.into())))
    }

    /// Creates a store that discards contents. After a resume, the contents of the region are undefined.
    #[must_use]
    pub const fn nothing() -> Self {
        Self(Kind::Nothing)
    }

    /// Returns the kind of the store.
    #[must_use]
    pub const fn kind(&self) -> BackingKind {
        match self.0 {
            Kind::Pinned(..) => BackingKind::Pinned,
            Kind::Pageable(..) => BackingKind::Pageable,
            Kind::File(..) => BackingKind::File,
            Kind::Nothing => BackingKind::Nothing,
        }
    }

    /// Returns the total size of a [pinned](BackingStore::pinned) store, or `None` for the other stores, which have no limit.
    #[must_use]
    pub fn capacity(&self) -> Option<Bytes> {
        let Kind::Pinned(_, locked) = &self.0 else { return None };
        Some(locked.capacity())
    }

    /// Returns the free space of a [pinned](BackingStore::pinned) store, or `None` for the other stores, which have no limit.
    #[must_use]
    pub fn free(&self) -> Option<Bytes> {
        let Kind::Pinned(_, locked) = &self.0 else { return None };
        Some(locked.free())
    }

    /// Returns the size of the host memory that the store has taken, with contents and without: all of a
    /// [pinned](BackingStore::pinned) store, and in ordinary memory the contents that it holds and what it
    /// [keeps](BackingStore::pageable_keeping). The ring's buffers are not included ([`StagingRing::size`]).
    #[must_use]
    pub fn host_memory(&self) -> Bytes {
        match &self.0 {
            Kind::Pinned(_, arena) => arena.capacity(),
            Kind::Pageable(memory, _) => memory.taken(),
            Kind::File(..) | Kind::Nothing => Bytes::ZERO,
        }
    }

    /// Frees the memory that the store [keeps](BackingStore::pageable_keeping) without contents, and returns its size: zero for the
    /// other stores.
    ///
    /// # Errors
    ///
    /// [`Detail::Forked`].
    pub fn trim(&self) -> Result<Bytes> {
        match &self.0 {
            Kind::Pageable(memory, _) => memory.trim(),
            Kind::Pinned(..) | Kind::File(..) | Kind::Nothing => Ok(Bytes::ZERO),
        }
    }

    /// Allocates space for the contents of one region. Dropping the result frees it.
    pub(crate) fn room(&self, operation: Operation, backend: &B, needed: Bytes) -> Result<SavedContents<B>> {
        match &self.0 {
            Kind::Pinned(owner, _) => check_same(operation, owner, backend)?,
            Kind::Pageable(_, ring) | Kind::File(_, ring) => {
                check_same(operation, ring.backend(), backend)?;
            }
            Kind::Nothing => {}
        }
        if needed.is_zero() {
            return Ok(SavedContents::nothing(self.kind()));
        }
        Ok(match &self.0 {
            Kind::Pinned(_, arena) => SavedContents::pinned(arena.extent(operation, needed)?),
            Kind::Pageable(memory, ring) => {
                SavedContents::stored(ring, self.kind(), memory.pages(operation, needed)?)
            }
            Kind::File(directories, ring) => {
                SavedContents::stored(ring, self.kind(), Stripes::new(operation, directories, needed)?)
            }
            Kind::Nothing => SavedContents::nothing(self.kind()),
        })
    }
}
