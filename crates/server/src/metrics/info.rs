//! Metrics whose labels are what they say. They are written anew at each scrape: a registered one would stay with the labels
//! that it once had.

use std::fmt::Write;

use ruvllm_runtime::PAGE_TOKENS;

use super::ModelSnapshot;

/// Adds vLLM's metrics that routers read of a worker: how large its cache is, and which adapters are in memory.
pub(super) fn write(models: &[ModelSnapshot], unix_time: u64, text: &mut String) {
    let generating = || models.iter().filter(|model| model.kv_page_bytes > 0);
    let mut family = |name, help, labels: &dyn Fn(&ModelSnapshot) -> Vec<(&'static str, String)>, value: u64| {
        let mut all = generating().peekable();
        if all.peek().is_none() {
            return;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for model in all {
            let of_model = [("model_name", model.name.clone())].into_iter().chain(labels(model));
            let labels: Vec<String> =
                of_model.map(|(label, value)| format!("{label}=\"{}\"", escaped(&value))).collect();
            let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
        }
        text.push('\n');
    };
    let cache = |model: &ModelSnapshot| {
        vec![
            ("block_size", PAGE_TOKENS.to_string()),
            ("num_gpu_blocks", (model.kv_budget_bytes / model.kv_page_bytes).to_string()),
            ("enable_prefix_caching", "True".to_owned()),
        ]
    };
    family("vllm:cache_config_info", "Tokens of a KV page, and pages that fit into memory.", &cache, 1);
    let adapters = |model: &ModelSnapshot| {
        vec![
            ("max_lora", model.adapters.fitting().to_string()),
            ("running_lora_adapters", model.recent_adapters.join(",")),
            // Requests do not wait for an adapter: it is loaded before they are queued.
            ("waiting_lora_adapters", String::new()),
        ]
    };
    family("vllm:lora_requests_info", "Adapters in memory, those first that were used last.", &adapters, unix_time);
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_models_without_a_cache_left_out() {
        let encoder = ModelSnapshot { name: "minilm".to_owned(), ..ModelSnapshot::default() };
        let model = ModelSnapshot {
            name: "a\"b".to_owned(),
            kv_budget_bytes: 1000,
            kv_page_bytes: 300,
            recent_adapters: vec!["x".to_owned(), "y".to_owned()],
            ..ModelSnapshot::default()
        };
        let mut text = String::new();
        write(std::slice::from_ref(&encoder), 7, &mut text);
        assert_eq!(text, "");
        write(&[encoder, model], 7, &mut text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        let cache = r#"vllm:cache_config_info{model_name="a\"b",block_size="16",num_gpu_blocks="3",enable_prefix_caching="True"} 1"#;
        let adapters = r#"vllm:lora_requests_info{model_name="a\"b",max_lora="0",running_lora_adapters="x,y",waiting_lora_adapters=""} 7"#;
        assert_eq!(lines, [cache, adapters]);
    }
}
