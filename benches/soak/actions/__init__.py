"""What clients do. Each function takes a visit and asks whatever it likes."""

from . import generate, memory, rude, shaped, small

ACTIONS = {
    function.__name__: function
    for module in (generate, memory, rude, shaped, small)
    for function in module.ALL
}

# How often each is done, in the mixed traffic of a soak.
MIXED = {
    "chat": 14, "chat_stream": 14, "chat_choices": 4, "chat_logprobs": 4, "completion": 8, "response": 8, "message": 8,
    "long_prompt": 4, "shared_prefix": 8, "truncated": 2,
    "session_turn": 18, "set_policy": 3, "list_sessions": 4, "search_witness": 3,
    "json_schema": 5, "regex": 5, "tool_call": 5,
    "embed": 8, "tokens": 6, "look_around": 3,
    "hang_up_midway": 5, "hang_up_at_once": 4, "read_slowly": 3, "malformed": 6, "half_a_body": 2, "unknown_model": 2,
    "wrong_key": 2,
}

# What leaves something that must not be lost, and some load beside it.
REMEMBERED = {
    "session_turn": 30, "set_policy": 8, "list_sessions": 4, "response": 4, "chat_stream": 6, "shared_prefix": 4, "embed": 2,
    "hang_up_midway": 3,
}
