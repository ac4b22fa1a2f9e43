//! The pool's pairs, compared with what they cannot do without. A thread cache is locked for an allocation and for its free, since
//! another thread empties it when memory is short. A block that another thread frees has a record that both threads write.

use super::order::Handed;
use super::pool::{PAIRS, PLAN};
use crate::allocator::{Allocator, Pooled, pairs};
use crate::scene::Scene;
use crate::stop::StepResult;
use gpu_vmm_core::{Bytes, Stream};
use gpu_vmm_testkit::TestKit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A small size, a medium one, and one that no thread cache holds.
const SIZES: [Bytes; 3] = [Bytes::kib(4), Bytes::kib(512), Bytes::mib(4)];

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let pool = Pooled::new(scene.backend, scene.device, Stream::DEFAULT)?;
    let locks = TwoLocks(Mutex::new(0));
    for size in SIZES {
        scene.compare_whole(
            format!("{size}: pair"),
            locks.name(),
            PLAN,
            || pairs(&pool, size, PAIRS),
            || pairs(&locks, size, PAIRS),
        )?;
    }
    let lines = Lines::new();
    for size in SIZES {
        std::thread::scope(|scope| {
            let (mut ours, mut theirs) = (Handed::new(scope, &pool), Handed::new(scope, &lines));
            scene.compare_whole(
                format!("{size}: freed by another thread"),
                lines.name(),
                PLAN,
                || ours.pass(size, PAIRS),
                || theirs.pass(size, PAIRS),
            )
        })?;
    }
    Ok(())
}

/// A lock of the pool's kind, which no other thread takes.
struct TwoLocks(Mutex<u64>);

impl TwoLocks {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for TwoLocks {
    type Block = ();

    fn name(&self) -> String {
        "two locks".to_owned()
    }

    fn alloc(&self, _: Bytes) -> StepResult {
        *self.lock() += 1;
        Ok(())
    }

    fn free(&self, (): ()) -> StepResult {
        *self.lock() -= 1;
        Ok(())
    }
}

/// Records of one cache line each, more than are in flight.
struct Lines {
    all: Vec<Line>,
    next: AtomicUsize,
}

#[derive(Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Lines {
    fn new() -> Self {
        Self { all: (0..PAIRS).map(|_| Line::default()).collect(), next: AtomicUsize::new(0) }
    }

    fn write(&self, line: usize) {
        let Line(number) = &self.all[line];
        number.store(number.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Allocator for Lines {
    type Block = usize;

    fn name(&self) -> String {
        "a cache line that both threads write".to_owned()
    }

    /// Takes the lines in turn. Only one thread allocates.
    fn alloc(&self, _: Bytes) -> StepResult<usize> {
        let line = self.next.load(Ordering::Relaxed);
        self.next.store((line + 1) % self.all.len(), Ordering::Relaxed);
        self.write(line);
        Ok(line)
    }

    fn free(&self, line: usize) -> StepResult {
        self.write(line);
        Ok(())
    }
}
