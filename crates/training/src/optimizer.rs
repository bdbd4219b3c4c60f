//! AdamW on one list of numbers, and the learning rate over the steps.

use crate::TrainOptions;

const BETAS: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// The moments of a gradient, one of each for every number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdamW {
    pub mean: Vec<f32>,
    pub square: Vec<f32>,
    /// Steps so far.
    pub steps: u64,
}

impl AdamW {
    pub fn new(len: usize) -> Self {
        Self { mean: vec![0.0; len], square: vec![0.0; len], steps: 0 }
    }

    /// Moves numbers against their gradient.
    pub fn step(&mut self, numbers: &mut [f32], gradient: &[f32], rate: f32, weight_decay: f32) {
        self.steps += 1;
        let (first, second) = BETAS;
        let power = self.steps.min(i32::MAX as u64) as i32;
        let corrections = (1.0 - f64::from(first).powi(power), 1.0 - f64::from(second).powi(power));
        let (mean_scale, square_scale) = ((1.0 / corrections.0) as f32, (1.0 / corrections.1) as f32);
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((number, gradient), (mean, square)) in numbers.iter_mut().zip(gradient).zip(moments) {
            *mean = first * *mean + (1.0 - first) * gradient;
            *square = second * *square + (1.0 - second) * gradient * gradient;
            let step = *mean * mean_scale / ((*square * square_scale).sqrt() + EPSILON);
            *number -= rate * (step + weight_decay * *number);
        }
    }
}

/// Shortens a gradient to a norm of at most `norm_max`. Returns the norm that it had.
pub(crate) fn clip(gradient: &mut [f32], norm_max: f32) -> f64 {
    let norm = gradient.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if norm > f64::from(norm_max) {
        let factor = (f64::from(norm_max) / norm) as f32;
        gradient.iter_mut().for_each(|number| *number *= factor);
    }
    norm
}

/// Returns the learning rate of a step out of all steps: it grows, then falls towards zero along a cosine.
pub(crate) fn learning_rate(options: &TrainOptions, step: usize, steps: usize) -> f32 {
    let warmup = ((steps as f32 * options.warmup).round() as usize).min(steps.saturating_sub(1));
    if step < warmup {
        return options.learning_rate * (step + 1) as f32 / (warmup + 1) as f32;
    }
    let done = (step - warmup) as f32 / (steps - warmup).max(1) as f32;
    options.learning_rate * 0.5 * (1.0 + (std::f32::consts::PI * done).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adamw_finds_the_bottom_of_a_bowl() {
        let mut numbers = vec![3.0, -2.0];
        let mut optimizer = AdamW::new(2);
        for _ in 0..2000 {
            let gradient: Vec<f32> = numbers.iter().zip([1.0, 10.0]).map(|(x, slope)| slope * (x - 0.5)).collect();
            optimizer.step(&mut numbers, &gradient, 0.01, 0.0);
        }
        assert!(numbers.iter().all(|x| (x - 0.5).abs() < 1e-3), "{numbers:?}");
    }

    #[test]
    fn a_long_gradient_is_shortened_and_a_short_one_is_not() {
        let mut gradient = vec![3.0, 4.0];
        assert_eq!(clip(&mut gradient, 10.0), 5.0);
        assert_eq!(gradient, [3.0, 4.0]);
        assert_eq!(clip(&mut gradient, 1.0), 5.0);
        assert!((gradient[0] - 0.6).abs() < 1e-6 && (gradient[1] - 0.8).abs() < 1e-6);
    }

    #[test]
    fn the_learning_rate_grows_then_falls() {
        let options = TrainOptions { learning_rate: 1.0, warmup: 0.2, ..TrainOptions::default() };
        let rates: Vec<f32> = (0..10).map(|step| learning_rate(&options, step, 10)).collect();
        assert!(rates[0] < rates[1] && rates[1] < rates[2], "{rates:?}");
        assert_eq!(rates[2], 1.0);
        assert!(rates[2..].windows(2).all(|pair| pair[0] > pair[1]) && rates[9] > 0.0, "{rates:?}");
        let options = TrainOptions { learning_rate: 1.0, ..TrainOptions::default() };
        assert_eq!(learning_rate(&options, 0, 1), 1.0);
    }
}
