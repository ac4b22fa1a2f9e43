//! The processes that may be at the other end of a channel.

use crate::case::cases;
use crate::library::folder::Folder;
use crate::subject::Subject;
use gpu_vmm_core::Error;
use gpu_vmm_share::{Allowed, Channel, Listener, PeerError};
use gpu_vmm_testkit::TestKit;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::os::unix::fs::PermissionsExt;

cases! { "share":
    /// A process that is not allowed is refused with its process id, and no channel to it is opened.
    who_is_not_allowed,
    /// Only the user that owns a listener can connect to its path.
    a_listener_is_its_users,
    /// A socket that a channel was made of is closed by exec.
    given_sockets_are_closed_by_exec,
}

fn who_is_not_allowed<B: TestKit>(_: &Subject<B>) {
    let line = |allowed| {
        let (ours, _theirs) = Channel::pair().unwrap();
        Channel::from_socket(ours.into_socket(), allowed)
    };
    let this = std::process::id();
    line(Allowed::process(this)).unwrap();
    let answer = line(Allowed::process(this + 1));
    assert!(
        matches!(
            answer.as_ref().map_err(Error::extension),
            Err(Some(PeerError::NotAllowed { pid, .. })) if *pid == this
        ),
        "{answer:?}"
    );
}

fn a_listener_is_its_users<B: TestKit>(_: &Subject<B>) {
    let folder = Folder::new();
    let listener = Listener::bind(folder.file("socket")).unwrap();
    let others = fs::metadata(listener.path()).unwrap().permissions().mode() & 0o077;
    assert_eq!(others, 0, "others have {others:o}");
}

fn given_sockets_are_closed_by_exec<B: TestKit>(_: &Subject<B>) {
    let (ours, _theirs) = Channel::pair().unwrap();
    let socket = ours.into_socket();
    fcntl_setfd(&socket, FdFlags::empty()).unwrap();
    let channel = Channel::from_socket(socket, Allowed::same_user()).unwrap();
    assert_eq!(fcntl_getfd(&channel).unwrap(), FdFlags::CLOEXEC);
}
