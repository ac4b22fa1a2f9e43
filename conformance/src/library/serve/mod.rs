//! Memory that a server keeps, in processes that come and go.

mod programs;
mod regions;

use crate::case::Case;
use crate::fork_server::Child;
use crate::peer::Peer;
use crate::subject::Subject;
use gpu_vmm_core::Bytes;
use gpu_vmm_serve::{Client, Server, ServerOptions};
use gpu_vmm_share::Listener;
use gpu_vmm_testkit::TestKit;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The cases of this group.
pub(crate) fn cases<B: TestKit>() -> Vec<Case<B>> {
    [regions::cases(), programs::cases()].concat()
}

const SEED: u64 = 700;
const WAIT: Duration = Duration::from_secs(60);
const NAME: &str = "weights";

/// What another process does.
#[derive(Serialize, Deserialize)]
enum Role {
    /// Keeps memory until it is killed or replaced.
    Server,
    /// Takes over from the server.
    NextServer,
    /// Creates the region, and is killed.
    Creator,
    /// Replaces the contents when the region has a reader.
    Writer,
    /// Divides this much memory among programs.
    BudgetServer(u64),
    /// Has a block of this size, which sleeps and wakes.
    Sleeper(u64),
}

fn start<B: TestKit>(subject: &Subject<B>, role: Role, path: &Path) -> Child {
    let mut child = subject.child();
    child.send((role, path));
    child.receive::<()>();
    child
}

fn takes_part<B: TestKit>(subject: &Subject<B>, peer: &Peer) {
    let (role, path): (Role, PathBuf) = peer.receive();
    let backend = subject.backend.clone();
    match role {
        Role::Server => {
            run(Server::new(backend, Listener::bind(&path).unwrap(), ServerOptions::default()), peer)
        }
        Role::BudgetServer(budget) => {
            let mut options = ServerOptions::default();
            options.budget = Some(Bytes(budget));
            run(Server::new(backend, Listener::bind(&path).unwrap(), options), peer)
        }
        Role::Sleeper(size) => programs::sleeper(subject, &path, Bytes(size), peer),
        Role::NextServer => run(Server::take_over(backend, &path, ServerOptions::default()).unwrap(), peer),
        Role::Creator => regions::creator(subject, &path, peer),
        Role::Writer => regions::writer(subject, &path, peer),
    }
}

fn run<B: TestKit>(mut server: Server<B>, peer: &Peer) {
    peer.send(());
    while !server.is_over() {
        server.step(WAIT).unwrap();
    }
}

fn connect<B: TestKit>(subject: &Subject<B>, path: &Path) -> Client<B> {
    Client::connect(&subject.backend, path).unwrap()
}

/// Ends the server, and the memory with it.
fn end(server: Child) {
    server.kill();
    server.finish_by(libc::SIGKILL);
}
