//! Replays recorded allocation traces through cubecl's memory management, with its own pools over a storage that counts bytes and
//! over gpu-vmm's pool, and through gpu-vmm's memory management. Prints the memory held, the time of a reservation, and the number
//! of driver calls. Needs no GPU.
//!
//! `cargo run --release --features cubecl-0-12 --example traces -- [--turns N] FILE...`
//!
//! All memory managements take turns, and the times are the medians of N turns (1 without the option).

use gpu_vmm::{Bytes, DeviceId};
use gpu_vmm_replay::{ReplayError, Trace};
use std::error::Error;

const DEVICE: DeviceId = DeviceId(0);
const MEMORY: Bytes = Bytes::gib(24);
const ALIGNMENT: u64 = 256;

/// The results of a replay.
#[derive(Clone, Copy)]
struct Measured {
    /// The most memory held, divided by the most that was asked for.
    ratio: f64,
    /// The mean time of a reservation in the last round.
    reserve_ns: f64,
    /// The driver calls of the first round, and of the second.
    cold_calls: u64,
    warm_calls: u64,
}

type Replay = fn(&Trace) -> Result<Measured, ReplayError>;

mod cubecl_0_11;
#[cfg(feature = "cubecl-0-12")]
mod cubecl_0_12;

/// The memory managements. The last is the one whose time the others are compared with: cubecl's default, of the newest version.
fn all() -> Vec<(&'static str, Replay)> {
    use cubecl_0_11::managed as released;
    #[cfg(feature = "cubecl-0-12")]
    use cubecl_0_12::managed as newest;
    released::configure();
    #[cfg(feature = "cubecl-0-12")]
    newest::configure();
    vec![
        ("PoolMemory, 0.11", released::pool_memory as Replay),
        #[cfg(feature = "cubecl-0-12")]
        ("PoolMemory, 0.12", newest::pool_memory),
        ("PoolStorage dedicated, 0.11", released::pool_storage),
        #[cfg(feature = "cubecl-0-12")]
        ("PoolStorage dedicated, 0.12", newest::pool_storage),
        ("cubecl 0.11, exclusive pages", released::exclusive),
        #[cfg(feature = "cubecl-0-12")]
        ("cubecl 0.12, exclusive pages", newest::exclusive),
        ("cubecl 0.11, adaptive", released::adaptive),
        #[cfg(feature = "cubecl-0-12")]
        ("cubecl 0.12, adaptive", newest::adaptive),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let turns = match arguments.next_if_eq("--turns") {
        Some(_) => arguments.next().and_then(|turns| turns.parse().ok()).filter(|turns| *turns > 0),
        None => Some(1),
    };
    let turns: usize = turns.ok_or("--turns needs a number above zero")?;
    let all = all();
    println!(
        "| trace | memory management | held / asked | ns for a reservation | of the last | driver calls | warm |"
    );
    println!("|---|---|---|---|---|---|---|");
    for file in arguments {
        let trace = Trace::open(file.as_ref(), None, &|_| {})?;
        let mut results = vec![Vec::new(); all.len()];
        for _ in 0..turns {
            for ((_, replay), results) in all.iter().zip(&mut results) {
                results.push(replay(&trace)?);
            }
        }
        let time = |results: &[Measured]| median(results.iter().map(|one| one.reserve_ns).collect());
        let last = results.last().map_or(0.0, |results| time(results));
        for ((name, _), results) in all.iter().zip(&results) {
            let Measured { ratio, cold_calls, warm_calls, .. } = results[0];
            let ns = time(results);
            println!(
                "| {file} | {name} | {ratio:.3} | {ns:.0} | {:.2} | {cold_calls} | {warm_calls} |",
                ns / last
            );
        }
    }
    Ok(())
}
