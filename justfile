# Commands of everyday work. `just` is a convenience: every recipe is one script or cargo command that works without it.

# Lists the recipes
[private]
default:
    @just --list --unsorted

# Checks formatting, lints and, once `just deny` has installed its tool, the dependencies
check: fmt lint
    @if ls "${RUVLLM_HOME:-$HOME/.ruvllm}"/test-data/cargo-deny-*/bin/cargo-deny >/dev/null 2>&1; then tests/deny; \
    else echo "dependencies not checked: just deny does, and installs cargo-deny first"; fi

# Checks the formatting (`cargo fmt --all` repairs it)
fmt:
    cargo fmt --all --check

# Lints all crates and tests; a warning is an error
lint:
    cargo clippy --locked --workspace --all-targets -- -D warnings

# Checks licences, known vulnerabilities and duplicates of all dependencies
deny:
    tests/deny

# Runs all tests; takes the arguments of cargo test, such as `just test --test program`
test *arguments:
    ./test {{arguments}}

# Compares the speed with other engines: `just bench --quick`, `just bench --help`
bench *arguments:
    cargo run --release -p peers -- {{arguments}}

# Fuzzes all targets, or those named, for this many seconds each: `just fuzz 60 gguf`
fuzz seconds='60' *targets:
    fuzz/run {{seconds}} {{targets}}

# Serves under load and faults, and reports what was lost, stuck or leaked: `just soak --for 2h`
soak *arguments='--for 30m':
    benches/soak/run {{arguments}}

# Runs ten million steps of the engine on a fake runner, with injected faults
simulate:
    cargo test --release -p ruvllm-engine --lib -- --ignored --nocapture ten_million_steps_break_nothing

# Compares what two commits compute, bit by bit: `just outputs main HEAD`
outputs old='main' new='HEAD':
    benches/outputs/compare {{old}} {{new}}

# Runs the tests under Miri, AddressSanitizer and ThreadSanitizer, or those named: `just sanitizers thread`
sanitizers *which:
    tests/sanitizers {{which}}
