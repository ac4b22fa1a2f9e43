//! Blocks by their addresses, and copies of no bytes.

use gpu_vmm_core::{
    Address, Backend, BackingStore, Bytes, DeviceId, ErrorKind, OffsetRange, Operation, WaitFor,
};
use gpu_vmm_host::HostConfig;
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::FaultInject;

const PAGE: u64 = 2 << 20;

/// Of all addresses of the pages around a few small blocks, exactly those in the blocks are found.
#[test]
fn only_addresses_in_live_blocks_are_found() {
    for size in [256, 768, 1280, 2048, 9 << 10, 40 << 10, 64 << 10, 300 << 10] {
        let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
        let mut blocks: Vec<_> = (0..5).map(|_| pool.alloc(Bytes(size)).unwrap()).collect();
        let first = blocks[0].address().0 / PAGE * PAGE;
        // A freed block lies between the live ones, and no cache holds it.
        blocks.remove(2);
        pool.trim(Bytes(u64::MAX)).unwrap();
        for at in (first - PAGE..first + 2 * PAGE).step_by(256) {
            let found = pool.find(Address(at + 5)).map(|info| (info.base, info.offset));
            let inside = |block: &&gpu_vmm_pool::Block<_>| {
                (block.address().0..block.address().0 + block.capacity().0).contains(&at)
            };
            let expected = blocks.iter().find(inside);
            let expected = expected.map(|block| (block.address(), Bytes(at + 5 - block.address().0)));
            assert_eq!(found, expected, "blocks of {size}, at {at:#x}");
        }
    }
}

/// A copy of no bytes succeeds wherever its range lies, and makes no driver call. Any other copy of suspended memory fails.
#[test]
fn nothing_is_copied_without_memory() {
    let backend = FaultInject::new(HostConfig::new().open().unwrap());
    let pool = Pool::builder(&backend).build().unwrap().tagged("kv").unwrap();
    let [mut block, other] = [(); 2].map(|()| pool.alloc(Bytes(5000)).unwrap());
    let store = BackingStore::pinned(&backend, Bytes(4 * PAGE)).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    let copies =
        || [Operation::CopyFromHost, Operation::CopyToHost, Operation::Copy].map(|call| backend.made(call));
    let before = copies();
    let part = |offset, length| OffsetRange { offset: Bytes(offset), length: Bytes(length) };
    for offset in [0, 17, 5000] {
        block.write(Bytes(offset), &[]).unwrap();
        block.read(Bytes(offset), &mut []).unwrap();
        block.copy_from(Bytes(offset), &other, part(offset, 0)).unwrap();
    }
    let refused = [
        block.write(Bytes(0), &[1]),
        block.read(Bytes(0), &mut [0]),
        block.copy_from(Bytes(0), &other, part(0, 1)),
        block.check_usable(Operation::Read),
    ];
    for answer in refused {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Suspended);
    }
    let beyond = [
        block.write(Bytes(5001), &[]),
        block.read(Bytes(5000), &mut [0]),
        block.copy_from(Bytes(4999), &other, part(0, 2)),
        block.copy_from(Bytes(0), &other, part(4999, 2)),
    ];
    for answer in beyond {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::OutOfRange);
    }
    assert_eq!(copies(), before);
    pool.resume("kv").unwrap();
    block.copy_from(Bytes(0), &other, part(4999, 1)).unwrap();
    assert_ne!(copies(), before);
}

#[test]
fn block_text_has_address_size_stream() {
    let pool = Pool::builder(&HostConfig::new().open().unwrap()).build().unwrap();
    let block = pool.alloc(Bytes(5000)).unwrap();
    let (address, size, stream) = (block.address(), block.size(), block.stream());
    assert_eq!(size, Bytes(5000));
    let text = format!("Block {{ address: {address:?}, size: {size:?}, stream: {stream:?}, .. }}");
    assert_eq!(format!("{block:?}"), text);
}

/// A copy within the pool reads one block and writes the other: neither may be suspended.
#[test]
fn suspended_block_refuses_copies() {
    let backend = HostConfig::new().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let [kv, other] = ["kv", "other"].map(|tag| pool.tagged(tag).unwrap());
    let (mut asleep, mut awake) = (kv.alloc(Bytes(5000)).unwrap(), other.alloc(Bytes(5000)).unwrap());
    let store = BackingStore::pinned(&backend, Bytes(4 * PAGE)).unwrap();
    pool.suspend("kv", &store, WaitFor::all_devices()).unwrap();
    let all = OffsetRange { offset: Bytes(0), length: Bytes(5000) };
    for answer in [awake.copy_from(Bytes(0), &asleep, all), asleep.copy_from(Bytes(0), &awake, all)] {
        assert_eq!(answer.as_ref().map_err(|error| error.kind()), Err(ErrorKind::Suspended));
    }
    pool.resume("kv").unwrap();
    awake.copy_from(Bytes(0), &asleep, all).unwrap();
}

#[test]
fn missing_tag_error_lists_existing_tags() {
    let backend = HostConfig::new().open().unwrap();
    let pool = Pool::builder(&backend).build().unwrap();
    let store = BackingStore::nothing();
    let texts = || {
        let answers = [
            pool.suspend("no", &store, WaitFor::all_devices()).map(drop),
            pool.resume("no").map(drop),
            pool.is_suspended("no").map(drop),
            pool.occupied("no").map(drop),
        ];
        answers.map(|answer| answer.unwrap_err().to_string())
    };
    let operations = ["suspend", "resume", "query tag", "query tag"];
    let wrong = "no memory is tagged \"no\"; existing tags";
    assert_eq!(texts(), operations.map(|operation| format!("{operation}: {wrong}: \"\"")));
    let _tagged = ["kv", "weights"].map(|tag| pool.tagged(tag).unwrap());
    let all = "\"\", \"kv\", \"weights\"";
    assert_eq!(texts(), operations.map(|operation| format!("{operation}: {wrong}: {all}")));
}

#[test]
fn foreign_pool_error_names_its_device() {
    let backend = HostConfig::new().devices(3).open().unwrap();
    let pool = Pool::builder(&backend).device(DeviceId(1)).build().unwrap();
    let block = pool.alloc(Bytes(5000)).unwrap();
    assert_eq!(pool.find(block.address()).unwrap().device, DeviceId(1));
    let (text, name) = (pool.snapshot().device, &backend.devices()[1].name);
    assert!(text.contains("device 1") && text.ends_with(name.as_str()), "{text}");
}
