//! Tags, and the spaces that their blocks are in.

use crate::core::{Core, Request, Shortage};
use crate::space::Space;
use gpu_vmm_core::{Backend, Bytes, Detail, Error, ErrorKind, Operation, Region};
use gpu_vmm_sync::atomic::{AtomicBool, Ordering};
use gpu_vmm_sync::{Arc, OnceLock};

/// What all views of a tag have in common.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) index: u16,
    pub(crate) name: Box<str>,
    /// True where its memory is elsewhere, or about to be. What holds is said under the core's lock; thread caches look at it
    /// under theirs.
    pub(crate) suspended: AtomicBool,
    /// The number of the space of its large blocks, when there is one.
    pub(crate) large: OnceLock<u16>,
}

/// A tag's own.
#[derive(Debug)]
struct Own {
    tag: Arc<Tag>,
    /// The spaces of small blocks and of all others.
    spaces: [Option<usize>; 2],
}

/// All tags of a pool.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    list: Vec<Own>,
}

impl Tags {
    /// The tag of that name, made where there is none.
    pub(crate) fn named(&mut self, name: &str) -> Result<Arc<Tag>, Error> {
        if let Some(tag) = self.find(name) {
            return Ok(tag);
        }
        let index = u16::try_from(self.list.len()).map_err(|_| {
            Error::new(
                Operation::TagMemory,
                Detail::Unsupported { reason: format!("a pool has {} tags at most", u16::MAX) },
            )
        })?;
        let (suspended, large) = (AtomicBool::new(false), OnceLock::new());
        let tag = Arc::new(Tag { index, name: name.into(), suspended, large });
        self.list.push(Own { tag: Arc::clone(&tag), spaces: [None; 2] });
        Ok(tag)
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<Tag>> {
        self.list.iter().find(|own| &*own.tag.name == name).map(|own| Arc::clone(&own.tag))
    }

    pub(crate) fn get(&self, index: u16) -> &Arc<Tag> {
        &self.list[usize::from(index)].tag
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Tag>> {
        self.list.iter().map(|own| &own.tag)
    }

    /// The spaces of a tag.
    pub(crate) fn spaces(&self, index: u16) -> impl Iterator<Item = usize> + use<> {
        self.list[usize::from(index)].spaces.into_iter().flatten()
    }
}

impl<B: Backend> Core<B> {
    pub(crate) fn check_active(&self, tag: u16) -> Result<(), Shortage> {
        if self.tags.get(tag).suspended.load(Ordering::Acquire) { Err(Shortage::Suspended) } else { Ok(()) }
    }

    /// The space in which a request is served.
    pub(crate) fn space_for(&mut self, request: Request) -> Result<usize, Shortage> {
        let which = usize::from(!request.small);
        let own = &self.tags.list[usize::from(request.tag)];
        if let Some(space) = own.spaces[which] {
            return Ok(space);
        }
        let space = self.spaces.len();
        let index = u16::try_from(space).map_err(|_| {
            Error::new(
                Operation::Allocate,
                Detail::Unsupported {
                    reason: format!("a pool has {} ranges of addresses, two for each tag", u16::MAX),
                },
            )
        })?;
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

    /// Addresses for a space: as many as the settings say, or less where the driver has not so many.
    fn reserve(&mut self, request: Request) -> Result<Region<B>, Shortage> {
        let reserved: u64 = self.spaces.iter().map(|space| space.region.reserved().0).sum();
        let left = self.settings.addresses.0.saturating_sub(reserved);
        let wanted = if request.small { self.settings.reserve_small } else { self.settings.reserve };
        let least = request.size.max(self.page).next_multiple_of(self.page);
        // Half of what is left stays for other tags.
        let mut size = wanted.0.min(left).min((left / 2).max(least)) / self.page * self.page;
        let shortage = Shortage::Addresses { used: reserved, reserved };
        loop {
            if size < least {
                return Err(shortage);
            }
            self.calls.other += 1;
            let name = self.tags.get(request.tag).name.clone();
            let builder = Region::builder(&self.backend).tag(name).alignment(Bytes(self.page));
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
