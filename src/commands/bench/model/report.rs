//! Results of the measurements of one model, as JSON or as tables.

use anyhow::Result;
use serde_json::json;

use super::{AdapterCosts, AdapterSpeed, FirstToken, ModelBench, Rates};
use crate::commands::bench::arrival::Arrival;
use crate::commands::bench::sessions::Sessions;
use crate::commands::bench::{prefix, speculation};
use crate::output;

pub struct Report<'b> {
    pub bench: &'b ModelBench,
    /// `None` if the backend decides.
    pub threads: Option<usize>,
    pub kernels: &'static str,
    pub load_s: f64,
    pub rates: Rates,
    /// `None` without adapters.
    pub adapter_speed: Option<AdapterSpeed>,
    /// `None` if its prompt does not fit the context.
    pub first_token: Option<FirstToken>,
    /// Empty unless asked for.
    pub speculation: Vec<speculation::Comparison>,
    pub prefixes: Option<Vec<prefix::Comparison>>,
    pub arrival: Option<Arrival>,
    pub sessions: Option<Sessions>,
    pub adapter: Option<AdapterCosts>,
}

impl Report<'_> {
    pub fn print_json(&self) -> Result<()> {
        self.print_remarks();
        let flags = &self.bench.flags;
        let mut object = json!({
            "model": self.bench.model.model,
            "threads": self.threads,
            "kernels": self.kernels,
            "load_s": self.load_s,
            "prefill": { "tokens": flags.prompt_tokens, "tok_s": self.rates.prefill.to_json() },
            "decode": { "tokens": flags.decode, "depth": flags.depth, "sequences": flags.sequences,
                        "tok_s": self.rates.decode.to_json() },
        });
        if !flags.adapter.is_empty() {
            object["adapters"] = flags.adapter.iter().map(|adapter| adapter.spec.clone()).collect();
        }
        if let Some(AdapterSpeed { alone, share }) = &self.adapter_speed {
            let both = |rates: &Rates| json!({ "prefill": rates.prefill.to_json(), "decode": rates.decode.to_json() });
            object["without_adapters"] = json!({ "tok_s": both(alone), "share_with_adapters": both(share) });
        }
        if let Some(adapter) = &self.adapter {
            object["adapter"] = adapter.to_json();
        }
        if let Some(first_token) = &self.first_token {
            object["first_token"] = first_token.to_json();
        }
        if !self.speculation.is_empty() {
            object["speculation"] = self.speculation.iter().map(speculation::Comparison::to_json).collect();
        }
        if let Some(arrival) = &self.arrival {
            object["arrival"] = arrival.to_json();
        }
        if let Some(sessions) = &self.sessions {
            object["sessions"] = sessions.to_json();
        }
        if let Some(prefixes) = &self.prefixes {
            object["prefix"] = prefixes.iter().map(prefix::Comparison::to_json).collect();
        }
        output::json(&object)
    }

    pub fn print_tables(&self) -> Result<()> {
        self.print_remarks();
        let Self { threads, kernels, load_s, .. } = self;
        let name = &self.bench.model.model;
        let how = match threads {
            Some(threads) => format!("{threads} threads, {kernels} kernels"),
            None => (*kernels).to_owned(),
        };
        output::line(&format!("{name}: {how}, loaded in {load_s:.2} s"))?;
        for (index, table) in self.tables().iter().enumerate() {
            if index > 0 {
                output::line("")?;
            }
            output::table(table)?;
        }
        Ok(())
    }

    fn tables(&self) -> Vec<Vec<Vec<String>>> {
        let mut tables = vec![self.rates_table()];
        tables.extend(self.first_token.as_ref().map(FirstToken::table));
        tables.extend(self.adapter.as_ref().map(AdapterCosts::table));
        if let Some(prefixes) = &self.prefixes {
            let heading = [prefix::Comparison::heading()].into_iter();
            tables.push(heading.chain(prefixes.iter().map(prefix::Comparison::row)).collect());
        }
        tables.extend(self.arrival.as_ref().map(Arrival::table));
        tables.extend(self.sessions.as_ref().map(Sessions::table));
        if !self.speculation.is_empty() {
            let heading = [speculation::Comparison::heading()].into_iter();
            tables.push(heading.chain(self.speculation.iter().map(speculation::Comparison::row)).collect());
        }
        tables
    }

    fn rates_table(&self) -> Vec<Vec<String>> {
        let flags = &self.bench.flags;
        let adapters = match flags.adapter.len() {
            0 => "",
            1 => ", with an adapter",
            count => &format!(", with {count} adapters in turn"),
        };
        let pack = if self.bench.model.engine.pack.is_set() { ", with the kernel pack" } else { "" };
        let with = format!("{adapters}{pack}");
        let prefill = "prefill";
        let decode = format!("decode at depth {}, {} at once", flags.depth, flags.sequences);
        let mut table = vec![
            ["", "tokens", "tokens/s", "least", "most"].map(str::to_owned).to_vec(),
            self.rates.prefill.row(&format!("{prefill}{with}"), flags.prompt_tokens),
            self.rates.decode.row(&format!("{decode}{with}"), flags.decode),
        ];
        if let Some(AdapterSpeed { alone, share }) = &self.adapter_speed {
            let lines = [
                (prefill, flags.prompt_tokens, &alone.prefill, &share.prefill),
                (&decode, flags.decode, &alone.decode, &share.decode),
            ];
            for (name, tokens, alone, share) in lines {
                table.push(alone.row(&format!("{name}, the model alone"), tokens));
                let share = [share.median, share.least, share.most].map(|share| format!("{share:.3} x"));
                table.push([vec![format!("{name}: of the model alone"), String::new()], share.to_vec()].concat());
            }
        }
        table
    }

    /// Prints what limits the results.
    fn print_remarks(&self) {
        let sessions = self.sessions.iter().flat_map(Sessions::remarks);
        let prefixes = self.prefixes.iter().flatten().filter_map(prefix::Comparison::remark);
        sessions.chain(prefixes).for_each(|text| output::remark(&text));
    }
}
