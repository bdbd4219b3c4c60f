//! candle's quantized Llama, as its own example runs it.

use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use candle_core::quantized::gguf_file;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::{MAX_SEQ_LEN, ModelWeights};
use peers_protocol::{About, Engine, Start, Timing, Work, prompt};

use crate::greedy::greatest;
use crate::versions::locked;

pub struct Candle {
    /// Without anything in its cache. Clones share the weights and have a cache of their own.
    fresh: ModelWeights,
    vocabulary: usize,
    /// A model with the first tokens of text 0 in its cache, and how many; works at a depth start from clones of it.
    prefix: Option<(usize, ModelWeights)>,
}

pub fn load(start: &Start) -> Result<(Candle, About)> {
    ensure!(start.context <= MAX_SEQ_LEN, "candle's model takes {MAX_SEQ_LEN} tokens at most");
    let mut file = BufReader::new(File::open(&start.model)?);
    let content = gguf_file::Content::read(&mut file)?;
    let fresh = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let about = About {
        version: locked("candle-transformers"),
        system_info: format!(
            "avx2 {}, neon {}, {} threads",
            candle_core::utils::with_avx(),
            candle_core::utils::with_neon(),
            candle_core::utils::get_num_threads()
        ),
    };
    Ok((Candle { fresh, vocabulary: start.vocabulary, prefix: None }, about))
}

impl Engine for Candle {
    fn run(&mut self, work: Work) -> Result<Timing> {
        match work {
            Work::Prefill { tokens, depth } => self.prefill(tokens, depth),
            Work::Decode { tokens, depth } => self.decode(tokens, depth),
            Work::NextTurn { .. } => bail!("candle's models cannot go back to a part of a text"),
            Work::Sequences { count, prompt, tokens } => self.sequences(count, prompt, tokens),
        }
    }

    fn logits_after(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let input = Tensor::from_vec(tokens.to_vec(), (1, tokens.len()), &Device::Cpu)?;
        Ok(self.fresh.clone().forward(&input, 0)?.to_vec2::<f32>()?.swap_remove(0))
    }
}

impl Candle {
    fn prefill(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        let text = prompt(self.vocabulary, 0, depth + tokens);
        let mut model = self.at_depth(depth)?;
        let started = Instant::now();
        forward(&mut model, &[&text[depth..]], depth)?;
        Ok(Timing { tokens, seconds: started.elapsed().as_secs_f64(), total_s: None })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        let depth = depth.max(1);
        let text = prompt(self.vocabulary, 0, depth);
        let mut model = self.at_depth(depth - 1)?;
        let mut choice = forward(&mut model, &[&text[depth - 1..]], depth - 1)?;
        let started = Instant::now();
        for i in 0..tokens {
            choice = forward(&mut model, &[&choice], depth + i)?;
        }
        Ok(Timing { tokens, seconds: started.elapsed().as_secs_f64(), total_s: None })
    }

    /// A model with `depth` tokens of text 0 in its cache.
    fn at_depth(&mut self, depth: usize) -> Result<ModelWeights> {
        if depth == 0 {
            return Ok(self.fresh.clone());
        }
        if let Some((cached, model)) = &self.prefix
            && *cached == depth
        {
            return Ok(model.clone());
        }
        let mut model = self.fresh.clone();
        forward(&mut model, &[&prompt(self.vocabulary, 0, depth)], 0)?;
        self.prefix = Some((depth, model.clone()));
        Ok(model)
    }

    fn sequences(&mut self, count: usize, length: usize, tokens: usize) -> Result<Timing> {
        let texts: Vec<Vec<u32>> = (0..count).map(|sequence| prompt(self.vocabulary, sequence, length)).collect();
        let mut model = self.fresh.clone();
        let all = Instant::now();
        let mut choices = if count == 1 {
            forward(&mut model, &[&texts[0]], 0)?
        } else {
            // candle fails on a batch of prompts (it cuts the last rows out of a batch and then needs them contiguous),
            // but not on a batch of single tokens. So prompts go in token by token, which is slow, for the sake of
            // decoding together, which is what is timed.
            let mut choices = Vec::new();
            for position in 0..length {
                let column: Vec<&[u32]> = texts.iter().map(|text| &text[position..=position]).collect();
                choices = forward(&mut model, &column, position)?;
            }
            choices
        };
        let started = Instant::now();
        for i in 0..tokens {
            let column: Vec<&[u32]> = choices.iter().map(std::slice::from_ref).collect();
            choices = forward(&mut model, &column, length + i)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Timing { tokens: tokens * count, seconds, total_s: Some(all.elapsed().as_secs_f64()) })
    }
}

/// Computes rows of equal length at `position` and chooses the next token of each.
fn forward(model: &mut ModelWeights, rows: &[&[u32]], position: usize) -> Result<Vec<u32>> {
    let input = Tensor::from_vec(rows.concat(), (rows.len(), rows[0].len()), &Device::Cpu)?;
    let logits = model.forward(&input, position)?.to_vec2::<f32>()?;
    Ok(logits.iter().map(|logits| greatest(logits) as u32).collect())
}
