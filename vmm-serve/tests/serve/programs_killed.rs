//! Random programs in processes of their own, which are stopped and killed, and so is the server.

use crate::programs::{PAGE, Program, budget, options, pages, until_programs_are};
use crate::support::{ServerProcess, WAIT, backend, has_ended, pause};
use gpu_vmm_core::{BackingStore, Bytes, Location, Properties, WaitFor};
use gpu_vmm_serve::{Client, ServerOptions};
use gpu_vmm_testkit::Random;
use gpu_vmm_testkit::forked::Child;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BUDGET: u64 = 64;

fn limits() -> ServerOptions {
    let mut limits = budget(BUDGET);
    limits.answer_within = Duration::from_millis(100);
    limits
}

/// Does what programs do, with several threads, for ever. Each call ends soon, and the contents stay.
fn program(path: &Path, seed: u64) {
    let wait = Duration::from_millis(seed % 3 * 40);
    let name = format!("p{}", seed % 4);
    let connect = || {
        let client = Client::connect(&backend(), path)?;
        Program::connect(&client, options(&name, (seed % 3) as i8 - 1, wait))
    };
    // The server may be about to be started again.
    let mut connected = connect();
    for _ in 0..1000 {
        if connected.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        connected = connect();
    }
    let one = connected.unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (one, ends) = (&one, &ends);
            scope.spawn(move || {
                let mut random = Random(seed * 8 + thread);
                while !ends.load(Ordering::Relaxed) {
                    round(one, &mut random, thread);
                }
            });
        }
    });
}

fn round(one: &Program, random: &mut Random, thread: u64) {
    let since = Instant::now();
    let tag = format!("t{thread}");
    let tagged = one.pool.tagged(&tag).unwrap();
    let value = [random.below(250) as u8 + 1; 64];
    let kept = tagged.alloc(pages(1 + random.below(4) as u64)).ok().map(|mut block| {
        block.write(Bytes(0), &value).unwrap();
        block
    });
    drop(tagged);
    let mut blocks = Vec::new();
    for _ in 0..random.below(6) {
        match random.below(9) {
            0 => drop(one.pool.trim(Bytes(random.below(4) as u64 * PAGE))),
            1 => drop(one.quota.reserve(pages(random.below(20) as u64), Duration::from_millis(20))),
            2 => {
                let own = Properties::on(one.pool.memory().device);
                let other = Properties { location: Location::Host, ..own };
                blocks.extend(one.pool.with_memory(other).and_then(|pool| pool.alloc(Bytes(PAGE / 2))));
            }
            3 => drop(one.pool.set_budget(Bytes(1))),
            _ => blocks.extend(one.alloc(1 + random.below(12) as u64)),
        }
    }
    let slept = kept.is_some() && one.quota.let_sleep(&tag).is_ok();
    if random.below(4) == 0 {
        let store = BackingStore::host(one.pool.backend()).unwrap();
        let _ = one.pool.suspend(&tag, &store, WaitFor::all_devices());
        if random.below(2) == 0 {
            let _ = one.pool.resume(&tag);
        }
    }
    if random.below(2) == 0 {
        blocks.extend(one.alloc(1 + random.below(8) as u64));
        blocks.clear();
    }
    if let Some(kept) = &kept
        && (!slept || one.quota.wake(&tag).is_ok())
        && !one.pool.is_suspended(&tag).unwrap()
    {
        let mut seen = [0; 64];
        kept.read(Bytes(0), &mut seen).unwrap();
        assert_eq!(seen, value);
    }
    if random.below(3) == 0 {
        drop(kept);
        let _ = one.pool.forget_tag(&tag);
    }
    assert!(since.elapsed() < WAIT, "a round took {:?}", since.elapsed());
}

#[test]
fn stopped_and_killed_processes_leave_nothing() {
    let seconds = std::env::var("GPU_VMM_TEST_PROGRAM_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(4));
    let mut random = Random(seconds.unwrap_or(1));
    let mut server = ServerProcess::with(limits());
    let path = server.path();
    let start = |seed| (seed, Child::fork(|| program(&path, seed)));
    let mut next = 0;
    let mut programs: Vec<(u64, Child)> = Vec::new();
    let (mut restarts, mut began, mut most) = (0, Instant::now(), 0);
    while Instant::now() < until {
        while programs.len() < 4 {
            next += 1;
            programs.push(start(next));
        }
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        let at = random.below(programs.len());
        match random.below(12) {
            0..3 => drop(programs.swap_remove(at)),
            3..6 => pause(programs[at].1.id(), Duration::from_millis(random.below(250) as u64)),
            6 => pause(server.id(), Duration::from_millis(random.below(100) as u64)),
            7 => server = server.replace_with(limits()),
            8 if random.below(3) == 0 || began.elapsed().as_secs() > 30 => {
                server = ServerProcess::again(server.kill(), limits());
                (restarts, began) = (restarts + 1, Instant::now());
            }
            _ => {
                let status = server.status();
                for device in status.devices {
                    assert!(device.held <= device.budget && device.granted == device.held, "{device:?}");
                    most = most.max(device.held);
                }
            }
        }
        // A program that failed has ended.
        programs.retain(|(seed, child)| {
            // The limit of its time.
            let old = next - seed > 30;
            assert!(!has_ended(child), "program {seed} has ended");
            !old
        });
    }
    drop(programs);
    until_programs_are(&server, 0);
    assert_eq!(server.status().server.held, 0);
    assert!(most > BUDGET / 2 * PAGE, "{next} programs, {restarts} restarts, {most:#x} bytes");
}
