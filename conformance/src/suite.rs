//! The whole suite: the cases, the backends they run on, and how one item runs.

use crate::case::Case;
use crate::driver::Rule;
use crate::fork_server::ForkServer;
use crate::outcome::{Outcome, Verdict};
use crate::subject::{Subject, take_note};
use crate::target::Target;
use crate::{leaks, library, panics, refusals};
use gpu_vmm_core::DeviceId;
use gpu_vmm_testkit::TestKit;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The layer that a case checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// What gpu-vmm guarantees through its public API. It must hold on every backend.
    Library,
    /// What the driver does with raw calls, right and wrong, compared with its documentation.
    Driver,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Library => "library",
            Self::Driver => "driver",
        })
    }
}

/// One case or rule that the suite can run.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The position in the suite.
    pub index: usize,
    /// The layer that the item checks.
    pub layer: Layer,
    /// The group and the case, such as `grow::within`.
    pub name: &'static str,
    /// The rule in one sentence.
    pub about: &'static str,
    /// True if [`Suite::run_here`] must not run the item: a case that needs a process of its own, or a rule of the driver
    /// layer. Rules share a process until one of them crashes it.
    pub isolated: bool,
}

/// All cases, and the backends they can run on.
#[derive(Debug)]
pub struct Suite<B: TestKit> {
    pub(crate) content: Arc<Content<B>>,
    pub(crate) server: Arc<ForkServer>,
}

impl<B: TestKit> Clone for Suite<B> {
    fn clone(&self) -> Self {
        Self { content: Arc::clone(&self.content), server: Arc::clone(&self.server) }
    }
}

/// The content that every process of the suite has.
#[derive(Debug)]
pub(crate) struct Content<B: TestKit> {
    pub(crate) targets: Vec<Arc<dyn Target<B>>>,
    pub(crate) cases: Vec<Case<B>>,
    pub(crate) rules: Vec<Rule>,
}

impl<B: TestKit> Content<B> {
    /// Returns the rule with this item index, or `None` if the item is a case.
    pub(crate) fn rule(&self, index: usize) -> Option<&Rule> {
        self.rules.get(index.checked_sub(self.cases.len())?)
    }

    pub(crate) fn target(&self, name: &str) -> Option<&Arc<dyn Target<B>>> {
        self.targets.iter().find(|target| target.name() == name)
    }
}

impl<B: TestKit> Suite<B> {
    /// Returns the targets of the suite.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<dyn Target<B>>> {
        self.content.targets.iter()
    }

    /// Returns all items, first the items of the library layer.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let library =
            self.content.cases.iter().map(|case| (Layer::Library, case.name, case.about, case.isolated));
        let driver = self.content.rules.iter().map(|rule| (Layer::Driver, rule.name, rule.about, true));
        let all = library.chain(driver).enumerate();
        all.map(|(index, (layer, name, about, isolated))| Item { index, layer, name, about, isolated })
            .collect()
    }

    /// Runs one case of the library layer in this process, on an open backend.
    pub(crate) fn run_case(
        &self,
        target: &Arc<dyn Target<B>>,
        backend: &B,
        device: DeviceId,
        case: &Case<B>,
    ) -> Outcome {
        if let Some(reason) = library::unsuited(backend, device, case.name) {
            return Outcome::new(Verdict::Skipped, reason);
        }
        let subject = |backend: B| Subject {
            backend,
            device,
            target: Arc::clone(target),
            case: case.name,
            server: Some(Arc::clone(&self.server)),
            brief: false,
        };
        let opened = if target.is_fresh() { target.open() } else { Ok(backend.clone()) };
        let outcome = match opened {
            Ok(opened) => run_counted(subject(opened), case),
            Err(reason) => Outcome::failed(format!("no fresh backend: {reason}")),
        };
        refusals::or_skipped(outcome, &**target, backend, device)
    }

    /// Runs one item in this process.
    ///
    /// Run an [isolated](Item::isolated) item with [`Suite::run`] instead.
    #[must_use]
    pub fn run_here(
        &self,
        target: &Arc<dyn Target<B>>,
        backend: &B,
        device: DeviceId,
        item: &Item,
    ) -> Outcome {
        match self.content.cases.get(item.index) {
            Some(case) => self.run_case(target, backend, device, case),
            None => Outcome::failed("the driver layer runs in processes of its own"),
        }
    }
}

/// Runs a case, and checks what it has left behind.
fn run_counted<B: TestKit>(mut subject: Subject<B>, case: &Case<B>) -> Outcome {
    if case.timed {
        // A driver takes memory at first use. Without this the whole run, as long as its user says, would be repeated for it.
        subject.brief = true;
        let outcome = run_once(&subject, case);
        if outcome.verdict == Verdict::Failed {
            return outcome;
        }
        subject.brief = false;
    }
    let mut lost = String::new();
    for _ in 0..leaks::TRIES {
        let (before, below) = (subject.free(), leaks::Before::now());
        let outcome = run_once(&subject, case);
        if outcome.verdict == Verdict::Failed {
            return outcome;
        }
        if let Err(wrong) = below.check_calls() {
            return Outcome::failed(wrong);
        }
        if case.isolated {
            return outcome;
        }
        if let Err(left) = below.check(&subject.backend) {
            return Outcome::failed(left);
        }
        if let Some(error) = subject.backend.drop_log().take_last() {
            return Outcome::failed(format!("a destructor failed: {error}"));
        }
        let after = leaks::free_again(&subject, &before);
        if before == after {
            return outcome;
        }
        lost = format!("free memory was {before:?} before the case and is {after:?} after it");
    }
    Outcome::failed(format!("{lost}, each of {} times", leaks::TRIES))
}

fn run_once<B: TestKit>(subject: &Subject<B>, case: &Case<B>) -> Outcome {
    drop(take_note());
    match catch_unwind(AssertUnwindSafe(|| (case.run)(subject))) {
        Ok(()) => Outcome::new(Verdict::Passed, take_note()),
        Err(panic) => panics::ended_by(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::note;
    use gpu_vmm_core::{Backend, Bytes, PhysicalMemory, Properties};
    use gpu_vmm_host::{HostBackend, HostConfig};

    #[derive(Debug)]
    struct Host;

    impl Target<HostBackend> for Host {
        fn name(&self) -> &str {
            "host"
        }

        fn open(&self) -> Result<HostBackend, String> {
            HostConfig::new().memory(Bytes::mib(64)).open().map_err(|error| error.to_string())
        }

        fn is_fresh(&self) -> bool {
            true
        }

        fn foreign(&self) -> Option<HostBackend> {
            None
        }
    }

    /// Leaves memory behind, as a driver does at first use.
    fn leak(subject: &Subject<HostBackend>) {
        let size = subject.backend.granularity().bytes();
        std::mem::forget(
            PhysicalMemory::create(&subject.backend, size, Properties::on(subject.device)).unwrap(),
        );
    }

    fn run(timed: bool, case: fn(&Subject<HostBackend>)) -> Outcome {
        let backend = Host.open().unwrap();
        let subject = Subject {
            backend,
            device: DeviceId(0),
            target: Arc::new(Host),
            case: "leaks",
            server: None,
            brief: false,
        };
        let case = Case { name: "leaks", about: "", isolated: false, timed, run: case, child: None };
        run_counted(subject, &case)
    }

    #[test]
    fn timed_case_runs_briefly_before() {
        let outcome = run(true, |subject| {
            if subject.brief {
                leak(subject);
            }
            note(format!("brief: {}", subject.brief));
        });
        assert_eq!((outcome.verdict, outcome.note.as_str()), (Verdict::Passed, "brief: false"));
    }

    #[test]
    fn case_that_always_leaks_fails() {
        for timed in [false, true] {
            let outcome = run(timed, |subject| {
                if !subject.brief {
                    leak(subject);
                }
            });
            assert_eq!(outcome.verdict, Verdict::Failed);
            assert!(outcome.note.ends_with("each of 3 times"), "{}", outcome.note);
        }
    }
}
