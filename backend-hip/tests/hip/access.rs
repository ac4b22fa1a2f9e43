//! Access in every pattern that HIP 7.0 to 7.2 refuse.

use crate::rig::{Numbers, Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Access, DeviceId, Grant, Reservation};
use gpu_vmm_hip::HipReservation;

pub(crate) const TESTS: &[Test] =
    &[Test { name: "access::random_layouts_and_parts", needs: Needs::Device, run: random }];

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
