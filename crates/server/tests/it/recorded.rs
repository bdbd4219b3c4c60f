//! Request bodies that agents and a router really sent, recorded here, with their texts replaced by other ones.

use ruvllm_runtime::Prompt;
use ruvllm_server::api::checked::requests_and_ignored;
use serde_json::Value;

#[test]
fn what_others_send_is_accepted_and_what_has_no_effect_is_named() {
    for (recorded, tools, ignored) in [
        (
            include_str!("../data/recorded/claude_code.json"),
            24,
            vec!["context_management", "system:x-anthropic-billing-header"],
        ),
        // Seven functions, a namespace of five, and a search that only other servers run.
        (include_str!("../data/recorded/codex.json"), 12, vec!["client_metadata", "tools[8]:web_search"]),
        (
            include_str!("../data/recorded/sglang_router.json"),
            1,
            vec![
                "no_stop_trim",
                "ignore_eos",
                "continue_final_message",
                "skip_special_tokens",
                "separate_reasoning",
                "stream_reasoning",
                "return_hidden_states",
            ],
        ),
    ] {
        let recorded: Value = serde_json::from_str(recorded).expect("JSON");
        let (path, client) = (recorded["path"].as_str().expect("a path"), &recorded["client"]);
        let (requests, named) = requests_and_ignored(path, recorded["body"].to_string().as_bytes())
            .unwrap_or_else(|error| panic!("{client}: {error}"));
        assert_eq!(named, ignored, "{client}");
        let request = &requests[0];
        assert_eq!(request.tools.definitions.len(), tools, "{client}");
        let Prompt::Messages(messages) = &request.prompt else { panic!("{client}: no conversation") };
        assert!(messages.iter().all(|message| !message.content.contains("billing")), "{client}");
        assert!(request.clamps_max_tokens, "{client} asks for more than a small model has");
    }
}
