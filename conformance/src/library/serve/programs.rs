//! Pools of programs that share a budget.

use super::{NAME, Role, SEED, WAIT, connect, end, start, takes_part};
use crate::case::cases;
use crate::library::folder::Folder;
use crate::library::pool::{write_at, wrong_at};
use crate::library::tools::setting;
use crate::peer::Peer;
use crate::subject::{Subject, skip};
use gpu_vmm_core::Bytes;
use gpu_vmm_pool::Pool;
use gpu_vmm_serve::{Quota, QuotaOptions};
use gpu_vmm_testkit::{Random, TestKit};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

cases! { "serve":
    /// Pools of two processes need more memory together than their server has for them: what one lets sleep goes to the other, and its bytes
    /// are there at their addresses when it wakes.
    programs_share_a_budget with takes_part,
    /// Eight random programs, which let memory sleep for each other (`GPU_VMM_TEST_PROGRAM_ROUNDS` times each), never have more than the budget
    /// together; each request that the others make room for is served; and bytes that slept are there when they wake.
    random_programs_share_a_budget with takes_part,
}

const PAGE: Bytes = Bytes::mib(2);

/// The most pages that a program holds while it waits for more, so that one of them can always go on.
const MOST: u64 = 4;

/// A pool that is connected.
struct Program<B: TestKit> {
    pool: Pool<B>,
    quota: Quota<B>,
}

impl<B: TestKit> Program<B> {
    fn new(subject: &Subject<B>, path: &Path, name: &str, priority: i8) -> Self {
        let pool = Pool::builder(&subject.backend).device(subject.device).page(PAGE).build().unwrap();
        let mut options = QuotaOptions::default();
        (options.name, options.priority, options.wait) = (name.to_owned(), priority, WAIT);
        let quota = connect(subject, path).connect_pool(&pool, options).unwrap();
        Self { pool, quota }
    }

    /// Returns how often it has had memory that others let sleep for it.
    fn run(&self, subject: &Subject<B>, (number, most): (u64, u64), rounds: u64) -> u64 {
        let mut random = Random(number + 1);
        let mut pages = |most: u64| Bytes((1 + random.below(most as usize) as u64) * PAGE.0);
        let kept = self.pool.tagged(NAME).unwrap().alloc(pages(2)).unwrap();
        let (backend, device, at) = (&subject.backend, subject.device, kept.address());
        write_at(backend, device, at, PAGE, SEED + number);
        let mut served = 0;
        for _ in 0..rounds {
            let small = self.pool.alloc(pages(MOST - kept.size().0 / PAGE.0)).unwrap();
            if pages(3) == PAGE {
                self.quota.let_sleep(NAME).unwrap();
                drop(self.pool.alloc(pages(most)).unwrap());
                served += 1;
                drop(small);
                self.quota.wake(NAME).unwrap();
                assert_eq!(wrong_at(backend, device, at, PAGE, SEED + number), 0);
            }
        }
        served
    }
}

/// Has a block, which sleeps and wakes.
pub(super) fn sleeper<B: TestKit>(subject: &Subject<B>, path: &Path, size: Bytes, peer: &Peer) {
    let Program { pool, quota } = Program::new(subject, path, "sleeper", 0);
    let block = pool.tagged(NAME).unwrap().alloc(size).unwrap();
    let (device, at) = (subject.device, block.address());
    write_at(&subject.backend, device, at, size, SEED);
    quota.let_sleep(NAME).unwrap();
    peer.send(());
    // The other process has had the memory.
    peer.receive::<()>();
    assert_eq!(quota.wake(NAME).unwrap(), size);
    assert_eq!((block.address(), wrong_at(&subject.backend, device, at, size, SEED)), (at, 0));
}

/// Skips the case on a device whose programs cannot share it.
fn has_programs<B: TestKit>(subject: &Subject<B>) {
    let known = subject.backend.devices().iter().find(|known| known.id == subject.device);
    if known.is_none_or(|known| known.uuid.is_none() || known.no_virtual_memory.is_some()) {
        skip("programs name a device to the server by its UUID, and suspend virtual memory");
    }
}

fn programs_share_a_budget<B: TestKit>(subject: &Subject<B>) {
    has_programs(subject);
    let folder = Folder::new();
    let path = folder.file("socket");
    let server = start(subject, Role::BudgetServer(10 * PAGE.0), &path);
    let mut other = start(subject, Role::Sleeper(6 * PAGE.0), &path);
    let Program { pool, quota } = Program::new(subject, &path, "awake", 0);
    let block = pool.alloc(Bytes(8 * PAGE.0)).unwrap();
    write_at(&subject.backend, subject.device, block.address(), block.size(), SEED + 1);
    assert_eq!(wrong_at(&subject.backend, subject.device, block.address(), block.size(), SEED + 1), 0);
    assert!(quota.granted() >= block.size() && pool.stats().held <= quota.granted().0);
    other.send(());
    drop(block);
    other.finish();
    drop((quota, pool));
    end(server);
}

fn random_programs_share_a_budget<B: TestKit>(subject: &Subject<B>) {
    const BUDGET: u64 = 56;
    const PROGRAMS: u64 = 8;
    has_programs(subject);
    let rounds = setting("GPU_VMM_TEST_PROGRAM_ROUNDS", 20);
    let folder = Folder::new();
    let path = folder.file("socket");
    let server = start(subject, Role::BudgetServer(BUDGET * PAGE.0), &path);
    let program = |number| Program::new(subject, &path, &format!("p{number}"), number as i8 % 3 - 1);
    let programs: Vec<_> = (0..PROGRAMS).map(program).collect();
    let (client, ends) = (connect(subject, &path), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let run = |(number, program)| {
            // What the others hold meanwhile is at most this much less.
            let most = BUDGET - PROGRAMS * (MOST + 1);
            move || Program::run(program, subject, (number as u64, most), rounds)
        };
        let threads: Vec<_> = programs.iter().enumerate().map(run).map(|run| scope.spawn(run)).collect();
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let held: u64 = programs.iter().map(|one| one.pool.stats().held).sum();
                let granted: u64 = client.status().unwrap().programs.iter().map(|one| one.granted).sum();
                // The pools are not asked at one moment, so that memory which moves can be seen twice: in the sum, not in the grants.
                assert!(granted <= BUDGET * PAGE.0 && held <= 2 * BUDGET * PAGE.0);
            }
        });
        let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ends.store(true, Ordering::Relaxed);
        let served: u64 = joined.into_iter().map(|joined| joined.unwrap()).sum();
        assert!(served > rounds);
    });
    for Program { pool, quota } in &programs {
        assert!(pool.stats().held <= pool.budget().0 && pool.budget() == quota.granted());
    }
    drop(programs);
    let since = Instant::now();
    while !client.status().unwrap().programs.is_empty() {
        assert!(since.elapsed() < WAIT, "a program is left");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(client.status().unwrap().server.held, 0);
    end(server);
}
