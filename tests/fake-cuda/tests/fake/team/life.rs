//! A team's life.

use super::{
    BOTH, GRANULE, ONE, SIZE, TWO, UNIT, both, bound, check_nothing_is_left, idle, memory, open, wrong_words,
};
use crate::rig::Cuda;
use gpu_vmm::AnyBackend;
use gpu_vmm_core::multicast::{MulticastBackend, MulticastRange, Team};
use gpu_vmm_core::{Backend, Bytes, Detail, PhysicalMemory, Placement, WaitFor};
use gpu_vmm_cuda::CudaBackend;
use gpu_vmm_test_settings::cases;
use gpu_vmm_testkit::{CaptureMode, FaultInject, TestKit};

cases! {
    a_store_reaches_every_device;
    sizes_are_rounded;
    an_address_can_be_chosen;
    bound_memory_is_held;
    everything_can_be_dropped_at_any_step;
    ends_during_a_capture;
    dropping_waits [WORK_DELAY = "100ms"];
    unmapping_waits [WORK_DELAY = "100ms"];
}

/// Each device in turn writes a pattern to the object.
fn whole_life<B: MulticastBackend + TestKit>(backend: &B) {
    let team = both(backend).create().unwrap();
    assert_eq!((team.size(), team.devices()), (SIZE, BOTH.as_slice()));
    let mut object = team.complete();
    let memory = BOTH.map(|device| memory(backend, device));
    for memory in &memory {
        object.bind(Bytes::ZERO, memory, Bytes::ZERO, SIZE).unwrap();
    }
    let range = object.map(Placement::Anywhere).unwrap();
    assert_eq!((range.range().size, range.range().base), (SIZE, range.address()));
    assert_eq!((range.multicast().devices(), range.multicast().bindings().count()), (BOTH.as_slice(), 2));
    for (seed, device) in (5..).zip(BOTH) {
        // SAFETY: the range is mapped, and both devices may store to it.
        unsafe { backend.write_pattern(device, range.address(), SIZE, seed) }.unwrap();
        for memory in &memory {
            assert_eq!(wrong_words(backend, memory, seed), 0, "{device} to {}", memory.device());
        }
    }
    // Unmaps it, and maps it once more.
    let mut object = range.unmap(idle()).unwrap();
    let devices: Vec<_> = object.bindings().map(|bound| bound.memory.device()).collect();
    assert_eq!(devices, BOTH);
    object.unbind(TWO, Bytes::ZERO).unwrap();
    let half = Bytes(SIZE.0 / 2);
    object.bind(Bytes::ZERO, &memory[1], half, half).unwrap();
    object.bind(half, &memory[1], Bytes::ZERO, half).unwrap();
    let bound = object.bindings().map(|bound| (bound.offset, bound.length, bound.memory_offset));
    let halves = [(Bytes::ZERO, half, half), (half, half, Bytes::ZERO)];
    assert_eq!(bound.skip(1).collect::<Vec<_>>(), halves);
    let range = object.map(Placement::Anywhere).unwrap();
    // SAFETY: as above.
    unsafe { backend.write_pattern(ONE, range.address(), SIZE, 9) }.unwrap();
    range.close(idle()).unwrap();
    assert_eq!(wrong_words(backend, &memory[0], 9), 0);
    // Its halves are exchanged.
    assert_eq!(wrong_words(backend, &memory[1], 9), SIZE.0 / 8);
    one_half_is_bound(backend, &memory);
}

/// The second half of an object is the first half of a device's memory. It alone is bound, so that the offsets in the object and
/// in the memory cannot stand for each other.
fn one_half_is_bound<B: MulticastBackend + TestKit>(backend: &B, memory: &[PhysicalMemory<B>; 2]) {
    let half = Bytes(SIZE.0 / 2);
    let mut object = both(backend).create().unwrap().complete();
    for memory in memory {
        object.bind(half, memory, Bytes::ZERO, half).unwrap();
    }
    let range = object.map(Placement::Anywhere).unwrap();
    // SAFETY: both devices have memory in the second half of the range, and may store to it.
    unsafe { backend.write_pattern(ONE, range.address() + half, half, 13) }.unwrap();
    range.close(idle()).unwrap();
    for memory in memory {
        assert_eq!(wrong_words(backend, memory, 13), half.0 / 8, "its second half is as before");
    }
}

fn a_store_reaches_every_device(cuda: &Cuda) {
    let backend = open(cuda);
    whole_life(&backend);
    check_nothing_is_left(cuda, &backend);
    whole_life(&AnyBackend::from(backend.clone()));
    whole_life(&FaultInject::new(AnyBackend::from(backend.clone())));
    check_nothing_is_left(cuda, &backend);
}

fn ends_during_a_capture(cuda: &Cuda) {
    let backend = open(cuda);
    let ends: [fn(MulticastRange<CudaBackend>); 2] = [drop, |range| {
        let error = range.close(idle()).unwrap_err();
        assert!(matches!(error.detail(), Detail::Capturing { .. }), "{error}");
    }];
    for end in ends {
        let range = bound(&backend).map(Placement::Anywhere).unwrap();
        let stream = backend.own_stream(ONE).unwrap();
        // SAFETY: no work is captured, and the capture ends below.
        unsafe { backend.begin_capture(ONE, stream.stream(), CaptureMode::Relaxed) }.unwrap();
        backend.deferred().capture_begins();
        end(range);
        assert_eq!(backend.deferred().kept(), SIZE);
        drop(backend.end_capture(ONE, stream.stream()).unwrap());
        backend.deferred().capture_ends();
        assert_eq!(backend.deferred().collect(&backend).unwrap(), SIZE);
        drop(stream);
        check_nothing_is_left(cuda, &backend);
    }
}

fn sizes_are_rounded(cuda: &Cuda) {
    let backend = open(cuda);
    let builder = Team::builder(&backend).size(Bytes(1)).device(ONE);
    let granularity = builder.granularity().unwrap();
    // Nor is memory's granularity.
    assert_eq!(granularity.minimum.bytes(), UNIT);
    assert!(granularity.recommended > granularity.minimum);
    let mut object = builder.create().unwrap().complete();
    assert_eq!((object.size(), object.granularity()), (UNIT, granularity));
    // Memory rounded to its own granularity is too small; rounded to the object's it fits.
    let small = PhysicalMemory::create(&backend, Bytes(1), super::Properties::on(ONE)).unwrap();
    assert_eq!(small.size(), GRANULE);
    object.bind(Bytes::ZERO, &small, Bytes::ZERO, UNIT).unwrap_err();
    let right = PhysicalMemory::create(&backend, object.size(), super::Properties::on(ONE)).unwrap();
    object.bind(Bytes::ZERO, &right, Bytes::ZERO, UNIT).unwrap();
    let range = object.map(Placement::Anywhere).unwrap();
    assert!(range.address().is_aligned_to(granularity.recommended.bytes()));
    assert_eq!(range.range().size, UNIT);
    drop((range, small, right));
    check_nothing_is_left(cuda, &backend);
}

fn an_address_can_be_chosen(cuda: &Cuda) {
    let backend = open(cuda);
    let first = bound(&backend).map(Placement::Anywhere).unwrap();
    let address = first.address();
    // The address is taken: the second object is returned, and mapped elsewhere.
    let failed = bound(&backend).map(Placement::Exact(address)).unwrap_err();
    assert!(matches!(failed.error().detail(), Detail::AddressTaken { .. }), "{failed}");
    let second = failed.into_kept();
    assert_eq!(second.bindings().count(), 2);
    let second = second.map(Placement::Prefer(address)).unwrap();
    assert_ne!(second.address(), address);
    let first = first.unmap(idle()).unwrap();
    let first = first.map(Placement::Exact(address)).unwrap();
    assert_eq!(first.address(), address);
    // A chosen address need not be aligned for the best speed.
    let mut small = Team::builder(&backend).size(UNIT).device(ONE).create().unwrap().complete();
    small.bind(Bytes::ZERO, &memory(&backend, ONE), Bytes::ZERO, UNIT).unwrap();
    drop((first, second));
    let between = address + backend.reservation_unit().bytes();
    let small = small.map(Placement::Exact(between)).unwrap();
    assert_eq!(small.address(), between);
    drop(small);
    check_nothing_is_left(cuda, &backend);
}

fn bound_memory_is_held(cuda: &Cuda) {
    let backend = open(cuda);
    let free = || BOTH.map(|device| backend.memory_info(device).unwrap().free);
    let before = free();
    // The memory has no other owner any more.
    let mut object = bound(&backend);
    let held = before.map(|free| free - SIZE);
    assert_eq!(free(), held);
    object.unbind(ONE, Bytes::ZERO).unwrap();
    assert_eq!(free(), [before[0], held[1]]);
    object.bind(Bytes::ZERO, &memory(&backend, ONE), Bytes::ZERO, SIZE).unwrap();
    let range = object.map(Placement::Anywhere).unwrap();
    assert_eq!(free(), held);
    drop(range);
    assert_eq!(free(), before);
    check_nothing_is_left(cuda, &backend);
}

fn everything_can_be_dropped_at_any_step(cuda: &Cuda) {
    let backend = open(cuda);
    let check = || check_nothing_is_left(cuda, &backend);
    drop(both(&backend).create().unwrap());
    check();
    drop(both(&backend).create().unwrap().complete());
    check();
    for count in 1..=2 {
        let mut object = both(&backend).create().unwrap().complete();
        for device in &BOTH[..count] {
            object.bind(Bytes::ZERO, &memory(&backend, *device), Bytes::ZERO, SIZE).unwrap();
        }
        drop(object);
        check();
    }
    drop(bound(&backend).map(Placement::Anywhere).unwrap());
    check();
    drop(bound(&backend).map(Placement::Anywhere).unwrap().unmap(idle()).unwrap());
    check();
    bound(&backend).close().unwrap();
    check();
    bound(&backend).map(Placement::Anywhere).unwrap().close(idle()).unwrap();
    check();
    // The backend and the memory may be dropped first.
    let (held, object) = {
        let backend = backend.clone();
        let mut object = both(&backend).create().unwrap().complete();
        let held = BOTH.map(|device| memory(&backend, device));
        for memory in &held {
            object.bind(Bytes::ZERO, memory, Bytes::ZERO, SIZE).unwrap();
        }
        (held, object.map(Placement::Anywhere).unwrap())
    };
    drop(held);
    drop(object);
    check();
}

/// Starts slow work on the object, and releases the range. Unmapping memory under running work would cause a fault.
fn while_work_runs(cuda: &Cuda, give_away: fn(MulticastRange<super::CudaBackend>)) {
    let backend = open(cuda);
    let range = bound(&backend).map(Placement::Anywhere).unwrap();
    // SAFETY: the range is mapped, and the device may store to it, until the work is done.
    let flight = unsafe { backend.start_pattern(ONE, range.address(), SIZE, 3, 2) }.unwrap();
    assert!(!flight.is_done().unwrap());
    give_away(range);
    assert!(flight.is_done().unwrap());
    drop(flight);
    check_nothing_is_left(cuda, &backend);
}

fn dropping_waits(cuda: &Cuda) {
    while_work_runs(cuda, drop);
}

fn unmapping_waits(cuda: &Cuda) {
    while_work_runs(cuda, |range| range.unmap(WaitFor::all_devices()).map(drop).unwrap());
}
