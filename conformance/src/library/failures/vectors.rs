//! The rows of the operations of vectors.

use super::bench::{Bench, Made};
use super::operations::{IDLE, Operation, keep};
use super::start::Start;
use gpu_vmm_core::{DeviceVec, Error, Region, Result};
use gpu_vmm_testkit::Workbench;

/// All of them, but suspend and resume.
pub(super) fn all<B: Workbench>() -> Vec<Operation<B>> {
    [vector(), vector_data()].into_iter().flatten().collect()
}

fn vector<B: Workbench>() -> Vec<Operation<B>> {
    fn count<B: Workbench>(bench: &Bench<B>, granules: u64) -> usize {
        (bench.granules(granules).0 / 8) as usize
    }
    vec![
        Operation::new("DeviceVec::new", "", Start::FREE, |bench| {
            let vector = DeviceVec::new(&bench.backend, bench.device);
            keep(bench, vector.map(Made::Vector))
        }),
        Operation::new("DeviceVec::build", "", Start::FREE, |bench| {
            let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
            let vector = DeviceVec::build(builder);
            keep(bench, vector.map(Made::Vector))
        }),
        Operation::new("DeviceVec::reserve", "", Start::VECTOR, |bench| {
            let more = count(bench, 1);
            bench.vector().reserve(more)
        }),
        Operation::new("DeviceVec::push", "where there is room", Start::VECTOR, |bench| {
            bench.vector().push(5)
        }),
        Operation::new("DeviceVec::push", "moving", Start::FULL_VECTOR, |bench| bench.vector().push(5))
            .wish()
            .keeps_capacity()
            .moves(),
        Operation::new("DeviceVec::extend_from_slice", "growing", Start::VECTOR, |bench| {
            bench.vector().extend_from_slice(&[5, 6])
        })
        .wish()
        .keeps_capacity(),
        Operation::new("DeviceVec::resize", "with equal bytes", Start::VECTOR, |bench| {
            let length = count(bench, 3);
            bench.vector().resize(length, 0)
        })
        .wish()
        .keeps_capacity(),
        Operation::new("DeviceVec::resize", "with other bytes", Start::VECTOR, |bench| {
            let length = count(bench, 3);
            bench.vector().resize(length, 1)
        })
        .wish()
        .keeps_capacity(),
        Operation::new("DeviceVec::shrink_to_fit", "", Start::SLACK_VECTOR, |bench| {
            bench.vector().shrink_to_fit(IDLE)
        }),
    ]
}

fn vector_data<B: Workbench>() -> Vec<Operation<B>> {
    fn expect<T: PartialEq>(seen: T, right: T) -> Result<()> {
        let what = "other elements than were written".to_owned();
        if seen == right {
            Ok(())
        } else {
            Err(Error::DriverContractViolated { operation: "read elements", what })
        }
    }
    vec![
        Operation::new("DeviceVec::get", "", Start::VECTOR, |bench| expect(bench.vector().get(2)?, 7))
            .looks(),
        Operation::new("DeviceVec::read", "", Start::VECTOR, |bench| {
            let mut values = [0; 2];
            bench.vector().read(1, &mut values)?;
            expect(values, [4, 7])
        })
        .looks(),
        Operation::new("DeviceVec::to_vec", "", Start::VECTOR, |bench| {
            expect(bench.vector().to_vec()?[..3].to_vec(), vec![1, 4, 7])
        })
        .looks(),
        Operation::new("DeviceVec::write", "", Start::VECTOR, |bench| bench.vector().write(1, &[8, 9])),
    ]
}
