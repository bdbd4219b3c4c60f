//! Carrying a plan out, in steps of some megabytes: rows become floats, floats become blocks, on all cores.

use std::borrow::Cow;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use ruvllm_kernels::{QuantizeError, WeightType, dequantize_row, quantize_row};
use thiserror::Error;

use super::plan::{Plan, PlannedTensor};
use crate::formats::gguf::write::{WriteError, Writer};

/// Maximum number of weights that a core takes at a time: little memory, and an interrupted job ends soon.
const STEP_WEIGHTS: usize = 1 << 20;

#[derive(Debug, Error)]
pub enum JobError {
    #[error("tensor {name:?}, row {row}: {fault}; {}", remedy(fault))]
    Weights { name: String, row: usize, fault: QuantizeError },
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn remedy(error: &QuantizeError) -> &'static str {
    match error {
        QuantizeError::NotFinite { .. } => "the source is damaged: get it again",
        QuantizeError::TooLarge { .. } => "choose a type with a wider range, such as bf16",
        _ => "choose another type",
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub file_bytes: u64,
    /// In the order in which the types occur.
    pub types: Vec<TypeReport>,
}

/// What has become of all tensors that were written as one type.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeReport {
    pub kind: WeightType,
    pub tensors: usize,
    pub weights: u64,
    pub bytes: u64,
    loss: Loss,
}

impl TypeReport {
    /// Root mean square of what was lost, relative to that of the weights. 0 where nothing was.
    pub fn relative_rms_error(&self) -> f64 {
        if self.loss.errors == 0.0 { 0.0 } else { (self.loss.errors / self.loss.weights).sqrt() }
    }
}

/// Sums of squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Loss {
    errors: f64,
    weights: f64,
}

impl Loss {
    fn add(&mut self, other: Self) {
        self.errors += other.errors;
        self.weights += other.weights;
    }

    fn add_row(&mut self, row: &[f32], back: &[f32]) {
        for (weight, back) in row.iter().zip(back) {
            self.errors += f64::from(weight - back).powi(2);
            self.weights += f64::from(*weight).powi(2);
        }
    }
}

/// A file in the making. Dropped before it is finished, it leaves nothing behind.
#[derive(Debug)]
pub struct Job<'a> {
    plan: &'a Plan<'a>,
    writer: Writer,
    /// Where the next step begins.
    tensor: usize,
    row: usize,
    /// Of the present tensor.
    bytes: Option<Cow<'a, [u8]>>,
    done_bytes: u64,
    types: Vec<TypeReport>,
}

impl<'a> Job<'a> {
    /// Begins the file at `output`. One that is there is replaced when the job is finished.
    pub fn begin(plan: &'a Plan<'a>, output: &Path) -> Result<Self, JobError> {
        let writer = Writer::create(output, &plan.header)?;
        Ok(Self { plan, writer, tensor: 0, row: 0, bytes: None, done_bytes: 0, types: Vec::new() })
    }

    /// Bytes of the source's tensors that are done.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// All bytes of the source's tensors.
    pub fn total_bytes(&self) -> u64 {
        self.plan.tensors.iter().map(|tensor| tensor.source.bytes_len() as u64).sum()
    }

    /// Does the next rows. False when there are none left.
    pub fn step(&mut self) -> Result<bool, JobError> {
        let Some(tensor) = self.plan.tensors.get(self.tensor) else { return Ok(false) };
        let source = &tensor.source;
        // Made once, not in each step.
        let bytes = self.bytes.get_or_insert_with(|| source.bytes());
        let rows: usize = source.dims[1..].iter().product();
        let row_bytes = bytes.len() / rows;
        let share = (STEP_WEIGHTS / source.dims[0]).clamp(1, rows.div_ceil(cores()));
        let end = rows.min(self.row + share * cores());
        let shares = bytes[self.row * row_bytes..end * row_bytes].chunks(share * row_bytes);
        let mut loss = Loss::default();
        for converted in convert_shares(tensor, shares, self.row, share)? {
            self.writer.write(&converted.bytes)?;
            loss.add(converted.loss);
        }
        self.done_bytes += ((end - self.row) * row_bytes) as u64;
        self.report_of(tensor.to).loss.add(loss);
        self.row = end;
        if end == rows {
            let report = self.report_of(tensor.to);
            report.tensors += 1;
            report.weights += source.element_count() as u64;
            report.bytes += tensor.bytes;
            (self.tensor, self.row, self.bytes) = (self.tensor + 1, 0, None);
            // Its pages are not needed again.
            source.give_back();
        }
        Ok(true)
    }

    fn report_of(&mut self, kind: WeightType) -> &mut TypeReport {
        let position = self.types.iter().position(|report| report.kind == kind).unwrap_or_else(|| {
            self.types.push(TypeReport { kind, tensors: 0, weights: 0, bytes: 0, loss: Loss::default() });
            self.types.len() - 1
        });
        &mut self.types[position]
    }

    /// Makes the file durable and gives it its name. Panics if steps are left.
    pub fn finish(self) -> Result<Report, JobError> {
        self.writer.finish()?;
        Ok(Report { file_bytes: self.plan.file_bytes, types: self.types })
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Rows as they will be in the file.
struct Converted {
    bytes: Vec<u8>,
    loss: Loss,
}

/// A thread for each share. `share` is the rows of one, `first_row` the first row of all.
fn convert_shares<'b>(
    tensor: &PlannedTensor<'_>,
    shares: impl Iterator<Item = &'b [u8]>,
    first_row: usize,
    share: usize,
) -> Result<Vec<Converted>, JobError> {
    thread::scope(|scope| {
        let workers: Vec<_> = shares
            .enumerate()
            .map(|(i, rows)| scope.spawn(move || convert(tensor, rows, first_row + i * share)))
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("converting does not panic")).collect()
    })
}

fn convert(tensor: &PlannedTensor<'_>, rows: &[u8], first_row: usize) -> Result<Converted, JobError> {
    let (from, to, len) = (tensor.source.kind, tensor.to, tensor.source.dims[0]);
    let row_bytes = from.row_bytes(len).expect("the file was checked");
    let (mut row, mut back) = (vec![0f32; len], vec![0f32; len]);
    let mut converted = Converted { bytes: Vec::new(), loss: Loss::default() };
    for (r, stored) in rows.chunks_exact(row_bytes).enumerate() {
        dequantize_row(from, stored, &mut row);
        let start = converted.bytes.len();
        let result = if tensor.is_copied() {
            converted.bytes.extend(stored);
            refuse_infinite(&row)
        } else {
            quantize_row(to, &row, &mut converted.bytes)
        };
        let name = || tensor.source.name.to_owned();
        result.map_err(|fault| JobError::Weights { name: name(), row: first_row + r, fault })?;
        if !tensor.is_copied() {
            dequantize_row(to, &converted.bytes[start..], &mut back);
            converted.loss.add_row(&row, &back);
        }
    }
    Ok(converted)
}

/// What is copied is looked at too: a file that was written here can be relied on.
fn refuse_infinite(row: &[f32]) -> Result<(), QuantizeError> {
    match row.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(QuantizeError::NotFinite { index, value: row[index] }),
        None => Ok(()),
    }
}
