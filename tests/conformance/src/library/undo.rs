//! Rule 3, where undoing fails as well: the part is out of use, the rest works, and nothing crashes.
//!
//! What cannot be given back stays taken, so this runs on hosts of its own.

use crate::case::cases;
use crate::subject::{RW, Subject};
use super::transactions::{Bench, Start};
use gpu_vmm_core::{Access, Bytes, Done, Error, Region, Result, Vendor, Workbench};

cases! { "undo":
    /// that fails.
    that_fails,
}

type Operation = fn(&mut Bench) -> Result<()>;

fn that_fails<B: Workbench>(subject: &Subject<B>) {
    let operations: &[(Start, Operation)] = &[
        (Start::Free, |bench| bench.region.grow_to(Bytes(bench.unit.0 * 10)).map(drop)),
        (Start::Extended, |bench| bench.region.set_access(Bytes(0), bench.region.end(), subject.device, Access::None)),
        (Start::Extended, |bench| {
            bench.region.unmap(Bytes(0), bench.region.end(), Done::when_devices_idle())
        }),
        (Start::Extended, |bench| bench.region.shrink_to(bench.unit, Done::when_devices_idle()).map(drop)),
    ];
    if subject.backend.vendor() != Vendor::Host {
        skip("what cannot be undone stays taken; it runs on host memory");
    }
    for (start, operation) in operations {
        let mut out_of_use = 0;
        for failing in 0.. {
            let host = host(HostConfig::new());
            let own = Subject::new(host.into());
            let mut bench = Bench::new(&own, *start);
            bench.backend.fail(failing, u64::MAX);
            let result = operation(&mut bench);
            bench.backend.stop();
            match result {
                Ok(()) => break,
                Err(Error::UndoFailed { error, undo }) => {
                    assert!(error.driver_error().is_some() && undo.driver_error().is_some());
                    let broken =
                        bench.region.mappings().map(|mapping| (mapping.offset, mapping.length)).filter(
                            |(offset, length)| {
                                let answer = bench.region.read(*offset, &mut vec![0; length.0 as usize]);
                                matches!(answer, Err(Error::OutOfUse { .. }))
                            },
                        );
                    let broken: Vec<_> = broken.collect();
                    assert!(!broken.is_empty(), "some part must be out of use after {error}; {undo}");
                    let refused = bench.region.unmap(broken[0].0, broken[0].1, Done::when_devices_idle());
                    assert!(matches!(refused, Err(Error::OutOfUse { .. })), "{refused:?}");
                    out_of_use += 1;
                }
                Err(error) => assert_eq!(error.driver_error().map(|driver| driver.code), Some(-1), "{error}"),
            }
            // The rest of the region is as good as ever, and so is the backend.
            let mut other = Region::builder(&bench.backend).reserve(bench.unit).build().unwrap();
            other.grow_to(bench.unit).unwrap();
            assert_eq!(other.access(Bytes(0), subject.device), RW);
        }
        assert!(out_of_use > 0, "no undo failed");
    }
}
