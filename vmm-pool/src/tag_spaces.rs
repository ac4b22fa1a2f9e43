//! The address ranges of each tag.

use crate::core::{Core, Request, Shortage};
use crate::piece::{Origin, Piece};
use crate::space::Space;
use crate::tags::{LIMIT, Tag};
use gpu_vmm_core::{Backend, Bytes, Detail, Error, ErrorKind, Operation, Region};
use gpu_vmm_premap::sync::Arc;

impl<B: Backend> Core<B> {
    pub(crate) fn check_active(&self, tag: u16) -> Result<(), Shortage> {
        if self.tags.get(tag).is_suspended() { Err(Shortage::Suspended) } else { Ok(()) }
    }

    /// Returns the tag of a piece that is not free.
    pub(crate) fn tag_of(&self, piece: &Piece) -> &Arc<Tag> {
        self.tags.get(self.space_of(piece).tag)
    }

    pub(crate) fn space_of(&self, piece: &Piece) -> &Space<B> {
        let space = match piece.origin {
            Origin::Slot(slab, _) => self.slabs.get(slab).space,
            Origin::Range(space, _) => space,
        };
        &self.spaces[usize::from(space)]
    }

    /// Returns the space that serves a request, and reserves it if there is none.
    pub(crate) fn space_for(&mut self, request: Request) -> Result<usize, Shortage> {
        let which = usize::from(!request.small);
        let own = &self.tags.list[usize::from(request.tag)];
        if let Some(space) = own.spaces[which] {
            return Ok(space);
        }
        let space = self.spaces.len();
        let index = self.space_index(space)?;
        let region = self.reserve(request)?;
        let (page, scrub) = (self.page, self.settings.scrub);
        self.spaces.push(Space::new(index, request.tag, region, page, scrub, request.small));
        let own = &mut self.tags.list[usize::from(request.tag)];
        own.spaces[which] = Some(space);
        if !request.small {
            own.tag.large.get_or_init(|| index);
        }
        Ok(space)
    }

    /// Returns the number of a new space as blocks store it.
    pub(crate) fn space_index(&self, space: usize) -> Result<u16, Error> {
        u16::try_from(space).map_err(|_| {
            let what = match self.settings.plain {
                true => "plain allocations",
                false => "address ranges, up to two for each tag",
            };
            let reason = format!("the pool has the maximum of {LIMIT} {what}");
            Error::new(Operation::Allocate, Detail::Unsupported { reason })
        })
    }

    /// Reserves the addresses of a space: as many as the settings say, or fewer if the driver has too few.
    fn reserve(&mut self, request: Request) -> Result<Region<B>, Shortage> {
        let reserved: u64 = self.spaces.iter().map(|space| space.reserved).sum();
        let left = self.settings.addresses.0.saturating_sub(reserved);
        let wanted = if request.small { self.settings.reserve_small } else { self.settings.reserve };
        let least = request.size.max(self.page).next_multiple_of(self.page);
        // Half of the remaining addresses stays for other tags.
        let mut size = wanted.0.min(left).min((left / 2).max(least)) / self.page * self.page;
        let shortage = Shortage::Addresses { used: reserved, reserved };
        loop {
            if size < least {
                return Err(shortage);
            }
            self.calls.other += 1;
            let name = self.tags.get(request.tag).name.clone();
            let builder = Region::builder(&self.backend).on(self.settings.device).tag(name);
            let builder = builder.alignment(Bytes(self.page));
            match builder.reserve(Bytes(size)).build() {
                Ok(region) => return Ok(region),
                Err(error)
                    if size / 2 < least
                        || matches!(error.kind(), ErrorKind::Forked | ErrorKind::NoSuchDevice) =>
                {
                    return Err(error.into());
                }
                Err(_) => size = size / 2 / self.page * self.page,
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Pool;
    use gpu_vmm_core::{ErrorKind, Operation};
    use gpu_vmm_host::HostConfig;

    #[test]
    fn a_pool_that_has_all_spaces_says_of_what() {
        for (config, what) in [
            (HostConfig::new(), "address ranges, up to two for each tag"),
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
