//! Clients whose driver calls fail, and servers that send what no server would.

use crate::support::{ServerProcess, UNIT, WAIT, backend, idle, options};
use gpu_vmm_core::{Backend, Bytes, Operation};
use gpu_vmm_serve::{Client, Lease, LeaseEvent, RenewContents, ServeError, ServerOptions};
use gpu_vmm_testkit::FaultInject;
use gpu_vmm_testkit::forked::Child;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// More handles than one message has.
const HANDLES: u64 = 300;

const SIZE: Bytes = Bytes(HANDLES * UNIT.0);

/// Writes one byte of each handle.
fn mark<B: Backend>(lease: &mut Lease<B>, value: u8) {
    (0..HANDLES).for_each(|index| lease.region_mut().write(Bytes(index * UNIT.0), &[value]).unwrap());
}

/// Returns true if all handles have the value.
fn have_all<B: Backend>(lease: &Lease<B>, value: u8) -> bool {
    (0..HANDLES).all(|index| {
        let mut byte = [0];
        lease.region().read(Bytes(index * UNIT.0), &mut byte).unwrap();
        byte == [value]
    })
}

/// A writer that repeats what has failed commits what it has written.
#[test]
fn failed_renewals_can_be_repeated() {
    let server = ServerProcess::start();
    let driver = FaultInject::new(backend());
    let client = Client::connect(&driver, server.path()).unwrap();
    let mut small = options();
    small.handle = Bytes(1); // rounded up
    let mut lease = client.create("a", SIZE, &small).unwrap();
    mark(&mut lease, 1);
    lease.commit(None).unwrap();
    driver.fail(0, 0);
    lease.renew(Bytes::ZERO, SIZE, RenewContents::Undefined, idle()).unwrap();
    let calls = driver.stop();
    lease.downgrade(idle()).unwrap();
    lease.close(idle()).unwrap();
    let mut value = 1;
    for call in (0..calls).step_by(37).chain([0, 128, 150, calls - 1]) {
        let mut lease = client.write("a", Duration::ZERO).unwrap();
        driver.fail(call, 1);
        let failed = lease.renew(Bytes::ZERO, SIZE, RenewContents::Undefined, idle());
        driver.stop();
        if failed.is_err() {
            lease.commit(None).unwrap_err();
            lease.renew(Bytes::ZERO, SIZE, RenewContents::Undefined, idle()).unwrap();
        }
        value += 1;
        mark(&mut lease, value);
        lease.commit(None).unwrap();
        lease.close(idle()).unwrap();
        Child::fork(|| {
            let lease =
                Client::connect(&backend(), server.path()).unwrap().read("a", Duration::ZERO).unwrap();
            assert!(have_all(&lease, value), "call {call} has failed");
        })
        .finish();
    }
    assert_eq!(server.idle().held, SIZE.0);
}

/// Memory that could not be imported is given up when the renewal is repeated.
#[test]
fn repeated_renewals_hold_memory_once() {
    let mut limits = ServerOptions::default();
    limits.budget = Some(Bytes(4 * UNIT.0));
    let server = ServerProcess::with(limits);
    let driver = FaultInject::new(backend());
    let mut lease = publish_with(&Client::connect(&driver, server.path()).unwrap());
    driver.fail_calls(&[Operation::ImportMemory]);
    for _ in 0..5 {
        let error = lease.renew(Bytes::ZERO, UNIT, RenewContents::Undefined, idle()).unwrap_err();
        assert_eq!(error.extension::<ServeError>(), None, "{error}");
    }
    driver.stop();
    lease.renew(Bytes::ZERO, Bytes(2 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
    assert_eq!(server.status().server.held, 4 * UNIT.0);
    lease.commit(None).unwrap();
    assert_eq!(server.status().server.held, 2 * UNIT.0);
}

fn publish_with<B: Backend>(client: &Client<B>) -> Lease<B> {
    let mut lease = client.create("a", Bytes(2 * UNIT.0), &options()).unwrap();
    lease.commit(None).unwrap();
    lease
}

/// A reader whose epoch cannot be imported goes on with the former one, and its memory counts until the lease ends.
#[test]
fn failed_epoch_ends_with_its_lease() {
    let server = ServerProcess::start();
    let mut small = options();
    small.handle = Bytes(1); // rounded up
    let mut lease = server.client().create("a", SIZE, &small).unwrap();
    mark(&mut lease, 1);
    lease.commit(None).unwrap();
    lease.close(idle()).unwrap();
    let writer = server.elsewhere(|client| {
        ServerProcess::until(&client, |region| region.readers > 0);
        let mut lease = client.write("a", WAIT).unwrap();
        lease.renew(Bytes::ZERO, SIZE, RenewContents::Undefined, idle()).unwrap();
        lease.commit(None).unwrap();
    });
    let driver = FaultInject::new(backend());
    let mut lease = Client::connect(&driver, server.path()).unwrap().read("a", Duration::ZERO).unwrap();
    writer.finish();
    driver.fail_calls(&[Operation::ImportMemory]);
    lease.next(WAIT).unwrap_err();
    driver.stop();
    assert_eq!(lease.next(WAIT).unwrap(), Some(LeaseEvent::ServerGone));
    assert!(have_all(&lease, 1) && lease.epoch() == 1);
    drop(lease);
    assert_eq!(server.idle().held, SIZE.0);
}

/// The server ends before it replies to a commit. What was new may be the epoch, and is not promised to be writable again.
#[test]
fn no_renewal_follows_an_unanswered_commit() {
    let server = ServerProcess::start();
    let mut lease = server.client().create("a", UNIT, &options()).unwrap();
    let id = Pid::from_raw(server.id() as i32).unwrap();
    kill_process(id, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| lease.commit(None));
        std::thread::sleep(Duration::from_millis(100));
        drop(server);
        commit.join().unwrap().unwrap_err();
    });
    let renewed = lease.renew(Bytes(0), UNIT, RenewContents::Undefined, idle());
    assert!(renewed.is_err() || lease.region_mut().fill(Bytes(0), UNIT, 1).is_ok(), "{renewed:?}");
}
