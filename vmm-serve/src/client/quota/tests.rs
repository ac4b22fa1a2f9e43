//! Servers that ask for memory in the moment in which they grant some, as for another program that waits.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::*;
use crate::protocol::Reply;
use gpu_vmm_core::Vendor;
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::extend::{self, Wait};
use gpu_vmm_share::{Allowed, Channel, Listener};
use std::collections::VecDeque;

const PAGE: u64 = 2 << 20;
const LONG: Duration = Duration::from_secs(20);

fn pages(count: u64) -> Bytes {
    Bytes(count * PAGE)
}

/// A server of one program.
struct Fake {
    channel: Channel,
    /// The requests that came before answers, with their numbers and what they need.
    requests: VecDeque<(u64, u64)>,
}

impl Fake {
    fn accept(listener: &mut Listener) -> Self {
        let channel = listener.accept(Allowed::any(), LONG).unwrap();
        let mut fake = Self { channel, requests: VecDeque::new() };
        assert!(matches!(fake.hear(), Request::Hello { .. }));
        fake.say(Reply::Welcome { version: 2, vendor: Vendor::Host.name().to_owned() });
        assert!(matches!(fake.hear(), Request::Join(_)));
        fake.say(Reply::Joined);
        assert_eq!(fake.hear(), Request::Give { ask: 0, bytes: 0 });
        fake
    }

    fn say(&mut self, reply: Reply) {
        extend::send(&mut self.channel, OPERATION, &reply, &[]).unwrap();
    }

    fn hear(&mut self) -> Request {
        extend::receive(&mut self.channel, &Wait::new(OPERATION, "request", LONG)).unwrap().0
    }

    /// Asks for all that there is, and returns what the program gives, in pages.
    fn ask(&mut self) -> u64 {
        self.say(Reply::Ask { ask: 1, bytes: u64::MAX, sleeps: false });
        loop {
            match self.hear() {
                Request::Reserve { number, least, .. } => self.requests.push_back((number, least)),
                Request::Give { ask: 1, bytes } => return bytes / PAGE,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the number of the next request for memory, and what it needs.
    fn wanted(&mut self) -> (u64, u64) {
        self.requests.pop_front().unwrap_or_else(|| match self.hear() {
            Request::Reserve { number, least, .. } => (number, least),
            other => panic!("{other:?}"),
        })
    }

    /// Grants what a request needs, and asks for it before the thread of the request is awake. Returns what the program gives.
    fn grant_and_ask(&mut self, number: u64, bytes: u64) -> u64 {
        self.say(Reply::Budget { number, granted: Ok(bytes) });
        self.ask()
    }
}

/// Calls a function with a pool that is connected, while another one plays the server. What the first returns exists until both have ended.
fn with_server<T>(
    plays: impl FnOnce(Fake) + Send,
    uses: impl FnOnce(&Pool<HostBackend>, &Quota<HostBackend>) -> T,
) {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Listener::bind(folder.path().join("socket")).unwrap();
    let path = listener.path().to_owned();
    thread::scope(|scope| {
        let server = scope.spawn(move || plays(Fake::accept(&mut listener)));
        let backend = HostConfig::new().open().unwrap();
        let pool = Pool::builder(&backend).build().unwrap();
        let client = Client { backend: backend.clone(), path, allowed: Allowed::same_user() };
        let quota = client.connect_pool(&pool, QuotaOptions::default()).unwrap();
        let used = uses(&pool, &quota);
        server.join().unwrap();
        drop(used);
    });
}

/// The pool has free memory, which counts against its budget until it was returned.
#[test]
fn reservations_keep_what_is_granted_for_them() {
    const ROUNDS: u64 = 32;
    let plays = |mut fake: Fake| {
        for _ in 0..=ROUNDS {
            let (number, needs) = fake.wanted();
            assert_eq!(fake.grant_and_ask(number, needs), 0, "pages of request {number}");
        }
    };
    with_server(plays, |pool, quota| {
        quota.reserve(pages(40), LONG).unwrap();
        drop(pool.alloc(pages(40)).unwrap());
        for round in 1..=ROUNDS {
            quota.reserve(pages(40 + round), LONG).unwrap();
        }
        assert_eq!((quota.granted(), pool.budget()), (pages(40 + ROUNDS), pages(40 + ROUNDS)));
    });
}

/// A request needs what was free of the budget when it came as well, also if the program has given that while the request waited.
#[test]
fn requests_keep_all_that_they_need() {
    let plays = |mut fake: Fake| {
        let (number, needs) = fake.wanted();
        fake.say(Reply::Budget { number, granted: Ok(needs) });
        // It takes what is free, and then waits.
        let (number, least) = fake.wanted();
        fake.say(Reply::Budget { number, granted: Err(ServeError::bad("another program waits")) });
        let (number, again) = fake.wanted();
        assert_eq!((least, again), (pages(4).0, pages(4).0));
        assert_eq!(fake.ask(), 4);
        assert_eq!(fake.grant_and_ask(number, pages(8).0), 0);
    };
    for _ in 0..16 {
        with_server(plays, |pool, quota| {
            quota.reserve(pages(16), LONG).unwrap();
            quota.reserve(Bytes::ZERO, LONG).unwrap();
            let kept = pool.alloc(pages(12)).unwrap();
            (pool.alloc(pages(8)).unwrap(), kept)
        });
    }
}
