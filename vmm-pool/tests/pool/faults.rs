//! Driver calls that fail, one by one and in pairs: every block keeps its memory, no two blocks share memory, and nothing leaks.
#![allow(unsafe_code)]

use gpu_vmm_core::{Access, BackingStore, Bytes, Detail, DeviceId, Error, ErrorKind, Stream, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool};
use gpu_vmm_testkit::{FaultInject, TestKit};

type Faulty = FaultInject<HostBackend>;

const PAGE: Bytes = Bytes::mib(2);

struct Program {
    pool: Pool<Faulty>,
    store: BackingStore<Faulty>,
    blocks: Vec<(Block<Faulty>, u64)>,
    next: u64,
    streams: [Stream<'static>; 2],
}

impl Program {
    fn new(backend: &Faulty) -> Self {
        let pool = Pool::builder(backend).scrub().build().unwrap();
        let store = BackingStore::pinned(backend, Bytes::mib(16)).unwrap();
        let own = Box::leak(Box::new(backend.own_stream(DeviceId(0)).unwrap()));
        Self { pool, store, blocks: Vec::new(), next: 0, streams: [Stream::DEFAULT, own.stream()] }
    }

    /// Allocates a block and writes contents of its own into it, if the pool has memory for it.
    fn alloc(&mut self, pages: u64, stream: usize) -> bool {
        let pool = if pages.is_multiple_of(2) { self.pool.clone() } else { self.pool.tagged("odd").unwrap() };
        let Ok(block) = pool.request(Bytes(PAGE.0 * pages)).stream(self.streams[stream]).alloc() else {
            return false;
        };
        self.next += 1;
        self.check(&block);
        for word in words(&block) {
            // SAFETY: the block is live, and its memory is host memory.
            unsafe { word.write_volatile(self.next) };
        }
        self.blocks.push((block, self.next));
        true
    }

    /// Checks that all of a block is mapped according to the driver.
    fn check(&self, block: &Block<Faulty>) {
        let backend = &self.backend();
        for page in 0..block.size().0.div_ceil(PAGE.0) {
            let at = block.address() + Bytes(page * PAGE.0);
            assert_eq!(
                backend.access_at(at, DeviceId(0)).unwrap(),
                Some(Access::ReadWrite),
                "page {page} of {block:?}"
            );
        }
    }

    fn backend(&self) -> Faulty {
        BACKEND.with(|backend| backend.borrow().clone().unwrap())
    }

    /// Checks that every block has the contents that were written into it.
    fn check_all(&self) {
        for (block, number) in &self.blocks {
            self.check(block);
            for word in words(block) {
                // SAFETY: as above.
                assert_eq!(unsafe { word.read_volatile() }, *number, "{block:?}");
            }
        }
    }

    fn free(&mut self, index: usize) {
        if index < self.blocks.len() {
            self.blocks.remove(index);
        }
    }

    /// Allocates and frees blocks: memory is created, mapped elsewhere, scrubbed and returned to the driver.
    fn run(&mut self) {
        for pages in [2, 1, 2, 1] {
            self.alloc(pages, 0);
        }
        self.free(0);
        self.free(1);
        self.alloc(3, 1);
        self.alloc(4, 0);
        self.free(0);
        self.free(0);
        let _ = self.pool.trim(PAGE);
        self.alloc(2, 0);
        self.alloc(3, 1);
    }

    /// Runs the same, and suspends and resumes a tag.
    fn sleep(&mut self) {
        self.run();
        let suspended = self.pool.suspend("odd", &self.store, WaitFor::all_devices());
        if let Err(Detail::RollbackFailed { .. }) = suspended.as_ref().map_err(Error::detail) {
            // Some of the blocks have lost their memory.
            self.blocks.clear();
        }
        let _ = self.pool.resume("odd");
        self.free(0);
        self.alloc(4, 0);
    }
}

/// Returns a pointer to the first word of each page.
fn words(block: &Block<Faulty>) -> impl Iterator<Item = *mut u64> + use<> {
    let (base, size) = (block.address().0, block.size().0);
    (0..size.div_ceil(PAGE.0))
        .map(move |page| std::ptr::with_exposed_provenance_mut((base + page * PAGE.0) as usize))
}

thread_local! {
    static BACKEND: std::cell::RefCell<Option<Faulty>> = const { std::cell::RefCell::new(None) };
}

fn backend() -> Faulty {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::mib(64)).open().unwrap());
    BACKEND.with(|one| *one.borrow_mut() = Some(backend.clone()));
    backend
}

/// Runs a program in which the given calls fail. Returns the number of its calls.
fn with(failing: &[u64], program: fn(&mut Program), twice: bool) -> u64 {
    let backend = backend();
    let mut at = Program::new(&backend);
    backend.fail_each(failing);
    program(&mut at);
    let calls = backend.stop();
    // If the rollback of a resume fails as well, the tag stays suspended.
    let awake = at.pool.resume("odd").map_or_else(|error| error.kind() == ErrorKind::NotFound, |_| true);
    assert!(awake || twice, "{failing:?}");
    if awake {
        at.check_all();
    }
    // The pool continues to work after the failures.
    let before = at.pool.stats();
    assert_eq!(before.live, at.blocks.iter().map(|(block, _)| block.size().0).sum::<u64>());
    assert!(before.peak_live <= 60 * PAGE.0, "{failing:?}: {before:?}");
    // If the driver refused addresses several times, the pool has reserved few of them.
    let few = twice && before.reserved < Bytes::mib(512).0;
    assert!(at.alloc(4, 0) && (at.alloc(3, 1) || !awake) || few, "{failing:?}: {before:?}");
    if awake {
        at.check_all();
    }
    at.blocks.clear();
    at.pool.trim(Bytes::ZERO).unwrap();
    let account = at.pool.stats();
    assert_eq!((account.live, account.pending, account.kept), (0, 0, 0), "{failing:?}: {account:?}");
    if !twice {
        assert_eq!((account.held, account.mapped), (0, 0), "{failing:?}: {account:?}");
        assert_eq!(backend.live().handles, 0, "{failing:?}");
        drop(at);
        assert_eq!(backend.live().reservations, 0, "{failing:?}");
    }
    calls
}

fn sweep(program: fn(&mut Program)) {
    let calls = with(&[], program, false);
    for first in 0..calls {
        with(&[first], program, false);
    }
    for first in 0..calls {
        for apart in 1..3 {
            with(&[first, first + apart], program, true);
        }
        with(&[first, first + 1, first + 2, first + 3], program, true);
    }
}

/// A suspension fails and cannot be undone, so that a block loses its memory. It refuses copies, and the others keep their
/// bytes. Each block ends within its only page.
#[test]
fn lost_memory_is_not_copied() {
    let bytes = vec![7; 3 << 19];
    let size = Bytes(bytes.len() as u64);
    let mut lost = 0;
    for first in 0.. {
        let backend = backend();
        let pool = Pool::builder(&backend).build().unwrap().tagged("odd").unwrap();
        let store = BackingStore::pinned(&backend, Bytes::mib(16)).unwrap();
        let blocks = [(); 3].map(|()| pool.request(size).alignment(PAGE).alloc().unwrap());
        // Memory on both sides of a hole is unmapped by two driver calls, of which the second fails.
        let [mut one, hole, mut other] = blocks;
        drop(hole);
        for block in [&mut one, &mut other] {
            block.write(Bytes::ZERO, &bytes).unwrap();
        }
        backend.fail(first, u64::MAX);
        let suspended = pool.suspend("odd", &store, WaitFor::all_devices());
        backend.stop();
        if suspended.is_ok() {
            break;
        }
        for block in [&mut one, &mut other] {
            let is_mapped = backend.access_at(block.address(), DeviceId(0)).unwrap().is_some();
            let mut found = vec![0; bytes.len()];
            match (block.read(Bytes::ZERO, &mut found), block.write(Bytes::ZERO, &[7])) {
                (Ok(()), Ok(())) => assert!(is_mapped && found == bytes, "{first}: {block:?}"),
                (Err(read), Err(write)) => {
                    assert_eq!(read.kind(), write.kind(), "{first}: {read}, {write}");
                    // If only the end of the suspension failed, it stays suspended.
                    assert!(
                        matches!(read.kind(), ErrorKind::Poisoned | ErrorKind::Suspended),
                        "{first}: {read}"
                    );
                    lost += u32::from(read.kind() == ErrorKind::Poisoned);
                }
                (read, write) => panic!("{first}: {read:?}, {write:?}"),
            }
        }
    }
    assert!(lost > 0, "no call lost a block's memory");
}

#[test]
fn blocks_that_come_and_go() {
    sweep(Program::run);
}

#[test]
fn memory_that_goes_and_comes() {
    sweep(Program::sleep);
}
