//! Every pair on host memory, once: each ends with figures, or reports what it lacks.
#![allow(clippy::unwrap_used, clippy::panic)] // whatever is not as expected is a failure

use gpu_vmm_bench::{About, Options, Update, about, run};
use gpu_vmm_core::{Bytes, DeviceId};
use gpu_vmm_host::{HostBackend, HostConfig};
use std::sync::{Mutex, PoisonError};

/// Pairs reserve addresses that they have just freed, which a concurrent pair might take.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn host(devices: u32) -> HostBackend {
    HostConfig::new().devices(devices).memory(Bytes::gib(64)).open().unwrap()
}

/// Returns the events of a run: each pair with the number of its rows, or why it has none.
fn measured(host: &HostBackend, options: &Options<'_>) -> Vec<(About, Result<usize, String>)> {
    let mut pairs: Vec<(About, Result<usize, String>)> = Vec::new();
    let mut tell = |update| match update {
        Update::Begins(about) => pairs.push((about, Ok(0))),
        Update::Row(row) => {
            for figure in [row.ratio, row.ours.took, row.baseline.took] {
                assert!(figure.low <= figure.median && figure.median <= figure.high, "{row:?}");
            }
            assert!(row.ours.took.median > 0.0 && row.baseline.took.median > 0.0, "{row:?}");
            assert!(row.samples > 0 && !row.what.is_empty() && !row.baseline.name.is_empty(), "{row:?}");
            let rows = &mut pairs.last_mut().unwrap().1;
            *rows = rows.clone().map(|rows| rows + 1);
        }
        Update::Curve(_) => {}
        Update::Skipped(reason) => pairs.last_mut().unwrap().1 = Err(reason),
        Update::Failed(error) => panic!("{:?}: {error}", pairs.last()),
    };
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(host, DeviceId(0), options, &mut tell).unwrap();
    pairs
}

#[test]
fn every_pair_has_figures_or_a_reason() {
    let options = Options { samples: Some(1), memory: Some(Bytes::mib(1500)), ..Options::default() };
    let pairs = measured(&host(2), &options);
    assert_eq!(pairs.iter().map(|pair| pair.0).collect::<Vec<_>>(), about::<HostBackend>());
    for (about, came) in pairs {
        match came {
            Ok(rows) => assert!(rows > 0, "{about:?}"),
            Err(reason) => assert!(reason.contains("it needs"), "{about:?}: {reason}"),
        }
    }
}

#[test]
fn a_filter_is_held_against_the_names() {
    let host = host(1);
    let pairs = measured(&host, &Options { filter: Some("prem"), samples: Some(1), ..Options::default() });
    let names: Vec<_> = pairs.iter().map(|(about, _)| about.name).collect();
    assert_eq!(names, ["premap"]);
    assert!(measured(&host, &Options { filter: Some("nothing of that"), ..Options::default() }).is_empty());
}

#[test]
fn a_device_alone_has_no_peer() {
    let pairs = measured(&host(1), &Options { filter: Some("peer"), samples: Some(1), ..Options::default() });
    let [(_, Err(reason))] = &pairs[..] else { panic!("{pairs:?}") };
    assert_eq!(reason, "no other device can access device 0's memory");
}
