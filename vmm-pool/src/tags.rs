//! The tags of a pool.

use crate::space::Group;
use gpu_vmm_core::{Detail, Error, Operation};
use gpu_vmm_premap::sync::atomic::{AtomicU8, Ordering};
use gpu_vmm_premap::sync::{Arc, RwLock};

/// The identity of a tag of a pool: another tag that has its name later has another one. [`Pool::tag_id`](crate::Pool::tag_id) returns it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagId(u64);

/// A tag, shared by all of its pool handles.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) index: u16,
    pub(crate) id: TagId,
    pub(crate) name: Box<str>,
    /// A [`TagState`], and [`HAS_LOST`] or not. Changed under the core's lock; requests read it under the lock of their thread cache.
    state: AtomicU8,
    /// Locked for reading by copies of its blocks' bytes, and for writing by a suspension or a move that waits for these copies.
    pub(crate) copies: RwLock<()>,
}

/// What happens to the memory of a tag.
///
/// A thread that suspends, resumes or moves the tag sets the state under the core, copies the contents without the core, and sets the
/// next state under the core. Meanwhile other threads that suspend, resume or move the tag wait, and blocks can be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TagState {
    /// Requests are served.
    Active,
    /// A thread waits for the work on the memory, or copies the contents and unmaps the memory.
    Suspending,
    /// All or a part of the memory is suspended, or a device that was allowed meanwhile has no access to it yet.
    Suspended,
    /// A thread maps memory again and copies the contents back.
    Resuming,
    /// A thread moves the memory to another device. Requests and copies wait.
    Moving,
}

impl TagState {
    const ALL: [Self; 5] = [Self::Active, Self::Suspending, Self::Suspended, Self::Resuming, Self::Moving];

    /// Returns true if no thread suspends, resumes or moves the tag.
    pub(crate) fn is_settled(self) -> bool {
        matches!(self, Self::Active | Self::Suspended)
    }
}

/// Pages with blocks are out of use. The blocks may be freed into thread caches, from which no request is served any more.
const HAS_LOST: u8 = 8;

impl Tag {
    pub(crate) fn state(&self) -> TagState {
        TagState::ALL[usize::from(self.state.load(Ordering::Acquire) & !HAS_LOST)]
    }

    /// Sets the state. The caller holds the core.
    pub(crate) fn set_state(&self, state: TagState) {
        let lost = self.state.load(Ordering::Relaxed) & HAS_LOST;
        self.state.store(state as u8 | lost, Ordering::Release);
    }

    /// Returns true if its memory is suspended, or if a thread suspends or resumes it.
    pub(crate) fn is_suspended(&self) -> bool {
        !matches!(self.state(), TagState::Active | TagState::Moving)
    }

    /// Notes that pages with blocks are out of use. The caller holds the core.
    pub(crate) fn lose_pages(&self) {
        self.state.fetch_or(HAS_LOST, Ordering::AcqRel);
    }

    /// Returns true if blocks that are kept outside the core may serve requests. The caller holds the lock of the place: a suspension
    /// sets the state first and empties the place then.
    #[inline]
    pub(crate) fn uses_caches(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 0
    }
}

/// A tag with its spaces.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) tag: Arc<Tag>,
    /// False if the tag was forgotten or has ended.
    is_named: bool,
    /// True if the tag has ended, and its number can serve another.
    has_ended: bool,
    /// Its spaces, in the order of their groups.
    pub(crate) spaces: Vec<(Group, Vec<usize>)>,
}

/// The number of tags and of spaces that blocks can name.
pub(crate) const LIMIT: u32 = 1 << u16::BITS;

/// All tags of a pool.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    pub(crate) list: Vec<Own>,
    /// The numbers of tags that have ended.
    vacant: Vec<u16>,
    /// The number of tags that there were.
    made: u64,
}

impl Tags {
    /// Returns the tag with this name, and creates it if there is none.
    pub(crate) fn named(&mut self, name: &str) -> Result<Arc<Tag>, Error> {
        if let Some(tag) = self.find(name) {
            return Ok(tag);
        }
        let too_many = |_| {
            let reason = format!("a pool can have at most {LIMIT} tags at a time");
            Error::new(Operation::TagMemory, Detail::Unsupported { reason })
        };
        let next = || u16::try_from(self.list.len()).map_err(too_many);
        let index = self.vacant.last().map_or_else(next, |index| Ok(*index))?;
        let state = AtomicU8::new(0);
        self.made += 1;
        let id = TagId(self.made);
        let tag = Arc::new(Tag { index, id, name: name.into(), state, copies: RwLock::new(()) });
        let own = Own { tag: Arc::clone(&tag), is_named: true, has_ended: false, spaces: Vec::new() };
        match self.vacant.pop() {
            Some(index) => self.list[usize::from(index)] = own,
            None => self.list.push(own),
        }
        Ok(tag)
    }

    /// Forgets the name of a tag. The tag ends with its last handle and its last block.
    pub(crate) fn forget(&mut self, tag: &Tag) {
        self.list[usize::from(tag.index)].is_named = false;
    }

    /// Returns true if a tag can be found by its name.
    pub(crate) fn is_named(&self, tag: &Tag) -> bool {
        self.list[usize::from(tag.index)].is_named
    }

    /// Returns the tags that no handle refers to.
    pub(crate) fn unused(&self) -> Vec<u16> {
        let is_unused = |own: &&Own| !own.has_ended && Arc::strong_count(&own.tag) == 1;
        let unused = self.list.iter().filter(is_unused).map(|own| own.tag.index);
        // The first one is for blocks without a tag.
        unused.filter(|index| *index > 0).collect()
    }

    /// Ends a tag that has no handle and no space: its number serves another tag.
    pub(crate) fn end(&mut self, index: u16) {
        let own = &mut self.list[usize::from(index)];
        (own.is_named, own.has_ended) = (false, true);
        self.vacant.push(index);
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<Tag>> {
        self.list.iter().find(|own| own.is_named && &*own.tag.name == name).map(|own| Arc::clone(&own.tag))
    }

    /// Returns the tag with this identity, if it can be found by its name.
    pub(crate) fn with_id(&self, id: TagId) -> Option<Arc<Tag>> {
        self.list.iter().find(|own| own.is_named && own.tag.id == id).map(|own| Arc::clone(&own.tag))
    }

    pub(crate) fn get(&self, index: u16) -> &Arc<Tag> {
        &self.list[usize::from(index)].tag
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Tag>> {
        self.list.iter().filter(|own| own.is_named).map(|own| &own.tag)
    }

    /// Returns the spaces of a tag.
    pub(crate) fn spaces(&self, index: u16) -> impl Iterator<Item = usize> + use<> {
        let all = self.list[usize::from(index)].spaces.iter();
        all.flat_map(|(_, spaces)| spaces).copied().collect::<Vec<_>>().into_iter()
    }

    /// Returns the spaces of a tag that may serve blocks of a group: the spaces for all sizes, and the spaces of the group.
    #[inline]
    pub(crate) fn spaces_for(&self, index: u16, group: Group) -> (&[usize], &[usize]) {
        let mixed = if group == Group::SMALL { &[] } else { self.spaces_of(index, Group::MIXED) };
        (mixed, self.spaces_of(index, group))
    }

    /// Returns the spaces of a tag for blocks of a group.
    #[inline]
    pub(crate) fn spaces_of(&self, index: u16, group: Group) -> &[usize] {
        let own = &self.list[usize::from(index)].spaces;
        own.iter().find(|(of, _)| *of == group).map_or(&[], |(_, spaces)| spaces)
    }

    /// Removes a space from its tag.
    pub(crate) fn remove_space(&mut self, index: u16, space: usize) {
        let own = &mut self.list[usize::from(index)].spaces;
        own.iter_mut().for_each(|(_, spaces)| spaces.retain(|one| *one != space));
        own.retain(|(_, spaces)| !spaces.is_empty());
    }

    /// Adds a space to a tag.
    pub(crate) fn add_space(&mut self, index: u16, group: Group, space: usize) {
        let own = &mut self.list[usize::from(index)].spaces;
        match own.binary_search_by_key(&group, |(of, _)| *of) {
            Ok(place) => own[place].1.push(space),
            Err(place) => own.insert(place, (group, vec![space])),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_number_serves_one_tag() {
        let mut tags = Tags::default();
        let first = tags.named("first").unwrap();
        assert!(Arc::ptr_eq(&first, &tags.named("first").unwrap()));
        assert_eq!(tags.named("second").unwrap().index, 1);
        // As if there were one tag for each of the other numbers but the last.
        while tags.list.len() < usize::from(u16::MAX) {
            tags.list.push(Own {
                tag: Arc::clone(&first),
                is_named: false,
                has_ended: false,
                spaces: Vec::new(),
            });
        }
        assert_eq!(tags.named("last").unwrap().index, u16::MAX);
        let error = tags.named("more").unwrap_err();
        assert_eq!(error.operation(), Operation::TagMemory);
        assert!(error.to_string().contains("a pool can have at most 65536 tags at a time"), "{error}");
        assert_eq!(tags.named("second").unwrap().index, 1, "a known tag is refused");
        // `second` and `last` have no handle; the others have the handle of `first`.
        assert_eq!(tags.unused(), [1, u16::MAX]);
        tags.end(1);
        assert_eq!(tags.unused(), [u16::MAX]);
        assert_eq!(tags.named("more").unwrap().index, 1);
        assert!(tags.find("second").is_none());
    }
}
