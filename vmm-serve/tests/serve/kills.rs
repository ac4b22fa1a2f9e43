//! Clients that are killed at any moment.

use crate::support::{ServerProcess, UNIT, WAIT, backend, fill, idle, options, publish, value};
use gpu_vmm_core::{Bytes, ErrorKind, Result};
use gpu_vmm_host::HostBackend;
use gpu_vmm_serve::{Client, RenewContents, ServeError};
use gpu_vmm_testkit::Random;
use gpu_vmm_testkit::forked::Child;
use std::time::Duration;

const REGIONS: usize = 3;
const HANDLES: u64 = 2;
const AT_ONCE: usize = 16;

/// One random action of a client. Each error must be one that another client explains.
fn act(client: &Client<HostBackend>, random: &mut Random) -> Result<()> {
    let name = format!("region/{}", random.below(REGIONS));
    let size = Bytes(HANDLES * UNIT.0);
    match random.below(8) {
        0 => client.drop_region(&name)?,
        1 | 2 => {
            let mut lease = client.create(&name, size, &options())?;
            fill(&mut lease, random.below(256) as u8);
            lease.commit(None)?;
        }
        3 | 4 => {
            let mut lease = client.write(&name, Duration::from_millis(random.below(20) as u64))?;
            let whole = random.below(2) == 0;
            let contents = if whole { RenewContents::Undefined } else { RenewContents::Copy };
            lease.renew(Bytes(0), size, contents, idle())?;
            if whole {
                fill(&mut lease, random.below(256) as u8);
            }
            if random.below(3) > 0 {
                lease.commit(None)?;
            }
        }
        _ => {
            let mut lease = client.read(&name, Duration::from_millis(random.below(20) as u64))?;
            value(&lease);
            while lease.next(Duration::from_millis(random.below(10) as u64))?.is_some() && !lease.is_dropped()
            {
                lease.apply(idle())?;
                value(&lease);
            }
        }
    }
    Ok(())
}

fn run(path: &std::path::Path, mut random: Random) {
    let client = Client::connect(&backend(), path).unwrap();
    loop {
        if let Err(error) = act(&client, &mut random) {
            let expected = matches!(
                error.extension(),
                Some(
                    ServeError::NotFound { .. }
                        | ServeError::Exists { .. }
                        | ServeError::Busy { .. }
                        | ServeError::Dropped { .. }
                )
            );
            assert!(expected || error.kind() == ErrorKind::AddressTaken, "{error}");
        }
    }
}

#[test]
fn killed_clients_leave_nothing() {
    let server = ServerProcess::start();
    let path = server.path();
    server.idle();
    let before = server.descriptors();
    let rounds =
        std::env::var("GPU_VMM_TEST_SERVE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut random = Random(1);
    let mut clients: Vec<Child> = Vec::new();
    for round in 0..rounds {
        clients.push(Child::fork(|| run(&path, Random(1000 + round))));
        if clients.len() == AT_ONCE {
            std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
            // Dropping kills it, wherever it is.
            drop(clients.swap_remove(random.below(AT_ONCE)));
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    clients.clear();
    let client = server.client();
    for region in server.status().regions {
        // Whatever was committed is whole.
        value(&client.read(&region.name, WAIT).unwrap());
        client.drop_region(&region.name).unwrap();
    }
    assert_eq!(server.idle().held, 0);
    server.until_descriptors_are(before);
}

/// A forked child has copies of its parent's lease and of the connection.
#[test]
fn lease_survives_its_copy_in_a_child() {
    let server = ServerProcess::start();
    let mut lease = Some(publish(&server.client(), "a", 1, 7));
    Child::fork(|| drop(lease.take())).finish();
    // A release would make it a client without a lease.
    assert_eq!(server.status().clients.len(), 1);
    let mut lease = lease.unwrap();
    lease.renew(Bytes(0), UNIT, RenewContents::Copy, idle()).unwrap();
    assert_eq!((value(&lease), lease.commit(None).unwrap()), (7, 2));
}

/// The child has the same socket: what it sends and receives would be missing in its parent.
#[test]
fn lease_in_a_child_exchanges_nothing() {
    let server = ServerProcess::start();
    let client = server.client();
    let mut lease = publish(&client, "a", 1, 7);
    Child::fork(|| {
        let forked = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Forked);
        forked(lease.renew(Bytes(0), UNIT, RenewContents::Copy, idle()).map(drop));
        forked(lease.commit(None).map(drop));
        forked(lease.downgrade(idle()));
        forked(lease.next(Duration::ZERO).map(drop));
        // A connection of its own is the child's.
        assert_eq!(client.status().unwrap().regions.len(), 1);
    })
    .finish();
    lease.renew(Bytes(0), UNIT, RenewContents::Copy, idle()).unwrap();
    assert_eq!((value(&lease), lease.commit(None).unwrap()), (7, 2));
    Child::fork(|| {
        assert_eq!(lease.next(Duration::ZERO).unwrap_err().kind(), ErrorKind::Forked);
    })
    .finish();
    lease.close(idle()).unwrap();
    server.idle();
}

/// The process goes on, so the memory would count as used until it ends.
#[test]
fn failed_open_leaves_no_client() {
    let server = ServerProcess::start();
    let client = server.client();
    let lease = publish(&client, "a", 1, 7);
    let error = client.read("a", WAIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressTaken);
    drop(lease);
    server.idle();
}
