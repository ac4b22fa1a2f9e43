//! Rule 9: every function can be called from any thread, and from several threads at once.

use crate::case::cases;
use crate::library::tools::{has, mapped, write};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    Access, AddressRange, BackingStore, Bytes, Detail, DeviceVec, Error, PhysicalMemory, Placement, Region,
    WaitFor,
};
use gpu_vmm_testkit::TestKit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Barrier, mpsc};

cases! { "threads":
    /// Backends, regions, memory, vectors and errors can be sent to other threads and shared between them.
    types_cross_threads,
    /// Threads that build, fill, check and shrink their own regions do not affect each other.
    many_threads,
    /// A thread that never made a driver call can do everything, from reserving to reading back.
    a_fresh_thread_does_everything,
    /// A region can be built by one thread, grown and written by a second after the first has ended, and dropped by a third.
    made_used_and_dropped_in_three_threads,
    /// Many threads can map one piece of memory at once, each in its own region, and all read its bytes.
    one_memory_in_many_regions,
    /// Several threads can read one region at once, through shared references.
    one_region_read_by_many,
    /// Regions that grow in several threads at once do not overlap, and none moves.
    regions_grow_at_the_same_time,
    /// After many threads have created and dropped memory as fast as they can, no free memory is lost.
    a_storm_leaves_nothing,
    /// An error of one thread does not affect calls of other threads.
    errors_stay_in_their_thread,
    /// A thread that panics releases everything that it had.
    a_panic_gives_everything_back,
    /// Threads that open the backend at the same time each get a usable one, and on a GPU's driver the same one.
    opened_by_many_threads,
}

fn types_cross_threads<B: TestKit>(_: &Subject<B>) {
    fn both<T: Send + Sync>() {}
    both::<B>();
    both::<Region<B>>();
    both::<PhysicalMemory<B>>();
    both::<DeviceVec<f32, B>>();
    both::<BackingStore<B>>();
    both::<Error>();
}

/// The number of threads of a case.
const THREADS: u64 = 8;

/// Runs `work` on all threads at the same time, each with its number.
fn at_once<T: Send>(work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    work(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn many_threads<B: TestKit>(subject: &Subject<B>) {
    at_once(|thread| {
        for round in 0..5 {
            let mut region = subject.region(4).build().unwrap();
            region.grow_to(subject.units(1 + (thread + round) % 4)).unwrap();
            write(subject, &mut region, thread);
            assert!(has(subject, &region, thread));
            let _ = region.shrink_to(Bytes(0), WaitFor::all_devices()).unwrap();
        }
    });
}

fn a_fresh_thread_does_everything<B: TestKit>(subject: &Subject<B>) {
    let everything = || {
        let memory = subject.memory(1);
        let mut region = subject.region(2).build().unwrap();
        region.map(Bytes(0), &memory).unwrap();
        region.set_access(Bytes(0), subject.unit(), subject.device, RW).unwrap();
        region.grow_to(subject.units(2)).unwrap();
        write(subject, &mut region, 3);
        let mut bytes = [0; 8];
        region.read(Bytes(0), &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), gpu_vmm_testkit::pattern_word(3, 0));
        region.set_access(Bytes(0), subject.unit(), subject.device, Access::Read).unwrap();
        assert!(has(subject, &region, 3));
        region.unmap(Bytes(0), subject.unit(), WaitFor::all_devices()).unwrap();
        region.close(WaitFor::all_devices()).unwrap();
        drop(memory);
        subject.free_here()
    };
    let free = subject.free_here();
    let free_there = std::thread::scope(|scope| scope.spawn(everything).join());
    assert_eq!(free_there.unwrap_or_else(|panic| resume_unwind(panic)), free);
}

fn made_used_and_dropped_in_three_threads<B: TestKit>(subject: &Subject<B>) {
    let (to_second, from_first) = mpsc::channel::<Region<B>>();
    let (to_third, from_second) = mpsc::channel::<Region<B>>();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            let mut region = subject.region(3).build().unwrap();
            region.grow_to(subject.unit()).unwrap();
            write(subject, &mut region, 5);
            to_second.send(region).unwrap();
        });
        scope.spawn(move || {
            let mut region = from_first.recv().unwrap();
            first.join().unwrap();
            assert!(has(subject, &region, 5), "the bytes of the ended thread are lost");
            region.grow_to(subject.units(3)).unwrap();
            write(subject, &mut region, 6);
            to_third.send(region).unwrap();
        });
        scope.spawn(move || {
            let region = from_second.recv().unwrap();
            assert!(has(subject, &region, 6));
            drop(region);
        });
    });
}

fn one_memory_in_many_regions<B: TestKit>(subject: &Subject<B>) {
    let memory = subject.memory(1);
    write(subject, &mut mapped(subject, &[&memory]), 9);
    at_once(|_| {
        for _ in 0..4 {
            let region = mapped(subject, &[&memory]);
            assert!(has(subject, &region, 9) && !has(subject, &region, 10));
            region.close(WaitFor::all_devices()).unwrap();
        }
    });
    assert!(has(subject, &mapped(subject, &[&memory]), 9), "the bytes are lost with the regions");
}

fn one_region_read_by_many<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.region(4).build().unwrap();
    region.grow_to(subject.units(2)).unwrap();
    region.grow_to(subject.units(4)).unwrap();
    write(subject, &mut region, 11);
    let region = &region;
    at_once(|thread| {
        for round in 0..4 {
            let word = (thread * 4 + round) * 1000;
            let mut bytes = [0; 8];
            region.read(Bytes(8 * word), &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), gpu_vmm_testkit::pattern_word(11, word));
            assert!(has(subject, region, 11));
        }
    });
}

fn regions_grow_at_the_same_time<B: TestKit>(subject: &Subject<B>) {
    let ranges: Vec<AddressRange> = at_once(|thread| {
        let mut region = subject.region(5).build().unwrap();
        let address = region.address();
        for units in 1..=5 {
            let from = region.end();
            region.grow_to(subject.units(units)).unwrap();
            assert_eq!(region.address(), address);
            let seed = thread + from.0 / 8;
            region.write_pattern(subject.device, from, subject.unit(), seed).unwrap();
            assert!(has(subject, &region, thread), "earlier bytes are lost after {units} steps");
        }
        let range = region.range();
        // Kept to the end, so that no other region can get these addresses.
        (region, range)
    })
    .into_iter()
    .map(|(_region, range)| range)
    .collect();
    for (index, one) in ranges.iter().enumerate() {
        let apart = |other: &AddressRange| one.end() <= other.base || other.end() <= one.base;
        assert!(ranges[index + 1..].iter().all(apart), "{ranges:?}");
    }
}

fn a_storm_leaves_nothing<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free();
    at_once(|thread| {
        for round in 0..25 {
            let memory = subject.memory(1 + (thread + round) % 3);
            let mut region = subject.region(4).build().unwrap();
            match round % 3 {
                0 => drop(memory),
                1 => region.map(Bytes(0), &memory).unwrap(),
                _ => {
                    region.map(subject.unit(), &memory).unwrap();
                    drop(memory);
                    region.set_access(subject.unit(), region.mapped(), subject.device, RW).unwrap();
                    region.fill(subject.unit(), Bytes(64), round as u8).unwrap();
                }
            }
        }
    });
    assert_eq!(subject.free(), free);
    assert!(subject.backend.drop_log().take_last().is_none());
}

fn errors_stay_in_their_thread<B: TestKit>(subject: &Subject<B>) {
    let total = subject.backend.memory_info(subject.device).unwrap().total;
    let all = Bytes(total.0 - total.0 % subject.unit().0);
    let mut taken = subject.region(1).build().unwrap();
    taken.grow_to(subject.unit()).unwrap();
    at_once(|thread| {
        for _ in 0..8 {
            if thread % 2 == 0 {
                let mut region = subject.region(2).build().unwrap();
                region.grow_to(subject.units(2)).unwrap();
                write(subject, &mut region, thread);
                assert!(has(subject, &region, thread));
            } else {
                let answer = subject.region(1).at(Placement::Exact(taken.address())).build();
                assert!(
                    matches!(answer.as_ref().map_err(Error::detail), Err(Detail::AddressTaken { .. })),
                    "{answer:?}"
                );
                // Part of it is already in use.
                let answer = PhysicalMemory::create(&subject.backend, all, subject.properties());
                assert!(
                    matches!(answer.as_ref().map_err(Error::detail), Err(Detail::OutOfMemory { .. })),
                    "{answer:?}"
                );
            }
        }
    });
}

fn a_panic_gives_everything_back<B: TestKit>(subject: &Subject<B>) {
    let free = subject.free();
    at_once(|thread| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let memory = subject.memory(1);
            let mut region = mapped(subject, &[&memory]);
            write(subject, &mut region, thread);
            resume_unwind(Box::new("as planned"))
        }));
        let () = panicked.map_err(|panic| assert!(panic.is::<&str>())).unwrap_err();
    });
    assert_eq!(subject.free(), free);
}

fn opened_by_many_threads<B: TestKit>(subject: &Subject<B>) {
    let opened = at_once(|thread| {
        let backend = subject.target.open().unwrap();
        let mut region =
            Region::builder(&backend).on(subject.device).reserve(subject.unit()).build().unwrap();
        region.grow_to(subject.unit()).unwrap();
        write(subject, &mut region, thread);
        assert!(has(subject, &region, thread));
        drop(region);
        backend
    });
    for backend in &opened {
        assert_eq!(backend.devices().len(), subject.backend.devices().len());
        let is_the_same = backend.instance() == subject.backend.instance();
        assert_ne!(is_the_same, subject.target.is_fresh(), "{:?}", backend.instance());
    }
}
