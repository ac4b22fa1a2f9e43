//! Contents that are copied to a store and back: errors of copies, of threads and of the disk.

use crate::child::alone;
use crate::faults::{assert_answer, refuse};
use crate::{GRANULE, ONE, TWO};
use gpu_vmm_core::{
    Backend, BackingStore, Bytes, MovePath, Operation, Region, RegionState, Result, StagingRing, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_testkit::FaultInject;

type Faulty = FaultInject<HostBackend>;

const IDLE: WaitFor<'static> = WaitFor::all_devices();

fn contents() -> Vec<u8> {
    (0..2 * GRANULE.0).map(|at| (at % 251) as u8).collect()
}

/// A region with memory of two devices.
fn region<B: Backend>(host: &B) -> Region<B> {
    let builder = Region::builder(host).on(ONE).reserve(Bytes(2 * GRANULE.0));
    let mut region = builder.build().unwrap();
    region.grow_to(GRANULE).unwrap();
    region.grow_to_on(TWO, Bytes(2 * GRANULE.0)).unwrap();
    region.write(Bytes::ZERO, &contents()).unwrap();
    region
}

fn has_contents<B: Backend>(region: &Region<B>) -> bool {
    let mut read = vec![0; 2 * GRANULE.0 as usize];
    region.read(Bytes::ZERO, &mut read).unwrap();
    read == contents()
}

fn two_devices() -> HostConfig {
    HostConfig::new().devices(2)
}

/// A copy that was queued ends before the memory or the buffer is used for something else, whatever the next one answers.
#[test]
fn first_copy_error_follows_all_streams() {
    type Step = fn(&mut Region<Faulty>, &BackingStore<Faulty>) -> Result<()>;
    let steps: [(Operation, &[Operation], &[Operation], Step); 2] = [
        (
            Operation::QueueCopyToHost,
            &[Operation::QueueCopyToHost],
            &[Operation::QueueCopyToHost, Operation::FinishCopies],
            |region, store| region.suspend(store, IDLE).map(drop),
        ),
        (
            Operation::QueueCopyFromHost,
            &[Operation::QueueCopyFromHost],
            &[Operation::QueueCopyFromHost, Operation::FinishCopies],
            |region, _| region.resume().map(drop),
        ),
    ];
    let backend = FaultInject::new(two_devices().open().unwrap());
    let store = BackingStore::pinned(&backend, Bytes(2 * GRANULE.0)).unwrap();
    let mut region = region(&backend);
    for (queue, queues, both, step) in steps {
        let finished = backend.made(Operation::FinishCopies);
        // The first device's copy is queued, and the second device's is not.
        let later = backend.clone();
        backend.during(queue, move || later.fail_calls(queues));
        assert_eq!(step(&mut region, &store).unwrap_err().operation(), queue);
        assert_eq!(backend.made(Operation::FinishCopies) - finished, 2);
        backend.fail_calls(both);
        assert_eq!(step(&mut region, &store).unwrap_err().operation(), queue);
        backend.fail_calls(&[Operation::FinishCopies]);
        assert_eq!(step(&mut region, &store).unwrap_err().operation(), Operation::FinishCopies);
        backend.stop();
        step(&mut region, &store).unwrap();
    }
    assert!(has_contents(&region));
}

/// Calls `step` once with each of its driver calls failing, and then without a failure. Each failure must be its error.
fn each_call_fails(backend: &Faulty, mut step: impl FnMut() -> Result<()>) {
    for number in 0.. {
        backend.fail_each(&[number]);
        let answer = step();
        if backend.stop() <= number {
            return answer.unwrap();
        }
        assert!(answer.is_err(), "the error of driver call {number} is lost");
    }
}

/// A ring of one thread has queued two copies when the last one is queued.
#[test]
fn each_failed_ring_copy_is_reported() {
    let backend = FaultInject::new(two_devices().open().unwrap());
    let ring = || StagingRing::new(&backend, 1, Bytes(GRANULE.0 / 2)).unwrap();
    let store = BackingStore::pageable(ring());
    let mut region = region(&backend);
    each_call_fails(&backend, || region.suspend(&store, IDLE).map(drop));
    each_call_fails(&backend, || region.resume().map(drop));
    assert!(has_contents(&region));
    let ring = ring();
    each_call_fails(&backend, || region.move_to_device(TWO, MovePath::Ring(&ring), IDLE).map(drop));
    assert!(has_contents(&region));
}

#[test]
fn disk_error_keeps_the_regions_contents() {
    alone("staged::disk_error_keeps_the_regions_contents", || {
        let host = two_devices().open().unwrap();
        let mut region = region(&host);
        // Chunks that are no multiple of a page go through the page cache, and are not on the disk yet.
        let ring = StagingRing::new(&host, 1, Bytes(100_000)).unwrap();
        let store = BackingStore::file(std::env::temp_dir(), ring);
        if !refuse(libc::SYS_fdatasync, libc::EIO) {
            return;
        }
        let error = region.suspend(&store, IDLE).unwrap_err();
        assert_answer(&error, "fdatasync", "EIO");
        assert_eq!((error.operation(), region.state()), (Operation::Suspend, RegionState::Active));
        assert!(has_contents(&region));
    });
}

#[test]
fn copies_need_no_second_thread() {
    alone("staged::copies_need_no_second_thread", || {
        let host = two_devices().open().unwrap();
        let mut region = region(&host);
        let folder = std::env::temp_dir();
        let ring = |threads| StagingRing::new(&host, threads, GRANULE).unwrap();
        let stores = [
            BackingStore::files([&folder, &folder], ring(3)).unwrap(),
            BackingStore::pageable(ring(3)),
            BackingStore::pinned(&host, Bytes::mib(40)).unwrap(),
        ];
        let ring = ring(3);
        if !refuse(libc::SYS_clone3, libc::EAGAIN) || !refuse(libc::SYS_clone, libc::EAGAIN) {
            return;
        }
        assert!(std::thread::Builder::new().spawn(|| ()).is_err());
        for store in stores {
            region.suspend(&store, IDLE).unwrap();
            region.resume().unwrap();
            assert!(has_contents(&region));
        }
        region.move_to_device(TWO, MovePath::Ring(&ring), IDLE).unwrap();
        assert!(has_contents(&region));
    });
}
