//! A small transformer that predicts the next token.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor};

/// The shape of a transformer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of different tokens.
    pub tokens: usize,
    /// The longest sequence.
    pub longest: usize,
    /// The size of a token's vector.
    pub width: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The number of layers.
    pub layers: usize,
}

/// A transformer.
#[derive(Module, Debug)]
pub struct Transformer {
    token: Embedding,
    position: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
    output: Linear,
}

/// A layer of a transformer.
#[derive(Module, Debug)]
pub struct Layer {
    norms: [LayerNorm; 2],
    query: Linear,
    key: Linear,
    value: Linear,
    mixed: Linear,
    wide: Linear,
    narrow: Linear,
    heads: usize,
}

impl Shape {
    /// Creates a transformer with random weights.
    pub fn transformer(&self, device: &Device) -> Transformer {
        let norm = || LayerNormConfig::new(self.width).init(device);
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let layer = |_| Layer {
            norms: [norm(), norm()],
            query: linear(self.width, self.width),
            key: linear(self.width, self.width),
            value: linear(self.width, self.width),
            mixed: linear(self.width, self.width),
            wide: linear(self.width, 4 * self.width),
            narrow: linear(4 * self.width, self.width),
            heads: self.heads,
        };
        Transformer {
            token: EmbeddingConfig::new(self.tokens, self.width).init(device),
            position: EmbeddingConfig::new(self.longest, self.width).init(device),
            layers: (0..self.layers).map(layer).collect(),
            norm: norm(),
            output: linear(self.width, self.tokens),
        }
    }
}

impl Transformer {
    /// Returns the loss for sequences of tokens, each followed by the token after it.
    pub fn loss(&self, inputs: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let [batch, length] = inputs.dims();
        let device = inputs.device();
        let future = Tensor::<2, Bool>::tril_mask([length, length], 0, &device).unsqueeze_dim::<3>(0);
        let mut x = self.embed(inputs, 0);
        for layer in &self.layers {
            let (query, key, value) = layer.attention_inputs(&x);
            let heads = |x: Tensor<3>| layer.split(x);
            let mixed = attend(heads(query), heads(key), heads(value), Some(future.clone()));
            x = layer.finish(x, layer.join(mixed, batch));
        }
        let logits = self.logits(x);
        let [_, _, tokens] = logits.dims();
        let count = batch * length;
        let loss = CrossEntropyLossConfig::new().init(&device);
        loss.forward(logits.reshape([count, tokens]), targets.reshape([count]))
    }

    /// Returns the tokens that follow `tokens`, one for each sequence, at a position. `remember` stores a layer's key and value of
    /// this position, and returns the keys and values of all positions so far. Rows of both are positions.
    pub fn next(
        &self,
        tokens: Tensor<2, Int>,
        position: usize,
        mut remember: impl FnMut(usize, Tensor<2>, Tensor<2>) -> (Tensor<2>, Tensor<2>),
    ) -> Tensor<2, Int> {
        let [batch, _] = tokens.dims();
        let mut x = self.embed(tokens, position);
        for (index, layer) in self.layers.iter().enumerate() {
            let (query, key, value) = layer.attention_inputs(&x);
            let row = |x: Tensor<3>| x.reshape([1, -1]);
            let (keys, values) = remember(index, row(key), row(value));
            let heads = |x: Tensor<2>| layer.split_rows(x, batch);
            let mixed = attend(layer.split(query), heads(keys), heads(values), None);
            x = layer.finish(x, layer.join(mixed, batch));
        }
        self.logits(x).argmax(2).reshape([batch, 1])
    }

    /// Returns the vectors of tokens whose first has the given position.
    fn embed(&self, tokens: Tensor<2, Int>, first: usize) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let positions = Tensor::arange(first as i64..(first + length) as i64, &tokens.device());
        self.token.forward(tokens) + self.position.forward(positions.unsqueeze_dim::<2>(0))
    }

    fn logits(&self, x: Tensor<3>) -> Tensor<3> {
        self.output.forward(self.norm.forward(x))
    }
}

impl Layer {
    /// Returns query, key and value of each token.
    fn attention_inputs(&self, x: &Tensor<3>) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
        let x = self.norms[0].forward(x.clone());
        (self.query.forward(x.clone()), self.key.forward(x.clone()), self.value.forward(x))
    }

    /// Adds the attention's result and the layer's second half.
    fn finish(&self, x: Tensor<3>, mixed: Tensor<3>) -> Tensor<3> {
        let x = x + self.mixed.forward(mixed);
        let wide = gelu(self.wide.forward(self.norms[1].forward(x.clone())));
        x + self.narrow.forward(wide)
    }

    /// Splits `[batch, length, width]` into `[batch * heads, length, width / heads]`.
    fn split(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let (heads, part) = (self.heads, width / self.heads);
        x.reshape([batch, length, heads, part]).swap_dims(1, 2).reshape([batch * heads, length, part])
    }

    /// Splits `[length, batch * width]` into `[batch * heads, length, width / heads]`, without a copy.
    fn split_rows(&self, x: Tensor<2>, batch: usize) -> Tensor<3> {
        let [length, row] = x.dims();
        let all = batch * self.heads;
        x.reshape([length, all, row / all]).swap_dims(0, 1)
    }

    /// Reverses [`split`](Self::split).
    fn join(&self, x: Tensor<3>, batch: usize) -> Tensor<3> {
        let [_, length, part] = x.dims();
        let heads = self.heads;
        x.reshape([batch, heads, length, part]).swap_dims(1, 2).reshape([batch, length, heads * part])
    }
}

/// Returns the mean of the values, weighted by the keys that fit each query. `hidden` is true for keys that a query must not see.
fn attend(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>, hidden: Option<Tensor<3, Bool>>) -> Tensor<3> {
    let [all, length, part] = query.dims();
    let [_, keys, _] = key.dims();
    let scores = query.matmul(key.swap_dims(1, 2)) / (part as f32).sqrt();
    let scores = match hidden {
        Some(hidden) => scores.mask_fill(hidden.expand([all, length, keys]), -1e9),
        None => scores,
    };
    softmax(scores, 2).matmul(value)
}
