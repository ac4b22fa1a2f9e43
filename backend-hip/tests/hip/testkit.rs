//! Whether kernels or copies write the test kit's pattern, and the reason for copies.

use crate::rig::{Rig, ZERO};
use crate::{Needs, Test};
use gpu_vmm_core::{Detail, DeviceId, Error};
use gpu_vmm_testkit::TestKit;

pub(crate) const TESTS: &[Test] =
    &[Test { name: "testkit::pattern_writer_is_named", needs: Needs::Device, run: told }];

fn told(rig: &Rig) {
    let reason = rig.backend.no_kernels_because(ZERO).unwrap();
    let expected = if reason.is_none() { "a kernel" } else { "copies" };
    assert_eq!(rig.backend.pattern_by(), expected, "{reason:?}");
    assert!(reason.is_none_or(|reason| !reason.is_empty()));
    if let Some(reason) = reason {
        eprintln!("by copies: {reason}");
    }
    let missing = rig.backend.no_kernels_because(DeviceId(99));
    assert!(
        matches!(
            missing.as_ref().map_err(Error::detail),
            Err(Detail::Driver { .. } | Detail::NoSuchDevice { .. })
        ),
        "{missing:?}"
    );
}
