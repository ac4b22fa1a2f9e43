//! Bodies of blocks on top of each other, each of which knows the one below it.
//!
//! So there is no list beside them: what a thread touches to take one is the stack's top, which is in its thread cache, and the body,
//! which has a cache line of its own. A list of a few pointers would share its line with another thread cache's.

use super::body::{Body, Ready};
use gpu_vmm_core::Backend;

/// The newest is taken first: its memory and its lines are the warmest.
#[derive(Debug)]
pub(crate) struct Stack<B: Backend> {
    top: Option<Ready<B>>,
    len: usize,
}

impl<B: Backend> Stack<B> {
    pub(crate) const fn new() -> Self {
        Self { top: None, len: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn push(&mut self, mut ready: Ready<B>) {
        ready.below = self.top.take();
        self.top = Some(ready);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Ready<B>> {
        let mut ready = self.top.take()?;
        self.top = ready.below.take();
        self.len -= 1;
        Some(ready)
    }

    /// Keeps the newest `len`, and gives the others.
    pub(crate) fn split_off_old(&mut self, len: usize) -> Self {
        let mut kept = Self::new();
        while kept.len < len
            && let Some(ready) = self.pop()
        {
            kept.push(ready);
        }
        let old = std::mem::replace(self, Self::new());
        while let Some(ready) = kept.pop() {
            self.push(ready);
        }
        old
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Ready<B>> {
        std::iter::from_fn(|| self.pop())
    }

    /// From the newest on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Body<B>> {
        std::iter::successors(self.top.as_deref(), |body| body.below.as_deref())
    }
}

impl<B: Backend> Drop for Stack<B> {
    /// One after the other: each would drop the one below it, and so on, as deep as the stack is high.
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}
