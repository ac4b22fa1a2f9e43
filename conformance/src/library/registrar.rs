//! An observer that records its calls, as code would that registers memory with a network card.

use gpu_vmm_core::{
    Address, BackingChange, BackingEffect, BackingObserver, BackingOutcome, OffsetRange, Operation,
};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A copy of a [`BackingChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) operation: Operation,
    pub(crate) effect: BackingEffect,
    pub(crate) address: Address,
    pub(crate) parts: Vec<OffsetRange>,
}

impl Change {
    fn of(change: &BackingChange<'_>) -> Self {
        let BackingChange { operation, effect, address, parts, .. } = *change;
        Self { operation, effect, address, parts: parts.to_vec() }
    }
}

/// The answer of a registrar to the first call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reply {
    #[default]
    Agree,
    Refuse,
    PanicBefore,
    PanicAfter,
}

#[derive(Debug, Default)]
struct Inner {
    /// The calls, each with an outcome if it came after the change.
    calls: Vec<(Change, Option<BackingOutcome>)>,
    reply: Reply,
}

/// Records its calls. Clones share the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registrar(Arc<Mutex<Inner>>);

impl Registrar {
    /// The reason with which it refuses.
    pub(crate) const REASON: &'static str = "a transfer of 17 pages is running";

    pub(crate) fn reply(&self, reply: Reply) {
        self.lock().reply = reply;
    }

    /// Returns the calls since the last time.
    pub(crate) fn calls(&self) -> Vec<(Change, Option<BackingOutcome>)> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Returns the changes since the last time with their outcomes. Fails unless each was announced once, and its outcome was
    /// reported once before the next one.
    #[track_caller]
    pub(crate) fn changes(&self, at: &str) -> Vec<(Change, BackingOutcome)> {
        let calls = self.calls();
        let pairs = calls.chunks(2).map(|pair| match pair {
            [(before, None), (after, Some(outcome))] if before == after => (before.clone(), *outcome),
            other => panic!("{at}: not a call before and a call after: {other:?} in {calls:?}"),
        });
        pairs.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackingObserver for Registrar {
    fn before(&self, change: &BackingChange<'_>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut inner = self.lock();
        inner.calls.push((Change::of(change), None));
        match inner.reply {
            Reply::Refuse => Err(Self::REASON.into()),
            Reply::PanicBefore => std::panic::panic_any(Self::REASON),
            _ => Ok(()),
        }
    }

    fn after(&self, change: &BackingChange<'_>, outcome: BackingOutcome) {
        let mut inner = self.lock();
        inner.calls.push((Change::of(change), Some(outcome)));
        if inner.reply == Reply::PanicAfter {
            std::panic::panic_any(Self::REASON);
        }
    }
}
