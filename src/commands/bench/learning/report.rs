//! What the measurements say, beside the bars that learning has to reach.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use ruvllm_learning::{Comparison, Verdict};
use serde_json::{Value, json};

use super::ITEMS_FIXED;
use super::record::{Kind, Record, Records};
use super::texts::Domain;
use crate::output;
use crate::output::plot::{self, Line};

/// Of 50 items 15 are poisoned, and the first of them repeats nothing.
const LEFT_OUT_MIN: usize = 14;

/// A bar, and what was reached.
struct Bar {
    what: String,
    bar: String,
    reached: String,
    /// `None` if it was not measured.
    is_met: Option<bool>,
}

pub struct Report {
    domains: Vec<String>,
    /// Kind, items, and for each domain the mean over seeds.
    rows: Vec<(Kind, usize, Vec<Option<f64>>)>,
    bars: Vec<Bar>,
    measurements: usize,
}

/// Says what a measurement came to.
pub fn line(record: &Record) -> String {
    let name = &record.name;
    let changes: Vec<String> =
        record.changes.iter().map(|(domain, change)| format!("{domain} {}", percent(*change))).collect();
    let none = || "; too few items are left to learn from".to_owned();
    let none = || if record.left_out > 0 { none() } else { String::new() };
    let gate = record.gate.as_ref().map_or_else(none, |gate| {
        let verdict = if gate.verdict == Verdict::Promoted { "promoted" } else { "refused" };
        let reason = gate.reasons.first().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("; general texts {}; {verdict}{reason}", percent(gate.general.rise))
    });
    format!(
        "{:?} learning from {} items (seed {}): {}{gate}; {:.0} s",
        name.kind,
        name.items,
        name.seed,
        changes.join(", "),
        record.seconds
    )
}

impl Report {
    pub fn new(records: &Records, domains: &[Domain], items: &[usize]) -> Self {
        let domains: Vec<String> = domains.iter().map(|domain| domain.name.clone()).collect();
        let mut rows = Vec::new();
        for (kind, count) in
            [Kind::Instant, Kind::Background].into_iter().flat_map(|kind| items.iter().map(move |count| (kind, *count)))
        {
            let means: Vec<Option<f64>> =
                domains.iter().map(|domain| of_domain(records, kind, count, domain)).collect();
            if means.iter().any(Option::is_some) {
                rows.push((kind, count, means));
            }
        }
        let bars = bars(records, &rows);
        Self { domains, rows, bars, measurements: records.all.len() }
    }

    pub fn print(&self) -> Result<()> {
        output::table(&self.table())?;
        output::line("")?;
        output::table(&self.bar_rows())?;
        let missed = self.bars.iter().filter(|bar| bar.is_met == Some(false)).count();
        let unknown = self.bars.iter().filter(|bar| bar.is_met.is_none()).count();
        output::remark(&format!("{} measurements; {missed} bars missed, {unknown} not measured", self.measurements));
        Ok(())
    }

    fn table(&self) -> Vec<Vec<String>> {
        let mut heading = vec!["LOSS ON WHAT IS HELD OUT".to_owned(), "ITEMS".to_owned()];
        heading.extend(self.domains.iter().map(|domain| domain.to_uppercase()));
        heading.push("MEAN".to_owned());
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
        let row = |(kind, items, means): &(Kind, usize, Vec<Option<f64>>)| {
            let mut row = vec![format!("{kind:?} learning"), items.to_string()];
            row.extend(means.iter().map(|value| figure(*value)));
            row.push(figure(mean_of_all(means)));
            row
        };
        std::iter::once(heading).chain(self.rows.iter().map(row)).collect()
    }

    fn bar_rows(&self) -> Vec<Vec<String>> {
        let heading = ["BAR", "", "REACHED", ""].map(str::to_owned).to_vec();
        let row = |bar: &Bar| {
            let verdict = match bar.is_met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "not measured",
            };
            vec![bar.what.clone(), bar.bar.clone(), bar.reached.clone(), verdict.to_owned()]
        };
        std::iter::once(heading).chain(self.bars.iter().map(row)).collect()
    }

    pub fn to_json(&self, records: &[Record]) -> Value {
        let bars = self
            .bars
            .iter()
            .map(|bar| json!({ "what": bar.what, "bar": bar.bar, "reached": bar.reached, "is_met": bar.is_met }));
        json!({ "domains": self.domains, "bars": bars.collect::<Vec<_>>(), "measurements": records })
    }

    /// Writes a page with the gain of each domain over the number of items.
    pub fn write_page(&self, path: &Path, model: &str) -> Result<()> {
        let mut page = plot::page("ruvllm bench learning", &format!("{model}, {} measurements", self.measurements));
        let mut names: Vec<&str> = self.domains.iter().map(String::as_str).take(plot::COLOURS.len() - 1).collect();
        names.push("mean");
        page.push_str(&plot::legend(&names));
        for kind in [Kind::Instant, Kind::Background] {
            let rows: Vec<_> = self.rows.iter().filter(|row| row.0 == kind).collect();
            let places: Vec<String> = rows.iter().map(|row| row.1.to_string()).collect();
            // A loss that falls is drawn as a line that rises; one that rises is a gap.
            let drawn = |change: Option<f64>| change.map(|change| -100.0 * change).filter(|gain| *gain >= 0.0);
            let mut lines: Vec<Line> = (0..names.len() - 1)
                .map(|domain| Line { points: rows.iter().map(|row| drawn(row.2[domain])).collect() })
                .collect();
            lines.push(Line { points: rows.iter().map(|row| drawn(mean_of_all(&row.2))).collect() });
            if !rows.is_empty() {
                let title = format!("{kind:?} learning: how much the loss falls (%)");
                page.push_str(&plot::plot(&title, "items", &places, &lines));
            }
        }
        page.push_str(&plot::table(&self.table()));
        page.push_str(&plot::table(&self.bar_rows()));
        page.push_str("</html>\n");
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
        output::remark(&format!("written: {}", path.display()));
        Ok(())
    }
}

/// Returns the mean change of a domain over all seeds.
fn of_domain(records: &Records, kind: Kind, items: usize, domain: &str) -> Option<f64> {
    mean(
        records
            .of(kind, items)
            .filter(|record| record.name.domain == domain)
            .filter_map(|record| record.changes.get(domain))
            .copied(),
    )
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// Returns the mean of all domains, if all are known.
fn mean_of_all(means: &[Option<f64>]) -> Option<f64> {
    let known: Option<Vec<f64>> = means.iter().copied().collect();
    mean(known?.into_iter())
}

fn bars(records: &Records, rows: &[(Kind, usize, Vec<Option<f64>>)]) -> Vec<Bar> {
    let means = |kind: Kind, items: usize| {
        let row = rows.iter().find(|row| row.0 == kind && row.1 == items);
        row.map(|row| row.2.clone()).unwrap_or_default()
    };
    let mut bars = Vec::new();
    let mut loss = |kind: Kind, items: usize, mean_bar: Option<f64>, each_bar: Option<f64>| {
        let means = means(kind, items);
        let what = |which: &str| format!("{kind:?} learning, {items} items: {which}");
        if let Some(bar) = mean_bar {
            bars.push(below(what("mean of all domains"), bar, mean_of_all(&means)));
        }
        if let Some(bar) = each_bar {
            let worst =
                means.iter().flatten().copied().max_by(f64::total_cmp).filter(|_| mean_of_all(&means).is_some());
            bars.push(below(what("the least gain of a domain"), bar, worst));
        }
    };
    loss(Kind::Background, 50, Some(-0.07), Some(-0.03));
    loss(Kind::Background, 200, Some(-0.12), Some(-0.05));
    loss(Kind::Instant, 10, None, Some(-0.008));
    loss(Kind::Instant, 50, Some(-0.04), None);
    for (against, told) in [
        ("ngram", "an n-gram memory"),
        ("recall", "n-grams and nearest neighbours"),
        ("examples", "ten items in the prompt"),
    ] {
        bars.push(beaten(records, against, told));
    }
    bars.push(general(records));
    for (kind, told) in [
        (Kind::Shuffled, "shuffled answers"),
        (Kind::Template, "a template"),
        (Kind::Poisoned, "30 % poisoned answers"),
    ] {
        bars.push(refused(records, kind, told));
    }
    bars.extend(kept(records));
    bars.push(trainer(records));
    bars
}

fn below(what: String, bar: f64, reached: Option<f64>) -> Bar {
    Bar {
        what,
        bar: format!("<= {}", percent(bar)),
        reached: reached.map_or_else(String::new, percent),
        is_met: reached.map(|reached| reached <= bar),
    }
}

/// Whether candidates of 200 items are better than something else, with the gate's intervals.
fn beaten(records: &Records, against: &str, told: &str) -> Bar {
    let comparison = |record: &Record| -> Option<Comparison> {
        record.gate.as_ref()?.comparisons.iter().find(|one| one.against == against).cloned()
    };
    let all: Vec<Comparison> = records.of(Kind::Background, 200).filter_map(comparison).collect();
    let won = all.iter().filter(|one| one.interval.high < 0.0).count();
    let change = mean(all.iter().map(|one| one.interval.change));
    Bar {
        what: format!("Background learning, 200 items, against {told}"),
        bar: "95 % intervals below 0".to_owned(),
        reached: change.map_or_else(String::new, |change| format!("{}, {won} of {}", percent(change), all.len())),
        is_met: (!all.is_empty()).then_some(won == all.len()),
    }
}

fn general(records: &Records) -> Bar {
    let promoted =
        records.all.iter().filter_map(|record| record.gate.as_ref()).filter(|gate| gate.verdict == Verdict::Promoted);
    let worst = promoted.map(|gate| gate.general.rise).max_by(f64::total_cmp);
    below("General texts, the worst of all that were promoted".to_owned(), 0.005, worst)
}

fn refused(records: &Records, kind: Kind, told: &str) -> Bar {
    let all: Vec<&Record> = records.of(kind, ITEMS_FIXED).collect();
    let refused = all.iter().filter(|record| record.is_refused()).count();
    let left_out = mean(all.iter().map(|record| record.left_out as f64));
    // What is left when the poisoned answers are left out may be learned.
    let is_guarded =
        |record: &&&Record| record.is_refused() || kind == Kind::Poisoned && record.left_out >= LEFT_OUT_MIN;
    let guarded = all.iter().filter(is_guarded).count();
    let reached = left_out.map(|left_out| format!("{refused} of {}, {left_out:.0} items left out", all.len()));
    Bar {
        what: format!("What was learned from {told}"),
        bar: if kind == Kind::Poisoned { "refused, or these answers left out" } else { "refused" }.to_owned(),
        reached: reached.unwrap_or_default(),
        is_met: (!all.is_empty()).then_some(guarded == all.len()),
    }
}

/// What of the gain of each of two domains is left when both are learned.
fn kept(records: &Records) -> Vec<Bar> {
    let mut shares: BTreeMap<bool, Vec<f64>> = BTreeMap::new();
    for record in records.of(Kind::Both, ITEMS_FIXED) {
        for (domain, change) in &record.changes {
            let alone = records
                .of(Kind::Background, ITEMS_FIXED)
                .find(|one| one.name.seed == record.name.seed && one.name.domain == *domain);
            let is_first = *domain == record.name.domain;
            if let Some(alone) = alone.and_then(|alone| alone.changes.get(domain)).filter(|alone| **alone < 0.0) {
                shares.entry(is_first).or_default().push(change / alone);
            }
        }
    }
    [(true, "A, then B: what is kept of A's gain", 0.8), (false, "A, then B: what is reached of B's gain", 0.9)]
        .map(|(is_first, what, bar)| {
            let reached = shares.get(&is_first).and_then(|shares| mean(shares.iter().copied()));
            Bar {
                what: what.to_owned(),
                bar: format!(">= {:.0} %", 100.0 * bar),
                reached: reached.map_or_else(String::new, |reached| format!("{:.0} %", 100.0 * reached)),
                is_met: reached.map(|reached| reached >= bar),
            }
        })
        .into()
}

fn trainer(records: &Records) -> Bar {
    let mut speeds: Vec<f64> = records.all.iter().filter_map(|record| record.tokens_per_second).collect();
    speeds.sort_by(f64::total_cmp);
    let median = speeds.get(speeds.len() / 2).copied();
    Bar {
        what: "Training, the median".to_owned(),
        bar: ">= 400 tokens/s".to_owned(),
        reached: median.map_or_else(String::new, |median| format!("{median:.0}")),
        is_met: median.map(|median| median >= 400.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}
