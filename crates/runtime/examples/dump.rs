use ruvllm_runtime::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let temp: f32 = args[3].parse().unwrap();
    let mut e = Engine::builder(&args[1]).context(Some(2048)).threads(Some(2)).build().unwrap();
    let prompts: Vec<serde_json::Value> = serde_json::from_str(&std::fs::read_to_string(&args[2]).unwrap()).unwrap();
    for p in &prompts {
        let prompt = Prompt::Messages(vec![Message::user(p["user"].as_str().unwrap())]);
        let ids = e.encode(&prompt).unwrap();
        let mut r = Request::new(Prompt::Tokens(ids.clone()));
        r.sampling = if temp == 0.0 {
            Sampling::greedy()
        } else {
            Sampling { temperature: temp, seed: 1, ..Sampling::default() }
        };
        r.max_tokens = Some(p["n"].as_u64().unwrap() as usize);
        let a = e.generate(r).unwrap();
        println!(
            "{}",
            serde_json::json!({"kind": p["kind"], "name": p["name"], "prompt": ids, "out": a.tokens, "text": a.text})
        );
    }
}
