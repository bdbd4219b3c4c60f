//! One layer, forward and backward. What the backward pass needs of the forward pass is what the last call of `forward` left in the
//! buffers.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{Bf16Matrix, Matrix, round_to_bf16};

use crate::TrainError;
use crate::attention::{HeadGradients, HeadGroup};
use crate::base::{Attention, Base, DOWN, GATE_UP, Layer, OUTPUT, QKV, SITES, Shape};
use crate::batch::Batch;
use crate::compute::Compute;
use crate::gated::{gate, gate_gradient};
use crate::linear::Linear;
use crate::lora::{LoraModule, LoraWeights};
use crate::norm::{inverse_rms, normalize, normalize_gradient};

/// How far a forward pass of a layer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// To its result.
    Whole,
    /// As far as the backward pass needs it.
    ForGradient,
}

/// Buffers of the layer that is computed. Rows are those of a step.
#[derive(Debug)]
pub(crate) struct LayerBuffers {
    rows: usize,
    sites: [Linear; SITES],
    /// Inputs of the blocks, normalized. `[rows, hidden]`
    attention_input: Bf16Matrix,
    feed_forward_input: Bf16Matrix,
    /// `[rows, queries + 2 keys]`: as projected, and ready to meet.
    qkv: Matrix,
    heads: Vec<f32>,
    /// `[rows, queries]`
    attended: Bf16Matrix,
    /// What the blocks add to the residual stream, before its norm. `[rows, hidden]`
    attention_result: Matrix,
    feed_forward_result: Matrix,
    /// The residual stream between the blocks. `[rows, hidden]`
    middle: Vec<f32>,
    /// `[rows, 2 width]`, `[rows, width]`
    gate_up: Matrix,
    gated: Bf16Matrix,
    /// Gradients: of what a block adds, of its heads, of its gates. `[rows, hidden]`, `[rows, queries + 2 keys]`, `[rows, 2 width]`
    of_result: Bf16Matrix,
    of_qkv: Bf16Matrix,
    of_gate_up: Bf16Matrix,
    /// Of the inputs of the matrices. `[rows, hidden]`, `[rows, queries]`, `[rows, width]`
    of_normed: Matrix,
    of_attended: Matrix,
    of_gated: Matrix,
}

/// What all layers of a pass have in common.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub base: &'a Base,
    pub weights: &'a LoraWeights,
    pub batch: &'a Batch,
    /// Whether adapters apply where they are active; the model alone is computed otherwise.
    pub is_adapted: bool,
}

impl Setting<'_> {
    fn active(&self) -> Option<&[bool]> {
        self.is_adapted.then_some(&self.batch.active[..])
    }

    fn residual_scale(&self) -> f32 {
        self.base.config().residual_scale
    }

    fn epsilon(&self) -> f32 {
        self.base.config().norm_epsilon
    }
}

impl LayerBuffers {
    pub fn new(pool: &Pool, shape: &Shape, ranks: [usize; SITES], scale: f32, rows: usize) -> Self {
        let Shape { hidden, width, .. } = *shape;
        let (queries, qkv) = (shape.queries(), shape.queries() + 2 * shape.keys());
        let mut site = 0;
        let sites = shape.sites().map(|size| {
            site += 1;
            Linear::new(pool, size, ranks[site - 1], scale, rows)
        });
        let floats = |cols| Matrix::new(pool, rows, cols);
        let rounded = |cols| Bf16Matrix::new(pool, rows, cols);
        Self {
            rows,
            sites,
            attention_input: rounded(hidden),
            feed_forward_input: rounded(hidden),
            qkv: floats(qkv),
            heads: vec![0.0; rows * qkv],
            attended: rounded(queries),
            attention_result: floats(hidden),
            feed_forward_result: floats(hidden),
            middle: vec![0.0; rows * hidden],
            gate_up: floats(2 * width),
            gated: rounded(width),
            of_result: rounded(hidden),
            of_qkv: rounded(qkv),
            of_gate_up: rounded(2 * width),
            of_normed: floats(hidden),
            of_attended: floats(queries),
            of_gated: floats(width),
        }
    }

    /// Lets steps have so many rows.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
        self.sites.iter_mut().for_each(|site| site.set_tokens(rows));
        for matrix in [
            &mut self.attention_input,
            &mut self.feed_forward_input,
            &mut self.attended,
            &mut self.gated,
            &mut self.of_result,
            &mut self.of_qkv,
            &mut self.of_gate_up,
        ] {
            matrix.set_rows(rows);
        }
    }

    /// Computes a layer: the residual stream `x` becomes that behind it.
    pub fn forward(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        index: usize,
        x: &mut [f32],
        extent: Extent,
    ) -> Result<(), TrainError> {
        let layer = &setting.base.layers[index];
        for (site, linear) in self.sites.iter_mut().enumerate() {
            let modules: Vec<&LoraModule> = setting.weights.of_site(index, site).collect();
            linear.load(compute, setting.base, &layer.sites[site], &modules, setting.weights)?;
        }
        self.attend(compute, setting, layer, x)?;
        self.feed_forward(compute, setting, layer, x, extent)
    }

    fn attend(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        x: &[f32],
    ) -> Result<(), TrainError> {
        let (base, epsilon) = (setting.base, setting.epsilon());
        normalized(compute, x, &layer.attention_norm, epsilon, &mut self.attention_input)?;
        self.sites[QKV].forward(compute, &self.attention_input, setting.active(), &self.qkv)?;
        let transform = HeadTransform { shape: base.shape, attention: &layer.attention, epsilon };
        let (positions, bias) = (&setting.batch.positions, layer.sites[QKV].bias.as_deref());
        let cols = self.qkv.cols();
        let (heads, qkv) = (&mut self.heads[..self.rows * cols], &mut self.qkv.as_mut_slice()[..self.rows * cols]);
        compute.row_pairs((heads, cols), (qkv, cols), |row, heads, qkv| {
            add_bias(bias, qkv);
            heads.copy_from_slice(qkv);
            transform.apply(heads, positions[row]);
        })?;
        let found = self.each_group(compute, setting, layer, |group, _| group.forward())?;
        self.put_attended(setting, &found);
        self.sites[OUTPUT].forward(compute, &self.attended, setting.active(), &self.attention_result)?;
        let (rows, scale) = (self.rows, setting.residual_scale());
        let (bias, post_norm) = (layer.sites[OUTPUT].bias.as_deref(), layer.attention_post_norm.as_deref());
        add_result(compute, x, (&mut self.attention_result, bias), (post_norm, epsilon, scale), rows, &mut self.middle)
    }

    fn feed_forward(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        x: &mut [f32],
        extent: Extent,
    ) -> Result<(), TrainError> {
        let (rows, epsilon) = (self.rows, setting.epsilon());
        let middle = &self.middle[..x.len()];
        normalized(compute, middle, &layer.feed_forward_norm, epsilon, &mut self.feed_forward_input)?;
        self.sites[GATE_UP].forward(compute, &self.feed_forward_input, setting.active(), &self.gate_up)?;
        let (width, gate_up) = (self.gated.cols(), &*self.gate_up.as_mut_slice());
        compute.rows(self.gated.as_mut_slice(), width, |row, out| {
            let mut floats = vec![0.0; width];
            gate(layer.activation, &gate_up[row * 2 * width..][..2 * width], &mut floats);
            round_to_bf16(&floats, out);
        })?;
        let post_norm = layer.feed_forward_post_norm.as_deref();
        if extent == Extent::ForGradient && post_norm.is_none() {
            // The factors of the last matrix have a part in the gradient: their products are needed, its own are not.
            return self.sites[DOWN].project(compute, &self.gated, setting.active());
        }
        self.sites[DOWN].forward(compute, &self.gated, setting.active(), &self.feed_forward_result)?;
        if extent == Extent::ForGradient {
            return Ok(());
        }
        let scale = setting.residual_scale();
        add_result(compute, middle, (&mut self.feed_forward_result, None), (post_norm, epsilon, scale), rows, x)
    }

    /// Takes the gradient of the residual stream behind a layer, in place, to that before it, which is `x`. Adds the gradients of
    /// its factors to `gradient`.
    pub fn backward(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        index: usize,
        x: &[f32],
        of_x: &mut [f32],
        gradient: &mut [f32],
    ) -> Result<(), TrainError> {
        let layer = &setting.base.layers[index];
        let modules: [Vec<&LoraModule>; SITES] =
            std::array::from_fn(|site| setting.weights.of_site(index, site).collect());
        self.feed_forward_gradient(compute, setting, layer, &modules, of_x, gradient)?;
        self.attention_gradient(compute, setting, layer, &modules, x, of_x, gradient)
    }

    fn feed_forward_gradient(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        modules: &[Vec<&LoraModule>; SITES],
        of_x: &mut [f32],
        gradient: &mut [f32],
    ) -> Result<(), TrainError> {
        let (epsilon, active) = (setting.epsilon(), &setting.batch.active);
        let result = (&mut self.feed_forward_result, layer.feed_forward_post_norm.as_deref());
        of_result(compute, of_x, result, (epsilon, setting.residual_scale()), &mut self.of_result)?;
        let Self { of_result, gated, of_gated, .. } = self;
        self.sites[DOWN].backward(compute, of_result, gated, active, of_gated, &modules[DOWN], gradient)?;
        let width = self.gated.cols();
        let (gate_up, of_gated) = (&*self.gate_up.as_mut_slice(), &*self.of_gated.as_mut_slice());
        compute.rows(self.of_gate_up.as_mut_slice(), 2 * width, |row, out| {
            let (gate_up, of_gated) = (&gate_up[row * 2 * width..][..2 * width], &of_gated[row * width..][..width]);
            let mut floats = vec![0.0; 2 * width];
            gate_gradient(layer.activation, gate_up, of_gated, &mut floats);
            round_to_bf16(&floats, out);
        })?;
        let Self { of_gate_up, feed_forward_input, of_normed, .. } = self;
        let modules = &modules[GATE_UP];
        self.sites[GATE_UP].backward(compute, of_gate_up, feed_forward_input, active, of_normed, modules, gradient)?;
        let middle = &self.middle[..of_x.len()];
        add_norm_gradient(compute, middle, &layer.feed_forward_norm, epsilon, &mut self.of_normed, of_x)
    }

    #[allow(clippy::too_many_arguments)]
    fn attention_gradient(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        modules: &[Vec<&LoraModule>; SITES],
        x: &[f32],
        of_x: &mut [f32],
        gradient: &mut [f32],
    ) -> Result<(), TrainError> {
        let (epsilon, active) = (setting.epsilon(), &setting.batch.active);
        let result = (&mut self.attention_result, layer.attention_post_norm.as_deref());
        of_result(compute, of_x, result, (epsilon, setting.residual_scale()), &mut self.of_result)?;
        let Self { of_result, attended, of_attended, .. } = self;
        self.sites[OUTPUT].backward(compute, of_result, attended, active, of_attended, &modules[OUTPUT], gradient)?;
        let groups = self.each_group(compute, setting, layer, |group, of_found| group.backward(of_found))?;
        self.put_head_gradients(compute, setting, layer, &groups)?;
        let Self { of_qkv, attention_input, of_normed, .. } = self;
        self.sites[QKV].backward(compute, of_qkv, attention_input, active, of_normed, &modules[QKV], gradient)?;
        add_norm_gradient(compute, x, &layer.attention_norm, epsilon, &mut self.of_normed, of_x)
    }

    /// Does something for the heads of each item that share keys and values, items first. It is given the gradient of what the
    /// heads have found.
    fn each_group<R: Send>(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        work: impl Fn(HeadGroup<'_>, &[f32]) -> R + Sync,
    ) -> Result<Vec<R>, TrainError> {
        let (shape, kernels, items) = (setting.base.shape, compute.kernels, &setting.batch.items);
        let (cols, queries, heads) = (self.qkv.cols(), shape.queries(), &self.heads);
        let of_attended = &*self.of_attended.as_mut_slice();
        let group_cols = queries / shape.kv_heads;
        compute.map(items.len() * shape.kv_heads, |unit| {
            let (item, kv_head) = (&items[unit / shape.kv_heads], unit % shape.kv_heads);
            let heads = &heads[item.start * cols..item.end * cols];
            let of_found = of_attended[item.start * queries..item.end * queries].chunks_exact(queries);
            let of_found: Vec<f32> =
                of_found.flat_map(|row| &row[kv_head * group_cols..][..group_cols]).copied().collect();
            work(HeadGroup { kernels, shape, attention: &layer.attention, heads, kv_head }, &of_found)
        })
    }

    /// Puts what heads have found into rows.
    fn put_attended(&mut self, setting: Setting<'_>, found: &[Vec<f32>]) {
        let shape = setting.base.shape;
        let (queries, group_cols) = (shape.queries(), shape.queries() / shape.kv_heads);
        let attended = self.attended.as_mut_slice();
        for (unit, found) in found.iter().enumerate() {
            let (item, kv_head) = (&setting.batch.items[unit / shape.kv_heads], unit % shape.kv_heads);
            for (row, found) in item.clone().zip(found.chunks_exact(group_cols)) {
                round_to_bf16(found, &mut attended[row * queries + kv_head * group_cols..][..group_cols]);
            }
        }
    }

    /// Takes the gradients of heads back to the projections that they were made of.
    fn put_head_gradients(
        &mut self,
        compute: &mut Compute,
        setting: Setting<'_>,
        layer: &Layer,
        groups: &[HeadGradients],
    ) -> Result<(), TrainError> {
        let shape = setting.base.shape;
        let (cols, head_dim, kv_heads) = (self.qkv.cols(), shape.head_dim, shape.kv_heads);
        let group_cols = shape.queries() / kv_heads;
        let items = &setting.batch.items;
        let item_of: Vec<usize> =
            items.iter().enumerate().flat_map(|(item, rows)| rows.clone().map(move |_| item)).collect();
        let transform = HeadTransform { shape, attention: &layer.attention, epsilon: setting.epsilon() };
        let (qkv, positions) = (&*self.qkv.as_mut_slice(), &setting.batch.positions);
        compute.rows(self.of_qkv.as_mut_slice(), cols, |row, out| {
            let item = item_of[row];
            let within = row - items[item].start;
            let groups = &groups[item * kv_heads..][..kv_heads];
            let mut floats: Vec<f32> = Vec::with_capacity(cols);
            floats.extend(groups.iter().flat_map(|group| &group.queries[within * group_cols..][..group_cols]));
            floats.extend(groups.iter().flat_map(|group| &group.keys[within * head_dim..][..head_dim]));
            floats.extend(groups.iter().flat_map(|group| &group.values[within * head_dim..][..head_dim]));
            transform.gradient(&qkv[row * cols..][..cols], &mut floats, positions[row]);
            round_to_bf16(&floats, out);
        })
    }
}

/// What is done to the heads of queries and keys before they meet: norm, rotation, temperature.
#[derive(Clone, Copy)]
struct HeadTransform<'a> {
    shape: Shape,
    attention: &'a Attention,
    epsilon: f32,
}

impl HeadTransform<'_> {
    /// Returns the norm of a head, by its number among those of queries and keys.
    fn norm(&self, head: usize) -> Option<&[f32]> {
        let (queries, keys) = self.attention.qk_norm.as_ref()?;
        Some(if head < self.shape.heads { queries } else { keys })
    }

    /// Returns what a head is multiplied by in the end.
    fn temperature(&self, head: usize, position: usize) -> f32 {
        match self.attention.temperature {
            Some(of) if head < self.shape.heads => 1.0 + of.scale * ((1 + position / of.length) as f32).ln(),
            _ => 1.0,
        }
    }

    /// Changes the queries and keys of a row in place.
    fn apply(&self, row: &mut [f32], position: usize) {
        let rotated = (self.shape.heads + self.shape.kv_heads) * self.shape.head_dim;
        for (head, numbers) in row[..rotated].chunks_exact_mut(self.shape.head_dim).enumerate() {
            if let Some(weight) = self.norm(head) {
                let before = numbers.to_vec();
                normalize(&before, weight, inverse_rms(&before, self.epsilon), numbers);
            }
            if let Some(rope) = &self.attention.rope {
                rope.rotate(numbers, position);
            }
            let temperature = self.temperature(head, position);
            numbers.iter_mut().for_each(|x| *x *= temperature);
        }
    }

    /// Takes the gradient of a row's queries and keys back to the `row` before.
    fn gradient(&self, row: &[f32], gradient: &mut [f32], position: usize) {
        let (head_dim, heads) = (self.shape.head_dim, self.shape.heads + self.shape.kv_heads);
        for head in 0..heads {
            let part = head * head_dim..(head + 1) * head_dim;
            let (row, gradient) = (&row[part.clone()], &mut gradient[part]);
            let temperature = self.temperature(head, position);
            gradient.iter_mut().for_each(|x| *x *= temperature);
            if let Some(rope) = &self.attention.rope {
                rope.rotate_gradient(gradient, position);
            }
            if let Some(weight) = self.norm(head) {
                normalize_gradient(row, weight, inverse_rms(row, self.epsilon), gradient);
            }
        }
    }
}

fn add_bias(bias: Option<&[f32]>, row: &mut [f32]) {
    if let Some(bias) = bias {
        row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
    }
}

/// Rounds the normalized rows of `x`.
fn normalized(
    compute: &mut Compute,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    out: &mut Bf16Matrix,
) -> Result<(), TrainError> {
    let cols = out.cols();
    compute.rows(out.as_mut_slice(), cols, |row, out| {
        let (x, mut floats) = (&x[row * cols..][..cols], vec![0.0; cols]);
        normalize(x, weight, inverse_rms(x, epsilon), &mut floats);
        round_to_bf16(&floats, out);
    })
}

/// `out = x + scale * norm(result + bias)`. The bias stays added.
fn add_result(
    compute: &mut Compute,
    x: &[f32],
    (result, bias): (&mut Matrix, Option<&[f32]>),
    (post_norm, epsilon, scale): (Option<&[f32]>, f32, f32),
    rows: usize,
    out: &mut [f32],
) -> Result<(), TrainError> {
    let cols = result.cols();
    let (result, out) = (&mut result.as_mut_slice()[..rows * cols], &mut out[..rows * cols]);
    compute.row_pairs((out, cols), (result, cols), |row, out, result| {
        add_bias(bias, result);
        match post_norm {
            Some(weight) => normalize(result, weight, inverse_rms(result, epsilon), out),
            None => out.copy_from_slice(result),
        }
        let x = &x[row * cols..][..cols];
        out.iter_mut().zip(x).for_each(|(out, x)| *out = x + scale * *out);
    })
}

/// Rounds the gradient of what a block adds to the residual stream, given that of the stream.
fn of_result(
    compute: &mut Compute,
    of_x: &[f32],
    (result, post_norm): (&mut Matrix, Option<&[f32]>),
    (epsilon, scale): (f32, f32),
    out: &mut Bf16Matrix,
) -> Result<(), TrainError> {
    let (cols, result) = (out.cols(), &*result.as_mut_slice());
    compute.rows(out.as_mut_slice(), cols, |row, out| {
        let mut floats: Vec<f32> = of_x[row * cols..][..cols].iter().map(|x| x * scale).collect();
        if let Some(weight) = post_norm {
            let result = &result[row * cols..][..cols];
            normalize_gradient(result, weight, inverse_rms(result, epsilon), &mut floats);
        }
        round_to_bf16(&floats, out);
    })
}

/// Adds the gradient that goes through a norm of `x`.
fn add_norm_gradient(
    compute: &mut Compute,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    of_normed: &mut Matrix,
    of_x: &mut [f32],
) -> Result<(), TrainError> {
    let cols = of_normed.cols();
    let of_normed = &mut of_normed.as_mut_slice()[..of_x.len()];
    compute.row_pairs((of_x, cols), (of_normed, cols), |row, of_x, of_normed| {
        let x = &x[row * cols..][..cols];
        normalize_gradient(x, weight, inverse_rms(x, epsilon), of_normed);
        of_x.iter_mut().zip(of_normed).for_each(|(of_x, more)| *of_x += *more);
    })
}
