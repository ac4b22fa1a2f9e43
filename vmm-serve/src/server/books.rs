//! What the server holds.

use gpu_vmm_core::{Backend, Bytes, DeviceId, PhysicalMemory, Properties};
use gpu_vmm_share::manifest::SharedPiece;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The books of all devices, and of the host.
#[derive(Debug)]
pub(super) struct Books(BTreeMap<DeviceId, Arc<Book>>);

impl Books {
    pub(super) fn new<B: Backend>(backend: &B) -> Self {
        let devices = backend.devices().iter().map(|device| device.id);
        Self(devices.chain([DeviceId::HOST]).map(|place| (place, Arc::default())).collect())
    }

    /// Returns the book of the place where memory with these properties is.
    pub(super) fn of(&self, memory: &Properties) -> Arc<Book> {
        self.at(place_of(memory))
    }

    /// Returns the book of a device that the backend has.
    pub(super) fn at(&self, place: DeviceId) -> Arc<Book> {
        self.0.get(&place).map_or_else(Arc::default, Arc::clone)
    }

    /// Returns the memory that is held or promised anywhere.
    pub(super) fn held(&self) -> u64 {
        self.0.values().fold(0, |sum, book| sum.saturating_add(book.held()))
    }
}

/// Returns the place where memory with these properties is.
pub(super) fn place_of(memory: &Properties) -> DeviceId {
    if memory.location.is_host() { DeviceId::HOST } else { memory.device }
}

/// The size of all memory of one place that is held or promised, in bytes.
#[derive(Debug, Default)]
pub(super) struct Book {
    held: AtomicU64,
}

impl Book {
    /// Returns the memory that is held or promised.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// Memory that counts already and is not created yet, or is created by a program.
#[derive(Debug)]
pub(super) struct Promise {
    book: Arc<Book>,
    left: u64,
}

impl Promise {
    /// Returns what is not created yet.
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// Gives a part of the promise to memory that was created.
    pub(super) fn take(&mut self, bytes: Bytes) -> Counted {
        let bytes = bytes.0.min(self.left);
        self.left -= bytes;
        Counted { book: Arc::clone(&self.book), bytes }
    }

    /// Promises memory that will be created.
    pub(super) fn of(book: &Arc<Book>, bytes: u64) -> Self {
        let mut promise = Self { book: Arc::clone(book), left: 0 };
        promise.raise(bytes);
        promise
    }

    /// Promises more.
    pub(super) fn raise(&mut self, bytes: u64) {
        self.book.held.fetch_add(bytes, Ordering::Relaxed);
        self.left += bytes;
    }

    /// Promises less.
    pub(super) fn lower(&mut self, bytes: u64) {
        let bytes = bytes.min(self.left);
        self.book.held.fetch_sub(bytes, Ordering::Relaxed);
        self.left -= bytes;
    }

    /// Returns the book in which it counts.
    pub(super) const fn book(&self) -> &Arc<Book> {
        &self.book
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.book.held.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// Memory that counts until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    book: Arc<Book>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.book.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Handles with their indexes in a region.
pub(super) type Indexed<B> = Vec<(u32, Arc<Handle<B>>)>;

/// Physical memory, with the descriptor that clients get duplicates of. It is freed when no region and no client has it any more.
#[derive(Debug)]
pub(super) struct Handle<B: Backend> {
    /// Its number in this server.
    pub(super) id: u64,
    /// Its description; the number in it depends on its place in a region.
    pub(super) piece: SharedPiece,
    pub(super) descriptor: OwnedFd,
    /// A driver need not keep memory of which only a descriptor is left.
    pub(super) memory: PhysicalMemory<B>,
    #[expect(dead_code, reason = "counts until it is dropped")]
    pub(super) counted: Counted,
}

impl<B: Backend> Handle<B> {
    pub(super) fn size(&self) -> Bytes {
        Bytes(self.piece.size)
    }

    /// Returns its description as the handle of this index in a region.
    pub(super) fn described(&self, index: u32) -> SharedPiece {
        SharedPiece { id: index, ..self.piece }
    }
}
