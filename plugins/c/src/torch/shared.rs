//! A block as other processes map it.

use super::importers::Importers;
use gpu_vmm::AnyBackend;
use gpu_vmm::share::{Offer, Offered};
use serde::{Deserialize, Serialize};

/// What other processes need to map a block. Its descriptors stay open as long as the block lives.
pub(super) struct Shared {
    pub(super) handle: Handle,
    pub(super) _offered: Vec<Offered<AnyBackend>>,
    /// Ends with the descriptors: no other process can use the handle afterwards.
    pub(super) _importers: Importers,
}

/// The handle that travels to the other process.
#[derive(Serialize, Deserialize)]
pub(super) struct Handle {
    /// The distance of the block from the beginning of its first page.
    pub(super) offset: u64,
    pub(super) page: u64,
    pub(super) pages: Vec<Offer>,
}
