//! The conformance suite on the backend of the guide. An argument chooses the cases whose names contain it.

use gpu_vmm::DeviceId;
use gpu_vmm_conformance::{Event, Layer, Suite, Target, Verdict};
use gpu_vmm_porting::Tiny;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Debug)]
struct TinyTarget;

impl Target<Tiny> for TinyTarget {
    fn name(&self) -> &str {
        "tiny"
    }

    fn open(&self) -> Result<Tiny, String> {
        Ok(Tiny::open())
    }

    fn is_fresh(&self) -> bool {
        true
    }

    fn foreign(&self) -> Option<Tiny> {
        Some(Tiny::open())
    }
}

fn main() -> ExitCode {
    // SAFETY: nothing has run before this: there is one thread, and no driver is open.
    let suite = unsafe { Suite::start(vec![Arc::new(TinyTarget)]) }.expect("a process to fork from");
    let filter = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for target in suite.targets() {
        let items: Vec<_> = suite.items().into_iter().filter(|item| item.name.contains(&filter)).collect();
        let ran = suite.run(target, DeviceId(0), &items, None, &mut |event| {
            let Event::Ended(item, outcome, _) = event else { return };
            let count = match outcome.verdict {
                Verdict::Failed => &mut failed,
                Verdict::Skipped => &mut ignored,
                _ if outcome.is_new_deviation() => &mut failed,
                _ => &mut passed,
            };
            *count += 1;
            let layer = if item.layer == Layer::Driver { "driver::" } else { "" };
            println!("{layer}{}: {} {}", item.name, outcome.verdict, outcome.note);
        });
        if let Err(reason) = ran {
            println!("{}: {reason}", target.name());
            failed += 1;
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
