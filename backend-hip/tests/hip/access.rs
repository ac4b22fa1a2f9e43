//! Access in every pattern that HIP 7.0 to 7.2 refuse.

use crate::rig::{Numbers, Rig, ZERO, read, read_write};
use crate::{Needs, Test};
use gpu_vmm_core::{Access, Bytes, DeviceId, Grant, Reservation};
use gpu_vmm_hip::HipReservation;
use gpu_vmm_testkit::TestKit;

pub(crate) const TESTS: &[Test] = &[
    Test { name: "access::growth_in_unequal_steps", needs: Needs::Device, run: unequal },
    Test { name: "access::growth_in_thirty_random_steps", needs: Needs::Device, run: random_growth },
    Test { name: "access::what_came_first_may_have_another_access", needs: Needs::Device, run: mixed },
    Test { name: "access::holes", needs: Needs::Device, run: holes },
    Test { name: "access::one_mapping_in_the_middle", needs: Needs::Device, run: middle },
    Test { name: "access::random_layouts_and_parts", needs: Needs::Device, run: random },
    Test { name: "access::read_only_can_be_read", needs: Needs::Device, run: read_only },
];

/// Maps a new handle of `count` units at unit `place`.
fn map(rig: &Rig, reservation: &mut HipReservation, place: u64, count: u64) {
    let handle = rig.create(ZERO, rig.units(count));
    // SAFETY: the tests map only free places.
    unsafe { reservation.map(rig.units(place), &handle) }.unwrap();
}

fn set(rig: &Rig, reservation: &mut HipReservation, place: u64, count: u64, grants: &[Grant]) {
    // SAFETY: the tests name adjacent whole mappings.
    let answer = unsafe { reservation.set_access(rig.units(place), rig.units(count), grants) };
    answer.unwrap_or_else(|error| panic!("{count} units at {place}: {error}"));
}

fn get(rig: &Rig, reservation: &HipReservation, place: u64, device: DeviceId) -> Access {
    // SAFETY: the tests name a mapped unit.
    unsafe { reservation.access(rig.units(place), device) }.unwrap()
}

fn unmap_all(rig: &Rig, reservation: &mut HipReservation, mappings: &[(u64, u64)]) {
    for (place, count) in mappings {
        // SAFETY: a whole mapping that nothing uses any more.
        unsafe { reservation.unmap(rig.units(*place), rig.units(*count)) }.unwrap();
    }
}

fn grow(rig: &Rig, steps: &[u64]) {
    let mut reservation = rig.reserve(rig.units(steps.iter().sum()));
    let mut mappings = Vec::new();
    let mut end = 0;
    for step in steps {
        map(rig, &mut reservation, end, *step);
        set(rig, &mut reservation, end, *step, &[read_write(ZERO)]);
        mappings.push((end, *step));
        end += step;
        for (place, _) in &mappings {
            assert_eq!(get(rig, &reservation, *place, ZERO), Access::ReadWrite);
        }
        rig.works(ZERO, &reservation, Bytes::ZERO, rig.units(end), end);
    }
    unmap_all(rig, &mut reservation, &mappings);
}

fn unequal(rig: &Rig) {
    grow(rig, &[1, 3, 2, 5, 1]);
}

fn random_growth(rig: &Rig) {
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let steps: Vec<_> = (0..30).map(|_| 1 + numbers.below(6)).collect();
    grow(rig, &steps);
}

fn mixed(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(10));
    let mappings = [(0, 1), (1, 3), (4, 2), (6, 4)];
    for (place, count) in mappings {
        map(rig, &mut reservation, place, count);
    }
    set(rig, &mut reservation, 0, 1, &[read(ZERO)]);
    set(rig, &mut reservation, 4, 2, &[read_write(ZERO)]);
    set(rig, &mut reservation, 6, 4, &[read_write(ZERO)]);
    let all = |reservation: &HipReservation| mappings.map(|(place, _)| get(rig, reservation, place, ZERO));
    use Access::{None, Read, ReadWrite};
    assert_eq!(all(&reservation), [Read, None, ReadWrite, ReadWrite]);
    set(rig, &mut reservation, 1, 5, &[read(ZERO)]);
    assert_eq!(all(&reservation), [Read, Read, Read, ReadWrite]);
    set(rig, &mut reservation, 6, 4, &[Grant { device: ZERO, access: None }]);
    assert_eq!(all(&reservation), [Read, Read, Read, None]);
    set(rig, &mut reservation, 0, 10, &[read_write(ZERO)]);
    assert_eq!(all(&reservation), [ReadWrite; 4]);
    rig.works(ZERO, &reservation, Bytes::ZERO, rig.units(10), 1);
    unmap_all(rig, &mut reservation, &mappings);
}

fn holes(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(20));
    // In another order than that of the places, and of various sizes.
    let mappings = [(9, 4), (2, 1), (3, 3), (16, 2)];
    for (place, count) in mappings {
        map(rig, &mut reservation, place, count);
        set(rig, &mut reservation, place, count, &[read_write(ZERO)]);
        rig.works(ZERO, &reservation, rig.units(place), rig.units(count), place);
    }
    set(rig, &mut reservation, 2, 4, &[read(ZERO)]);
    let all = mappings.map(|(place, _)| get(rig, &reservation, place, ZERO));
    assert_eq!(all, [Access::ReadWrite, Access::Read, Access::Read, Access::ReadWrite]);
    unmap_all(rig, &mut reservation, &mappings);
}

fn middle(rig: &Rig) {
    let mut reservation = rig.reserve(rig.units(9));
    let mappings = [(0, 2), (2, 1), (3, 6)];
    for (place, count) in mappings {
        map(rig, &mut reservation, place, count);
    }
    set(rig, &mut reservation, 2, 1, &[read_write(ZERO)]);
    let all = mappings.map(|(place, _)| get(rig, &reservation, place, ZERO));
    assert_eq!(all, [Access::None, Access::ReadWrite, Access::None], "its neighbours have no access");
    rig.works(ZERO, &reservation, rig.units(2), rig.unit(), 1);
    unmap_all(rig, &mut reservation, &mappings);
}

/// Adds and removes mappings, and sets the access of random runs of them. After each step every mapping must have the
/// access that a model predicts.
fn random(rig: &Rig) {
    const PLACES: u64 = 24;
    let mut numbers = Numbers(0xfeed_5eed_0bad_cafe);
    for _ in 0..6 {
        let mut reservation = rig.reserve(rig.units(PLACES));
        let mut model: Vec<(u64, u64, Access)> = Vec::new();
        for step in 0..60 {
            match numbers.below(5) {
                0 | 1 => {
                    let (place, count) = (numbers.below(PLACES), 1 + numbers.below(5));
                    let free =
                        model.iter().all(|(at, length, _)| place + count <= *at || at + length <= place);
                    if free && place + count <= PLACES {
                        map(rig, &mut reservation, place, count);
                        model.push((place, count, Access::None));
                        model.sort_unstable_by_key(|(at, ..)| *at);
                    }
                }
                2 if !model.is_empty() => {
                    let (place, count, _) = model.remove(numbers.below(model.len() as u64) as usize);
                    unmap_all(rig, &mut reservation, &[(place, count)]);
                }
                _ if !model.is_empty() => {
                    let first = numbers.below(model.len() as u64) as usize;
                    let mut last = first;
                    while numbers.below(3) != 0
                        && model.get(last + 1).is_some_and(|next| next.0 == model[last].0 + model[last].1)
                    {
                        last += 1;
                    }
                    let access = [Access::None, Access::Read, Access::ReadWrite][numbers.below(3) as usize];
                    let (place, end) = (model[first].0, model[last].0 + model[last].1);
                    set(rig, &mut reservation, place, end - place, &[Grant { device: ZERO, access }]);
                    model[first..=last].iter_mut().for_each(|mapping| mapping.2 = access);
                }
                _ => {}
            }
            for (place, _, access) in &model {
                assert_eq!(
                    get(rig, &reservation, *place, ZERO),
                    *access,
                    "step {step}, unit {place} of {model:?}"
                );
            }
        }
        let left: Vec<_> = model.iter().map(|(place, count, _)| (*place, *count)).collect();
        unmap_all(rig, &mut reservation, &left);
    }
}

fn read_only(rig: &Rig) {
    let size = rig.units(2);
    let mut reservation = rig.mapped(ZERO, size);
    rig.writes_all(ZERO, &reservation, Bytes::ZERO, size, 9);
    // SAFETY: all of it is mapped; after it became read-only, it is only read.
    unsafe {
        reservation.set_access(Bytes::ZERO, size, &[read(ZERO)]).unwrap();
        let wrong = rig.backend.count_wrong(ZERO, reservation.range().base, size, 9).unwrap();
        assert_eq!(wrong, 0);
        reservation.unmap(Bytes::ZERO, size).unwrap();
    }
}
