//! Pools the vectors of a text's tokens into one of length 1.

use candle_core::{Result, Tensor};

use crate::config::Pooling;

/// Returns a vector for each text. `hidden` is `[texts, tokens, hidden]`; tokens beyond a text's length are padding.
pub(crate) fn pool(hidden: &Tensor, lengths: &[usize], pooling: Pooling) -> Result<Vec<Vec<f32>>> {
    let one = |(text, &length): (usize, &usize)| {
        let tokens = hidden.get(text)?;
        let vector = match pooling {
            Pooling::Mean => tokens.narrow(0, 0, length)?.mean(0)?,
            Pooling::First => tokens.get(0)?,
        };
        Ok(normalised(vector.to_vec1()?))
    };
    lengths.iter().enumerate().map(one).collect()
}

/// Divides a vector by its length. A vector of zeros stays as it is.
fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn padding_does_not_count_and_vectors_have_length_1() {
        let hidden = [[[3.0_f32, 0.0], [3.0, 8.0], [1e9, 1e9]], [[0.0, 2.0], [5.0, 5.0], [5.0, 5.0]]];
        let hidden = Tensor::new(&hidden, &Device::Cpu).unwrap();
        assert_eq!(pool(&hidden, &[2, 1], Pooling::Mean).unwrap(), [[0.6, 0.8], [0.0, 1.0]]);
        assert_eq!(pool(&hidden, &[2, 1], Pooling::First).unwrap(), [[1.0, 0.0], [0.0, 1.0]]);
        assert_eq!(normalised(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}
