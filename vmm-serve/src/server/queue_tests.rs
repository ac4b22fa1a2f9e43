//! Requests that wait, of programs and of writers, and when they are served.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::tests::{Served, UNIT, hear, say};
use super::*;
use crate::ServeError;
use crate::protocol::{Join, Request};
use gpu_vmm_core::Bytes;
use gpu_vmm_share::Channel;
use gpu_vmm_share::extend::{self, Wait};
use gpu_vmm_testkit::forked::{Child, alone};
use std::io::{Read, Write};

const LONG: Duration = Duration::from_secs(60);

fn limits(budget: u64) -> ServerOptions {
    ServerOptions { budget: Some(Bytes(budget * UNIT)), ..ServerOptions::default() }
}

/// Connects a client of this version of the protocol.
fn newest(served: &mut Served) -> Channel {
    let mut channel = served.connect();
    served.run();
    say(&mut channel, &Request::Hello { lowest: 1, highest: 2 });
    served.run();
    assert!(matches!(hear(&mut channel), Some(Reply::Welcome { version: 2, .. })));
    channel
}

/// Connects a program with a pool that holds this much.
fn joined(served: &mut Served, units: u64) -> Channel {
    let device = served.server.backend.devices()[0].uuid.unwrap();
    let mut channel = newest(served);
    let join = Join { name: "p".to_owned(), device, priority: 0, holds: units * UNIT };
    say(&mut channel, &Request::Join(join));
    served.run();
    assert_eq!(hear(&mut channel), Some(Reply::Joined));
    channel
}

/// Connects a program with a pool that holds nothing, and lets it have a part of the budget.
fn program(served: &mut Served, units: u64) -> Channel {
    let mut channel = joined(served, 0);
    if units > 0 {
        reserve(&mut channel, units, 0);
        served.run();
        assert_eq!(hear(&mut channel), Some(Reply::Budget { number: 1, granted: Ok(units * UNIT) }));
    }
    channel
}

fn reserve(channel: &mut Channel, units: u64, wait_ms: u64) {
    let bytes = units * UNIT;
    say(channel, &Request::Reserve { number: 1, least: bytes, most: bytes, wait_ms, asks: true });
}

/// Connects a client that creates a region, at the address of its number.
fn creator(served: &mut Served, number: u64, units: u64) -> Channel {
    let mut channel = newest(served);
    say(&mut channel, &served.creation(&format!("r{number}"), number << 40, units * UNIT, 0));
    served.run();
    channel
}

/// Answers a question with this much, and returns what was requested.
fn give(served: &mut Served, channel: &mut Channel, units: u64) -> u64 {
    let Some(Reply::Ask { ask, bytes, .. }) = hear(channel) else { panic!("no question") };
    say(channel, &Request::Give { ask, bytes: units * UNIT });
    served.run();
    bytes / UNIT
}

/// A region counts against the limit of its user once, also while its memory is waited for.
#[test]
fn a_region_that_waits_counts_once() {
    let options = ServerOptions { user_limit: Some(Bytes(20 * UNIT)), ..limits(20) };
    let mut served = Served::new(options);
    let mut program = program(&mut served, 18);
    let mut creator = creator(&mut served, 1, 7);
    assert_eq!(give(&mut served, &mut program, 5), 5);
    let reply = hear(&mut creator);
    assert!(matches!(reply, Some(Reply::Granted { .. })), "{reply:?}, then {:?}", hear(&mut program));
    // It counts as soon as it has the memory.
    let user = creator.peer().uid;
    let book = served.server.books.at(DeviceId(0));
    assert_eq!(served.server.room_of_user(user, &book), 0);
}

/// The program leaves at the moment in which the server sends it a question.
#[test]
fn a_leavers_memory_serves_the_next() {
    let mut served = Served::new(limits(20));
    let mut holds = program(&mut served, 18);
    let mut wants = program(&mut served, 0);
    reserve(&mut wants, 10, 60_000);
    // As in a step, in which the program ends after poll.
    served.server.poll(Duration::ZERO).unwrap();
    let waits: Vec<u64> = served.server.connections.keys().copied().collect();
    waits.into_iter().for_each(|id| served.server.receive(id));
    say(&mut holds, &Request::Release);
    drop(holds);
    served.server.press();
    served.server.send_all();
    assert_eq!(served.server.programs().count(), 1);
    // The server has nothing to wait for.
    let wait = served.server.next_wait(LONG);
    served.server.step(wait.min(Duration::from_millis(20))).unwrap();
    let reply = hear(&mut wants);
    assert!(matches!(reply, Some(Reply::Budget { granted: Ok(_), .. })), "{reply:?}, and waits {wait:?}");
    assert_eq!(wait, Duration::ZERO);
}

/// The first request has waited long enough while a program does not answer. There is room for the next one.
#[test]
fn requests_behind_a_refused_one_are_served() {
    let mut served = Served::new(limits(20));
    let mut holds = program(&mut served, 8);
    let mut first = program(&mut served, 0);
    reserve(&mut first, 16, 300);
    served.run();
    // A round in vain, and another one, in which it does not answer.
    give(&mut served, &mut holds, 0);
    give(&mut served, &mut holds, 0);
    let mut next = program(&mut served, 0);
    reserve(&mut next, 4, 60_000);
    let since = Instant::now();
    while hear(&mut first).is_none() {
        assert!(since.elapsed() < Duration::from_secs(5));
        served.server.step(Duration::from_millis(10)).unwrap();
    }
    let wait = served.server.next_wait(LONG);
    let reply = hear(&mut next);
    assert!(matches!(reply, Some(Reply::Budget { granted: Ok(_), .. })), "{reply:?}, and waits {wait:?}");
}

/// A server that takes over from one that settles goes on with it; one that takes over later knows all pools.
#[test]
fn a_successor_goes_on_to_settle() {
    let mut served = Served::new(limits(20));
    served.server.returns_until = Instant::now() + 10 * LONG;
    let _back = joined(&mut served, 2);
    served.server = served.successor().unwrap();
    assert!(served.server.settles_until().unwrap() > Instant::now() + LONG);
    served.server.returns_until = Instant::now();
    served.server = served.successor().unwrap();
    let _new = joined(&mut served, 2);
    assert_eq!(served.server.settles_until(), None);
}

/// Until pools are back that an earlier server knew, nothing is granted.
#[test]
fn a_server_that_settles_waits_for_it() {
    let mut served = Served::new(limits(20));
    let mut wants = program(&mut served, 0);
    let _region = creator(&mut served, 1, 12);
    reserve(&mut wants, 10, 60_000);
    served.run();
    let _back = joined(&mut served, 2);
    let mut steps = 0;
    while served.server.settles_until().is_some() {
        let wait = served.server.next_wait(LONG);
        served.server.step(wait).unwrap();
        steps += 1;
    }
    assert!(steps < 20, "{steps} steps");
}

/// Moments that pass after requests were served and before the server waits.
#[test]
fn moments_pass_unforgotten() {
    let mut served = Served::new(limits(20));
    let _back = joined(&mut served, 2);
    let mut wants = program(&mut served, 0);
    reserve(&mut wants, 10, 60_000);
    served.run();
    // The server has settled.
    served.server.returns_until = served.server.pressed + Duration::from_nanos(1);
    assert_eq!(served.server.next_wait(LONG), Duration::ZERO);
    served.run();
    assert!(matches!(hear(&mut wants), Some(Reply::Budget { granted: Ok(_), .. })));
    // A wait is over.
    reserve(&mut wants, 10, 60_000);
    served.run();
    let until = served.server.pressed + Duration::from_nanos(1);
    let mut waiting = served.server.connections.values_mut();
    waiting.find_map(Connection::wanted_mut).unwrap().until = until;
    assert_eq!(served.server.next_wait(LONG), Duration::ZERO);
}

/// A writer whose region is dropped meanwhile needs nothing of the programs.
#[test]
fn no_program_gives_for_dropped_regions() {
    let mut served = Served::new(limits(20));
    let mut program = program(&mut served, 18);
    let mut creator = creator(&mut served, 1, 7);
    let mut drops = newest(&mut served);
    say(&mut drops, &Request::Drop { name: "r1".to_owned() });
    served.run();
    assert_eq!(hear(&mut drops), Some(Reply::Done));
    let reply = hear(&mut creator);
    assert!(matches!(reply, Some(Reply::Refused(ServeError::Dropped { .. }))), "{reply:?}");
    give(&mut served, &mut program, 0);
    std::thread::sleep(Duration::from_millis(300));
    served.run();
    assert_eq!(hear(&mut program), None);
}

/// A program waits for long, and for more than others can give. Regions go on: what it waits for may be theirs.
#[test]
fn writers_pass_a_request_in_vain() {
    let mut served = Served::new(limits(20));
    let mut writer = creator(&mut served, 1, 6);
    say(&mut writer, &Request::Commit { layout: false });
    served.run();
    let mut wants = program(&mut served, 0);
    reserve(&mut wants, 18, 3_600_000);
    served.run();
    say(&mut writer, &Request::Renew { first: 0, count: 1 });
    served.run();
    let mut renewed = std::iter::from_fn(|| hear(&mut writer));
    assert!(renewed.any(|reply| matches!(reply, Reply::Renewed { .. })), "the renewal waits");
    let mut other = creator(&mut served, 2, 1);
    assert!(matches!(hear(&mut other), Some(Reply::Granted { .. })), "the new region waits");
}

/// A duration that the clock cannot add.
#[test]
fn programs_can_have_endless_time_to_answer() {
    let mut served = Served::new(ServerOptions { answer_within: Duration::MAX, ..limits(20) });
    let mut program = program(&mut served, 18);
    let mut creator = creator(&mut served, 1, 7);
    assert_eq!(give(&mut served, &mut program, 5), 5);
    assert!(matches!(hear(&mut creator), Some(Reply::Granted { .. })));
}

/// The pool of one process joins again in the step in which the server sees that another one has ended.
#[test]
fn pools_return_while_other_processes_end() {
    alone(|| {
        let mut served = Served::new(limits(20));
        let (path, device) =
            (served.server.listener.path().to_owned(), served.server.backend.devices()[0].uuid.unwrap());
        let join = |units| Join { name: "p".to_owned(), device, priority: 0, holds: units * UNIT };
        // Both lose their connections.
        let mut again = newest(&mut served);
        drop(joined(&mut served, 4));
        let (told, tells) = std::io::pipe().unwrap();
        let child = Child::fork(|| {
            let mut channel = Channel::connect(&path, Allowed::same_user(), LONG).unwrap();
            // The server's first message is still to come.
            channel.set_wait(LONG);
            for request in [Request::Hello { lowest: 1, highest: 2 }, Request::Join(join(5))] {
                extend::send(&mut channel, OPERATION, &request, &[]).unwrap();
                extend::receive::<Reply>(&mut channel, &Wait::new(OPERATION, "reply", LONG)).unwrap();
            }
            drop(channel);
            (&tells).write_all(&[1]).unwrap();
            loop {
                std::thread::sleep(LONG);
            }
        });
        let since = Instant::now();
        while served.server.lingering.len() < 2 {
            assert!(since.elapsed() < LONG);
            served.step();
        }
        (&told).read_exact(&mut [0]).unwrap();
        drop(child);
        say(&mut again, &Request::Join(join(4)));
        served.run();
        assert_eq!(hear(&mut again), Some(Reply::Joined));
        assert_eq!((served.server.lingering.len(), served.server.books.held()), (0, 4 * UNIT));
    });
}

/// Nothing has happened since the time in which pools of an earlier server may return.
#[test]
fn idle_servers_grant_what_is_free() {
    let mut served = Served::new(limits(20));
    let mut program = joined(&mut served, 4);
    std::thread::sleep(TO_RETURN + Duration::from_millis(100));
    let (least, most) = (UNIT, UNIT);
    say(&mut program, &Request::Reserve { number: 1, least, most, wait_ms: 0, asks: false });
    served.run();
    assert_eq!(hear(&mut program), Some(Reply::Budget { number: 1, granted: Ok(UNIT) }));
}
