//! The address and the memory of a vector.

use super::{count, empty};
use crate::case::cases;
use crate::library::flights;
use crate::library::tools::{idle, refused};
use crate::subject::Subject;
use gpu_vmm_core::{
    Access, BackingStore, Bytes, Detail, DeviceVec, GrowthKind, Operation, Placement, Region,
};
use gpu_vmm_testkit::TestKit;

cases! { "vec":
    /// A vector that grows twenty times keeps its address and its elements.
    the_address_is_stable,
    /// Truncating a vector keeps its memory; shrinking releases whole handles without elements.
    truncate_and_shrink,
    /// Many small additions take few handles.
    small_additions_take_few_steps,
    /// Memory can be reserved before it is needed, and is not allocated again.
    reserved_beforehand,
    /// A vector whose addresses are full refuses to grow if the addresses behind are taken, and is unchanged.
    full,
    /// A vector grows by exactly what it needs if there are no addresses for the usual spare capacity.
    grows_exactly_without_spare_addresses,
    /// Filling with a value in several copies ends at the last element.
    filled_and_no_further,
    /// A movable vector that is full moves elsewhere with its elements.
    moves_where_it_may,
    /// A vector grows beyond the end of its reservation if the addresses behind are free.
    over_the_end_of_its_reservation,
    /// By default, a vector has addresses for all of its device's memory, and takes no memory.
    on_all_addresses,
    /// The memory can be taken out of a vector as a region, and a dropped vector releases its memory.
    taken_out_and_given_back,
    /// A vector is suspended once the work on its memory has ended, and has the work's result when it is resumed.
    suspended_after_the_work,
    /// A vector whose owner has only read access refuses additions and keeps its length.
    read_only,
}

fn the_address_is_stable<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u32, B>(subject, 16);
    let pointer = numbers.as_device_ptr();
    let chunk: Vec<u32> = (0..).take(count::<u32, B>(subject, 1) / 2).collect();
    for _ in 0..20 {
        numbers.extend_from_slice(&chunk).unwrap();
        assert_eq!(numbers.as_device_ptr(), pointer);
    }
    assert_eq!(numbers.len(), 20 * chunk.len());
    let back = numbers.to_vec().unwrap();
    assert!(back.chunks(chunk.len()).all(|part| part == chunk));
}

fn truncate_and_shrink<B: TestKit>(subject: &Subject<B>) {
    let mut bytes = empty::<u8, B>(subject, 18);
    for granules in 1..=16 {
        bytes.resize(count::<u8, B>(subject, granules), granules as u8).unwrap();
    }
    let free = subject.free();
    bytes.truncate(count::<u8, B>(subject, 2));
    assert_eq!((bytes.len(), subject.free()), (count::<u8, B>(subject, 2), free));
    bytes.truncate(usize::MAX);
    bytes.shrink_to_fit(idle()).unwrap();
    assert!(bytes.capacity() <= count::<u8, B>(subject, 3), "{}", bytes.capacity());
    assert_eq!(bytes.get(count::<u8, B>(subject, 1)).unwrap(), 2);
    bytes.truncate(0);
    bytes.shrink_to_fit(idle()).unwrap();
    assert_eq!(bytes.capacity(), 0);
    bytes.push(1).unwrap();
    assert_eq!(bytes.to_vec().unwrap(), [1]);
}

fn small_additions_take_few_steps<B: TestKit>(subject: &Subject<B>) {
    let mut bytes = empty::<u8, B>(subject, 100);
    let part = vec![7; subject.granularity().0 as usize / 2];
    for _ in 0..128 {
        bytes.extend_from_slice(&part).unwrap();
    }
    // Growth by an eighth takes 8 steps of one granule at first, then fewer and fewer.
    let steps = bytes.region().mappings().count();
    assert!(steps < 40, "{steps} steps to 64 granules");
    assert!(bytes.capacity() <= count::<u8, B>(subject, 64 + 64 / 8 + 1), "{}", bytes.capacity());
}

fn reserved_beforehand<B: TestKit>(subject: &Subject<B>) {
    let mut numbers = empty::<u64, B>(subject, 8);
    numbers.reserve(count::<u64, B>(subject, 5)).unwrap();
    assert_eq!((numbers.len(), numbers.capacity()), (0, count::<u64, B>(subject, 5)));
    let free = subject.free();
    for number in 0..10 {
        numbers.push(number).unwrap();
    }
    numbers.reserve(count::<u64, B>(subject, 5) - 10).unwrap();
    assert_eq!((numbers.region().mappings().count(), subject.free()), (1, free));
}

/// A vector with `units` units of addresses, behind which the addresses are taken.
fn walled<B: TestKit>(subject: &Subject<B>, units: u64) -> (DeviceVec<u8, B>, Region<B>) {
    let base = subject.hole(units + 6);
    let bytes = DeviceVec::build(subject.region(units).at(Placement::Exact(base))).unwrap();
    let wall = Placement::Exact(base + subject.units(units));
    (bytes, subject.region(1).at(wall).build().unwrap())
}

fn full<B: TestKit>(subject: &Subject<B>) {
    let (mut bytes, _wall) = walled(subject, 2);
    let all = subject.units(2).0 as usize;
    bytes.resize(all, 1).unwrap();
    let error = bytes.push(2).unwrap_err();
    assert!(matches!(error.detail(), Detail::OutgrewReservation { .. }), "{error}");
    assert_eq!((bytes.len(), bytes.capacity()), (all, all));
    assert_eq!(bytes.get(all - 1).unwrap(), 1);
}

fn grows_exactly_without_spare_addresses<B: TestKit>(subject: &Subject<B>) {
    // One granule is needed; an eighth of the current size would exceed the addresses.
    let units = 32 * subject.granularity().0 / subject.unit().0;
    let (mut bytes, _wall) = walled(subject, units);
    let (most, all) = (count::<u8, B>(subject, 31), count::<u8, B>(subject, 32));
    bytes.resize(most, 1).unwrap();
    bytes.resize(all, 2).unwrap();
    assert_eq!((bytes.capacity(), bytes.get(most).unwrap()), (all, 2));
}

fn filled_and_no_further<B: TestKit>(subject: &Subject<B>) {
    // Values whose bytes differ are copied from a buffer of 4 MiB.
    let (long, short) = ((9 << 20) / 4, (4 << 20) / 4 + 100);
    let mut numbers = empty::<u32, B>(subject, (10 << 20) / subject.granularity().0 + 1);
    numbers.resize(long, 0x0102_0304).unwrap();
    numbers.truncate(0);
    numbers.resize(short, 0x0506_0708).unwrap();
    let mut around = [0_u32; 2];
    let last = Bytes::of::<u32>(short - 1).unwrap();
    numbers.region().read(last, bytemuck::cast_slice_mut(&mut around)).unwrap();
    assert_eq!(around, [0x0506_0708, 0x0102_0304], "the fill ended at another element");
}

fn moves_where_it_may<B: TestKit>(subject: &Subject<B>) {
    let (bytes, _wall) = walled(subject, 2);
    let mut bytes = bytes.movable();
    bytes.resize(subject.units(2).0 as usize, 1).unwrap();
    let before = bytes.as_device_ptr();
    bytes.push(2).unwrap();
    assert_ne!(bytes.as_device_ptr(), before);
    assert_eq!((bytes.get(0).unwrap(), bytes.get(bytes.len() - 2).unwrap()), (1, 1));
    assert_eq!(bytes.get(bytes.len() - 1).unwrap(), 2);
}

fn over_the_end_of_its_reservation<B: TestKit>(subject: &Subject<B>) {
    let at = Placement::Exact(subject.hole(16));
    let mut bytes = DeviceVec::<u8, B>::build(subject.region(1).at(at)).unwrap();
    let pointer = bytes.as_device_ptr();
    bytes.resize(subject.unit().0 as usize - 1, 1).unwrap();
    bytes.extend_from_slice(&[2, 3, 4]).unwrap();
    assert_eq!(bytes.as_device_ptr(), pointer);
    assert_eq!(bytes.region().reservations().len(), 2);
    let mut around = [0; 4];
    bytes.read(bytes.len() - 4, &mut around).unwrap();
    assert_eq!(around, [1, 2, 3, 4]);
}

fn on_all_addresses<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free();
    let mut bytes = DeviceVec::<u8, B>::new(&subject.backend, subject.device).unwrap();
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    assert!(bytes.region().reserved() >= total);
    assert_eq!((bytes.capacity(), subject.free()), (0, free));
    bytes.push(1).unwrap();
    assert_eq!(bytes.region().mapping_at(Bytes(0)).unwrap().memory.device(), subject.device);
}

fn taken_out_and_given_back<B: TestKit>(subject: &Subject<B>) {
    let before = subject.free();
    let mut numbers = empty::<u32, B>(subject, 4);
    numbers.extend_from_slice(&[1, 2, 3]).unwrap();
    let mut region = numbers.into_region();
    let mut bytes = [0; 12];
    region.read(Bytes(0), &mut bytes).unwrap();
    assert_eq!(bytemuck::cast_slice::<u8, u32>(&bytes), [1, 2, 3]);
    assert_eq!(region.grow_to(subject.granules(2)).unwrap().how, GrowthKind::Within);
    drop(region);
    let mut numbers = empty::<u32, B>(subject, 4);
    numbers.resize(count::<u32, B>(subject, 3), 1).unwrap();
    drop(numbers);
    assert_eq!(subject.free(), before);
}

fn suspended_after_the_work<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 40;
    let mut words = DeviceVec::<u64, B>::build(subject.region(1)).unwrap();
    words.resize(subject.unit().0 as usize / size_of::<u64>(), 0).unwrap();
    let store = BackingStore::pinned(&subject.backend, subject.unit()).unwrap();
    let flight = flights::start(subject, words.region(), Bytes(0), AFTER);
    words.suspend(&store, idle()).unwrap();
    assert!(flight.is_done().unwrap(), "suspended before the work had ended");
    words.resume().unwrap();
    let wrong = words.region().count_wrong(subject.device, Bytes(0), subject.unit(), AFTER).unwrap();
    assert_eq!(wrong, 0, "copied before the work had ended");
}

fn read_only<B: TestKit>(subject: &Subject<B>) {
    let builder = subject.space(2).access(subject.device, Access::Read);
    let mut numbers = DeviceVec::<u32, B>::build(builder).unwrap();
    refused!(numbers.push(1), Detail::NoAccess { have: Access::Read, .. });
    refused!(numbers.resize(10, 7), Detail::NoAccess { .. });
    assert_eq!((numbers.len(), numbers.capacity()), (0, count::<u32, B>(subject, 1)));
}
