//! The memory of a request whose place has none at some pages: free frames from other addresses, or new ones from the driver.
#![allow(unsafe_code)] // fills memory that is mapped

use crate::Pool;
use crate::block_memory::{BlockMemory, Origin};
use crate::core::{Core, Request, Shortage};
use crate::error::ExhaustedResource;
use crate::frames::{FrameIndex, PageAddress};
use crate::mapping::Mapping;
use crate::owner::Owner;
use crate::shared::CoreGuard;
use crate::space::{RangeIndex, Spot, rounded};
use crate::stream_order::{CLEAN, FreeAfter, StreamIndex};
use gpu_vmm_core::extend::{event, span};
use gpu_vmm_core::{Address, Backend, Bytes, Error, Operation, Stream};
use std::ops::Range;

/// The frames for a request: claimed ones that existed before, and new ones.
#[derive(Debug, Default)]
struct ChosenFrames {
    frames: Vec<FrameIndex>,
    /// The number of frames that are needed.
    count: usize,
    /// The frames among them that existed before. The others were created for the request.
    old: Range<usize>,
    /// The bytes that all requests needed at one time, with this one.
    needed: u64,
    /// The budget of the pool when the request began.
    budget: Bytes,
    /// The number of streams that had been retired when the request was numbered.
    retired: u64,
    /// True if the driver has refused a new frame, so that free ones must do.
    is_refused: bool,
    /// True if no free frame is left that can serve.
    is_last: bool,
}

/// A taken range whose memory is being mapped. Its pages without memory are marked as changing. If it is dropped before
/// [`end`](Self::end), the range is free again and the memory is as before.
#[derive(Debug)]
struct RangeInProgress<'m, 'a, B: Backend> {
    mapping: &'m Mapping<'a, B>,
    request: Request,
    taken: Option<TakenRange>,
    chosen: ChosenFrames,
}

#[derive(Debug)]
struct TakenRange {
    space: usize,
    range: RangeIndex,
    piece: BlockMemory,
    /// The pages that need frames.
    missing: Vec<usize>,
    /// The pages among them with another frame's memory, which is unmapped first.
    stale: Vec<(PageAddress, FrameIndex)>,
    /// The order of the range if it is given back.
    free_after: FreeAfter,
}

/// The pages of a taken range that are overwritten without the core.
#[derive(Debug)]
struct Overwriting {
    piece: BlockMemory,
    space: usize,
    base: Address,
    page: Bytes,
    pages: Vec<usize>,
    /// The order of the range if it is given back.
    free_after: FreeAfter,
}

impl<'a, B: Backend> Mapping<'a, B> {
    /// Takes a range, and maps memory at its pages that have none.
    pub(crate) fn take(
        &self,
        mut core: CoreGuard<'a, B>,
        request: Request,
    ) -> Result<(CoreGuard<'a, B>, BlockMemory), Shortage> {
        core.poll();
        let Some((space, spot)) = core.find(request) else { return Err(core.no_place(request)) };
        if spot.work == 0 {
            let piece = core.take_at(space, spot, request);
            return Ok((core, piece));
        }
        span!(Allocate, bytes = request.size, tag = &*core.tags.get(request.tag).name);
        let mut range =
            RangeInProgress { mapping: self, request, taken: None, chosen: ChosenFrames::default() };
        // Each of these drops the core before it returns an error, and thus before the range is undone.
        let core = range.begin(core, (space, spot))?;
        let core = range.create(core)?;
        let core = range.map(core)?;
        range.end(core)
    }
}

impl<'a, B: Backend> RangeInProgress<'_, 'a, B> {
    /// Takes the range.
    fn begin(
        &mut self,
        mut core: CoreGuard<'a, B>,
        (space, spot): (usize, Spot),
    ) -> Result<CoreGuard<'a, B>, Shortage> {
        let Request { size, stream, .. } = self.request;
        let order = self.request.order();
        self.chosen.retired = core.streams.retired;
        self.chosen.needed = core.peak_needed.max(core.taken + size);
        self.chosen.budget = core.ledger.budget();
        let Core { spaces, frames, .. } = &mut *core;
        let gap = spaces[space].open_gap(frames, (spot.offset, size), order);
        self.chosen.count = gap.missing.len();
        if let Err(shortage) = core.check_room(self.request, &self.chosen) {
            let Core { spaces, frames, .. } = &mut *core;
            spaces[space].close_gap(frames, &gap);
            return Err(shortage);
        }
        let at = &core.spaces[space];
        let missing: Vec<_> = gap.missing.iter().map(|page| at.address_of(*page)).collect();
        let stale = core.part_from(&missing);
        let Core { spaces, frames, streams, .. } = &mut *core;
        let at = &mut spaces[space];
        let free_after = streams.so_far(order);
        let taken = at.take(frames, spot, size, stream, true);
        gap.missing.iter().for_each(|page| at.begin_change(*page));
        let origin = Origin::Range(space as u16, taken.range);
        let piece = BlockMemory { address: at.base + taken.offset, size, origin };
        self.taken =
            Some(TakenRange { space, range: taken.range, piece, missing: gap.missing, stale, free_after });
        Ok(core)
    }

    /// Claims frames: new ones while the pool holds hardly more than it ever needed, then free ones, then new ones again.
    fn create(&mut self, mut core: CoreGuard<'a, B>) -> Result<CoreGuard<'a, B>, Shortage> {
        loop {
            let count = core.choose(self.request, &mut self.chosen)?;
            if count == 0 {
                return Ok(core);
            }
            if !core.expect(count as u64) {
                // Another kind of memory has taken the budget since.
                if self.chosen.is_last {
                    return Err(Shortage::Memory(ExhaustedResource::Budget(self.chosen.budget)));
                }
                self.chosen.is_refused = true;
                continue;
            }
            let wanted = (count, self.request.tag);
            let (locked, refused) = self.mapping.create(core, wanted, &mut self.chosen.frames)?;
            core = locked;
            match refused {
                Some(error) if !error.is_out_of_memory() => return Err(error.into()),
                Some(error) if self.chosen.is_last => {
                    return Err(Shortage::Memory(ExhaustedResource::Driver(error)));
                }
                Some(_) => self.chosen.is_refused = true,
                None => {}
            }
        }
    }

    /// Maps the frames.
    fn map(&mut self, mut core: CoreGuard<'a, B>) -> Result<CoreGuard<'a, B>, Shortage> {
        let Some(TakenRange { space, missing, stale, .. }) = &self.taken else { return Ok(core) };
        let memory = self.chosen.frames.iter().filter_map(|frame| core.frames.get(*frame).memory.clone());
        let (memory, devices): (Vec<_>, _) = (memory.collect(), core.settings.access.clone());
        let mut lent = self.mapping.lend(&mut core, *space)?;
        drop(core);
        let pages: Vec<_> = stale.iter().map(|(at, _)| at.page as usize).collect();
        let mapped = lent.unmap(&pages).and_then(|()| lent.map(missing, &memory, &devices));
        let mut core = self.mapping.core()?;
        lent.put_back(&mut core);
        mapped?;
        Ok(core)
    }

    /// Notes that all memory is there. Pages with contents of other tags stay marked as changing until [`Pool::take_range`] has
    /// overwritten them.
    fn end(mut self, mut core: CoreGuard<'a, B>) -> Result<(CoreGuard<'a, B>, BlockMemory), Shortage> {
        let Some(TakenRange { space, piece, missing, .. }) = self.taken.take() else {
            return Err(Shortage::Caches);
        };
        let Core { spaces, frames, settings, .. } = &mut *core;
        let at = &mut spaces[space];
        for (page, frame) in missing.iter().zip(&self.chosen.frames) {
            at.note_mapped(frames, *page, *frame);
            if !settings.scrub || frames.is_of(*frame, at.tag) {
                frames.set_tenant(*frame, at.tag);
                at.end_change(*page);
            }
        }
        core.note_taken(self.request);
        event!(
            DEBUG,
            "mapped",
            pages = self.chosen.frames.len(),
            from_elsewhere = self.chosen.old.len(),
            created = self.chosen.frames.len() - self.chosen.old.len()
        );
        self.mapping.inner().wake();
        Ok((core, piece))
    }
}

impl<B: Backend> Drop for RangeInProgress<'_, '_, B> {
    fn drop(&mut self) {
        let Some(TakenRange { space, range, missing, stale, free_after, .. }) = self.taken.take() else {
            return;
        };
        // It fails in a forked child alone, where nothing uses the pool.
        let Ok(mut core) = self.mapping.core() else { return };
        missing.iter().for_each(|page| core.spaces[space].end_change(*page));
        core.free_range(space, range, free_after);
        core.restore(&stale);
        core.give_up(&self.chosen);
        self.mapping.inner().wake();
    }
}

impl<B: Backend> Core<B> {
    /// Returns an error if the budget has no room for the frames of a request, of which free ones may be some.
    fn check_room(
        &self,
        request: Request,
        &ChosenFrames { count, budget, .. }: &ChosenFrames,
    ) -> Result<(), Shortage> {
        let room = (self.room(budget) / self.page) as usize;
        let beyond = count.saturating_sub(room);
        match self.free_frames(beyond, request).len() < beyond {
            true => Err(Shortage::Memory(ExhaustedResource::Budget(budget))),
            false => Ok(()),
        }
    }

    /// Claims free frames for a request, or returns how many new ones to create before it is asked again. Returns zero once all frames
    /// are there.
    fn choose(&mut self, request: Request, chosen: &mut ChosenFrames) -> Result<usize, Shortage> {
        let (room, held) = (self.room(chosen.budget), self.held());
        let missing = chosen.count - chosen.frames.len();
        if !chosen.is_refused {
            // The first entry stands for no stream.
            let slack = self.settings.slack(chosen.needed, self.streams.count() - 1);
            let most = chosen.needed.saturating_add(slack);
            let mut fresh = most.saturating_sub(held).min(room) / self.page;
            if fresh > 0 {
                // What is suspended returns, and comes to what is held then.
                let suspended = self.suspended().0;
                let within = room.saturating_sub(suspended);
                fresh = most.saturating_sub(held + suspended).min(within) / self.page;
            }
            if fresh > 0 {
                return Ok(fresh.min(missing as u64) as usize);
            }
        }
        // The number of the request's stream may serve another stream since.
        let captures = request.captures || self.streams.retired != chosen.retired;
        let free = self.free_frames(missing, Request { captures, ..request });
        if !free.is_empty() {
            chosen.old = chosen.frames.len()..chosen.frames.len() + free.len();
            free.iter().for_each(|frame| self.frames.claim(*frame));
            chosen.frames.extend(free);
        }
        let missing = chosen.count - chosen.frames.len();
        if missing as u64 > room / self.page {
            return Err(Shortage::Memory(ExhaustedResource::Budget(chosen.budget)));
        }
        chosen.is_last = true;
        Ok(missing)
    }

    /// Makes claimed frames free again. New ones that are mapped nowhere return to the driver.
    fn give_up(&mut self, chosen: &ChosenFrames) {
        for (index, frame) in chosen.frames.iter().enumerate() {
            if !chosen.old.contains(&index) && self.frames.get(*frame).mapped.is_empty() {
                self.remove(*frame);
            } else {
                self.frames.release(*frame);
            }
        }
        self.note();
    }

    /// Returns free frames that a request may use.
    fn free_frames(&self, count: usize, request: Request) -> Vec<FrameIndex> {
        let Self { frames, settings, .. } = self;
        if count == 0 {
            return Vec::new();
        }
        frames.spare(count, |frames, frame| {
            // Scrubbing waits for no stream, so another tag's work on the frame must be done.
            let passes = settings.scrub && !frames.is_of(frame, request.tag);
            frames.waiting(frame).serves(if passes { CLEAN } else { request.order() })
        })
    }

    /// Begins to overwrite what other tags have left in the pages of a taken range.
    #[inline]
    fn overwriting(&mut self, piece: BlockMemory, order: StreamIndex) -> Option<Overwriting> {
        let Origin::Range(space, _) = piece.origin else { return None };
        if !self.spaces[usize::from(space)].is_changing() {
            return None;
        }
        let (space, free_after) = (usize::from(space), self.streams.so_far(order));
        let base = self.spaces[space].base;
        let pages = self.spaces[space].changing_in(piece.address - base, piece.size);
        if pages.is_empty() {
            return None;
        }
        self.ongoing.begin();
        Some(Overwriting { piece, space, base: Address(base), page: Bytes(self.page), pages, free_after })
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
    /// Takes a range, and returns the number that its stream has then. `turn` is this thread's turn to map memory, if it has it.
    ///
    /// What other tags have left in its pages is overwritten without the core, since that waits for the device: meanwhile the range is
    /// taken, and no request takes the rest of the pages. The turn ends before.
    pub(crate) fn take_range<'a>(
        &'a self,
        mut core: CoreGuard<'a, B>,
        request: Request,
        stream: Stream<'static>,
        (settled, turn): (bool, &mut Option<Mapping<'a, B>>),
    ) -> Result<(CoreGuard<'a, B>, BlockMemory, StreamIndex), Shortage> {
        let budget = core.ledger.budget();
        let size = rounded(request.size, request.alignment);
        let size = size.ok_or(Shortage::Memory(ExhaustedResource::Budget(budget)))?;
        let request = Request { size, ..request };
        let retired = core.streams.retired;
        let piece = match (core.take(request, settled), turn.as_ref()) {
            (Ok(piece), _) => piece,
            (Err(Shortage::Mapping), Some(mapping)) => {
                let piece;
                (core, piece) = mapping.take(core, request)?;
                piece
            }
            (Err(shortage), _) => return Err(shortage),
        };
        if let Some(work) = core.overwriting(piece, request.order()) {
            drop(core);
            *turn = None;
            core = self.overwrite(work)?;
        }
        if core.streams.retired == retired {
            return Ok((core, piece, request.stream));
        }
        // Streams were forgotten while the core was unlocked.
        match core.streams.index(Operation::Allocate, stream) {
            Ok(index) => {
                if index != request.stream {
                    // Its work under the earlier number may still use the memory, and is no work before a free under this one.
                    core.streams.free(index);
                }
                if let Origin::Range(space, range) = piece.origin {
                    core.spaces[usize::from(space)].set_stream(range, index);
                }
                Ok((core, piece, index))
            }
            Err(error) => {
                core.give(piece, request.stream);
                Err(error.into())
            }
        }
    }

    /// Overwrites pages without the core.
    fn overwrite(&self, work: Overwriting) -> Result<CoreGuard<'_, B>, Shortage> {
        let Owner { inner, backend, .. } = &*self.owner;
        let device = self.owner.memory().device;
        let Overwriting { piece, space, base, page: size, pages, free_after } = work;
        let mut filled = 0;
        let result = pages.iter().try_for_each(|page| {
            // SAFETY: the page is mapped for the device, which may write it, until the mark is removed: it belongs to a taken range,
            // so that its frame is not free, and a suspension waits for the mark. No work uses it: it was free.
            unsafe { backend.fill(device, base + Bytes(*page as u64 * size.0), size, 0) }?;
            filled += 1;
            Ok::<(), Error>(())
        });
        let mut core = inner.core(Operation::Allocate)?;
        core.end_marks(space, &pages, filled);
        inner.wake();
        if let Err(error) = result {
            core.give_after(piece, free_after);
            return Err(error.into());
        }
        if core.lost_in(&piece).is_some() {
            // A call of another thread has lost a page meanwhile: the request takes another place.
            core.give_after(piece, free_after);
            return Err(Shortage::Mapping);
        }
        Ok(core)
    }
}
