//! Memory for other processes: what a pool creates when it was asked for such memory, and when the driver refuses it.

use gpu_vmm_core::{Address, Bytes, ErrorKind, Operation, Result};
use gpu_vmm_host::{HostBackend, HostConfig};
use gpu_vmm_pool::Pool;
use gpu_vmm_testkit::FaultInject;

const PAGE: Bytes = Bytes::mib(2);
const PAGES: u64 = 3;

type Faulty = FaultInject<HostBackend>;

/// Exports the memory of a block.
fn export(pool: &Pool<Faulty>, address: Address) -> Result<()> {
    let (memory, offset) = pool.memory_at(address, Bytes(PAGE.0 * PAGES)).unwrap();
    assert_eq!((memory.len() as u64, offset), (PAGES, Bytes::ZERO));
    memory.iter().try_for_each(|one| one.export().map(drop))
}

#[test]
fn requested_memory_can_be_exported() {
    let backend = FaultInject::new(HostConfig::new().memory(Bytes::gib(4)).open().unwrap());
    for shareable in [true, false] {
        let builder = Pool::builder(&backend);
        let pool = if shareable { builder.shareable() } else { builder }.build().unwrap();
        let block = pool.alloc(Bytes(PAGE.0 * PAGES)).unwrap();
        assert_eq!(export(&pool, block.address()).is_ok(), shareable);
        assert_eq!(pool.stats().driver_calls.create, PAGES);
    }
}

/// One call after the other fails. If it was the one that creates memory, the pool creates ordinary memory from then on.
#[test]
fn refusing_driver_provides_ordinary_memory() {
    let (mut refused, mut first) = (0, 0);
    loop {
        let backend = FaultInject::new(HostConfig::new().memory(Bytes::gib(4)).open().unwrap());
        let pool = Pool::builder(&backend).shareable().build().unwrap();
        backend.fail_each(&[first]);
        let answer = pool.alloc(Bytes(PAGE.0 * PAGES));
        let calls = backend.stop();
        if calls <= first {
            break;
        }
        first += 1;
        let Ok(block) = answer else { continue };
        let created = pool.stats().driver_calls.create;
        if created == PAGES {
            continue;
        }
        // Only the call that was refused was repeated.
        assert_eq!(created, PAGES + 1);
        refused += 1;
        let next = pool.alloc(Bytes(PAGE.0 * PAGES)).unwrap();
        assert_eq!(pool.stats().driver_calls.create, created + PAGES, "the refused call was tried again");
        for block in [&block, &next] {
            assert_eq!(pool.stats().held, 2 * PAGES * PAGE.0);
            let error = export(&pool, block.address()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    }
    // Each page is created by a call of its own.
    assert_eq!(refused, PAGES);
}

/// The refusal of ordinary memory, which was not asked for, says nothing new.
#[test]
fn double_refusal_reports_first_answer() {
    let refused = |shareable: bool| {
        let backend = FaultInject::new(HostConfig::new().memory(Bytes::gib(4)).open().unwrap());
        let builder = Pool::builder(&backend);
        let pool = if shareable { builder.shareable() } else { builder }.build().unwrap();
        backend.fail_calls(&[Operation::CreateMemory]);
        let error = pool.alloc(Bytes(PAGE.0 * PAGES)).unwrap_err();
        backend.stop();
        assert_eq!(pool.stats().driver_calls.create, 1 + u64::from(shareable));
        // The text has the number of the failed call, which is the same in both.
        error.to_string()
    };
    assert_eq!(refused(true), refused(false));
}

/// A shortage is no refusal: it is not tried with ordinary memory, and later memory can still be exported.
#[test]
fn memory_stays_shareable_after_a_shortage() {
    let calls = |shareable: bool| {
        let backend = FaultInject::new(HostConfig::new().memory(Bytes(PAGE.0 * 2 * PAGES)).open().unwrap());
        let theirs = Pool::builder(&backend).build().unwrap().alloc(Bytes(PAGE.0 * (PAGES + 1))).unwrap();
        let builder = Pool::builder(&backend);
        let pool = if shareable { builder.shareable() } else { builder }.build().unwrap();
        assert!(pool.alloc(Bytes(PAGE.0 * PAGES)).unwrap_err().is_out_of_memory());
        let made = pool.stats().driver_calls.create;
        drop(theirs);
        let block = pool.alloc(Bytes(PAGE.0 * PAGES)).unwrap();
        assert_eq!(export(&pool, block.address()).is_ok(), shareable);
        made
    };
    assert_eq!(calls(true), calls(false));
}
