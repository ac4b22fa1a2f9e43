//! The steps that change a region.

use super::free::Checked;
use super::model::{ExpectedResult, Placed, Range};
use super::run::{Run, Slot, Watched};
use super::step::{InGranule, Size, Step};
use crate::subject::RW;
use gpu_vmm_core::{Access, Bytes, Detail, Error, Growth, GrowthKind, Region, WaitFor};
use gpu_vmm_testkit::TestKit;

impl<B: TestKit> Run<'_, B> {
    /// Does a step on region `number`, in the library and in the model.
    pub(super) fn change(&mut self, number: usize, slot: &mut Slot<B>, step: &Step) -> Checked {
        let Slot { region, range } = slot;
        match *step {
            Step::Unmap { part, .. } => {
                let (offset, length) = self.model.resolve(range, part);
                let right = self.whole(range, offset, length);
                let call =
                    format!("region{number}.unmap(Bytes({offset}), Bytes({length}), WaitFor::all_devices())");
                let came = region.unmap(Bytes(offset), Bytes(length), WaitFor::all_devices());
                if self.answered(&call, right, came)?.is_some() {
                    range.mapped.retain(|start, _| *start < offset || offset + length <= *start);
                }
            }
            Step::SetAccess { part, device, access, .. } => {
                let (offset, length) = self.model.resolve(range, part);
                let device = self.device(device);
                let right = self.whole(range, offset, length);
                let id = self.devices[device];
                let call = format!(
                    "region{number}.set_access(Bytes({offset}), Bytes({length}), DeviceId({}), Access::{access:?})",
                    id.0
                );
                let came = region.set_access(Bytes(offset), Bytes(length), id, access);
                let refused = matches!(came.as_ref().map_err(Error::detail), Err(Detail::Unsupported { .. }));
                let right = match right {
                    // HIP 7.0 to 7.2 cannot set access behind a hole if the mappings before it have other sizes.
                    Ok(()) if refused && self.subject.has_quirk("access-sums") => Err("Unsupported"),
                    right => right,
                };
                if self.answered(&call, right, came)?.is_some() {
                    for (_, placed) in range.mapped.range_mut(offset..offset + length) {
                        placed.access[device] = access;
                    }
                }
            }
            Step::Grow { size, device, may_move, .. } => {
                // A region that may move grows with memory of its own device, the first one.
                let device = self.device(if may_move { 0 } else { device });
                let size = self.size(range, size);
                self.grow(number, region, range, size, device, may_move)?;
            }
            Step::Shrink { size, .. } => {
                let size = self.size(range, size);
                let right = if size > self.model.end(range) { Err("OutOfRange") } else { Ok(()) };
                let call = format!("region{number}.shrink_to(Bytes({size}), WaitFor::all_devices())");
                let came = region.shrink_to(Bytes(size), WaitFor::all_devices());
                if self.answered(&call, right, came)?.is_some() {
                    range.mapped.retain(|start, _| *start < size);
                }
            }
            Step::Pattern { part, device, seed, .. } => {
                let ((offset, length), seed) = (self.model.resolve(range, part), u64::from(seed));
                let device = self.device(device);
                let aligned = if offset.is_multiple_of(8) { Ok(()) } else { Err("Unaligned") };
                let open = self.model.open(range, offset, length, Some(device), RW);
                let right = self.model.inside(range, offset, length).and(aligned).and(open);
                let id = self.devices[device];
                let call = format!(
                    "region{number}.write_pattern(DeviceId({}), Bytes({offset}), Bytes({length}), {seed})",
                    id.0
                );
                let came = region.write_pattern(id, Bytes(offset), Bytes(length), seed);
                if self.answered(&call, right, came)?.is_some() {
                    self.model.write_pattern(range, offset, length, seed);
                }
            }
            Step::Write { part, place, length, value, .. } => {
                let inside = match place {
                    InGranule::Begin => 0,
                    InGranule::Inside => 101,
                    InGranule::End => self.model.granule - 20,
                };
                let offset = self.model.resolve(range, part).0 + inside;
                let bytes: Vec<u8> = (0..length).map(|index| value.wrapping_add(index as u8)).collect();
                let right = match length {
                    0 => Ok(()),
                    length => self.model.open(range, offset, length, None, RW),
                };
                let came = region.write(Bytes(offset), &bytes);
                let call = format!("region{number}.write(Bytes({offset}), &{bytes:?})");
                if self.answered(&call, right, came)?.is_some() {
                    self.model.write(range, offset, &bytes);
                }
            }
            Step::Fill { part, value, .. } => {
                let (offset, length) = self.model.resolve(range, part);
                // The model tracks fills by whole granules.
                let offset = offset - offset % self.model.granule;
                let right = match length {
                    0 => Ok(()),
                    length => self.model.open(range, offset, length, None, RW),
                };
                let came = region.fill(Bytes(offset), Bytes(length), value);
                let call = format!("region{number}.fill(Bytes({offset}), Bytes({length}), {value})");
                if self.answered(&call, right, came)?.is_some() {
                    self.model.fill(range, offset, length, value);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn size(&self, range: &Range, size: Size) -> u64 {
        match size {
            Size::Any { granules, skew } => self.granules(granules) + skew,
            Size::More(granules) => self.model.end(range) + self.granules(granules),
        }
    }

    fn whole(&self, range: &Range, offset: u64, length: u64) -> ExpectedResult {
        self.model.part(range, offset, length)?;
        self.model.whole(range, offset, length)
    }

    fn grow(
        &mut self,
        number: usize,
        region: &mut Region<Watched<B>>,
        range: &mut Range,
        size: u64,
        device: usize,
        may_move: bool,
    ) -> Checked {
        let (id, end, reserved, before) =
            (self.devices[device], self.model.end(range), range.reserved(), region.address());
        let (call, came) = if may_move {
            let came = region.grow_or_move(Bytes(size), WaitFor::all_devices());
            (format!("grow_or_move(Bytes({size}), WaitFor::all_devices())"), came)
        } else {
            (format!("grow_to_on(DeviceId({}), Bytes({size}))", id.0), region.grow_to_on(id, Bytes(size)))
        };
        let taken = matches!(came.as_ref().map_err(Error::detail), Err(Detail::OutgrewReservation { .. }));
        let right = match size {
            0 => Err("ZeroSize"),
            // The model does not know whether the addresses behind the region are free.
            size if size > reserved && !may_move && taken => Err("OutgrewReservation"),
            _ => Ok(()),
        };
        let Some(growth) = self.answered(&format!("region{number}.{call}"), right, came)? else {
            return Ok(());
        };
        let size = size.next_multiple_of(self.model.granule);
        let how = match growth.how {
            GrowthKind::Remapped => may_move && size > reserved && region.address() != before,
            GrowthKind::Extended => size > reserved && region.address() == before,
            GrowthKind::Within => size <= reserved && region.address() == before,
            GrowthKind::Copied => false,
        };
        let added = size.saturating_sub(end);
        let right = Growth {
            how: growth.how,
            address: region.address(),
            end: Bytes(end.max(size)),
            added: Bytes(added),
        };
        if !how || growth != right {
            return Err(format!(
                "growth from {end} of {reserved} to {size} must be {right:?}, and is {growth:?}"
            ));
        }
        let reservations: Vec<u64> = region.reservations().map(|range| range.size.0).collect();
        let grown = match growth.how {
            GrowthKind::Within => reservations == range.reservations,
            GrowthKind::Extended => reservations.starts_with(&range.reservations),
            GrowthKind::Remapped => reservations.len() == 1,
            GrowthKind::Copied => false,
        };
        let contiguous =
            region.reservations().zip(region.reservations().skip(1)).all(|(a, b)| a.end() == b.base);
        if !grown || !contiguous || reservations.iter().sum::<u64>() < size {
            let had = &range.reservations;
            return Err(format!("the reservations were {had:?}, and are {reservations:?}"));
        }
        range.reservations = reservations;
        let mut access = [Access::None; 2];
        access[device] = RW;
        if range.for_peer {
            access[self.device(1)] = RW;
        }
        let mut from = end;
        for border in range.borders().chain([size]).map(|border| border.min(size)).collect::<Vec<_>>() {
            if from < border {
                let piece = self.model.create(device, border - from);
                range.mapped.insert(from, Placed { piece, access });
                from = border;
            }
        }
        Ok(())
    }
}
