//! Users.

use crate::support::{ServerProcess, UNIT, backend, error_of, fill, options};
use gpu_vmm_core::ErrorKind;
use gpu_vmm_serve::{Client, Mode, ServeError};
use gpu_vmm_share::Allowed;
use gpu_vmm_testkit::forked::{Child, UNPRIVILEGED, give_up_root};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

#[test]
fn another_user_sees_what_its_mode_permits() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can have several users");
        return;
    }
    let server = ServerProcess::start();
    let path = server.path();
    set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("private", 0o600), ("readable", 0o644), ("open", 0o666)] {
        let mut options = options();
        options.mode = Mode::new(mode).unwrap();
        let mut lease = server.client().create(name, UNIT, &options).unwrap();
        fill(&mut lease, 1);
        lease.commit(None).unwrap();
    }
    Child::fork(|| {
        give_up_root();
        let error = Client::connect(&backend(), &path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "the server is another user's: {error}");
        let client = Client::connect_to(&backend(), &path, Allowed::user(0)).unwrap();
        let names: Vec<String> =
            client.status().unwrap().regions.into_iter().map(|region| region.name).collect();
        assert_eq!(names, ["open", "readable"]);
        let none = Duration::ZERO;
        assert!(matches!(error_of(client.read("private", none)), ServeError::NotFound { .. }));
        // It waits for one that it may not read as for one that is not there.
        for name in ["private", "none"] {
            let (since, wait) = (Instant::now(), Duration::from_millis(50));
            assert!(matches!(error_of(client.read(name, wait)), ServeError::NotFound { .. }));
            assert!(since.elapsed() >= wait, "{name}");
        }
        assert!(matches!(error_of(client.drop_region("private")), ServeError::NotFound { .. }));
        drop(client.read("readable", none).unwrap());
        let error = error_of(client.write("readable", none));
        let ServeError::Denied { user, owner, mode, .. } = error else { panic!("{error}") };
        assert_eq!((user, owner, mode), (UNPRIVILEGED, 0, 0o644));
        drop(client.write("open", none).unwrap());
        assert!(matches!(error_of(client.drop_region("open")), ServeError::Denied { .. }));
        let mut own = options();
        own.group = Some(0);
        // A process that gives up its user has its group as before.
        client.create("grouped", UNIT, &own).unwrap().commit(None).unwrap();
        own.group = Some(12345);
        assert!(matches!(error_of(client.create("foreign", UNIT, &own)), ServeError::BadRequest { .. }));
        client.drop_region("grouped").unwrap();
    })
    .finish();
}
