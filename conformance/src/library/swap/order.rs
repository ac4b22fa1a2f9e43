//! What a swap waits for, and how many calls it makes.

use super::SEEDS;
use crate::case::cases;
use crate::library::flights::{finish, goes_on, start, start_longer};
use crate::library::tools::{idle, streams_idle};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{Access, Bytes, Operation, PhysicalMemory, Region, WaitFor};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "swap":
    /// A swap that waits for all devices returns after the work on both regions has ended, and the work's result moves along.
    work_on_either_side_is_waited_for,
    /// A swap that waits for a stream neither waits for work on other memory nor disturbs it.
    other_work_goes_on,
    /// If the wait fails, no other call is made, and both regions are unchanged.
    a_failed_wait_changes_nothing,
    /// A swap waits for the devices with access to either region, each device once.
    the_users_of_both_are_waited_for,
    /// A swap makes one map for each mapping, two set-access calls, and two unmaps, or one unmap for each mapping if the
    /// backend cannot unmap runs.
    few_calls,
}

/// A region with one unit.
fn unit<B: TestKit>(subject: &Subject<B>, seed: u64) -> Region<B> {
    let mut region = subject.region(1).build().unwrap();
    region.grow_to(subject.unit()).unwrap();
    subject.write(&mut region, Bytes(0), subject.unit(), seed);
    region
}

fn work_on_either_side_is_waited_for<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 30;
    for busy in 0..2 {
        let mut regions = SEEDS.map(|seed| unit(subject, seed));
        let flight = start(subject, &regions[busy], Bytes(0), AFTER);
        let [one, other] = &mut regions;
        one.swap(Bytes(0), other, Bytes(0), subject.unit(), idle()).unwrap();
        assert!(flight.is_done().unwrap(), "swapped before the work had ended");
        subject.check(&regions[1 - busy], Bytes(0), subject.unit(), AFTER);
        subject.check(&regions[busy], Bytes(0), subject.unit(), SEEDS[1 - busy]);
    }
}

fn other_work_goes_on<B: TestKit>(subject: &Subject<B>) {
    const AFTER: u64 = 1 << 30;
    goes_on(subject, |times| {
        let [mut one, mut other, third] = [SEEDS[0], SEEDS[1], 5].map(|seed| unit(subject, seed));
        let long = start_longer(subject, &third, Bytes(0), AFTER, 2 * times);
        let short = start(subject, &one, Bytes(0), AFTER);
        let done = [short.stream()];
        one.swap_all(&mut other, streams_idle(&done)).unwrap();
        let went_on = !long.is_done().unwrap();
        assert!(short.is_done().unwrap(), "swapped before the work had ended");
        finish(subject, &*long);
        subject.check(&third, Bytes(0), subject.unit(), AFTER);
        subject.check(&other, Bytes(0), subject.unit(), AFTER);
        went_on
    });
}

/// Two regions with this number of mappings, on a backend that counts calls.
fn counted<B: TestKit>(subject: &Subject<B>, mappings: u64) -> (FaultInject<B>, [Region<FaultInject<B>>; 2]) {
    let backend = FaultInject::new(subject.backend.clone());
    let regions = SEEDS.map(|seed| {
        let builder = Region::builder(&backend).on(subject.device);
        let mut region = builder.reserve(subject.granules(mappings)).build().unwrap();
        for granules in 1..=mappings {
            region.grow_to(subject.granules(granules)).unwrap();
        }
        region.write_pattern(subject.device, Bytes(0), region.end(), seed).unwrap();
        region
    });
    (backend, regions)
}

fn a_failed_wait_changes_nothing<B: TestKit>(subject: &Subject<B>) {
    let (backend, [mut one, mut other]) = counted(subject, 2);
    backend.fail(0, 1);
    let error = one.swap_all(&mut other, idle()).unwrap_err();
    assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
    assert_eq!(backend.stop(), 1, "another call followed the failed wait");
    for (region, seed) in [(&one, SEEDS[0]), (&other, SEEDS[1])] {
        assert_eq!(region.count_wrong(subject.device, Bytes(0), region.end(), seed).unwrap(), 0);
    }
}

fn the_users_of_both_are_waited_for<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = subject.two_devices();
    let backend = FaultInject::new(subject.backend.clone());
    // The owner of the memory does not matter: only the peer has access to the second region.
    let mut regions = [a, b].map(|user| {
        let memory = PhysicalMemory::create(&backend, subject.granularity(), subject.properties()).unwrap();
        let mut region = Region::builder(&backend).reserve(memory.size()).build().unwrap();
        region.map(Bytes(0), &memory).unwrap();
        region.set_access(Bytes(0), memory.size(), user, RW).unwrap();
        region
    });
    let [one, other] = &mut regions;
    // A query of peer access is a driver call, too.
    let mut waits = Vec::new();
    for failing in 0..6 {
        backend.fail(failing, 1);
        let answer = one.swap_all(other, idle());
        let calls = backend.stop();
        let call = answer.unwrap_err().driver_error().unwrap().call;
        if call == Operation::WaitForDevice.name() {
            assert_eq!(calls, failing + 1, "another call followed the failed wait");
        }
        waits.push(call);
    }
    assert_eq!(waits.iter().filter(|call| **call == Operation::WaitForDevice.name()).count(), 2, "{waits:?}");
}

#[allow(unsafe_code)]
fn few_calls<B: TestKit>(subject: &Subject<B>) {
    for mappings in [1, 4] {
        let (backend, [mut one, mut other]) = counted(subject, mappings);
        let unmaps = if subject.backend.unmaps_runs() { 2 } else { 2 * mappings };
        backend.fail(0, 0);
        // SAFETY: no work was queued on the memory.
        one.swap_all(&mut other, unsafe { WaitFor::nothing() }).unwrap();
        assert_eq!(backend.stop(), unmaps + 2 * mappings + 2, "with {mappings} mappings each");
        backend.fail(0, 0);
        one.swap_all(&mut other, idle()).unwrap();
        assert_eq!(backend.stop(), 1 + unmaps + 2 * mappings + 2, "the swap does not wait exactly once");
        one.set_access(Bytes(0), subject.granularity(), subject.device, Access::Read).unwrap();
        one.set_access(Bytes(0), subject.granularity(), subject.device, RW).unwrap();
    }
}
