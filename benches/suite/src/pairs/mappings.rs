//! The cost of operations as a region fills: on a region with many mappings, compared with one with 10. All mappings have the
//! same granule of memory.

use crate::random::Random;
use crate::scene::{Plan, Scene, nothing_runs};
use crate::stop::StepResult;
use gpu_vmm_core::{Access, Backend, Bytes, Operation, PhysicalMemory, Properties, Region};
use gpu_vmm_testkit::TestKit;
use std::hint::black_box;

/// The numbers of mappings.
const COUNTS: [u64; 4] = [1, 10, 1_000, 100_000];
const FEW: u64 = 10;

/// The number of lookups that are timed together.
const LOOKUPS: u64 = 10_000;
/// The number of times that a mapping is added and removed.
const CHANGES: u64 = 100;

/// The limit of a lookup among 100,000 relative to one among 10.
const TARGET: f64 = 3.0;

pub(crate) fn measure<B: TestKit>(scene: &mut Scene<'_, B>) -> StepResult {
    let granule = scene.backend.device(Operation::QueryDevice, scene.device)?.granularity.bytes();
    let memory = PhysicalMemory::create(scene.backend, granule, Properties::on(scene.device))?;
    let mut few = Full::new(scene.backend, &memory, FEW)?;
    for count in COUNTS {
        // The kernel permits some 65,530 mappings per process; beyond that, the process gets no more memory.
        let count = if scene.is_host() { count.min(30_000) } else { count };
        let mut many = Full::new(scene.backend, &memory, count)?;
        let name = format!("{FEW} mappings");
        let among = if count == 1 { "1 mapping".to_owned() } else { format!("{count} mappings") };
        let plan = Plan::samples(100).together(LOOKUPS);
        let plan = if count > 1_000 { plan.at_most(TARGET) } else { plan };
        scene.compare_whole(
            format!("lookup at random places, {among}"),
            &*name,
            plan,
            || many.look(),
            || few.look(),
        )?;
        let plan = Plan::samples(40).together(CHANGES);
        scene.compare_whole(
            format!("map, set access, unmap, {among}"),
            &*name,
            plan,
            || many.change(&memory),
            || few.change(&memory),
        )?;
        many.region.close(nothing_runs())?;
    }
    Ok(few.region.close(nothing_runs())?)
}

/// A region with many mappings, and one free place.
struct Full<B: Backend> {
    region: Region<B>,
    granule: Bytes,
    count: u64,
    random: Random,
}

impl<B: Backend> Full<B> {
    fn new(backend: &B, memory: &PhysicalMemory<B>, count: u64) -> StepResult<Self> {
        let granule = memory.size();
        let room = Bytes(granule.0 * (count + 1));
        let mut region = Region::builder(backend).on(memory.device()).reserve(room).build()?;
        (0..count).try_for_each(|place| region.map(Bytes(granule.0 * place), memory))?;
        Ok(Self { region, granule, count, random: Random::new() })
    }

    /// Looks up random places, which defeats caches.
    fn look(&mut self) -> StepResult {
        for _ in 0..LOOKUPS {
            let place = self.random.below(self.count);
            black_box(self.region.mapping_at(Bytes(self.granule.0 * place + 5)));
        }
        Ok(())
    }

    fn change(&mut self, memory: &PhysicalMemory<B>) -> StepResult {
        let (free, granule) = (Bytes(self.granule.0 * self.count), self.granule);
        for _ in 0..CHANGES {
            self.region.map(free, memory)?;
            self.region.set_access(free, granule, memory.device(), Access::ReadWrite)?;
            self.region.unmap(free, granule, nothing_runs())?;
        }
        Ok(())
    }
}
