//! Regions in files.

use crate::support::{ServerProcess, UNIT, error_of, fill, idle, options, publish, value};
use gpu_vmm_core::dlpack::{DLDataType, TensorView};
use gpu_vmm_core::{Bytes, ErrorKind};
use gpu_vmm_serve::{CreateOptions, Layout, RenewContents, ServeError};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::time::Duration;

#[test]
fn saved_region_is_loaded_at_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let server = ServerProcess::start();
    let mut lease = publish(&server.client(), "model/rank0", 3, 40);
    let mut layout = Layout::default();
    layout.parts.insert(
        "w".to_owned(),
        TensorView { read_only: true, ..TensorView::new(UNIT, DLDataType::F64, [7]) },
    );
    lease.commit(Some(&layout)).unwrap();
    let address = lease.region().address();
    // A file of that name is replaced.
    fs::write(&path, "old").unwrap();
    let size = lease.save(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), size.0);
    drop(lease);
    server.kill();
    let server = ServerProcess::start();
    let client = server.client();
    let lease = client.load(&path, None, &options()).unwrap();
    assert_eq!((lease.name(), lease.region().address(), lease.epoch()), ("model/rank0", address, 1));
    assert_eq!((value(&lease), lease.layout()), (40, &layout));
    let error = error_of(client.load(&path, Some("other"), &options()));
    assert!(matches!(error, ServeError::AddressInUse { .. }), "{error}");
    lease.close(idle()).unwrap();
    let error = error_of(client.load(&path, Some("other"), &options()));
    assert!(matches!(error, ServeError::AddressTaken { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn digest_depends_on_the_bytes_alone() {
    let server = ServerProcess::start();
    let client = server.client();
    let mut whole = options();
    whole.handle = Bytes(8 * UNIT.0);
    let mut digests = Vec::new();
    for (name, options) in [("small", options()), ("large", whole)] {
        let mut lease = client.create(name, Bytes(7 * UNIT.0), &options).unwrap();
        fill(&mut lease, 3);
        digests.push(lease.digest().unwrap());
        lease.commit(None).unwrap();
        digests.push(lease.digest().unwrap());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0] && digest.len() == 64), "{digests:?}");
    let mut lease = client.write("small", Duration::ZERO).unwrap();
    lease.renew(Bytes(0), UNIT, RenewContents::Copy, idle()).unwrap();
    assert_eq!(lease.digest().unwrap(), digests[0]);
    lease.region_mut().write(Bytes(5), &[77]).unwrap();
    assert_ne!(lease.digest().unwrap(), digests[0]);
}

/// `/dev/full` cannot be the place of a temporary file; a limit of file sizes stands for a disk without room.
#[test]
fn full_disk_leaves_the_old_file() {
    let server = ServerProcess::start();
    drop(publish(&server.client(), "a", 3, 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    fs::write(&path, "old").unwrap();
    server
        .elsewhere(|client| {
            let lease = client.read("a", Duration::ZERO).unwrap();
            let limit = Rlimit { current: Some(UNIT.0), maximum: Some(UNIT.0) };
            setrlimit(Resource::Fsize, limit).unwrap();
            let error = lease.save(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::File, "{error}");
        })
        .finish();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn tensors_of_another_program_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let header = r#"{"b":{"dtype":"I16","shape":[2,1],"data_offsets":[3,7]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let bytes =
        [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &[1, 2, 3, 4, 5, 6, 7]].concat();
    fs::write(&path, bytes).unwrap();
    let server = ServerProcess::start();
    let client = server.client();
    let error = error_of(client.load(&path, None, &CreateOptions::default()));
    assert!(matches!(&error, ServeError::BadFile { why, .. } if why.contains("no name")), "{error}");
    client.load(&path, Some("m"), &CreateOptions::default()).unwrap().close(idle()).unwrap();
    let lease = client.read("m", Duration::ZERO).unwrap();
    for (name, expected) in [("a", [1, 2, 3].as_slice()), ("b", &[4, 5, 6, 7])] {
        let mut found = vec![0; expected.len()];
        lease.region().read(lease.layout().parts[name].offset, &mut found).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn unreadable_files_leave_no_region() {
    let folder = tempfile::tempdir().unwrap();
    let server = ServerProcess::start();
    let client = server.client();
    let missing = client.load(folder.path().join("none"), Some("m"), &options()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::File, "{missing}");
    let path = folder.path().join("cut");
    let header = r#"{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#;
    fs::write(&path, [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &[0; 8]].concat())
        .unwrap();
    assert!(matches!(error_of(client.load(&path, Some("m"), &options())), ServeError::BadFile { .. }));
    let lease = publish(&client, "a", 1, 1);
    let error = lease.save(folder.path().join("none/file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::File, "{error}");
    assert_eq!(server.status().server.held, UNIT.0);
    assert_eq!(Bytes(fs::read_dir(folder.path()).unwrap().count() as u64), Bytes(1));
}
