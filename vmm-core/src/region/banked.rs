//! One address range whose physical memory is exchanged among several banks.
//!
//! The addresses in a captured graph cannot change between launches. With several banks of memory for one address, each launch
//! can work on the bytes of another bank, and nothing is copied.

use crate::driver::{Backend, WaitFor};
use crate::memory::{PhysicalMemory, create_split, rounded_size};
use crate::region::{BackingObserver, MappedMemory, ObserverId, Region, RegionBuilder, rounded};
use crate::trace::span;
use crate::types::{Address, BankId, Bytes, Detail, Error, Operation, Result};
use std::collections::BTreeMap;

/// A fixed range of addresses and several banks of memory, of which one at a time is mapped there. The other banks keep their
/// contents.
///
/// The banks may differ in size; all begin at [`BankedRegion::address`]. All banks have the access that the builder set with
/// [`RegionBuilder::access`]. The device that owns a piece of memory has read and write access to it unless the builder set
/// another.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, Result, BankedRegion};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let mut banked = BankedRegion::build(Region::builder(backend).reserve(Bytes::mib(64)))?;
/// let (front, back) = (banked.add_bank(Bytes::mib(64))?, banked.add_bank(Bytes::mib(64))?);
/// banked.select(back, WaitFor::all_devices())?;
/// banked.write(Bytes(0), b"prepared")?;
/// banked.select(front, WaitFor::all_devices())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BankedRegion<B: Backend> {
    region: Region<B>,
    banks: BTreeMap<BankId, Vec<PhysicalMemory<B>>>,
    next: u32,
    selected: Option<BankId>,
}

impl<B: Backend> BankedRegion<B> {
    /// Reserves the addresses without any bank. The builder's size must be the size of the largest bank.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn build(builder: RegionBuilder<'_, B>) -> Result<Self> {
        let region = builder.build()?;
        region.check_usable(Operation::AddBank)?;
        Ok(Self { region, banks: BTreeMap::new(), next: 0, selected: None })
    }

    /// Adds a bank of new memory: one piece of the region's memory properties with at least `size` bytes, rounded up to the
    /// granularity, or several if the driver refuses a large one although enough memory is free. Nothing is mapped. CUDA: `cuMemCreate`; HIP: `hipMemCreate`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::OutOfRange`] and [`Detail::ExceedsAddressSpace`] for a bank larger than the address
    /// range, [`Detail::ExceedsDevice`], [`Detail::OutOfMemory`], or the driver's error.
    pub fn add_bank(&mut self, size: Bytes) -> Result<BankId> {
        let operation = Operation::AddBank;
        let properties = self.region.growing_memory();
        let size = rounded(operation, size, self.region.granularity())?;
        let (size, _) = rounded_size(self.region.backend(), operation, size, &properties)?;
        self.region.check_inside(operation, Bytes::ZERO, size)?;
        let memory = create_split(self.region.backend(), size, properties, self.region.granularity())?;
        self.add_bank_of(memory)
    }

    /// Adds a bank of existing memory. The pieces are placed one behind the other. Nothing is mapped.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] for no piece, [`Detail::ForeignHandle`], [`Detail::OutOfRange`] for a bank larger than the address
    /// range, [`Detail::Unaligned`] if a piece would not begin at a multiple of the granularity, and [`Detail::PeerUnreachable`]
    /// for memory that a device with access cannot reach. No driver call changes anything.
    pub fn add_bank_of(&mut self, memory: Vec<PhysicalMemory<B>>) -> Result<BankId> {
        let operation = Operation::AddBank;
        let mut end = Bytes::ZERO;
        for piece in &memory {
            let overflow = || Error::new(operation, Detail::Overflow { base: end.0, length: piece.size().0 });
            end = end.checked_add(piece.size()).ok_or_else(overflow)?;
        }
        self.region.check_inside(operation, Bytes::ZERO, end)?;
        self.region.check_wanted(operation, &self.wanted(&memory))?;
        let id = BankId(self.next);
        let overflow = || Error::new(operation, Detail::Overflow { base: u64::from(id.0), length: 1 });
        self.next = self.next.checked_add(1).ok_or_else(overflow)?;
        self.banks.insert(id, memory);
        Ok(id)
    }

    /// Maps the given bank at the region's address.
    ///
    /// The previous bank's contents are kept. A bank that is mapped already stays mapped. CUDA: `cuMemUnmap`, `cuMemMap` and
    /// `cuMemSetAccess`; HIP: `hipMemUnmap`, `hipMemMap` and `hipMemSetAccess`.
    ///
    /// Waits as `done` says before it unmaps anything.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchBank`], or the error of waiting or of the driver. The previous bank is then still mapped.
    pub fn select(&mut self, bank: BankId, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::SelectBank;
        let memory = self.bank(operation, bank)?;
        self.region.check_usable(operation)?;
        if self.selected == Some(bank) {
            return Ok(());
        }
        span!(SelectBank, address = %self.address(), bank = bank.0);
        let wanted = self.wanted(memory);
        self.region.arrange(operation, &wanted, true, done)?;
        self.selected = Some(bank);
        Ok(())
    }

    /// Unmaps the selected bank, so that nothing is mapped. Waits as `done` says before it unmaps anything.
    ///
    /// # Errors
    ///
    /// Those of waiting and of the driver. The bank is then still mapped.
    pub fn hide(&mut self, done: WaitFor<'_>) -> Result<()> {
        span!(HideBank, address = %self.address());
        self.region.apply_layout(Operation::HideBank, &[], done)?;
        self.selected = None;
        Ok(())
    }

    /// Removes a bank and returns its memory; dropping that releases it to its device. A selected bank is hidden first.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchBank`], or the errors of [`BankedRegion::hide`]. The bank is then still there.
    pub fn remove_bank(&mut self, bank: BankId, done: WaitFor<'_>) -> Result<Vec<PhysicalMemory<B>>> {
        self.bank(Operation::RemoveBank, bank)?;
        if self.selected == Some(bank) {
            self.hide(done)?;
        }
        Ok(self.banks.remove(&bank).unwrap_or_default())
    }

    /// Returns the bank that is mapped.
    #[must_use]
    pub fn selected(&self) -> Option<BankId> {
        self.selected
    }

    /// Returns the banks with their sizes, in the order in which they were added.
    pub fn banks(&self) -> impl Iterator<Item = (BankId, Bytes)> {
        self.banks.iter().map(|(id, memory)| (*id, memory.iter().map(PhysicalMemory::size).sum()))
    }

    /// Returns the first address, which never changes.
    #[must_use]
    pub fn address(&self) -> Address {
        self.region.address()
    }

    /// Returns the region for reading. The selected bank is mapped in it.
    #[must_use]
    pub fn region(&self) -> &Region<B> {
        &self.region
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn region_mut(&mut self) -> &mut Region<B> {
        &mut self.region
    }

    /// Drops the other banks and returns the region with the selected bank mapped.
    #[must_use]
    pub fn into_region(self) -> Region<B> {
        self.region
    }

    /// Adds an observer as [`Region::on_backing_change`] does. Selecting a bank calls it, also if no bank was selected.
    pub fn on_backing_change(&mut self, observer: impl BackingObserver) -> ObserverId {
        self.region.on_backing_change(observer)
    }

    /// Removes an observer as [`Region::remove_observer`] does.
    pub fn remove_observer(&mut self, id: ObserverId) -> bool {
        self.region.remove_observer(id)
    }

    /// Writes to the selected bank as [`Region::write`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`].
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.region.write(offset, bytes)
    }

    /// Fills a part of the selected bank as [`Region::fill`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::fill`].
    pub fn fill(&mut self, offset: Bytes, length: Bytes, value: u8) -> Result<()> {
        self.region.fill(offset, length, value)
    }

    /// Copies into the selected bank as [`Region::copy_from`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Region::copy_from`].
    pub fn copy_from(&mut self, offset: Bytes, source: &Region<B>, from: Bytes, length: Bytes) -> Result<()> {
        self.region.copy_from(offset, source, from, length)
    }

    /// The memory of a bank.
    fn bank(&self, operation: Operation, bank: BankId) -> Result<&[PhysicalMemory<B>]> {
        self.banks.get(&bank).map(Vec::as_slice).ok_or_else(|| {
            let all: Vec<String> = self.banks.keys().map(BankId::to_string).collect();
            let existing = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            Error::new(operation, Detail::NoSuchBank { bank, existing })
        })
    }

    /// The mappings of a bank's memory.
    fn wanted(&self, memory: &[PhysicalMemory<B>]) -> Vec<MappedMemory<B>> {
        let place = |offset: &mut Bytes, piece: &PhysicalMemory<B>| {
            let at = *offset;
            *offset += piece.size();
            let access = self.region.growing_access(piece.device());
            Some(MappedMemory { offset: at, memory: piece.clone(), access })
        };
        memory.iter().scan(Bytes::ZERO, place).collect()
    }
}
