//! The size of a pool's pages, and the driver calls that depend on it.
#![allow(unsafe_code)]

use gpu_vmm_core::{Bytes, Detail, DeviceId, MemoryCalls, Operation};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Pool, PoolBuilder};

/// Returns the page size of a pool on a device with this memory.
fn page_of(
    memory: Bytes,
    set: impl Fn(PoolBuilder<'_, HostBackend>) -> PoolBuilder<'_, HostBackend>,
) -> Bytes {
    let backend = HostConfig::new().memory(memory).open().unwrap();
    Bytes(set(Pool::builder(&backend)).build().unwrap().usage().page)
}

#[test]
fn large_devices_have_larger_pages() {
    assert_eq!(page_of(Bytes::gib(64) - Bytes::mib(2), |builder| builder), Bytes::mib(2));
    assert_eq!(page_of(Bytes::gib(64), |builder| builder), Bytes::mib(8));
    // Unless the program says otherwise, or nothing would fit into the budget.
    assert_eq!(page_of(Bytes::gib(64), |builder| builder.page(Bytes::mib(2))), Bytes::mib(2));
    assert_eq!(page_of(Bytes::gib(64), |builder| builder.budget(Bytes::mib(8))), Bytes::mib(8));
    assert_eq!(page_of(Bytes::gib(64), |builder| builder.budget(Bytes::mib(7))), Bytes::mib(2));
    // A plain allocation takes one call, whatever its size.
    let plain = HostConfig::new().memory(Bytes::gib(64)).without_virtual_memory().open().unwrap();
    assert_eq!(Pool::builder(&plain).build().unwrap().usage().page, Bytes::mib(2).0);
}

#[test]
fn page_beyond_device_memory_is_refused() {
    let memory = Bytes::mib(64);
    assert_eq!(page_of(memory, |builder| builder.page(memory)), memory);
    let backend = HostConfig::new().memory(memory).open().unwrap();
    let error = Pool::builder(&backend).page(memory * 2).build().unwrap_err();
    let Detail::ExceedsDevice { requested, total, .. } = error.detail() else { panic!("{error}") };
    assert_eq!((*requested, *total), (memory * 2, memory));
}

#[test]
fn invalid_page_error_has_numbers() {
    let backend = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let error = Pool::builder(&backend).page(Bytes::mib(3)).build().unwrap_err();
    let Detail::BadAlignment { alignment } = error.detail() else { panic!("{error}") };
    assert_eq!((*alignment, error.operation()), (Bytes::mib(3), Operation::CreatePool));
    let error = Pool::builder(&backend).page(Bytes::mib(8)).budget(Bytes::mib(7)).build().unwrap_err();
    let text = "the budget of 7 MiB is less than one page of 8 MiB";
    assert!(error.to_string().contains(text), "{error}");
}

/// Small and large blocks of each tag have addresses of their own: at first as many as the device has memory, and with a tag 16
/// times the largest block of a group of sizes. Later they grow with need.
#[test]
fn each_tag_reserves_its_own_addresses() {
    let pool = Pool::builder(&HostConfig::new().memory(Bytes::gib(1)).open().unwrap()).build().unwrap();
    let other = pool.tagged("other").unwrap();
    let mut blocks = Vec::new();
    for (pool, size, reserved) in [
        (&pool, Bytes(9), 1024),
        (&pool, Bytes::mib(4), 2048),
        (&pool, Bytes::mib(5), 2048),
        (&pool, Bytes::mib(32), 2048),
        (&other, Bytes::mib(4), 2304),
        (&other, Bytes::mib(16), 2304),
        (&other, Bytes(9), 2320),
    ] {
        blocks.push(pool.alloc(size).unwrap());
        assert_eq!(pool.stats().reserved, Bytes::mib(reserved).0, "after {size}");
    }
    // As many again as there are.
    blocks.extend((0..16).map(|_| other.alloc(Bytes::mib(15)).unwrap()));
    assert_eq!(pool.stats().reserved, Bytes::mib(2320 + 256).0);
    drop(blocks);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().reserved, 0, "addresses without a block stay");
    assert_eq!(other.alloc(Bytes(9)).unwrap().address().0 % 256, 0);
}

#[test]
fn pages_and_blocks_take_few_calls() {
    let backend = HostConfig::new().memory(Bytes::gib(64)).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let block = pool.alloc(Bytes::mib(62)).unwrap();
    let calls = pool.stats().driver_calls;
    assert_eq!((calls.create, calls.map, calls.set_access, calls.unmap), (8, 8, 1, 0));
    drop(block);
}

#[test]
fn far_memory_is_mapped_elsewhere_first() {
    let page = Bytes::mib(2);
    let backend = HostConfig::new().memory(page * 64).open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let pages = |count: u64| pool.alloc(page * count).unwrap();
    // Blocks that stay lie between the others, so that freed ones leave gaps.
    let [first, one, second, two, third, three] = [(); 6].map(|()| pages(1));
    let [at, then, last] = [&first, &second, &third].map(|block| block.address());
    pool.set_budget(Bytes(pool.stats().held)).unwrap();
    drop((first, second, third));
    // No gap is large enough for two pages: the pages of `second` and `third` are mapped behind everything.
    let both = pages(2);
    assert!(both.address() > last);
    let calls = pool.stats().driver_calls;
    let again = pages(1);
    assert_eq!(again.address(), at, "the page of `first` was taken");
    assert_eq!(pool.stats().driver_calls, calls);
    // The pages are still mapped where they were.
    drop(both);
    assert_eq!([pages(1), pages(1)].map(|block| block.address()), [then, last]);
    assert_eq!(pool.stats().driver_calls, calls);
    drop((one, two, three, again));
}

/// A plain allocation is only a chunk if its pages begin at multiples of the page size.
#[test]
fn plain_allocations_are_page_aligned() {
    let backend = HostConfig::new().memory(Bytes::mib(512)).without_virtual_memory().open().unwrap();
    let page = Bytes::mib(32);
    let pool = Pool::builder(&backend).page(page).build().unwrap();
    // Between two of them lies memory that is no multiple of the page size.
    let between = page + Bytes::mib(2);
    let blocks: Vec<_> = (0..4)
        .map(|_| (pool.alloc(page).unwrap(), backend.allocate_plain(DeviceId(0), between).unwrap()))
        .collect();
    let spaces = pool.snapshot().spaces;
    assert_eq!(spaces.len(), 4);
    for space in spaces {
        assert!(space.base.is_multiple_of(page.0), "{:#x}", space.base);
    }
    for (block, plain) in blocks {
        drop(block);
        // SAFETY: it was allocated above and is used by nothing.
        unsafe { backend.free_plain(DeviceId(0), plain, between) }.unwrap();
    }
}
