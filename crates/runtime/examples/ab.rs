use ruvllm_runtime::*;
use std::time::Duration;
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    s.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1e-9
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let reps: usize = args[3].parse().unwrap();
    let temp: f32 = args[4].parse().unwrap();
    let pass = args.get(5).is_none_or(|a| a != "nocost");
    let mut e = Engine::builder(&args[1]).context(Some(2048)).threads(Some(1)).build().unwrap();
    let prompts: Vec<serde_json::Value> = serde_json::from_str(&std::fs::read_to_string(&args[2]).unwrap()).unwrap();
    let end = e.tokenizer().end_of_generation().to_vec();
    let mut kinds: std::collections::BTreeMap<String, [f64; 5]> = Default::default();
    for p in &prompts {
        let text = p["user"].as_str().unwrap().to_owned();
        let prompt = if p["raw"].as_bool().unwrap_or(false) {
            Prompt::Text(text)
        } else {
            Prompt::Messages(vec![Message::user(&text)])
        };
        let ids = e.encode(&prompt).unwrap();
        let sampling = if temp == 0.0 {
            Sampling::greedy()
        } else {
            Sampling { temperature: temp, seed: 1, ..Sampling::default() }
        };
        let mut times = [vec![], vec![]];
        let mut out = [vec![], vec![]];
        let mut counts = Default::default();
        for rep in 0..reps * 2 {
            let on = rep % 2;
            let core = e.core();
            core.submit(ruvllm_engine::Request {
                prompt: ids.clone(),
                sampling: sampling.clone(),
                max_tokens: Some(p["n"].as_u64().unwrap() as usize),
                end_tokens: end.clone(),
                speculation: if on == 1 { Speculation::On } else { Speculation::Off },
            })
            .unwrap();
            let mut tokens = vec![];
            let mut t = 0.0;
            while !core.is_idle() {
                let s = cpu();
                let ev = core.step();
                let d = cpu() - s;
                if pass {
                    core.step_took(Duration::from_secs_f64(d));
                }
                if !tokens.is_empty() {
                    t += d;
                }
                for x in ev {
                    let x = x.unwrap();
                    tokens.push(x.sampled.token);
                    counts = x.counts;
                }
            }
            times[on].push(t);
            out[on] = tokens;
        }
        assert_eq!(out[0], out[1]);
        let m = |v: &Vec<f64>| v.iter().copied().fold(f64::MAX, f64::min);
        let (a, b) = (m(&times[0]), m(&times[1]));
        let n = out[0].len() - 1;
        println!(
            "{:8} {n:4} tokens {:4} steps {:4} drafted {:4} accepted  {:.2} t/step  off {:.1} on {:.1} tok/s  ratio {:.3}",
            p["name"].as_str().unwrap(),
            counts.steps - 1,
            counts.drafted,
            counts.accepted,
            n as f64 / (counts.steps - 1) as f64,
            n as f64 / a,
            n as f64 / b,
            a / b
        );
        let k = kinds.entry(p["kind"].as_str().unwrap().to_owned()).or_default();
        for (s, v) in k.iter_mut().zip([n as f64, (counts.steps - 1) as f64, a, b, 1.0]) {
            *s += v;
        }
    }
    for (k, v) in kinds {
        println!("{k}: {:.2} tokens/step, {:.2}x", v[0] / v[1], v[2] / v[3]);
    }
}
