//! A typed vector that grows in place.

use crate::case::cases;
use crate::subject::Subject;
use gpu_vmm_core::{DeviceVec, Done, Error, Placement, Region, Workbench};

cases! { "device_vec":
    /// push and read back.
    push_and_read_back,
    /// the address is stable.
    the_address_is_stable,
    /// extend and resize.
    extend_and_resize,
    /// truncate and shrink.
    truncate_and_shrink,
    /// by index.
    by_index,
    /// full.
    full,
    /// moves where it may.
    moves_where_it_may,
    /// odd elements.
    odd_elements,
    /// counts that do not fit.
    counts_that_do_not_fit,
}

fn vec<T: bytemuck::Pod, B: Workbench>(subject: &Subject<B>, units: u64) -> DeviceVec<T, B> {
    DeviceVec::build(subject.region(units)).unwrap()
}

fn push_and_read_back<B: Workbench>(subject: &Subject<B>) {
    let mut numbers = vec::<u64, B>(subject, 1);
    assert!(numbers.is_empty());
    assert!(numbers.to_vec().unwrap().is_empty());
    for number in 0..100 {
        numbers.push(number * 3).unwrap();
    }
    assert_eq!(numbers.to_vec().unwrap(), (0..100).map(|number| number * 3).collect::<Vec<u64>>());
}

fn the_address_is_stable<B: Workbench>(subject: &Subject<B>) {
    let mut numbers = vec::<u32, B>(subject, 64);
    let pointer = numbers.as_device_ptr();
    let chunk: Vec<u32> = (0..(subject.unit().0 / 8) as u32).collect();
    for _ in 0..20 {
        numbers.extend_from_slice(&chunk).unwrap();
        assert_eq!(numbers.as_device_ptr(), pointer);
    }
    assert_eq!(numbers.len(), 20 * chunk.len());
    let back = numbers.to_vec().unwrap();
    assert!(back.chunks(chunk.len()).all(|part| part == chunk));
}

fn extend_and_resize<B: Workbench>(subject: &Subject<B>) {
    let mut numbers = vec::<u32, B>(subject, 8);
    numbers.extend_from_slice(&[]).unwrap();
    assert_eq!(numbers.capacity(), 0);
    numbers.extend_from_slice(&[1, 2]).unwrap();
    numbers.resize(4, 0x0101_0101).unwrap();
    let length = (subject.units(3).0 / 4) as usize + 1;
    numbers.resize(length, 0xdead_beef).unwrap();
    let back = numbers.to_vec().unwrap();
    assert_eq!(back[..4], [1, 2, 0x0101_0101, 0x0101_0101]);
    assert!(back.len() == length && back[4..].iter().all(|number| *number == 0xdead_beef));
}

fn truncate_and_shrink<B: Workbench>(subject: &Subject<B>) {
    let mut bytes = vec::<u8, B>(subject, 16);
    for units in 1..=16 {
        bytes.resize(subject.units(units).0 as usize, units as u8).unwrap();
    }
    let free = subject.free();
    bytes.truncate(subject.units(2).0 as usize);
    assert_eq!((bytes.len() as u64, subject.free()), (subject.units(2).0, free));
    bytes.truncate(usize::MAX);
    bytes.shrink_to_fit(Done::when_devices_idle()).unwrap();
    assert!(bytes.capacity() as u64 <= subject.units(3).0, "{}", bytes.capacity());
    assert_eq!(bytes.get(subject.unit().0 as usize).unwrap(), 2);
    bytes.truncate(0);
    bytes.shrink_to_fit(Done::when_devices_idle()).unwrap();
    assert_eq!(bytes.capacity(), 0);
    bytes.push(1).unwrap();
    assert_eq!(bytes.to_vec().unwrap(), [1]);
}

fn by_index<B: Workbench>(subject: &Subject<B>) {
    let mut numbers = vec::<u16, B>(subject, 1);
    numbers.extend_from_slice(&[5, 6, 7]).unwrap();
    numbers.write(1, &[8]).unwrap();
    assert_eq!((numbers.get(0).unwrap(), numbers.get(1).unwrap()), (5, 8));
    for index in [3, 4, usize::MAX] {
        let error = numbers.get(index).unwrap_err();
        assert!(matches!(error, Error::NoSuchElement { .. } | Error::TooManyElements { .. }), "{error}");
    }
    let error = numbers.write(2, &[0, 0]).unwrap_err();
    assert_eq!(error.to_string(), "write elements: the index 3 is not below the length 3");
    let mut two = [0; 2];
    numbers.read(1, &mut two).unwrap();
    assert_eq!(two, [8, 7]);
}

/// A vector on a reservation behind which nothing is free.
fn walled<B: Workbench>(subject: &Subject<B>) -> (DeviceVec<u8, B>, Region<B>) {
    let base = subject.hole(8);
    let bytes = DeviceVec::build(subject.region(2).at(Placement::Exact(base))).unwrap();
    let wall = base.checked_add(subject.units(2)).unwrap();
    (bytes, subject.region(1).at(Placement::Exact(wall)).build().unwrap())
}

fn full<B: Workbench>(subject: &Subject<B>) {
    let (mut bytes, _wall) = walled(subject);
    bytes.resize(subject.units(2).0 as usize, 1).unwrap();
    let error = bytes.push(2).unwrap_err();
    assert!(matches!(error, Error::AddressTaken { .. }), "{error}");
    assert_eq!(bytes.len() as u64, subject.units(2).0);
    assert_eq!(bytes.get(bytes.len() - 1).unwrap(), 1);
}

fn moves_where_it_may<B: Workbench>(subject: &Subject<B>) {
    let (bytes, _wall) = walled(subject);
    let mut bytes = bytes.movable();
    bytes.resize(subject.units(2).0 as usize, 1).unwrap();
    let before = bytes.as_device_ptr();
    bytes.push(2).unwrap();
    assert_ne!(bytes.as_device_ptr(), before);
    assert_eq!((bytes.get(0).unwrap(), bytes.get(bytes.len() - 1).unwrap()), (1, 2));
}

fn odd_elements<B: Workbench>(subject: &Subject<B>) {
    // Twelve bytes do not divide a unit: an element lies across the border of two mappings.
    let mut points = vec::<[f32; 3], B>(subject, 4);
    let count = (subject.unit().0 / 12) as usize;
    points.resize(count, [1.0, 2.0, 3.0]).unwrap();
    points.push([4.0, 5.0, 6.0]).unwrap();
    points.push([7.0, 8.0, 9.0]).unwrap();
    assert_eq!(points.get(count).unwrap(), [4.0, 5.0, 6.0]);
    assert!(points.region().end() > subject.unit());
}

fn counts_that_do_not_fit<B: Workbench>(subject: &Subject<B>) {
    let mut numbers = vec::<u64, B>(subject, 1);
    for count in [usize::MAX, usize::MAX / 8 + 1] {
        let error = numbers.reserve(count).unwrap_err();
        assert!(matches!(error, Error::TooManyElements { .. }), "{error}");
        assert!(numbers.resize(count, 1).is_err());
    }
    numbers.push(1).unwrap();
    assert!(matches!(numbers.reserve(usize::MAX), Err(Error::TooManyElements { .. })));
    let error = numbers.reserve(1 << 58).unwrap_err();
    assert!(matches!(error, Error::TooManyAddresses { .. } | Error::ExceedsDevice { .. }), "{error}");
    let _ = DeviceVec::<u8, _>::new(&subject.backend, subject.device).unwrap();
}
