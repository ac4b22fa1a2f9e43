//! Requests that wait, of programs and of writers, and when they are served.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::tests::{Served, UNIT, hear, say};
use super::*;
use crate::protocol::{Join, Request};
use gpu_vmm_core::Bytes;
use gpu_vmm_share::Channel;

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

/// Connects a program with a pool that holds nothing, and lets it have a part of the budget.
fn program(served: &mut Served, units: u64) -> Channel {
    let device = served.server.backend.devices()[0].uuid.unwrap();
    let mut channel = newest(served);
    say(&mut channel, &Request::Join(Join { name: "p".to_owned(), device, priority: 0, holds: 0 }));
    served.run();
    assert_eq!(hear(&mut channel), Some(Reply::Joined));
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
