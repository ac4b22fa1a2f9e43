//! Schedules by their seeds.

use crate::Scenario;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use std::env;
use std::time::{Duration, Instant, SystemTime};

/// How many schedules are played where nothing is said.
const SCHEDULES: u64 = 300;

/// How often a thread loses its priority in the schedules that are made of priorities.
const CHANGES: usize = 3;

/// Plays a scenario under many schedules, each with a seed of its own, and prints how many. One that fails ends the program
/// and is told with its seed.
///
/// | variable | meaning |
/// |---|---|
/// | `GPU_VMM_SEED` | plays the schedule of this seed alone |
/// | `GPU_VMM_FIRST_SEED` | the first seed; the time where nothing is said |
/// | `GPU_VMM_SCHEDULES` | how many schedules are played |
/// | `GPU_VMM_SECONDS` | how long they are played, however many that is |
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

/// The number that a variable has.
fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

fn play(name: &str, scenario: Scenario, seed: u64) {
    let told = std::panic::take_hook();
    let name = name.to_owned();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("{panic}\nto replay it: GPU_VMM_SEED={seed} cargo test-all schedules {name}");
        // Unwinding would wait for threads that never go on.
        std::process::exit(101);
    }));
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.failure_persistence = FailurePersistence::None;
    // Every other schedule gives threads priorities that change a few times, which finds what takes few interruptions.
    let scheduler: Box<dyn Scheduler + Send> = match seed % 2 {
        0 => Box::new(RandomScheduler::new_from_seed(seed, 1)),
        _ => Box::new(PctScheduler::new_from_seed(seed, CHANGES, 1)),
    };
    Runner::new(scheduler, config).run(move || scenario.play());
    std::panic::set_hook(told);
}
