//! The work of the threads in a schedule.

use crate::backend::Simulated;
use crate::chance::Chance;
use crate::fence::Signal;
use crate::machine::{Machine, Task, Tenant};
use gpu_vmm_core::{AddressRange, Backend as _, BackingStore, Bytes, Result, Stream, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::{Block, Pool, PoolError};
use gpu_vmm_premap::PremapThread;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Arc, Mutex, RwLock};
use shuttle::thread;
use std::sync::atomic::{AtomicUsize, Ordering};

type Backend = Simulated<HostBackend>;

/// The tag whose blocks are suspended now and then.
const TAG: &str = "a";

/// The name of the first stream; smaller numbers have special meanings.
const FIRST_STREAM: usize = 0x1000;

/// The number of threads that share a pool, of streams that they share, and of operations.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Threads that use the pool, in addition to the device's.
    pub threads: usize,
    /// Streams that all of them use.
    pub streams: usize,
    /// The number of operations of each thread.
    pub operations: usize,
    /// The operation that every second one is.
    pub often: Option<Doing>,
    /// The sizes of blocks.
    pub sizes: &'static [u64],
    /// The most memory that the pool may hold, so that threads wait for each other's work; `None` for no limit.
    pub budget: Option<u64>,
    /// Whether a thread maps memory ahead.
    pub premap: bool,
    /// The calls of the driver that fail.
    pub chance: Chance,
}

/// An operation of a thread.
#[derive(Clone, Copy, Debug)]
pub enum Doing {
    /// Allocates a block, and may use it on its stream.
    Allocate,
    /// Uses a block on its stream.
    Launch,
    /// Uses a block on another stream.
    LaunchElsewhere,
    /// Frees a block.
    Free,
    /// Frees a block behind a fence.
    FreeBehindAFence,
    /// Passes a block to another thread, or takes one.
    PassOn,
    /// Reads the pool's statistics.
    Ask,
    /// Releases free memory.
    Trim,
    /// Suspends the blocks of a tag and resumes them.
    Suspend,
    /// Captures a stream and launches the graph.
    Capture,
    /// Creates a stream, registers it with the pool, and destroys it.
    ComeAndGo,
}

impl Doing {
    fn any() -> Self {
        match pick(20) {
            0..5 => Self::Allocate,
            5..8 => Self::Launch,
            8..10 => Self::LaunchElsewhere,
            10..13 => Self::Free,
            13 => Self::FreeBehindAFence,
            14 => Self::PassOn,
            15 => Self::Ask,
            16 => Self::Trim,
            17 => Self::Suspend,
            18 => Self::Capture,
            _ => Self::ComeAndGo,
        }
    }
}

/// The data that the threads share.
struct World {
    scenario: Scenario,
    machine: Arc<Machine>,
    pool: Pool<Backend>,
    tagged: Pool<Backend>,
    /// Streams with locks. A read lock is held while work is queued on the stream, a write lock while it is captured.
    streams: Vec<(Stream<'static>, RwLock<()>)>,
    /// Read-locked while work is queued on tagged blocks, write-locked while they are suspended.
    awake: RwLock<()>,
    /// Blocks on their way from one thread to another.
    passed: Mutex<Vec<Held>>,
    names: AtomicUsize,
}

/// A block of a thread.
struct Held {
    block: Block<Backend>,
    tenant: Tenant,
    /// The stream with its work; `None` once that was destroyed.
    stream: Option<usize>,
}

fn pick(count: usize) -> usize {
    thread_rng().gen_range(0..count)
}

impl Scenario {
    /// Runs the scenario, in one schedule.
    pub(crate) fn play(self) {
        let machine = Arc::new(Machine::new());
        let host = HostConfig::new().devices(1).memory(Bytes::mib(512)).open().unwrap();
        let backend = Simulated::new(host, &machine, self.chance);
        let premap = self.premap.then(|| PremapThread::start(Bytes::mib(64)).unwrap());
        let mut builder = Pool::builder(&backend);
        if let Some(thread) = &premap {
            builder = builder.premap(thread, Bytes::mib(4));
        }
        if let Some(budget) = self.budget {
            builder = builder.budget(Bytes(budget));
        }
        let pool = builder.build().unwrap();
        let stream = |number| (machine.create_stream(FIRST_STREAM + number), RwLock::new(()));
        let world = Arc::new(World {
            scenario: self,
            machine: Arc::clone(&machine),
            tagged: pool.tagged(TAG).unwrap(),
            streams: (0..self.streams).map(stream).collect(),
            awake: RwLock::new(()),
            passed: Mutex::new(Vec::new()),
            names: AtomicUsize::new(FIRST_STREAM + self.streams),
            pool,
        });
        // Not the world: the pool must be dropped before the device stops.
        let used = Arc::new(Mutex::new(Some(world.pool.clone())));
        let device = {
            let (machine, used) = (Arc::clone(&machine), Arc::clone(&used));
            thread::spawn(move || run_device(&machine, &used))
        };
        let user = |_| {
            let world = Arc::clone(&world);
            thread::spawn(move || User { world: &world, held: Vec::new() }.run())
        };
        let users: Vec<_> = (0..self.threads).map(user).collect();
        users.into_iter().for_each(|user| user.join().unwrap());
        for held in std::mem::take(&mut *world.passed.lock().unwrap()) {
            machine.given_back(held.tenant);
        }
        drop(used.lock().unwrap().take());
        drop(Arc::into_inner(world).expect("all threads have ended"));
        drop(premap);
        backend.deferred().collect(&backend).unwrap();
        machine.stop();
        device.join().unwrap();
        assert!(self.chance.memory > 0 || machine.mappings() == 0, "the pool has left mappings behind");
    }
}

/// Runs the device's thread, which also completes fences. It uses the pool before each fence.
fn run_device(machine: &Machine, pool: &Mutex<Option<Pool<Backend>>>) {
    // How often other threads run before a kernel completes: work must be queued while memory changes hands.
    let delay = [1, 10, 100, 1000][pick(4)];
    while let Some(task) = machine.next(pick) {
        (0..pick(delay)).for_each(|_| machine.switch());
        if matches!(task, Task::Fence(_)) {
            // Borrowed: the last owner of the pool waits for its fences.
            drop(pool.lock().unwrap().as_ref().map(Pool::stats));
        }
        machine.finish(task);
    }
}

/// A thread that uses the pool.
struct User<'a> {
    world: &'a World,
    held: Vec<Held>,
}

impl User<'_> {
    fn run(mut self) {
        for _ in 0..self.world.scenario.operations {
            let often = self.world.scenario.often.filter(|_| pick(2) == 0);
            match often.unwrap_or_else(Doing::any) {
                Doing::Allocate => self.allocate(),
                Doing::Launch => self.launch(),
                Doing::LaunchElsewhere => self.launch_elsewhere(),
                Doing::Free => self.free(),
                Doing::FreeBehindAFence => self.free_behind_a_fence(),
                Doing::PassOn => self.pass_on(),
                Doing::Ask => drop((self.world.pool.stats(), self.world.pool.snapshot())),
                Doing::Trim => self.trim(),
                Doing::Suspend => self.suspend(),
                Doing::Capture => self.capture(),
                Doing::ComeAndGo => self.come_and_go(),
            }
        }
        while !self.held.is_empty() {
            self.free();
        }
    }

    fn size(&self) -> Bytes {
        let sizes = self.world.scenario.sizes;
        Bytes(sizes[pick(sizes.len())])
    }

    /// Unwraps a result that may be an error only if memory calls may fail or memory is short.
    fn unless_refused<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if matches!(error.extension(), Some(PoolError::Suspended { .. })) => None,
            Err(error) if self.world.scenario.budget.is_some() && error.is_out_of_memory() => None,
            Err(_) if self.world.scenario.chance.memory > 0 => None,
            Err(error) => panic!("refused although there is memory: {error}"),
        }
    }

    fn held(&self, block: Block<Backend>, stream: Option<usize>, captured: bool) -> Held {
        let range = AddressRange { base: block.address(), size: block.capacity() };
        let tenant = self.world.machine.handed_out(range, block.stream(), captured);
        Held { block, tenant, stream }
    }

    fn allocate_on(&self, stream: usize, is_tagged: bool, captured: bool) -> Option<Held> {
        let pool = if is_tagged { &self.world.tagged } else { &self.world.pool };
        // A block must not lose its memory before the machine knows it.
        let _awake = if is_tagged { Some(self.world.awake.try_read().ok()?) } else { None };
        let size = self.size();
        let block = self.unless_refused(pool.request(size).stream(self.world.streams[stream].0).alloc())?;
        Some(self.held(block, Some(stream), captured))
    }

    fn allocate(&mut self) {
        let stream = pick(self.world.streams.len());
        let held = self.allocate_on(stream, pick(4) == 0, false);
        self.held.extend(held);
        if pick(4) > 0 {
            self.launch_on_last();
        }
    }

    fn launch_on_last(&mut self) {
        if let Some(held) = self.held.last() {
            self.launch_for(held, held.stream);
        }
    }

    /// Queues work on a block, unless another thread captures the stream or suspends the block. Returns whether it was
    /// queued.
    fn launch_for(&self, held: &Held, stream: Option<usize>) -> bool {
        let Some(stream) = stream else { return false };
        let (name, lock) = &self.world.streams[stream];
        let Ok(_not_captured) = lock.try_read() else { return false };
        let Ok(_awake) = self.world.awake.try_read() else { return false };
        self.world.machine.launch(*name, held.tenant);
        true
    }

    fn launch(&mut self) {
        if !self.held.is_empty() {
            let held = &self.held[pick(self.held.len())];
            self.launch_for(held, held.stream);
        }
    }

    /// Uses a block on another stream than its own.
    fn launch_elsewhere(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (index, stream) = (pick(self.held.len()), pick(self.world.streams.len()));
        if self.held[index].block.record_use(self.world.streams[stream].0).is_ok() {
            self.launch_for(&self.held[index], Some(stream));
        }
    }

    fn take_any(&mut self) -> Option<Held> {
        match self.held.len() {
            0 => None,
            count => Some(self.held.swap_remove(pick(count))),
        }
    }

    fn free(&mut self) {
        if let Some(held) = self.take_any() {
            self.world.machine.given_back(held.tenant);
        }
    }

    fn free_behind_a_fence(&mut self) {
        if let Some(Held { block, tenant, .. }) = self.take_any() {
            self.world.machine.fenced(tenant);
            block.free_after(Arc::new(Signal::new(&self.world.machine, tenant)));
        }
    }

    /// Passes a block to another thread, or takes one.
    fn pass_on(&mut self) {
        let taken = self.world.passed.lock().unwrap().pop();
        match taken {
            Some(held) => self.held.push(held),
            None => {
                let held = self.take_any();
                self.world.passed.lock().unwrap().extend(held);
            }
        }
    }

    fn trim(&mut self) {
        // Streams that capture cannot be waited for.
        let _ = self.world.pool.trim(Bytes::ZERO);
    }

    fn suspend(&mut self) {
        // With little memory, other threads' blocks may leave too little for the suspended ones.
        if self.world.scenario.budget.is_some() {
            return;
        }
        let Ok(_alone) = self.world.awake.try_write() else { return };
        let _ = self.world.pool.suspend(TAG, &BackingStore::nothing(), WaitFor::all_devices());
        let resumed = (0..1000).any(|_| self.world.pool.resume(TAG).is_ok());
        assert!(resumed, "the suspended blocks cannot be resumed");
    }

    /// Captures a stream, with blocks that are allocated for it, and launches the graph on any stream.
    fn capture(&mut self) {
        let (own, other) = (pick(self.world.streams.len()), pick(self.world.streams.len()));
        let (name, lock) = &self.world.streams[own];
        let Ok(alone) = lock.try_write() else { return };
        let machine = &self.world.machine;
        machine.begin_capture(*name);
        let mut blocks = Vec::new();
        for _ in 0..2 {
            if let Some(held) = self.allocate_on(own, false, true) {
                machine.launch(*name, held.tenant);
                blocks.push(held);
            }
            if pick(2) == 0 {
                self.free();
            }
        }
        // The graph uses its blocks on the stream where it is launched, once.
        let not_captured = if own == other { None } else { self.world.streams[other].1.try_read().ok() };
        let on = if own == other || not_captured.is_none() { own } else { other };
        let mut noted = true;
        for held in &mut blocks {
            noted &= held.block.record_use(self.world.streams[on].0).is_ok();
        }
        assert!(noted, "a use on a stream could not be recorded");
        machine.end_capture_and_launch(*name, self.world.streams[on].0);
        drop((alone, not_captured));
        self.held.append(&mut blocks);
    }

    /// Creates a stream, registers it with the pool, and destroys it, with or without remaining blocks.
    #[allow(unsafe_code)]
    fn come_and_go(&mut self) {
        let World { machine, pool, names, .. } = self.world;
        let stream = machine.create_stream(names.fetch_add(1, Ordering::Relaxed));
        let is_registered = pick(2) == 0;
        // SAFETY: the stream is destroyed after the registration has ended.
        let registered = is_registered.then(|| unsafe { pool.register_stream(stream) }.unwrap());
        for _ in 0..2 {
            let size = self.size();
            let block = match &registered {
                Some(registered) => registered.alloc(size),
                None => pool.request(size).stream(stream).alloc(),
            };
            let Some(block) = self.unless_refused(block) else { continue };
            let held = self.held(block, None, false);
            machine.launch(stream, held.tenant);
            if pick(2) == 0 {
                self.held.push(held);
            } else {
                machine.given_back(held.tenant);
            }
        }
        drop(registered);
        if !is_registered {
            let forgotten = (0..1000).any(|_| pool.forget_stream(stream).is_ok());
            assert!(forgotten, "a stream that does not capture cannot be forgotten");
        }
        machine.destroy_stream(stream);
    }
}
