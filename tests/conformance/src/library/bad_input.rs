//! What a caller can get wrong: each an error of its own kind, with the numbers, before any driver call.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Access, Address, Bytes, DeviceId, Done, Error, Physical, Placement, Properties, Region, Workbench,
};

cases! { "bad_input":
    /// zero sizes.
    zero_sizes,
    /// unaligned.
    unaligned,
    /// more than the device.
    more_than_the_device,
    /// more than addresses.
    more_than_addresses,
    /// absurd alignment.
    absurd_alignment,
    /// bad hints.
    bad_hints,
    /// overflow.
    overflow,
    /// over a mapping.
    over_a_mapping,
    /// part of a mapping.
    part_of_a_mapping,
    /// over a hole.
    over_a_hole,
    /// behind the region.
    behind_the_region,
    /// no such device.
    no_such_device,
    /// foreign memory.
    foreign_memory,
    /// use after shrink.
    use_after_shrink,
    /// across a seam.
    across_a_seam,
    /// nothing changes.
    nothing_changes,
}

/// The error's text must hold every one of these.
fn assert_names(error: &Error, parts: &[String]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part.as_str()), "{text:?} does not say {part:?}");
    }
}

macro_rules! refused {
    ($result:expr, $kind:pat $(, $part:expr)* $(,)?) => {{
        let error = $result.map(drop).unwrap_err();
        assert!(matches!(error, $kind), "another kind: {error:?}");
        assert!(error.driver_error().is_none(), "a driver was asked: {error}");
        assert_names(&error, &[$($part.to_string()),*]);
    }};
}

fn idle() -> Done<'static> {
    Done::when_devices_idle()
}

/// Two units mapped, two units not.
fn region<B: Workbench>(subject: &Subject<B>) -> Region<B> {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region
}

fn zero_sizes<B: Workbench>(subject: &Subject<B>) {
    let on = Properties::on(subject.device);
    refused!(Physical::create(&subject.backend, Bytes(0), on), Error::ZeroSize { .. });
    refused!(Region::builder(&subject.backend).reserve(Bytes(0)).build(), Error::ZeroSize { .. });
    let mut region = region(subject);
    refused!(region.grow_to(Bytes(0)), Error::ZeroSize { .. });
    refused!(region.unmap(Bytes(0), Bytes(0), idle()), Error::ZeroSize { .. });
    refused!(region.set_access(Bytes(0), Bytes(0), subject.device, RW), Error::ZeroSize { .. });
    // Reading and writing nothing is nothing, as for a slice.
    region.write(Bytes(0), &[]).unwrap();
    region.read(Bytes(u64::MAX), &mut []).unwrap();
}

fn unaligned<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    let memory = subject.memory(1);
    let unit = subject.granularity();
    for offset in [Bytes(1), Bytes(4096), unit - Bytes(1)] {
        refused!(
            region.map(offset, &memory),
            Error::Unaligned { what: "offset", .. },
            format!("{:#x}", offset.0),
            unit
        );
        refused!(region.unmap(offset, unit, idle()), Error::Unaligned { .. });
        refused!(region.unmap(Bytes(0), offset, idle()), Error::Unaligned { what: "length", .. });
        refused!(region.set_access(offset, unit, subject.device, RW), Error::Unaligned { .. });
    }
    refused!(region.write_pattern(subject.device, Bytes(4), Bytes(8), 0), Error::Unaligned { .. });
    refused!(region.count_wrong(subject.device, Bytes(0), Bytes(12), 0), Error::Unaligned { .. });
}

fn more_than_the_device<B: Workbench>(subject: &Subject<B>) {
    let total = subject.backend.devices()[0].total_memory;
    let too_much = total + Bytes(1);
    let on = Properties::on(subject.device);
    refused!(Physical::create(&subject.backend, too_much, on), Error::ExceedsDevice { .. }, too_much, total);
    refused!(Physical::create(&subject.backend, Bytes(u64::MAX), on), Error::ExceedsDevice { .. });
    let mut region = Region::builder(&subject.backend).reserve(total + total).build().unwrap();
    refused!(region.grow_to(total + subject.unit()), Error::ExceedsDevice { .. });
    assert_eq!(region.end(), Bytes(0));
}

fn more_than_addresses<B: Workbench>(subject: &Subject<B>) {
    for size in [Bytes(u64::MAX), Bytes(u64::MAX - subject.unit().0), Bytes(1 << 48)] {
        refused!(Region::builder(&subject.backend).reserve(size).build(), Error::TooManyAddresses { .. });
        refused!(region(subject).grow_to(size), Error::TooManyAddresses { .. });
    }
}

fn absurd_alignment<B: Workbench>(subject: &Subject<B>) {
    for alignment in
        [Bytes(0), Bytes(3), Bytes(u64::MAX), Bytes(1 << 47), Bytes(1 << 63), subject.unit() + Bytes(1)]
    {
        refused!(subject.region(1).alignment(alignment).build(), Error::BadAlignment { .. }, alignment.0);
    }
}

fn bad_hints<B: Workbench>(subject: &Subject<B>) {
    let region = region(subject);
    let base = region.address();
    for address in [Address(base.0 + 1), Address(base.0 + 4096), Address(0x1234)] {
        for at in [Placement::Exact(address), Placement::Prefer(address)] {
            refused!(subject.region(1).at(at).build(), Error::Unaligned { what: "address", .. }, address);
        }
    }
    let beyond = Address(u64::MAX - subject.unit().0 + 1);
    refused!(subject.region(2).at(Placement::Exact(beyond)).build(), Error::Overflow { .. });
    // An address that is aligned to the unit and not to the alignment that is asked for as well.
    let at = Placement::Exact(Address(subject.unit().0));
    refused!(subject.region(1).alignment(Bytes::gib(1)).at(at).build(), Error::Unaligned { .. });
    let error = subject.region(1).at(Placement::Exact(base)).build().unwrap_err();
    assert!(matches!(error, Error::AddressTaken { .. }), "{error}");
}

fn overflow<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    let high = Bytes(u64::MAX - subject.unit().0 + 1);
    refused!(region.map(high, &subject.memory(2)), Error::Overflow { .. });
    refused!(region.unmap(high, subject.units(2), idle()), Error::Overflow { .. });
    refused!(region.set_access(high, subject.units(2), subject.device, RW), Error::Overflow { .. });
    refused!(region.write(Bytes(u64::MAX), &[0; 2]), Error::Overflow { .. });
    refused!(region.read(Bytes(u64::MAX), &mut [0; 2]), Error::Overflow { .. });
    refused!(region.fill(Bytes(8), Bytes(u64::MAX), 0), Error::Overflow { .. });
}

fn over_a_mapping<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    for (offset, units) in [(0, 1), (1, 1), (1, 2), (0, 4)] {
        let memory = subject.memory(units);
        let offset = subject.units(offset);
        refused!(region.map(offset, &memory), Error::AlreadyMapped { .. }, memory.size(), subject.units(2));
    }
    region.map(subject.units(2), &subject.memory(2)).unwrap();
}

fn part_of_a_mapping<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    region.grow_to(subject.units(4)).unwrap();
    for (offset, length) in [(0, 1), (1, 1), (1, 2), (0, 3), (1, 3), (2, 1), (3, 1)] {
        let (offset, length) = (subject.units(offset), subject.units(length));
        refused!(region.unmap(offset, length, idle()), Error::PartialMapping { .. }, offset, length);
        refused!(
            region.set_access(offset, length, subject.device, Access::Read),
            Error::PartialMapping { .. }
        );
    }
    assert_eq!(region.access(Bytes(0), subject.device), RW);
}

fn over_a_hole<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(6).build().unwrap();
    for offset in [1, 4] {
        region.map(subject.units(offset), &subject.memory(1)).unwrap();
    }
    for (offset, length) in [(0, 1), (0, 2), (1, 2), (1, 4), (2, 2), (4, 2), (5, 1)] {
        let (offset, length) = (subject.units(offset), subject.units(length));
        refused!(region.set_access(offset, length, subject.device, RW), Error::NotMapped { .. }, offset);
        refused!(region.unmap(offset, length, idle()), Error::NotMapped { .. });
        refused!(region.fill(offset, length, 1), Error::NotMapped { .. });
    }
    let text =
        region.read(subject.units(1), &mut vec![0; subject.units(3).0 as usize]).unwrap_err().to_string();
    assert!(text.contains(&format!("nothing is at offset {}", subject.units(2))), "{text}");
}

fn behind_the_region<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    for (offset, units) in [(4, 1), (3, 2), (100, 1)] {
        let offset = subject.units(offset);
        refused!(
            region.map(offset, &subject.memory(units)),
            Error::OutOfRange { .. },
            offset,
            subject.units(4)
        );
        refused!(region.unmap(offset, subject.units(units), idle()), Error::OutOfRange { .. });
        refused!(
            region.set_access(offset, subject.units(units), subject.device, RW),
            Error::OutOfRange { .. }
        );
        refused!(region.fill(offset, subject.units(units), 0), Error::OutOfRange { .. });
    }
    refused!(region.read(subject.units(4) - Bytes(1), &mut [0; 2]), Error::OutOfRange { .. });
}

fn no_such_device<B: Workbench>(subject: &Subject<B>) {
    let count = subject.backend.devices().len() as u32;
    for device in [DeviceId(count), DeviceId(126), DeviceId(127), DeviceId(u32::MAX)] {
        let on = Properties::on(device);
        refused!(
            Physical::create(&subject.backend, subject.unit(), on),
            Error::NoSuchDevice { .. },
            device,
            count
        );
        refused!(subject.region(1).on(device).build(), Error::NoSuchDevice { .. });
        let mut region = region(subject);
        refused!(region.set_access(Bytes(0), subject.units(2), device, RW), Error::NoSuchDevice { .. });
        refused!(region.grow_to_on(device, subject.units(3)), Error::NoSuchDevice { .. });
        refused!(region.count_wrong(device, Bytes(0), Bytes(8), 0), Error::NoSuchDevice { .. });
        assert_eq!(region.access(Bytes(0), device), Access::None);
    }
    refused!(subject.region(1).access(DeviceId(count), RW).build(), Error::NoSuchDevice { .. });
}

fn foreign_memory<B: Workbench>(subject: &Subject<B>) {
    let Some(other) = subject.target.foreign() else { crate::subject::skip("there is no other backend") };
    let theirs = Physical::create(&other, subject.unit(), Properties::on(DeviceId(0))).unwrap();
    let mut region = region(subject);
    refused!(region.map(subject.units(2), &theirs), Error::ForeignHandle { .. }, other.vendor());
    let mut foreign = Region::builder(&other).reserve(subject.units(1)).build().unwrap();
    refused!(foreign.map(Bytes(0), &subject.memory(1)), Error::ForeignHandle { .. });
}

fn use_after_shrink<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    region.shrink_to(Bytes(0), idle()).unwrap();
    refused!(region.read(Bytes(0), &mut [0]), Error::NotMapped { .. });
    refused!(region.write(Bytes(0), &[0]), Error::NotMapped { .. });
    refused!(region.set_access(Bytes(0), subject.units(2), subject.device, RW), Error::NotMapped { .. });
    refused!(region.unmap(Bytes(0), subject.units(2), idle()), Error::NotMapped { .. });
}

fn across_a_seam<B: Workbench>(subject: &Subject<B>) {
    let base = subject.hole(16);
    let mut region =
        subject.region(2).at(Placement::Exact(base)).extend_by(subject.units(2)).build().unwrap();
    region.grow_to(subject.units(3)).unwrap();
    assert_eq!(region.reservations().len(), 2);
    region.shrink_to(Bytes(0), idle()).unwrap();
    let memory = subject.memory(2);
    refused!(region.map(subject.unit(), &memory), Error::CrossesSeam { .. }, subject.units(2));
    region.map(subject.units(2), &memory).unwrap();
}

/// After all of these nothing is different.
fn nothing_changes<B: Workbench>(subject: &Subject<B>) {
    let mut region = region(subject);
    region.write_pattern(subject.device, Bytes(0), region.end(), 3).unwrap();
    let (free, range) = (subject.free(), region.range());
    let memory = subject.memory(1);
    let held = subject.free();
    let _ = region.map(Bytes(0), &memory);
    let _ = region.map(Bytes(1), &memory);
    let _ = region.unmap(Bytes(0), subject.unit(), idle());
    let _ = region.set_access(Bytes(0), subject.units(3), subject.device, Access::None);
    let _ = region.grow_to(Bytes(u64::MAX));
    let _ = region.shrink_to(subject.units(3), idle());
    assert_eq!(subject.free(), held);
    drop(memory);
    assert_eq!((subject.free(), region.range(), region.end()), (free, range, subject.units(2)));
    assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), 3).unwrap(), 0);
}
