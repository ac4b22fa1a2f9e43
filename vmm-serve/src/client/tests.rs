//! Servers that send what no server would.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

use super::*;
use crate::protocol::Reply;
use crate::protocol::{ClientInfo, RegionInfo};
use crate::{Layout, Mode, RenewContents, ServeError, ServerInfo, sealed};
use gpu_vmm_core::{Bytes, DeviceId, Properties, WaitFor};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_share::extend::{self, Wait};
use gpu_vmm_share::manifest::SharedPiece;
use gpu_vmm_share::{Channel, Listener};
use gpu_vmm_testkit::Random;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SERVE: Operation = Operation::Serve;

/// Returns a number that is wrong in some way, or right.
fn number(random: &mut Random, right: u64) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => 1,
        2 => u64::MAX - random.below(2) as u64,
        3 => random.next(),
        4 => right.wrapping_add(1),
        _ => right,
    }
}

const UNIT: u64 = 2 << 20;

fn memory(backend: &HostBackend, index: u32) -> (SharedPiece, OwnedFd) {
    let properties = Properties::on(DeviceId(0)).shareable();
    let memory = gpu_vmm_core::PhysicalMemory::create(backend, Bytes(UNIT), properties).unwrap();
    (SharedPiece::of(SERVE, backend, index, &memory).unwrap(), memory.export().unwrap())
}

fn address(random: &mut Random) -> u64 {
    0x5000_0000_0000 + random.below(1 << 12) as u64 * (1 << 30)
}

/// Grants a lease as a server does.
fn grant(random: &mut Random, backend: &HostBackend, channel: &mut Channel) -> Result<()> {
    let kind = if random.below(2) == 0 { LeaseKind::Read } else { LeaseKind::Write };
    let address = address(random);
    let granted = Reply::Granted { kind, address, size: 2 * UNIT, handles: 2, epoch: 1, layout: false };
    extend::send(channel, SERVE, &granted, &[])?;
    let (pieces, descriptors): (Vec<_>, Vec<_>) = (0..2).map(|index| memory(backend, index)).unzip();
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    extend::send(channel, SERVE, &Reply::Handles(pieces), &descriptors)
}

/// Sends one random message, most of which would be right at some time.
fn say(random: &mut Random, backend: &HostBackend, channel: &mut Channel) -> Result<()> {
    let layout = || match random_byte() % 3 {
        0 => OwnedFd::from(std::fs::File::open("/").unwrap()),
        1 => sealed::file(SERVE, &[random_byte(); 9]).unwrap(),
        _ => sealed::file(SERVE, &Layout::default().encode().unwrap()).unwrap(),
    };
    let name = || if random_byte() < 64 { "\u{1b}[2J".repeat(3000) } else { "a".to_owned() };
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    let reply = match random.below(12) {
        0 | 1 => {
            let has_layout = random.below(3) == 0;
            descriptors.extend(has_layout.then(layout));
            Reply::Granted {
                kind: if random.below(2) == 0 { LeaseKind::Read } else { LeaseKind::Write },
                address: {
                    let right = address(random);
                    number(random, right)
                },
                size: number(random, 2 * UNIT),
                handles: number(random, 2) as u32,
                epoch: number(random, 1),
                layout: has_layout,
            }
        }
        2 => {
            let has_layout = random.below(3) == 0;
            descriptors.extend(has_layout.then(layout));
            Reply::Epoch { epoch: number(random, 2), changed: number(random, 1) as u32, layout: has_layout }
        }
        3 => Reply::Renewed { count: number(random, 2) as u32 },
        4..=7 => {
            let mut pieces = Vec::new();
            for index in 0..random.below(4) as u32 {
                let (piece, descriptor) = memory(backend, index);
                let size = number(random, piece.size);
                let id = if random.below(8) == 0 { random.next() as u32 } else { index };
                pieces.push(SharedPiece { id, size, ..piece });
                let other = random.below(8) == 0;
                descriptors.push(if other { layout() } else { descriptor });
            }
            Reply::Handles(pieces)
        }
        8 => Reply::Committed { epoch: number(random, 2) },
        9 => match random.below(4) {
            0 => Reply::Downgraded,
            1 => Reply::Dropped,
            2 => Reply::Done,
            _ => Reply::Server(ServerInfo { held: u64::MAX, ..ServerInfo::default() }),
        },
        10 => match random.below(3) {
            0 => Reply::Refused(ServeError::BadRequest { why: name() }),
            1 => Reply::Refused(ServeError::AddressTaken { address: u64::MAX, end: 0 }),
            _ => Reply::Refused(ServeError::OverBudget { requested: 0, held: 0, old: u64::MAX, budget: 0 }),
        },
        _ if random.below(2) == 0 => Reply::Client(ClientInfo {
            process: 0,
            user: 0,
            region: name(),
            lease: LeaseKind::Read,
            waits: true,
            epoch: 0,
            bytes: u64::MAX,
            lingers: true,
        }),
        _ => Reply::Region(RegionInfo {
            name: name(),
            address: 0,
            size: 0,
            handles: 0,
            device: gpu_vmm_core::DeviceUuid([0; 16]),
            epoch: 0,
            layout: u64::MAX,
            user: 0,
            group: 0,
            mode: Mode::default(),
            readers: 0,
            has_writer: false,
            waiting: 0,
        }),
    };
    if random.below(16) == 0 {
        descriptors.pop();
    }
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    extend::send(channel, SERVE, &reply, &descriptors)
}

fn random_byte() -> u8 {
    use std::sync::atomic::AtomicU64;
    static STATE: AtomicU64 = AtomicU64::new(1);
    Random(STATE.fetch_add(1, Ordering::Relaxed)).next() as u8
}

/// Serves one client with random messages, and ends the connection.
fn serve(random: &mut Random, backend: &HostBackend, listener: &Listener) -> Result<()> {
    let mut channel = listener.accept(Allowed::any(), Duration::from_millis(50))?;
    channel.set_wait(Duration::from_secs(1));
    let soon = || Wait::new(SERVE, "request", Duration::from_millis(100));
    extend::receive::<Request>(&mut channel, &soon())?;
    let vendor = backend.vendor().name().to_owned();
    extend::send(&mut channel, SERVE, &Reply::Welcome { version: 1, vendor }, &[])?;
    extend::receive::<Request>(&mut channel, &soon())?;
    if random.below(4) > 0 {
        grant(random, backend, &mut channel)?;
    }
    for _ in 0..random.below(12) {
        say(random, backend, &mut channel)?;
    }
    Ok(())
}

fn act(random: &mut Random, client: &Client<HostBackend>) -> Result<()> {
    let idle = WaitFor::all_devices;
    let mut lease = match random.below(6) {
        0 => return client.status().map(drop),
        1 => return client.drop_region("a"),
        2 => client.create("a", Bytes(4 << 20), &CreateOptions::default())?,
        3 => client.write("a", Duration::ZERO)?,
        _ => client.read("a", Duration::ZERO)?,
    };
    for _ in 0..random.below(6) {
        // The lease stays usable whatever fails.
        let _ = match random.below(5) {
            0 => lease.renew(Bytes(0), Bytes(1), RenewContents::Copy, idle()).map(drop),
            1 => lease.commit(Some(&Layout::default())).map(drop),
            2 => lease.downgrade(idle()),
            3 => lease.apply(idle()).map(drop),
            _ => lease.next(Duration::from_millis(1)).map(drop),
        };
        let mut byte = [0];
        lease.region().read(Bytes(0), &mut byte)?;
    }
    lease.close(idle())
}

#[test]
fn wrong_servers_do_no_harm_to_clients() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let backend = HostConfig::new().open().unwrap();
    let ends = AtomicBool::new(false);
    let rounds =
        std::env::var("GPU_VMM_TEST_SERVE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (backend, mut random) = (HostConfig::new().open().unwrap(), Random(1));
            while !ends.load(Ordering::Relaxed) {
                let _ = serve(&mut random, &backend, &listener);
            }
        });
        let client = Client { backend: backend.clone(), path, allowed: Allowed::same_user() };
        let (mut random, mut leases) = (Random(2), 0);
        for _ in 0..rounds {
            leases += usize::from(act(&mut random, &client).is_ok());
        }
        ends.store(true, Ordering::Relaxed);
        assert!(leases > rounds / 100, "{leases} of {rounds} were right");
    });
}

/// A list that does not end.
#[test]
fn endless_list_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut channel = listener.accept(Allowed::any(), Duration::from_secs(10)).unwrap();
            extend::send(&mut channel, SERVE, &Reply::Welcome { version: 1, vendor: String::new() }, &[])
                .unwrap();
            let info = ClientInfo {
                process: 0,
                user: 0,
                region: "a".to_owned(),
                lease: LeaseKind::Read,
                waits: true,
                epoch: 0,
                bytes: 0,
                lingers: true,
            };
            while extend::send(&mut channel, SERVE, &Reply::Client(info.clone()), &[]).is_ok() {}
        });
        let error = status(&path, Allowed::same_user()).unwrap_err();
        assert!(error.to_string().contains("a list of more than"), "{error}");
    });
}
