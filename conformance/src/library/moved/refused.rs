//! Moves that are refused, and the state after a failure.

use super::{SEED, check, filled, owners, two};
use crate::case::cases;
use crate::library::sharing::{import_of, shareable};
use crate::library::tools::{idle, refused};
use crate::subject::{RW, Subject, or_skip, skip};
use gpu_vmm_core::{Bytes, Detail, DeviceId, MovePath, Operation, PhysicalMemory, Region, StagingRing};
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "moved":
    /// A move is refused if the process holds the memory outside of the region, or another region maps it too.
    held_elsewhere,
    /// A move of exported memory is refused, since the importer's mapping would not move along.
    exported,
    /// A move of imported memory is refused.
    imported,
    /// A move to a device that does not exist is refused, and so is a ring of another backend.
    wrong_arguments,
    /// If the new device has too little memory, the region is unchanged and neither device has lost memory.
    too_little_memory,
    /// Whichever driver call fails, the region stays on its device with its bytes, and a retry moves it; the first copy comes
    /// after the wait for all work.
    each_call_fails,
}

/// Checks that the move is refused with this reason, and that the region is unchanged.
fn stays<B: TestKit>(subject: &Subject<B>, region: &mut Region<B>, to: DeviceId, says: &str) {
    let offset = region.mappings().next().unwrap().offset;
    refused!(
        region.move_to_device(to, MovePath::Fastest(None), idle()),
        Detail::StillReferenced { .. },
        says,
        offset
    );
    assert!(owners(region).iter().all(|owner| *owner == subject.device));
    check(region, subject.device);
}

fn held_elsewhere<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let mut region = filled(subject, &[1]);
    let held = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    stays(subject, &mut region, b, "also held by a clone");
    let mut other = subject.space(1).build().unwrap();
    subject.open(&mut other, Bytes(0), &held);
    drop(held);
    stays(subject, &mut region, b, "also held by a clone");
    other.unmap(Bytes(0), subject.granules(1), idle()).unwrap();
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    check(&region, b);
    // Memory that already belongs to the device may also be held elsewhere.
    let _held = region.mapping_at(Bytes(0)).unwrap().memory.clone();
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
}

/// A region that maps this memory, filled with the pattern.
fn of<B: TestKit>(subject: &Subject<B>, memory: &PhysicalMemory<B>) -> Region<B> {
    let mut region =
        Region::builder(&subject.backend).on(subject.device).reserve(memory.size()).build().unwrap();
    subject.open(&mut region, Bytes(0), memory);
    subject.write(&mut region, Bytes(0), memory.size(), SEED);
    region
}

fn exported<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let memory = shareable(subject, 1);
    let mut region = of(subject, &memory);
    drop(or_skip(memory.export()));
    drop(memory);
    stays(subject, &mut region, b, "exported");
}

fn imported<B: TestKit>(subject: &Subject<B>) {
    let (_, b) = two(subject);
    let memory = shareable(subject, 1);
    let fd = or_skip(memory.export());
    let same = import_of(subject, fd, &memory);
    drop(memory);
    let mut region = of(subject, &same);
    drop(same);
    stays(subject, &mut region, b, "belongs to another process");
}

fn wrong_arguments<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, &[1]);
    let none = DeviceId(subject.backend.devices().len() as u32);
    let answer = region.move_to_device(none, MovePath::Fastest(None), idle());
    refused!(answer, Detail::NoSuchDevice { .. }, none);
    let answer = region.move_to_device(DeviceId::HOST, MovePath::Fastest(None), idle());
    refused!(answer, Detail::Unsupported { .. });
    let (_, b) = two(subject);
    let Some(foreign) = subject.target.foreign() else { skip("there is no second backend") };
    let ring = StagingRing::new(&foreign, 1, Bytes::kib(64)).unwrap();
    for via in [MovePath::Fastest(Some(&ring)), MovePath::Ring(&ring)] {
        refused!(region.move_to_device(b, via, idle()), Detail::ForeignHandle { .. });
    }
    assert_eq!(owners(&region), [subject.device]);
    check(&region, subject.device);
}

fn too_little_memory<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let mut held: Vec<PhysicalMemory<B>> = Vec::new();
    let mut size = subject.free_of(b);
    while size >= subject.granularity() {
        let on = gpu_vmm_core::Properties::on(b);
        match PhysicalMemory::create(&subject.backend, Bytes(size.0 - size.0 % subject.granularity().0), on) {
            Ok(memory) => held.push(memory),
            Err(_) => size = Bytes(size.0 / 2),
        }
    }
    let mut region = filled(subject, &[1, 3, 2]);
    let before = ([a, b].map(|device| subject.free_of(device)), region.range());
    let error = region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(([a, b].map(|device| subject.free_of(device)), region.range()), before);
    assert_eq!(owners(&region), [a; 3]);
    check(&region, a);
    region.grow_to(subject.granules(7)).unwrap();
    assert_eq!(owners(&region), [a; 4], "the region does not grow by its own device's memory");
    drop(held);
    region.move_to_device(b, MovePath::Fastest(None), idle()).unwrap();
    assert_eq!(region.count_wrong(b, Bytes(0), subject.granules(6), SEED).unwrap(), 0);
}

fn each_call_fails<B: TestKit>(subject: &Subject<B>) {
    let (a, b) = two(subject);
    let backend = FaultInject::new(subject.backend.clone());
    let ring = StagingRing::new(&backend, 1, Bytes(subject.granularity().0 / 2)).unwrap();
    for via in [MovePath::Fastest(Some(&ring)), MovePath::Ring(&ring)] {
        let (mut points, mut calls) = (0, Vec::new());
        loop {
            let builder = Region::builder(&backend).on(a).reserve(subject.granules(4));
            let mut region = builder.build().unwrap();
            for granules in [1, 2] {
                region.grow_to(subject.granules(granules)).unwrap();
            }
            region.write_pattern(a, Bytes(0), region.end(), SEED).unwrap();
            let live = backend.live();
            backend.fail(points, 1);
            let answer = region.move_to_device(b, via, idle());
            if backend.stop() <= points {
                answer.unwrap();
                break;
            }
            calls.push(answer.unwrap_err().driver_error().unwrap().call);
            assert_eq!(backend.live(), live, "driver call {points} failing");
            assert_eq!((region.access(Bytes(0), a), region.access(Bytes(0), b)), (RW, Default::default()));
            assert_eq!(region.count_wrong(a, Bytes(0), region.end(), SEED).unwrap(), 0);
            region.move_to_device(b, via, idle()).unwrap();
            assert_eq!(region.count_wrong(b, Bytes(0), region.end(), SEED).unwrap(), 0);
            points += 1;
        }
        assert!(points > 12, "{points} driver calls");
        let first = |of: &[&str]| calls.iter().position(|call| of.contains(call));
        let (wait, copy) = (
            first(&[Operation::WaitForDevice.name()]),
            first(&[Operation::Copy.name(), Operation::QueueCopyToHost.name()]),
        );
        assert!(wait.is_some() && wait < copy, "the first copy came before the wait: {calls:?}");
    }
}
