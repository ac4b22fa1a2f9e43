//! DMA-BUFs of a region, which host memory does not have: which ranges are requested, and that the reason is returned.

use crate::bench::{empty, full, machine, piece, put};
use crate::{ONE, TWO, UNIT, units};
use gpu_vmm_core::{Bytes, Detail, Error, Region, WaitFor};
use gpu_vmm_testkit::FaultInject;

#[test]
fn a_driver_without_dma_bufs_says_why() {
    let region = full(&machine());
    let error = region.dma_bufs(Bytes(0), units(2)).unwrap_err();
    assert!(
        matches!(error.detail(), Detail::Unsupported { reason, .. } if reason.contains("memfd")),
        "{error}"
    );
}

#[test]
fn invalid_dma_buf_part_makes_no_call() {
    let host = FaultInject::new(machine());
    let region = full(&host);
    host.fail(u64::MAX, 0);
    assert!(matches!(
        region.dma_bufs(Bytes(0), Bytes(0)).as_ref().map_err(Error::detail),
        Err(Detail::ZeroSize)
    ));
    assert!(matches!(
        region.dma_bufs(Bytes(1), UNIT).as_ref().map_err(Error::detail),
        Err(Detail::Unaligned { .. })
    ));
    assert!(matches!(
        region.dma_bufs(Bytes(0), UNIT).as_ref().map_err(Error::detail),
        Err(Detail::PartialMapping { .. })
    ));
    assert!(matches!(
        region.dma_bufs(Bytes(0), units(4)).as_ref().map_err(Error::detail),
        Err(Detail::NotMapped { .. })
    ));
    assert!(matches!(
        region.dma_bufs(Bytes(0), units(100)).as_ref().map_err(Error::detail),
        Err(Detail::OutOfRange { .. })
    ));
    assert_eq!(host.stop(), 0);
}

#[test]
fn refused_run_is_split_by_mapping() {
    let host = FaultInject::new(machine());
    let mut region = empty(&host);
    for at in 0..3 {
        put(&mut region, at, &piece(&host, ONE, 1), 1);
    }
    put(&mut region, 3, &piece(&host, TWO, 1), 1);
    let asked = |region: &Region<_>, offset, length| {
        host.fail(u64::MAX, 0);
        region.dma_bufs(offset, length).unwrap_err();
        host.stop()
    };
    // The first mapping's error is final.
    assert_eq!(
        asked(&region, Bytes(0), units(4)),
        2,
        "three of one device as one, and then the first of them"
    );
    assert_eq!(
        asked(&region, units(2), units(2)),
        1,
        "a mapping before another device's is a run of its own"
    );
    region.unmap(units(1), UNIT, WaitFor::all_devices()).unwrap();
    assert_eq!(asked(&region, units(2), units(1)), 1);
}
