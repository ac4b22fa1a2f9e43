//! Keeps host memory at a path for other processes: `cargo run -p gpu-vmm-serve --example server -- PATH [BUDGET]`.
//!
//! The tests of the C library and of the Python package start it. Programs use the command `gpu-vmm serve`, which has the drivers of all
//! vendors.

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use gpu_vmm_host::HostConfig;
    use gpu_vmm_serve::{Server, ServerOptions};
    use gpu_vmm_share::Listener;
    use std::time::Duration;

    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: server PATH [BUDGET]")?;
    let mut options = ServerOptions::default();
    options.budget = arguments.next().map(|budget| budget.parse()).transpose()?;
    let mut server = Server::new(HostConfig::new().open()?, Listener::replace_stale(path)?, options);
    loop {
        server.step(Duration::from_secs(60))?;
    }
}
