//! What leases cost on this machine, on host memory: opening a region and committing an epoch, by the number of parts in its layout,
//! and the memory of the server.
//!
//!     cargo run --release -p gpu-vmm-serve --example costs
#![allow(clippy::unwrap_used)] // a program for the terminal

use gpu_vmm_core::dlpack::{DLDataType, TensorView};
use gpu_vmm_core::{Bytes, Result, WaitFor};
use gpu_vmm_host::HostBackend;
use gpu_vmm_serve::{Client, CreateOptions, Layout, RenewContents, Server, ServerOptions};
use gpu_vmm_share::Listener;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 200;
const SIZE: Bytes = Bytes::mib(512);

fn main() -> Result<()> {
    if let Some(path) = std::env::args().nth(1) {
        return serve(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut server = Command::new(std::env::current_exe().unwrap()).arg(&path).spawn().unwrap();
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let measured = measure(&path, &server);
    server.kill().unwrap();
    server.wait().unwrap();
    measured
}

fn serve(path: &Path) -> Result<()> {
    let mut server = Server::new(HostBackend::open()?, Listener::bind(path)?, ServerOptions::default());
    loop {
        server.step(Duration::from_secs(60))?;
    }
}

fn measure(path: &Path, server: &Child) -> Result<()> {
    let client = Client::connect(&HostBackend::open()?, path)?;
    println!("server: {} of memory without regions", resident(server.id()));
    for parts in [1_i64, 100, 10_000] {
        let mut layout = Layout::default();
        for part in 0..parts {
            let offset = Bytes(part as u64 * 4096);
            layout
                .parts
                .insert(format!("layers.{part}.weight"), TensorView::new(offset, DLDataType::F32, [32, 32]));
        }
        let mut lease = client.create("costs", SIZE, &CreateOptions::default())?;
        lease.commit(Some(&layout))?;
        let (mut renewed, mut committed) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            lease.renew(Bytes::ZERO, SIZE, RenewContents::Undefined, WaitFor::all_devices())?;
            renewed.push(begin.elapsed());
            let begin = Instant::now();
            lease.commit(Some(&layout))?;
            committed.push(begin.elapsed());
        }
        drop(lease);
        let mut opened = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let lease = client.read("costs", Duration::from_secs(10))?;
            opened.push(begin.elapsed());
            lease.close(WaitFor::all_devices())?;
        }
        let [opened, renewed, committed] = [opened, renewed, committed].map(median);
        println!("{parts:>6} parts: open {opened:?}, renew {renewed:?}, commit {committed:?}");
        client.drop_region("costs")?;
    }
    println!("server: {} of memory afterwards", resident(server.id()));
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the memory that a process has to itself.
fn resident(process: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let sum: u64 = text
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    format!("{:#}", Bytes::kib(sum))
}
