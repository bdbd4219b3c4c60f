//! KV memory: pages, page tables, pools. Knows nothing of models or text.
