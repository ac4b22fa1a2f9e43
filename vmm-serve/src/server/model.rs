//! Random clients, and what must be true of the server after each step.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::tests::{Served, UNIT, hear, say, say_with};
use super::*;
use crate::protocol::{Join, LeaseKind, ProgramReport, Request};
use crate::{Layout, sealed};
use gpu_vmm_core::{Bytes, DeviceUuid};
use gpu_vmm_host::HostBackend;
use gpu_vmm_share::Channel;
use gpu_vmm_testkit::Random;
use serde::ser::{Serialize, SerializeTuple, Serializer};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

const NAMES: usize = 4;
const BUDGET: u64 = 24 * UNIT;
const CLIENTS: usize = 16;

/// The limit of each program.
const PROGRAM: u64 = 16 * UNIT;

/// Returns a number that is mostly small, and else near a limit.
fn number(random: &mut Random, most: usize) -> u64 {
    match random.below(12) {
        0 => u64::MAX - random.below(3) as u64,
        1 => 1 << random.below(64),
        _ => random.below(most) as u64,
    }
}

/// Returns a size, which mostly is a few handles.
fn size(random: &mut Random) -> u64 {
    number(random, 10).wrapping_mul(if random.below(10) == 0 { 1 } else { UNIT })
}

/// Returns a request of a program, with any numbers.
fn request_of_program(random: &mut Random, served: &Served) -> Request {
    match random.below(12) {
        0..6 => Request::Reserve {
            number: number(random, 3),
            least: size(random),
            most: size(random),
            wait_ms: number(random, 3),
            asks: random.below(3) > 0,
        },
        // The number of a question, or of none.
        6..10 => {
            let asked =
                served.server.programs().filter_map(|(_, _, program)| Some(program.asked?.ask)).next();
            let ask = if random.below(3) > 0 { asked.unwrap_or_default() } else { number(random, 50) };
            Request::Give { ask, bytes: size(random) }
        }
        10 => Request::Report(ProgramReport {
            reserved: size(random),
            held: size(random),
            live: size(random),
            can_sleep: size(random),
            asleep: size(random),
        }),
        _ => Request::Release,
    }
}

/// Returns a request to join, mostly a right one.
fn join(random: &mut Random, served: &Served, user: u32) -> Request {
    let device = served.server.backend.devices()[0].uuid.unwrap();
    let device = if random.below(20) == 0 { DeviceUuid([7; 16]) } else { device };
    let name = if random.below(20) == 0 { String::new() } else { format!("p{}-{user}", random.below(2)) };
    Request::Join(Join { name, device, priority: random.below(256) as u8 as i8, holds: size(random) })
}

/// Returns a request, which mostly is one that the client can send now.
fn request(random: &mut Random, served: &Served, has_lease: bool) -> Request {
    let name = match random.below(40) {
        0 => "x".repeat(random.below(600)),
        1 => String::new(),
        _ => format!("r{}", random.below(NAMES)),
    };
    let which = match (random.below(20), has_lease) {
        (0, _) => random.below(24),
        (_, true) => 9 + random.below(11),
        (_, false) => random.below(9),
    };
    match which {
        0..4 => {
            let size = number(random, 5).wrapping_mul(if random.below(10) == 0 { 1 } else { UNIT });
            let address = number(random, 64).wrapping_mul(UNIT).wrapping_add(1 << 40);
            match served.creation(&name, address, size, number(random, 2).wrapping_mul(UNIT)) {
                Request::Create(mut create) => {
                    create.mode = crate::Mode::new(0o666).unwrap();
                    if random.below(8) == 0 {
                        let own = gpu_vmm_core::Properties::on(DeviceId(0));
                        create.kind =
                            gpu_vmm_core::Properties { location: gpu_vmm_core::Location::Host, ..own }.into();
                    }
                    Request::Create(create)
                }
                other => other,
            }
        }
        4..9 => {
            let kind = if random.below(2) == 0 { LeaseKind::Read } else { LeaseKind::Write };
            Request::Open { name, kind, wait_ms: number(random, 3) }
        }
        9..13 => Request::Renew { first: number(random, 3) as u32, count: number(random, 4) as u32 },
        13..16 => Request::Commit { layout: random.below(2) == 0 },
        16..19 => Request::Applied { epoch: number(random, 5) },
        19 => Request::Downgrade,
        20 => Request::Release,
        21 => Request::List,
        22 => Request::Drop { name },
        _ => Request::Hello { lowest: number(random, 3) as u16, highest: number(random, 3) as u16 },
    }
}

/// The files that a client sends as layouts: most are.
fn file(random: &mut Random) -> OwnedFd {
    match random.below(8) {
        0 => std::fs::File::open("/").unwrap().into(),
        1 => tempfile::tempfile().unwrap().into(),
        _ => sealed::file(OPERATION, &Layout::default().encode().unwrap()).unwrap(),
    }
}

/// A request whose bytes were damaged, behind a right header.
struct Damaged(Vec<u8>);

impl Serialize for Damaged {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut bytes = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| bytes.serialize_element(byte))?;
        bytes.end()
    }
}

/// Damages a request. `None` if the result is a request for which a server stops for its successor.
fn damaged(random: &mut Random, request: &Request) -> Option<Damaged> {
    let mut bytes = postcard::to_allocvec(request).unwrap();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next() as u8),
            2 => bytes.extend(random.bytes(40)),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    let stops = matches!(postcard::from_bytes(&bytes), Ok(Request::TakeOver));
    (!stops).then_some(Damaged(bytes))
}

struct Client {
    channel: Channel,
    /// False for one that never reads.
    reads: bool,
    has_lease: bool,
    is_program: bool,
    user: u32,
}

/// Checks the books against what is there.
fn check(server: &Server<HostBackend>) {
    let (mut alive, mut promised) = (BTreeMap::new(), 0);
    let mut add = |handle: &Arc<books::Handle<HostBackend>>| {
        alive.insert(handle.id, handle.size().0);
    };
    for (id, connection) in &server.connections {
        connection.queued_handles().for_each(&mut add);
        let Some(lease) = connection.lease() else { continue };
        lease.holds.iter().chain(lease.fresh.values()).for_each(&mut add);
        if let Some(job) = &lease.job {
            assert_eq!(lease.kind, LeaseKind::Write);
            job.made.iter().for_each(|(_, handle)| add(handle));
            promised += job.promise.left();
            let lacks = job.lacks.as_ref().map_or(0, |wanted| wanted.least);
            assert!(lacks <= BUDGET && (lacks == 0 || job.promise.left() == 0), "{job:?}");
        }
        let region = server.regions.get(&lease.name, lease.region);
        if let Some(region) = region {
            assert_eq!(region.writer == Some(*id), lease.kind == LeaseKind::Write);
            assert!(lease.sent <= region.epoch && lease.applied <= lease.sent, "{lease:?}");
            assert!(lease.kind == LeaseKind::Read || lease.sent == region.epoch);
        }
        // No memory but of the epoch that was sent last, of the one that is mapped, and of a writer.
        let bytes: u64 = lease.holds.iter().map(|handle| handle.size().0).sum();
        let size = region.map_or(u64::MAX / 2, |region| region.size);
        assert!(bytes <= 2 * size, "{bytes:#x} of {size:#x}");
    }
    for region in server.regions.0.values() {
        region.handles.iter().for_each(&mut add);
        let writer = region.writer.map(|writer| &server.connections[&writer]);
        assert!(writer.is_none_or(|writer| writer.lease().is_some_and(|lease| lease.region == region.id)));
        assert!(region.epoch > 0 || region.writer.is_some());
        assert_eq!(region.bytes(), if region.epoch == 0 { 0 } else { region.size });
    }
    server.lingering.iter().flat_map(|one| one.holds()).for_each(&mut add);
    let granted: u64 = server.grants().map(|(_, grant)| grant.left()).sum();
    for (_, connection, program) in server.programs() {
        assert!(program.wants.is_none() || connection.version > 1, "{program:?}");
        assert!(program.grant.left() <= PROGRAM, "{program:?}");
        // What waits could be served if others gave all that they have.
        let wanted = program.wants.as_ref().map_or(0, |wanted| wanted.least);
        assert!(wanted <= PROGRAM - program.grant.left(), "{program:?}");
    }
    check_queue(server);
    let held = server.books.held();
    assert_eq!(held, alive.values().sum::<u64>() + promised + granted);
    assert!(server.named(None) <= held, "{held:#x}, {:#x} named", server.named(None));
    for place in [DeviceId(0), DeviceId::HOST] {
        assert!(server.books.at(place).held() <= BUDGET);
    }
}

/// What a user has, with the limit.
fn of_user(server: &Server<HostBackend>, user: u32, place: DeviceId) -> (u64, u64) {
    let book = server.books.at(place);
    let mut has = 0;
    for (name, region) in &server.regions.0 {
        if region.owner != user || books::place_of(&region.properties) != place {
            continue;
        }
        let waits = server.connections.values().filter(|one| one.waits().is_some()).any(|one| {
            one.lease().is_some_and(|lease| lease.name == *name && lease.region == region.id)
                && region.epoch == 0
        });
        has += if waits { 0 } else { region.size };
    }
    has += server.granted(&book, |other| other == user);
    (has, server.options.limit_of_user(user).map_or(u64::MAX, |limit| limit.0))
}

/// Checks that what comes first waits for a reason.
fn check_queue(server: &Server<HostBackend>) {
    let now = Instant::now();
    for place in [DeviceId(0), DeviceId::HOST] {
        for user in [1, 2, 3] {
            let (has, limit) = of_user(server, user, place);
            assert!(has <= limit, "user {user} has {has:#x} of {limit:#x}");
        }
        let mut waiting: Vec<_> =
            server.waiting(place).map(|(id, waits)| ((waits.order(now), id), waits.wanted.clone())).collect();
        waiting.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let Some((_, first)) = waiting.first() else { continue };
        let (has, limit) = of_user(server, first.user, place);
        let room = (BUDGET - server.books.at(place).held()).min(limit.saturating_sub(has));
        let wait = server.next_wait(Duration::from_secs(3600));
        let settles = server.settles_until().is_some();
        assert!(first.least > room || wait.is_zero() || settles, "{first:?} with {room:#x} waits {wait:?}");
        // It will be looked at again.
        assert!(wait < Duration::from_secs(3600) || first.until > now, "{first:?} is forgotten");
    }
}

/// Checks that the server does not go round and round.
fn check_rests(served: &mut Served) {
    for _ in 0..3000 {
        served.step();
        if !served.server.next_wait(Duration::from_secs(1)).is_zero() {
            return;
        }
    }
    panic!("no rest: {:?}", served.server);
}

fn hand_over(served: &mut Served, users: &BTreeMap<u64, u32>) -> bool {
    let Ok(mut new) = served.successor() else { return false };
    let parts = |server: &Server<HostBackend>| {
        let programs: Vec<_> = server
            .programs()
            .map(|(id, _, program)| {
                (id, program.grant.left(), program.wants.as_ref().map(|one| (one.least, one.most)))
            })
            .collect();
        let jobs: Vec<_> = server
            .connections
            .iter()
            .filter_map(|(id, one)| {
                let job = one.lease()?.job.as_ref()?;
                Some((
                    *id,
                    job.promise.left(),
                    job.made.len(),
                    job.lacks.as_ref().map(|one| (one.least, one.user)),
                ))
            })
            .collect();
        (programs, jobs, server.books.held(), server.lingering.len())
    };
    assert_eq!(parts(&new), parts(&served.server));
    for (id, connection) in &mut new.connections {
        users.get(id).into_iter().for_each(|user| connection.peer.user = Some(*user));
    }
    served.server = new;
    true
}

#[test]
fn random_messages_keep_the_books_right() {
    let steps =
        std::env::var("GPU_VMM_TEST_SERVE_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let options = ServerOptions {
        budget: Some(Bytes(BUDGET)),
        clients: 2 * CLIENTS,
        regions: 3,
        program_limit: Some(Bytes(PROGRAM)),
        answer_within: Duration::from_millis(3),
        user_limits: [(1, Bytes(9 * UNIT)), (2, Bytes(20 * UNIT))].into(),
        ..ServerOptions::default()
    };
    let mut served = Served::new(options);
    let mut random = Random(1);
    let (mut users, mut handed, mut in_wait) = (BTreeMap::new(), 0, 0);
    let mut clients: Vec<Client> = Vec::new();
    let (mut epochs, mut leases, mut grants, mut refusals, mut waits) = (0, 0, 0, 0, 0);
    // How many there are of each depends on the time that the threads take which close connections: some runs need more steps.
    for step in 0..10 * steps {
        let are_served = leases.min(grants).min(refusals) > steps / 1000;
        if step >= steps && are_served && epochs > 0 && in_wait > 0 && waits > 0 {
            break;
        }
        let which = random.below(CLIENTS);
        if which >= clients.len() {
            let mut channel = served.connect();
            let mut user = 0;
            served.step();
            if let Some((id, connection)) = served.server.connections.iter_mut().next_back()
                && matches!(connection.role, Role::New { .. })
                && random.below(3) > 0
            {
                user = 1 + random.below(3) as u32;
                users.insert(*id, user);
                connection.peer.user = Some(user);
            }
            if random.below(20) > 0 {
                say(&mut channel, &Request::Hello { lowest: 1, highest: 1 + random.below(3) as u16 });
            }
            let is_program = random.below(2) == 0;
            if is_program {
                served.step();
                say(&mut channel, &join(&mut random, &served, user));
            }
            let reads = random.below(4) > 0;
            clients.push(Client { channel, reads, has_lease: false, is_program, user });
        } else {
            let Client { channel, has_lease, is_program, user, .. } = &mut clients[which];
            let request = match *is_program && random.below(30) > 0 {
                true => request_of_program(&mut random, &served),
                false if random.below(60) == 0 => join(&mut random, &served, *user),
                false => request(&mut random, &served, *has_lease),
            };
            let needs = matches!(request, Request::Commit { layout: true }) != (random.below(30) == 0);
            let descriptors: Vec<OwnedFd> = needs.then(|| file(&mut random)).into_iter().collect();
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match (random.below(15) == 0).then(|| damaged(&mut random, &request)).flatten() {
                Some(bytes) => say_with(channel, &bytes, &descriptors),
                None => say_with(channel, &request, &descriptors),
            }
            match random.below(60) {
                0 => drop(clients.swap_remove(which)),
                1 => {
                    // Leaves as clients do.
                    say(channel, &Request::Release);
                    clients.swap_remove(which);
                }
                2 => drop(rustix::net::shutdown(&*channel, rustix::net::Shutdown::Write)),
                _ => {}
            }
        }
        for _ in 0..random.below(3) {
            served.step();
            check(&served.server);
        }
        clients.retain_mut(|Client { channel, reads, has_lease, .. }| {
            while *reads && let Some(reply) = hear(channel) {
                *has_lease |= matches!(reply, Reply::Granted { .. });
                leases += u64::from(matches!(reply, Reply::Granted { .. }));
                epochs += u64::from(matches!(reply, Reply::Epoch { .. }));
                grants += u64::from(matches!(reply, Reply::Budget { granted: Ok(_), .. }));
                refusals += u64::from(matches!(reply, Reply::Budget { granted: Err(_), .. }));
            }
            channel.is_connected()
        });
        let writers = served.server.connections.values().filter(|one| one.lease().is_some());
        waits += writers.filter(|one| one.waits().is_some()).count();
        if random.below(200) == 0 {
            check_rests(&mut served);
        }
        if random.below(400) == 0 {
            users.retain(|id, _| served.server.connections.contains_key(id));
            let waits = served.server.connections.values().any(|one| one.waits().is_some());
            if hand_over(&mut served, &users) {
                handed += 1;
                in_wait += u64::from(waits);
                check(&served.server);
            }
        }
        // This process does not end. Otherwise its memory would fill the budget.
        if random.below(50) == 0 {
            served.server.lingering.clear();
        }
    }
    assert!(leases > steps / 1000 && epochs > 0, "{leases} leases, {epochs} epochs");
    assert!(in_wait > 0, "{handed} servers, and none with requests that wait");
    assert!(waits > 0, "no writer waited for a program");
    assert!(grants > steps / 1000 && refusals > steps / 1000, "{grants} grants, {refusals} refusals");
    clients.clear();
    // A child that another test has forked has the clients' ends until it ends.
    let since = Instant::now();
    while !served.server.connections.is_empty() {
        assert!(since.elapsed() < Duration::from_secs(60), "{} connections", served.server.connections.len());
        served.step();
        std::thread::sleep(Duration::from_millis(1));
    }
    served.server.lingering.clear();
    check(&served.server);
    served.server.regions.0.clear();
    assert_eq!(served.server.books.held(), 0);
}
