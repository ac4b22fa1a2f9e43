//! Checks beyond the results of calls: what regions report, what the driver reports, and the bytes.

use super::free::Checked;
use super::run::{Run, Slot};
use crate::library::at::agrees;
use gpu_vmm_core::{Access, Bytes, Error};
use gpu_vmm_testkit::TestKit;

impl<B: TestKit> Run<'_, B> {
    /// Compares what the regions report with the model.
    pub(super) fn check_books(&self) -> Checked {
        for (number, slot) in self.regions.iter().enumerate() {
            let Some(Slot { region, range }) = slot else { continue };
            agrees(region);
            let right: Vec<_> = range
                .mapped
                .iter()
                .map(|(start, placed)| (*start, self.model.size(placed.piece), self.seen(placed.access)))
                .collect();
            let books = region.mappings().map(|mapping| {
                let access = self.devices.map(|device| region.access(mapping.offset, device));
                (mapping.offset.0, mapping.length.0, access)
            });
            let books: Vec<_> = books.collect();
            if books != right {
                return Err(format!("region{number} must have {right:?} mapped, and has {books:?}"));
            }
            let mapped: u64 = right.iter().map(|(_, length, _)| length).sum();
            let sums = (region.end().0, region.mapped().0, region.reserved().0);
            if sums != (self.model.end(range), mapped, range.reserved()) {
                return Err(format!("region{number}'s end, mapped and reserved bytes are {sums:?}"));
            }
        }
        Ok(())
    }

    /// The access as both device numbers report it, which may be one device.
    fn seen(&self, access: [Access; 2]) -> [Access; 2] {
        if self.devices[0] == self.devices[1] { [access[0]; 2] } else { access }
    }

    /// Compares the driver's access, and the bytes as the devices read them, with the model.
    pub(super) fn check_bytes(&self) -> Checked {
        for (number, slot) in self.regions.iter().enumerate() {
            let Some(Slot { region, range }) = slot else { continue };
            let failed = |what: &str, error: Error| format!("{what} region{number}: {error}");
            for known in self.model.known(range) {
                let offset = Bytes(known.offset);
                let access = self.seen(known.access);
                for (device, right) in self.devices.into_iter().zip(access) {
                    let word = self.backend.access_at(region.address() + offset, device);
                    let word = word.map_err(|error| failed("asking for the access to", error))?;
                    if word != Some(right) {
                        return Err(format!(
                            "region{number} at offset {offset}: {device} must have {right}, and the driver reports {word:?}"
                        ));
                    }
                    let (Some((seed, wrong)), true) = (known.pattern, right != Access::None) else {
                        continue;
                    };
                    let length = Bytes(self.model.granule);
                    let found = region.count_wrong(device, offset, length, seed);
                    let found = found.map_err(|error| failed("checking", error))?;
                    if found != wrong {
                        return Err(format!(
                            "region{number} at offset {offset}: {device} must find {wrong} words that are not the pattern \
                             of seed {seed}, and finds {found}"
                        ));
                    }
                }
                let (Some((at, right)), true) = (known.bytes, access[known.piece_device] != Access::None)
                else {
                    continue;
                };
                let mut bytes = vec![0; right.len()];
                region.read(Bytes(at), &mut bytes).map_err(|error| failed("reading", error))?;
                let wrong = bytes
                    .iter()
                    .zip(&right)
                    .position(|(byte, right)| right.is_some_and(|right| right != *byte));
                if let Some(index) = wrong {
                    let (byte, right) = (bytes[index], right[index].unwrap_or_default());
                    let at = at + index as u64;
                    return Err(format!(
                        "region{number}: the byte at offset {at} must be {right}, and is {byte}"
                    ));
                }
            }
        }
        Ok(())
    }
}
