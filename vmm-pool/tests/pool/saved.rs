//! Pools that are saved in a file and restored from it.

use crate::fence::OnlyWaits;
use gpu_vmm_core::{
    Address, Backend, BackingStore, Bytes, Detail, DeviceId, Error, ErrorKind, Operation, Region, Result,
    StagingRing, Stream, WaitFor,
};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool, PoolBuilder, PoolError, RestoredPool};
use gpu_vmm_snapshot::{Restore, Snapshot, SnapshotError, SnapshotFile, SnapshotStats};
use gpu_vmm_testkit::{FaultInject, Random};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const PAGE: Bytes = Bytes::mib(2);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpu-vmm-saved-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn backend() -> HostBackend {
    HostConfig::new().memory(Bytes::mib(512)).devices(2).open().unwrap()
}

fn builder<B: Backend>(backend: &B) -> PoolBuilder<'_, B> {
    Pool::builder(backend).restorable()
}

fn ring<B: Backend>(backend: &B) -> StagingRing<B> {
    StagingRing::new(backend, 2, Bytes::mib(1)).unwrap()
}

/// Fills a block with bytes that follow from a number and their offset.
fn fill<B: Backend>(block: &mut Block<B>, number: u64) {
    let bytes: Vec<u8> = (0..block.size().0).map(|at| (at / 7 + number * 31) as u8).collect();
    block.write(Bytes::ZERO, &bytes).unwrap();
}

#[track_caller]
fn check<B: Backend>(block: &Block<B>, size: Bytes, number: u64) {
    assert!(size <= block.size());
    let mut bytes = vec![0; size.0 as usize];
    block.read(Bytes::ZERO, &mut bytes).unwrap();
    let is_right = |(at, byte): (usize, &u8)| *byte == (at as u64 / 7 + number * 31) as u8;
    assert!(bytes.iter().enumerate().all(is_right), "{block:?}");
}

fn save<B: Backend>(pool: &Pool<B>, backend: &B, file: &PathBuf) -> Result<SnapshotStats> {
    pool.save(&ring(backend)).write(file, WaitFor::all_devices())
}

/// What a block was: its tag, its capacity, its size, and the number of its contents.
type Model = BTreeMap<Address, (String, Bytes, Bytes, u64)>;

#[track_caller]
fn is_as_saved<B: Backend>(restored: &RestoredPool<B>, model: &Model) {
    let RestoredPool { pool, blocks } = restored;
    let found: Vec<_> = blocks.iter().map(Block::address).collect();
    assert_eq!(found, model.keys().copied().collect::<Vec<_>>());
    for (block, (tag, capacity, size, number)) in blocks.iter().zip(model.values()) {
        let info = pool.find(block.address()).unwrap();
        assert_eq!((&*info.tag, info.capacity, block.capacity()), (&**tag, *capacity, *capacity));
        check(block, *size, *number);
    }
    let stats = pool.stats();
    assert_eq!(stats.live_blocks, model.len() as u64);
}

/// Blocks of all kinds: in slabs, of a medium size, large ones, of several tags.
fn some<B: Backend>(pool: &Pool<B>, model: &mut Model) -> Vec<Block<B>> {
    let mut blocks = Vec::new();
    for tag in ["", "weights", "cache"] {
        let tagged = pool.tagged(tag).unwrap();
        for size in [256, 700, 3000, 3000, 40_000, 70_000, 1 << 20, 3 << 20, (5 << 20) + 77] {
            let mut block = tagged.alloc(Bytes(size)).unwrap();
            let number = blocks.len() as u64 + 1;
            fill(&mut block, number);
            model.insert(block.address(), (tag.to_owned(), block.capacity(), Bytes(size), number));
            blocks.push(block);
        }
    }
    blocks
}

#[test]
fn restored_pools_have_the_same_blocks() {
    let (folder, backend) = (Folder::new("same"), backend());
    let file = folder.file("pool");
    let mut model = Model::new();
    let pool = builder(&backend).build().unwrap();
    let mut blocks = some(&pool, &mut model);
    // Freed blocks are not saved: in thread caches, in the slot for the last one, in the core.
    for index in [2, 4, 7, 16] {
        let block = blocks.remove(index);
        model.remove(&block.address());
    }
    let written = save(&pool, &backend, &file).unwrap();
    assert!(written.contents.0.is_multiple_of(PAGE.0) && written.contents >= Bytes::mib(20), "{written:?}");
    // The pool goes on.
    drop((blocks, pool));
    let opened = SnapshotFile::open(&file).unwrap();
    assert_eq!(opened.description().pool.as_ref().unwrap().blocks(), model.len() as u64);
    opened.verify(&|_| ()).unwrap();
    for round in 0..3 {
        let restored = Pool::builder(&backend).restore(&opened, &ring(&backend)).unwrap();
        is_as_saved(&restored, &model);
        assert_eq!(restored.pool.usage().held, written.contents.0);
        // It serves requests, of all sizes, and no block is in the way of another.
        let RestoredPool { pool, mut blocks } = restored;
        let mut more = Model::new();
        let others = some(&pool, &mut more);
        assert!(more.keys().all(|address| !model.contains_key(address)), "round {round}");
        for (block, (_, _, size, number)) in blocks.iter().zip(model.values()) {
            check(block, *size, *number);
        }
        if round == 1 {
            blocks.reverse();
        }
        drop((blocks, others));
        pool.trim(Bytes::ZERO).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.held, stats.live, stats.cached, stats.pending), (0, 0, 0, 0));
    }
}

#[test]
fn one_tag_is_saved_alone() {
    let (folder, backend) = (Folder::new("tag"), backend());
    let file = folder.file("pool");
    let pool = builder(&backend).build().unwrap();
    let mut model = Model::new();
    let blocks = some(&pool, &mut model);
    let save = |tags: &[&'static str]| {
        let ring = ring(&backend);
        let save = tags.iter().fold(pool.save(&ring), |save, tag| save.tag(tag));
        save.compress(true).write(&file, WaitFor::all_devices())
    };
    save(&["weights", "", "weights"]).unwrap();
    let error = save(&["weights", "others"]).unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::NotFound, Operation::TakeSnapshot));
    drop((blocks, pool));
    model.retain(|_, (tag, ..)| tag != "cache");
    let opened = SnapshotFile::open(&file).unwrap();
    let restored = Pool::builder(&backend).restore(&opened, &ring(&backend)).unwrap();
    is_as_saved(&restored, &model);
}

/// The file of an unchanged pool needs almost none of its own contents.
#[test]
fn later_saves_leave_out_what_is_unchanged() {
    let (folder, backend) = (Folder::new("since"), backend());
    let pool = builder(&backend).build().unwrap();
    let mut model = Model::new();
    let mut blocks = some(&pool, &mut model);
    save(&pool, &backend, &folder.file("one")).unwrap();
    let last = blocks.last_mut().unwrap();
    fill(last, 99);
    model.get_mut(&last.address()).unwrap().3 = 99;
    let earlier = SnapshotFile::open(folder.file("one")).unwrap();
    let ring = ring(&backend);
    let stats = pool.save(&ring).since(&earlier).write(folder.file("two"), WaitFor::all_devices()).unwrap();
    assert!(stats.unchanged > 0 && stats.stored <= 7, "{stats:?}");
    drop((blocks, pool));
    let opened = SnapshotFile::open(folder.file("two")).unwrap();
    is_as_saved(&Pool::builder(&backend).restore(&opened, &ring).unwrap(), &model);
}

/// The pool knows the requested sizes of blocks that it keeps.
#[test]
fn kept_blocks_have_their_sizes() {
    let (folder, backend) = (Folder::new("kept"), backend());
    let pool = builder(&backend).build().unwrap();
    let sizes = [Bytes(300), Bytes(70_001), Bytes(3_000_001)];
    let kept = sizes.map(|size| pool.keep(pool.alloc(size).unwrap()).unwrap());
    save(&pool, &backend, &folder.file("pool")).unwrap();
    drop(pool);
    let opened = SnapshotFile::open(folder.file("pool")).unwrap();
    let RestoredPool { pool, blocks } = Pool::builder(&backend).restore(&opened, &ring(&backend)).unwrap();
    for block in blocks {
        let place = kept.iter().position(|address| *address == block.address()).unwrap();
        assert_eq!(block.size(), sizes[place]);
        pool.keep(block).unwrap();
    }
    kept.iter().for_each(|address| pool.free_at(*address).unwrap());
    assert_eq!(pool.stats().live, 0);
}

#[test]
fn waiting_and_suspended_memory_is_not_saved() {
    let (folder, backend) = (Folder::new("waiting"), backend());
    let file = folder.file("pool");
    let pool = builder(&backend).build().unwrap();
    let tagged = pool.tagged("kv").unwrap();
    let (stays, fence) = (tagged.alloc(Bytes::mib(3)).unwrap(), Arc::new(OnlyWaits::default()));
    for size in [Bytes(300), Bytes::mib(4)] {
        tagged.alloc(size).unwrap().free_after(Arc::<OnlyWaits>::clone(&fence));
    }
    save(&pool, &backend, &file).unwrap();
    assert_eq!(SnapshotFile::open(&file).unwrap().description().pool.as_ref().unwrap().blocks(), 1);
    pool.suspend("kv", &BackingStore::host(&backend).unwrap(), WaitFor::all_devices()).unwrap();
    let error = save(&pool, &backend, &file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    // Others are saved, and the pool has no pin left.
    pool.save(&ring(&backend)).tag("").write(&file, WaitFor::all_devices()).unwrap();
    pool.resume("kv").unwrap();
    save(&pool, &backend, &file).unwrap();
    fence.0.store(true, Ordering::Relaxed);
    drop(stays);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}

#[test]
fn pools_without_blocks_are_restored() {
    let (folder, backend) = (Folder::new("empty"), backend());
    let pool = builder(&backend).build().unwrap();
    let written = save(&pool, &backend, &folder.file("pool")).unwrap();
    assert_eq!(written.contents, Bytes::ZERO);
    let opened = SnapshotFile::open(folder.file("pool")).unwrap();
    let RestoredPool { pool, blocks } = Pool::builder(&backend).restore(&opened, &ring(&backend)).unwrap();
    assert!(blocks.is_empty() && pool.usage().held == 0);
    drop(pool.alloc(PAGE).unwrap());
}

/// A pool with blocks in a file, which the test restores in vain.
fn saved(folder: &Folder) -> SnapshotFile {
    let backend = backend();
    let pool = builder(&backend).build().unwrap();
    let blocks = some(&pool, &mut Model::new());
    save(&pool, &backend, &folder.file("pool")).unwrap();
    drop((blocks, pool));
    SnapshotFile::open(folder.file("pool")).unwrap()
}

#[track_caller]
fn refused(builder: PoolBuilder<'_, HostBackend>, backend: &HostBackend, file: &SnapshotFile) -> Error {
    let free = backend.memory_info(DeviceId(0)).unwrap().free;
    let error = builder.restore(file, &ring(backend)).unwrap_err();
    assert_eq!(backend.memory_info(DeviceId(0)).unwrap().free, free, "memory has leaked");
    error
}

#[test]
fn impossible_restores_name_their_reason() {
    let folder = Folder::new("refused");
    let file = saved(&folder);
    let of_regions = {
        let backend = backend();
        let mut region = Region::builder(&backend).reserve(PAGE).build().unwrap();
        region.grow_to(PAGE).unwrap();
        let ring = ring(&backend);
        Snapshot::new(&ring).region(&region).write(folder.file("regions"), WaitFor::all_devices()).unwrap();
        SnapshotFile::open(folder.file("regions")).unwrap()
    };
    let backend = backend();
    let error = refused(Pool::builder(&backend), &backend, &of_regions);
    assert!(
        matches!(error.extension(), Some(SnapshotError::NotAPool { path }) if path.ends_with("regions")),
        "{error}"
    );

    let small = HostConfig::new().memory(Bytes::mib(20)).open().unwrap();
    let error = refused(Pool::builder(&small), &small, &file);
    assert!(matches!(error.detail(), Detail::ExceedsDevice { .. }), "{error}");
    // It has enough in all, but some is in use.
    let full = HostConfig::new().memory(Bytes::mib(64)).open().unwrap();
    let mut region = Region::builder(&full).reserve(Bytes::mib(50)).build().unwrap();
    region.grow_to(Bytes::mib(50)).unwrap();
    let error = refused(Pool::builder(&full), &full, &file);
    assert!(error.is_out_of_memory(), "{error}");

    let error = refused(Pool::builder(&backend).budget(Bytes::mib(16)), &backend, &file);
    assert!(matches!(error.extension(), Some(PoolError::OutOfMemory { .. })), "{error}");
    assert!(error.to_string().contains("budget is 16 MiB"), "{error}");

    let plain = HostConfig::new().without_virtual_memory().open().unwrap();
    let error = refused(Pool::builder(&plain), &plain, &file);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = save(&Pool::builder(&plain).build().unwrap(), &plain, &folder.file("plain")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    // Each of its regions is taken in turn.
    for region in &file.description().regions {
        let place = gpu_vmm_core::Placement::Exact(region.address);
        let taken = Region::builder(&backend).reserve(PAGE).at(place).build().unwrap();
        let error = refused(Pool::builder(&backend), &backend, &file);
        assert_eq!(error.kind(), ErrorKind::AddressTaken);
        assert!(
            matches!(error.extension(), Some(SnapshotError::AddressTaken { was, user: Some(_), .. })
            if was.base == region.address),
            "{error}"
        );
        drop(taken);
    }
    Pool::builder(&backend).restore(&file, &ring(&backend)).unwrap();
    // As regions, without the table of blocks.
    let regions = Restore::new().regions(&file, &ring(&backend)).unwrap();
    assert_eq!(regions.len(), file.description().regions.len());
}

/// Larger pages than the saved ones: nothing fits.
#[test]
fn coarser_granularity_is_refused() {
    let folder = Folder::new("coarse");
    let file = saved(&folder);
    let coarse = HostConfig::new().memory(Bytes::mib(512)).granularity(Bytes::mib(4)).open().unwrap();
    let error = refused(Pool::builder(&coarse), &coarse, &file);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("pages of 2 MiB, and device 0 needs pages of at least 4 MiB"),
        "{error}"
    );
}

#[test]
fn damaged_files_restore_nothing() {
    let folder = Folder::new("damaged");
    drop(saved(&folder));
    let (path, backend) = (folder.file("pool"), backend());
    let good = fs::read(&path).unwrap();
    let mut random = Random(7);
    for _ in 0..40 {
        let mut bytes = good.clone();
        let at = (random.next() % bytes.len() as u64) as usize;
        bytes[at] ^= 1 << (random.next() % 8);
        fs::write(&path, &bytes).unwrap();
        let free = backend.memory_info(DeviceId(0)).unwrap().free;
        let restored = SnapshotFile::open(&path)
            .and_then(|file| Pool::builder(&backend).restore(&file, &ring(&backend)));
        let error = restored.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File, "byte {at}: {error}");
        assert_eq!(backend.memory_info(DeviceId(0)).unwrap().free, free);
    }
}

/// Each driver call of a save and of a restore fails once: nothing is lost.
#[test]
fn failed_calls_leave_nothing() {
    let folder = Folder::new("faults");
    let backend = FaultInject::new(backend());
    let (file, ring) = (folder.file("pool"), ring(&backend));
    let pool = builder(&backend).build().unwrap();
    let mut model = Model::new();
    let blocks = some(&pool, &mut model);
    let save = || pool.save(&ring).write(&file, WaitFor::all_devices());
    backend.fail(0, 0);
    save().unwrap();
    for number in 0..backend.stop() {
        backend.fail(number, 1);
        let _ = save();
        backend.stop();
    }
    save().unwrap();
    let held = pool.usage().held;
    drop((blocks, pool));
    let opened = SnapshotFile::open(&file).unwrap();
    let free = || backend.memory_info(DeviceId(0)).unwrap().free;
    let before = free();
    let restore = || Pool::builder(&backend).restore(&opened, &ring);
    backend.fail(0, 0);
    let restored = restore().unwrap();
    let count = backend.stop();
    is_as_saved(&restored, &model);
    drop(restored);
    assert_eq!(free(), before);
    for number in 0..count {
        backend.fail(number, 1);
        let failed = restore();
        backend.stop();
        drop(failed);
        assert_eq!(free(), before, "call {number}");
    }
    let restored = restore().unwrap();
    is_as_saved(&restored, &model);
    assert_eq!(restored.pool.usage().held, held);
}

/// Other threads allocate, fill and free blocks of the saved tag all the time: what lives during the whole save is saved whole.
#[test]
fn saves_beside_other_threads_are_whole() {
    let (folder, backend) = (Folder::new("beside"), backend());
    let file = folder.file("pool");
    let pool = builder(&backend).build().unwrap().tagged("kv").unwrap();
    let mut model = Model::new();
    let blocks = some(&pool, &mut model);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 1..3 {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let (mut random, mut own) = (Random(seed), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let size = Bytes(1 + random.next() % [3000, 200_000, 6 << 20][own.len() % 3]);
                    let mut block = pool.alloc(size).unwrap();
                    block.write(Bytes::ZERO, &[seed as u8]).unwrap();
                    own.push(block);
                    if own.len() > 8 {
                        own.swap_remove((random.next() % 8) as usize);
                    }
                    if random.next().is_multiple_of(16) {
                        pool.trim(Bytes::ZERO).unwrap();
                    }
                }
            });
        }
        let saves: Vec<_> = (0..20).map(|_| save(&pool, &backend, &file)).collect();
        stop.store(true, Ordering::Relaxed);
        for saved in saves {
            saved.unwrap();
        }
    });
    drop(blocks);
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((pool.stats().held, pool.stats().live), (0, 0));
    drop(pool);
    let opened = SnapshotFile::open(&file).unwrap();
    let restored = Pool::builder(&backend).restore(&opened, &ring(&backend)).unwrap();
    for (address, (_, _, size, number)) in &model {
        let place = restored.blocks.binary_search_by_key(address, Block::address).unwrap();
        check(&restored.blocks[place], *size, *number);
    }
}

/// A block that is freed while a save reads its page: the memory is free after the save, not before.
#[test]
fn memory_freed_during_a_save_is_free_afterwards() {
    let (folder, backend) = (Folder::new("freed"), backend());
    let pool = builder(&backend).budget(Bytes::mib(8)).build().unwrap();
    let (other, mut block) = (pool.alloc(Bytes::mib(4)).unwrap(), Some(pool.alloc(Bytes::mib(4)).unwrap()));
    let address = block.as_ref().unwrap().address();
    save(&pool, &backend, &folder.file("pool")).unwrap();
    thread::scope(|scope| {
        let (pool, backend, file) = (&pool, &backend, folder.file("pool"));
        scope.spawn(move || {
            for _ in 0..50 {
                save(pool, backend, &file).unwrap();
            }
        });
        for _ in 0..200 {
            drop(block.take());
            // There is no other memory: the request has the same, at the same or at other addresses.
            block = Some(pool.alloc(Bytes::mib(4)).unwrap());
        }
    });
    assert!(pool.find(address).is_some() || block.is_some());
    drop((block, other));
    pool.trim(Bytes::ZERO).unwrap();
    assert_eq!(pool.stats().held, 0);
}

/// Random programs against a model: requests, also at chosen addresses, frees, trims, saves and restores.
#[test]
fn random_saves_and_restores() {
    let (folder, backend) = (Folder::new("random"), backend());
    let (file, ring) = (folder.file("pool"), ring(&backend));
    for seed in 1..4 {
        let mut random = Random(seed);
        let mut pool = builder(&backend).build().unwrap();
        let mut blocks: BTreeMap<Address, (Block<HostBackend>, String, u64)> = BTreeMap::new();
        for step in 0..300_u64 {
            match random.next() % 20 {
                0..10 if blocks.len() < 60 => {
                    let tag = ["", "a", "b"][(random.next() % 3) as usize];
                    let bits = 1 + random.next() % if random.next().is_multiple_of(8) { 22 } else { 17 };
                    let size = Bytes(1 + random.next() % (1 << bits));
                    let mut block = pool.request(size).tag(tag).alloc().unwrap();
                    fill(&mut block, step);
                    blocks.insert(block.address(), (block, tag.to_owned(), step));
                }
                10..12 if !blocks.is_empty() => {
                    // Behind a block, at its next page or at once.
                    let place = (random.next() % blocks.len() as u64) as usize;
                    let (block, tag, _) = blocks.values().nth(place).unwrap();
                    let end = (block.address() + block.capacity()).0.next_multiple_of(512);
                    let step_size = [512, 4096, PAGE.0][(random.next() % 3) as usize];
                    let (address, tag) = (Address(end.next_multiple_of(step_size)), tag.clone());
                    let size = Bytes(1 + random.next() % 100_000);
                    let end = address + size;
                    let is_free = blocks.values().all(|(other, ..)| {
                        other.address() >= end || other.address() + other.capacity() <= address
                    });
                    match pool.request(size).tag(&tag).at(address).alloc() {
                        Ok(mut block) => {
                            assert!(is_free && block.address() == address);
                            fill(&mut block, step);
                            blocks.insert(address, (block, tag, step));
                        }
                        // A slab, the end of a reservation, or the addresses of another tag.
                        Err(error) => assert_eq!(error.kind(), ErrorKind::AddressTaken, "{error}"),
                    }
                }
                12..18 if !blocks.is_empty() => {
                    let place = (random.next() % blocks.len() as u64) as usize;
                    let address = *blocks.keys().nth(place).unwrap();
                    let (block, _, number) = blocks.remove(&address).unwrap();
                    check(&block, block.size(), number);
                }
                18 => {
                    pool.trim(Bytes(random.next() % (8 << 20))).unwrap();
                }
                _ if step.is_multiple_of(4) => {
                    pool.save(&ring).write(&file, WaitFor::all_devices()).unwrap();
                    let model: Model = blocks
                        .iter()
                        .map(|(address, (block, tag, number))| {
                            (*address, (tag.clone(), block.capacity(), block.size(), *number))
                        })
                        .collect();
                    blocks.clear();
                    drop(pool);
                    let opened = SnapshotFile::open(&file).unwrap();
                    let restored = Pool::builder(&backend).restore(&opened, &ring).unwrap();
                    is_as_saved(&restored, &model);
                    pool = restored.pool;
                    for mut block in restored.blocks {
                        let (tag, _, _, number) = model[&block.address()].clone();
                        // Its size is its capacity now.
                        fill(&mut block, number);
                        blocks.insert(block.address(), (block, tag, number));
                    }
                }
                _ => {}
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.live_blocks, blocks.len() as u64);
        blocks.into_values().for_each(|(block, _, number)| check(&block, block.size(), number));
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.stats().held, 0);
    }
    let free = backend.memory_info(DeviceId(0)).unwrap();
    assert_eq!(free.free, free.total);
}

/// The second device is the pool's in the restoring process.
#[test]
fn pools_are_restored_on_another_device() {
    let (folder, backend) = (Folder::new("device"), backend());
    let pool = builder(&backend).build().unwrap();
    pool.allow_access(DeviceId(1)).unwrap();
    let mut model = Model::new();
    let blocks = some(&pool, &mut model);
    save(&pool, &backend, &folder.file("pool")).unwrap();
    drop((blocks, pool));
    let opened = SnapshotFile::open(folder.file("pool")).unwrap();
    let builder = Pool::builder(&backend).device(DeviceId(1));
    let restored = builder.restore(&opened, &ring(&backend)).unwrap();
    is_as_saved(&restored, &model);
    let first = &restored.blocks[0];
    assert_eq!(restored.pool.find(first.address()).unwrap().device, DeviceId(1));
    restored.pool.allow_access(DeviceId(0)).unwrap();
    assert_eq!(first.stream(), Stream::DEFAULT);
}
