//! The state of a suspended region, and the calls that it refuses.

use super::{check_varied, directory, keeping, pinned, resume, ring, suspend, varied};
use crate::case::cases;
use crate::library::tools::{has, idle, refused, write};
use crate::subject::{RW, Subject};
use gpu_vmm_core::{
    BackingKind, BackingStore, Bytes, Detail, DeviceVec, Error, MovePath, Operation, Region, RegionState,
};
use gpu_vmm_snapshot::Snapshot;
use gpu_vmm_testkit::{FaultInject, TestKit};

cases! { "suspend":
    /// A region reports whether it is suspended, how much memory it has released, and the kind of store with its contents.
    state_is_reported,
    /// Every operation on a suspended region is refused as such, with its address, and without a driver call.
    everything_else_is_refused,
    /// A second suspension and a second resume do nothing and report that; another store is not used.
    a_second_time_does_nothing,
    /// If the wait for the devices fails, no other call is made, and the region is unchanged.
    a_failed_wait_changes_nothing,
    /// A region without memory is suspended and resumed like any other.
    without_memory,
    /// A resumed region grows, shrinks and is unmapped like one that was never suspended.
    goes_on_afterwards,
    /// The addresses of a suspended region stay reserved for it.
    keeps_its_addresses,
}

fn state_is_reported<B: TestKit>(subject: &Subject<B>) {
    let kinds = [
        BackingKind::Pinned,
        BackingKind::Pageable,
        BackingKind::Pageable,
        BackingKind::File,
        BackingKind::Nothing,
    ];
    let stores = keeping(subject, super::MEMORY).into_iter().chain([BackingStore::nothing()]);
    let mut region = varied(subject);
    for (store, kind) in stores.zip(kinds) {
        assert_eq!(region.state(), RegionState::Active);
        assert_eq!(store.kind(), kind);
        suspend(&mut region, &store);
        let memory = subject.granules(super::MEMORY);
        assert_eq!(region.state(), RegionState::Suspended { memory, store: kind });
        assert_eq!((region.mapped(), region.end(), region.mappings().count()), (Bytes(0), Bytes(0), 0));
        assert_eq!(region.tag(), "varied");
        resume(&mut region);
    }
    assert_eq!(kinds.map(BackingKind::name), ["pinned", "pageable", "pageable", "file", "nothing"]);
}

fn everything_else_is_refused<B: TestKit>(subject: &Subject<B>) {
    let (device, one) = (subject.device, subject.granularity());
    let (memory, ring) = (subject.piece(1), ring(subject));
    let mut region = varied(subject);
    let mut other = subject.space(1).build().unwrap();
    other.grow_to(one).unwrap();
    suspend(&mut region, &pinned(subject, super::MEMORY));
    let address = region.address();
    macro_rules! is_refused {
        ($($call:expr),* $(,)?) => {
            $(refused!($call, Detail::Suspended { .. }, address, "resume it first");)*
        };
    }
    is_refused!(
        region.map(Bytes(0), &memory),
        region.unmap(Bytes(0), one, idle()),
        region.set_access(Bytes(0), one, device, RW),
        region.grow_to(Bytes(1)),
        region.grow_to_on(device, Bytes(1)),
        region.grow_or_move(subject.granules(100), idle()),
        region.shrink_to(Bytes(0), idle()),
        region.shrink_to(one, idle()),
        region.read(Bytes(0), &mut [0]),
        region.read(Bytes(0), &mut []),
        region.write(Bytes(0), &[0]),
        region.fill(Bytes(0), one, 0),
        region.copy_from(Bytes(0), &other, Bytes(0), one),
        other.copy_from(Bytes(0), &region, Bytes(0), one),
        region.write_pattern(device, Bytes(0), one, 0),
        region.count_wrong(device, Bytes(0), one, 0),
        region.dma_bufs(Bytes(0), one),
        region.swap(Bytes(0), &mut other, Bytes(0), one, idle()),
        other.swap(Bytes(0), &mut region, Bytes(0), one, idle()),
        region.swap_all(&mut other, idle()),
        other.swap_all(&mut region, idle()),
        region.move_to_device(device, MovePath::Fastest(None), idle()),
        Snapshot::new(&ring).region(&region).write(directory().join("never"), idle()),
    );
    let mut vector = DeviceVec::<u32, B>::build(subject.space(1)).unwrap();
    vector.extend_from_slice(&[1, 2, 3]).unwrap();
    vector.suspend(&BackingStore::nothing(), idle()).unwrap();
    let address = vector.as_device_ptr().address();
    macro_rules! is_refused {
        ($($call:expr),* $(,)?) => { $(refused!($call, Detail::Suspended { .. }, address);)* };
    }
    is_refused!(
        vector.push(1),
        vector.extend_from_slice(&[1]),
        vector.resize(9, 0),
        vector.reserve(1),
        vector.shrink_to_fit(idle()),
        vector.get(0),
        vector.read(0, &mut [0]),
        vector.write(0, &[0]),
        vector.to_vec(),
    );
    resume(&mut region);
    check_varied(subject, &mut region);
}

fn a_second_time_does_nothing<B: TestKit>(subject: &Subject<B>) {
    let [first, second] = [pinned(subject, super::MEMORY), pinned(subject, super::MEMORY)];
    let mut region = varied(subject);
    let done = region.resume().unwrap();
    assert!(done.already && done.memory.is_zero() && done.contents.is_zero());
    check_varied(subject, &mut region);
    let did = suspend(&mut region, &first);
    let again = region.suspend(&second, idle()).unwrap();
    assert_eq!((again.memory, again.kept, again.already), (did.memory, did.kept, true));
    assert!(region.suspend(&BackingStore::nothing(), idle()).unwrap().already);
    assert_eq!(second.free(), second.capacity());
    resume(&mut region);
    assert!(region.resume().unwrap().already);
    check_varied(subject, &mut region);
}

fn a_failed_wait_changes_nothing<B: TestKit>(subject: &Subject<B>) {
    let backend = FaultInject::new(subject.backend.clone());
    let mut region = Region::builder(&backend).on(subject.device).reserve(subject.unit()).build().unwrap();
    region.grow_to(subject.granularity()).unwrap();
    for store in [BackingStore::pinned(&backend, subject.granularity()).unwrap(), BackingStore::nothing()] {
        backend.fail(0, 1);
        let error = region.suspend(&store, idle()).unwrap_err();
        assert_eq!(error.driver_error().unwrap().call, Operation::WaitForDevice.name());
        assert_eq!(backend.stop(), 1, "another call followed the failed wait");
        assert_eq!(region.state(), RegionState::Active);
        assert_eq!(store.free(), store.capacity());
        region.write(Bytes(0), b"still there").unwrap();
    }
}

fn without_memory<B: TestKit>(subject: &Subject<B>) {
    for store in keeping(subject, 1).into_iter().chain([BackingStore::nothing()]) {
        let mut region = subject.space(2).build().unwrap();
        assert_eq!(suspend(&mut region, &store).memory, Bytes(0));
        let state = RegionState::Suspended { memory: Bytes(0), store: store.kind() };
        assert_eq!(region.state(), state);
        refused!(region.grow_to(Bytes(1)), Detail::Suspended { .. });
        resume(&mut region);
        region.grow_to(subject.granularity()).unwrap();
    }
}

fn goes_on_afterwards<B: TestKit>(subject: &Subject<B>) {
    let mut region = subject.space(6).build().unwrap();
    region.grow_to(subject.granules(2)).unwrap();
    write(subject, &mut region, 1);
    suspend(&mut region, &pinned(subject, 2));
    resume(&mut region);
    let growth = region.grow_to(subject.granules(4)).unwrap();
    assert_eq!(growth.added, subject.granules(2));
    subject.check(&region, Bytes(0), subject.granules(2), 1);
    write(subject, &mut region, 2);
    suspend(&mut region, &pinned(subject, 4));
    resume(&mut region);
    assert!(has(subject, &region, 2));
    let shrunk = region.shrink_to(subject.granules(2), idle()).unwrap();
    assert_eq!(shrunk.end, subject.granules(2));
    subject.check(&region, Bytes(0), subject.granules(2), 2);
    region.unmap(Bytes(0), subject.granules(2), idle()).unwrap();
    assert_eq!(region.mapped(), Bytes(0));
}

fn keeps_its_addresses<B: TestKit>(subject: &Subject<B>) {
    let mut region = varied(subject);
    suspend(&mut region, &BackingStore::nothing());
    let others: Vec<_> = (0..4).map(|_| subject.space(12).build().unwrap()).collect();
    for other in &others {
        let apart = other.range().end() <= region.address() || region.range().end() <= other.address();
        assert!(apart, "{} and {}", other.range(), region.range());
    }
    let there = gpu_vmm_core::Placement::Exact(region.address());
    assert!(matches!(
        subject.space(1).at(there).build().as_ref().map_err(Error::detail),
        Err(Detail::AddressTaken { .. })
    ));
    resume(&mut region);
}
