//! GGUF's names of weights.

/// Names of tensors that are in no layer.
const OUTER: &[(&str, &str)] = &[
    ("embed_tokens.weight", "token_embd.weight"),
    ("lm_head.weight", "output.weight"),
    ("norm.weight", "output_norm.weight"),
    ("embedding_norm.weight", "token_embd_norm.weight"),
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
];

/// Names within a layer, without `.weight` and `.bias`.
const INNER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("operator_norm", "attn_norm"),
    ("ffn_norm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_layernorm", "attn_q_norm"),
    ("self_attn.k_layernorm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w2", "ffn_down"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.gate", "ffn_gate_inp"),
    ("conv.conv", "shortconv.conv"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("router.proj", "ffn_gate_inp"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
];

/// Names within a layer that are no weight or bias of anything.
const WHOLE: &[(&str, &str)] = &[
    ("self_attn.sinks", "attn_sinks.weight"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("feed_forward.expert_bias", "exp_probs_b.bias"),
    ("layer_scalar", "layer_output_scale.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
];

/// Matrices of one expert, without `.weight`.
const OF_EXPERT: &[(&str, &str)] = &[
    ("gate_proj", "ffn_gate_exps.weight"),
    ("up_proj", "ffn_up_exps.weight"),
    ("down_proj", "ffn_down_exps.weight"),
    ("w1", "ffn_gate_exps.weight"),
    ("w2", "ffn_down_exps.weight"),
    ("w3", "ffn_up_exps.weight"),
];

fn find(table: &'static [(&str, &str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == name).map(|(_, gguf)| *gguf)
}

pub(super) fn outer(name: &str) -> Option<&'static str> {
    find(OUTER, name)
}

/// Returns the name of a layer's tensor, without the layer.
pub(super) fn inner(architecture: &str, name: &str) -> Option<String> {
    if let Some(whole) = find(WHOLE, name) {
        return Some(whole.to_owned());
    }
    let (of, what) = name.rsplit_once('.')?;
    if !["weight", "bias"].contains(&what) {
        return None;
    }
    // What follows attention is normalized, or what precedes the next block.
    let is_after = ["gemma2", "gemma3", "gemma4", "gpt-oss", "qwen35", "qwen35moe"].contains(&architecture);
    let gguf = match of {
        "post_attention_layernorm" if is_after => "post_attention_norm",
        "post_attention_layernorm" => "ffn_norm",
        _ => find(INNER, of)?,
    };
    Some(format!("{gguf}.{what}"))
}

/// Returns the number of an expert, and the name of the tensor of all experts.
pub(super) fn of_expert(name: &str) -> Option<(usize, &'static str)> {
    let rest = name.strip_prefix("mlp.experts.").or_else(|| name.strip_prefix("feed_forward.experts."))?;
    let (number, matrix) = rest.split_once('.')?;
    Some((number.parse().ok()?, find(OF_EXPERT, matrix.strip_suffix(".weight")?)?))
}
