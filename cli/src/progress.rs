//! The progress bar. It is on standard error, so that results can be piped elsewhere.

use gpu_vmm::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// The contents of a bar for terminals of different widths. A line that is too wide would be broken, and its first part
/// would stay above the next one.
struct Templates {
    /// For at least [`WIDE`] columns.
    wide: &'static str,
    /// For at least [`MEDIUM`] columns.
    medium: &'static str,
    narrow: &'static str,
}

const WIDE: usize = 96;
const MEDIUM: usize = 60;

const BYTES: Templates = Templates {
    wide: "{msg:24} [{bar:40}] {binary_bytes}/{binary_total_bytes} {elapsed}",
    medium: "{msg} [{wide_bar}] {percent:>3}% {elapsed}",
    narrow: "{percent:>3}% {wide_msg}",
};
const CASES: Templates = Templates {
    wide: "{prefix} [{bar:30}] {pos}/{len} {elapsed} {wide_msg}",
    medium: "{prefix} {pos}/{len} {elapsed} {wide_msg}",
    narrow: "{pos}/{len} {wide_msg}",
};
const EVENTS: Templates = Templates {
    wide: "{msg:24} [{bar:40}] {percent}% {elapsed}",
    medium: "{msg} [{wide_bar}] {percent:>3}% {elapsed}",
    narrow: "{percent:>3}% {wide_msg}",
};

impl Templates {
    fn fitting(&self, columns: usize) -> &'static str {
        match columns {
            WIDE.. => self.wide,
            MEDIUM.. => self.medium,
            _ => self.narrow,
        }
    }
}

/// The interval at which the elapsed time is updated.
const TICK: Duration = Duration::from_millis(250);

/// One bar for each phase. Nothing is drawn if standard error is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    wanted: bool,
}

impl Progress {
    /// Returns a progress bar that stays hidden unless it is wanted.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { bar: ProgressBar::hidden(), wanted }
    }

    /// Begins a phase with its total of bytes.
    pub(crate) fn begin(&mut self, phase: &'static str, total: Bytes) {
        if self.wanted {
            self.put(&BYTES, total.0);
            self.bar.set_message(phase);
        }
    }

    /// Begins the conformance cases of a target.
    pub(crate) fn begin_cases(&mut self, target: &str, total: usize) {
        if self.wanted {
            self.put(&CASES, total as u64);
            self.bar.set_prefix(target.to_owned());
            self.bar.enable_steady_tick(TICK);
        }
    }

    /// Begins the benchmark pairs of a backend. The bar does not move while a pair is measured.
    pub(crate) fn begin_pairs(&mut self, backend: &str, total: usize) {
        if self.wanted {
            self.put(&CASES, total as u64);
            self.bar.set_prefix(backend.to_owned());
        }
    }

    /// Shows the pair that is measured now, and the number of pairs that are done.
    pub(crate) fn pair(&self, name: &'static str, done: usize) {
        self.bar.set_message(name);
        self.bar.set_position(done as u64);
    }

    /// Begins rounds with this number of events each.
    pub(crate) fn begin_rounds(&mut self, events: u64) {
        if self.wanted {
            self.put(&EVENTS, events);
        }
    }

    /// Shows the number of events of a round that are done. The bar does not move in between, so that it does not
    /// disturb the round.
    pub(crate) fn round(&self, name: String, done: u64) {
        self.bar.set_message(name);
        self.bar.set_position(done);
    }

    fn put(&mut self, templates: &Templates, total: u64) {
        self.bar.finish_and_clear();
        let columns = terminal_size::terminal_size_of(std::io::stderr());
        let template = templates.fitting(columns.map_or(WIDE, |(width, _)| width.0.into()));
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
            .with_style(style.progress_chars("=> "));
    }

    /// Advances the bar by a number of bytes.
    pub(crate) fn advance(&self, done: Bytes) {
        self.bar.inc(done.0);
    }

    /// Shows the case that runs now.
    pub(crate) fn case(&self, name: &'static str) {
        self.bar.set_message(name);
    }

    /// Advances the bar by one case.
    pub(crate) fn case_ended(&self) {
        self.bar.inc(1);
    }

    /// Runs an action, such as writing a line, while the bar is hidden.
    pub(crate) fn aside<T>(&self, action: impl FnOnce() -> T) -> T {
        self.bar.suspend(action)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_as_wide_as_terminal() {
        for templates in [&BYTES, &CASES, &EVENTS] {
            let of = |columns| templates.fitting(columns);
            assert_eq!([96, 300].map(of), [templates.wide; 2]);
            assert_eq!([60, 95].map(of), [templates.medium; 2]);
            assert_eq!([0, 59].map(of), [templates.narrow; 2]);
            for columns in [96, 60, 0] {
                assert!(ProgressStyle::with_template(of(columns)).is_ok(), "{}", of(columns));
            }
        }
    }

    #[test]
    fn bar_has_name_total_and_progress() {
        let mut progress = Progress::new(true);
        let shown = |Progress { bar, .. }: &Progress| (bar.message(), bar.length(), bar.position());
        let state = |name: &str, total, done| (name.to_owned(), Some(total), done);
        progress.begin("checking", Bytes(100));
        [30, 20].map(Bytes).into_iter().for_each(|done| progress.advance(done));
        assert_eq!(shown(&progress), state("checking", 100, 50));
        progress.begin_cases("host", 7);
        progress.case("map::twice");
        progress.case_ended();
        assert_eq!((shown(&progress), progress.bar.prefix().as_str()), (state("map::twice", 7, 1), "host"));
        progress.begin_pairs("hip", 3);
        progress.pair("calls", 2);
        assert_eq!((shown(&progress), progress.bar.prefix().as_str()), (state("calls", 3, 2), "hip"));
        progress.begin_rounds(40);
        progress.round("round 1 of 2".to_owned(), 10);
        assert_eq!(shown(&progress), state("round 1 of 2", 40, 10));
        let mut unwanted = Progress::new(false);
        unwanted.begin("checking", Bytes(100));
        assert_eq!(unwanted.bar.length(), None, "there is none");
    }
}
