//! The three levels of access on one mapping.

use crate::case::cases;
use crate::library::tools::refused;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, AccessMap, Alignment, Bytes, Detail, Grant, Region, Reservation};
use gpu_vmm_testkit::{TestKit, handle_of, pattern_word};

cases! { "access":
    /// A new mapping is inaccessible to all devices, and copies that need access are refused.
    none_after_map,
    /// With read access, writes, fills and kernels that write are refused, and reads succeed.
    read_only_is_checked,
    /// Without access, the error reports the offset, and the adjacent mapping is unaffected.
    none_is_checked,
    /// A range has the same access at its first and its last byte, and none directly behind it.
    first_and_last_byte,
    /// Access can be set, set again and changed in any order; the region reports it up to the last byte, and the bytes survive.
    bytes_stay_through_changes,
    /// A write whose second half is not allowed is refused as a whole: no byte is written.
    half_allowed_is_refused,
    /// Memory that growth adds has the access that the region was built with.
    growth_brings_what_was_said,
    /// The driver reports every access as it was set.
    the_driver_agrees,
}

/// Creates a region with one writable mapping of two granules.
fn open_region<B: TestKit>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.space(2).build().unwrap();
    subject.open(&mut region, Bytes(0), &subject.piece(2));
    region
}

fn set<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, access: Access) {
    region.set_access(Bytes(0), region.end(), subject.device, access).unwrap();
}

fn none_after_map<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.map(Bytes(0), &subject.memory(2)).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), Access::None);
    refused!(region.write(Bytes(0), &[1]), Detail::NoAccess { have: Access::None, need: RW, .. });
    refused!(region.read(Bytes(0), &mut [1]), Detail::NoAccess { need: Access::Read, .. });
    refused!(region.count_wrong(subject.device, Bytes(0), Bytes(8), 0), Detail::NoAccess { .. });
}

fn read_only_is_checked<B: TestKit>(subject: &Subject<B>) {
    let mut region = open_region(subject);
    let length = region.end();
    subject.write(&mut region, Bytes(0), length, 9);
    set(subject, &mut region, Access::Read);
    refused!(region.write(Bytes(0), &[1]), Detail::NoAccess { have: Access::Read, need: RW, .. });
    refused!(region.fill(Bytes(0), Bytes(1), 1), Detail::NoAccess { have: Access::Read, need: RW, .. });
    let kernel = region.write_pattern(subject.device, Bytes(0), Bytes(8), 1);
    refused!(kernel, Detail::NoAccess { have: Access::Read, need: RW, .. });
    subject.check(&region, Bytes(0), length, 9);
    let mut bytes = [0; 8];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(bytes, pattern_word(9, 0).to_ne_bytes());
}

fn none_is_checked<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(1)).unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.set_access(subject.unit(), subject.unit(), subject.device, Access::None).unwrap();
    refused!(region.read(subject.unit() - Bytes(1), &mut [0; 2]), Detail::NoAccess { .. }, subject.unit());
    region.read(Bytes(0), &mut [0; 2]).unwrap();
    subject.write(&mut region, Bytes(0), subject.unit(), 1);
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn first_and_last_byte<B: TestKit>(subject: &Subject<B>) {
    let mut region = open_region(subject);
    let last = region.end() - Bytes(1);
    assert_eq!([Bytes(0), last].map(|at| region.access(at, subject.device)), [RW, RW]);
    for (offset, byte) in [(Bytes(0), 1), (last, 2)] {
        region.write(offset, &[byte]).unwrap();
        let mut back = [0];
        region.read(offset, &mut back).unwrap();
        assert_eq!(back, [byte]);
    }
    assert_eq!(region.access(region.end(), subject.device), Access::None);
    let word = region.end() - Bytes(8);
    subject.write(&mut region, word, Bytes(8), 5);
    subject.check(&region, word, Bytes(8), 5);
    assert!(region.count_wrong(subject.device, word, Bytes(16), 5).is_err());
}

fn bytes_stay_through_changes<B: TestKit>(subject: &Subject<B>) {
    let mut region = open_region(subject);
    let length = region.end();
    let mut written = None;
    let steps = [RW, Access::Read, RW, Access::None, RW, Access::None, Access::Read, RW];
    for (access, seed) in steps.into_iter().zip(0..) {
        for _ in 0..3 {
            set(subject, &mut region, access);
            assert_eq!(region.access(length - Bytes(1), subject.device), access);
        }
        if let (Some(written), true) = (written, access != Access::None) {
            subject.check(&region, Bytes(0), length, written);
        }
        if access == RW {
            subject.write(&mut region, Bytes(0), length, seed);
            written = Some(seed);
        }
    }
}

fn half_allowed_is_refused<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).build().unwrap();
    let half = subject.granularity();
    for at in [Bytes(0), half] {
        subject.open(&mut region, at, &subject.piece(1));
    }
    subject.write(&mut region, Bytes(0), half + half, 2);
    region.set_access(half, half, subject.device, Access::Read).unwrap();
    refused!(region.write(half - Bytes(64), &[0; 128]), Detail::NoAccess { .. }, half);
    refused!(region.fill(Bytes(0), half + half, 0), Detail::NoAccess { .. }, half);
    let kernel = region.write_pattern(subject.device, Bytes(0), half + half, 3);
    refused!(kernel, Detail::NoAccess { .. }, half);
    subject.check(&region, Bytes(0), half + half, 2);
}

fn growth_brings_what_was_said<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(2).access(subject.device, Access::Read).build().unwrap();
    for granules in [1, 2] {
        region.grow_to(subject.granules(granules)).unwrap();
        assert_eq!(region.access(region.end() - Bytes(1), subject.device), Access::Read);
    }
    region.read(subject.granularity() - Bytes(4), &mut [0; 8]).unwrap();
    refused!(region.write(Bytes(0), &[1]), Detail::NoAccess { have: Access::Read, .. });
    // By default the owner can read and write.
    let mut region = subject.space(1).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    assert_eq!(region.access(Bytes(0), subject.device), RW);
}

/// Asks the driver below the regions, because a region reports its own records.
#[allow(unsafe_code)]
fn the_driver_agrees<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.piece(1);
    let size = subject.unit();
    let alignment = Alignment::from(subject.backend.granularity());
    // SAFETY: the size is one unit of addresses, and there is no hint.
    let mut reservation = unsafe { subject.backend.reserve(size, alignment, None) }.unwrap();
    // SAFETY: nothing is mapped yet; the memory belongs to this backend and is at most a unit.
    unsafe { reservation.map(Bytes(0), handle_of(&memory)) }.unwrap();
    let mut expected = AccessMap::NONE;
    let mut wrong = Vec::new();
    for access in [Access::None, RW, Access::Read, Access::None, Access::Read, RW] {
        if access != expected.get(subject.device) {
            expected = expected.with(subject.device, access);
            let grant = Grant { device: subject.device, access };
            // SAFETY: the range is the only mapping, and its owner is the device. No work is queued on it.
            unsafe { reservation.set_access(Bytes(0), memory.size(), &[grant]) }.unwrap();
        }
        for device in subject.backend.devices().iter().filter(|device| device.unusable.is_none()) {
            for at in [Bytes(0), memory.size() - Bytes(1)] {
                // SAFETY: the offset lies in the mapping, and the device exists.
                let said = unsafe { reservation.access(at, device.id) }.unwrap();
                if said != expected.get(device.id) {
                    wrong.push((device.id, at, said, access));
                }
            }
        }
    }
    // SAFETY: the range is the only mapping, and no work uses it.
    unsafe { reservation.unmap(Bytes(0), memory.size()) }.unwrap();
    assert!(wrong.is_empty(), "device, offset, access reported by the driver, access set: {wrong:?}");
}
