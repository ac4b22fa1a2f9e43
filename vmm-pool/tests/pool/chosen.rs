//! Blocks at addresses that the caller chooses.

use gpu_vmm_core::{Address, Backend, Bytes, Detail, Error, ErrorKind, Placement, Region, Stream};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Fence, Occupant, Pool, PoolError};
use gpu_vmm_testkit::LateWork;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: Bytes = Bytes::mib(2);

fn pool() -> Pool<HostBackend> {
    Pool::builder(&backend()).build().unwrap()
}

/// Addresses that nothing uses: a region has just released them.
fn hole(backend: &impl Backend, size: Bytes) -> Address {
    let builder = Region::builder(backend).reserve(size + PAGE + PAGE).at(Placement::Restorable);
    let region = builder.build().unwrap();
    region.address() + PAGE
}

#[track_caller]
fn at<B: Backend>(pool: &Pool<B>, address: Address, size: Bytes) -> Block<B> {
    let block = pool.request(size).at(address).alloc().unwrap();
    assert_eq!((block.address(), block.size()), (address, size));
    block
}

/// Returns what is at the addresses of a request that fails for that.
#[track_caller]
fn occupant<B: Backend>(pool: &Pool<B>, address: Address, size: Bytes) -> Occupant {
    let error = pool.request(size).at(address).alloc().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressTaken);
    match error.extension::<PoolError>() {
        Some(PoolError::AddressTaken { requested, occupant, .. }) => {
            assert!(requested.base == address && requested.size >= size);
            Occupant::clone(occupant)
        }
        _ => panic!("{error}"),
    }
}

fn backend() -> HostBackend {
    HostConfig::new().memory(Bytes::gib(1)).open().unwrap()
}

#[test]
fn freed_addresses_are_had_again() {
    let pool = pool();
    for size in [Bytes(512), Bytes(700), Bytes::kib(100), Bytes::mib(1), Bytes::mib(5)] {
        let (mut block, other) = (pool.alloc(size).unwrap(), pool.alloc(size).unwrap());
        let address = Address(block.address().0.next_multiple_of(512));
        block.write(Bytes::ZERO, &[7]).unwrap();
        drop((block, other));
        let mut again = at(&pool, address, size);
        again.write(size - Bytes(1), &[8]).unwrap();
        let held = pool.stats().held;
        drop(again);
        // The thread that frees it can have it again, with the memory that is there.
        drop(at(&pool, address, size));
        assert_eq!(pool.stats().held, held);
    }
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.stats().held, pool.stats().live), (0, 0));
}

#[test]
fn free_parts_inside_a_range_are_taken() {
    let pool = pool();
    let first = pool.alloc(Bytes::mib(64)).unwrap();
    let base = first.address();
    drop(first);
    // In the middle, at the end of what was ever taken, across it, and far behind.
    let places =
        [(20, 3), (62, 1), (63, 2), (200, 5)].map(|(at, size)| (base + Bytes::mib(at), Bytes::mib(size)));
    let blocks = places.map(|(address, size)| at(&pool, address, size));
    let rest = at(&pool, base + Bytes::mib(23), Bytes::mib(39));
    assert!(matches!(occupant(&pool, base + Bytes::mib(19), Bytes::mib(2)), Occupant::Block { range, .. }
        if range.base == places[0].0 && range.size == places[0].1));
    drop((blocks, rest));
    let all = at(&pool, base, Bytes::mib(205));
    drop(all);
}

#[test]
fn unreserved_addresses_are_reserved() {
    let pool = pool();
    let place = hole(&backend(), Bytes::mib(64));
    let [one, other] = [3, 20].map(|offset| at(&pool, place + Bytes::mib(offset), Bytes(3000)));
    let reserved = pool.stats().reserved;
    assert_eq!(reserved, 2 * PAGE.0, "a page each");
    // No other request takes a part of these addresses.
    let others: Vec<_> = (0..40).map(|_| pool.alloc(Bytes(3000)).unwrap()).collect();
    assert!(others.iter().all(|other| other.address() < place || other.address() > place + Bytes::mib(64)));
    let more = at(&pool, one.address() + Bytes(8192), Bytes::kib(400));
    // Beyond the end of its reservation, and across it.
    let end = Address((one.address().0 / PAGE.0 + 1) * PAGE.0);
    assert!(matches!(occupant(&pool, Address(end.0 - 512), PAGE), Occupant::Reservation { range, tag }
        if range.end() == end && range.size == PAGE && tag.is_empty()));
    let behind = at(&pool, end, PAGE);
    drop((one, other, more, behind, others));
    // Empty reservations end when another one begins.
    let reserved = pool.stats().reserved;
    let far = at(&pool, place + Bytes::mib(40), PAGE);
    assert_eq!(pool.stats().reserved, reserved - 2 * PAGE.0);
    drop(far);
}

/// A program that names ever new addresses keeps no more of them than it uses.
#[test]
fn new_addresses_release_the_earlier_ones() {
    let pool = pool();
    let place = hole(&backend(), Bytes::mib(512));
    for number in 0..200 {
        drop(at(&pool, place + Bytes(number * PAGE.0), PAGE));
        assert_eq!(pool.stats().reserved, PAGE.0);
    }
    assert!(pool.stats().held <= 2 * PAGE.0, "{}", pool.stats());
}

#[test]
fn errors_name_what_is_there() {
    let pool = pool();
    let tagged = pool.tagged("weights").unwrap();
    let (large, small) = (tagged.alloc(Bytes::mib(3)).unwrap(), tagged.alloc(Bytes(300)).unwrap());
    // Another tag's addresses, with a block or without.
    for address in [large.address(), large.address() + Bytes::mib(8), Address(small.address().0 / 512 * 512)]
    {
        let found = occupant(&pool, address, Bytes(512));
        assert!(
            matches!(&found, Occupant::Reservation { range, tag }
            if range.contains(address) && &**tag == "weights"),
            "{found}"
        );
    }
    // A block in a slab: the one at the addresses, or any of the slab.
    for (address, name) in [(small.address(), "at"), (small.address() + Bytes(8192), "beside")] {
        let found = occupant(&tagged, Address(address.0 / 512 * 512), Bytes(512));
        assert!(
            matches!(&found, Occupant::Block { range, tag }
            if range.base == small.address() && range.size == small.capacity() && &**tag == "weights"),
            "{name}: {found}"
        );
    }
    // Outside of the pool.
    let region = Region::builder(&backend()).reserve(Bytes::mib(64)).build().unwrap();
    let found = occupant(&pool, region.address(), Bytes::mib(1));
    assert!(
        matches!(&found, Occupant::OutsidePool(error) if error.kind() == ErrorKind::AddressTaken),
        "{found}"
    );
    let text = found.to_string();
    assert!(text.contains("outside of the pool"), "{text}");
}

#[test]
fn invalid_addresses_are_refused() {
    let pool = pool();
    let refused = |address: u64, size: u64, alignment: u64| {
        let request = pool.request(Bytes(size)).at(Address(address)).alignment(Bytes(alignment));
        request.alloc().map_err(Error::into_detail).unwrap_err()
    };
    assert!(
        matches!(refused(PAGE.0 + 256, 100, 256), Detail::Unaligned { value, .. } if value == PAGE.0 + 256)
    );
    assert!(matches!(refused(PAGE.0 + 4096, 100, 8192), Detail::Unaligned { .. }));
    assert!(matches!(refused(u64::MAX - 511, 512, 256), Detail::Overflow { .. }));
    assert!(matches!(refused(PAGE.0, 0, 256), Detail::ZeroSize));
    assert!(pool.request(PAGE).at(Address(PAGE.0)).alloc_mapped().is_none());
    assert!(pool.request(PAGE).at(Address(PAGE.0)).alloc_cached().is_none());
    let plain = HostConfig::new().without_virtual_memory().open().unwrap();
    let plain = Pool::builder(&plain).build().unwrap();
    let error = plain.request(PAGE).at(Address(PAGE.0 * 1000)).alloc().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn reservations_keep_the_pools_limit() {
    let backend = backend();
    let pool = Pool::builder(&backend).addresses(PAGE).build().unwrap();
    let place = hole(&backend, Bytes::mib(64));
    let error = pool.request(Bytes(PAGE.0 + 1)).at(place).alloc().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfAddressSpace, "{error}");
    drop(at(&pool, place, PAGE));
}

/// Memory whose work is not done serves its own stream at once, and others after a wait.
#[test]
fn work_at_the_address_is_waited_for() {
    let backend = LateWork::new(HostConfig::new().memory(Bytes::gib(1)).open().unwrap(), 4);
    let pool = Pool::builder(&backend).build().unwrap();
    let streams = [1, 2].map(|index| backend.stream(index));
    let request = |size: Bytes, stream: Stream<'static>| pool.request(size).stream(stream);
    for size in [Bytes::kib(200), Bytes::mib(6)] {
        let block = request(size, streams[0]).alloc().unwrap();
        let address = block.address();
        backend.queue(1);
        drop(block);
        // Its own stream need not wait.
        let block = request(size, streams[0]).at(address).alloc().unwrap();
        drop(block);
        backend.finish(1, 1);
        let block = request(size, streams[1]).at(address).alloc().unwrap();
        assert_eq!(block.address(), address);
    }
}

#[derive(Debug, Default)]
struct SettableFence(AtomicBool);

impl Fence for SettableFence {
    fn is_done(&self) -> gpu_vmm_core::Result<bool> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    /// Cannot wait until the test allows it.
    fn wait(&self) -> gpu_vmm_core::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Error::new(gpu_vmm_core::Operation::WaitForStream, Detail::ZeroSize)),
        }
    }
}

#[test]
fn memory_behind_a_fence_is_named() {
    let pool = pool();
    let (block, fence) = (pool.alloc(Bytes::mib(4)).unwrap(), Arc::new(SettableFence::default()));
    let (address, capacity) = (block.address(), block.capacity());
    block.free_after(Arc::<SettableFence>::clone(&fence));
    assert!(matches!(occupant(&pool, address + Bytes::mib(1), Bytes::mib(1)), Occupant::Freed { range, .. }
        if range.base == address && range.size == capacity));
    fence.0.store(true, Ordering::Relaxed);
    drop(at(&pool, address + Bytes::mib(1), Bytes::mib(1)));
}

#[test]
fn suspended_tags_refuse_addresses() {
    let pool = pool();
    let tagged = pool.tagged("kv").unwrap();
    let block = tagged.alloc(Bytes::mib(3)).unwrap();
    let store = gpu_vmm_core::BackingStore::nothing();
    pool.suspend("kv", &store, gpu_vmm_core::WaitFor::all_devices()).unwrap();
    let request = tagged.request(PAGE).at(Address(block.address().0 + Bytes::mib(4).0));
    assert_eq!(request.alloc().unwrap_err().kind(), ErrorKind::Suspended);
}

#[test]
fn chosen_blocks_are_found_by_address() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = at(&pool, hole(&backend, Bytes::mib(4)), Bytes::mib(4));
    let found = gpu_vmm_core::at(block.address() + PAGE).unwrap().unwrap();
    assert!(found.is_pool, "{found}");
    assert_eq!(found.block.unwrap().range.base, block.address());
}

#[test]
fn freed_chosen_block_serves_no_other_request() {
    let backend = backend();
    let pool = Pool::builder(&backend).build().unwrap();
    let address = hole(&backend, Bytes::mib(4));
    drop(at(&pool, address, Bytes::mib(4)));
    let other = pool.alloc(Bytes::mib(4)).unwrap();
    assert_ne!(other.address(), address);
    drop(at(&pool, address, Bytes::mib(4)));
}
