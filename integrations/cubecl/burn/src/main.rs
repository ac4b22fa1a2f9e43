//! Trains and runs models of burn on CUDA or HIP, with device memory from cubecl's own pools or from a pool of gpu-vmm.
//!
//! `README.md` says how to build and run it.

mod arguments;
mod conv;
mod data;
mod generate;
mod growing;
mod memory;
mod report;
mod storage;
mod train;
mod transformer;

use arguments::{Arguments, Task, USAGE};
use memory::Setup;
use std::error::Error;
use std::process::ExitCode;

/// The exit code when a step failed, as it does when no memory is left.
const FAILED: u8 = 3;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return Ok(ExitCode::from(2));
        }
    };
    println!("{arguments:?}");
    let setup = Setup::new(&arguments)?;
    let finished = match arguments.task {
        Task::Generate => generate::generate(&arguments, &setup)?,
        Task::TrainTransformer | Task::TrainConv => train::train(&arguments, &setup)?,
    };
    // Ends at once: cubecl's server has a thread of its own, and the driver releases the memory.
    Ok(if finished { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
