//! What the server holds.

use crate::support::{ServerProcess, UNIT, error_of, idle, options, publish};
use gpu_vmm_core::Bytes;
use gpu_vmm_serve::{RenewContents, ServeError, ServerOptions};
use std::time::Duration;

#[test]
fn budget_counts_regions_writers_and_old_epochs() {
    let mut limits = ServerOptions::default();
    limits.budget = Some(Bytes(4 * UNIT.0));
    let server = ServerProcess::with(limits);
    let client = server.client();
    let mut lease = publish(&client, "a", 2, 1);
    let error = error_of(client.create("b", Bytes(3 * UNIT.0), &options()));
    let ServeError::OverBudget { requested, held, old, budget } = error else { panic!("{error}") };
    assert_eq!((requested, held, old, budget), (3 * UNIT.0, 2 * UNIT.0, 0, 4 * UNIT.0));
    lease.renew(Bytes(0), Bytes(2 * UNIT.0), RenewContents::Undefined, idle()).unwrap();
    assert!(matches!(error_of(client.create("b", UNIT, &options())), ServeError::OverBudget { .. }));
    lease.commit(None).unwrap();
    drop(client.create("b", Bytes(2 * UNIT.0), &options()).unwrap());
    lease.close(idle()).unwrap();
    assert_eq!(server.idle().held, 2 * UNIT.0);
    drop(client.read("a", Duration::ZERO).unwrap());
}

#[test]
fn idle_server_keeps_region_descriptors_alone() {
    let server = ServerProcess::start();
    let client = server.client();
    drop(publish(&client, "first", 1, 0));
    server.idle();
    let before = server.descriptors();
    for round in 0..20 {
        let mut lease = publish(&client, "a", 3, round);
        lease.renew(Bytes(0), Bytes(3 * UNIT.0), RenewContents::Copy, idle()).unwrap();
        lease.commit(Some(&gpu_vmm_serve::Layout::default())).unwrap();
        client.drop_region("a").unwrap();
        lease.close(idle()).unwrap();
    }
    server.idle();
    server.until_descriptors_are(before);
}
