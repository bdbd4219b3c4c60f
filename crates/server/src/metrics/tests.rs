use super::*;

fn snapshot(name: &str) -> ModelSnapshot {
    ModelSnapshot {
        name: name.to_owned(),
        running: 3,
        waiting: 2,
        kv_used_bytes: 256,
        kv_budget_bytes: 1024,
        prefix_queries: 100,
        prefix_hits: 40,
        preemptions: 1,
        tier_pages: vec![("q8".to_owned(), 7)],
        disk: Some(DiskSnapshot { bytes: 4096, pages: 2, written_pages: 5, read_pages: 3 }),
        ..ModelSnapshot::default()
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()
}

#[test]
fn what_engines_know_has_the_names_of_vllm() {
    let text = Metrics::default().render(&[snapshot("smollm2")]);
    let lines = lines(&text);
    for expected in [
        r#"vllm:num_requests_running{model_name="smollm2"} 3"#,
        r#"vllm:num_requests_waiting{model_name="smollm2"} 2"#,
        r#"vllm:kv_cache_usage_perc{model_name="smollm2"} 0.25"#,
        r#"vllm:prefix_cache_queries_total{model_name="smollm2"} 100"#,
        r#"vllm:prefix_cache_hits_total{model_name="smollm2"} 40"#,
        r#"vllm:num_preemptions_total{model_name="smollm2"} 1"#,
        r#"ruvllm_kv_tier_pages{model_name="smollm2",format="q8"} 7"#,
        r#"ruvllm_kv_disk_bytes{model_name="smollm2"} 4096"#,
    ] {
        assert!(lines.contains(&expected), "{expected} is not in\n{text}");
    }
    assert!(text.contains("# TYPE vllm:prefix_cache_hits_total counter"), "{text}");
}

#[test]
fn a_finished_request_is_counted_by_its_reason_and_sorted_into_buckets() {
    let metrics = Metrics::default();
    let model = metrics.model("m");
    model.started(Duration::from_millis(30));
    model.first_token(Duration::from_millis(70));
    model.next_token(Duration::from_millis(5));
    model.finished(&Finished {
        reason: FinishedReason::Length,
        took: Duration::from_secs(2),
        prompt_tokens: 20,
        cached_tokens: 16,
        generated_tokens: 9,
    });
    metrics.maintain();
    let text = metrics.render(&[]);
    let lines = lines(&text);
    for expected in [
        r#"vllm:request_success_total{model_name="m",finished_reason="length"} 1"#,
        r#"vllm:request_success_total{model_name="m",finished_reason="stop"} 0"#,
        r#"vllm:prompt_tokens_total{model_name="m"} 20"#,
        r#"vllm:prompt_tokens_cached_total{model_name="m"} 16"#,
        r#"vllm:generation_tokens_total{model_name="m"} 9"#,
        r#"vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.05"} 0"#,
        r#"vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.1"} 1"#,
        r#"vllm:e2e_request_latency_seconds_sum{model_name="m"} 2"#,
        r#"vllm:inter_token_latency_seconds_count{model_name="m"} 1"#,
        r#"vllm:request_queue_time_seconds_count{model_name="m"} 1"#,
    ] {
        assert!(lines.contains(&expected), "{expected} is not in\n{text}");
    }
}

#[test]
fn a_model_that_was_unloaded_has_nothing_running() {
    let metrics = Metrics::default();
    metrics.render(&[snapshot("old")]);
    let text = metrics.render(&[snapshot("new")]);
    assert!(lines(&text).contains(&r#"vllm:num_requests_running{model_name="old"} 0"#), "{text}");
    assert!(lines(&text).contains(&r#"vllm:num_requests_running{model_name="new"} 3"#), "{text}");
}

#[test]
fn made_up_methods_share_one_label() {
    let metrics = Arc::new(Metrics::default());
    for method in ["BREW", "STEEP"] {
        metrics.http_started(method, None).ended(405, None);
    }
    let text = metrics.render(&[]);
    let expected = r#"ruvllm_http_requests_total{endpoint="unknown",method="other",status="405",model_name=""} 2"#;
    assert!(lines(&text).contains(&expected), "{text}");
    assert!(lines(&text).contains(&"ruvllm_http_requests_running 0"), "{text}");
}
