//! Trains a model on inputs whose sizes change from step to step.

use crate::arguments::{Arguments, Task};
use crate::conv::Network;
use crate::data::Random;
use crate::memory::Setup;
use crate::report::{Report, attempt};
use crate::transformer::{Shape, Transformer};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use std::error::Error;
use std::time::Instant;

const LEARNING_RATE: f64 = 3e-4;
const SEED: u64 = 25;

/// Trains the model that the arguments name. Returns false if a step failed.
///
/// # Errors
///
/// The driver's error.
pub fn train(arguments: &Arguments, setup: &Setup) -> Result<bool, Box<dyn Error>> {
    let device = setup.device.clone().autodiff();
    device.seed(SEED);
    if arguments.task == Task::TrainConv {
        let (channels, stages, sides, pixels) =
            if arguments.small { (8, 2, (8, 3), 2048) } else { (64, 3, (16, 9), 400_000) };
        let network = Network::new(channels, stages, &device);
        return steps(arguments, setup, network, |network, random| {
            let shape = random.shape(sides, pixels, |side| side * side);
            let (images, classes) = random.images(shape, &device);
            (shape, network.loss(images, classes))
        });
    }
    let (shape, lengths, all) = sizes(arguments.small);
    let tokens = shape.tokens;
    steps(arguments, setup, shape.transformer(&device), |model: &Transformer, random| {
        let shape = random.shape(lengths, all, |length| length);
        let (inputs, targets) = random.sequences(shape, tokens, &device);
        (shape, model.loss(inputs, targets))
    })
}

/// Returns the transformer's shape, the unit of lengths and the number of units, and the number of tokens in a step.
fn sizes(small: bool) -> (Shape, (usize, usize), usize) {
    if small {
        let shape = Shape { tokens: 64, longest: 32, width: 32, heads: 2, layers: 1 };
        return (shape, (8, 4), 64);
    }
    let shape = Shape { tokens: 8192, longest: 1024, width: 512, heads: 8, layers: 6 };
    (shape, (64, 16), 16_384)
}

/// Runs the steps and prints each. `loss` returns the shape of a step's inputs and the loss.
fn steps<M: Module>(
    arguments: &Arguments,
    setup: &Setup,
    mut model: M,
    loss: impl Fn(&M, &mut Random) -> ([usize; 2], Tensor<1>),
) -> Result<bool, Box<dyn Error>> {
    let mut optimizer = AdamWConfig::new().init();
    let mut random = Random(SEED);
    wait(&setup.device)?;
    let mut report = Report::new(arguments);
    for number in 0..arguments.steps {
        let start = Instant::now();
        let step = attempt(|| {
            let (shape, loss) = loss(&model, &mut random);
            let (next, value) = step(&mut optimizer, model, loss)?;
            Ok((next, shape, value))
        });
        let (next, shape, value) = match step {
            Ok(step) => step,
            Err(error) => {
                report.failed(setup, number, &error);
                return Ok(false);
            }
        };
        model = next;
        let (used, held) = report.step(setup, start.elapsed());
        println!(
            "step {number:3}: {:3} x {:4}, loss {value:.6} ({:08x}), {:8.1?}, {used} MiB in use, {held} MiB held",
            shape[0],
            shape[1],
            value.to_bits(),
            start.elapsed(),
        );
    }
    report.finish(setup);
    Ok(true)
}

/// Computes the gradients and changes the model. Returns the loss.
fn step<M: Module>(
    optimizer: &mut ModuleOptimizer,
    model: M,
    loss: Tensor<1>,
) -> Result<(M, f32), Box<dyn Error>> {
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = optimizer.step(LEARNING_RATE, model, gradients);
    let value = loss.try_into_scalar::<f32>().map_err(|error| format!("{error:?}"))?;
    Ok((model, value))
}

/// Waits for the device, so that its server and the model exist.
///
/// # Errors
///
/// cubecl's error.
pub fn wait(device: &Device) -> Result<(), Box<dyn Error>> {
    Ok(device.sync().map_err(|error| format!("{error:?}"))?)
}
