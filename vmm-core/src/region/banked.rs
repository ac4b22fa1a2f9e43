//! One address whose physical memory is exchanged among several sets.
//!
//! A captured graph has addresses in it that cannot change from one launch to the next. With several sets of memory for
//! one address, the graph works on this one's bytes and then on that one's, and nothing is copied.

use crate::driver::{Backend, WaitFor};
use crate::memory::{PhysicalMemory, rounded_size};
use crate::region::{MappedMemory, Region, RegionBuilder, rounded};
use crate::types::{Address, BankId, Bytes, Detail, Error, Operation, Result};
use std::collections::BTreeMap;

/// A range of addresses that stays where it is for its life, and several sets of memory of which one at a time is shown
/// there. What is in the others is kept.
///
/// The sets may differ in size; all begin at [`BankedRegion::address`]. The devices that the region was built for have the same
/// access to each, as [`RegionBuilder::access`] says it for growth: each piece of memory's own device may read and write
/// it if nothing else was said.
///
/// ```
/// # use gpu_vmm_core::{Backend, Bytes, WaitFor, Region, Result, BankedRegion};
/// # fn example<B: Backend>(backend: &B) -> Result<()> {
/// let mut slots = BankedRegion::build(Region::builder(backend).reserve(Bytes::mib(64)))?;
/// let (front, back) = (slots.add_bank(Bytes::mib(64))?, slots.add_bank(Bytes::mib(64))?);
/// slots.select(back, WaitFor::all_devices())?;
/// slots.write(Bytes(0), b"prepared")?;
/// slots.select(front, WaitFor::all_devices())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BankedRegion<B: Backend> {
    region: Region<B>,
    sets: BTreeMap<BankId, Vec<PhysicalMemory<B>>>,
    next: u32,
    selected: Option<BankId>,
}

impl<B: Backend> BankedRegion<B> {
    /// Reserves the addresses: as many as the largest set will need, which the builder says. There is no set yet.
    ///
    /// # Errors
    ///
    /// Those of [`RegionBuilder::build`].
    pub fn build(builder: RegionBuilder<'_, B>) -> Result<Self> {
        Ok(Self { region: builder.build()?, sets: BTreeMap::new(), next: 0, selected: None })
    }

    /// Adds a set of new memory, in one piece, as the region grows with: at least `size` bytes, rounded up to the
    /// granularity. It is not shown yet. CUDA: `cuMemCreate`, HIP: `hipMemCreate`.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`], [`Detail::OutOfRange`] and [`Detail::AddressSpaceExhausted`] for more than the addresses,
    /// [`Detail::ExceedsDevice`], [`Detail::OutOfMemory`], or what the driver answers.
    pub fn add_bank(&mut self, size: Bytes) -> Result<BankId> {
        let operation = Operation::AddBank;
        let properties = self.region.growing_memory();
        let size = rounded(operation, size, self.region.granularity())?;
        let (size, _) = rounded_size(self.region.backend(), operation, size, &properties)?;
        self.region.check_inside(operation, Bytes::ZERO, size)?;
        let memory = PhysicalMemory::create(self.region.backend(), size, properties)?;
        self.add_bank_of(vec![memory])
    }

    /// Adds a set of memory that there is already: the pieces come to lie one behind the other. It is not shown yet.
    ///
    /// # Errors
    ///
    /// [`Detail::ZeroSize`] for no piece, [`Detail::ForeignHandle`], [`Detail::OutOfRange`] for more than the addresses,
    /// [`Detail::Unaligned`] where a piece would not lie at a multiple of the granularity, and
    /// [`Detail::PeerUnreachable`] for memory that a device with access cannot reach. No driver is asked to change
    /// anything.
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
        self.sets.insert(id, memory);
        Ok(id)
    }

    /// Lets the address show a set in the place of the one that is shown, which keeps its contents. Nothing is done where
    /// it is shown already. CUDA: `cuMemUnmap`, `cuMemMap` and `cuMemSetAccess`, HIP: `hipMemUnmap`, `hipMemMap` and
    /// `hipMemSetAccess`.
    ///
    /// Waits as `done` says before anything is taken away.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchBank`], or what waiting or the driver answers; then the old one is still shown.
    pub fn select(&mut self, set: BankId, done: WaitFor<'_>) -> Result<()> {
        let operation = Operation::SelectBank;
        let memory = self.set(operation, set)?;
        self.region.check_usable(operation)?;
        if self.selected == Some(set) {
            return Ok(());
        }
        let wanted = self.wanted(memory);
        self.region.apply_layout(operation, &wanted, done)?;
        self.selected = Some(set);
        Ok(())
    }

    /// Shows no set: nothing is mapped any more. Waits as `done` says before anything is taken away.
    ///
    /// # Errors
    ///
    /// What waiting or the driver answers; then the set is still shown.
    pub fn hide(&mut self, done: WaitFor<'_>) -> Result<()> {
        self.region.apply_layout(Operation::HideBank, &[], done)?;
        self.selected = None;
        Ok(())
    }

    /// Removes a set, which is hidden first where it is shown, and gives its memory out: dropping that gives it back to
    /// its device.
    ///
    /// # Errors
    ///
    /// [`Detail::NoSuchBank`], or those of [`BankedRegion::hide`]; then the set is still there.
    pub fn remove_bank(&mut self, set: BankId, done: WaitFor<'_>) -> Result<Vec<PhysicalMemory<B>>> {
        self.set(Operation::RemoveBank, set)?;
        if self.selected == Some(set) {
            self.hide(done)?;
        }
        Ok(self.sets.remove(&set).unwrap_or_default())
    }

    /// The set that is shown.
    #[must_use]
    pub fn selected(&self) -> Option<BankId> {
        self.selected
    }

    /// The sets with their sizes, in the order in which they were added.
    pub fn banks(&self) -> impl Iterator<Item = (BankId, Bytes)> {
        self.sets.iter().map(|(id, memory)| (*id, memory.iter().map(PhysicalMemory::size).sum()))
    }

    /// The first address, which never changes.
    #[must_use]
    pub fn address(&self) -> Address {
        self.region.address()
    }

    /// The region, to look at and to read: what is mapped in it is the set that is shown.
    #[must_use]
    pub fn region(&self) -> &Region<B> {
        &self.region
    }

    #[cfg(feature = "testkit")]
    pub(crate) fn region_mut(&mut self) -> &mut Region<B> {
        &mut self.region
    }

    /// Gives the sets up and the region out, with the set in it that is shown.
    #[must_use]
    pub fn into_region(self) -> Region<B> {
        self.region
    }

    /// [`Region::write`] to the set that is shown.
    ///
    /// # Errors
    ///
    /// Those of [`Region::write`].
    pub fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<()> {
        self.region.write(offset, bytes)
    }

    /// [`Region::fill`] in the set that is shown.
    ///
    /// # Errors
    ///
    /// Those of [`Region::fill`].
    pub fn fill(&mut self, offset: Bytes, length: Bytes, value: u8) -> Result<()> {
        self.region.fill(offset, length, value)
    }

    /// [`Region::copy_from`] into the set that is shown.
    ///
    /// # Errors
    ///
    /// Those of [`Region::copy_from`].
    pub fn copy_from(&mut self, offset: Bytes, source: &Region<B>, from: Bytes, length: Bytes) -> Result<()> {
        self.region.copy_from(offset, source, from, length)
    }

    /// The memory of a set.
    fn set(&self, operation: Operation, set: BankId) -> Result<&[PhysicalMemory<B>]> {
        self.sets.get(&set).map(Vec::as_slice).ok_or_else(|| {
            let all: Vec<String> = self.sets.keys().map(BankId::to_string).collect();
            let there = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            Error::new(operation, Detail::NoSuchBank { set, there })
        })
    }

    /// The mappings that show this memory.
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
