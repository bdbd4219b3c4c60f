"""Makes qwen3.gguf, a tiny Qwen3 with random weights, and qwen3.json, the logits that transformers computes for it.

    pip install torch==2.6.0 transformers==4.53.3 gguf numpy
    python tests/golden/qwen3.py
"""

import json
from pathlib import Path

import gguf
import torch
import transformers

FOLDER = Path(__file__).parent
PROMPTS = [[5], [7, 3, 91, 2, 2, 50], [(i * i + 11) % 96 for i in range(70)]]

config = transformers.Qwen3Config(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    # Not hidden / heads: the file has to say so.
    head_dim=32,
    max_position_embeddings=256,
    rope_theta=50_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    attention_bias=False,
)
torch.manual_seed(17)
model = transformers.Qwen3ForCausalLM(config).float().eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        # Norms would all be 1, and a model that left them out would agree.
        spread = torch.rand_like(parameter) + 0.5 if "norm" in name else torch.randn_like(parameter) * 0.15
        parameter.copy_(spread)

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    name = name.removesuffix(".weight")
    if name in NAMES:
        return NAMES[name] + ".weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


writer = gguf.GGUFWriter(FOLDER / "qwen3.gguf", "qwen3")
writer.add_block_count(config.num_hidden_layers)
writer.add_context_length(config.max_position_embeddings)
writer.add_embedding_length(config.hidden_size)
writer.add_feed_forward_length(config.intermediate_size)
writer.add_head_count(config.num_attention_heads)
writer.add_head_count_kv(config.num_key_value_heads)
writer.add_key_length(config.head_dim)
writer.add_value_length(config.head_dim)
writer.add_rope_freq_base(config.rope_theta)
writer.add_layer_norm_rms_eps(config.rms_norm_eps)
for name, tensor in model.state_dict().items():
    writer.add_tensor(gguf_name(name), tensor.numpy())
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

answers = []
for tokens in PROMPTS:
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    # The first and the last rows: those between are seen by them.
    rows = sorted({0, len(tokens) // 2, len(tokens) - 1})
    answers.append({"tokens": tokens, "rows": {str(row): logits[row].tolist() for row in rows}})
reference = {"transformers": transformers.__version__, "torch": torch.__version__, "prompts": answers}
(FOLDER / "qwen3.json").write_text(json.dumps(reference) + "\n")
