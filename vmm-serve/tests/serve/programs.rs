//! Programs whose pools share a budget.

use crate::support::{ServerProcess, WAIT, backend, error_of, idle, publish};
use gpu_vmm_core::{Bytes, Error, ErrorKind, Result};
use gpu_vmm_host::HostBackend;
use gpu_vmm_pool::{Block, ExhaustedResource, Pool, PoolError};
use gpu_vmm_serve::{Client, ProgramInfo, Quota, QuotaOptions, RenewContents, ServeError, ServerOptions};
use gpu_vmm_testkit::forked::Child;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

pub(crate) const PAGE: u64 = 2 << 20;

pub(crate) fn pages(count: u64) -> Bytes {
    Bytes(count * PAGE)
}

pub(crate) fn budget(count: u64) -> ServerOptions {
    let mut options = ServerOptions::default();
    options.budget = Some(pages(count));
    options
}

pub(crate) fn options(name: &str, priority: i8, wait: Duration) -> QuotaOptions<HostBackend> {
    let mut options = QuotaOptions::default();
    (options.name, options.priority, options.wait) = (name.to_owned(), priority, wait);
    options
}

/// A pool that is connected.
pub(crate) struct Program {
    pub(crate) pool: Pool<HostBackend>,
    pub(crate) quota: Quota<HostBackend>,
}

impl Program {
    pub(crate) fn new(server: &ServerProcess, name: &str, priority: i8) -> Self {
        Self::connect(&server.client(), options(name, priority, WAIT)).unwrap()
    }

    pub(crate) fn connect(client: &Client<HostBackend>, options: QuotaOptions<HostBackend>) -> Result<Self> {
        let pool = Pool::builder(&backend()).build()?;
        let quota = client.connect_pool(&pool, options)?;
        Ok(Self { pool, quota })
    }

    pub(crate) fn alloc(&self, count: u64) -> Result<Block<HostBackend>> {
        self.pool.alloc(pages(count))
    }

    pub(crate) fn tagged(&self, tag: &str, count: u64) -> Block<HostBackend> {
        self.pool.tagged(tag).unwrap().alloc(pages(count)).unwrap()
    }
}

/// Returns what the server says of a program.
pub(crate) fn info(server: &ServerProcess, name: &str) -> ProgramInfo {
    let programs = server.status().programs;
    let found = programs.iter().find(|program| program.name == name);
    found.unwrap_or_else(|| panic!("{name:?} among {programs:?}")).clone()
}

/// Waits until the server knows as many programs.
pub(crate) fn until_programs_are(server: &ServerProcess, count: usize) {
    let since = Instant::now();
    while server.status().programs.len() != count {
        assert!(since.elapsed() < WAIT, "{:?}", server.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns why the server gave a pool nothing.
pub(crate) fn refusal(error: &Error) -> &ServeError {
    let Some(PoolError::OutOfMemory { source, .. }) = error.extension() else { panic!("{error}") };
    let ExhaustedResource::Source { why, .. } = &**source else { panic!("{error}") };
    why.extension().unwrap_or_else(|| panic!("{why}"))
}

#[test]
fn free_memory_goes_to_who_needs_it() {
    let server = ServerProcess::with(budget(20));
    let [one, other] = ["one", "other"].map(|name| Program::new(&server, name, 0));
    drop(one.alloc(16).unwrap());
    assert_eq!(one.pool.stats().held, pages(16).0);
    let block = other.alloc(18).unwrap();
    assert!(one.pool.stats().held <= pages(2).0 && one.pool.budget() <= pages(2));
    let seen = server.status();
    let [device] = &seen.devices[..] else { panic!("{seen:?}") };
    assert_eq!((device.budget, device.held), (pages(20).0, device.granted));
    assert!(device.granted <= device.budget);
    assert_eq!(info(&server, "other").report.live, pages(18).0);
    // What is not there is refused with the numbers.
    let error = error_of_pool(&one.alloc(30));
    assert!(error.is_out_of_memory());
    let ServeError::NoRoom { requested, budget, holders, unanswered, .. } = refusal(&error) else {
        panic!("{error}")
    };
    assert!(*requested >= pages(28).0 && *budget == pages(20).0 && unanswered.is_empty(), "{error}");
    assert!(holders.contains("\"other\" (process ") && holders.contains("36 MiB"), "{error}");
    // Regions have a part too.
    drop(block);
    assert!(matches!(
        error_of(server.client().create("r", pages(25), &crate::support::options())),
        ServeError::OverBudget { .. }
    ));
    drop((one, other));
    until_programs_are(&server, 0);
    drop(publish(&server.client(), "r", 20, 1));
}

#[test]
fn programs_give_memory_for_regions() {
    let server = ServerProcess::with(budget(20));
    let (client, program) = (server.client(), Program::new(&server, "engine", 0));
    let kept = program.tagged("kv", 6);
    drop(program.alloc(12).unwrap());
    assert_eq!(program.pool.stats().held, pages(18).0);
    // What is free goes to a new region.
    let mut lease = publish(&client, "r", 7, 1);
    assert!(program.pool.stats().held <= pages(13).0);
    // What is in use stays, and the name of the region that was refused is free.
    let error = error_of(client.create("s", pages(8), &crate::support::options()));
    let ServeError::NoRoom { holders, waited_ms, .. } = &error else { panic!("{error}") };
    assert!(*waited_ms < 5_000, "no program was ending: {error}");
    assert!(holders.contains("\"engine\"") && holders.contains("regions has 14 MiB"), "{error}");
    assert_eq!(server.status().regions.len(), 1);
    // A new epoch gets what is free, too.
    drop(program.alloc(6).unwrap());
    lease.renew(Bytes(0), pages(7), RenewContents::Undefined, idle()).unwrap();
    lease.commit(None).unwrap();
    // And what can sleep makes room.
    program.quota.let_sleep("kv").unwrap();
    let more = client.create("s", pages(8), &crate::support::options()).unwrap();
    assert!(program.pool.is_suspended("kv").unwrap());
    drop((kept, more));
}

/// The request of a writer is part of the state that a new server takes over.
#[test]
fn writers_wait_while_the_server_is_replaced() {
    let server = ServerProcess::with(budget(20));
    let child = holder(&server, "stopped", 16);
    kill_process(pid(&child), Signal::STOP).unwrap();
    let client = server.client();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.create("r", pages(10), &crate::support::options()).unwrap());
        ServerProcess::until(&client, |region| region.has_writer);
        let server = server.replace_with(budget(20));
        assert!(!writer.is_finished());
        drop(child);
        let mut lease = writer.join().unwrap();
        lease.commit(None).unwrap();
        assert_eq!(server.status().regions.len(), 1);
    });
}

fn error_of_pool<T>(answer: &Result<T>) -> Error {
    match answer {
        Err(error) => error.clone(),
        Ok(_) => panic!("the request was served"),
    }
}

#[test]
fn tags_sleep_for_others_and_wake_with_their_contents() {
    let server = ServerProcess::with(budget(20));
    let [one, other] = ["one", "other"].map(|name| Program::new(&server, name, 0));
    let mut block = one.tagged("kv", 12);
    block.write(Bytes(0), b"kept").unwrap();
    // As long as the tag may not sleep, there is too little.
    let impatient = Program::connect(&server.client(), options("impatient", 0, Duration::ZERO)).unwrap();
    assert!(impatient.alloc(14).unwrap_err().is_out_of_memory());
    drop(impatient);
    one.quota.let_sleep("kv").unwrap();
    assert_eq!(info(&server, "one").report.can_sleep, pages(12).0);
    let theirs = other.alloc(14).unwrap();
    assert!(one.pool.is_suspended("kv").unwrap());
    let seen = info(&server, "one").report;
    assert_eq!((seen.can_sleep, seen.asleep, seen.held), (0, pages(12).0, 0));
    std::thread::scope(|scope| {
        let woken = scope.spawn(|| one.quota.wake("kv").unwrap());
        let since = Instant::now();
        let waits = loop {
            let seen = info(&server, "one");
            if seen.wants > 0 {
                break seen;
            }
            assert!(since.elapsed() < WAIT);
        };
        assert!(waits.wants >= pages(6).0 && !waits.waits_for.is_empty(), "{waits:?}");
        drop(theirs);
        assert_eq!(woken.join().unwrap(), pages(12));
    });
    let mut text = [0; 4];
    block.read(Bytes(0), &mut text).unwrap();
    assert_eq!(&text, b"kept");
    // It does not sleep any more.
    assert!(matches!(other.quota.reserve(pages(14), Duration::ZERO), Err(error) if error.is_out_of_memory()));
    assert!(!one.pool.is_suspended("kv").unwrap());
    assert!(one.quota.let_sleep("no such").is_err());
}

#[test]
fn low_priorities_give_first_and_reservations_stay() {
    let server = ServerProcess::with(budget(30));
    let [low, high] = [-1, 1].map(|priority| Program::new(&server, &format!("p{priority}"), priority));
    for program in [&low, &high] {
        drop(program.alloc(10).unwrap());
        drop(program.tagged("kv", 1));
    }
    let blocks = [low.tagged("kv", 5), high.tagged("kv", 5)];
    [&low, &high].iter().for_each(|program| program.quota.let_sleep("kv").unwrap());
    let third = Program::new(&server, "third", 0);
    let mut taken = Vec::new();
    while !low.pool.is_suspended("kv").unwrap() {
        taken.push(third.alloc(1).unwrap());
    }
    // Only when the first has nothing left to give, the other is asked for its sleepers.
    assert!(!high.pool.is_suspended("kv").unwrap());
    while third.alloc(1).map(|block| taken.push(block)).is_ok() && !high.pool.is_suspended("kv").unwrap() {}
    assert!(high.pool.is_suspended("kv").unwrap());
    drop((taken, blocks));
    // A reservation is there before it is used, and no other program takes it.
    low.quota.reserve(pages(20), WAIT).unwrap();
    assert!(low.quota.granted() >= pages(20) && low.pool.stats().held < pages(20).0);
    let greedy = Program::connect(&server.client(), options("greedy", 1, Duration::ZERO)).unwrap();
    assert!(greedy.alloc(11).unwrap_err().is_out_of_memory());
    assert_eq!(info(&server, "p-1").report.reserved, pages(20).0);
    drop(low.alloc(20).unwrap());
    low.quota.reserve(Bytes(0), WAIT).unwrap();
    drop(greedy.alloc(20).unwrap());
}

#[test]
fn limits_hold_for_programs_and_users() {
    let mut limits = budget(40);
    limits.program_limit = Some(pages(8));
    limits.user_limit = Some(pages(12));
    limits.answer_within = Duration::from_millis(500);
    let server = ServerProcess::with(limits);
    let patience = Duration::from_millis(100);
    let [one, other] =
        ["one", "other"].map(|name| Program::connect(&server.client(), options(name, 0, patience)).unwrap());
    let block = one.alloc(8).unwrap();
    let error = one.alloc(1).unwrap_err();
    assert!(matches!(refusal(&error), ServeError::OverLimit { .. }), "{error}");
    // The user's programs give memory back for each other, and there is no more.
    let error = other.alloc(5).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let kept = other.alloc(4).unwrap();
    let error = error_of(server.client().create("r", pages(1), &crate::support::options()));
    assert!(matches!(error, ServeError::OverLimit { .. }), "{error}");
    drop((block, kept));
    drop(other.alloc(8).unwrap());
    drop((one, other));
    until_programs_are(&server, 0);
    // Too high a priority, or a pool that has more than there is.
    let full = backend();
    let pool = Pool::builder(&full).build().unwrap();
    let block = pool.alloc(pages(9)).unwrap();
    let error = server.client().connect_pool(&pool, options("full", 0, WAIT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    // It is as before.
    drop((block, pool.alloc(pages(30)).unwrap()));
    pool.set_budget(pages(8)).unwrap();
    let quota = server.client().connect_pool(&pool, options("full", 0, WAIT)).unwrap();
    assert!(pool.alloc(pages(9)).unwrap_err().is_out_of_memory());
    assert!(server.client().connect_pool(&pool, options("twice", 0, WAIT)).is_err());
    assert!(quota.is_connected());
}

/// One program waits for what another one has, which needs a little more before it can give it.
#[test]
fn requests_of_holders_pass_those_that_wait_for_them() {
    let server = ServerProcess::with(budget(20));
    let [one, other] = ["one", "other"].map(|name| Program::new(&server, name, 0));
    // What others use at first is free again, and stays granted.
    other.quota.reserve(pages(8), WAIT).unwrap();
    let block = one.alloc(12).unwrap();
    other.quota.reserve(Bytes(0), WAIT).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.alloc(16).unwrap());
        let since = Instant::now();
        while info(&server, "other").wants == 0 {
            assert!(since.elapsed() < WAIT);
        }
        // Again and again, although what it frees goes to the other one at once.
        for _ in 0..20 {
            drop(one.alloc(3).unwrap());
            assert!(!waits.is_finished());
        }
        drop(block);
        drop(waits.join().unwrap());
    });
}

/// A grant that is more than a request needs is no multiple of a page.
#[test]
fn programs_can_use_all_of_the_budget() {
    let server = ServerProcess::with(budget(310));
    let one = Program::new(&server, "one", 0);
    let blocks: Vec<_> = (0..310).map(|_| one.alloc(1).unwrap()).collect();
    drop(blocks);
}

/// Starts another process with a pool that allocates, says so, and waits.
fn holder(server: &ServerProcess, name: &'static str, count: u64) -> Child {
    let (told, tells) = std::io::pipe().unwrap();
    let child = server.elsewhere(|client| {
        let program = Program::connect(&client, options(name, 0, WAIT)).unwrap();
        let _block = program.alloc(count).unwrap();
        (&tells).write_all(&[1]).unwrap();
        loop {
            std::thread::sleep(WAIT);
        }
    });
    drop(tells);
    (&told).read_exact(&mut [0]).unwrap();
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

#[test]
fn killed_programs_leave_nothing() {
    let server = ServerProcess::with(budget(20));
    let child = holder(&server, "killed", 16);
    let program = Program::new(&server, "waits", 0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| program.alloc(18).unwrap());
        let since = Instant::now();
        while info(&server, "waits").wants == 0 {
            assert!(since.elapsed() < WAIT);
        }
        kill_process(pid(&child), Signal::KILL).unwrap();
        drop(waits.join().unwrap());
    });
    drop(child);
    until_programs_are(&server, 1);
}

/// Its socket goes to a child that it has forked, which lives on.
#[test]
fn forked_children_hold_no_budget() {
    let server = ServerProcess::with(budget(20));
    let (told, tells) = std::io::pipe().unwrap();
    let child = server.elsewhere(|client| {
        let program = Program::connect(&client, options("parent", 0, WAIT)).unwrap();
        let mut both = Some((program.alloc(16).unwrap(), program));
        let grandchild = Child::fork(|| {
            let Some((block, program)) = both.take() else { return };
            // Each call fails here, and dropping tells the server nothing.
            assert!(program.alloc(1).is_err() && program.quota.reserve(pages(1), WAIT).is_err());
            assert!(program.quota.let_sleep("").is_err() && program.quota.wake("").is_err());
            drop((block, program));
            (&tells).write_all(&getpid().as_raw_nonzero().get().to_le_bytes()).unwrap();
            loop {
                std::thread::sleep(WAIT);
            }
        });
        std::mem::forget(grandchild);
        loop {
            std::thread::sleep(WAIT);
        }
    });
    drop(tells);
    let mut grandchild = [0; 4];
    (&told).read_exact(&mut grandchild).unwrap();
    assert_eq!(info(&server, "parent").report.live, pages(16).0);
    drop(child);
    until_programs_are(&server, 0);
    let grandchild = Pid::from_raw(i32::from_le_bytes(grandchild)).unwrap();
    kill_process(grandchild, Signal::KILL).unwrap();
}

#[test]
fn programs_that_do_not_answer_are_passed_over_and_named() {
    let mut limits = budget(40);
    limits.answer_within = Duration::from_millis(300);
    let server = ServerProcess::with(limits);
    let child = holder(&server, "stopped", 8);
    kill_process(pid(&child), Signal::STOP).unwrap();
    let [gives, wants] = ["gives", "wants"].map(|name| Program::new(&server, name, 1));
    drop(gives.alloc(12).unwrap());
    let block = wants.alloc(14).unwrap();
    let patience =
        Program::connect(&server.client(), options("late", 0, Duration::from_millis(100))).unwrap();
    let error = patience.alloc(20).unwrap_err();
    let ServeError::NoRoom { unanswered, .. } = refusal(&error) else { panic!("{error}") };
    assert!(unanswered.contains("\"stopped\""), "{error}");
    assert!(!info(&server, "stopped").answers);
    // It has answered as soon as it goes on.
    kill_process(pid(&child), Signal::CONT).unwrap();
    let since = Instant::now();
    while !info(&server, "stopped").answers {
        assert!(since.elapsed() < WAIT);
    }
    drop(block);
}

#[test]
fn servers_are_replaced_and_come_back() {
    let server = ServerProcess::with(budget(20));
    let program = Program::new(&server, "stays", 0);
    let kept = program.alloc(4).unwrap();
    let server = server.replace();
    drop(program.alloc(10).unwrap());
    assert!(program.quota.is_connected());
    assert_eq!(info(&server, "stays").granted, program.quota.granted().0);
    // Without a server, the pool goes on with what it has.
    let (path, granted) = (server.path(), program.quota.granted());
    let folder = server.kill();
    let since = Instant::now();
    while program.quota.is_connected() {
        assert!(since.elapsed() < WAIT);
    }
    drop(program.pool.alloc(granted - pages(4)).unwrap());
    let error = program.alloc(granted.0 / PAGE + 1).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("is gone"), "{error}");
    let server = ServerProcess::again(folder, budget(20));
    assert_eq!(server.path(), path);
    until_programs_are(&server, 1);
    assert_eq!(info(&server, "stays").granted, program.quota.granted().0);
    drop(program.alloc(16).unwrap());
    drop((kept, program));
    until_programs_are(&server, 0);
    assert_eq!(server.status().server.held, 0);
}
