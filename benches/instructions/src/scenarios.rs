//! The counted operations.

use crate::Failed;
use gpu_vmm::host::{HostBackend, HostConfig};
use gpu_vmm::pool::{Block, Pool};
use gpu_vmm::{AnyBackend, Backend, Bytes, DeviceId, Operation, PhysicalMemory, Properties, Region, WaitFor};
use std::hint::black_box;

pub(crate) type Work = Box<dyn FnMut() -> Result<(), Failed>>;

/// An operation that is prepared once and then repeated.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The number of repetitions to warm up, and again to be counted.
    pub(crate) operations: u64,
    pub(crate) prepare: fn() -> Result<Work, Failed>,
}

const fn scenario(name: &'static str, operations: u64, prepare: fn() -> Result<Work, Failed>) -> Scenario {
    Scenario { name, operations, prepare }
}

/// If two scenarios differ only in the backend's type, the difference is the cost of dynamic dispatch and of different
/// inlining. A warm pool calls no backend, so there it is the inlining alone.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("nothing", 1000, || Ok(Box::new(|| Ok(())))),
    scenario("pool: alloc and free, 512 B", 1000, || pair(&host()?, Bytes(512))),
    scenario("pool: alloc and free, 48 KiB", 1000, || pair(&host()?, Bytes::kib(48))),
    scenario("pool: alloc and free, 512 KiB", 1000, || pair(&host()?, Bytes::kib(512))),
    scenario("pool: alloc and free, 4 MiB", 1000, || pair(&host()?, Bytes::mib(4))),
    scenario("pool: alloc and free, 512 B, AnyBackend", 1000, || pair(&any(host()?), Bytes(512))),
    scenario("pool: alloc and free, 4 MiB, AnyBackend", 1000, || pair(&any(host()?), Bytes::mib(4))),
    scenario("pool: replace one of 64 blocks, 4 KiB", 10_000, || window(&host()?, &MIXED[1..2])),
    scenario("pool: replace one of 64 blocks, mixed sizes", 10_000, || window(&host()?, &MIXED)),
    scenario("pool: alloc, keep, free_at, 512 B", 5000, || kept(&host()?, Bytes(512))),
    scenario("pool: alloc, keep, free_at, 4 MiB", 5000, || kept(&host()?, Bytes::mib(4))),
    scenario("pool: find inside of one of 64 blocks", 640, || find(&host()?)),
    scenario("pool: stats with 64 blocks", 100, || stats(&host()?)),
    scenario("region: mapping_at, 10 mappings", 1000, || mapping_at(&fine()?, 10)),
    scenario("region: mapping_at, 1,000 mappings", 1000, || mapping_at(&fine()?, 1000)),
    scenario("region: mapping_at, 100,000 mappings", 1000, || mapping_at(&fine()?, 100_000)),
    scenario("region: map and unmap, 10 mappings", 1000, || map(&fine()?, 10)),
    scenario("region: map and unmap, 1,000 mappings", 1000, || map(&fine()?, 1000)),
    scenario("region: map and unmap, 1,000 mappings, AnyBackend", 1000, || map(&any(fine()?), 1000)),
    scenario("region: grow_to, one granule", 1000, || grow(&fine()?)),
    scenario("region: grow_to, one granule, AnyBackend", 1000, || grow(&any(fine()?))),
    scenario("backend: memory_info", 1000, || memory_info(host()?)),
    scenario("backend: memory_info, AnyBackend", 1000, || memory_info(any(host()?))),
];

const DEVICE: DeviceId = DeviceId(0);

/// Several sizes in turn, as in a program.
const MIXED: [Bytes; 6] =
    [Bytes(512), Bytes::kib(4), Bytes::kib(48), Bytes::kib(128), Bytes::kib(512), Bytes::mib(4)];

/// The size of the simulated machine's memory, which is hardly touched.
const MEMORY: Bytes = Bytes::gib(64);

/// The number of live blocks.
const WINDOW: usize = 64;

/// Creates a backend of the same size on every machine, with the granules of GPUs.
fn host() -> Result<HostBackend, Failed> {
    Ok(HostConfig::new().memory(MEMORY).open()?)
}

/// Creates a backend with small granules, so that many of them fit into the addresses that Valgrind leaves.
fn fine() -> Result<HostBackend, Failed> {
    Ok(HostConfig::new().memory(MEMORY).granularity(Bytes::kib(64)).open()?)
}

fn any(backend: HostBackend) -> AnyBackend {
    backend.into()
}

fn pool<B: Backend>(backend: &B) -> Result<Pool<B>, Failed> {
    Ok(Pool::builder(backend).device(DEVICE).build()?)
}

/// Inlined, so that it costs the same in all scenarios.
#[inline(always)]
fn alloc<B: Backend>(pool: &Pool<B>, size: Bytes) -> Result<Block<B>, Failed> {
    Ok(pool.alloc(size)?)
}

/// Frees each block before the next allocation.
fn pair<B: Backend>(backend: &B, size: Bytes) -> Result<Work, Failed> {
    let pool = pool(backend)?;
    Ok(Box::new(move || {
        drop(black_box(alloc(&pool, size)?));
        Ok(())
    }))
}

/// Frees each block before the next allocation; the pool keeps the block meanwhile.
fn kept<B: Backend>(backend: &B, size: Bytes) -> Result<Work, Failed> {
    let pool = pool(backend)?;
    Ok(Box::new(move || {
        let address = pool.keep(alloc(&pool, size)?)?;
        Ok(pool.free_at(black_box(address))?)
    }))
}

/// Allocates blocks of several sizes in turn.
fn blocks<B: Backend>(pool: &Pool<B>, sizes: &[Bytes]) -> Result<Vec<Block<B>>, Failed> {
    (0..WINDOW).map(|number| alloc(pool, sizes[number % sizes.len()])).collect()
}

/// Keeps some blocks alive, and replaces one of them at random.
fn window<B: Backend>(backend: &B, sizes: &'static [Bytes]) -> Result<Work, Failed> {
    let pool = pool(backend)?;
    let (mut blocks, mut random) = (blocks(&pool, sizes)?, Random(1));
    Ok(Box::new(move || {
        drop(blocks.swap_remove(random.below(WINDOW)));
        blocks.push(alloc(&pool, sizes[random.below(sizes.len())])?);
        Ok(())
    }))
}

fn find<B: Backend>(backend: &B) -> Result<Work, Failed> {
    let pool = pool(backend)?;
    let (blocks, mut next) = (blocks(&pool, &MIXED)?, 0);
    Ok(Box::new(move || {
        let block = &blocks[next];
        next = (next + 1) % WINDOW;
        let found = pool.find(black_box(block.address() + Bytes(100))).ok_or("a live block is not found")?;
        black_box(found);
        Ok(())
    }))
}

fn stats<B: Backend>(backend: &B) -> Result<Work, Failed> {
    let pool = pool(backend)?;
    let blocks = blocks(&pool, &MIXED)?;
    Ok(Box::new(move || {
        black_box((pool.stats(), &blocks));
        Ok(())
    }))
}

/// Creates a region that has grown by one granule `mappings` times, with addresses for all later growth.
fn region<B: Backend>(backend: &B, mappings: u64) -> Result<(Region<B>, Bytes), Failed> {
    let unit = backend.granularity_of(Operation::QueryDevice, &Properties::on(DEVICE))?.bytes();
    let mut region =
        Region::builder(backend).on(DEVICE).reserve(Bytes(unit.0 * (mappings + 4000))).build()?;
    for number in 1..=mappings {
        region.grow_to(Bytes(unit.0 * number))?;
    }
    Ok((region, unit))
}

/// Looks up random offsets.
fn mapping_at<B: Backend>(backend: &B, mappings: usize) -> Result<Work, Failed> {
    let ((region, unit), mut random) = (region(backend, mappings as u64)?, Random(1));
    Ok(Box::new(move || {
        let offset = Bytes(unit.0 * random.below(mappings) as u64 + 100);
        black_box(region.mapping_at(black_box(offset)).ok_or("a mapping is not found")?);
        Ok(())
    }))
}

/// Maps and unmaps a granule in the middle, with existing memory.
fn map<B: Backend>(backend: &B, mappings: u64) -> Result<Work, Failed> {
    let (mut region, unit) = region(backend, mappings)?;
    let memory = PhysicalMemory::create(backend, unit, Properties::on(DEVICE))?;
    let middle = Bytes(unit.0 * (mappings / 2));
    region.unmap(middle, unit, WaitFor::all_devices())?;
    Ok(Box::new(move || {
        region.map(black_box(middle), &memory)?;
        Ok(region.unmap(middle, unit, WaitFor::all_devices())?)
    }))
}

/// Grows by a granule, with its physical memory.
fn grow<B: Backend>(backend: &B) -> Result<Work, Failed> {
    let (mut region, unit) = region(backend, 0)?;
    Ok(Box::new(move || {
        black_box(region.grow_to(region.end() + unit)?);
        Ok(())
    }))
}

/// Measures little more than the call itself.
fn memory_info<B: Backend>(backend: B) -> Result<Work, Failed> {
    Ok(Box::new(move || {
        black_box(black_box(&backend).memory_info(DEVICE)?);
        Ok(())
    }))
}

/// xorshift64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % limit
    }
}
