//! The parameters of a request other than its size, and the bytes of a block.

use super::{MIN, alloc, pool};
use crate::case::cases;
use crate::library::flights::own;
use crate::library::tools::{assert_names, idle};
use crate::subject::Subject;
use gpu_vmm_core::{BackingStore, Bytes, Detail, OffsetRange};
use gpu_vmm_pool::{Block, PoolError};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

cases! { "pool":
    /// A block has the alignment, stream and tag of its request, and otherwise the pool's.
    requests,
    /// Bytes that are written to a block are read back at any offset, and no other byte of it or of its neighbors changes.
    bytes_are_read_and_written,
    /// Bytes can be copied between blocks of one pool, within a tag and from tag to tag.
    bytes_from_block_to_block,
    /// Access beyond a block's size is refused with the numbers, and nothing has changed.
    bytes_behind_a_block,
    /// Access to the bytes of a suspended block is refused, and the bytes are the same after the resume.
    bytes_of_a_suspended_block,
    /// A suspension waits for copies that other threads have begun.
    suspended_beside_copies,
}

fn requests<B: TestKit>(subject: &Subject<B>) {
    let (pool, stream) = (pool(subject), own(subject));
    // SAFETY: the pool is dropped before the stream.
    #[allow(unsafe_code)]
    let named = unsafe { gpu_vmm_core::Stream::from_raw(stream.stream().as_raw()) };
    let size = Bytes::kib(40);
    let block = pool.request(size).alignment(Bytes::mib(1)).stream(named).tag("kv").alloc().unwrap();
    assert!(block.address().is_aligned_to(Bytes::mib(1)));
    assert_eq!((block.size(), block.stream()), (size, named));
    assert_eq!(&*pool.find(block.address()).unwrap().tag, "kv");
    let plain = pool.request(size).alloc().unwrap();
    assert!(plain.address().is_aligned_to(MIN) && plain.stream().is_default());
    assert_eq!(&*pool.find(plain.address()).unwrap().tag, "");
    let tagged = pool.tagged("weights").unwrap().alloc(size).unwrap();
    assert_eq!(&*pool.find(tagged.address()).unwrap().tag, "weights");
    drop((block, plain, tagged, pool));
}

fn bytes<B: TestKit>(block: &Block<B>) -> Vec<u8> {
    let mut found = vec![0; block.size().0 as usize];
    block.read(Bytes::ZERO, &mut found).unwrap();
    found
}

fn bytes_are_read_and_written<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let sizes = [Bytes(300), Bytes::kib(48), Bytes::mib(3)];
    let mut blocks: Vec<_> = sizes.into_iter().map(|size| alloc(&pool, size)).collect();
    for (number, block) in (1..).zip(&mut blocks) {
        block.write(Bytes::ZERO, &vec![number; block.size().0 as usize]).unwrap();
    }
    for block in &mut blocks {
        let end = block.size() - Bytes(7);
        block.write(end, &[9; 7]).unwrap();
        block.write(Bytes(100), &[8; 3]).unwrap();
        block.write(block.size(), &[]).unwrap();
    }
    for (number, block) in (1..).zip(&blocks) {
        let mut right = vec![number; block.size().0 as usize];
        let end = right.len() - 7;
        right[end..].fill(9);
        right[100..103].fill(8);
        assert!(bytes(block) == right, "of {}", block.size());
        let mut three = [0; 3];
        block.read(Bytes(99), &mut three).unwrap();
        assert_eq!(three, [number, 8, 8]);
    }
}

fn bytes_from_block_to_block<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let mut from = alloc(&pool, Bytes(5000));
    from.write(Bytes::ZERO, &[1; 5000]).unwrap();
    from.write(Bytes(40), &[2; 60]).unwrap();
    let range = OffsetRange { offset: Bytes(30), length: Bytes(4000) };
    for tag in ["", "kv"] {
        let mut to = pool.request(Bytes::kib(48)).tag(tag).alloc().unwrap();
        to.write(Bytes::ZERO, &[7; 48 << 10]).unwrap();
        to.copy_from(Bytes(9), &from, range).unwrap();
        let mut right = vec![7; 48 << 10];
        right[9..4009].fill(1);
        right[19..79].fill(2);
        assert!(bytes(&to) == right);
        let (behind, zero) = (Bytes::kib(48), Bytes::ZERO);
        to.copy_from(behind, &from, OffsetRange { offset: Bytes(5000), length: zero }).unwrap();
        for (offset, range) in
            [(behind - Bytes(3999), range), (zero, OffsetRange { offset: Bytes(1001), ..range })]
        {
            let error = to.copy_from(offset, &from, range).unwrap_err();
            assert!(matches!(error.detail(), Detail::OutOfRange { .. }), "{error}");
        }
        assert!(bytes(&to) == right);
    }
    let mut elsewhere = alloc(&super::pool(subject), Bytes(5000));
    let error = elsewhere.copy_from(Bytes::ZERO, &from, range).unwrap_err();
    assert!(matches!(error.detail(), Detail::Unsupported { .. }), "{error}");
}

fn bytes_behind_a_block<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let mut block = alloc(&pool, Bytes(1000));
    block.write(Bytes::ZERO, &[5; 1000]).unwrap();
    let mut two = [0; 2];
    for offset in [Bytes(999), Bytes(1000), Bytes(u64::MAX)] {
        for error in [block.read(offset, &mut two).unwrap_err(), block.write(offset, &[1, 2]).unwrap_err()] {
            assert!(matches!(error.detail(), Detail::OutOfRange { limit: Bytes(1000), .. }), "{error}");
            assert_names(&error, &["1000 B", "2 B"].map(str::to_owned));
        }
    }
    assert_eq!(two, [0; 2]);
    assert!(bytes(&block) == [5; 1000]);
}

fn bytes_of_a_suspended_block<B: TestKit>(subject: &Subject<B>) {
    let pool = pool(subject);
    let mut block = pool.request(Bytes(5000)).tag("kv").alloc().unwrap();
    let mut other = alloc(&pool, Bytes(5000));
    block.write(Bytes::ZERO, &[3; 5000]).unwrap();
    let store = BackingStore::pinned(&subject.backend, pool.occupied("kv").unwrap()).unwrap();
    pool.suspend("kv", &store, idle()).unwrap();
    let mut one = [0];
    for error in [block.read(Bytes::ZERO, &mut one).unwrap_err(), block.write(Bytes::ZERO, &one).unwrap_err()]
    {
        assert!(matches!(error.extension(), Some(PoolError::Suspended { tag }) if &**tag == "kv"), "{error}");
    }
    other.read(Bytes::ZERO, &mut one).unwrap();
    let range = OffsetRange { offset: Bytes::ZERO, length: Bytes(9) };
    for error in [other.copy_from(Bytes(1), &block, range), block.copy_from(Bytes(1), &other, range)] {
        let error = error.unwrap_err();
        assert!(matches!(error.extension(), Some(PoolError::Suspended { tag }) if &**tag == "kv"), "{error}");
    }
    pool.resume("kv").unwrap();
    assert!(bytes(&block) == [3; 5000]);
}

fn suspended_beside_copies<B: TestKit>(subject: &Subject<B>) {
    const ROUNDS: usize = 8;
    // The copy takes much longer than the start of a suspension.
    const SIZE: usize = 32 << 20;
    let pool = pool(subject).tagged("kv").unwrap();
    let mut block = pool.alloc(Bytes(SIZE as u64)).unwrap();
    block.write(Bytes::ZERO, &vec![6; SIZE]).unwrap();
    let store = BackingStore::pinned(&subject.backend, pool.occupied("kv").unwrap()).unwrap();
    let is_over = AtomicBool::new(false);
    let (block, is_over) = (&block, &is_over);
    let read = move || {
        let mut found = vec![0; SIZE];
        let mut reads = 0;
        while !is_over.load(Ordering::Acquire) {
            match block.read(Bytes::ZERO, &mut found) {
                Ok(()) => {
                    assert!(found.iter().all(|byte| *byte == 6));
                    reads += 1;
                }
                Err(error) => {
                    assert!(matches!(error.extension(), Some(PoolError::Suspended { .. })), "{error}");
                }
            }
        }
        reads
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(read);
        for _ in 0..ROUNDS {
            std::thread::sleep(Duration::from_millis(2));
            pool.suspend("kv", &store, idle()).unwrap();
            pool.resume("kv").unwrap();
        }
        is_over.store(true, Ordering::Release);
        let reads = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(reads > 0, "no copy ran during a suspension");
    });
    assert!(bytes(block).iter().all(|byte| *byte == 6));
}
