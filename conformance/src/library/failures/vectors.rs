//! Rows of the operations of vectors.

use super::bench::{Bench, Made};
use super::row::{IDLE, Row, keep};
use super::start::Start;
use gpu_vmm_core::{Detail, DeviceVec, Error, Operation, Region, Result};
use gpu_vmm_testkit::TestKit;

/// Returns all rows, except for suspend and resume.
pub(super) fn all<B: TestKit>() -> Vec<Row<B>> {
    [vector(), vector_data()].into_iter().flatten().collect()
}

fn vector<B: TestKit>() -> Vec<Row<B>> {
    fn count<B: TestKit>(bench: &Bench<B>, granules: u64) -> usize {
        (bench.granules(granules).0 / 8) as usize
    }
    vec![
        Row::new("DeviceVec::new", "", Start::FREE, |bench| {
            // If the driver refuses the default reservation, half as much is reserved.
            let vector = DeviceVec::new(&bench.backend, bench.device);
            keep(bench, vector.map(Made::Vector))
        })
        .wish(),
        Row::new("DeviceVec::build", "", Start::FREE, |bench| {
            let builder = Region::builder(&bench.backend).on(bench.device).reserve(bench.granules(1));
            let vector = DeviceVec::build(builder);
            keep(bench, vector.map(Made::Vector))
        }),
        Row::new("DeviceVec::reserve", "", Start::VECTOR, |bench| {
            let more = count(bench, 1);
            bench.vector().reserve(more)
        }),
        Row::new("DeviceVec::push", "within its capacity", Start::VECTOR, |bench| bench.vector().push(5)),
        Row::new("DeviceVec::push", "moving", Start::FULL_VECTOR, |bench| bench.vector().push(5))
            .wish()
            .keeps_capacity()
            .moves(),
        Row::new("DeviceVec::extend_from_slice", "growing", Start::VECTOR, |bench| {
            bench.vector().extend_from_slice(&[5, 6])
        })
        .wish()
        .keeps_capacity(),
        Row::new("DeviceVec::resize", "with equal bytes", Start::VECTOR, |bench| {
            let length = count(bench, 3);
            bench.vector().resize(length, 0)
        })
        .wish()
        .keeps_capacity(),
        Row::new("DeviceVec::resize", "with other bytes", Start::VECTOR, |bench| {
            let length = count(bench, 3);
            bench.vector().resize(length, 1)
        })
        .wish()
        .keeps_capacity(),
        Row::new("DeviceVec::shrink_to_fit", "", Start::SLACK_VECTOR, |bench| {
            bench.vector().shrink_to_fit(IDLE)
        }),
    ]
}

fn vector_data<B: TestKit>() -> Vec<Row<B>> {
    fn expect<T: PartialEq>(seen: T, right: T) -> Result<()> {
        let what = "other elements than were written".to_owned();
        if seen == right {
            Ok(())
        } else {
            Err(Error::new(Operation::Read, Detail::DriverContractViolated { what }))
        }
    }
    vec![
        Row::new("DeviceVec::get", "", Start::VECTOR, |bench| expect(bench.vector().get(2)?, 7)).looks(),
        Row::new("DeviceVec::read", "", Start::VECTOR, |bench| {
            let mut values = [0; 2];
            bench.vector().read(1, &mut values)?;
            expect(values, [4, 7])
        })
        .looks(),
        Row::new("DeviceVec::to_vec", "", Start::VECTOR, |bench| {
            expect(bench.vector().to_vec()?[..3].to_vec(), vec![1, 4, 7])
        })
        .looks(),
        Row::new("DeviceVec::write", "", Start::VECTOR, |bench| bench.vector().write(1, &[8, 9])),
    ]
}
