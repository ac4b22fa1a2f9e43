//! Memory that runs out, and driver calls that fail.

use super::filled;
use crate::case::cases;
use crate::library::tools::idle;
use crate::subject::{Subject, note};
use gpu_vmm_core::{Bytes, Detail, DeviceVec, Operation, Region};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "no_vmm":
    /// Growth beyond the device's memory is refused, and the region keeps its contents and address.
    larger_than_the_device,
    /// If the device has no memory for the old and the new contents, growth fails, and the region is as before.
    out_of_memory,
    /// Whichever driver call of growing or shrinking fails, the region keeps its contents and address, and a retry succeeds.
    every_call_of_a_region,
    /// Whichever driver call fails while a pool allocates, the pool is unchanged, and a retry succeeds.
    every_call_of_a_pool,
}

fn larger_than_the_device<B: TestKit>(subject: &Subject<B>) {
    let total = subject.backend.device(Operation::QueryDevice, subject.device).unwrap().total_memory;
    let mut region = filled(subject, 1);
    let address = region.address();
    let error = region.grow_to(total + Bytes(1)).unwrap_err();
    assert!(matches!(error.detail(), Detail::ExceedsDevice { .. }), "{error}");
    assert_eq!((region.address(), region.end()), (address, subject.unit()));
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

fn out_of_memory<B: TestKit>(subject: &Subject<B>) {
    let mut region = filled(subject, 1);
    let (address, free) = (region.address(), subject.free_here());
    let mut vec = DeviceVec::<u8, B>::from_slice(&subject.backend, subject.device, &[7; 100]).unwrap();
    let mut rest = subject.region(1).build().unwrap();
    // All but about one unit.
    let unit = subject.granularity().0;
    rest.grow_to(Bytes((subject.free_here().0 - subject.unit().0) / unit * unit)).unwrap();
    let error = region.grow_to(subject.units(3)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let Detail::OutOfMemory { requested, .. } = error.detail() else { panic!("{error:?}") };
    assert_eq!(*requested, subject.units(3));
    assert!(vec.resize(subject.units(3).to_usize().unwrap(), 1).unwrap_err().is_out_of_memory());
    assert_eq!((vec.to_vec().unwrap(), region.address()), (vec![7; 100], address));
    subject.check(&region, Bytes(0), subject.unit(), 1);
    drop((rest, vec));
    assert_eq!(subject.free_here(), free);
    region.grow_to(subject.units(3)).unwrap();
    subject.check(&region, Bytes(0), subject.unit(), 1);
}

type Change<B> = fn(&mut Region<FaultInject<B>>, Bytes) -> gpu_vmm_core::Result<()>;

fn every_call_of_a_region<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let changes: [(Change<B>, u64); 3] = [
        (|region, unit| region.grow_to(Bytes(3 * unit.0)).map(drop), 3),
        (|region, unit| region.shrink_to(unit, idle()).map(drop), 1),
        (|region, _| region.shrink_to(Bytes(0), idle()).map(drop), 0),
    ];
    let mut failed = 0;
    for (change, units) in changes {
        for call in 0.. {
            let mut region = Region::builder(&backend).on(subject.device).build().unwrap();
            region.grow_to(subject.units(2)).unwrap();
            region.write_pattern(subject.device, Bytes(0), region.end(), 1).unwrap();
            let (before, free) = ((region.address(), region.end()), subject.free_here());
            backend.fail(call, 1);
            let answer = change(&mut region, subject.unit());
            let calls = backend.stop();
            if answer.is_err() {
                failed += 1;
                assert_eq!(((region.address(), region.end()), subject.free_here()), (before, free));
                let wrong = region.count_wrong(subject.device, Bytes(0), region.end(), 1).unwrap();
                assert_eq!(wrong, 0, "after call {call}");
                change(&mut region, subject.unit()).unwrap();
            }
            assert_eq!(region.end(), subject.units(units));
            let kept = region.end().min(subject.units(2));
            if !kept.is_zero() {
                let wrong = region.count_wrong(subject.device, Bytes(0), kept, 1).unwrap();
                assert_eq!(wrong, 0, "after call {call} and a retry");
            }
            if calls <= call {
                break;
            }
        }
    }
    // Allocating, waiting and copying, twice; and waiting.
    assert!(failed >= 7, "{failed} calls failed");
    note(format!("{failed} calls failed"));
}

fn every_call_of_a_pool<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut failed = 0;
    for call in 0.. {
        let pool = Pool::builder(&backend).device(subject.device).scrub().build().unwrap();
        let first = pool.alloc(Bytes::mib(3)).unwrap();
        let before = pool.stats();
        backend.fail(call, 1);
        let answer = pool.alloc(Bytes::mib(7));
        let calls = backend.stop();
        if let Err(error) = &answer {
            failed += 1;
            let stats = pool.stats();
            assert_eq!(
                (stats.held, stats.live, stats.kept),
                (before.held, before.live, before.kept),
                "{error}"
            );
        }
        let second = answer.or_else(|_| pool.alloc(Bytes::mib(7))).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.live, stats.held), (Bytes::mib(10).0, Bytes::mib(12).0));
        drop((first, second));
        if calls <= call {
            break;
        }
    }
    assert!(failed >= 2, "{failed} calls failed");
}
