//! Random writers, readers and programs at the same time, which are stopped and killed, and so is the server.

use crate::programs::{Program, budget, options, pages, until_programs_are};
use crate::support::{self, ServerProcess, UNIT, WAIT, backend, fill, has_ended, idle, pause, value};
use gpu_vmm_core::{Bytes, ErrorKind};
use gpu_vmm_host::HostBackend;
use gpu_vmm_serve::{Client, LeaseEvent, LeaseKind, RenewContents, ServerOptions};
use gpu_vmm_testkit::Random;
use gpu_vmm_testkit::forked::Child;
use std::path::Path;
use std::time::{Duration, Instant};

const BUDGET: u64 = 48;

fn limits() -> ServerOptions {
    let mut limits = budget(BUDGET);
    limits.answer_within = Duration::from_millis(200);
    limits
}

fn connect(path: &Path) -> Client<HostBackend> {
    for _ in 0..1500 {
        if let Ok(client) = Client::connect(&backend(), path) {
            return client;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no server");
}

fn timed<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let result = call();
    assert!(since.elapsed() < WAIT, "{what} took {:?}", since.elapsed());
    result
}

/// Writers and readers of regions.
fn regions(client: &Client<HostBackend>, random: &mut Random, number: u64) {
    let name = format!("r{}", random.below(4));
    let size = |random: &mut Random| Bytes((1 + random.below(10) as u64) * UNIT.0);
    match random.below(8) {
        0 => drop(timed("drop", || client.drop_region(&name))),
        1..4 => {
            let size = size(random);
            let Ok(mut lease) = timed("create", || client.create(&name, size, &support::options())) else {
                return;
            };
            fill(&mut lease, random.below(250) as u8);
            if timed("commit", || lease.commit(None)).is_err() {
                return;
            }
            for _ in 0..random.below(3) {
                let all = lease.region().end();
                if timed("renew", || lease.renew(Bytes(0), all, RenewContents::Undefined, idle())).is_ok() {
                    fill(&mut lease, random.below(250) as u8);
                    if random.below(3) > 0 {
                        let _ = timed("commit", || lease.commit(None));
                    }
                }
            }
        }
        4 | 5 => {
            let wait = Duration::from_millis(random.below(30) as u64);
            let Ok(mut lease) = timed("write", || client.write(&name, wait)) else { return };
            let all = lease.region().end();
            if timed("renew", || lease.renew(Bytes(0), all, RenewContents::Copy, idle())).is_ok() {
                value(&lease);
                fill(&mut lease, number as u8);
                let _ = timed("commit", || lease.commit(None));
                value(&lease);
            }
        }
        _ => {
            let wait = Duration::from_millis(random.below(30) as u64);
            let Ok(mut lease) = timed("read", || client.read(&name, wait)) else { return };
            value(&lease);
            for _ in 0..random.below(6) {
                match timed("next", || lease.next(Duration::from_millis(5))) {
                    Ok(Some(LeaseEvent::NewEpoch(_))) => {
                        if timed("apply", || lease.apply(idle())).is_ok() {
                            value(&lease);
                        }
                    }
                    Ok(None) => {}
                    _ => return,
                }
            }
        }
    }
}

fn pools(one: &Program, random: &mut Random) {
    let value = [random.below(250) as u8; 64];
    let tag = format!("t{}", random.below(2));
    let kept = one.pool.tagged(&tag).unwrap().alloc(pages(1 + random.below(10) as u64));
    let Ok(mut kept) = timed("alloc", || kept) else { return };
    kept.write(Bytes(0), &value).unwrap();
    if one.quota.let_sleep(&tag).is_ok() {
        match random.below(3) {
            0 => std::thread::sleep(Duration::from_millis(random.below(40) as u64)),
            1 => drop(timed("alloc 2", || one.alloc(1 + random.below(20) as u64))),
            _ => drop(timed("reserve", || {
                let _ = one.quota.reserve(pages(random.below(20) as u64), Duration::from_millis(30));
                one.quota.reserve(Bytes(0), Duration::ZERO)
            })),
        }
        if timed("wake", || one.quota.wake(&tag)).is_ok() && !one.pool.is_suspended(&tag).unwrap() {
            let mut seen = [0; 64];
            kept.read(Bytes(0), &mut seen).unwrap();
            assert_eq!(seen, value);
        }
    }
    drop(kept);
    let _ = one.pool.forget_tag(&tag);
}

/// One process: a pool, and clients of regions in the same process, in some threads and in the same ones.
fn process(path: &Path, seed: u64) {
    let client = connect(path);
    let name = format!("p{}", seed % 4);
    let wait = Duration::from_millis(seed % 3 * 60);
    let mut program = None;
    for _ in 0..1000 {
        program = Program::connect(&client, options(&name, (seed % 3) as i8 - 1, wait)).ok();
        if program.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let one = program.unwrap();
    let both = seed.is_multiple_of(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed * 8);
            loop {
                if !both || random.below(2) == 0 {
                    pools(&one, &mut random);
                } else {
                    regions(&client, &mut random, seed);
                }
            }
        });
        scope.spawn(|| {
            let mut random = Random(seed * 8 + 7);
            loop {
                regions(&client, &mut random, seed);
            }
        });
    });
}

#[test]
fn writers_and_programs_leave_nothing() {
    let seconds = std::env::var("GPU_VMM_TEST_PROGRAM_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(4));
    let mut random = Random(seconds.unwrap_or(1));
    let mut server = ServerProcess::with(limits());
    let path = server.path();
    let mut next = 0;
    let mut processes: Vec<(u64, Child)> = Vec::new();
    let (mut replaced, mut waits) = (0, 0);
    while Instant::now() < until {
        while processes.len() < 4 {
            next += 1;
            processes.push((next, Child::fork(|| process(&path, next))));
        }
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        let at = random.below(processes.len());
        match random.below(14) {
            0..3 => drop(processes.swap_remove(at)),
            3..6 => pause(processes[at].1.id(), Duration::from_millis(random.below(400) as u64)),
            6 => pause(server.id(), Duration::from_millis(random.below(100) as u64)),
            7 | 8 => {
                server = server.replace_with(limits());
                replaced += 1;
            }
            9 if random.below(4) == 0 => {
                server = ServerProcess::again(server.kill(), limits());
            }
            _ => {
                let status = server.status();
                waits +=
                    status.clients.iter().filter(|one| one.waits && one.lease == LeaseKind::Write).count();
                for device in status.devices {
                    assert!(device.held <= device.budget && device.granted <= device.held, "{device:?}");
                }
            }
        }
        processes.retain(|(seed, child)| {
            assert!(!has_ended(child), "process {seed} has ended");
            next - seed <= 30
        });
    }
    drop(processes);
    until_programs_are(&server, 0);
    let client = server.client();
    for region in server.status().regions {
        match client.read(&region.name, WAIT) {
            Ok(lease) => drop(value(&lease)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddressTaken, "{error}"),
        }
        client.drop_region(&region.name).unwrap();
    }
    assert_eq!(server.idle().held, 0);
    drop(client.create("whole", pages(BUDGET), &support::options()).unwrap());
    assert!(waits > 0, "no writer waited: {next} processes, {replaced} servers");
}

/// Returns the processor time of a process, in hundredths of a second.
fn time_of(id: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn waits_take_no_time_of_the_server() {
    let mut limits = budget(20);
    limits.answer_within = Duration::from_secs(2);
    let server = ServerProcess::with(limits);
    let [one, other] = ["one", "other"].map(|name| Program::new(&server, name, 0));
    let kept = [one.alloc(8).unwrap(), other.alloc(4).unwrap()];
    let (client, before) = (server.client(), time_of(server.id()));
    std::thread::scope(|scope| {
        scope.spawn(|| client.create("r", pages(12), &support::options()).unwrap_err());
        scope.spawn(|| one.quota.reserve(pages(18), Duration::from_secs(2)).unwrap_err());
        scope.spawn(|| other.quota.reserve(pages(14), Duration::from_secs(1)).unwrap_err());
    });
    // A server that never waits would take 200.
    let time = time_of(server.id()) - before;
    assert!(time < 50, "{time}");
    drop(kept);
}
