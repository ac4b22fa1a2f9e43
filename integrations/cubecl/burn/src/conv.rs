//! A small convolutional network that classifies images.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{GroupNorm, GroupNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor};

/// The number of classes.
pub const CLASSES: usize = 10;

/// A convolutional network.
#[derive(Module, Debug)]
pub struct Network {
    first: Conv2d,
    stages: Vec<Stage>,
    pool: AdaptiveAvgPool2d,
    output: Linear,
}

/// Two convolutions whose result is added to the input. The last one of a network halves the image's sides.
#[derive(Module, Debug)]
pub struct Stage {
    norms: [GroupNorm; 2],
    convolutions: [Conv2d; 2],
    half: Conv2d,
}

impl Network {
    /// Creates a network with random weights, with `channels` in the first stage, and twice as many in each later one.
    pub fn new(channels: usize, stages: usize, device: &Device) -> Self {
        let conv = |from, to, side, stride| {
            let padding = PaddingConfig2d::Explicit(side / 2, side / 2, side / 2, side / 2);
            let config = Conv2dConfig::new([from, to], [side, side]).with_stride([stride, stride]);
            config.with_padding(padding).init(device)
        };
        let stage = |index: usize| {
            let width = channels << index;
            let norm = || GroupNormConfig::new(8, width).init(device);
            Stage {
                norms: [norm(), norm()],
                convolutions: [conv(width, width, 3, 1), conv(width, width, 3, 1)],
                half: conv(width, 2 * width, 3, 2),
            }
        };
        Self {
            first: conv(3, channels, 3, 1),
            stages: (0..stages).map(stage).collect(),
            pool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            output: LinearConfig::new(channels << stages, CLASSES).init(device),
        }
    }

    /// Returns the loss for images of shape `[batch, 3, height, width]`.
    pub fn loss(&self, images: Tensor<4>, classes: Tensor<1, Int>) -> Tensor<1> {
        let device = images.device();
        let mut x = self.first.forward(images);
        for Stage { norms, convolutions, half } in &self.stages {
            let mut y = x.clone();
            for (norm, convolution) in norms.iter().zip(convolutions) {
                y = convolution.forward(relu(norm.forward(y)));
            }
            x = half.forward(x + y);
        }
        let logits = self.output.forward(self.pool.forward(x).flatten::<2>(1, 3));
        CrossEntropyLossConfig::new().init(&device).forward(logits, classes)
    }
}
