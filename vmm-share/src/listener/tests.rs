use super::*;
use crate::PeerError;
use crate::message::Message;
use crate::socket::Wait;
use gpu_vmm_core::{ErrorKind, Operation};
use gpu_vmm_testkit::forked::{Child, UNPRIVILEGED, alone, give_up_root};
use rustix::fs::{Gid, Uid, chown};
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{SocketAddrUnix, connect};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory of one test, which is removed with its contents on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("gpu-vmm-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const SOON: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(30);

#[test]
fn socket_is_private_and_removed() {
    alone(|| {
        rustix::process::umask(Mode::empty());
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let found = fs::symlink_metadata(listener.path()).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o7777, 0o600);
        drop(listener);
        assert!(!folder.socket().exists());
        Listener::bind(folder.socket()).unwrap();
    });
}

#[test]
fn existing_path_is_refused_and_kept() {
    alone(|| {
        let folder = Folder::new();
        fs::write(folder.socket(), "precious").unwrap();
        let error = Listener::bind(folder.socket()).unwrap_err().to_string();
        assert!(error.contains("bind answered EADDRINUSE") && error.contains("remove it"), "{error}");
        assert_eq!(fs::read(folder.socket()).unwrap(), b"precious");
    });
}

#[test]
fn stale_socket_is_named_and_replaced() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        // A live one is not stale, and the attempts do not disturb it.
        for live in [Listener::bind(folder.socket()), Listener::replace_stale(folder.socket())] {
            let error = live.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Driver), "{error}");
        }
        let error = listener.accept(Allowed::same_user(), SOON).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
        // A killed process leaves its socket: dropped under another name, it cannot be found and removed.
        let moved = folder.0.join("moved");
        fs::rename(folder.socket(), &moved).unwrap();
        drop(listener);
        fs::rename(&moved, folder.socket()).unwrap();
        let error = Listener::bind(folder.socket()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::StaleSocket), "{error}");
        assert!(error.to_string().contains("bind answered EADDRINUSE (98)"), "{error}");
        let listener = Listener::replace_stale(folder.socket()).unwrap();
        let connected = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap();
        listener.accept(Allowed::same_user(), LATE).unwrap();
        drop((listener, connected));
        assert!(!folder.socket().exists());
        // Other files stay, and a free path is as for `bind`.
        fs::write(folder.socket(), "precious").unwrap();
        let error = Listener::replace_stale(folder.socket()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Driver), "{error}");
        assert_eq!(fs::read(folder.socket()).unwrap(), b"precious");
        Listener::replace_stale(folder.0.join("free")).unwrap();
    });
}

#[test]
fn replaced_path_is_left_alone() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        fs::remove_file(folder.socket()).unwrap();
        let next = Listener::bind(folder.socket()).unwrap();
        drop(listener);
        assert!(folder.socket().exists());
        drop(next);
        assert!(!folder.socket().exists());
    });
}

#[test]
fn forked_child_keeps_its_parents_socket() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let mut held = Some(listener);
        Child::fork(|| drop(held.take())).finish();
        assert!(folder.socket().exists());
    });
}

#[test]
fn impossible_socket_paths_are_errors() {
    let folder = Folder::new();
    let long = folder.0.join("x".repeat(108));
    for (path, part) in [
        (Path::new(""), "the empty path"),
        (Path::new("with\0zero"), "no byte 0"),
        (&long, "at most 108 bytes"),
        (&folder.0.join("missing/socket"), "bind answered ENOENT"),
    ] {
        let error = Listener::bind(path).unwrap_err().to_string();
        assert!(error.contains(part), "{part:?} is missing in {error:?}");
    }
}

#[test]
fn relative_path_keeps_its_folder() {
    alone(|| {
        let folder = Folder::new();
        std::env::set_current_dir(&folder.0).unwrap();
        let listener = Listener::bind("socket").unwrap();
        std::env::set_current_dir("/").unwrap();
        drop(listener);
        assert!(!folder.socket().exists());
    });
}

#[test]
fn two_processes_meet_at_a_path() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let (path, parent) = (folder.socket(), std::process::id());
        let child = Child::fork(move || {
            let mut channel = Channel::connect(&path, Allowed::process(parent), LATE).unwrap();
            assert_eq!(channel.peer().pid, parent);
            assert_eq!(
                channel.receive(&Wait::new(Operation::Receive, "message", LATE)).unwrap().0,
                Message::End
            );
        });
        let mut channel = listener.accept(Allowed::process(child.id()), LATE).unwrap();
        assert_eq!(channel.peer().pid, child.id());
        channel.send(Operation::Publish, &Message::End, &[]).unwrap();
        child.finish();
    });
}

#[test]
fn started_program_inherits_no_socket() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let connected = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap();
        let accepted = listener.accept(Allowed::same_user(), LATE).unwrap();
        let (one, other) = Channel::pair().unwrap();
        for socket in [listener.as_fd(), connected.as_fd(), accepted.as_fd(), one.as_fd(), other.as_fd()] {
            assert_eq!(fcntl_getfd(socket).unwrap(), FdFlags::CLOEXEC);
        }
    });
}

#[test]
fn refused_process_does_not_block_others() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let _first = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap();
        let second = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap();
        let error = listener.accept(Allowed::process(1), LATE).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::NotAllowed { pid, .. }) if *pid == std::process::id()),
            "{error}"
        );
        let us = second.peer().uid;
        listener.accept(Allowed::user(us), LATE).unwrap();
        let error = Channel::connect(folder.socket(), Allowed::user(us + 1), LATE).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::NotAllowed { uid, .. }) if *uid == us),
            "{error}"
        );
    });
}

/// Needs root, because the test acts as another user.
#[test]
fn another_user_is_refused() {
    alone(|| {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let as_other_user = |expected: &'static str| {
            let path = folder.socket();
            Child::fork(move || {
                give_up_root();
                let error = Channel::connect(&path, Allowed::same_user(), LATE).unwrap_err().to_string();
                assert!(error.contains(expected), "{error}");
            })
            .finish();
        };
        as_other_user("connect answered EACCES");
        as_other_user(": only the user that created the listener may connect");
        let (uid, gid) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
        chown(folder.socket(), Some(uid), Some(gid)).unwrap();
        as_other_user("of user 0 is not allowed: only processes of user 65534 are");
        let error = listener.accept(Allowed::same_user(), LATE).unwrap_err();
        assert!(
            matches!(error.extension(), Some(PeerError::NotAllowed { uid: UNPRIVILEGED, .. })),
            "{error}"
        );
    });
}

#[test]
fn missing_side_is_an_error_in_time() {
    alone(|| {
        let folder = Folder::new();
        let missing = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap_err().to_string();
        assert!(missing.contains("connect answered ENOENT"), "{missing}");
        assert!(missing.contains(": no process listens there, or not yet"), "{missing}");
        let listener = Listener::bind(folder.socket()).unwrap();
        let error = listener.accept(Allowed::same_user(), SOON).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::TimedOut { what: "connection", .. })), "{error}");

        // The queue is filled, so that one more connection must wait.
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        let mut waiting = Vec::new();
        loop {
            let socket =
                socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
            match connect(&socket, &address) {
                Ok(()) => waiting.push(socket),
                Err(errno) => break assert_eq!(errno, Errno::AGAIN),
            }
        }
        let error = Channel::connect(folder.socket(), Allowed::same_user(), SOON).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");

        let stale = folder.0.join("stale");
        fs::rename(folder.socket(), &stale).unwrap();
        drop(listener);
        let error = Channel::connect(&stale, Allowed::same_user(), LATE).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::StaleSocket { .. })), "{error}");
        let error = error.to_string();
        assert!(error.contains("stale: connect answered ECONNREFUSED"), "{error}");
        assert!(error.contains(": the process that listened there is gone"), "{error}");
        fs::write(folder.0.join("file"), "").unwrap();
        let error = Channel::connect(folder.0.join("file"), Allowed::same_user(), LATE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Driver), "{error}");
        assert!(error.to_string().contains("the path is not a socket"), "{error}");
    });
}

#[test]
fn descriptor_shortage_error_names_call() {
    alone(|| {
        let folder = Folder::new();
        let (path, other) = (folder.socket(), folder.0.join("other"));
        let listener = Listener::bind(&path).unwrap();
        let waiting = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let waiting = waiting.unwrap();
        connect(&waiting, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
        let errors = [
            Channel::pair().map(drop).unwrap_err(),
            Channel::connect(&path, Allowed::same_user(), LATE).map(drop).unwrap_err(),
            Listener::bind(&other).map(drop).unwrap_err(),
            listener.accept(Allowed::same_user(), LATE).map(drop).unwrap_err(),
        ];
        setrlimit(Resource::Nofile, before).unwrap();
        let (path, other) = (path.display().to_string(), other.display().to_string());
        for (error, (operation, call, place)) in errors.iter().zip([
            (Operation::CreateChannel, "socketpair", "SOCK_SEQPACKET"),
            (Operation::Connect, "socket", &path),
            (Operation::Listen, "socket", &other),
            (Operation::Accept, "accept4", &path),
        ]) {
            let text = error.to_string();
            let begin = format!("{operation}: {call} answered EMFILE (24)");
            assert!(
                text.starts_with(&begin) && text.contains(&format!(" ({place}); the process has no")),
                "{text}"
            );
            assert_eq!((error.operation(), error.kind()), (operation, ErrorKind::OutOfDescriptors));
        }
        assert!(!fs::exists(&other).unwrap());
        // The connection has waited.
        listener.accept(Allowed::same_user(), LATE).unwrap();
    });
}

#[test]
fn foreign_listener_is_refused_with_hint() {
    alone(|| {
        let folder = Folder::new();
        let _other = std::os::unix::net::UnixListener::bind(folder.socket()).unwrap();
        let error = Channel::connect(folder.socket(), Allowed::same_user(), LATE).unwrap_err().to_string();
        assert!(error.contains("connect answered EPROTOTYPE"), "{error}");
        assert!(error.contains(": the listener there is not a listener of gpu-vmm"), "{error}");
    });
}

/// A limit of zero is over before the first attempt.
#[test]
fn longest_and_shortest_connection_limits() {
    alone(|| {
        let folder = Folder::new();
        let listener = Listener::bind(folder.socket()).unwrap();
        let _channel = Channel::connect(folder.socket(), Allowed::same_user(), Duration::MAX).unwrap();
        listener.accept(Allowed::same_user(), Duration::MAX).unwrap();
        let error = Channel::connect(folder.socket(), Allowed::same_user(), Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "connect: no acceptance by the listening process within 0ns");
        // No connection waits in the queue.
        listener.accept(Allowed::same_user(), SOON).unwrap_err();
    });
}

#[test]
fn connect_waits_for_a_process_that_binds() {
    alone(|| {
        let folder = Folder::new();
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &address).unwrap();
        let error = Channel::connect(folder.socket(), Allowed::same_user(), SOON).unwrap_err();
        assert!(matches!(error.extension(), Some(PeerError::TimedOut { .. })), "{error}");
        std::thread::scope(|scope| {
            let connects =
                scope.spawn(|| Channel::connect(folder.socket(), Allowed::same_user(), LATE).map(drop));
            std::thread::sleep(SOON);
            listen(&socket, BACKLOG).unwrap();
            connects.join().unwrap().unwrap();
        });
    });
}
