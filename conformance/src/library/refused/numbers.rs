//! Invalid sizes, offsets and devices, and memory of other backends.

use super::half_full;
use crate::case::cases;
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, skip};
use gpu_vmm_core::{Access, Bytes, Detail, DeviceId, Operation, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;

cases! { "refused":
    /// Creating, growing, unmapping and protecting zero bytes is refused.
    zero_sizes,
    /// An offset or a length that is not a multiple of the granularity is refused with the number and the granularity.
    unaligned,
    /// A size above the device's total memory is refused before a driver call.
    more_than_the_device,
    /// An offset and a length whose sum exceeds 64 bits are refused instead of wrapping around.
    overflow,
    /// A device that does not exist is refused by every call that takes a device.
    no_such_device,
    /// Memory of another backend, or of another instance of the same backend, is not mapped.
    foreign_memory,
}

fn zero_sizes<B: TestKit>(subject: &Subject<B>) {
    refused!(PhysicalMemory::create(&subject.backend, Bytes(0), subject.properties()), Detail::ZeroSize);
    let mut region = half_full(subject);
    refused!(region.grow_to(Bytes(0)), Detail::ZeroSize);
    refused!(region.grow_or_move(Bytes(0), idle()), Detail::ZeroSize);
    refused!(region.unmap(Bytes(0), Bytes(0), idle()), Detail::ZeroSize);
    refused!(region.set_access(Bytes(0), Bytes(0), subject.device, RW), Detail::ZeroSize);
}

fn unaligned<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    let memory = subject.memory(1);
    let unit = subject.granularity();
    for offset in [Bytes(1), Bytes(4096), unit - Bytes(1)] {
        let number = format!("{:#x}", offset.0);
        refused!(region.map(offset, &memory), Detail::Unaligned { what: "offset", .. }, number, unit);
        refused!(region.unmap(offset, unit, idle()), Detail::Unaligned { what: "offset", .. }, number);
        refused!(region.unmap(Bytes(0), offset, idle()), Detail::Unaligned { what: "length", .. }, number);
        let access = region.set_access(offset, unit, subject.device, RW);
        refused!(access, Detail::Unaligned { what: "offset", .. }, number);
        let access = region.set_access(Bytes(0), offset, subject.device, RW);
        refused!(access, Detail::Unaligned { what: "length", .. }, number);
    }
    refused!(region.write_pattern(subject.device, Bytes(4), Bytes(8), 0), Detail::Unaligned { .. });
    refused!(region.count_wrong(subject.device, Bytes(0), Bytes(12), 0), Detail::Unaligned { .. });
}

fn more_than_the_device<B: TestKit>(subject: &Subject<B>) {
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    let too_much = total + Bytes(1);
    let on = subject.properties();
    refused!(
        PhysicalMemory::create(&subject.backend, too_much, on),
        Detail::ExceedsDevice { .. },
        format!("{too_much} exceeds the memory of {} ({total:#})", subject.device)
    );
    refused!(PhysicalMemory::create(&subject.backend, Bytes(u64::MAX), on), Detail::ExceedsDevice { .. });
    let builder = Region::builder(&subject.backend).on(subject.device).reserve(total + total);
    let mut region = builder.build().unwrap();
    refused!(region.grow_to(total + subject.unit()), Detail::ExceedsDevice { .. });
    assert_eq!(region.end(), Bytes(0));
}

fn overflow<B: TestKit>(subject: &Subject<B>) {
    let mut region = half_full(subject);
    let high = Bytes(u64::MAX - subject.unit().0 + 1);
    refused!(region.map(high, &subject.memory(2)), Detail::Overflow { .. });
    refused!(region.unmap(high, subject.units(2), idle()), Detail::Overflow { .. });
    refused!(region.set_access(high, subject.units(2), subject.device, RW), Detail::Overflow { .. });
    refused!(region.write(Bytes(u64::MAX), &[0; 2]), Detail::Overflow { .. });
    refused!(region.read(Bytes(u64::MAX), &mut [0; 2]), Detail::Overflow { .. });
    refused!(region.fill(Bytes(8), Bytes(u64::MAX), 0), Detail::Overflow { .. });
    let kernel = region.write_pattern(subject.device, Bytes(8), Bytes(u64::MAX - 7), 0);
    refused!(kernel, Detail::Overflow { .. });
}

fn no_such_device<B: TestKit>(subject: &Subject<B>) {
    let count = subject.backend.devices().len() as u32;
    for device in [DeviceId(count), DeviceId(126), DeviceId(128), DeviceId(u32::MAX)] {
        let created = PhysicalMemory::create(&subject.backend, subject.unit(), Properties::on(device));
        refused!(created, Detail::NoSuchDevice { .. }, device, count);
        refused!(subject.region(1).on(device).build(), Detail::NoSuchDevice { .. }, device);
        let mut region = half_full(subject);
        let access = region.set_access(Bytes(0), subject.units(2), device, RW);
        refused!(access, Detail::NoSuchDevice { .. }, device);
        refused!(region.grow_to_on(device, subject.units(3)), Detail::NoSuchDevice { .. }, device);
        refused!(region.count_wrong(device, Bytes(0), Bytes(8), 0), Detail::NoSuchDevice { .. }, device);
        assert_eq!(region.access(Bytes(0), device), Access::None);
    }
    refused!(subject.region(1).access(DeviceId(count), RW).build(), Detail::NoSuchDevice { .. });
}

fn foreign_memory<B: TestKit>(subject: &Subject<B>) {
    let Some(other) = subject.target.foreign() else { skip("there is no other backend") };
    let theirs = PhysicalMemory::create(&other, subject.unit(), Properties::on(DeviceId(0))).unwrap();
    let mut region = half_full(subject);
    let text = format!(
        "belongs to {} backend {}, not to {} backend {}",
        other.vendor(),
        other.instance().number(),
        subject.backend.vendor(),
        subject.backend.instance().number()
    );
    refused!(region.map(subject.units(2), &theirs), Detail::ForeignHandle { .. }, text);
    let answer = region.grow_with(std::slice::from_ref(&theirs));
    refused!(answer, Detail::ForeignHandle { .. }, other.vendor());
    let mut foreign = Region::builder(&other).reserve(subject.units(1)).build().unwrap();
    refused!(foreign.map(Bytes(0), &subject.memory(1)), Detail::ForeignHandle { .. });
}
