//! Schedules by their seeds.

use crate::Scenario;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::env;
use std::time::{Duration, Instant, SystemTime};

/// The default number of schedules.
const SCHEDULES: u64 = 300;

/// How often a thread loses its priority in the schedules that use priorities.
const CHANGES: usize = 3;

/// Runs a scenario under many schedules, each with its own seed, and prints their number. A failed schedule ends the program,
/// and its seed is printed.
///
/// | variable | meaning |
/// |---|---|
/// | `GPU_VMM_SEED` | runs only the schedule of this seed |
/// | `GPU_VMM_FIRST_SEED` | the first seed; the current time by default |
/// | `GPU_VMM_SCHEDULES` | the number of schedules |
/// | `GPU_VMM_SECONDS` | runs schedules for this time, whatever their number |
pub fn run(name: &str, scenario: Scenario) {
    if let Some(seed) = number("GPU_VMM_SEED") {
        play(name, scenario, seed);
        return println!("{name}: seed {seed} has passed");
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = number("GPU_VMM_FIRST_SEED").unwrap_or_else(|| now.map_or(0, |now| now.as_millis() as u64));
    let (schedules, seconds) = (number("GPU_VMM_SCHEDULES").unwrap_or(SCHEDULES), number("GPU_VMM_SECONDS"));
    let begun = Instant::now();
    let mut count = 0;
    while seconds.map_or(count < schedules, |seconds| begun.elapsed() < Duration::from_secs(seconds)) {
        play(name, scenario, first.wrapping_add(count));
        count += 1;
    }
    println!("{name}: {count} schedules from seed {first} on, in {:.1} s", begun.elapsed().as_secs_f64());
}

/// Returns the number in a variable.
fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

fn play(name: &str, scenario: Scenario, seed: u64) {
    let told = std::panic::take_hook();
    let name = name.to_owned();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("{panic}\nto replay it: GPU_VMM_SEED={seed} cargo test-all schedules {name}");
        // Unwinding would wait for threads that never continue.
        std::process::exit(101);
    }));
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    // Every other schedule gives threads priorities that change a few times. This finds bugs that need few interruptions.
    let scheduler: Box<dyn Scheduler + Send> = match seed % 2 {
        0 => Box::new(RandomScheduler::new_from_seed(seed, 1)),
        _ => Box::new(PctScheduler::new_from_seed(seed, CHANGES, 1)),
    };
    Runner::new(scheduler, config).run(move || scenario.play());
    std::panic::set_hook(told);
}
