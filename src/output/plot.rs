//! Self-contained HTML pages with plots, and small plots for the terminal.

use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 48.0;
/// Maximum number of labels below a plot, and of their characters together.
const LABELS_MAX: usize = 8;
const LABELS_CHARS: usize = 52;
/// Horizontal lines of a plot, above the lowest.
const LEVELS: u32 = 4;
/// Distinguishable by lightness too, for those who cannot tell all colours apart.
pub const COLOURS: [&str; 5] = ["#0b5394", "#e69138", "#6aa84f", "#a64d79", "#777777"];

/// A line of a plot. Missing points are gaps.
pub struct Line {
    pub points: Vec<Option<f64>>,
}

/// Returns the start of a page. `about` describes its contents.
pub fn page(title: &str, about: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n<style>body{{font:14px \
         system-ui,sans-serif;margin:2em;color-scheme:light dark}}svg{{margin:0 1.5em 1.5em 0}}td,th{{padding:.2em .8em;\
         text-align:right}}text{{fill:currentColor;font-size:11px}}</style>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escape(about)
    )
}

/// Shows which colour is which line.
pub fn legend(names: &[&str]) -> String {
    let mut legend = String::from("<p>");
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(legend, "<span style=\"color:{colour}\">&#9632; {}</span> ", escape(name));
    }
    legend.push_str("</p>\n");
    legend
}

/// Returns a diagram of lines over named places; `below` labels the axis.
pub fn plot(title: &str, below: &str, places: &[String], lines: &[Line]) -> String {
    let values = lines.iter().flat_map(|line| line.points.iter().flatten());
    let step = round_step(values.copied().fold(0.0, f64::max));
    let most = step * f64::from(LEVELS);
    let x = |place: usize| MARGIN + place as f64 / (places.len().max(2) - 1) as f64 * (WIDTH - 1.5 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN + value / most * (1.5 * MARGIN - HEIGHT);
    let title = escape(title);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" aria-label=\"{title}\"><text x=\"{MARGIN}\" y=\"14\" \
         style=\"font-weight:bold\">{title}</text>\n"
    );
    for level in 0..=LEVELS {
        let level = step * f64::from(level);
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"currentColor\" opacity=\"0.2\"/><text x=\"{}\" \
             y=\"{}\" text-anchor=\"end\">{}</text>",
            WIDTH - MARGIN / 2.0,
            MARGIN - 5.0,
            y(level) + 4.0,
            short(level),
            y = y(level),
        );
    }
    let longest = places.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let labels_max = (LABELS_CHARS / (longest + 2)).clamp(2, LABELS_MAX);
    let every = places.len().div_ceil(labels_max).max(1);
    for (place, name) in places.iter().enumerate().step_by(every) {
        let (x, y, name) = (x(place), HEIGHT - MARGIN + 16.0, escape(name));
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>");
    }
    let (centre, bottom, below) = (WIDTH / 2.0, HEIGHT - 12.0, escape(below));
    let _ = writeln!(svg, "<text x=\"{centre}\" y=\"{bottom}\" text-anchor=\"middle\">{below}</text>");
    for (index, line) in lines.iter().enumerate() {
        let points = line.points.iter().enumerate().filter_map(|(place, value)| Some((x(place), y((*value)?))));
        svg.push_str(&drawn(&points.collect::<Vec<_>>(), COLOURS[index % COLOURS.len()]));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the distance between levels that are round numbers and reach up to `most`.
fn round_step(most: f64) -> f64 {
    let least = most.max(1e-9) / f64::from(LEVELS);
    let power = 10f64.powf(least.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0].map(|factor| factor * power).into_iter().find(|step| *step >= least);
    round.unwrap_or(10.0 * power)
}

fn drawn(points: &[(f64, f64)], colour: &str) -> String {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let mut svg = format!("<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n");
    for (x, y) in points {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
    svg
}

/// Returns a table; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let mut table = String::from("<table>");
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        table.push_str("<tr>");
        for cell in row {
            let _ = write!(table, "<{tag}>{}</{tag}>", escape(cell));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</table>\n");
    table
}

/// Shows values as a row of blocks of eight heights; missing ones are dots.
pub fn blocks(values: &[Option<f64>], most: f64) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let block = |value: &Option<f64>| match value {
        Some(value) => HEIGHTS[((value / most.max(1e-9) * 8.0) as usize).min(7)],
        None => '·',
    };
    values.iter().map(block).collect()
}

/// Formats a number with about three digits.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_stays_text() {
        let lines = [Line { points: vec![Some(1.0), None, Some(3.0)] }];
        let places = ["<script>".to_owned(), "b".to_owned(), "c".to_owned()];
        let svg = plot("\"title\" & more", "time", &places, &lines);
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;") && svg.contains("&quot;title&quot;"));
        assert_eq!(svg.matches("<circle").count(), 2, "a gap has no point");
        assert!(!table(&[vec!["<b>".into()]]).contains("<b>"));
    }

    #[test]
    fn levels_are_round_and_reach_the_top() {
        for (most, step) in [(71.0, 20.0), (100.0, 25.0), (0.83, 0.25), (499.0, 200.0), (4.0, 1.0)] {
            assert!((round_step(most) - step).abs() < 1e-9, "{most}: {}", round_step(most));
        }
        assert!(round_step(0.0) > 0.0);
    }

    #[test]
    fn blocks_are_as_high_as_their_values() {
        assert_eq!(blocks(&[Some(0.0), None, Some(0.5), Some(1.0), Some(2.0)], 1.0), "▁·▅██");
        assert_eq!(blocks(&[Some(0.0)], 0.0), "▁");
    }
}
