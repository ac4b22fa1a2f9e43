//! The request's case names what a process does here. Other test threads run while the server forks, so these processes
//! use only what a fork leaves consistent: the C library's heap, and system calls.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Once;
use std::time::Instant;

fn ask(what: &str) -> Request {
    Request::Child { target: String::new(), case: what.to_owned(), device: 0 }
}

/// Runs a requested process.
fn serve(request: Request, peer: Peer, server: Arc<ForkServer>) {
    let Request::Child { case, .. } = request else { return };
    let says = |text: &str| io::stderr().write_all(text.as_bytes()).unwrap();
    match case.as_str() {
        "double" => peer.send(2 * peer.receive::<u64>()),
        "double all" => {
            while let Ok(number) = peer.try_receive::<u64>() {
                peer.send(2 * number);
            }
        }
        // `resume_unwind` prints no message; printing may take a lock.
        "panic" => std::panic::resume_unwind(Box::new("as asked")),
        "skip" => crate::subject::skip("there is none here"),
        "say" => {
            says("one ");
            peer.send(());
            peer.receive::<()>();
            says("two");
            abort()
        }
        "wait" => drop(peer.try_receive::<()>()),
        "leave" => {
            peer.send(std::process::id());
            // SAFETY: ends this process, which has nothing to clean up.
            unsafe { libc::_exit(3) }
        }
        "write to file" => File::from(peer.receive_fd()).write_all_at(b"from there", 0).unwrap(),
        "pass on" => {
            let mut child = server.spawn(&ask("write to file")).unwrap();
            child.send_fd(peer.receive_fd());
            child.finish();
        }
        "hang" => {
            let _held = peer.receive_fd();
            peer.send(());
            loop {
                std::thread::sleep(SOON);
            }
        }
        "hang on" => {
            let mut child = server.spawn(&ask("hang")).unwrap();
            child.send_fd(peer.receive_fd());
            child.receive::<()>();
            peer.send(());
            drop(peer.try_receive::<()>());
        }
        other => panic!("{other} is not known"),
    }
}

fn abort() -> ! {
    // SAFETY: ends this process without the handlers that the tests may have set.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        libc::abort()
    }
}

fn started() -> Arc<ForkServer> {
    // Printing a backtrace holds the loader's lock for long. A process forked meanwhile hangs when it unwinds.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    // SAFETY: no driver is open. Other threads exist, and these processes need no lock that one of them may hold.
    unsafe { ForkServer::start(serve) }.unwrap()
}

fn file() -> File {
    rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_process_answers_and_ends() {
    let server = started();
    for number in [1_u64, 20] {
        let mut child = server.spawn(&ask("double")).unwrap();
        child.send(number);
        assert_eq!(child.receive::<u64>(), 2 * number);
        child.finish();
    }
}

#[test]
fn many_at_once_do_not_mix() {
    let server = started();
    let mut children: Vec<Child> = (0..8).map(|_| server.spawn(&ask("double all")).unwrap()).collect();
    for round in 0..3_u64 {
        for (number, child) in (0..).zip(&mut children) {
            child.send(10 * round + number);
        }
        for (number, child) in (0..).zip(&mut children) {
            assert_eq!(child.receive::<u64>(), 2 * (10 * round + number));
        }
    }
}

#[test]
fn the_end_is_reported() {
    let server = started();
    let end = |what| server.spawn(&ask(what)).unwrap().wait(SOON).unwrap();
    assert_eq!(end("panic"), Ended::Exit(PANICKED));
    assert_eq!(end("leave"), Ended::Exit(3));
    assert_eq!(end("skip"), Ended::Exit(SKIPPED));
    let mut hangs = server.spawn(&ask("wait")).unwrap();
    assert_eq!(hangs.wait(Duration::from_millis(30)).unwrap(), Ended::TooLate);
    assert_eq!(hangs.wait(SOON).unwrap(), Ended::TooLate, "the result is kept");
}

#[test]
fn case_ends_as_its_child_does() {
    let server = started();
    let finish = |what| {
        let child = server.spawn(&ask(what)).unwrap();
        catch_unwind(AssertUnwindSafe(|| child.finish())).unwrap_err()
    };
    assert!(finish("leave").downcast_ref::<String>().unwrap().contains("status 3"));
    assert_eq!(finish("skip").downcast_ref::<Missing>().unwrap().0, "there is none here");
    let mut child = server.spawn(&ask("skip")).unwrap();
    let answer = catch_unwind(AssertUnwindSafe(|| child.receive::<u64>())).unwrap_err();
    assert!(answer.is::<Missing>(), "not the error of a closed connection");
}

#[test]
fn output_is_kept_while_it_is_read() {
    let mut child = started().spawn(&ask("say")).unwrap();
    child.receive::<()>();
    let first = child.printed();
    assert_eq!((first, child.output_from(0).as_str()), (4, "one"));
    child.send(());
    assert_eq!(child.wait(SOON).unwrap(), Ended::Signal(libc::SIGABRT));
    assert_eq!(child.output_from(0), "one two");
    assert_eq!(child.output_from(first), "two");
}

#[test]
fn child_is_killed_on_request_and_drop() {
    let server = started();
    let mut child = server.spawn(&ask("wait")).unwrap();
    child.kill();
    assert_eq!(child.wait(SOON).unwrap(), Ended::Signal(libc::SIGKILL));
    child.kill();

    let began = Instant::now();
    let (child, alive) = hanging(&server, "hang");
    drop(child);
    assert!(began.elapsed() < Duration::from_secs(5), "a drop kills first and then waits");
    assert_eq!(alive(), 0, "the process has ended after the drop");
}

/// Starts a process that never ends by itself. The returned function waits until the process is gone.
fn hanging(server: &ForkServer, what: &str) -> (Child, impl FnOnce() -> usize + use<>) {
    let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut child = server.spawn(&ask(what)).unwrap();
    child.send_fd(writes);
    child.receive::<()>();
    (child, move || File::from(reads).read(&mut [0]).unwrap())
}

/// The requesting process was killed and could not end the process itself.
#[test]
fn child_exits_with_its_parent() {
    let (mut child, alive) = hanging(&started(), "hang on");
    child.kill();
    assert_eq!(child.wait(SOON).unwrap(), Ended::Signal(libc::SIGKILL));
    assert_eq!(alive(), 0);
}

#[test]
fn reused_process_id_is_not_killed() {
    let mut child = started().spawn(&ask("leave")).unwrap();
    let number = child.receive::<i32>();
    assert_eq!(child.wait(SOON).unwrap(), Ended::Exit(3));
    // The watcher has waited for the process, so no zombie keeps its number.
    let there = rustix::process::test_kill_process(Pid::from_raw(number).unwrap());
    assert_eq!(there, Err(Errno::SRCH));
    child.kill();
}

#[test]
fn a_descriptor_is_passed_and_passed_on() {
    let server = started();
    for what in ["write to file", "pass on"] {
        let file = file();
        let mut child = server.spawn(&ask(what)).unwrap();
        child.send_fd(&file);
        child.finish();
        let mut bytes = [0; 10];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"from there", "{what}");
    }
}

#[test]
fn dead_server_is_an_error() {
    let server = started();
    // The server ends when it receives an invalid request.
    peer::send_with(server.line.as_fd(), b"nonsense", &[file().as_fd()]).unwrap();
    assert!(server.spawn(&ask("wait")).is_err());
    assert!(server.spawn(&ask("wait")).is_err());
}

#[test]
fn too_long_request_is_refused() {
    let server = started();
    assert!(server.spawn(&ask(&"x".repeat(MAX_BYTES))).is_err());
    server.spawn(&ask("double all")).unwrap();
}
