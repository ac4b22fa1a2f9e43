//! A stack of bodies of blocks, each of which points to the one below it.
//!
//! Taking a body touches the stack's top, which is in its thread cache, and the body, which has a cache line of its own. A
//! separate list of pointers would share cache lines with the lists of other thread caches.

use super::body::{Body, Ready};
use gpu_vmm_core::Backend;

/// A stack of bodies. The newest is taken first: its memory and its cache lines are the warmest.
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

    /// Keeps the newest `len` bodies, and returns the others.
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

    /// Takes all bodies out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Ready<B>> {
        std::iter::from_fn(|| self.pop())
    }

    /// Returns the bodies, the newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Body<B>> {
        std::iter::successors(self.top.as_deref(), |body| body.below.as_deref())
    }
}

impl<B: Backend> Drop for Stack<B> {
    /// Drops one body after the other: a recursive drop would be as deep as the stack is high.
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}
