//! The bar on a terminal. It is on standard error, so that results can be piped away while it runs.

use gpu_vmm::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{msg:24} [{bar:40}] {binary_bytes}/{binary_total_bytes} {elapsed}";

/// One bar after the other, one for each phase. Nothing is drawn where standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    wanted: bool,
}

impl Progress {
    /// Bars, or none where they are not wanted.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { bar: ProgressBar::hidden(), wanted }
    }

    /// What is done now, and how many bytes it is for.
    pub(crate) fn begin(&mut self, phase: &'static str, total: Bytes) {
        if !self.wanted {
            return;
        }
        self.bar.finish_and_clear();
        let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::with_draw_target(Some(total.0), ProgressDrawTarget::stderr())
            .with_style(style.progress_chars("=> "))
            .with_message(phase);
    }

    /// So many more bytes are done.
    pub(crate) fn advance(&self, done: Bytes) {
        self.bar.inc(done.0);
    }

    /// Does something, such as writing a line, with the bar out of the way.
    pub(crate) fn aside<T>(&self, action: impl FnOnce() -> T) -> T {
        self.bar.suspend(action)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
