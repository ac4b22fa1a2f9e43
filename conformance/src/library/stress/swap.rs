//! The step that changes two regions: they exchange the memory behind a part of each.

use super::free::Checked;
use super::model::{Model, Placed, Range};
use super::run::{Run, Slot};
use super::step::{Part, REGIONS};
use gpu_vmm_core::{Bytes, Detail, Error, WaitFor};
use gpu_vmm_testkit::TestKit;

impl<B: TestKit> Run<'_, B> {
    /// Swaps a part of one region with a part of another region of the same length, in the library and in the model.
    pub(super) fn swap(&mut self, number: usize, other: usize, part: Part, other_part: Part) -> Checked {
        let other = if other == number { (other + 1) % REGIONS } else { other };
        let mut slots = [self.take_region(number)?, self.take_region(other)?];
        let checked = self.swap_slots([number, other], &mut slots, part, other_part);
        let [one, two] = slots;
        (self.regions[number], self.regions[other]) = (Some(one), Some(two));
        checked
    }

    fn swap_slots(
        &mut self,
        numbers: [usize; 2],
        slots: &mut [Slot<B>; 2],
        part: Part,
        other_part: Part,
    ) -> Checked {
        let [one, two] = slots;
        let (offset, length) = self.model.resolve(&one.range, part);
        let (other_offset, _) = self.model.resolve(&two.range, other_part);
        let right = self.model.swap((&one.range, offset), (&two.range, other_offset), length);
        let call = format!(
            "region{}.swap(Bytes({offset}), &mut region{}, Bytes({other_offset}), Bytes({length}), \
             WaitFor::all_devices())",
            numbers[0], numbers[1]
        );
        let done = WaitFor::all_devices();
        let came = one.region.swap(Bytes(offset), &mut two.region, Bytes(other_offset), Bytes(length), done);
        let refused = matches!(came.as_ref().map_err(Error::detail), Err(Detail::Unsupported { .. }));
        let right = match right {
            // As in setting access.
            Ok(_) if refused && self.subject.has_quirk("access-sums") => Err("Unsupported"),
            right => right,
        };
        if self.answered(&call, right.as_ref().map(drop).map_err(|kind| *kind), came)?.is_some()
            && let Ok([ours, theirs]) = right
        {
            for (range, from, coming) in
                [(&mut one.range, offset, ours), (&mut two.range, other_offset, theirs)]
            {
                range.mapped.retain(|start, _| *start < from || from + length <= *start);
                range.mapped.extend(coming);
            }
        }
        Ok(())
    }
}

impl Model {
    /// The mappings that a swap brings to each region.
    fn swap(
        &self,
        one: (&Range, u64),
        two: (&Range, u64),
        length: u64,
    ) -> Result<[Vec<(u64, Placed)>; 2], &'static str> {
        for check in [Self::part, Self::whole] {
            check(self, one.0, one.1, length)?;
            check(self, two.0, two.1, length)?;
        }
        Ok([self.coming(one, two, length)?, self.coming(two, one, length)?])
    }

    fn coming(
        &self,
        to: (&Range, u64),
        from: (&Range, u64),
        length: u64,
    ) -> Result<Vec<(u64, Placed)>, &'static str> {
        let all = self.touching(from.0, from.1, length).map(|(start, placed)| {
            let offset = to.1 + (start - from.1);
            let size = self.size(placed.piece);
            Self::in_one(to.0, offset, size)?;
            let mut access = self.touching(to.0, offset, size).map(|(_, there)| there.access);
            let first = access.next().expect("it is mapped");
            let same = access.all(|other| other == first);
            if same {
                Ok((offset, Placed { piece: placed.piece, access: first }))
            } else {
                Err("AccessDiffers")
            }
        });
        all.collect()
    }
}
