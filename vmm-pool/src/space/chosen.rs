//! Places at offsets that the caller chooses.

use super::{Group, PlaceRequest, RangeInfo, RangeState, Space, Spot};
use crate::frames::Frames;
use crate::space::ranges::RangeIndex;
use gpu_vmm_core::{AddressRange, Backend};

impl<B: Backend> Space<B> {
    /// Returns true if all of these addresses belong to the space.
    pub(crate) fn has(&self, address: u64, size: u64) -> bool {
        let offset = address.checked_sub(self.base);
        offset.and_then(|offset| offset.checked_add(size)).is_some_and(|end| end <= self.reserved)
    }

    /// Returns true if some of these addresses belong to the space.
    pub(crate) fn overlaps(&self, range: AddressRange) -> bool {
        self.reserved > 0
            && self.base < range.base.0 + range.size.0
            && range.base.0 < self.base + self.reserved
    }

    /// Returns true if the addresses were reserved for chosen blocks of a tag.
    pub(crate) fn is_of_chosen(&self, tag: u16) -> bool {
        self.tag == tag && self.group == Group::CHOSEN
    }

    /// Returns the place at an offset, if it is free for a stream and its memory can be mapped now.
    pub(crate) fn spot_at_offset(
        &self,
        frames: &mut Frames<B>,
        offset: u64,
        wanted: PlaceRequest,
    ) -> Option<Spot> {
        let range = self.range_at(offset)?;
        let end = offset + wanted.size;
        if self.ranges.first_in_the_way(range, end, wanted.stream).is_some() {
            return None;
        }
        let work = self.work(frames, offset, wanted).ok()?;
        Some(Spot { range, offset, work, left: 0 })
    }

    /// Returns the first range that keeps a request from the place at an offset.
    pub(crate) fn first_in_the_way(&self, offset: u64, wanted: PlaceRequest) -> Option<RangeInfo> {
        let first = self.range_at(offset)?;
        let range = self.ranges.first_in_the_way(first, offset + wanted.size, wanted.stream)?;
        let at = self.ranges.get(range);
        let taken = at.state == RangeState::Taken;
        Some(RangeInfo { range, offset: at.offset, size: at.size, taken, stream: at.stream() })
    }

    /// Returns the range that contains an offset.
    fn range_at(&self, offset: u64) -> Option<RangeIndex> {
        let page = self.pages.get((offset / self.page) as usize);
        // Nothing was ever taken behind the last page that has an entry.
        let near = page.map_or_else(|| self.ranges.rest(), |page| page.near);
        self.ranges.range_at(offset, near)
    }
}
