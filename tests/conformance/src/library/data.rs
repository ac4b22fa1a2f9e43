//! Bytes in and out, through the devices that own the memory.

use crate::case::cases;
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Bytes, Error, Workbench};

cases! { "data":
    /// bytes are where they belong.
    bytes_are_where_they_belong,
    /// over many mappings.
    over_many_mappings,
    /// over two owners.
    over_two_owners,
    /// the owner must have access.
    the_owner_must_have_access,
    /// the pattern continues.
    the_pattern_continues,
}

fn bytes_are_where_they_belong<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(2).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.fill(Bytes(0), subject.units(2), 0xee).unwrap();
    let last = subject.units(2) - Bytes(1);
    for (offset, byte) in [(Bytes(0), 1), (Bytes(1), 2), (Bytes(4095), 3), (subject.unit(), 4), (last, 5)] {
        region.write(offset, &[byte]).unwrap();
    }
    let mut all = vec![0; subject.units(2).0 as usize];
    region.read(Bytes(0), &mut all).unwrap();
    let others = all.iter().filter(|byte| **byte == 0xee).count();
    assert_eq!(others, all.len() - 5);
    assert_eq!(
        (all[0], all[1], all[4095], all[subject.unit().0 as usize], all[all.len() - 1]),
        (1, 2, 3, 4, 5)
    );
}

fn over_many_mappings<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(10).build().unwrap();
    for units in 1..=10 {
        region.grow_to(subject.units(units)).unwrap();
    }
    let length = subject.units(9).0 as usize;
    let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    region.write(Bytes(17), &bytes).unwrap();
    let mut back = vec![0; length];
    region.read(Bytes(17), &mut back).unwrap();
    assert!(bytes == back);
}

fn over_two_owners<B: Workbench>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(4).on(a).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.grow_to_on(b, subject.units(4)).unwrap();
    // No device has access to all of it; each owner moves its own part.
    let bytes: Vec<u8> = (0..100).collect();
    region.write(subject.units(2) - Bytes(50), &bytes).unwrap();
    let mut back = vec![0; 100];
    region.read(subject.units(2) - Bytes(50), &mut back).unwrap();
    assert_eq!(bytes, back);
}

fn the_owner_must_have_access<B: Workbench>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let mut region = subject.region(1).on(a).build().unwrap();
    region.map(Bytes(0), &subject.memory(1)).unwrap();
    region.set_access(Bytes(0), subject.unit(), b, RW).unwrap();
    let error = region.write(Bytes(0), &[1]).unwrap_err();
    assert!(matches!(error, Error::NoAccess { device, .. } if device == a), "{error}");
    // Work of the device that was asked for needs nobody else's access; where the pattern is written by copies, HIP 6
    // would have the owner do them, and the backend says so.
    match region.write_pattern(b, Bytes(0), subject.unit(), 3) {
        Err(Error::Unsupported { .. }) if subject.backend.pattern_by() == "copies" => {}
        answer => {
            answer.unwrap();
            assert_eq!(region.count_wrong(b, Bytes(0), subject.unit(), 3).unwrap(), 0);
        }
    }
}

fn the_pattern_continues<B: Workbench>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(4)).unwrap();
    let part = subject.unit().0 / 8;
    for unit in 0..4 {
        region.write_pattern(subject.device, subject.units(unit), subject.unit(), 100 + unit * part).unwrap();
    }
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(4), 100).unwrap(), 0);
    assert_eq!(region.count_wrong(subject.device, Bytes(0), subject.units(4), 101).unwrap(), 4 * part);
    let word = gpu_vmm_core::workbench::pattern_word(100, 5).to_ne_bytes();
    let mut bytes = [0; 8];
    region.read(Bytes(40), &mut bytes).unwrap();
    assert_eq!(bytes, word);
}
