//! `cargo bench --bench pairs -- ARGUMENTS` runs `gpu-vmm bench ARGUMENTS`, built with the bench profile.

use std::process::{Command, exit};

fn main() {
    // Cargo adds an argument of its own.
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--bench");
    let ran = Command::new(env!("CARGO_BIN_EXE_gpu-vmm")).arg("bench").args(arguments).status();
    match ran {
        Ok(status) => exit(status.code().unwrap_or(1)), // a signal has no code
        Err(error) => {
            eprintln!("cannot run gpu-vmm: {error}");
            exit(1);
        }
    }
}
