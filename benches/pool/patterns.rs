//! What is timed: allocations and frees in several orders, by whatever allocates.

use crate::measure::{Summary, in_turn};
use crate::setting;
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{Backend, Bytes, Stream};
use std::error::Error;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// Whatever allocates.
pub(crate) trait Allocator {
    type Block: Send;

    const NAME: &'static str;

    fn alloc(&self, size: Bytes) -> Result<Self::Block, Failed>;

    fn free(&self, block: Self::Block) -> Result<(), Failed>;

    /// Each thread calls it before all else.
    fn enter(&self) {}

    /// How often a driver has been called so far, where that is known.
    fn driver_calls(&self) -> u64 {
        0
    }
}

/// The pool, on one stream.
pub(crate) struct Pooled<B: Backend> {
    pub(crate) pool: Pool<B>,
    pub(crate) stream: Stream<'static>,
}

impl<B: Backend> Allocator for Pooled<B> {
    type Block = Block<B>;

    const NAME: &'static str = "pool";

    fn alloc(&self, size: Bytes) -> Result<Block<B>, Failed> {
        Ok(self.pool.alloc(size, Bytes(256), self.stream)?)
    }

    fn free(&self, block: Block<B>) -> Result<(), Failed> {
        drop(block);
        Ok(())
    }

    fn driver_calls(&self) -> u64 {
        self.pool.account().driver_calls.total()
    }
}

/// So many blocks live at a time.
const WINDOW: usize = 64;

/// A table with one row for each pattern, size and other allocator.
pub(crate) struct Rows {
    turns: usize,
    pairs: u64,
}

impl Rows {
    pub(crate) fn head() -> Self {
        let rows = Self { turns: setting("POOL_TURNS", 200) as usize, pairs: setting("POOL_PAIRS", 1000) };
        println!(
            "one allocation with its free, warm; ns, median [middle half]; calls: what the pool asked the driver for"
        );
        println!(
            "{:<13} {:>8} {:<17} {:>26} {:>26} {:>7} {:>8} {:>6}",
            "pattern", "size", "beside", "beside", "pool", "median", "quarter", "calls"
        );
        rows
    }

    /// Each block is freed before the next one is asked for.
    pub(crate) fn pairs<P: Allocator, O: Allocator>(
        &self,
        size: Bytes,
        pool: &P,
        other: &O,
    ) -> Result<(), Failed> {
        self.row::<O>("pair", &[size], pool, |turns| {
            in_turn(turns, || pairs(other, size, self.pairs), || pairs(pool, size, self.pairs))
        })
    }

    /// Some blocks live; one of them at random gives way to the next one.
    pub(crate) fn window<P: Allocator, O: Allocator>(
        &self,
        sizes: &[Bytes],
        pool: &P,
        other: &O,
    ) -> Result<(), Failed> {
        self.row::<O>("window of 64", sizes, pool, |turns| {
            let (mut one, mut two) = (Window::new(other, sizes)?, Window::new(pool, sizes)?);
            let summaries = in_turn(turns, || one.replace(self.pairs), || two.replace(self.pairs))?;
            one.end()?;
            two.end()?;
            Ok(summaries)
        })
    }

    /// One thread allocates, another one frees; they hand each other 64 blocks at a time.
    pub(crate) fn handed<P: Allocator + Sync, O: Allocator + Sync>(
        &self,
        size: Bytes,
        pool: &P,
        other: &O,
    ) -> Result<(), Failed> {
        self.row::<O>("handed over", &[size], pool, |turns| {
            std::thread::scope(|scope| {
                let (mut one, mut two) = (Handed::new(scope, other), Handed::new(scope, pool));
                in_turn(turns, || one.pass(size, self.pairs), || two.pass(size, self.pairs))
            })
        })
    }

    fn row<O: Allocator>(
        &self,
        pattern: &str,
        sizes: &[Bytes],
        pool: &impl Allocator,
        work: impl FnOnce(usize) -> Result<[Summary; 2], Failed>,
    ) -> Result<(), Failed> {
        let before = pool.driver_calls();
        let [beside, ours] = work(self.turns)?;
        let calls = pool.driver_calls() - before;
        let [median, quarter] = ours.over(&beside);
        let size = if let [size] = sizes { size.to_string() } else { "mixed".to_owned() };
        let [beside, ours] = [beside, ours].map(|summary| self.nanos(&summary));
        println!(
            "{pattern:<13} {size:>8} {:<17} {beside:>26} {ours:>26} {median:>7.3} {quarter:>8.3} {calls:>6}",
            O::NAME
        );
        Ok(())
    }

    /// What one pair took.
    fn nanos(&self, summary: &Summary) -> String {
        let [median, low, high] = [summary.median, summary.low, summary.high]
            .map(|time| time.as_nanos() as f64 / self.pairs as f64);
        format!("{median:.1} [{low:.1}, {high:.1}]")
    }
}

/// Each block is freed before the next one is asked for.
pub(crate) fn pairs<A: Allocator>(allocator: &A, size: Bytes, pairs: u64) -> Result<(), Failed> {
    (0..pairs).try_for_each(|_| {
        let block = std::hint::black_box(allocator.alloc(size)?);
        allocator.free(block)
    })
}

struct Window<'a, A: Allocator> {
    allocator: &'a A,
    sizes: &'a [Bytes],
    blocks: Vec<A::Block>,
    random: u64,
}

impl<'a, A: Allocator> Window<'a, A> {
    fn new(allocator: &'a A, sizes: &'a [Bytes]) -> Result<Self, Failed> {
        let blocks = (0..WINDOW)
            .map(|number| allocator.alloc(sizes[number % sizes.len()]))
            .collect::<Result<_, _>>()?;
        Ok(Self { allocator, sizes, blocks, random: 1 })
    }

    fn replace(&mut self, pairs: u64) -> Result<(), Failed> {
        for _ in 0..pairs {
            // xorshift64: both sides meet the same numbers.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let size = self.sizes[(self.random >> 32) as usize % self.sizes.len()];
            self.allocator.free(self.blocks.swap_remove(self.random as usize % WINDOW))?;
            self.blocks.push(self.allocator.alloc(size)?);
        }
        Ok(())
    }

    fn end(self) -> Result<(), Failed> {
        self.blocks.into_iter().try_for_each(|block| self.allocator.free(block))
    }
}

/// So many batches are on their way at a time.
const BATCHES: usize = 4;

struct Handed<'a, A: Allocator> {
    allocator: &'a A,
    out: SyncSender<Vec<A::Block>>,
    emptied: Receiver<Result<Vec<A::Block>, Failed>>,
    spare: Vec<Vec<A::Block>>,
}

impl<'a, A: Allocator + Sync> Handed<'a, A> {
    /// The thread that frees lives until this is dropped.
    fn new<'scope>(scope: &'scope Scope<'scope, '_>, allocator: &'a A) -> Self
    where
        'a: 'scope,
    {
        let (out, batches) = sync_channel::<Vec<A::Block>>(BATCHES);
        let (back, emptied) = sync_channel(BATCHES);
        scope.spawn(move || {
            allocator.enter();
            for mut batch in batches {
                let freed = batch.drain(..).try_for_each(|block| allocator.free(block));
                if back.send(freed.map(|()| batch)).is_err() {
                    break;
                }
            }
        });
        let spare = (0..BATCHES).map(|_| Vec::with_capacity(WINDOW)).collect();
        Self { allocator, out, emptied, spare }
    }

    /// Ends when the other thread has freed all of them.
    fn pass(&mut self, size: Bytes, pairs: u64) -> Result<(), Failed> {
        let mut left = pairs;
        while left > 0 {
            let mut batch = match self.spare.pop() {
                Some(batch) => batch,
                None => self.emptied.recv()??,
            };
            let count = left.min(WINDOW as u64);
            for _ in 0..count {
                batch.push(self.allocator.alloc(size)?);
            }
            self.out.send(batch).map_err(|_| "the thread that frees has ended")?;
            left -= count;
        }
        while self.spare.len() < BATCHES {
            self.spare.push(self.emptied.recv()??);
        }
        Ok(())
    }
}
