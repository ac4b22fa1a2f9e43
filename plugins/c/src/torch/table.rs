//! The live blocks of PyTorch's allocator class, by address, and their amounts.

use super::address_map::AddressMap;
use super::amounts::Amounts;
use super::graphs::MempoolId;
use super::shared::Shared;
use gpu_vmm::extend::Lock;
use gpu_vmm::pool::Block;
use gpu_vmm::{Address, AnyBackend, Bytes, Operation, Stream};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

/// The number of devices that can be served.
pub(super) const DEVICES: usize = 64;

/// A live block.
pub(super) struct Entry {
    pub(super) block: Block<AnyBackend>,
    /// The number of its device.
    pub(super) device: u8,
    rare: Option<Box<Rare>>,
}

/// What few blocks have, apart: the less an entry holds, the less each allocation and free moves.
#[derive(Default)]
struct Rare {
    /// The private pool that the block belongs to, and the size of this request. The block may have been made for another size.
    private: Option<(MempoolId, u64)>,
    /// Other streams whose work uses it. The pool learns of them when the block is freed.
    streams: Vec<Stream<'static>>,
    /// What other processes need to map it, once it was shared.
    shared: Option<Arc<Shared>>,
    /// The number of the block among those that were shared, or are about to be; zero for none.
    share_number: u64,
}

impl Entry {
    #[inline]
    pub(super) fn new(block: Block<AnyBackend>, device: u8) -> Self {
        Self { block, device, rare: None }
    }

    /// Makes it a block of a private pool that serves a request of this size.
    pub(super) fn set_private(&mut self, id: MempoolId, size: u64) {
        self.rare.get_or_insert_default().private = Some((id, size));
    }

    pub(super) fn private(&self) -> Option<MempoolId> {
        Some(self.rare.as_ref()?.private?.0)
    }

    /// Returns the size of the request that it serves.
    #[inline]
    pub(super) fn size(&self) -> u64 {
        let private = self.rare.as_ref().and_then(|rare| rare.private);
        private.map_or_else(|| self.block.size().0, |(_, size)| size)
    }

    pub(super) fn streams(&self) -> &[Stream<'static>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.streams)
    }

    /// Notes that work on a stream uses it.
    pub(super) fn note_use(&mut self, stream: Stream<'static>) {
        if self.block.stream() != stream && !self.streams().contains(&stream) {
            self.rare.get_or_insert_default().streams.push(stream);
        }
    }

    /// Returns what other processes need to map it, or the number that [`Entry::share`] takes. A later block at the same address has
    /// another number.
    pub(super) fn begin_share(&mut self) -> Result<Arc<Shared>, u64> {
        static SHARED: AtomicU64 = AtomicU64::new(0);
        let rare = self.rare.get_or_insert_default();
        if rare.share_number == 0 {
            rare.share_number = SHARED.fetch_add(1, Ordering::Relaxed) + 1;
        }
        rare.shared.clone().ok_or(rare.share_number)
    }

    /// Returns what other processes need to map it: `shared`, unless it was shared before. Returns none if the block is another one
    /// than the block with this number.
    pub(super) fn share(&mut self, number: u64, shared: Arc<Shared>) -> Option<Arc<Shared>> {
        let rare = self.rare.as_mut().filter(|rare| rare.share_number == number)?;
        Some(Arc::clone(rare.shared.get_or_insert(shared)))
    }

    /// Whether the block belongs to no private pool, is used on its own stream alone, and is not shared.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.rare.is_none()
    }
}

/// The block is allocated.
pub const GPU_VMM_TORCH_LIVE: u32 = 0;
/// The block was freed and is kept for its private pool.
pub const GPU_VMM_TORCH_FREE: u32 = 1;
/// The block was freed and waits for work on a stream.
pub const GPU_VMM_TORCH_PENDING: u32 = 2;

/// A block as the allocator class of gpu_vmm.torch sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TorchBlock {
    /// Its first address.
    pub address: u64,
    /// The requested size.
    pub size: u64,
    /// The bytes that it occupies: the requested size, rounded up.
    pub capacity: u64,
    /// The stream that it was allocated for.
    pub stream: *mut c_void,
    /// Its private pool; zeros if it has none.
    pub pool: MempoolId,
    /// The number of its device.
    pub device: i32,
    /// GPU_VMM_TORCH_LIVE, GPU_VMM_TORCH_FREE or GPU_VMM_TORCH_PENDING.
    pub state: u32,
    /// Whether work on other streams uses it.
    pub used_elsewhere: bool,
}

impl TorchBlock {
    /// Returns a block of which only the place is known.
    pub(super) fn at(device: c_int, address: u64, capacity: u64) -> Self {
        Self {
            address,
            size: capacity,
            capacity,
            stream: std::ptr::null_mut(),
            pool: MempoolId::default(),
            device,
            state: GPU_VMM_TORCH_LIVE,
            used_elsewhere: false,
        }
    }

    #[inline]
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            address: entry.block.address().0,
            size: entry.size(),
            capacity: entry.block.capacity().0,
            stream: entry.block.stream().as_raw(),
            pool: entry.private().unwrap_or_default(),
            device: i32::from(entry.device),
            state: GPU_VMM_TORCH_LIVE,
            used_elsewhere: !entry.streams().is_empty(),
        }
    }
}

/// The blocks of all devices: PyTorch frees by address alone, so one lookup must find the device as well.
struct Live {
    blocks: AddressMap<Entry>,
    /// The amounts of each device.
    amounts: [Amounts; DEVICES],
}

/// The table of the process that created it. One lock for all, as in PyTorch's own allocator: the amounts have peaks, so each
/// allocation changes one state anyway. Nothing is called while it is held.
static TABLE: OnceLock<Lock<Live>> = OnceLock::new();

/// Locks the table. Returns an error in a forked child, which owns no block.
#[inline]
fn live(operation: Operation) -> gpu_vmm::Result<MutexGuard<'static, Live>> {
    let empty = || Live { blocks: AddressMap::new(), amounts: [Amounts::default(); DEVICES] };
    TABLE.get_or_init(|| Lock::new(empty())).lock(operation)
}

/// Inserts a block, and counts it as allocated.
///
/// # Errors
///
/// `Forked` in a child of a process that has the table, whose blocks cannot be freed.
#[inline]
pub(super) fn insert(entry: Entry) -> gpu_vmm::Result<()> {
    let (address, device) = (entry.block.address(), usize::from(entry.device));
    let (size, capacity) = (Bytes(entry.size()), entry.block.capacity());
    let mut live = live(Operation::Allocate)?;
    live.amounts[device].add(size, capacity);
    let is_new = live.blocks.insert(address, entry);
    debug_assert!(is_new, "two live blocks at {address}");
    Ok(())
}

/// Removes the block with this first address, and counts it as freed.
///
/// # Errors
///
/// `Forked` in a forked child.
#[inline]
pub(super) fn remove(address: Address) -> gpu_vmm::Result<Option<Entry>> {
    let mut live = live(Operation::Free)?;
    let Some(entry) = live.blocks.remove(address) else { return Ok(None) };
    live.amounts[usize::from(entry.device)].remove(Bytes(entry.size()), entry.block.capacity());
    Ok(Some(entry))
}

/// Changes or reads the amounts of a device's live blocks. Returns none for a device that cannot be, and in a forked child.
pub(super) fn with_amounts<T>(device: usize, change: impl FnOnce(&mut Amounts) -> T) -> Option<T> {
    live(Operation::QueryPool).ok()?.amounts.get_mut(device).map(change)
}

/// Changes or reads the entry of the block with this first address. `change` calls nothing: other threads wait meanwhile.
pub(super) fn with<T>(address: Address, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
    live(Operation::FindBlock).ok()?.blocks.get_mut(address).map(change)
}

/// Returns a copy of all blocks of a device, or of one private pool.
pub(super) fn blocks(device: u8, of: Option<MempoolId>) -> Vec<TorchBlock> {
    let Ok(live) = live(Operation::QueryPool) else { return Vec::new() };
    let wanted = |entry: &&Entry| entry.device == device && (of.is_none() || entry.private() == of);
    live.blocks.values().filter(wanted).map(TorchBlock::of).collect()
}
