//! `--adapter`: LoRA adapters that a model is run with.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_runtime::{Engine, HeldAdapter, RegisteredAdapter};
use ruvllm_store::{ListedAdapter, Store, StoreError, StoredAdapter};

use crate::loading::store;

#[derive(Clone, Debug, Default, Args)]
pub struct AdapterFlags {
    /// A LoRA adapter to run the model with: its name (see `ruvllm adapters list`), or the path of a PEFT folder or a GGUF
    /// file, with a weight if it is not 1, such as legal=0.5. Can be repeated
    #[arg(long, value_name = "ADAPTER[=WEIGHT]", value_parser = parse_weighted)]
    pub adapter: Vec<WeightedAdapter>,
}

/// An adapter as it is written on the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedAdapter {
    pub spec: String,
    pub weight: f32,
}

impl AdapterFlags {
    /// Returns the adapters that a model was made with.
    pub fn of_model(names: &[String]) -> Self {
        Self { adapter: names.iter().map(|name| WeightedAdapter { spec: name.clone(), weight: 1.0 }).collect() }
    }

    /// Makes all adapters ready, combined to one. `model` is the name of the model that they are for.
    pub fn hold(&self, engine: &Engine, model: &str) -> Result<Option<HeldAdapter>> {
        let wanted = self.registered(engine, model)?;
        let weighted = wanted.iter().zip(&self.adapter).map(|(registered, asked)| (registered.id, asked.weight));
        let weighted: Vec<_> = weighted.filter(|(_, weight)| *weight != 0.0).collect();
        if weighted.is_empty() {
            return Ok(None);
        }
        Ok(Some(engine.adapters().hold(&weighted).context("the adapters cannot be used together")?))
    }

    /// Makes each adapter ready by itself.
    pub fn hold_each(&self, engine: &Engine, model: &str) -> Result<Vec<HeldAdapter>> {
        let wanted = self.registered(engine, model)?;
        let held = wanted.iter().zip(&self.adapter);
        held.map(|(registered, asked)| Ok(engine.adapters().hold(&[(registered.id, asked.weight)])?)).collect()
    }

    /// Returns how long the first adapter takes to be ready for use when it is not in memory, several times.
    pub fn load_times(&self, engine: &Engine, model: &str, repeat: usize) -> Result<Vec<Duration>> {
        let wanted = self.registered(engine, model)?;
        let Some((registered, asked)) = wanted.first().zip(self.adapter.first()) else { return Ok(Vec::new()) };
        let load = |_| {
            engine.adapters().set_budget(0);
            engine.adapters().set_budget(usize::MAX);
            let began = Instant::now();
            engine.adapters().hold(&[(registered.id, asked.weight)])?;
            Ok(began.elapsed())
        };
        (0..repeat).map(load).collect()
    }

    /// Returns what memory and logs call the adapters.
    pub fn label(&self) -> Option<String> {
        let one = |adapter: &WeightedAdapter| match adapter.weight {
            1.0 => adapter.spec.clone(),
            weight => format!("{weight}*{}", adapter.spec),
        };
        (!self.adapter.is_empty()).then(|| self.adapter.iter().map(one).collect::<Vec<_>>().join("+"))
    }

    fn registered(&self, engine: &Engine, model: &str) -> Result<Vec<RegisteredAdapter>> {
        if self.adapter.is_empty() {
            return Ok(Vec::new());
        }
        // One process, one model: only the machine's memory limits them.
        engine.adapters().set_budget(usize::MAX);
        let store = store()?;
        let register = |asked: &WeightedAdapter| {
            let path = adapter_path(&store, &asked.spec, Some(model))?;
            engine.adapters().register(path).with_context(|| format!("--adapter {} cannot be used", asked.spec))
        };
        self.adapter.iter().map(register).collect()
    }
}

/// Returns the file or folder of an adapter: a path that exists, or a name in the store, for this model or for any.
pub fn adapter_path(store: &Store, spec: &str, model: Option<&str>) -> Result<PathBuf> {
    let path = Path::new(spec);
    if path.exists() && (spec.contains(std::path::is_separator) || path.extension().is_some()) {
        return Ok(path.to_owned());
    }
    let Some(model) = model else { return Ok(stored_adapter(store, spec)?.path) };
    let of_model = store.adapter(&format!("{model}:{spec}"));
    Ok(of_model.or_else(|_| store.adapter(spec))?.path)
}

/// Returns an adapter of the store by its name: without that of its model, if there is only one of that name.
pub fn stored_adapter(store: &Store, name: &str) -> Result<StoredAdapter, StoreError> {
    let unknown = match store.adapter(name) {
        Err(error @ StoreError::UnknownAdapter { .. }) => error,
        known => return known,
    };
    let is_meant = |full: &str| full.split_once(':').is_some_and(|(_, short)| short.eq_ignore_ascii_case(name));
    let mut meant = store.adapters()?.into_iter().filter_map(|listed| match listed {
        ListedAdapter::Adapter(stored) if is_meant(&stored.name) => Some(stored.name),
        _ => None,
    });
    match (meant.next(), meant.next()) {
        (Some(only), None) => store.adapter(&only),
        _ => Err(unknown),
    }
}

pub fn parse_weighted(text: &str) -> Result<WeightedAdapter, String> {
    let (spec, weight) = match text.rsplit_once('=') {
        Some((spec, weight)) => {
            let weight: f32 = weight.parse().map_err(|_| format!("{weight:?} is not a weight, such as 0.5"))?;
            (spec, weight)
        }
        None => (text, 1.0),
    };
    if spec.is_empty() || !weight.is_finite() {
        return Err("expected an adapter, with a weight if it is not 1, such as legal=0.5".to_owned());
    }
    Ok(WeightedAdapter { spec: spec.to_owned(), weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_adapter() {
        let read = |text: &str| parse_weighted(text).map(|adapter| (adapter.spec, adapter.weight));
        assert_eq!(read("legal"), Ok(("legal".to_owned(), 1.0)));
        assert_eq!(read("./a=b/x.gguf=0.5"), Ok(("./a=b/x.gguf".to_owned(), 0.5)));
        for wrong in ["", "=1", "a=much", "a=inf", "a=nan"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
