//! Pools that are saved in a file, and restored in the same process or in another one.

use super::{adds_up, alloc, builder, check, is_empty, write, wrong_at};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::tools::idle;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::{Address, Backend, BackingStore, Bytes, ErrorKind, StagingRing};
use gpu_vmm_pool::{Block, Pool, PoolError, RestoredPool};
use gpu_vmm_snapshot::{SnapshotError, SnapshotFile};
use gpu_vmm_testkit::TestKit;
use std::path::Path;

cases! { "pool":
    /// Another process restores a saved pool at the same addresses, and its device finds the same bytes there. The pool then serves
    /// further requests.
    restored_in_another_process with restores_and_checks,
    /// A pool that is restored in the same process has the saved blocks of the saved tags alone, and is empty after they were freed.
    restored_blocks_are_freed,
    /// A restore at addresses that are in use names what uses them, and restores nothing.
    restore_at_taken_addresses,
    /// A restore within a budget that is too small, and of a damaged file, is an error and leaves no memory behind.
    restores_that_fail_leave_nothing,
    /// A suspended tag is not saved, and other tags are.
    suspended_tags_are_not_saved,
    /// Blocks that are freed and allocated after a save do not change its file; a later one leaves out what is unchanged.
    later_files_need_the_earlier_one,
}

fn ring<B: Backend>(backend: &B) -> StagingRing<B> {
    StagingRing::new(backend, 2, Bytes::mib(3)).unwrap()
}

/// The tag, the address, the size and the seed of a block.
type BlockList = Vec<(String, u64, u64, u64)>;

const TAGS: [&str; 2] = ["", "weights"];

/// Blocks of all size classes with their patterns.
fn some<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>) -> (Vec<Block<B>>, BlockList) {
    let (mut blocks, mut list) = (Vec::new(), BlockList::new());
    for tag in TAGS {
        let tagged = pool.tagged(tag).unwrap();
        for size in [256, 700, 5000, 70_000, 1 << 20, 5 << 20, (3 << 20) + 8] {
            let (block, seed) = (alloc(&tagged, Bytes(size)), blocks.len() as u64 + 1);
            write(subject, &block, seed);
            list.push((tag.to_owned(), block.address().0, size, seed));
            blocks.push(block);
        }
    }
    list.sort_by_key(|(_, address, ..)| *address);
    (blocks, list)
}

fn save<B: TestKit>(subject: &Subject<B>, pool: &Pool<B>, path: &Path) -> SnapshotFile {
    pool.save(&ring(&subject.backend)).write(path, idle()).unwrap();
    SnapshotFile::open(path).unwrap()
}

fn restore<B: TestKit>(subject: &Subject<B>, file: &SnapshotFile) -> gpu_vmm_core::Result<RestoredPool<B>> {
    Pool::builder(&subject.backend).device(subject.device).restore(file, &ring(&subject.backend))
}

/// The number of blocks that are not as they were.
fn wrong<B: TestKit>(subject: &Subject<B>, restored: &RestoredPool<B>, list: &BlockList) -> u64 {
    let found: Vec<_> = restored.blocks.iter().map(|block| block.address().0).collect();
    assert_eq!(found, list.iter().map(|(_, address, ..)| *address).collect::<Vec<_>>());
    let is_wrong = |(tag, address, size, seed): &&(String, u64, u64, u64)| {
        let info = restored.pool.find(Address(*address)).unwrap();
        let differ = wrong_at(&subject.backend, subject.device, Address(*address), Bytes(*size), *seed);
        differ > 0 || *info.tag != **tag || info.capacity < Bytes(*size)
    };
    list.iter().filter(is_wrong).count() as u64
}

fn restored_in_another_process<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).restorable().build().unwrap();
    let (blocks, list) = some(subject, &pool);
    let file = save(subject, &pool, &folder.file("pool"));
    drop((blocks, pool));
    let mut child = subject.child();
    child.send((file.path().to_str().unwrap().to_owned(), list));
    assert_eq!(child.receive::<u64>(), 0, "blocks that differ");
    child.finish();
}

fn restores_and_checks<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (path, list) = peer.receive::<(String, BlockList)>();
    let restored = restore(subject, &SnapshotFile::open(path).unwrap()).unwrap();
    let before = wrong(subject, &restored, &list);
    let (more, others) = some(subject, &restored.pool);
    assert!(others.iter().all(|(_, address, ..)| list.iter().all(|(_, other, ..)| address != other)));
    adds_up(&restored.pool);
    let after = wrong(subject, &restored, &list);
    drop(more);
    peer.send(before + after);
}

fn restored_blocks_are_freed<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).restorable().build().unwrap();
    let (blocks, mut list) = some(subject, &pool);
    let ring = ring(&subject.backend);
    pool.save(&ring).tag("weights").compress(true).write(folder.file("pool"), idle()).unwrap();
    drop((blocks, pool));
    list.retain(|(tag, ..)| tag == "weights");
    let restored = restore(subject, &SnapshotFile::open(folder.file("pool")).unwrap()).unwrap();
    assert_eq!(wrong(subject, &restored, &list), 0);
    let RestoredPool { pool, blocks } = restored;
    drop(blocks);
    let again = alloc(&pool.tagged("weights").unwrap(), Bytes::mib(5));
    write(subject, &again, 3);
    check(subject, &again, 3);
    drop(again);
    is_empty(&pool);
}

fn restore_at_taken_addresses<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).restorable().build().unwrap();
    let (blocks, list) = some(subject, &pool);
    let file = save(subject, &pool, &folder.file("pool"));
    let error = restore(subject, &file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressTaken, "{error}");
    assert!(matches!(error.extension(), Some(SnapshotError::AddressTaken { was, .. })
        if file.description().regions.iter().any(|region| region.address == was.base)));
    // The pool goes on.
    for ((_, address, size, seed), _) in list.iter().zip(&blocks) {
        let differ = wrong_at(&subject.backend, subject.device, Address(*address), Bytes(*size), *seed);
        assert_eq!(differ, 0);
    }
    drop(blocks);
    is_empty(&pool);
}

fn restores_that_fail_leave_nothing<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).restorable().build().unwrap();
    let (blocks, list) = some(subject, &pool);
    let file = save(subject, &pool, &folder.file("pool"));
    drop((blocks, pool));
    let budget = Bytes(file.description().contents().0 - 1);
    let builder = Pool::builder(&subject.backend).device(subject.device).budget(budget);
    let error = builder.restore(&file, &ring(&subject.backend)).unwrap_err();
    assert!(matches!(error.extension(), Some(PoolError::OutOfMemory { .. })), "{error}");
    // A changed byte in the first block of the file.
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[100] ^= 1;
    std::fs::write(folder.file("damaged"), bytes).unwrap();
    let error = restore(subject, &SnapshotFile::open(folder.file("damaged")).unwrap()).unwrap_err();
    assert!(matches!(error.extension(), Some(SnapshotError::Invalid { .. })), "{error}");
    // The addresses are free.
    let restored = restore(subject, &file).unwrap();
    assert_eq!(wrong(subject, &restored, &list), 0);
}

fn suspended_tags_are_not_saved<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).build().unwrap();
    let (blocks, _) = some(subject, &pool);
    pool.suspend("weights", &BackingStore::nothing(), idle()).unwrap();
    let ring = ring(&subject.backend);
    let error = pool.save(&ring).write(folder.file("pool"), idle()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Suspended, "{error}");
    assert!(folder.names().is_empty());
    pool.save(&ring).tag("").write(folder.file("pool"), idle()).unwrap();
    pool.resume("weights").unwrap();
    save(subject, &pool, &folder.file("all"));
    drop(blocks);
    is_empty(&pool);
}

fn later_files_need_the_earlier_one<B: TestKit>(subject: &Subject<B>) {
    let folder = Folder::new();
    let pool = builder(subject).restorable().build().unwrap();
    let (blocks, list) = some(subject, &pool);
    let first = save(subject, &pool, &folder.file("one"));
    let stats = pool.save(&ring(&subject.backend)).since(&first).write(folder.file("two"), idle()).unwrap();
    assert!(stats.unchanged > 0 && stats.stored == 0, "{stats:?}");
    let other = alloc(&pool, Bytes::mib(1));
    write(subject, &other, 77);
    drop((blocks, other, pool));
    let restored = restore(subject, &SnapshotFile::open(folder.file("two")).unwrap()).unwrap();
    assert_eq!(wrong(subject, &restored, &list), 0);
}
