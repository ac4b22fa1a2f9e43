//! Generates tokens, with a cache of the keys and values of earlier tokens.

use crate::arguments::{Arguments, Cache};
use crate::data::Random;
use crate::memory::Setup;
use crate::report::{Report, attempt};
use crate::train::wait;
use crate::transformer::Shape;
use burn::tensor::{Device, Tensor};
use gpu_vmm::Bytes;
use std::error::Error;
use std::time::Instant;

const SEED: u64 = 26;

/// Generates as many tokens as the arguments say. Returns false if a step failed.
///
/// # Errors
///
/// The driver's error.
pub fn generate(arguments: &Arguments, setup: &Setup) -> Result<bool, Box<dyn Error>> {
    let (shape, batch) = if arguments.small {
        (Shape { tokens: 64, longest: 64, width: 32, heads: 2, layers: 1 }, 4)
    } else {
        (Shape { tokens: 8192, longest: 8192, width: 512, heads: 8, layers: 6 }, 32)
    };
    if arguments.steps > shape.longest {
        return Err(format!("a sequence has at most {} tokens", shape.longest).into());
    }
    let device = setup.device.clone();
    device.seed(SEED);
    let model = shape.transformer(&device);
    let mut random = Random(SEED);
    let (mut tokens, _) = random.sequences([batch, 1], shape.tokens, &device);
    wait(&device)?;
    let mut report = Report::new(arguments);
    let mut all = Vec::new();
    let mut caches = None;
    for position in 0..arguments.steps {
        let start = Instant::now();
        let step = attempt(|| {
            let caches = match &mut caches {
                Some(caches) => caches,
                None => caches.insert(Caches::new(arguments.cache, setup, shape, batch)?),
            };
            caches.grow(setup, position + 1)?;
            let remember = |layer, key, value| caches.remember(layer, position, key, value);
            let next = model.next(tokens.clone(), position, remember);
            // Reads the tokens, so that the step ends here.
            let read = next.clone().try_into_data().map_err(|error| format!("{error:?}"))?;
            Ok((next, read.iter::<i64>().collect::<Vec<_>>()))
        });
        match step {
            Ok((next, read)) => {
                tokens = next;
                all.extend(read);
            }
            Err(error) => {
                report.failed(setup, position, &error);
                return Ok(false);
            }
        }
        let (used, held) = report.step(setup, start.elapsed());
        if position % 64 == 0 {
            println!("token {position:4}: {:8.1?}, {used} MiB in use, {held} MiB held", start.elapsed());
        }
    }
    report.finish(setup);
    println!("checksum of {} tokens: {:016x}", all.len(), checksum(&all));
    Ok(true)
}

/// The caches of all layers.
struct Caches {
    kind: Cache,
    /// The bytes of a row, which belongs to one position of all sequences.
    row: Bytes,
    /// The keys and the values of each layer. Empty before the first token, if they are joined.
    layers: Vec<[Option<Tensor<2>>; 2]>,
}

impl Caches {
    fn new(kind: Cache, setup: &Setup, shape: Shape, batch: usize) -> Result<Self, Box<dyn Error>> {
        let numbers = batch * shape.width;
        let row = Bytes((numbers * size_of::<f32>()) as u64);
        if kind == Cache::Growing {
            setup.growing.announce(row * shape.longest as u64, 2 * shape.layers);
        }
        let tensor = |device: &Device| match kind {
            Cache::Joined => None,
            Cache::Whole | Cache::Growing => Some(Tensor::empty([shape.longest, numbers], device)),
        };
        let layers = (0..shape.layers).map(|_| [tensor(&setup.device), tensor(&setup.device)]).collect();
        // cubecl allocates on a thread of its own.
        wait(&setup.device)?;
        Ok(Self { kind, row, layers })
    }

    /// Has memory for that many positions.
    fn grow(&self, setup: &Setup, positions: usize) -> Result<(), Box<dyn Error>> {
        if self.kind == Cache::Growing {
            setup.growing.grow_to(self.row * positions as u64)?;
        }
        Ok(())
    }

    /// Stores the key and the value of a position. Returns the keys and values of all positions so far.
    fn remember(
        &mut self,
        layer: usize,
        position: usize,
        key: Tensor<2>,
        value: Tensor<2>,
    ) -> (Tensor<2>, Tensor<2>) {
        let mut add = |at: usize, row: Tensor<2>| {
            let cache = &mut self.layers[layer][at];
            let whole = match cache.take() {
                None => row,
                Some(rows) if self.kind == Cache::Joined => Tensor::cat(vec![rows, row], 0),
                // In place: the tensor has no other owner here.
                Some(rows) => rows.slice_assign([position..position + 1], row),
            };
            *cache = Some(whole.clone());
            if self.kind == Cache::Joined { whole } else { whole.slice([0..position + 1]) }
        };
        (add(0, key), add(1, value))
    }
}

/// Returns a number that depends on all tokens and their order (FNV-1a).
fn checksum(tokens: &[i64]) -> u64 {
    tokens
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, token| (sum ^ *token as u64).wrapping_mul(0x0100_0000_01b3))
}
