//! `gpu-vmm serve`: a server on host memory, its clients, its folder, and what a service manager expects.
#![allow(unsafe_code)] // a descriptor with a number that the command expects

use crate::rig::{Folder, command, json, stderr, stdout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(30);

/// A server that is killed when the test ends.
struct Server {
    child: Child,
    socket: String,
}

impl Server {
    fn start(folder: &Folder, options: &[&str]) -> Self {
        let socket = folder.file("socket");
        let mut command = command(&["serve", "--backend", "host", "--socket", &socket]);
        let child = command.args(options).stderr(Stdio::null()).spawn().unwrap();
        let server = Self { child, socket };
        server.until(|_| true);
        server
    }

    /// Runs a question to the server.
    fn ask(&self, arguments: &[&str]) -> Output {
        ask(&self.socket, arguments)
    }

    /// Waits until the status is as wanted.
    fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let output = self.ask(&["status", "--json"]);
            if output.status.success() {
                let found = json(&output);
                if wanted(&found) {
                    return found;
                }
            }
            assert!(since.elapsed() < WAIT, "{}", stdout(&output) + &stderr(&output));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(socket: &str, arguments: &[&str]) -> Output {
    command(&["serve"]).args(arguments).env("GPU_VMM_SERVER", socket).output().unwrap()
}

/// Writes a file of weights: `bytes` of one tensor.
fn weights(path: &str, bytes: &[u8]) {
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, bytes.len());
    let bytes = [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), bytes].concat();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn regions_are_loaded_listed_saved_and_dropped() {
    let folder = Folder::new("serve");
    let (file, copy) = (folder.file("weights.safetensors"), folder.file("copy.safetensors"));
    weights(&file, &[7; 100_000]);
    let server = Server::start(&folder, &["--budget", "64MiB"]);
    let loaded = server.ask(&["load", &file, "model/rank0", "--backend", "host", "--mode", "640"]);
    assert_eq!((loaded.status.code(), stderr(&loaded).as_str()), (Some(0), ""));
    assert!(stdout(&loaded).starts_with("model/rank0: 2 MiB at 0x"), "{}", stdout(&loaded));
    let found = server.until(|_| true);
    let region = &found["regions"][0];
    assert_eq!(
        (region["name"].as_str(), region["mode"].as_str(), region["epoch"].as_u64()),
        (Some("model/rank0"), Some("640"), Some(1))
    );
    assert_eq!(
        (found["server"]["held"].as_u64(), found["server"]["budget"].as_u64()),
        (Some(2 << 20), Some(64 << 20))
    );
    let text = stdout(&server.ask(&["status"]));
    assert!(text.contains("2 MiB of 64 MiB held") && text.contains("model/rank0  2 MiB"), "{text}");
    let metrics = stdout(&server.ask(&["status", "--prometheus"]));
    assert!(metrics.contains("\ngpu_vmm_serve_region_bytes{region=\"model/rank0\"} 2097152\n"), "{metrics}");
    let again = server.ask(&["load", &file, "model/rank0", "--backend", "host"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("has a region \"model/rank0\" already"), "{}", stderr(&again));
    let saved = server.ask(&["save", "model/rank0", &copy, "--backend", "host"]);
    assert_eq!((saved.status.code(), stderr(&saved).as_str()), (Some(0), ""));
    assert!(std::fs::metadata(&copy).unwrap().len() > 2 << 20);
    let digest = |name| stdout(&server.ask(&["digest", name, "--backend", "host"]));
    assert_eq!((digest("model/rank0").trim().len(), digest("model/rank0")), (64, digest("model/rank0")));
    assert_eq!(server.ask(&["drop", "model/rank0"]).status.code(), Some(0));
    assert_eq!(server.until(|_| true)["server"]["held"], 0);
    let gone = server.ask(&["drop", "model/rank0"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(stderr(&gone).contains("no region \"model/rank0\""), "{}", stderr(&gone));
}

#[test]
fn killed_server_comes_back_from_its_folder() {
    let folder = Folder::new("store");
    let (file, store) = (folder.file("weights.safetensors"), folder.file("store"));
    std::fs::create_dir(&store).unwrap();
    weights(&file, &[9; 5000]);
    let first = format!("a/b={file}");
    let server = Server::start(&folder, &["--store", &store, "--load", &first]);
    let found = server.until(|found| found["regions"][0]["epoch"] == 1);
    let address = found["regions"][0]["address"].clone();
    server.signal(Signal::USR1);
    let saved = format!("{store}/a%2Fb.safetensors");
    let since = Instant::now();
    while !std::fs::exists(&saved).unwrap() {
        assert!(since.elapsed() < WAIT);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Killed: the stale socket is replaced.
    drop(server);
    let server = Server::start(&folder, &["--store", &store]);
    let found = server.until(|found| found["regions"][0]["epoch"] == 1);
    assert_eq!(
        (&found["regions"][0]["name"], &found["regions"][0]["address"]),
        (&Value::from("a/b"), &address)
    );
}

#[test]
fn interrupt_removes_the_servers_socket() {
    let folder = Folder::new("interrupt");
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Server::start(&folder, &[]);
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(!std::fs::exists(&server.socket).unwrap());
    }
}

#[test]
fn new_server_replaces_the_one_that_runs() {
    let folder = Folder::new("replace");
    let file = folder.file("weights.safetensors");
    weights(&file, &[3; 10]);
    let mut first = Server::start(&folder, &[]);
    assert!(first.ask(&["load", &file, "m", "--backend", "host"]).status.success());
    let mut command = command(&["serve", "--replace", "--backend", "host", "--socket", &first.socket]);
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let mut second = Server { child, socket: first.socket.clone() };
    let found = second.until(|_| true);
    assert_eq!(found["regions"][0]["name"], "m");
    assert_eq!(found["server"]["process"], second.child.id());
    second.signal(Signal::TERM);
    assert_eq!(second.child.wait().unwrap().code(), Some(0));
    assert!(!std::fs::exists(&second.socket).unwrap());
}

#[test]
fn watch_shows_changes() {
    let folder = Folder::new("watch");
    let file = folder.file("weights.safetensors");
    weights(&file, &[1; 10]);
    let server = Server::start(&folder, &[]);
    let mut watch = command(&["serve", "watch", "--every", "1s", "--socket", &server.socket]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().contains("0 B held"));
    assert!(server.ask(&["load", &file, "m", "--backend", "host"]).status.success());
    assert!(lines.any(|line| line.unwrap().contains("2 MiB held")));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// Runs the server with a socket as descriptor 3, as systemd does.
#[test]
fn service_manager_passes_the_socket() {
    let folder = Folder::new("systemd");
    let (path, notices) = (folder.file("passed"), folder.file("notices"));
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path.as_str()).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    let told = UnixDatagram::bind(&notices).unwrap();
    told.set_read_timeout(Some(WAIT)).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" serve --backend host", env!("CARGO_BIN_EXE_gpu-vmm")]);
    command.env("LISTEN_FDS", "1").env("NOTIFY_SOCKET", &notices).stderr(Stdio::null());
    let number = socket.as_raw_fd();
    // SAFETY: a child may make both calls between fork and exec, and they change the child's descriptors alone.
    unsafe {
        command.pre_exec(move || match libc::dup2(number, 3) {
            // If it has that number already, it would be closed.
            3 if libc::fcntl(3, libc::F_SETFD, 0) == 0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let child = command.spawn().unwrap();
    let mut server = Server { child, socket: path };
    let next = || {
        let mut bytes = [0; 64];
        let count = told.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1");
    server.until(|found| found["regions"].as_array().unwrap().is_empty());
    server.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    // The socket is the service manager's.
    assert!(std::fs::exists(&server.socket).unwrap());
}

#[test]
fn programs_are_listed_with_their_limits() {
    use gpu_vmm::pool::Pool;
    use gpu_vmm::serve::{Client, QuotaOptions};
    use gpu_vmm::{AnyBackend, Bytes, Vendor};
    let folder = Folder::new("programs");
    let limits =
        ["--budget", "64MiB", "--program-limit", "48MiB", "--user-limit", "56MiB", "--answer-within", "5s"];
    let server = Server::start(&folder, &limits);
    let host = AnyBackend::open(Vendor::Host).unwrap();
    let pool = Pool::builder(&host).page(Bytes::mib(2)).build().unwrap();
    let mut options = QuotaOptions::default();
    options.name = "trainer\u{1}".to_owned();
    assert!(Client::connect(&host, &server.socket).unwrap().connect_pool(&pool, options.clone()).is_err());
    (options.name, options.priority) = ("trainer".to_owned(), 1);
    let quota = Client::connect(&host, &server.socket).unwrap().connect_pool(&pool, options).unwrap();
    let block = pool.tagged("kv").unwrap().alloc(Bytes::mib(40)).unwrap();
    quota.let_sleep("kv").unwrap();
    let found = server.until(|found| found["programs"][0]["report"]["can_sleep"] == 40 << 20);
    let (program, device) = (&found["programs"][0], &found["devices"][0]);
    assert_eq!((program["name"].as_str(), program["priority"].as_i64()), (Some("trainer"), Some(1)));
    assert_eq!(
        (device["budget"].as_u64(), device["granted"].as_u64()),
        (Some(64 << 20), program["granted"].as_u64())
    );
    let text = stdout(&server.ask(&["status"]));
    assert!(
        ["trainer", "64 MiB", "of programs", "can give", "40 MiB"].iter().all(|word| text.contains(word)),
        "{text}"
    );
    let metrics = stdout(&server.ask(&["status", "--prometheus"]));
    assert!(metrics.contains("gpu_vmm_serve_program_live_bytes{program=\"trainer\""), "{metrics}");
    assert!(metrics.contains(" 41943040"), "{metrics}");
    assert!(pool.alloc(Bytes::mib(50)).unwrap_err().to_string().contains("limit"));
    drop((block, pool, quota));
    server.until(|found| found["programs"].as_array().is_some_and(Vec::is_empty));
}
