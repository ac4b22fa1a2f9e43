//! The address ranges of each tag.

use crate::PoolError;
use crate::block_memory::{BlockMemory, Origin};
use crate::core::{Core, Request, Shortage};
use crate::frames::LOST;
use crate::mapping::Mapping;
use crate::shared::{CoreGuard, Inner};
use crate::space::{Group, MIXED_ADDRESSES, MIXED_PAGES, Space};
use crate::stats::DriverCalls;
use crate::tags::{LIMIT, Tag, TagState};
use gpu_vmm_core::{Backend, Bytes, Detail, Error, ErrorKind, Operation, Placement, Region, Result};
use gpu_vmm_premap::sync::Arc;

/// The first addresses of a tag, as a multiple of the largest block of a group.
const FIRST: u64 = 16;

impl<B: Backend> Core<B> {
    #[inline]
    pub(crate) fn check_active(&self, tag: u16) -> Result<(), Shortage> {
        match self.tags.get(tag).state() {
            TagState::Active => Ok(()),
            TagState::Moving => Err(Shortage::Moving),
            _ => Err(Shortage::Suspended),
        }
    }

    /// Returns the tag of a piece that is not free.
    pub(crate) fn tag_of(&self, piece: &BlockMemory) -> &Arc<Tag> {
        self.tags.get(self.space_of(piece).tag)
    }

    pub(crate) fn space_of(&self, piece: &BlockMemory) -> &Space<B> {
        let space = match piece.origin {
            Origin::Slot(slab, _) => self.slabs.get(slab).space,
            Origin::Range(space, _) => space,
        };
        &self.spaces[usize::from(space)]
    }

    /// Puts a space in the place of a vacant one, or behind the last.
    pub(crate) fn put_space(&mut self, place: usize, space: Space<B>) {
        match self.spaces.get_mut(place) {
            Some(vacant) => *vacant = space,
            None => self.spaces.push(space),
        }
    }

    /// Returns the space that contains an address.
    pub(crate) fn space_at(&self, address: u64) -> Option<&Space<B>> {
        let contains =
            |space: &&Space<B>| address.checked_sub(space.base).is_some_and(|at| at < space.reserved);
        self.spaces.iter().find(contains)
    }

    /// Returns the spaces among some that contain no block and that no work uses. None is lent: the caller has the turn to map.
    fn empty_spaces(&mut self, which: impl Fn(&Space<B>) -> bool) -> Vec<usize> {
        self.settle();
        (0..self.spaces.len()).filter(|index| which(&self.spaces[*index]) && self.can_go(*index)).collect()
    }

    /// Returns true if a space contains no block, no work uses it, and it can be unmapped.
    pub(crate) fn can_go(&self, space: usize) -> bool {
        let space = &self.spaces[space];
        // A save may still read pages without blocks.
        let is_in_use = || space.pages.iter().any(|page| page.frame == LOST || page.live > 0);
        space.is_empty() && space.region().is_some() && !is_in_use()
    }

    /// Forgets the name of a tag, by which alone a suspended one can be resumed.
    pub(crate) fn forget_tag(&mut self, operation: Operation, tag: &Tag) -> Result<(), Error> {
        if tag.is_suspended() {
            return Err(Error::of_extension(operation, PoolError::Suspended { tag: tag.name.clone() }));
        }
        self.tags.forget(tag);
        Ok(())
    }

    /// Ends the tags without a handle and without a space.
    pub(crate) fn end_tags(&mut self) {
        for tag in self.tags.unused() {
            if self.spaces.iter().all(|space| space.tag != tag || space.reserved == 0) {
                self.frames.disown(tag);
                self.tags.end(tag);
            }
        }
    }

    /// Drops the addresses of a space without mappings, which no tag has any more. Its number serves another space.
    fn vacate(&mut self, index: usize) {
        self.let_go(index);
        let space = &mut self.spaces[index];
        (space.reserved, space.pages) = (0, Vec::new());
    }

    /// Returns the number of a new space as blocks store it.
    pub(crate) fn space_index(&self, space: usize) -> Result<u16, Error> {
        u16::try_from(space).map_err(|_| {
            let what = match self.settings.plain {
                true => "plain allocations",
                false => "address ranges of its tags",
            };
            let reason = format!("the pool has the maximum of {LIMIT} {what}");
            Error::new(Operation::Allocate, Detail::Unsupported { reason })
        })
    }

    /// Returns the size of a new reservation for a request, and the smallest one that serves it.
    fn plan_space(&self, request: Request, group: Group) -> Result<(u64, u64), Shortage> {
        let left = self.settings.addresses.0.saturating_sub(self.reserved());
        // The addresses begin at a multiple of the page size.
        let skipped = if request.alignment > self.page { request.alignment } else { 0 };
        let least =
            request.size.saturating_add(skipped).checked_next_multiple_of(self.page).unwrap_or(u64::MAX);
        // Half of the remaining addresses stays for other tags.
        let planned = self.planned(request, group).max(least);
        let size = planned.min(left).min((left / 2).max(least)) / self.page * self.page;
        if size < least { Err(self.shortage_of_addresses(request)) } else { Ok((size, least)) }
    }

    /// Returns the size of all reserved addresses.
    pub(crate) fn reserved(&self) -> u64 {
        self.spaces.iter().map(|space| space.reserved).sum()
    }

    /// Returns true if addresses for all sizes may be used up further, for a block of a request.
    pub(crate) fn may_extend_mixed(&self, request: Request) -> bool {
        let spaces = self.tags.spaces_of(request.tag, Group::MIXED).iter();
        let used: u64 = spaces.map(|space| self.spaces[*space].end()).sum();
        let needed = self.peak_taken.max(self.taken.saturating_add(request.size));
        let most = needed.saturating_mul(MIXED_ADDRESSES).saturating_add(MIXED_PAGES * self.page);
        !request.small && used.saturating_add(request.size.max(request.alignment)) <= most
    }

    /// Returns how many addresses to reserve: at first as many as the device has memory, and for a tag [`FIRST`] times the largest
    /// block of the group; then as many as there are, so that a group has few spaces.
    fn planned(&self, request: Request, group: Group) -> u64 {
        let spaces = self.tags.spaces_of(request.tag, group).iter();
        let own: u64 = spaces.map(|space| self.spaces[*space].reserved).sum();
        let is_untagged = self.tags.get(request.tag).name.is_empty();
        let total = self.settings.total.0;
        let first =
            if is_untagged { total } else { FIRST.saturating_mul(request.group().largest()).min(total) };
        first.max(own)
    }

    /// Returns the error of a request for which there are too few addresses, with the numbers of its tag; of the pool if the tag has
    /// no addresses.
    pub(crate) fn shortage_of_addresses(&self, request: Request) -> Shortage {
        let spaces = || self.tags.spaces(request.tag).map(|space| &self.spaces[space]);
        match spaces().map(|space| space.reserved).sum() {
            0 => Shortage::Addresses { used: self.reserved(), reserved: self.reserved() },
            reserved => Shortage::Addresses { used: spaces().map(Space::end).sum(), reserved },
        }
    }
}

impl<B: Backend> Inner<B> {
    /// Adds a space without blocks for a tag, and returns its number.
    pub(crate) fn add_space(
        &self,
        core: &mut Core<B>,
        region: Region<B>,
        tag: u16,
        group: Group,
    ) -> Result<u16> {
        if group == Group::CHOSEN {
            // A block there that was freed must not serve a request without an address.
            self.last.close();
        }
        let place = core.vacant_space();
        let index = core.space_index(place)?;
        let space = Space::new(index, tag, self.own(region), core.page, core.settings.scrub, group);
        core.put_space(place, space);
        core.tags.add_space(tag, group, place);
        Ok(index)
    }
}

impl<'a, B: Backend> Mapping<'a, B> {
    /// Reserves a space for a request that no other space has room for. Releases the addresses of empty spaces if there are too few.
    pub(crate) fn add_space(&self, request: Request) -> Result<(), Shortage> {
        if let Some(address) = request.at {
            return self.add_space_at(request, address);
        }
        let core = self.core()?;
        let group = match core.may_extend_mixed(request) {
            true => Group::MIXED,
            false => request.group(),
        };
        drop(core);
        let region = match self.reserve(request, group) {
            Err(_) if self.release_spaces(self.core()?, |_| true)?.1 => self.reserve(request, group)?,
            answer => answer?,
        };
        self.inner.add_space(&mut *self.core()?, region, request.tag, group)?;
        Ok(())
    }

    /// Reserves the addresses of a space, or fewer than planned if the driver has too few.
    fn reserve(&self, request: Request, group: Group) -> Result<Region<B>, Shortage> {
        let core = self.core()?;
        let (mut size, least) = core.plan_space(request, group)?;
        let (backend, page, memory) = (core.backend.clone(), core.page, core.settings.memory);
        let name = core.tags.get(request.tag).name.clone();
        let placement = if core.settings.restorable { Placement::Restorable } else { Placement::Anywhere };
        drop(core);
        let mut calls = DriverCalls::default();
        let result = loop {
            calls.other += 1;
            let builder = Region::builder(&backend).memory(memory).tag(&*name).alignment(Bytes(page));
            match builder.reserve(Bytes(size)).at(placement).build() {
                Err(error)
                    if size / 2 >= least
                        && !matches!(error.kind(), ErrorKind::Forked | ErrorKind::NoSuchDevice) =>
                {
                    size = size / 2 / page * page;
                }
                answer => break answer,
            }
        };
        self.core()?.calls.add(calls);
        Ok(result?)
    }

    /// Releases the addresses of all spaces among some that contain no block and that no work uses. Returns true if there was any.
    pub(crate) fn release_spaces(
        &self,
        mut core: CoreGuard<'a, B>,
        which: impl Fn(&Space<B>) -> bool,
    ) -> Result<(CoreGuard<'a, B>, bool)> {
        let go = if core.settings.plain { Vec::new() } else { core.empty_spaces(which) };
        let mut is_any_gone = false;
        for index in &go {
            // Another thread may have taken memory there, while the ones before were unmapped.
            if !core.can_go(*index) {
                continue;
            }
            is_any_gone = true;
            let Core { spaces, tags, .. } = &mut *core;
            let space = &spaces[*index];
            // No request finds it any more.
            let (tag, group) = (space.tag, space.group);
            tags.remove_space(tag, *index);
            let mapped = space.pages.iter().enumerate().filter(|(_, page)| page.is_mapped());
            let mapped = mapped.map(|(page, _)| space.address_of(page)).collect();
            core = self.unmap(core, mapped).inspect_err(|_| {
                if let Ok(mut core) = self.core() {
                    core.tags.add_space(tag, group, *index);
                }
            })?;
            core.vacate(*index);
        }
        Ok((core, is_any_gone))
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{ErrorKind, Operation};
    use gpu_vmm_host::HostConfig;

    #[test]
    fn full_pool_names_the_missing_space() {
        for (config, what) in [
            (HostConfig::new(), "address ranges of its tags"),
            (HostConfig::new().without_virtual_memory(), "plain allocations"),
        ] {
            let pool = Pool::builder(&config.open().unwrap()).build().unwrap();
            let core = pool.owner.inner.core(Operation::QueryPool).unwrap();
            assert_eq!(core.space_index(65_535).unwrap(), 65_535);
            let error = core.space_index(65_536).unwrap_err();
            assert_eq!((error.operation(), error.kind()), (Operation::Allocate, ErrorKind::Unsupported));
            let text = format!("the pool has the maximum of 65536 {what}");
            assert!(error.to_string().contains(&text), "{error}");
        }
    }
}
