//! Where the contents of suspended regions are kept.
//!
//! | file | subject |
//! |---|---|
//! | `pinned_arena` | page-locked memory that was made ahead, handed out in extents |
//! | `store` | ordinary memory, and files |
//! | `saved_contents` | one region's contents: on their way there and back |

mod pinned_arena;
mod saved_contents;
mod store;

pub(crate) use saved_contents::{Batch, SavedContents};

use crate::driver::{Backend, check_same};
use crate::memory::StagingRing;
#[cfg(doc)]
use crate::types::Detail;
use crate::types::{Bytes, Operation, Result};
use pinned_arena::PinnedArena;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{File, Pages};

/// Where the contents of suspended regions are kept, by the user's choice. Made ahead of need; clones are the same store,
/// and several regions can have their contents in it at once, from several threads.
///
/// | | where contents are | how they get there |
/// |---|---|---|
/// | [`pinned`](BackingStore::pinned) | page-locked memory of this size, allocated now | straight, at the link's full speed |
/// | [`pageable`](BackingStore::pageable) | ordinary memory, as much as is needed, until the resume | through a [`StagingRing`] |
/// | [`file`](BackingStore::file) | a file for each region, until the resume | through a [`StagingRing`] |
/// | [`nothing`](BackingStore::nothing) | nowhere: they are given up | |
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, Result, StagingRing, BackingStore};
/// # fn example<B: Backend>(backend: &B, weights: &mut Region<B>, cache: &mut Region<B>) -> Result<()> {
/// // Once, when the process starts: pinning is slow.
/// let store = BackingStore::pageable(StagingRing::new(backend, 2, StagingRing::<B>::CHUNK)?);
/// // The process goes to sleep.
/// weights.suspend(&store, WaitFor::all_devices())?;
/// cache.suspend(&BackingStore::nothing(), WaitFor::all_devices())?;
/// // And wakes: at the same addresses, with the same access.
/// weights.resume()?;
/// cache.resume()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BackingStore<B: Backend>(Kind<B>);

#[derive(Debug)]
enum Kind<B: Backend> {
    /// With the backend whose devices copy there.
    Pinned(B, Arc<PinnedArena>),
    Pageable(Arc<StagingRing<B>>),
    File(Arc<Path>, Arc<StagingRing<B>>),
    Nothing,
}

/// What kind of [`BackingStore`] something is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BackingKind {
    /// Page-locked memory.
    Pinned,
    /// Ordinary memory.
    Pageable,
    /// A file.
    File,
    /// Contents are given up.
    Nothing,
}

impl BackingKind {
    /// `pinned`, `pageable`, `file` or `nothing`, as reports have it.
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
            Kind::Pageable(ring) => Kind::Pageable(Arc::clone(ring)),
            Kind::File(directory, ring) => Kind::File(Arc::clone(directory), Arc::clone(ring)),
            Kind::Nothing => Kind::Nothing,
        })
    }
}

impl<B: Backend> BackingStore<B> {
    /// Page-locked memory for `capacity` bytes of contents, allocated here and now. That is slow (0.3 to 0.5 s a GiB on an H200's
    /// host); what it buys is that contents go straight there and back, at the link's full speed. CUDA:
    /// `cuMemHostAlloc`, HIP: `hipHostMalloc`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], or what the driver answers.
    pub fn pinned(backend: &B, capacity: Bytes) -> Result<Self> {
        PinnedArena::new(backend, capacity)
            .map(|locked| Self(Kind::Pinned(backend.clone(), Arc::new(locked))))
    }

    /// Ordinary memory, taken from the system when a region is suspended and given back to it at the resume. Contents go
    /// through the ring, which other stores may use too.
    #[must_use]
    pub fn pageable(ring: impl Into<Arc<StagingRing<B>>>) -> Self {
        Self(Kind::Pageable(ring.into()))
    }

    /// A file for each suspended region in this directory. It is there without a name, so that it goes with the process at
    /// the latest. Contents go through the ring, which other stores may use too. A suspend returns when the disk has them.
    #[must_use]
    pub fn file(directory: impl Into<PathBuf>, ring: impl Into<Arc<StagingRing<B>>>) -> Self {
        Self(Kind::File(directory.into().into(), ring.into()))
    }

    /// Contents are given up: after the resume they are not defined.
    #[must_use]
    pub const fn nothing() -> Self {
        Self(Kind::Nothing)
    }

    /// What kind it is.
    #[must_use]
    pub const fn kind(&self) -> BackingKind {
        match self.0 {
            Kind::Pinned(..) => BackingKind::Pinned,
            Kind::Pageable(_) => BackingKind::Pageable,
            Kind::File(..) => BackingKind::File,
            Kind::Nothing => BackingKind::Nothing,
        }
    }

    /// How many bytes of contents a [pinned](BackingStore::pinned) store has room for in all; the others have no such limit.
    #[must_use]
    pub fn capacity(&self) -> Option<Bytes> {
        let Kind::Pinned(_, locked) = &self.0 else { return None };
        Some(locked.capacity())
    }

    /// How many more bytes of contents a [pinned](BackingStore::pinned) store has room for now.
    #[must_use]
    pub fn free(&self) -> Option<Bytes> {
        let Kind::Pinned(_, locked) = &self.0 else { return None };
        Some(locked.free())
    }

    /// Room for the contents of one region. Dropping it gives it back.
    pub(crate) fn room(&self, operation: Operation, backend: &B, needed: Bytes) -> Result<SavedContents<B>> {
        match &self.0 {
            Kind::Pinned(owner, _) => check_same(operation, owner, backend)?,
            Kind::Pageable(ring) | Kind::File(_, ring) => {
                check_same(operation, ring.backend(), backend)?;
            }
            Kind::Nothing => {}
        }
        if needed.is_zero() {
            return Ok(SavedContents::nothing(self.kind()));
        }
        Ok(match &self.0 {
            Kind::Pinned(_, locked) => SavedContents::locked(locked.room(operation, needed)?),
            Kind::Pageable(ring) => SavedContents::stored(ring, self.kind(), Pages::new(operation, needed)?),
            Kind::File(directory, ring) => {
                SavedContents::stored(ring, self.kind(), File::new(operation, directory)?)
            }
            Kind::Nothing => SavedContents::nothing(self.kind()),
        })
    }
}
