//! Token ids in, token ids out: requests, batches, steps, sampling. Synchronous and deterministic.
