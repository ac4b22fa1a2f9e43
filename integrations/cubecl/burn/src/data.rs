//! Random inputs, the same in every run. Their sizes change from step to step.

use crate::conv::CLASSES;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

/// Random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// Returns a batch whose count and size change: sizes are `unit` to `most * unit`, and `count * area(size)` is at most `all`.
    pub fn shape(
        &mut self,
        (unit, most): (usize, usize),
        all: usize,
        area: impl Fn(usize) -> usize,
    ) -> [usize; 2] {
        let size = unit * (1 + self.below(most));
        let count = (all / area(size)).max(2);
        [count / 2 + 1 + self.below(count / 2), size]
    }

    /// Returns sequences of tokens and the token after each. A token follows from the one before, so a model can learn it.
    pub fn sequences(
        &mut self,
        [batch, length]: [usize; 2],
        tokens: usize,
        device: &Device,
    ) -> (Tensor<2, Int>, Tensor<2, Int>) {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..batch {
            let mut token = self.below(tokens);
            for _ in 0..length {
                inputs.push(token as i32);
                token = (5 * token + 7) % tokens;
                targets.push(token as i32);
            }
        }
        let tensor = |values| Tensor::from_data(TensorData::new(values, [batch, length]), device);
        (tensor(inputs), tensor(targets))
    }

    /// Returns square images and their classes. The image's brightness follows from its class.
    pub fn images(&mut self, [batch, side]: [usize; 2], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let classes: Vec<i32> = (0..batch).map(|_| self.below(CLASSES) as i32).collect();
        let classes = Tensor::<1, Int>::from_data(TensorData::new(classes, [batch]), device);
        let noise = Tensor::<4>::random([batch, 3, side, side], Distribution::Default, device);
        let brightness = classes.clone().float().reshape([batch, 1, 1, 1]) / CLASSES as f32;
        (noise + brightness, classes)
    }
}
