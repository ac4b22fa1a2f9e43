//! The source of memory for requests: free frames at other addresses, or the driver.
#![allow(unsafe_code)] // fills memory that is mapped

use crate::Pool;
use crate::core::{Core, Request, Shortage};
use crate::error::OutOf;
use crate::frames::FrameIndex;
use crate::owner::Owner;
use crate::piece::{Origin, Piece};
use crate::shared::CoreGuard;
use crate::space::Spot;
use crate::stream_order::{CLEAN, StreamIndex, Turn};
use gpu_vmm_core::extend::{create_now, event, span};
use gpu_vmm_core::{Address, Backend, Bytes, Error, Operation, Properties};
use std::ops::Range;

/// The frames that were claimed for a request.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) frames: Vec<FrameIndex>,
    /// The frames among them that existed before. The others were created for the request.
    old: Range<usize>,
}

impl<B: Backend> Core<B> {
    /// Maps memory at all pages of a place, and claims it.
    pub(crate) fn supply(&mut self, space: usize, spot: Spot, request: Request) -> Result<(), Shortage> {
        let Request { size, tag, .. } = request;
        span!(Allocate, bytes = size, tag = &*self.tags.get(tag).name);
        let gap = self.spaces[space].open_gap(&mut self.frames, (spot.offset, size), request.order());
        let mut chosen = Chosen::default();
        let result = self.choose(gap.missing.len(), request, &mut chosen).and_then(|()| {
            let Self { spaces, frames, settings, calls, .. } = self;
            Ok(spaces[space].fill_gap(frames, &gap, &chosen.frames, &settings.access, calls)?)
        });
        if result.is_err() {
            self.give_up(&chosen);
            self.spaces[space].close_gap(&mut self.frames, &gap);
        } else {
            self.mark_contents(space, &gap.missing, &chosen.frames, tag);
            event!(
                DEBUG,
                "mapped",
                pages = chosen.frames.len(),
                from_elsewhere = chosen.old.len(),
                created = chosen.frames.len() - chosen.old.len()
            );
        }
        self.note();
        result
    }

    /// Claims `count` frames: new ones while the pool holds hardly more than it ever needed, then free ones, then new ones again.
    fn choose(&mut self, count: usize, request: Request, chosen: &mut Chosen) -> Result<(), Shortage> {
        let Request { size, tag, .. } = request;
        let stream = request.order();
        let budget = self.settings.budget;
        let room = (budget.0.saturating_sub(self.held()) / self.page) as usize;
        let beyond = count.saturating_sub(room);
        if self.free_frames(beyond, stream, tag).len() < beyond {
            return Err(Shortage::Memory(OutOf::Budget(budget)));
        }
        // This request counts as needed already.
        let needed = self.peak_needed.max(self.taken + size);
        // The first entry stands for no stream.
        let slack = needed.saturating_add(self.settings.slack(needed, self.streams.count() - 1));
        while chosen.frames.len() < count && self.held() + self.page <= slack.min(budget.0) {
            match self.create(tag, chosen) {
                Ok(()) => {}
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => return Err(error.into()),
            }
        }
        let free = self.free_frames(count - chosen.frames.len(), stream, tag);
        chosen.old = chosen.frames.len()..chosen.frames.len() + free.len();
        free.iter().for_each(|frame| self.frames.claim(*frame));
        chosen.frames.extend(free);
        while chosen.frames.len() < count {
            if self.held() + self.page > budget.0 {
                return Err(Shortage::Memory(OutOf::Budget(budget)));
            }
            self.create(tag, chosen).map_err(|error| match error.is_out_of_memory() {
                true => Shortage::Memory(OutOf::Driver(error)),
                false => error.into(),
            })?;
        }
        Ok(())
    }

    /// Restores the state before: free frames are free again, and new ones return to the driver.
    pub(crate) fn give_up(&mut self, chosen: &Chosen) {
        for (index, frame) in chosen.frames.iter().enumerate() {
            if !chosen.old.contains(&index) && self.frames.get(*frame).mapped.is_empty() {
                self.calls.other += 1;
                self.frames.remove(*frame);
            } else {
                self.frames.release(*frame);
            }
        }
    }

    /// Returns free frames that a stream may use.
    fn free_frames(&self, count: usize, stream: StreamIndex, tag: u16) -> Vec<FrameIndex> {
        let Self { frames, settings, .. } = self;
        if count == 0 {
            return Vec::new();
        }
        frames.spare(count, |frames, frame| {
            // Scrubbing waits for no stream, so another tag's work on the frame must be done.
            let passes = settings.scrub && !frames.is_of(frame, tag);
            frames.waiting(frame).serves(if passes { CLEAN } else { stream })
        })
    }

    pub(crate) fn create(&mut self, tag: u16, chosen: &mut Chosen) -> Result<(), Error> {
        self.calls.create += 1;
        let plain = Properties::on(self.settings.device);
        // Under the core's lock no device is waited for.
        let create = |properties| create_now(&self.backend, Bytes(self.page), properties);
        let memory = match create(if self.settings.shareable { plain.shareable() } else { plain }) {
            Err(error) if self.settings.shareable && !error.is_out_of_memory() => {
                self.calls.create += 1;
                let memory = create(plain).map_err(|_| error)?;
                self.settings.shareable = false;
                memory
            }
            answer => answer?,
        };
        chosen.frames.push(self.frames.insert(Some(memory), tag));
        Ok(())
    }

    /// Marks pages with contents of other tags as changing, until [`Pool::take_range`] has overwritten them.
    fn mark_contents(&mut self, space: usize, pages: &[usize], chosen: &[FrameIndex], tag: u16) {
        for (page, frame) in pages.iter().zip(chosen) {
            if self.settings.scrub && !self.frames.is_of(*frame, tag) {
                self.spaces[space].begin_change(*page);
            } else {
                self.frames.set_tenant(*frame, tag);
            }
        }
    }

    /// Returns true if memory of a tag changes without the core.
    pub(crate) fn is_changing(&self, tag: u16) -> bool {
        self.tags.spaces(tag).any(|space| self.spaces[space].is_changing())
    }

    /// Removes the marks of pages, of which the first `filled` ones have no contents of other tags any more.
    fn end_marks(&mut self, space: usize, pages: &[usize], filled: usize) {
        let Self { spaces, frames, calls, ongoing, .. } = self;
        let space = &mut spaces[space];
        calls.other += pages.len() as u64;
        ongoing.end();
        for (index, page) in pages.iter().enumerate() {
            space.end_change(*page);
            let at = space.page_at(*page);
            // A call of another thread may have lost the page. Otherwise the frame still has the contents of the earlier tag.
            if index < filled && at.is_mapped() {
                frames.set_tenant(at.frame, space.tag);
            }
        }
    }
}

impl<B: Backend> Pool<B> {
    /// Takes a range. What other tags have left in its pages is overwritten without the core, since that waits for the device: meanwhile
    /// the range is taken, and no request takes the rest of the pages.
    pub(crate) fn take_range<'a>(
        &'a self,
        mut core: CoreGuard<'a, B>,
        request: Request,
        settled: bool,
    ) -> Result<(CoreGuard<'a, B>, Piece), Shortage> {
        let piece = core.take(request, settled)?;
        let Origin::Range(space, _) = piece.origin else { return Ok((core, piece)) };
        let (index, space) = (usize::from(space), &core.spaces[usize::from(space)]);
        let pages = space.changing_in(piece.address - space.base, piece.size);
        if pages.is_empty() {
            return Ok((core, piece));
        }
        let (base, size) = (Address(space.base), Bytes(core.page));
        core.ongoing.begin();
        drop(core);
        let Owner { inner, backend, device, .. } = &*self.owner;
        let mut filled = 0;
        let result = pages.iter().try_for_each(|page| {
            // SAFETY: the page is mapped for the device, which may write it, until the mark is removed: it belongs to a taken range,
            // so that its frame is not free, and a suspension waits for the mark. No work uses it: it was free.
            unsafe { backend.fill(*device, base + Bytes(*page as u64 * size.0), size, 0) }?;
            filled += 1;
            Ok::<(), Error>(())
        });
        let mut core = inner.core(Operation::Allocate)?;
        core.end_marks(index, &pages, filled);
        inner.wake();
        match result {
            Ok(()) => Ok((core, piece)),
            Err(error) => {
                core.give_after(piece, Turn::FREE);
                Err(error.into())
            }
        }
    }
}
